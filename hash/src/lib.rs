//! State hashes: tree XXH3-128, simplehash and CRC-32C.
