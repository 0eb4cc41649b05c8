//! The state that the last committed sync of a group has agreed on, and which members lend it: they give it to
//! newcomers while they train.

use super::election::Election;
use crate::state::groups::group::SyncVote;
use crate::state::types::Timestamp;
use pccl_hash::Digest128;
use pccl_protocol::{FetchItem, Key, PeerId, Revision, SyncId};
use std::collections::{BTreeMap, BTreeSet};

/// The content that the voters of a sync hold once it is committed.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Content {
    /// Tensors that are the same everywhere.
    strict: Vec<FetchItem>,
    /// Tensors that may differ.
    loose: Vec<Key>,
    /// The voters who may give it to others, with their digests of `loose`.
    held: BTreeMap<PeerId, Vec<Digest128>>,
}

impl Content {
    /// The content of these voters when everybody has got what the election names. All votes have the same tensors.
    pub(crate) fn of(
        votes: &BTreeMap<PeerId, SyncVote>,
        election: &Election,
        may_give: impl Fn(PeerId) -> bool,
    ) -> Self {
        let Some(winner) = votes.get(&election.winner) else { return Self::default() };
        let (loose, strict): (Vec<_>, Vec<_>) =
            winner.entries.iter().partition(|entry| entry.allow_inequality);
        let mut held = BTreeMap::new();
        for (id, vote) in votes.iter().filter(|(id, _)| may_give(**id)) {
            // The fetched items are in the order of the tensors.
            let mut fetched = election.parts.get(id).map_or(&[][..], |part| &part.fetch).iter().peekable();
            let mut own = Vec::with_capacity(loose.len());
            for mine in &vote.entries {
                let got = fetched.next_if(|item| item.key == mine.key);
                if mine.allow_inequality {
                    own.push(got.map_or(mine.digest, |item| item.digest));
                }
            }
            held.insert(*id, own);
        }
        Self {
            strict: strict.iter().map(|e| FetchItem { key: e.key.clone(), digest: e.digest }).collect(),
            loose: loose.iter().map(|e| e.key.clone()).collect(),
            held,
        }
    }

    /// All tensors, in the order of their keys, as these peers hold them; without those that are not the same there.
    fn as_held_by(&self, peers: &[PeerId]) -> Vec<FetchItem> {
        let mut items = self.strict.clone();
        for (index, key) in self.loose.iter().enumerate() {
            let mut digests =
                peers.iter().map(|id| self.held.get(id).and_then(|own| own.get(index)).copied());
            if let Some(Some(digest)) = digests.next()
                && digests.all(|other| other == Some(digest))
            {
                items.push(FetchItem { key: key.clone(), digest });
            }
        }
        items.sort_by(|a, b| a.key.cmp(&b.key));
        items
    }
}

/// The place of a content among those of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Place {
    /// The first content of its count: it begins anew when nobody is left who holds the state.
    first: SyncId,
    /// How many contents of this count there were before.
    number: u64,
}

impl Place {
    /// How many contents newer it is than `older`; nothing if they are of two counts.
    pub(crate) fn newer_than(self, older: Self) -> Option<u64> {
        (self.first == older.first).then(|| self.number.saturating_sub(older.number))
    }
}

/// The last committed sync of a group.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Agreed {
    pub(crate) sync: SyncId,
    pub(crate) revision: Revision,
    /// Names what must be the same: the first of the syncs in a row that have committed just that.
    pub(crate) content: SyncId,
    pub(crate) place: Place,
    holds: Content,
    /// Members with a standing loan.
    servers: BTreeSet<PeerId>,
    /// When the first of them began, since when there was one all the time.
    lends_since: Option<Timestamp>,
    /// There was a loan of this sync, and of the one before.
    lent: bool,
    lent_before: bool,
}

impl Agreed {
    /// A sync was committed after this one.
    pub(crate) fn next(before: Option<&Self>, sync: SyncId, revision: Revision, holds: Content) -> Self {
        let is_same = before.is_some_and(|before| before.holds.strict == holds.strict);
        let known = before.map(|before| (before.content, before.place));
        let (content, place) = match known {
            Some(known) if is_same => known,
            Some((_, place)) => (sync, Place { number: place.number + 1, ..place }),
            None => (sync, Place { first: sync, number: 0 }),
        };
        let (servers, lent_before) = (BTreeSet::new(), before.is_some_and(|before| before.lent));
        Self { sync, revision, content, place, holds, servers, lends_since: None, lent: false, lent_before }
    }

    /// A member says that it lends what a sync has committed, or does not any more. Whether that is a new loan.
    pub(crate) fn lend(&mut self, id: PeerId, sync: SyncId, stands: bool, now: Timestamp) -> bool {
        if !stands {
            if sync == self.sync {
                self.end(id);
            }
            return false;
        }
        if sync != self.sync || !self.holds.held.contains_key(&id) {
            return false;
        }
        self.lends_since.get_or_insert(now);
        self.lent = true;
        self.servers.insert(id)
    }

    /// The loan of a member ends.
    pub(crate) fn end(&mut self, id: PeerId) {
        self.servers.remove(&id);
        if self.servers.is_empty() {
            self.lends_since = None;
        }
    }

    /// A member is gone.
    pub(crate) fn forget(&mut self, id: PeerId) {
        self.end(id);
        self.holds.held.remove(&id);
    }

    pub(crate) const fn servers(&self) -> &BTreeSet<PeerId> {
        &self.servers
    }

    /// Whether somebody is there who lends, or may do so: there was a loan of this sync or of the one before.
    pub(crate) fn may_be_lent(&self) -> bool {
        (self.lent || self.lent_before) && !self.holds.held.is_empty()
    }

    /// Until when others of those who hold it may lend it, too: then several can be named at once.
    pub(crate) fn is_open_until(&self, grace: std::time::Duration) -> Option<Timestamp> {
        let is_open = self.servers.len() < self.holds.held.len();
        self.lends_since.filter(|_| is_open).map(|since| since + grace)
    }

    /// All tensors as these serving peers hold them.
    pub(crate) fn tensors_of(&self, servers: &[PeerId]) -> Vec<FetchItem> {
        self.holds.as_held_by(servers)
    }

    /// The master stood still.
    pub(crate) fn extend(&mut self, past: impl Fn(&mut Timestamp)) {
        self.lends_since.iter_mut().for_each(past);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::shared_state::election::elect;
    use pccl_protocol::{RequestId, StateEntry, SyncStrategy};
    use pccl_quant::DataType;

    fn entry(key: &str, allow_inequality: bool, digest: u128) -> StateEntry {
        let digest = Digest128::from_u128(digest);
        StateEntry { key: Key::new(key), count: 1, data_type: DataType::Float32, allow_inequality, digest }
    }

    /// Votes of peers 1, 2, ...: revision, and the digests of "a", "rng" (which may differ) and "w".
    fn content(ballots: &[(u64, [u128; 3])]) -> Content {
        let vote = |(revision, [a, rng, w]): &(u64, [u128; 3])| SyncVote {
            request: RequestId(1),
            revision: Revision(*revision),
            strategy: SyncStrategy::EnforcePopular,
            entries: vec![entry("a", false, *a), entry("rng", true, *rng), entry("w", false, *w)],
        };
        let votes = (1..).map(PeerId).zip(ballots.iter().map(vote)).collect();
        let election =
            elect(&votes, &BTreeSet::new(), |_| Some(0), (|_, _| true, false)).expect("an election");
        Content::of(&votes, &election, |_| true)
    }

    fn named(content: &Content, peers: &[u128]) -> Vec<(String, u128)> {
        let peers: Vec<PeerId> = peers.iter().map(|id| PeerId(*id)).collect();
        let items = content.as_held_by(&peers).into_iter();
        items.map(|item| (item.key.as_str().to_owned(), item.digest.to_u128())).collect()
    }

    #[test]
    fn what_is_fetched_counts_and_what_differs_is_left_out() {
        // The third one is outdated and gets everything from the first; the others keep their own "rng".
        let content = content(&[(4, [10, 1, 20]), (4, [10, 2, 20]), (3, [9, 3, 19])]);
        let both = |rng| vec![("a".to_owned(), 10), ("rng".to_owned(), rng), ("w".to_owned(), 20)];
        assert_eq!(named(&content, &[1, 3]), both(1));
        assert_eq!(named(&content, &[2]), both(2));
        assert_eq!(named(&content, &[1, 2]), [("a".to_owned(), 10), ("w".to_owned(), 20)]);
    }

    #[test]
    fn a_content_is_as_old_as_the_first_sync_that_committed_it() {
        let of = |w| content(&[(4, [10, 1, w]), (4, [10, 2, w])]);
        let first = Agreed::next(None, SyncId(3), Revision(4), of(20));
        let second = Agreed::next(Some(&first), SyncId(5), Revision(5), of(20));
        let third = Agreed::next(Some(&second), SyncId(6), Revision(6), of(21));
        assert_eq!([first.content, second.content, third.content], [SyncId(3), SyncId(3), SyncId(6)]);
        assert_eq!([first.place.number, second.place.number, third.place.number], [0, 0, 1]);
    }

    #[test]
    fn loans_are_of_one_sync_and_of_those_who_hold_it() {
        let now = Timestamp::from_millis;
        let grace = std::time::Duration::from_millis(5);
        let holds = content(&[(4, [1, 1, 1]), (4, [1, 1, 1])]);
        let mut agreed = Agreed::next(None, SyncId(3), Revision(4), holds.clone());
        assert!(!agreed.lend(PeerId(1), SyncId(2), true, now(1)) && !agreed.may_be_lent(), "an older one");
        assert!(!agreed.lend(PeerId(7), SyncId(3), true, now(1)) && !agreed.may_be_lent(), "a stranger");
        assert!(agreed.lend(PeerId(1), SyncId(3), true, now(2)) && agreed.may_be_lent());
        assert!(!agreed.lend(PeerId(1), SyncId(3), true, now(3)), "it lends already");
        assert_eq!(agreed.is_open_until(grace), Some(now(7)));
        assert!(agreed.lend(PeerId(2), SyncId(3), true, now(4)));
        assert_eq!(agreed.is_open_until(grace), None);
        agreed.lend(PeerId(1), SyncId(2), false, now(5));
        assert_eq!(agreed.servers().len(), 2, "that loan had ended before");
        agreed.lend(PeerId(1), SyncId(3), false, now(5));
        agreed.end(PeerId(2));
        assert!(agreed.servers().is_empty() && agreed.may_be_lent());
        // One sync without a loan is nothing, two are.
        let next = Agreed::next(Some(&agreed), SyncId(4), Revision(5), holds.clone());
        assert!(next.may_be_lent());
        let mut last = Agreed::next(Some(&next), SyncId(5), Revision(6), holds);
        assert!(!last.may_be_lent());
        // Nobody can lend what nobody holds.
        assert!(last.lend(PeerId(1), SyncId(5), true, now(9)) && last.may_be_lent());
        last.forget(PeerId(2));
        last.forget(PeerId(1));
        assert!(!last.may_be_lent());
    }
}
