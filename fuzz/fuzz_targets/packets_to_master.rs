//! Packets from a peer to the master.
#![no_main]

pccl_fuzz::packets!(pccl_protocol::C2m);
