//! The examples in C and C++.
