//! Where to go on when no master can be had: peers agree through a store, by a global iteration that their
//! communicators carry.

use super::Communicator;
use crate::{Error, settings::ResumeSettings};
use parking_lot::Mutex;
use pccl_iteration::{
    Cancel, Decision, GlobalIteration, IterationError, Store, TcpStoreClient, protocol::keys::BESIDE_MASTER,
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tinysockets::wire::{Decode, Encode, Reader, WireError, put_string};

/// Checkpoints that one peer can offer; older ones are left out.
const CHECKPOINTS_MAX: usize = 24;
/// Longest tag, in bytes.
const TAG_BYTES_MAX: usize = 128;
/// How long a connect waits for the store. It is needed only when the master is not there any more.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Something that a training can go on from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    /// Revision of the shared state in it.
    pub revision: u64,
    /// The name that the program gives it, such as a file name: at most 128 bytes. Contents that may differ need
    /// different tags.
    pub tag: String,
}

/// The decision on which peers have agreed; the same for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The last checkpoint that all members of the decision hold; none if they have none in common.
    pub checkpoint: Option<Checkpoint>,
    /// The decision.
    pub decision: Decision,
}

/// A global iteration that a communicator carries. It is joined when it is first needed.
#[derive(Debug)]
pub(super) struct Carried {
    settings: ResumeSettings,
    cancel: Cancel,
    /// The store is known to outlive masters.
    is_fine: AtomicBool,
    joined: Mutex<Option<Arc<GlobalIteration>>>,
}

impl Carried {
    pub(super) fn new(settings: ResumeSettings) -> Self {
        Self {
            settings,
            cancel: Cancel::default(),
            is_fine: AtomicBool::new(false),
            joined: Mutex::new(None),
        }
    }

    fn store(&self, deadline: Instant) -> Result<Arc<dyn Store>, IterationError> {
        let address = &self.settings.store;
        let store = TcpStoreClient::connect(address, deadline).map_err(IterationError::Store)?;
        if store.check(&[BESIDE_MASTER.to_owned()], deadline).map_err(IterationError::Store)? {
            return Err(IterationError::Setting(format!(
                "the store at {address} is part of a master and ends with it, so it cannot say where to resume \
                 without one: run pccl-master --store-only, or a TCPStore of PyTorch, as a process of its own"
            )));
        }
        Ok(Arc::new(store))
    }

    /// Refuses a store that ends with the master. One that cannot be reached now may be there when it is needed.
    pub(super) fn look(&self) -> Result<(), Error> {
        if self.is_fine.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.store(Instant::now() + LOOK_TIMEOUT) {
            Ok(_) => {
                self.is_fine.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(IterationError::Setting(text)) => Err(Error::InvalidUsage(text)),
            Err(error) => {
                log::warn!("peers could not agree on where to resume if the master were lost now: {error}");
                Ok(())
            }
        }
    }

    fn agree(&self, payload: &[u8]) -> Result<Decision, IterationError> {
        let mut slot = self.joined.lock();
        let Some(iteration) = slot.clone() else {
            let ResumeSettings { member, config, .. } = &self.settings;
            let store = self.store(Instant::now() + config.store_timeout)?;
            let cancel = self.cancel.clone();
            let joined = GlobalIteration::join_until(store, member, payload, config.clone(), cancel)?;
            let decision = joined.decision();
            *slot = Some(Arc::new(joined));
            return Ok(decision);
        };
        drop(slot);
        match iteration.advance(payload) {
            Err(IterationError::Fenced { .. } | IterationError::NotMember(_)) => iteration.catch_up(payload),
            other => other,
        }
    }
}

impl Communicator {
    /// Agrees with the other peers, through the store of [`Builder::resume_over`](crate::Builder::resume_over), on the
    /// last checkpoint that all of them hold: for when no master can be had, which [`Communicator::run`] and
    /// [`Communicator::connect`] tell by `ConnectFailed`. Each call is one decision; it waits for all peers that live
    /// and have joined, as the settings of the global iteration say. Then every peer loads the checkpoint, begins its
    /// shared state with the revision behind it, and connects to a master as soon as there is one.
    ///
    /// `held` are the checkpoints that this peer could load, in any order; of more than 24 the newest count.
    ///
    /// # Errors
    /// `Setting` without such a store, if that store ends with a master, or for a tag that is too long; otherwise see
    /// [`IterationError`]. With `StrictMajority` a peer that is cut off from all others gets `NoQuorum`.
    pub fn agree_on_resume(&self, held: &[Checkpoint]) -> Result<Resume, IterationError> {
        let Some(carried) = &self.carried else {
            return Err(IterationError::Setting(
                "no store to agree through, see Builder::resume_over".into(),
            ));
        };
        let decision = carried.agree(&encode(held)?)?;
        let checkpoint = last_in_common(&decision)?;
        match &checkpoint {
            Some(Checkpoint { revision, tag }) => log::info!("resuming from {tag:?}, revision {revision}"),
            None => log::warn!("{} peers have no checkpoint in common", decision.entries.len()),
        }
        Ok(Resume { checkpoint, decision })
    }

    /// The global iteration that this communicator carries, once it has agreed on where to resume: for leaving, for
    /// forcing members, for cancelling.
    pub fn global_iteration(&self) -> Option<Arc<GlobalIteration>> {
        self.carried.as_ref().and_then(|carried| carried.joined.lock().clone())
    }
}

fn encode(held: &[Checkpoint]) -> Result<Vec<u8>, IterationError> {
    let newest: BTreeSet<&Checkpoint> = held.iter().collect();
    let mut out = Vec::new();
    for checkpoint in newest.into_iter().rev().take(CHECKPOINTS_MAX) {
        let bytes = checkpoint.tag.len();
        if bytes > TAG_BYTES_MAX {
            let text = format!("a tag of {bytes} bytes, at most {TAG_BYTES_MAX} are allowed");
            return Err(IterationError::Setting(text));
        }
        checkpoint.revision.encode(&mut out);
        put_string(&mut out, &checkpoint.tag);
    }
    Ok(out)
}

fn decode(payload: &[u8]) -> Result<BTreeSet<Checkpoint>, WireError> {
    let mut reader = Reader::new(payload);
    let mut held = BTreeSet::new();
    while reader.remaining() > 0 {
        let revision = u64::decode(&mut reader)?;
        held.insert(Checkpoint { revision, tag: reader.string(TAG_BYTES_MAX, "tag")? });
    }
    Ok(held)
}

/// The newest checkpoint that every member of a decision offers.
fn last_in_common(decision: &Decision) -> Result<Option<Checkpoint>, IterationError> {
    let mut common: Option<BTreeSet<Checkpoint>> = None;
    for entry in &decision.entries {
        let held = decode(&entry.payload).map_err(|error| {
            IterationError::Setting(format!("member {} offers no checkpoints: {error}", entry.member))
        })?;
        common = Some(common.map_or_else(|| held.clone(), |common| &common & &held));
    }
    Ok(common.and_then(|mut common| common.pop_last()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_iteration::{Member, protocol::Entry};

    fn held(all: &[(u64, &str)]) -> Vec<Checkpoint> {
        all.iter().map(|(revision, tag)| Checkpoint { revision: *revision, tag: (*tag).into() }).collect()
    }

    fn agreed(payloads: Vec<Vec<u8>>) -> Result<Option<Checkpoint>, IterationError> {
        let member = |index: usize| Member { id: index.to_string(), incarnation: 1 };
        let entry = |(index, payload)| Entry { member: member(index), payload, joined: true };
        last_in_common(&Decision {
            iteration: 0,
            entries: payloads.into_iter().enumerate().map(entry).collect(),
            proposer: member(0),
            slots: 0,
            nonce: 1,
            past: Vec::new(),
        })
    }

    fn of(all: &[&[(u64, &str)]]) -> Option<Checkpoint> {
        agreed(all.iter().map(|one| encode(&held(one)).unwrap()).collect()).unwrap()
    }

    #[test]
    fn the_newest_that_all_hold_is_agreed_on() {
        let common =
            of(&[&[(5, "a"), (10, "b"), (15, "c")], &[(10, "b"), (5, "a")], &[(15, "c"), (10, "b")]]);
        assert_eq!(common, held(&[(10, "b")]).pop());
        assert_eq!(of(&[&[(5, "a")], &[(5, "other content")]]), None);
        assert_eq!(of(&[&[(5, "a")], &[]]), None);
        assert_eq!(of(&[&[(7, "x")]]), held(&[(7, "x")]).pop());
    }

    #[test]
    fn as_many_as_fit_are_offered() {
        let tag = "t".repeat(TAG_BYTES_MAX);
        let many: Vec<Checkpoint> =
            (0..100).map(|revision| Checkpoint { revision, tag: tag.clone() }).collect();
        let payload = encode(&many).unwrap();
        assert!(payload.len() <= pccl_iteration::protocol::MAX_PAYLOAD_BYTES, "{}", payload.len());
        assert_eq!(decode(&payload).unwrap().first().unwrap().revision, 76);
        let long = [Checkpoint { revision: 0, tag: format!("{tag}t") }];
        assert!(encode(&long).unwrap_err().to_string().contains("129 bytes"));
    }

    #[test]
    fn what_is_no_offer_is_named() {
        let error = agreed(vec![encode(&[]).unwrap(), b"hello".to_vec()]).unwrap_err();
        assert!(error.to_string().contains("member 1"), "{error}");
    }
}
