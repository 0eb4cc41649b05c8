//! Kernels and quantisation as their users see them: one program, since linking costs more than the tests.

mod copy;
mod errors;
mod kernels;
mod quantise;
