//! Newcomers that fetch the shared state before they are let in, from members that lend it: whom they are told of, and
//! until when nobody waits for them.
//!
//! A newcomer that is let in with an old state stops the training until it has the new one. So one that wants to is let
//! in only when it holds what its group has committed, unless waiting for that saves nothing, or does not come to an
//! end: see [`Why`].

use super::serving::{Agreed, Place};
use crate::state::MasterState;
use crate::state::groups::all_groups::Groups;
use crate::state::membership::client::{Membership, Peer};
use crate::state::membership::members::Roll;
use crate::state::membership::packet_guard;
use crate::state::membership::sender::Phase;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_protocol::{
    AheadFailure, AheadStep, GroupId, KickReason, Loan, M2c, PeerId, SyncId, SyncPlan, limits,
};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Loans that begin within this time of the first one are told of together.
const LOANS_GRACE: Duration = Duration::from_millis(200);
/// A newcomer that does not get on for this long is let in as it is.
const PATIENCE: Duration = Duration::from_secs(60);
/// A newcomer is let in as it is after this number of newer contents beyond the first that it was told of.
const CONTENTS_MAX: u64 = 3;
/// The number of times that it may fail.
const FAILURES_MAX: u32 = 8;
/// Plans that are remembered: steps that name one of them may be on their way.
const PLANS_MAX: usize = 8;

/// The facts of one sync that a newcomer was told.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Told {
    sync: SyncId,
    /// Names what the sync has committed, see [`Agreed::content`].
    content: SyncId,
    /// Serving peers that it was told of.
    named: BTreeSet<PeerId>,
    /// Those of the last plan that are not known to have failed; empty when it has failed.
    sources: BTreeSet<PeerId>,
    /// Serving peers that have failed it since their loan began.
    tried: BTreeSet<PeerId>,
}

/// How far a newcomer is that wants to fetch ahead.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ahead {
    since: Timestamp,
    /// When it was last told of something new, or has moved bytes, or succeeded.
    got_on: Timestamp,
    told: VecDeque<Told>,
    /// The place of the first content that it was told of.
    first: Option<Place>,
    /// The content that it holds, see [`Agreed::content`].
    holds: Option<SyncId>,
    failures: u32,
    gave_up: bool,
}

/// Why a newcomer is let in when the others let somebody in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Why {
    /// It wants to be let in as it is.
    Unwanted,
    /// It holds what its group has committed.
    Holds,
    /// It has said that it does not get it.
    GaveUp,
    /// It offers what is as new: that stays as it is.
    OwnIsNew,
    /// Nobody of its group is there.
    Nobody,
    /// Those who are there wait for more peers anyway.
    OthersWait,
    /// Nobody lends: no loan of the last two syncs, or none of those who hold the state is there.
    NoLoans,
    /// The state has changed too often since it began.
    Chased,
    /// It has failed too often.
    Failed,
    /// It has not got on for a while.
    Stalled,
}

impl Why {
    const fn text(self) -> &'static str {
        match self {
            Self::Unwanted => "it did not want to",
            Self::Holds => "it does",
            Self::GaveUp => "it gave up",
            Self::OwnIsNew => "what it offers is as new",
            Self::Nobody => "nobody of its group is there",
            Self::OthersWait => "the others wait for more peers",
            Self::NoLoans => "nobody lends it",
            Self::Chased => "the state has changed too often since it began",
            Self::Failed => "it failed too often",
            Self::Stalled => "it did not get on",
        }
    }
}

impl Ahead {
    fn new(now: Timestamp) -> Self {
        let (told, first, holds) = (VecDeque::new(), None, None);
        Self { since: now, got_on: now, told, first, holds, failures: 0, gave_up: false }
    }

    fn told_of(&self, sync: SyncId) -> Option<&Told> {
        self.told.iter().find(|told| told.sync == sync)
    }

    /// Whether it was told of this sync, or may have been so long ago that it is forgotten.
    fn knows(&self, sync: SyncId) -> bool {
        let is_forgotten =
            self.told.len() == PLANS_MAX && self.told.front().is_some_and(|old| sync < old.sync);
        is_forgotten || self.told_of(sync).is_some()
    }

    fn holds(&mut self, sync: SyncId, now: Timestamp) {
        if let Some(content) = self.told_of(sync).map(|told| told.content) {
            self.got_on = now;
            self.holds = self.holds.max(Some(content));
        }
    }

    /// It did not get all of it. A failure with an older one says nothing about the newest.
    fn failed(&mut self, sync: SyncId) {
        if let Some(told) = self.told.back_mut().filter(|told| told.sync == sync) {
            self.failures = self.failures.saturating_add(1);
            let sources = std::mem::take(&mut told.sources);
            told.tried.extend(sources);
        }
    }

    /// Whether it has to be told of a sync that these lend.
    fn wants(&self, agreed: &Agreed, servers: &BTreeSet<PeerId>) -> bool {
        if self.gave_up || self.failures >= FAILURES_MAX || self.holds == Some(agreed.content) {
            return false;
        }
        match self.told.back().filter(|told| told.sync == agreed.sync) {
            None => !servers.is_empty(),
            Some(told) => told.sources.is_empty() && !servers.is_subset(&told.tried),
        }
    }

    /// It is told of these serving peers.
    fn tell(&mut self, agreed: &Agreed, servers: &[PeerId], now: Timestamp) {
        let sources: BTreeSet<PeerId> = servers.iter().copied().collect();
        let last = self.told.back_mut();
        // The same once more is nothing new, and a new loan after a failure is.
        if last.as_ref().is_none_or(|last| last.content != agreed.content || last.sync == agreed.sync) {
            self.got_on = now;
        }
        // Contents of another count that it has missed say nothing about this one.
        self.first =
            self.first.filter(|first| agreed.place.newer_than(*first).is_some()).or(Some(agreed.place));
        if let Some(last) = last.filter(|last| last.sync == agreed.sync) {
            last.named.extend(&sources);
            last.sources = sources;
            return;
        }
        if self.told.len() == PLANS_MAX {
            self.told.pop_front();
        }
        let (sync, content, named) = (agreed.sync, agreed.content, sources.clone());
        self.told.push_back(Told { sync, content, named, sources, tried: BTreeSet::new() });
    }

    /// A serving peer begins anew: what it failed before is forgotten.
    fn renewed(&mut self, sync: SyncId, server: PeerId) {
        if let Some(told) = self.told.back_mut().filter(|told| told.sync == sync) {
            told.tried.remove(&server);
        }
    }
}

impl Peer {
    /// It has moved bytes.
    pub(crate) fn note_progress(&mut self, now: Timestamp) {
        if let Some(ahead) = self.ahead_mut() {
            ahead.got_on = now;
        }
    }

    /// The master stood still.
    pub(crate) fn extend_ahead(&mut self, past: impl Fn(&mut Timestamp)) {
        if let Some(ahead) = self.ahead_mut() {
            past(&mut ahead.got_on);
        }
    }
}

impl Roll {
    /// Those who lend and from whom a newcomer can fetch.
    fn servers_for(&self, peer: &Peer, agreed: &Agreed) -> BTreeSet<PeerId> {
        let may_meet = |server: &&PeerId| !(peer.outbound_only && self.is_outbound_only(**server));
        agreed.servers().iter().filter(may_meet).copied().collect()
    }

    /// Whether those who are in can do nothing but wait for more peers.
    fn waits_for_peers(&self) -> bool {
        let have = self.accepted_count();
        let mut votes = self.peers.values().filter_map(|peer| peer.topology());
        have < self.options.min_world_size || votes.any(|vote| vote.wait_for_world > have)
    }
}

impl Groups {
    /// Why a newcomer is let in together with others, or nothing while it fetches the state ahead.
    pub(crate) fn why_let_in(&self, roll: &Roll, peer: &Peer) -> Option<Why> {
        let Some(ahead) = peer.ahead() else {
            return Some(Why::Unwanted);
        };
        let here = |other: &Peer| other.accepted() && other.group() == peer.group();
        let group = self.get(&peer.group()).filter(|_| roll.peers.values().any(here));
        let Some(group) = group else { return Some(Why::Nobody) };
        let Some(agreed) = &group.shared.agreed else { return Some(Why::NoLoans) };
        let newer = ahead.first.and_then(|first| agreed.place.newer_than(first)).unwrap_or(0);
        match () {
            () if ahead.holds == Some(agreed.content) => Some(Why::Holds),
            () if !agreed.may_be_lent() => Some(Why::NoLoans),
            () if ahead.gave_up => Some(Why::GaveUp),
            () if roll.waits_for_peers() => Some(Why::OthersWait),
            () if is_as_new(peer, agreed) => Some(Why::OwnIsNew),
            () if newer >= CONTENTS_MAX => Some(Why::Chased),
            () if ahead.failures >= FAILURES_MAX => Some(Why::Failed),
            // Time passes with ticks only: between them nothing changes by itself.
            () if ahead.got_on + PATIENCE <= roll.tick => Some(Why::Stalled),
            () => None,
        }
    }

    /// Whether a newcomer fetches the state ahead, so that nobody lets it in yet.
    pub(crate) fn fetches_ahead(&self, roll: &Roll, peer: &Peer) -> bool {
        self.why_let_in(roll, peer).is_none()
    }

    /// A text about what a newcomer waits for that fetches the state ahead.
    pub(crate) fn ahead_sentence(&self, roll: &Roll, peer: &Peer) -> Option<String> {
        let ahead = peer.ahead().filter(|_| self.fetches_ahead(roll, peer))?;
        let agreed = self.get(&peer.group())?.shared.agreed.as_ref()?;
        let servers = &roll.servers_for(peer, agreed);
        let told = ahead.told.back().filter(|told| told.sync == agreed.sync);
        let used = told.map_or(0, |told| told.sources.intersection(servers).count());
        Some(match (used, servers.len()) {
            (0, 0) => "fetches the shared state ahead, and waits for the next loan of it".to_owned(),
            (0, all) if told.is_some() => {
                format!("fetches the shared state ahead, in vain from {all} of {all} serving peers")
            }
            (used, all) => format!("fetches the shared state ahead, {used} of {all} serving peers"),
        })
    }

    /// When time alone changes something for newcomers that fetch ahead.
    pub(crate) fn ahead_deadline(&self, roll: &Roll) -> Option<Timestamp> {
        let of = |peer: &Peer| {
            let ahead = peer.ahead()?;
            let stalls = self.fetches_ahead(roll, peer).then(|| ahead.got_on + PATIENCE);
            let agreed = self.get(&peer.group())?.shared.agreed.as_ref()?;
            let is_due = ahead.wants(agreed, &roll.servers_for(peer, agreed)) && !is_as_new(peer, agreed);
            let told = agreed.is_open_until(LOANS_GRACE).filter(|due| is_due && *due > roll.tick);
            stalls.into_iter().chain(told).min()
        };
        roll.newcomers().filter_map(|(_, peer)| of(peer)).min()
    }
}

/// Whether a newcomer brings a state that is as new as what its group has committed.
fn is_as_new(peer: &Peer, agreed: &Agreed) -> bool {
    peer.info.resume.is_some_and(|offer| offer.revision >= agreed.revision)
}

impl MasterState {
    /// A loan of what has not been committed is none.
    pub(crate) fn admit_loan(&self, group: GroupId, loan: Loan) -> Result<(), KickReason> {
        let running = self.groups.get(&group).and_then(|group| group.shared.running());
        if loan.sync > self.last_sync || running == Some(loan.sync) {
            return Err(packet_guard::protocol(format!("lends what sync {} has not committed", loan.sync)));
        }
        Ok(())
    }

    /// Steps of a peer that is being let in, or is in, cross its admission.
    pub(crate) fn admit_ahead(&self, id: PeerId, step: &AheadStep) -> Result<(), KickReason> {
        let Some(peer) = self.roll.peers.get(&id).filter(|peer| peer.phase() == Phase::Pending) else {
            return Ok(());
        };
        let ahead = peer.ahead();
        let refuse = |text: String| Err(packet_guard::protocol(format!("fetches ahead {text}")));
        match (step, ahead) {
            (AheadStep::Wanted(_), None) => Ok(()),
            (AheadStep::Wanted(_), Some(_)) => refuse("twice".into()),
            (_, None) => refuse("without having said so".into()),
            (AheadStep::GivenUp(_), Some(_)) => Ok(()),
            (AheadStep::Holds(sync) | AheadStep::Failed(AheadFailure { sync, .. }), Some(ahead))
                if !ahead.knows(*sync) =>
            {
                refuse(format!("what sync {sync} has committed, of which it was not told"))
            }
            (AheadStep::Holds(_), Some(_)) => Ok(()),
            (AheadStep::Failed(AheadFailure { sync, failures }), Some(ahead)) => {
                let Some(told) = ahead.told_of(*sync) else { return Ok(()) };
                match failures.iter().find(|one| !told.named.contains(&one.peer)) {
                    Some(one) => refuse(format!("from {}, which is none of its sources", one.peer)),
                    None => Ok(()),
                }
            }
        }
    }

    pub(crate) fn record_loan(&mut self, id: PeerId, group: GroupId, Loan { sync, stands }: Loan) {
        let Some(agreed) = self.groups.get_mut(&group).and_then(|group| group.shared.agreed.as_mut()) else {
            return;
        };
        if agreed.lend(id, sync, stands, self.roll.now) {
            let newcomers = self.roll.peers.values_mut().filter(|peer| peer.info.group == group);
            newcomers.filter_map(|peer| peer.ahead_mut()).for_each(|ahead| ahead.renewed(sync, id));
        }
    }

    /// Steps of one that is being let in, or is in, come too late to matter.
    pub(crate) fn record_ahead(&mut self, id: PeerId, step: AheadStep) {
        let (now, name) = (self.roll.now, self.roll.name_of(id));
        let Some(peer) = self.roll.peers.get_mut(&id) else { return };
        if let (AheadStep::Wanted(_), Membership::Pending(ahead)) = (&step, &mut peer.membership) {
            *ahead = Some(Ahead::new(now));
            return;
        }
        match (step, peer.ahead_mut()) {
            (AheadStep::Holds(sync), Some(ahead)) => {
                ahead.holds(sync, now);
                self.out.info(format!("{name} holds what sync {sync} has committed"));
            }
            (AheadStep::Failed(failure), Some(ahead)) => {
                ahead.failed(failure.sync);
                let texts: Vec<&str> = failure.failures.iter().map(|one| one.text.as_str()).collect();
                let text = texts.join("; ");
                self.out.info(format!("{name} did not get what sync {} has committed: {text}", failure.sync));
            }
            (AheadStep::GivenUp(text), Some(ahead)) => {
                ahead.gave_up = true;
                self.out.info(format!("{name} does not fetch the shared state ahead any more: {text}"));
            }
            (AheadStep::Wanted(_), _) | (_, None) => {}
        }
    }

    /// Rule: newcomers that fetch the state ahead know who lends it.
    pub(crate) fn tell_what_is_lent(&mut self) -> bool {
        let due = |(id, peer): (PeerId, &Peer)| {
            let is_tested = !peer.is_to_be_tested(self.roll.options.require_reachable);
            let ahead = peer.ahead().filter(|_| is_tested)?;
            let agreed = self.groups.get(&peer.group())?.shared.agreed.as_ref()?;
            let is_open = agreed.is_open_until(LOANS_GRACE).is_some_and(|due| due > self.roll.tick);
            let is_due = !is_open
                && !is_as_new(peer, agreed)
                && ahead.wants(agreed, &self.roll.servers_for(peer, agreed));
            is_due.then_some(id)
        };
        let due: Vec<PeerId> = self.roll.newcomers().filter_map(due).collect();
        for id in &due {
            self.tell_of_loans(*id);
        }
        !due.is_empty()
    }

    fn tell_of_loans(&mut self, id: PeerId) {
        let Self { roll, groups, out, .. } = self;
        let Some(peer) = roll.peers.get(&id) else { return };
        let agreed = groups.get(&peer.group()).and_then(|group| group.shared.agreed.as_ref());
        let (Some(agreed), Some(ahead)) = (agreed, peer.ahead()) else { return };
        let told = ahead.told.back().filter(|told| told.sync == agreed.sync);
        let is_fresh = |server: &&PeerId| told.is_none_or(|told| !told.tried.contains(server));
        let servers = roll.servers_for(peer, agreed);
        let mut servers: Vec<PeerId> = servers.iter().filter(is_fresh).copied().collect();
        // Each newcomer begins with another one, so that the load spreads.
        let turn = usize::try_from(peer.order).unwrap_or(0) % servers.len().max(1);
        servers.rotate_left(turn);
        servers.truncate(limits::MAX_SYNC_SOURCES);
        let fetch = agreed.tensors_of(&servers);
        let sources = servers.iter().filter_map(|server| roll.state_source(id, *server)).collect();
        let (sync, revision, now) = (agreed.sync, agreed.revision, roll.now);
        out.send(peer.client, M2c::StateAhead(SyncPlan { sync, revision, fetch, sources }));
        out.debug(format!("{} is told of {} serving peers of sync {sync}", peer.name(id), servers.len()));
        let Some(peer) = roll.peers.get_mut(&id) else { return };
        // The state that it brought is not there any more from now on.
        peer.info.resume = None;
        if let Some(ahead) = peer.ahead_mut() {
            ahead.tell(agreed, &servers, now);
        }
    }

    /// Texts about what newcomers wait for that fetch the state ahead.
    pub(crate) fn ahead_waits(&self) -> Vec<(Timestamp, String)> {
        let of = |(id, peer): (&PeerId, &Peer)| {
            let sentence = self.groups.ahead_sentence(&self.roll, peer)?;
            Some((peer.ahead()?.since, format!("{} {sentence}", peer.name(*id))))
        };
        self.roll.peers.iter().filter_map(of).collect()
    }
}

impl Groups {
    /// A newcomer that wanted to fetch the state ahead is let in.
    pub(crate) fn note_let_in(&self, roll: &Roll, out: &mut Outbox, id: PeerId) {
        let Some(peer) = roll.peers.get(&id).filter(|peer| peer.ahead().is_some()) else { return };
        if let Some(why) = self.why_let_in(roll, peer).filter(|why| *why != Why::Holds) {
            let name = peer.name(id);
            out.info(format!("{name} is let in without the shared state of its group: {}", why.text()));
        }
    }
}
