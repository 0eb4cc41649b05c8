//! Packets as bytes: one program, since linking costs more than the tests. The test that counts allocations is another
//! one.

mod arbitrary;
mod corpus;
mod round_trip;
