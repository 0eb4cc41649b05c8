//! Speed of the hashes.
fn main() {}
