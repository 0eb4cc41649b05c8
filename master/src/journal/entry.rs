//! The content of a journal, and its form: frames of a length, checksums and the bytes of one value. Pure.

use crate::{
    leadership::Past,
    origin::Origin,
    state::{Action, ClientKey, Input, Options, PlanKey, Timestamp},
};
use pccl_hash::crc32c;
use pccl_planner::Job;
use pccl_protocol::{Copies, GroupId, PeerId, ReachTarget, Term};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{borrow::Cow, collections::BTreeMap, net::IpAddr, time::Duration};

/// Length, checksum of the body, and checksum of both: without that, damage to a length would look like a torn end.
const HEADER_BYTES: usize = 12;
/// The bytes that the last of them is the checksum of.
const SUMMED_HEADER_BYTES: usize = 8;
/// No value is larger.
const MAX_BYTES: usize = 1 << 30;

/// Requests to others that have not answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Rings that are being planned, and whether nobody waits for them.
    pub(crate) plans: BTreeMap<PlanKey, (Job, bool)>,
    /// Listeners that are being tried.
    pub(crate) reaches: BTreeMap<PeerId, (ReachTarget, GroupId, Duration)>,
}

impl Open {
    /// The state wants something of others.
    pub(crate) fn note_asked(&mut self, action: &Action) {
        match action {
            Action::Plan { plan, job, background } => {
                self.plans.insert(*plan, ((**job).clone(), *background));
            }
            Action::DropPlan { plan } => {
                self.plans.remove(plan);
            }
            Action::Reach { target, group, limit } => {
                self.reaches.insert(target.peer, (target.clone(), *group, *limit));
            }
            Action::Send { .. } | Action::SendAll { .. } | Action::Close { .. } | Action::Log { .. } => {}
        }
    }

    /// An answer may have come.
    pub(crate) fn note_answered(&mut self, input: &Input) {
        match input {
            Input::Planned { plan, .. } => {
                self.plans.remove(plan);
            }
            Input::Reached { peer, .. } => {
                self.reaches.remove(peer);
            }
            _ => {}
        }
    }

    /// All of it, once more.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let plans = self.plans.iter().map(|(plan, (job, background))| Action::Plan {
            plan: *plan,
            job: Box::new(job.clone()),
            background: *background,
        });
        let reaches = self.reaches.values().map(|(target, group, limit)| Action::Reach {
            target: target.clone(),
            group: *group,
            limit: *limit,
        });
        plans.chain(reaches).collect()
    }
}

/// One client: its packets are counted, and what it may not have is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) remote: IpAddr,
    /// Numbered packets of it that have come.
    pub(crate) received: u64,
    /// The newest term that it may know, and the most packets to it that it may have had, when it comes back, if what
    /// it knows more is lost.
    pub(crate) at_most: Option<(Term, u64)>,
    /// The number of the last packet to it that is known to have come.
    pub(crate) before: u64,
    /// Those behind it, as frames.
    pub(crate) frames: Vec<Vec<u8>>,
}

/// All that a master knew at some moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateSnapshot {
    pub(crate) origin: Origin,
    /// The time of the state.
    pub(crate) at: Timestamp,
    /// No client has had this number, or a larger one.
    pub(crate) next_client: u64,
    /// The state, see [`MasterState::remember`](crate::state::MasterState::remember).
    pub(crate) state: Vec<u8>,
    /// The ticket issuer's knowledge of peers, in a run with a key.
    pub(crate) tickets: Option<Vec<u8>>,
    pub(crate) clients: BTreeMap<ClientKey, Client>,
    pub(crate) open: Open,
    pub(crate) past: Past,
}

/// The beginning of the feed of a standby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opening {
    pub(crate) format: String,
    /// The settings of the run, which outlive its masters.
    pub(crate) settings: Options,
    pub(crate) snapshot: StateSnapshot,
}

/// One thing that happened since.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are of the large kind")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry<'a> {
    /// The state took this in.
    Taken { at: Timestamp, input: Cow<'a, Input> },
    /// It drew its consequences.
    Settled,
    /// A client has this number of the packets to it.
    Acknowledged { client: ClientKey, count: u64 },
    /// These copies are complete from now on.
    Copies(Copies),
    /// A turn has ended, when what follows from all turns up to this one may have left, and nobody else could take over
    /// or somebody could.
    Turn { released: u64, is_alone: bool },
}

/// Why a value cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TakeError {
    /// Bytes have changed since they were put. A writer that dies leaves a part of what it was to write, never other
    /// bytes.
    #[error("a checksum does not fit")]
    Damaged,
    #[error("{0}")]
    Malformed(#[from] postcard::Error),
}

/// Appends a value.
pub(crate) fn put(out: &mut Vec<u8>, value: &impl Serialize) -> Result<(), postcard::Error> {
    let bytes = postcard::to_stdvec(value)?;
    let length = u32::try_from(bytes.len()).map_err(|_| postcard::Error::SerializeBufferFull)?;
    let begin = out.len();
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    let sum = crc32c(&out[begin..]);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(&bytes);
    Ok(())
}

/// Takes the next value from the front of `bytes`. `None`: there is no whole one, since the bytes end here or in the
/// middle of one.
pub(crate) fn take<T: DeserializeOwned>(bytes: &mut &[u8]) -> Result<Option<T>, TakeError> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let length = number(0) as usize;
    if crc32c(&header[..SUMMED_HEADER_BYTES]) != number(SUMMED_HEADER_BYTES) || length > MAX_BYTES {
        return Err(TakeError::Damaged);
    }
    let Some((body, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    if crc32c(body) != number(4) {
        return Err(TakeError::Damaged);
    }
    *bytes = rest;
    Ok(Some(postcard::from_bytes(body)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{C2m, RequestId};

    #[test]
    fn what_was_put_is_taken_up_to_where_the_file_ends() {
        let client = ClientKey(7);
        let packet = C2m::VotePending(RequestId(3));
        let input = Cow::Owned(Input::Packet { client, packet });
        let entries = [
            Entry::Turn { released: 4, is_alone: true },
            Entry::Taken { at: Timestamp(5), input },
            Entry::Settled,
            Entry::Acknowledged { client, count: 9 },
        ];
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| put(&mut bytes, entry).unwrap());
        for end in 0..=bytes.len() {
            let mut rest = &bytes[..end];
            let mut found = Vec::new();
            while let Some(entry) = take::<Entry<'static>>(&mut rest).unwrap() {
                found.push(entry);
            }
            assert_eq!(found, entries[..found.len()]);
            assert_eq!(found.len() == entries.len(), end == bytes.len());
        }
    }

    /// One changed bit at any place, in front of an end at any place: it is found, or it lies in the torn end, which is
    /// thrown away.
    #[test]
    fn no_changed_bit_passes_for_what_was_written_or_for_an_end() {
        let entries = [
            Entry::Settled,
            Entry::Turn { released: 4, is_alone: true },
            Entry::Acknowledged { client: ClientKey(7), count: 300 },
        ];
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for entry in &entries {
            put(&mut bytes, entry).unwrap();
            ends.push(bytes.len());
        }
        for end in 0..=bytes.len() {
            let whole = ends.iter().filter(|of_one| **of_one <= end).count();
            let torn_at = ends[..whole].last().copied().unwrap_or(0);
            for bit in 0..end * 8 {
                let mut changed = bytes[..end].to_vec();
                changed[bit / 8] ^= 1 << (bit % 8);
                let mut rest = &changed[..];
                let mut found = Vec::new();
                let last = loop {
                    match take::<Entry<'static>>(&mut rest) {
                        Ok(Some(entry)) => found.push(entry),
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(error),
                    }
                };
                assert_eq!(found, entries[..found.len()], "bit {bit} of {end} bytes");
                if bit / 8 < torn_at {
                    assert_eq!(last, Err(TakeError::Damaged), "bit {bit} of {end} bytes");
                } else {
                    assert_eq!(found.len(), whole, "bit {bit} of {end} bytes");
                }
            }
        }
    }
}
