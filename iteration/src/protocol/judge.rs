//! When somebody may propose, and what.

use super::{
    decision::{Decision, Entry, MAX_MEMBERS, Member},
    look::View,
};
use std::collections::{BTreeMap, BTreeSet};

/// The rule for who must be there before a decision is proposed. This is policy and not safety: the register admits one
/// decision per iteration under any rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Any members that are alive go on, be it one alone.
    #[default]
    AnySubset,
    /// More than half of the members of the last decision, without those who left, must take part.
    StrictMajority,
}

/// The rules of a run, the same for all its members.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The rule for who must be there.
    pub policy: Policy,
    /// Instead of the policy: these identities and no fewer must be there for the next decision.
    pub forced: BTreeSet<String>,
    /// A new run begins when this many have joined.
    pub world_size: usize,
    /// Number of the first iteration of a new run.
    pub first_iteration: u64,
}

/// The facts that the one who looks knows by its own clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Facts {
    /// There was no progress for longer than the deadline.
    pub expired: bool,
    /// Members whose sign of life has not changed for longer than the limit.
    pub inactive: BTreeSet<Member>,
}

/// The conclusion of a look.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// These are waited for.
    Wait(Vec<Member>),
    /// These shall be the members.
    Propose(Vec<Entry>),
    /// Nobody is worth waiting for any more, but too few are there.
    NoQuorum(Vec<Member>),
    /// A later life of this member wants to take its place.
    Superseded,
}

/// Judges what `me` sees. `base` is the last decision, if there is one.
pub(crate) fn judge(
    rules: &Rules,
    base: Option<&Decision>,
    view: &View,
    facts: &Facts,
    me: &Member,
) -> Verdict {
    let is_member = base.is_some_and(|base| base.contains(me));
    let next = candidates(base, view, is_member);
    let newest =
        |id: &str| view.joiners.iter().filter(|e| e.member.id == id).map(|e| e.member.incarnation).max();
    let superseded = |member: &Member| newest(&member.id).is_some_and(|newest| newest > member.incarnation);
    if superseded(me) {
        return Verdict::Superseded;
    }
    let Some(base) = base else {
        let complete = next.len() >= rules.world_size.min(MAX_MEMBERS);
        return match complete || (facts.expired && has_quorum(rules, None, view, &next)) {
            true => Verdict::Propose(next.into_values().collect()),
            false if facts.expired => Verdict::NoQuorum(Vec::new()),
            false => Verdict::Wait(Vec::new()),
        };
    };
    // A joiner waits for whoever could propose itself; a member for whoever has not arrived.
    let awaited: Vec<Member> = base
        .members()
        .filter(|member| !(is_member && view.arrived.contains_key(member)))
        .filter(|member| !view.left.contains(member) && !facts.inactive.contains(member))
        .filter(|member| !superseded(member))
        .cloned()
        .collect();
    let out_of_patience = is_member && facts.expired;
    if !awaited.is_empty() && !out_of_patience {
        return Verdict::Wait(awaited);
    }
    if has_quorum(rules, Some(base), view, &next) {
        return Verdict::Propose(next.into_values().collect());
    }
    let absent = base.members().filter(|member| !next.contains_key(&key(member))).cloned().collect();
    if facts.expired { Verdict::NoQuorum(absent) } else { Verdict::Wait(absent) }
}

/// Members in their order, each identity once.
type Next = BTreeMap<(usize, String), Entry>;

fn key(member: &Member) -> (usize, String) {
    (member.id.len(), member.id.clone())
}

/// The members of the next decision: who has arrived, and who wants to join; of each identity the latest life.
fn candidates(base: Option<&Decision>, view: &View, is_member: bool) -> Next {
    let mut next = Next::new();
    if is_member {
        for member in base.iter().flat_map(|base| base.members()) {
            if let Some(payload) = view.arrived.get(member) {
                let entry = Entry { member: member.clone(), payload: payload.clone(), joined: false };
                next.insert(key(member), entry);
            }
        }
    }
    for entry in &view.joiners {
        let key = key(&entry.member);
        let known = next.get(&key).map(|known| known.member.incarnation);
        if known.is_none() && next.len() >= MAX_MEMBERS {
            continue;
        }
        if known.is_none_or(|known| known < entry.member.incarnation) {
            next.insert(key, entry.clone());
        }
    }
    next
}

fn has_quorum(rules: &Rules, base: Option<&Decision>, view: &View, next: &Next) -> bool {
    let present = |id: &String| next.contains_key(&(id.len(), id.clone()));
    if !rules.forced.is_empty() {
        return rules.forced.iter().all(present);
    }
    match rules.policy {
        Policy::AnySubset => !next.is_empty(),
        Policy::StrictMajority => {
            let Some(base) = base else { return 2 * next.len() > rules.world_size };
            let counted: Vec<&Member> = base.members().filter(|member| !view.left.contains(member)).collect();
            let there = counted.iter().filter(|member| present(&member.id)).count();
            !next.is_empty() && (2 * there > counted.len() || counted.is_empty())
        }
    }
}
