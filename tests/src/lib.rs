//! Simulation, end-to-end and tidiness tests of PCCL.
