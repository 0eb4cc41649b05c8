//! Sockets and links as their users see them: one program, since linking costs more than the tests. The tests that use
//! up the descriptors of their process are another program.

mod acceptor;
mod link_receive;
mod link_ring;
mod link_send;
mod link_support;
mod queued;
mod records;
mod relay;
mod secure;
mod shared;
mod stream;
mod tickets;
