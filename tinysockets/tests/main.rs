//! Sockets and links as their users see them: one program, since linking costs more than the tests. What uses up the
//! descriptors of its process is another one.

mod acceptor;
mod link_receive;
mod link_ring;
mod link_send;
mod link_support;
mod queued;
mod records;
mod relay;
mod secure;
mod stream;
mod tickets;
