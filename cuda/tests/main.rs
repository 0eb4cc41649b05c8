//! Tests of device memory, on the stand-in driver.

mod common;
mod compile;
mod hashes;
mod order;
mod quantise;
