//! The cargo of a frame of pairwise exchange, where it lies at both ends, and what becomes of it when it is here.

use super::{IDLE, Pairwise, Part, results};
use crate::{
    collective::{
        coding::Stop,
        progress::{link_fault, local_fault},
    },
    memory::PartMemory,
};
use pccl_schedule::Frame;
use std::sync::atomic::{AtomicU8, Ordering};
use tinysockets::link::{FrameHeader, Landing, Lent, LinkFault, Place, Transfer, Violation};

const RECEIVING: u8 = 1;
const RECEIVED: u8 = 2;

/// The cargo of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cargo {
    /// The contribution of a rank to a unit that the receiver owns: as it is although the tensor is quantised, or not.
    Contribution { from: usize, is_plain: bool },
    /// Something that its sender owns.
    Result,
}

impl Cargo {
    /// For the log.
    fn what(self) -> &'static str {
        if self == Self::Result { "result" } else { "contribution" }
    }
}

impl Pairwise {
    /// The cargo of a frame that arrives here, if it is one of those that do.
    fn received(&self, header: &FrameHeader) -> Option<(Frame, Cargo)> {
        let (ranks, stage, shape) = (self.plan.ranks(), header.stage as usize, self.plan.shape());
        let from = stage % ranks;
        let cargo = match stage / ranks {
            0 => Cargo::Contribution { from, is_plain: false },
            1 => Cargo::Result,
            2 => Cargo::Contribution { from, is_plain: true },
            _ => return None,
        };
        let is_due = if cargo == Cargo::Result { shape.distributes() } else { shape.folds() };
        if !is_due || from == self.plan.rank() {
            return None;
        }
        let (rank, part) = (self.plan.rank(), header.part as usize);
        let frame = match cargo {
            Cargo::Contribution { is_plain: true, .. } => {
                self.plan.frame_of_plain(part, header.offset, header.len)?
            }
            _ => self.plan.frame_anywhere(part, header.offset, header.len)?,
        };
        let (child, parent) = if cargo == Cargo::Result { (rank, from) } else { (from, rank) };
        let has_form = match cargo {
            Cargo::Contribution { is_plain, .. } => {
                is_plain
                    == (self.ownership.is_plain_within(&self.plan, part)
                        && self.ownership.are_near(from, rank))
            }
            Cargo::Result => true,
        };
        (has_form && self.ownership.parent(child, &frame) == Some(parent)).then_some((frame, cargo))
    }

    /// Whether a frame that is sent from here lies where results do: a result that this rank has folded or received, or
    /// the sum of its site.
    fn is_result(&self, header: &FrameHeader) -> bool {
        let frame = || self.plan.frame_anywhere(header.part as usize, header.offset, header.len);
        let folds = self.plan.shape().folds();
        match header.stage as usize >= self.plan.ranks() {
            true => folds || frame().is_some_and(|frame| !self.ownership.is_own(&frame)),
            false => {
                self.ownership.has_sites() && frame().is_some_and(|frame| self.ownership.children(&frame) > 0)
            }
        }
    }

    fn state(&self, frame: &Frame, cargo: Cargo) -> &AtomicU8 {
        // From this rank nothing comes here but by way of the result.
        let from = if let Cargo::Contribution { from, .. } = cargo { from } else { self.plan.rank() };
        &self.states[frame.slot * self.plan.ranks() + from]
    }
}

impl Transfer for Pairwise {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        let (frame, cargo) = self.received(header).ok_or_else(|| self.progress.unexpected(header))?;
        log::trace!("{}: frame begins, a {} at stage {}", self.progress.id(), cargo.what(), header.stage);
        if self.progress.is_retracted() {
            return Ok(Landing::Discard);
        }
        let state = self.state(&frame, cargo);
        let taken = state.compare_exchange(IDLE, RECEIVING, Ordering::AcqRel, Ordering::Acquire);
        taken.map(|_| Landing::Direct).map_err(|_| Violation {
            text: format!(
                "{}: {cargo:?} to chunk {} at byte {} of tensor {} arrives twice",
                self.progress.id(),
                frame.chunk,
                frame.offset,
                frame.part
            ),
        })
    }

    fn fold(&self, _: &FrameHeader, _: usize, _: &[u8]) -> bool {
        false
    }

    fn granule_bytes(&self, _: &FrameHeader) -> usize {
        1
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let part = &self.parts[header.part as usize];
        if let Some((frame, Cargo::Contribution { from, is_plain })) = self.received(header) {
            let unit = self.plan.unit_of(&frame);
            let all = self.ownership.contributions(&self.plan, &frame, &unit);
            let place = self.ownership.place_among(from, &frame, self.plan.start_of(frame.chunk));
            let (site, sites) = (place.min(all.of_site), place.saturating_sub(all.of_site));
            let unit_start = match &part.coding {
                Some(coding) if is_plain => coding.bytes_of(&unit).start,
                _ => unit.encoded.start,
            };
            let first = self.ownership.folded_before(&unit).contributed_bytes
                + site * all.of_site_bytes
                + sites * all.over_sites_bytes
                + (header.offset as usize - unit_start);
            return Place { memory: &part.contributions, range: first + done..first + header.len as usize };
        }
        part.place(header, done, results)
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let part = &self.parts[header.part as usize];
        if header.stage as usize >= self.plain_stage(0) {
            let start = header.offset as usize;
            let range = start + done..start + header.len as usize;
            return match part.memory.whole() {
                PartMemory::OnDevice(_) => Place { memory: &part.copied, range },
                memory => Place { memory: memory.own(), range },
            };
        }
        part.place(header, done, if self.is_result(header) { results } else { PartMemory::own })
    }

    fn arrived(&self, header: &FrameHeader) {
        let Some((frame, cargo)) = self.received(header) else { return };
        self.progress.bytes_arrived(header);
        self.state(&frame, cargo).store(RECEIVED, Ordering::Release);
        log::trace!("{}: frame complete, a {} at stage {}", self.progress.id(), cargo.what(), header.stage);
        let part = &self.parts[frame.part];
        match cargo {
            Cargo::Contribution { .. } => match self.contributed(&frame) {
                Ok(()) => {}
                Err(Stop::Closed) => return,
                Err(Stop::Failed(text)) => return self.progress.report(local_fault(text)),
            },
            Cargo::Result => {
                if part.coding.is_none() {
                    part.memory.finished(frame.range());
                }
                if self.ownership.children(&frame) > 0 {
                    self.send_down(&[frame]);
                }
            }
        }
        if self.progress.frame_done() {
            self.progress.all_received();
        }
    }

    fn corrupt(&self, header: &FrameHeader, peer: u128, generation: u64) {
        self.progress.corrupt(header, peer, generation);
    }

    fn released(&self, header: &FrameHeader) {
        self.progress.released(header);
    }

    fn link_failed(&self, fault: &LinkFault) {
        self.progress.report(link_fault(fault));
    }
}

impl Part {
    /// Where a payload lies from byte `done` on: in staging memory, if it is encoded, otherwise in what `which` picks.
    fn place(&self, header: &FrameHeader, done: usize, which: impl Fn(&PartMemory) -> &Lent) -> Place<'_> {
        let start = header.offset as usize;
        let range = start + done..start + header.len as usize;
        match &self.coding {
            Some(coding) => Place { memory: &coding.staging, range },
            None => self.memory.place(range, which),
        }
    }
}
