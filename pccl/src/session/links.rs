//! The connected ring, as operations use it.

use crate::collective::{attempt::link_fault, op::missing_link};
use parking_lot::Mutex;
use pccl_protocol::{GroupEpoch, OpFault};
use std::sync::Arc;
use tinysockets::link::{Backlog, Direction, FaultKind, InLink, LinkFault, OutLink};

/// The links of the newest ring that this peer has confirmed.
#[derive(Default)]
pub(crate) struct Links {
    now: Mutex<Now>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let now = self.now.lock();
        f.debug_struct("Links").field("epoch", &now.epoch).field("fault", &now.fault).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Now {
    epoch: GroupEpoch,
    out: Option<Arc<OutLink>>,
    out_name: Option<(u128, u64)>,
    inbound: Option<Arc<InLink>>,
    in_name: Option<(u128, u64)>,
    fault: Option<LinkFault>,
}

impl Links {
    /// Both links of `epoch` stand; names are peer and generation.
    pub(crate) fn install(
        &self,
        epoch: GroupEpoch,
        out: (Arc<OutLink>, (u128, u64)),
        inbound: (Arc<InLink>, (u128, u64)),
    ) {
        let mut now = self.now.lock();
        let (old_out, old_in) = (now.out_name, now.in_name);
        now.epoch = epoch;
        now.out = Some(out.0);
        now.out_name = Some(out.1);
        now.inbound = Some(inbound.0);
        now.in_name = Some(inbound.1);
        // A link that stays keeps its fault, if it has one that the conductor has not heard of yet.
        if old_out != now.out_name || old_in != now.in_name {
            now.fault = None;
        }
    }

    /// There is no ring (this peer is alone).
    pub(crate) fn clear(&self, epoch: GroupEpoch) {
        *self.now.lock() = Now { epoch, ..Now::default() };
    }

    /// The link to the next rank in `epoch`.
    pub(crate) fn out_for(&self, epoch: GroupEpoch) -> Option<Arc<OutLink>> {
        let now = self.now.lock();
        if now.epoch == epoch { now.out.clone() } else { None }
    }

    /// The link to the next rank: its name (peer, generation), bytes sent, and what it has yet to deliver.
    pub(crate) fn out_backlog(&self) -> Option<((u128, u64), u64, Backlog)> {
        let (name, link) = {
            let now = self.now.lock();
            (now.out_name?, now.out.clone()?)
        };
        Some((name, link.sent_bytes(), link.backlog()))
    }

    /// The link from the previous rank: its name (peer, generation), and bytes received.
    pub(crate) fn received(&self) -> Option<((u128, u64), u64)> {
        let now = self.now.lock();
        Some((now.in_name?, now.inbound.as_ref()?.received_bytes()))
    }

    /// Why an operation of `epoch` cannot run, if it cannot.
    pub(crate) fn fault_for(&self, epoch: GroupEpoch) -> Option<OpFault> {
        let now = self.now.lock();
        if now.epoch != epoch || now.out.is_none() {
            return Some(missing_link("to the next rank"));
        }
        if now.inbound.is_none() {
            return Some(missing_link("from the previous rank"));
        }
        if let Some(fault) = &now.fault {
            return Some(link_fault(fault));
        }
        let broken = now.out.as_ref().is_some_and(|link| link.is_broken())
            || now.inbound.as_ref().is_some_and(|link| link.is_broken());
        broken.then(|| missing_link("to a neighbour"))
    }

    /// Breaks both links, so that whatever is half sent never arrives whole.
    pub(crate) fn break_off(&self, why: &str) {
        let (out, inbound) = {
            let now = self.now.lock();
            (now.out.clone(), now.inbound.clone())
        };
        if let Some(link) = out {
            link.fail(0, FaultKind::Closed, why);
        }
        if let Some(link) = inbound {
            link.fail(0, FaultKind::Closed, why);
        }
    }

    /// Notes a broken link. `true`: it is one of the present links.
    pub(crate) fn broken(&self, fault: &LinkFault) -> bool {
        let mut now = self.now.lock();
        let name = match fault.direction {
            Direction::In => now.in_name,
            Direction::Out => now.out_name,
        };
        let present = name == Some((fault.peer, fault.generation)) && fault.kind != FaultKind::Closed;
        if present && now.fault.is_none() {
            now.fault = Some(fault.clone());
        }
        present
    }
}
