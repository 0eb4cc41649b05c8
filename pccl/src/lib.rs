//! Fault-tolerant collective communication for training across unreliable machines.
