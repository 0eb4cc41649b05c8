//! Which samples are counted, and which of the others a member holds.

use crate::Error;
use std::ops::Range;

/// Entries for each member. Of those that nobody holds there are at most as many.
const ENTRIES_PER_MEMBER: usize = 8;
/// Greatest number of members.
pub const MAX_MEMBERS: usize = 1 << 16;

/// Greatest number of entries of a ledger for that many members.
pub(crate) fn capacity(members: usize) -> usize {
    ENTRIES_PER_MEMBER * members.clamp(1, MAX_MEMBERS)
}

/// Positions that are not counted yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The member that holds them; 0 if nobody does.
    pub(crate) owner: u128,
    /// The number of the grant that it holds them by: the own order is that of the grants.
    pub(crate) grant: u64,
    pub(crate) range: Range<u64>,
}

impl Entry {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A member, as [`Ledger::settle`] sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its number, not 0: that of its peer.
    pub owner: u128,
    /// How many of the samples that it holds are in its contribution to this step, the first ones of its own order.
    pub used: u64,
    /// How many it wants to hold afterwards.
    pub wants: u64,
}

/// Positions that a step has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The member whose contribution they were in; 0 in lock step.
    pub owner: u128,
    /// The positions.
    pub range: Range<u64>,
}

/// Which positions are counted: all that no entry has. Entries are in the order of the positions and do not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// Of what the members have to have alike.
    pub(crate) key: u64,
    pub(crate) total: u64,
    pub(crate) counted: u64,
    pub(crate) grants: u64,
    pub(crate) entries: Vec<Entry>,
    /// Greatest number of entries.
    pub(crate) capacity: usize,
}

impl Ledger {
    /// Nothing is counted of `total` positions. There are never more than `members`, at most [`MAX_MEMBERS`]. `key`: a
    /// number that differs if anything differs that members have to have alike.
    pub fn new(total: u64, members: usize, key: u64) -> Self {
        let whole = Entry { owner: 0, grant: 0, range: 0..total };
        let entries = Vec::from_iter((total > 0).then_some(whole));
        Self { key, total, counted: 0, grants: 0, entries, capacity: capacity(members) }
    }

    /// Positions of all epochs.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many of them are counted.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Whether a position is counted.
    pub fn is_counted(&self, position: u64) -> bool {
        position < self.total && !self.entries.iter().any(|entry| entry.range.contains(&position))
    }

    /// Steps that were settled.
    pub fn steps(&self) -> u64 {
        self.grants
    }

    /// A step in which nobody holds anything.
    pub(crate) fn end_step(&mut self) {
        self.grants += 1;
    }

    /// The positions that a member holds, in its own order.
    pub fn held_by(&self, owner: u128) -> Vec<Range<u64>> {
        self.own(owner).into_iter().map(|at| self.entries[at].range.clone()).collect()
    }

    /// The entries of a member, in its own order.
    fn own(&self, owner: u128) -> Vec<usize> {
        let mut own: Vec<_> = (0..self.entries.len()).filter(|at| self.entries[*at].owner == owner).collect();
        own.sort_by_key(|at| self.entries[*at].grant);
        own
    }

    /// The positions that nobody holds, cut into pieces of `most`, the first ones first.
    pub(crate) fn pieces(&self, most: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let most = most.max(1);
        self.entries.iter().filter(|entry| entry.owner == 0).flat_map(move |entry| {
            let Range { start, end } = entry.range;
            (0..entry.len().div_ceil(most)).map(move |at| start + at * most..end.min(start + (at + 1) * most))
        })
    }

    /// Counts positions that nobody holds, of one entry.
    pub(crate) fn count(&mut self, range: &Range<u64>) -> Result<(), Error> {
        let open = |entry: &Entry| {
            entry.owner == 0 && entry.range.start <= range.start && range.end <= entry.range.end
        };
        let at = self.entries.iter().position(open);
        let at = at.ok_or(Error::Damaged("a piece is counted that is not open"))?;
        let entry = self.entries.remove(at);
        let left = [entry.range.start..range.start, range.end..entry.range.end];
        let left = left.into_iter().filter(|left| !left.is_empty());
        self.entries.splice(at..at, left.map(|range| Entry { range, ..entry.clone() }));
        self.counted += range.end - range.start;
        Ok(())
    }

    /// The end of a step, with the members that were in it: counts what they have used, takes back what others held,
    /// and grants what they want. All members call it with the same arguments. Returns what was counted.
    ///
    /// A member gets the lowest positions first, so that those of the dead do not wait.
    pub fn settle(&mut self, members: &[Member]) -> Vec<Counted> {
        let counted: Vec<_> = members.iter().flat_map(|member| self.use_up(member)).collect();
        for entry in &mut self.entries {
            if !members.iter().any(|member| member.owner == entry.owner) {
                (entry.owner, entry.grant) = (0, 0);
            }
        }
        self.join_open();
        self.grants += 1;
        for member in members {
            self.grant(member);
        }
        counted
    }

    /// Whether it still is a ledger of its size.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        match self.entries.len() <= self.capacity {
            true => Ok(()),
            false => Err(Error::Damaged("it has more gaps than room for them")),
        }
    }

    fn use_up(&mut self, member: &Member) -> Vec<Counted> {
        let (mut left, mut counted) = (member.used, Vec::new());
        for at in self.own(member.owner) {
            let entry = &mut self.entries[at];
            let count = left.min(entry.len());
            left -= count;
            if count > 0 {
                let middle = entry.range.start + count;
                counted.push(Counted { owner: member.owner, range: entry.range.start..middle });
                entry.range.start = middle;
                self.counted += count;
            }
        }
        self.entries.retain(|entry| !entry.range.is_empty());
        counted
    }

    fn join_open(&mut self) {
        self.entries.dedup_by(|next, entry| {
            let joins = entry.owner == 0 && next.owner == 0 && entry.range.end == next.range.start;
            if joins {
                entry.range.end = next.range.end;
            }
            joins
        });
    }

    fn grant(&mut self, member: &Member) {
        let mut held: u64 = self.own(member.owner).into_iter().map(|at| self.entries[at].len()).sum();
        while held < member.wants {
            let Some(at) = self.entries.iter().position(|entry| entry.owner == 0) else { return };
            let is_last = at + 1 == self.entries.len();
            let is_full = self.entries.len() >= self.capacity;
            let entry = &mut self.entries[at];
            let missing = member.wants - held;
            if entry.len() > missing {
                // Without room for another entry, a member rather gets more than it wants; but not all the rest.
                if is_full && is_last {
                    return;
                }
                if !is_full {
                    let rest = entry.range.start + missing..entry.range.end;
                    entry.range.end = rest.start;
                    self.entries.insert(at + 1, Entry { owner: 0, grant: 0, range: rest });
                }
            }
            let entry = &mut self.entries[at];
            (entry.owner, entry.grant) = (member.owner, self.grants);
            held += entry.len();
        }
    }
}
