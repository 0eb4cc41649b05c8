//! State hashes as their users see them: one program, since linking costs more than the tests.

mod checksum;
mod common;
mod crc32c;
mod order;
mod quality;
mod simplehash;
mod tree;
