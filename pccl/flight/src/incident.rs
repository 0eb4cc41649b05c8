//! Which failures belong together, and which of them came first.

use crate::{Event, Role, What, story::Story};
use pccl_protocol::{Cause, PeerId};
use std::collections::BTreeSet;

/// Failures with more time between them have nothing to do with each other.
const APART_US: i64 = 15_000_000;
/// A verdict on a failure comes within this time.
const VERDICT_US: i64 = 5_000_000;

/// Somebody who may be at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Party {
    Peer(PeerId),
    Master,
}

/// One event that tells of a failure.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// Its place in the story.
    pub(super) at: usize,
    /// The parties that it names.
    pub(super) culprits: BTreeSet<Party>,
    /// It names a cause, not only a sign of one.
    pub(super) judged: bool,
}

/// Failures that lie close together.
#[derive(Debug)]
pub(super) struct Incident {
    pub(super) failures: Vec<Failure>,
    /// The first failure that names a cause, or simply the first one.
    pub(super) primary: usize,
    /// The verdict on it, if there is one; a place in the story.
    pub(super) verdict: Option<usize>,
    /// The earliest event that has to do with those who caused it; a place in the story.
    pub(super) sign: usize,
    pub(super) culprits: BTreeSet<Party>,
}

/// All incidents, the oldest first.
pub(super) fn find(story: &Story) -> Vec<Incident> {
    let mut groups: Vec<Vec<Failure>> = Vec::new();
    let mut last_us = i64::MIN;
    for at in 0..story.order.len() {
        let Some(failure) = failure(story, at) else { continue };
        let time = story.order[at].0;
        match groups.last_mut() {
            Some(group) if time.saturating_sub(last_us) <= APART_US => group.push(failure),
            _ => groups.push(vec![failure]),
        }
        last_us = time;
    }
    groups.into_iter().map(|failures| incident(story, failures)).collect()
}

fn incident(story: &Story, failures: Vec<Failure>) -> Incident {
    let primary = failures.iter().position(|failure| failure.judged).unwrap_or(0);
    let mut culprits = failures[primary].culprits.clone();
    let is_verdict = |failure: &&Failure| story.entry(failure.at).event.what == What::Verdict;
    let about = |failure: &&Failure| !failure.culprits.is_disjoint(&culprits);
    let latest = story.order[failures[primary].at].0.saturating_add(VERDICT_US);
    let in_time = |failure: &&Failure| story.order[failure.at].0 <= latest;
    let verdict = failures[primary..].iter().take_while(in_time).filter(is_verdict).find(about);
    let verdict = verdict.map(|failure| failure.at);
    // The verdict knows better which of several it was.
    if let Some(failure) = failures.iter().find(|failure| Some(failure.at) == verdict)
        && failure.culprits.is_subset(&culprits)
    {
        culprits = failure.culprits.clone();
    }
    if culprits.contains(&Party::Master) {
        culprits = [Party::Master].into();
    }
    let sign = failures.iter().find(|failure| !failure.culprits.is_disjoint(&culprits));
    let sign = sign.map_or(failures[primary].at, |failure| failure.at);
    Incident { failures, primary, verdict, sign, culprits }
}

fn failure(story: &Story, at: usize) -> Option<Failure> {
    let event = &story.entry(at).event;
    let teller = story.teller(at);
    let own = || match teller.header.role {
        Role::Master => Some(Party::Master),
        Role::Peer => teller.identity_at(story.order[at].2).map(Party::Peer),
    };
    let named = [event.peer, event.other].into_iter().flatten().map(Party::Peer);
    let (culprits, judged): (BTreeSet<Party>, bool) = match event.what {
        What::Verdict if event.cause == Some(Cause::MasterStopping) => ([Party::Master].into(), true),
        What::Verdict | What::PeerLost => (named.collect(), true),
        What::PeerKicked if is_stopping(event) => ([Party::Master].into(), true),
        What::PeerKicked => (named.collect(), true),
        What::SessionEnded => match event.name.as_deref() {
            Some("closed") | None => return None,
            // Either the master is gone, or this peer alone does not hear it: a verdict on the peer tells.
            Some("master-lost") => (own().into_iter().chain([Party::Master]).collect(), true),
            Some(_) if is_stopping(event) => ([Party::Master].into(), true),
            Some(_) => (own().into_iter().collect(), true),
        },
        What::EdgeFault => (named.collect(), false),
        What::LinkBroken | What::OpFault => (named.chain(own()).collect(), false),
        _ => return None,
    };
    Some(Failure { at, culprits, judged })
}

fn is_stopping(event: &Event) -> bool {
    let stopping = pccl_protocol::KickCode::MasterStopping.to_string();
    event.name.as_deref() == Some(&stopping)
        || event.text.as_deref().is_some_and(|text| text.starts_with(&stopping))
}
