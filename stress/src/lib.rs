//! Kill-and-respawn stress harness.
