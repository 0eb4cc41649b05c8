//! The place of a client whose connection a journal knew, until the client comes back.

use crate::journal::Client;
use pccl_protocol::{Term, limits::MAX_KEPT_BYTES};
use std::net::IpAddr;
use tinysockets::write_queue::{Frame, WriteQueue};

/// The place of a client.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) remote: IpAddr,
    /// Numbered packets of it that have come.
    pub(crate) received: u64,
    /// The newest term that it may know, and the most packets that it may have had, when it comes back for the first
    /// time, if one acts by an operator's word.
    pub(crate) at_most: Option<(Term, u64)>,
    /// Packets that it may not have.
    pub(crate) queue: WriteQueue,
}

impl Place {
    pub(crate) fn new(remote: IpAddr) -> Self {
        Self { remote, received: 0, at_most: None, queue: WriteQueue::recalled(0, MAX_KEPT_BYTES) }
    }

    pub(crate) fn of(client: Client) -> Self {
        let Client { remote, received, at_most, before, frames } = client;
        let mut queue = WriteQueue::recalled(before, MAX_KEPT_BYTES);
        frames.into_iter().for_each(|bytes| queue.push_left(Frame::new(bytes).numbered()));
        Self { remote, received, at_most, queue }
    }
}
