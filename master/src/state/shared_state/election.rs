//! The voter whose content a sync spreads: a pure function of the votes.

use crate::state::groups::group::SyncVote;
use pccl_hash::Digest128;
use pccl_protocol::{FetchItem, PeerId, Revision, StateEntry, SyncStrategy, limits};
use std::collections::{BTreeMap, BTreeSet};

/// Two voters that contradict each other, or one against the rest.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Conflict {
    pub(crate) peers: (PeerId, PeerId),
    /// The values of the two, in words.
    pub(crate) values: (String, String),
}

/// The part of a voter in a sync.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Part {
    pub(crate) fetch: Vec<FetchItem>,
    pub(crate) sources: Vec<PeerId>,
    /// It lacks something, and cannot connect to any of those who may give that.
    pub(crate) is_apart: bool,
}

impl Part {
    /// Whether it lacks something, and nobody may give that.
    pub(crate) fn is_unserved(&self) -> bool {
        !self.fetch.is_empty() && self.sources.is_empty()
    }
}

/// The result of an election.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Election {
    pub(crate) revision: Revision,
    /// One of those who hold the elected content.
    pub(crate) winner: PeerId,
    pub(crate) parts: BTreeMap<PeerId, Part>,
}

type Votes = BTreeMap<PeerId, SyncVote>;

/// How the tensors of a voter differ from those of its group.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Deviation {
    /// The tensor of the group, and that of the voter, for the first key that differs.
    pub(crate) theirs: String,
    pub(crate) own: String,
    /// How many voters are as the group is.
    pub(crate) agree: usize,
}

/// Voters whose set of tensors (keys, types, counts, flags) is not that of their group.
///
/// The group's is the one that most of those have who took part in the last committed sync. If none of them votes, it
/// is the one that most of those have who give, or most of all, if nobody gives. On a tie it is the one with more
/// tensors, then the lowest.
pub(crate) fn deviants(votes: &Votes, holders: &BTreeSet<PeerId>) -> BTreeMap<PeerId, Deviation> {
    let held = votes.iter().any(|(peer, _)| holders.contains(peer));
    let given = votes.values().any(gives);
    let counts = |peer: &PeerId, vote: &SyncVote| match (held, given) {
        (true, _) => holders.contains(peer),
        (false, true) => gives(vote),
        (false, false) => true,
    };
    let mut camps: BTreeMap<Vec<Shape<'_>>, (usize, &SyncVote)> = BTreeMap::new();
    for (_, vote) in votes.iter().filter(|(peer, vote)| counts(peer, vote)) {
        camps.entry(vote.entries.iter().map(shape).collect()).or_insert((0, vote)).0 += 1;
    }
    // The last of several maxima is taken, so in reverse order the lowest.
    let most = camps.into_iter().rev().max_by_key(|(shape, camp)| (camp.0, shape.len()));
    let Some((_, (_, mask))) = most else { return BTreeMap::new() };
    let found: BTreeMap<PeerId, (String, String)> = votes
        .iter()
        .filter_map(|(peer, vote)| Some((*peer, entry_difference(&mask.entries, &vote.entries)?)))
        .collect();
    let agree = votes.len() - found.len();
    found.into_iter().map(|(peer, (theirs, own))| (peer, Deviation { theirs, own, agree })).collect()
}

/// Everything about a tensor but its content.
type Shape<'a> = (&'a str, u64, u8, bool);

fn shape(entry: &StateEntry) -> Shape<'_> {
    (entry.key.as_str(), entry.count, entry.data_type.code(), entry.allow_inequality)
}

/// Checks the strategies and elects. All votes have the same set of tensors, see [`deviants`].
///
/// 1. Strategies: enforce-popular does not mix with others; two up-to-date senders hold the same; no sender is
///    outdated; somebody gives. 2. The revision is the highest among those who give; of its holders the most popular
///    content wins, and on a tie the lowest digests.
///
/// `holders` took part in the last committed sync. As long as one of them gives, nobody else is a candidate, whatever
/// revision it claims: newcomers never outvote, by chance or by number, a peer that holds what the group has trained.
///
/// `in_vain` tells how often somebody failed to fetch from a peer since somebody last succeeded: others come first.
/// `None` if nobody may fetch from it: it has its vote all the same, see [`Part::is_unserved`]. `may_meet` tells
/// whether the first can fetch from the second, and `has_relay` whether it may do so over the relay if it can from
/// nobody: who has something to fetch, and cannot do so from anybody who may give
/// it, is [apart](Part::is_apart).
pub(crate) fn elect(
    votes: &Votes,
    holders: &BTreeSet<PeerId>,
    in_vain: impl Fn(PeerId) -> Option<u32>,
    (may_meet, has_relay): (impl Fn(PeerId, PeerId) -> bool, bool),
) -> Result<Election, Conflict> {
    let highest = check_strategies(votes)?;
    let known = |peer: &PeerId, vote: &SyncVote| holders.contains(peer) && gives(vote);
    let trusted = votes.iter().filter(|(peer, vote)| known(peer, vote)).map(|(_, vote)| vote.revision).max();
    let revision = trusted.unwrap_or(highest);
    let current = |peer: &PeerId, vote: &SyncVote| {
        vote.revision == revision && (trusted.is_none() || holders.contains(peer))
    };
    let winners = winners(votes, current);
    let mut parts = BTreeMap::new();
    let mut turn = 0;
    for (peer, vote) in votes {
        // Each receiver begins with another source, so that the load spreads.
        let mut sources: Vec<_> = (0..winners.len()).map(|i| winners[(turn + i) % winners.len()]).collect();
        sources.sort_by_key(|(id, _)| (!may_meet(*peer, *id), in_vain(*id).unwrap_or(u32::MAX)));
        let mut part = part_of(*peer, vote, !current(peer, vote), &sources);
        part.sources.retain(|id| in_vain(*id).is_some());
        let is_served = !part.sources.is_empty();
        // The relay is for who has no other source.
        if !has_relay || part.sources.iter().any(|id| may_meet(*peer, *id)) {
            part.sources.retain(|id| may_meet(*peer, *id));
        }
        part.is_apart = is_served && part.is_unserved();
        part.sources.truncate(limits::MAX_SYNC_SOURCES);
        turn += usize::from(!part.fetch.is_empty());
        parts.insert(*peer, part);
    }
    let winner = winners.first().map_or(PeerId::default(), |(id, _)| *id);
    Ok(Election { revision, winner, parts })
}

fn gives(vote: &SyncVote) -> bool {
    vote.strategy != SyncStrategy::ReceiveOnly
}

fn conflict<'a>(a: (&'a PeerId, String), b: (&'a PeerId, String)) -> Conflict {
    Conflict { peers: (*a.0, *b.0), values: (a.1, b.1) }
}

/// The first difference between two sets of tensors, contents aside. Entries are sorted by key (checked on arrival).
fn entry_difference(a: &[StateEntry], b: &[StateEntry]) -> Option<(String, String)> {
    let show = |e: &StateEntry| {
        let flag = if e.allow_inequality { ", content may differ" } else { "" };
        format!("\"{}\": {} elements of {}{flag}", e.key, e.count, e.data_type)
    };
    for (x, y) in a.iter().zip(b) {
        if x.key < y.key {
            return Some((show(x), format!("no \"{}\"", x.key)));
        }
        if y.key < x.key {
            return Some((format!("no \"{}\"", y.key), show(y)));
        }
        if shape(x) != shape(y) {
            return Some((show(x), show(y)));
        }
    }
    let rest_of_a = a.get(b.len()).map(|x| (show(x), format!("no \"{}\"", x.key)));
    rest_of_a.or_else(|| b.get(a.len()).map(|y| (format!("no \"{}\"", y.key), show(y))))
}

fn check_strategies(votes: &Votes) -> Result<Revision, Conflict> {
    let named = |peer: &PeerId, vote: &SyncVote| (*peer, format!("strategy {}", vote.strategy));
    let popular = |vote: &SyncVote| vote.strategy == SyncStrategy::EnforcePopular;
    let one = votes.iter().find(|(_, vote)| popular(vote));
    let other = votes.iter().find(|(_, vote)| !popular(vote));
    if let (Some((a, x)), Some((b, y))) = (one, other) {
        let (x, y) = (named(a, x).1, named(b, y).1);
        return Err(conflict((a, x), (b, y)));
    }
    let highest = votes.values().filter(|vote| gives(vote)).map(|vote| vote.revision).max();
    let senders = || votes.iter().filter(|(_, vote)| vote.strategy == SyncStrategy::SendOnly);
    if let Some(revision) = highest {
        let mut current = senders().filter(|(_, vote)| vote.revision == revision);
        if let Some((first, reference)) = current.next() {
            for (peer, vote) in current {
                if let Some((a, b)) = content_difference(&reference.entries, &vote.entries) {
                    let send_only = |text| format!("send-only with {text}");
                    return Err(conflict((first, send_only(a)), (peer, send_only(b))));
                }
            }
        }
        let holder = votes.iter().find(|(_, vote)| vote.revision == revision && gives(vote));
        let outdated = senders().find(|(_, vote)| vote.revision < revision);
        if let (Some((a, x)), Some((b, y))) = (holder, outdated) {
            let values =
                (format!("revision {}", x.revision), format!("send-only at revision {}", y.revision));
            return Err(conflict((a, values.0), (b, values.1)));
        }
        return Ok(revision);
    }
    // Everybody only receives. With one voter, it alone is at fault.
    let mut all = votes.iter();
    let (a, b) = (all.next(), all.next());
    let none = PeerId::default();
    let (a, b) = (a.map_or(none, |(peer, _)| *peer), b.or(a).map_or(none, |(peer, _)| *peer));
    let text = || format!("strategy {}, and nobody gives", SyncStrategy::ReceiveOnly);
    Err(Conflict { peers: (a, b), values: (text(), text()) })
}

fn content_difference(a: &[StateEntry], b: &[StateEntry]) -> Option<(String, String)> {
    let (x, y) = a.iter().zip(b).find(|(x, y)| !x.allow_inequality && x.digest != y.digest)?;
    Some((format!("\"{}\" = {}", x.key, x.digest), format!("\"{}\" = {}", y.key, y.digest)))
}

/// Digests of everything that must be equal, in key order.
fn content(vote: &SyncVote) -> Vec<Digest128> {
    vote.entries.iter().filter(|e| !e.allow_inequality).map(|e| e.digest).collect()
}

/// Those who hold the elected content and may give it.
fn winners(votes: &Votes, current: impl Fn(&PeerId, &SyncVote) -> bool) -> Vec<(PeerId, &SyncVote)> {
    let mut camps: BTreeMap<Vec<Digest128>, Vec<(PeerId, &SyncVote)>> = BTreeMap::new();
    for (peer, vote) in votes {
        if current(peer, vote) && gives(vote) {
            camps.entry(content(vote)).or_default().push((*peer, vote));
        }
    }
    let most = camps.values().map(Vec::len).max().unwrap_or(0);
    // Camps are in the order of their digests, so the first of the largest has the lowest.
    camps.into_values().find(|camp| camp.len() == most).unwrap_or_default()
}

/// `sources` hold the elected content and may give it, best first.
fn part_of(peer: PeerId, vote: &SyncVote, outdated: bool, sources: &[(PeerId, &SyncVote)]) -> Part {
    let nothing = Part { fetch: Vec::new(), sources: Vec::new(), is_apart: false };
    let Some((_, first)) = sources.first() else { return nothing };
    if vote.strategy == SyncStrategy::SendOnly || sources.iter().any(|(id, _)| *id == peer) {
        return nothing;
    }
    let differs = |(mine, theirs): &(&StateEntry, &StateEntry)| {
        mine.digest != theirs.digest && (outdated || !mine.allow_inequality)
    };
    let wanted = || vote.entries.iter().zip(&first.entries).filter(differs).map(|(_, theirs)| theirs);
    let fetch: Vec<FetchItem> =
        wanted().map(|e| FetchItem { key: e.key.clone(), digest: e.digest }).collect();
    if fetch.is_empty() {
        return nothing;
    }
    let holds_all = |source: &SyncVote| {
        let pairs = vote.entries.iter().zip(&first.entries).zip(&source.entries);
        pairs.filter(|((mine, theirs), _)| differs(&(*mine, *theirs))).all(|((_, a), b)| a.digest == b.digest)
    };
    let able = sources.iter().filter(|(_, source)| holds_all(source)).map(|(id, _)| *id);
    Part { fetch, sources: able.collect(), is_apart: false }
}
