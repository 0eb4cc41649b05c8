//! Element types and reduce kernels.
