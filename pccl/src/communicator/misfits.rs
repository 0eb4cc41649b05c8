//! Calls that fit no world. A collective that was called for other members fails with `WorldChanged`, and the step is
//! made again in the world that came with the verdict. A peer that then makes the same call in the same world makes it
//! wrongly, and would make it for ever.

use crate::{Error, world::World};
use parking_lot::Mutex;
use pccl_protocol::{Cause, Collective, CollectiveKind, PeerId};
use std::{collections::BTreeMap, time::Instant};

/// The members for whom a kind of collective was called in vain although the caller knew them, and when that was known.
#[derive(Debug, Default)]
pub(super) struct Misfits {
    seen: Mutex<BTreeMap<CollectiveKind, (Vec<PeerId>, Instant)>>,
}

/// A collective that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended<'a> {
    pub(super) collective: &'a Collective,
    pub(super) launched: Instant,
    /// The members that the caller knew when it was launched.
    pub(super) known: &'a [PeerId],
}

impl Misfits {
    /// The result for the caller: `result`, or, the second time in a row that a call does not fit a world which its
    /// caller knew, that it never will. `world` is the one that came with the end.
    pub(super) fn judge<T>(
        &self,
        ended: Ended<'_>,
        world: &World,
        result: Result<T, Error>,
    ) -> Result<T, Error> {
        let Ended { collective, launched, known } = ended;
        if collective.root().is_none() && collective.split().is_none() {
            return result;
        }
        let (kind, mut seen) = (collective.kind(), self.seen.lock());
        let verdict = result.as_ref().err().and_then(Error::verdict);
        // A peer that called for the present members failed because of another one that did not know them yet.
        let is_own = |cause| cause == Cause::WorldChanged && collective.misfit(known).is_some();
        let Some(verdict) = verdict.filter(|it| known == world.ring && is_own(it.cause)) else {
            seen.remove(&kind);
            return result;
        };
        // One that was under way when the first failed was called without that news.
        let again = seen.get(&kind).is_some_and(|(members, at)| members == known && launched >= *at);
        if !again {
            seen.entry(kind).or_insert_with(|| (known.to_vec(), Instant::now()));
            return result;
        }
        let members: Vec<String> = known.iter().map(ToString::to_string).collect();
        Err(Error::InvalidArgument(format!(
            "{}, again, in the same world: all of its members, {}, called the {collective}, and that does not fit them",
            verdict.detail,
            members.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Remedy;
    use pccl_protocol::{CollectiveId, GroupEpoch, OpId, Operation, Phase, Split, Text, Verdict};

    const THREE: [PeerId; 3] = [PeerId(1 << 96), PeerId(2 << 96), PeerId(3 << 96)];

    fn failure(cause: Cause) -> Error {
        let id = CollectiveId {
            kind: CollectiveKind::AllGather,
            op: OpId { epoch: GroupEpoch(1), tag: 0.into(), attempt: 0 },
        };
        Error::Aborted(Box::new(Verdict {
            cause,
            culprits: Vec::new(),
            operation: Operation::Collective(id),
            phase: Phase::Voting,
            bytes_done: 0,
            silent_ms: 0,
            detail: Text::new("called for 4 peers"),
        }))
    }

    fn world(ring: &[PeerId]) -> World {
        World { ring: ring.to_vec(), ..World::default() }
    }

    fn judge(misfits: &Misfits, launched: Instant, known: &[PeerId], cause: Option<Cause>) -> Option<Error> {
        let collective = Collective::AllGather(Split::Equal(4));
        let ended = Ended { collective: &collective, launched, known };
        let result = cause.map_or(Ok(()), |cause| Err(failure(cause)));
        misfits.judge(ended, &world(&THREE), result).err()
    }

    #[test]
    fn the_second_call_in_a_world_that_its_caller_knew_is_wrong_for_good() {
        let misfits = Misfits::default();
        let changed = || Some(Cause::WorldChanged);
        // The caller did not know that world yet.
        let before = Instant::now();
        assert_eq!(judge(&misfits, before, &THREE[..2], changed()), Some(failure(Cause::WorldChanged)));
        assert_eq!(judge(&misfits, before, &THREE, changed()), Some(failure(Cause::WorldChanged)));
        // This one was under way already.
        assert_eq!(judge(&misfits, before, &THREE, changed()), Some(failure(Cause::WorldChanged)));
        let error = judge(&misfits, Instant::now(), &THREE, changed()).expect("fails");
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains("called for 4 peers, again")
            && text.contains("00000001, 00000002, 00000003") && text.contains("all-gather of 4 equal parts")));
        assert_eq!(error.remedy(), Remedy::GiveUp);
    }

    #[test]
    fn who_called_for_the_present_members_may_go_on_trying() {
        let misfits = Misfits::default();
        let collective = Collective::AllGather(Split::Equal(3));
        for _ in 0..3 {
            let ended = Ended { collective: &collective, launched: Instant::now(), known: &THREE };
            let result: Result<(), _> =
                misfits.judge(ended, &world(&THREE), Err(failure(Cause::WorldChanged)));
            assert_eq!(result, Err(failure(Cause::WorldChanged)));
        }
    }

    #[test]
    fn what_comes_between_ends_the_row() {
        for between in [None, Some(Cause::PeerDied)] {
            let misfits = Misfits::default();
            assert!(judge(&misfits, Instant::now(), &THREE, Some(Cause::WorldChanged)).is_some());
            judge(&misfits, Instant::now(), &THREE, between);
            let error = judge(&misfits, Instant::now(), &THREE, Some(Cause::WorldChanged));
            assert_eq!(error, Some(failure(Cause::WorldChanged)));
        }
    }
}
