//! Packets from the master to a peer.
#![no_main]

pccl_fuzz::packets!(pccl_protocol::M2c);
