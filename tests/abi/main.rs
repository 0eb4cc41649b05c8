//! The C interface: the header, the library as a linker sees it, and programs in C and C++ that use it.
//!
//! The library is built here. A C compiler is what links Rust programs anyway; without a
//! C++ compiler the tests in C++ are skipped, and say so.

mod ahead;
mod build;
mod devices;
mod examples;
mod header;
mod install;
mod memory;
mod original;
mod programs;
mod restart;
mod symbols;
