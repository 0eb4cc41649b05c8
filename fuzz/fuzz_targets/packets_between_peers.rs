//! Packets between two peers.
#![no_main]

pccl_fuzz::packets!(pccl_protocol::P2p);
