//! Votes to form a group of given members: who has called with which list, and what comes of it.
//!
//! All members call with the same uuid and the same list. As soon as they have, the group is set up
//! ([`super::fixed_group`]); whatever makes that impossible fails the forming for all who have called, at once, with
//! one verdict. A uuid that was decided is used.

use super::all_groups::Groups;
use super::edges::ring_of;
use super::losses::{GivenUp, Loss, WhyGivenUp};
use crate::state::MasterState;
use crate::state::membership::client::Peer;
use crate::state::membership::members::Roll;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_protocol::{
    Cause, Culprit, FormFailed, FormGroup, GroupId, GroupUuid, Host, KickCode, KickReason, M2c, MemberRef,
    Name, Operation, PeerId, Phase, RequestId, Text, Verdict, limits,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Missing members that one verdict names.
const NAMED_MAX: usize = 8;

/// Numbers of formed groups begin here. Which one a group has means nothing to its members.
const FIRST_NUMBER: u32 = 1 << 31;

/// One forming that waits for members.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Forming {
    since: Timestamp,
    votes: BTreeMap<PeerId, Vote>,
    /// A caller gave it up.
    given_up: Option<GivenUp>,
    /// A member was lost that had voted, or was named by its identity.
    lost: Option<Loss>,
    /// A member of it calls with another uuid.
    elsewhere: Option<(PeerId, GroupUuid)>,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Vote {
    request: RequestId,
    members: Vec<MemberRef>,
}

impl Forming {
    /// Whether a list names this peer.
    fn names(&self, id: PeerId, name: &Name) -> bool {
        self.votes.values().any(|vote| is_listed(&vote.members, id, name))
    }
}

fn is_listed(members: &[MemberRef], id: PeerId, name: &Name) -> bool {
    members.iter().any(|member| match member {
        MemberRef::Peer(peer) => *peer == id,
        MemberRef::Name(wanted) => wanted == name,
    })
}

/// Uuids that were decided.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Used {
    uuids: BTreeSet<GroupUuid>,
    /// The same, the oldest first.
    order: VecDeque<GroupUuid>,
    failed: VecDeque<(GroupUuid, Verdict)>,
}

/// All formings, by the number of the group that their callers registered for.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Formings {
    open: BTreeMap<(GroupId, GroupUuid), Forming>,
    used: BTreeMap<GroupId, Used>,
    /// Groups that were formed so far.
    formed: u32,
}

impl Formings {
    /// Formings that wait for members.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    fn of(&self, id: PeerId) -> Option<(&(GroupId, GroupUuid), &Forming)> {
        self.open.iter().find(|(_, forming)| forming.votes.contains_key(&id))
    }

    /// A uuid cannot be used again.
    pub(crate) fn note_used(&mut self, pool: GroupId, uuid: GroupUuid, failed: Option<Verdict>) {
        let used = self.used.entry(pool).or_default();
        if used.uuids.insert(uuid) {
            used.order.push_back(uuid);
        }
        if used.order.len() > limits::MAX_FORMINGS
            && let Some(oldest) = used.order.pop_front()
        {
            used.uuids.remove(&oldest);
        }
        used.failed.extend(failed.map(|verdict| (uuid, verdict)));
        while used.failed.len() > limits::MAX_FAILED_FORMINGS {
            used.failed.pop_front();
        }
    }

    /// A peer has gone: what it voted for, or what names its identity, cannot come about.
    pub(crate) fn lose(&mut self, pool: GroupId, id: PeerId, loss: &Loss) {
        let by_id = MemberRef::Peer(id);
        for (_, forming) in self.open.iter_mut().filter(|((of, _), _)| *of == pool) {
            forming.given_up.take_if(|given_up| given_up.by == id);
            let voted = forming.votes.remove(&id).is_some();
            if voted || forming.votes.values().any(|vote| vote.members.contains(&by_id)) {
                forming.lost.get_or_insert_with(|| loss.clone());
            }
        }
    }

    pub(crate) fn record(&mut self, roll: &Roll, out: &mut Outbox, id: PeerId, packet: FormGroup) {
        let FormGroup { request, uuid, members } = packet;
        let Some(peer) = roll.peers.get(&id) else { return };
        let (pool, since) = (peer.info.group, roll.now);
        if let Some(verdict) = self.verdict_of_used(roll, pool, uuid, id) {
            return out.send(peer.client, M2c::FormFailed(FormFailed { request, verdict }));
        }
        for ((_, other), forming) in self.open.iter_mut().filter(|((of, _), _)| *of == pool) {
            if *other != uuid && forming.names(id, &peer.info.name) {
                forming.elsewhere.get_or_insert((id, uuid));
            }
        }
        let fresh = || Forming { since, votes: BTreeMap::new(), given_up: None, lost: None, elsewhere: None };
        self.open.entry((pool, uuid)).or_insert_with(fresh).votes.insert(id, Vote { request, members });
    }

    /// The answer to a vote for a uuid that was decided: what it failed with, or that it was used.
    fn verdict_of_used(&self, roll: &Roll, pool: GroupId, uuid: GroupUuid, id: PeerId) -> Option<Verdict> {
        let used = self.used.get(&pool).filter(|used| used.uuids.contains(&uuid))?;
        let failed = used.failed.iter().find(|(one, _)| *one == uuid).map(|(_, verdict)| verdict.clone());
        let again = || {
            let text = format!("uuid {uuid} was already used; each try takes a fresh one");
            roll.forming_verdict(uuid, Cause::MismatchedCall, vec![roll.culprit_of(id)], text)
        };
        Some(failed.unwrap_or_else(again))
    }

    /// A caller gives its forming up. `false`: it does not wait for members any more.
    pub(crate) fn give_up(&mut self, wish: GivenUp, request: RequestId) -> bool {
        let is_mine =
            |forming: &&mut Forming| forming.votes.get(&wish.by).is_some_and(|vote| vote.request == request);
        let found = self.open.values_mut().find(is_mine);
        found.map(|forming| forming.given_up.get_or_insert(wish)).is_some()
    }

    /// The next decision about one forming, which is none any more then.
    fn next_decision(&mut self, roll: &Roll, pool: GroupId, uuid: GroupUuid) -> Option<(Step, Votes)> {
        let step = self.open.get(&(pool, uuid))?.step(roll, pool, uuid);
        if matches!(step, Step::Wait) {
            return None;
        }
        let forming = self.open.remove(&(pool, uuid))?;
        Some((step, forming.votes.into_iter().map(|(id, vote)| (id, vote.request)).collect()))
    }

    /// Tells all who have voted that their group is not formed.
    pub(crate) fn fail(
        &mut self,
        roll: &Roll,
        out: &mut Outbox,
        pool: GroupId,
        votes: &Votes,
        verdict: Verdict,
    ) {
        if let Operation::Forming(uuid) = verdict.operation {
            self.note_used(pool, uuid, Some(verdict.clone()));
        }
        out.warn(format!("group {pool}: {verdict}"));
        for (id, request) in votes {
            let (request, verdict) = (*request, verdict.clone());
            out.send_peer(roll, *id, M2c::FormFailed(FormFailed { request, verdict }));
        }
    }

    /// Formings that wait for members: since when, and the sentence.
    pub(crate) fn waits(&self, roll: &Roll) -> impl Iterator<Item = (Timestamp, String)> {
        self.open.iter().filter_map(|((pool, uuid), forming)| {
            Some((forming.since, roll.blocked_forming(*pool, *uuid, forming)?))
        })
    }

    /// The sentence that says what the forming waits for that this peer has voted for.
    pub(crate) fn sentence_for(&self, roll: &Roll, id: PeerId) -> Option<String> {
        let ((pool, uuid), forming) = self.of(id)?;
        roll.blocked_forming(*pool, *uuid, forming)
    }

    /// A number for one more group, that nobody else has.
    pub(crate) fn free_group_number(&mut self, roll: &Roll, groups: &Groups) -> GroupId {
        loop {
            let number = GroupId(FIRST_NUMBER + self.formed % FIRST_NUMBER);
            self.formed = self.formed.wrapping_add(1);
            let registered = || roll.peers.values().any(|peer| peer.info.group == number);
            if !groups.contains_key(&number) && !registered() {
                return number;
            }
        }
    }
}

/// The peers that have voted, and their requests.
type Votes = BTreeMap<PeerId, RequestId>;

/// The next step of a forming.
enum Step {
    Wait,
    /// Nobody has voted for it any more.
    Forget,
    Fail(Verdict),
    Form(Vec<PeerId>),
}

/// Whom an entry of a list means.
enum Found {
    One(PeerId),
    /// Nobody who is connected.
    Nobody,
    Several(PeerId, PeerId),
}

impl Forming {
    /// Its next step.
    fn step(&self, roll: &Roll, pool: GroupId, uuid: GroupUuid) -> Step {
        let Some((first, vote)) = self.votes.first_key_value() else { return Step::Forget };
        let fail = |cause, culprits, text| Step::Fail(roll.forming_verdict(uuid, cause, culprits, text));
        if let Some(loss) = &self.lost {
            let mut verdict =
                roll.forming_verdict(uuid, loss.cause, vec![loss.culprit.clone()], loss.detail.to_string());
            verdict.silent_ms = loss.silent_ms;
            return Step::Fail(verdict);
        }
        let odd = self.votes.iter().find_map(|(id, other)| {
            roll.list_difference(&vote.members, &other.members).map(|(a, b)| (*id, a, b))
        });
        if let Some((other, a, b)) = odd {
            let text =
                format!("{} called it with {a}, {} with {b}", roll.name_of(*first), roll.name_of(other));
            return fail(Cause::MismatchedCall, vec![roll.culprit_of(*first), roll.culprit_of(other)], text);
        }
        if let Some((id, other)) = self.elsewhere {
            let text = format!(
                "{} called it with uuid {uuid}, {} with uuid {other}",
                roll.name_of(*first),
                roll.name_of(id)
            );
            return fail(Cause::MismatchedCall, vec![roll.culprit_of(*first), roll.culprit_of(id)], text);
        }
        let found = match roll.find_members(pool, uuid, &vote.members) {
            Ok(found) => found,
            Err(verdict) => return Step::Fail(verdict),
        };
        let outside = self.votes.keys().find(|id| {
            roll.peers.get(id).is_none_or(|peer| !is_listed(&vote.members, **id, &peer.info.name))
        });
        if let Some(id) = outside {
            let text = format!("{} is not in the list that it called it with", roll.name_of(*id));
            return fail(Cause::MismatchedCall, vec![roll.culprit_of(*id)], text);
        }
        let (present, absent): (Vec<_>, Vec<_>) = found.iter().partition(|found| found.is_ok());
        let members: Vec<PeerId> = present.into_iter().filter_map(|one| one.clone().ok()).collect();
        let absent: Vec<Name> = absent.into_iter().filter_map(|one| one.clone().err()).collect();
        let silent: Vec<PeerId> = members.iter().copied().filter(|id| !self.votes.contains_key(id)).collect();
        if absent.is_empty() && silent.is_empty() {
            return self.connectable(roll, uuid, members);
        }
        self.given_up.map_or(Step::Wait, |given_up| {
            Step::Fail(roll.verdict_of_missing(uuid, given_up, &silent, &absent))
        })
    }
}

impl Forming {
    /// All members have called: they are to be connected in the order of the list, if two neighbours can meet.
    fn connectable(&self, roll: &Roll, uuid: GroupUuid, members: Vec<PeerId>) -> Step {
        let is_open = |id: &PeerId| {
            roll.peers.get(id).is_some_and(|peer| peer.is_to_be_tested(roll.options.require_reachable))
        };
        if members.len() > 1 && members.iter().any(is_open) {
            return Step::Wait;
        }
        let has_relay = roll.options.relay.is_some();
        let of_edge = |ends| Some((ends, roll.why_apart(ends).filter(|_| !has_relay)?));
        let apart = ring_of(&members).find_map(of_edge);
        let Some((ends, why)) = apart else { return Step::Form(members) };
        let text = format!("{} cannot be built: {why}, or list others between them", roll.name_of_edge(ends));
        let culprits = vec![roll.culprit_of(ends.0), roll.culprit_of(ends.1)];
        Step::Fail(roll.forming_verdict(uuid, Cause::EdgeBroken, culprits, text))
    }
}

impl Roll {
    /// The members that a list names, in its order; the name of those who are not connected.
    fn find_members(
        &self,
        pool: GroupId,
        uuid: GroupUuid,
        members: &[MemberRef],
    ) -> Result<Vec<Result<PeerId, Name>>, Verdict> {
        let mut found = Vec::with_capacity(members.len());
        let mut places = BTreeMap::new();
        let mismatch = |ids: &[PeerId], text: String| {
            let culprits = ids.iter().map(|id| self.culprit_of(*id)).collect();
            Err(self.forming_verdict(uuid, Cause::MismatchedCall, culprits, text))
        };
        for (rank, member) in members.iter().enumerate() {
            match (self.find_member(pool, member), member) {
                (Found::One(id), _) => {
                    if let Some(before) = places.insert(Ok(id), rank) {
                        let text = format!("{} is listed as ranks {before} and {rank}", self.name_of(id));
                        return mismatch(&[id], text);
                    }
                    found.push(Ok(id));
                }
                (Found::Several(a, b), _) => {
                    let text = format!(
                        "{} and {} are both called {member}, rank {rank}: give names once, or list identities",
                        self.name_of(a),
                        self.name_of(b)
                    );
                    return mismatch(&[a, b], text);
                }
                (Found::Nobody, MemberRef::Name(name)) => {
                    if let Some(before) = places.insert(Err(name.clone()), rank) {
                        return mismatch(&[], format!("{name} is listed as ranks {before} and {rank}"));
                    }
                    found.push(Err(name.clone()));
                }
                (Found::Nobody, MemberRef::Peer(id)) => {
                    let text =
                        format!("peer {id}, rank {rank}, is not connected; identities never come back");
                    let culprits = vec![self.culprit_of(*id)];
                    return Err(self.forming_verdict(uuid, Cause::GroupBroken, culprits, text));
                }
            }
        }
        Ok(found)
    }

    fn find_member(&self, pool: GroupId, member: &MemberRef) -> Found {
        let is_it = |(id, peer): &(&PeerId, &Peer)| {
            let wanted = match member {
                MemberRef::Peer(wanted) => *wanted == **id,
                MemberRef::Name(name) => *name == peer.info.name,
            };
            wanted && peer.info.formed && peer.info.group == pool
        };
        let mut found = self.peers.iter().filter(is_it).map(|(id, _)| *id);
        match (found.next(), found.next()) {
            (Some(one), None) => Found::One(one),
            (Some(one), Some(other)) => Found::Several(one, other),
            (None, _) => Found::Nobody,
        }
    }

    /// The first difference between two lists, in words. One may name a peer by its name, the other by its identity.
    fn list_difference(&self, a: &[MemberRef], b: &[MemberRef]) -> Option<(String, String)> {
        if a.len() != b.len() {
            return Some((format!("{} members", a.len()), format!("{} members", b.len())));
        }
        let same = |(a, b): (&MemberRef, &MemberRef)| match (a, b) {
            (MemberRef::Peer(id), MemberRef::Name(name)) | (MemberRef::Name(name), MemberRef::Peer(id)) => {
                self.peers.get(id).is_some_and(|peer| peer.info.name == *name)
            }
            (a, b) => a == b,
        };
        let rank = a.iter().zip(b).position(|pair| !same(pair))?;
        Some((format!("{} as rank {rank}", a[rank]), format!("{} as rank {rank}", b[rank])))
    }

    /// The verdict after a limit has passed: who has not called.
    fn verdict_of_missing(
        &self,
        uuid: GroupUuid,
        given_up: GivenUp,
        silent: &[PeerId],
        absent: &[Name],
    ) -> Verdict {
        let operation = Operation::Forming(uuid);
        let mut verdict = self.verdict_of_giving_up((operation, Phase::Voting, 0), given_up);
        let nobody = |name: &Name| Culprit { peer: PeerId(0), host: Host::default(), name: name.clone() };
        let limit = match given_up.why {
            WhyGivenUp::Limit(ms) => Some(ms),
            WhyGivenUp::Unwanted | WhyGivenUp::Elsewhere { .. } => None,
        };
        let why = match limit {
            Some(ms) => format!("gave it up after {:.1} s", ms as f64 / 1000.0),
            None => "wanted no group any more".to_owned(),
        };
        let waited = self.list_missing(silent, absent);
        verdict.detail = Text::new(format!("{} {why}, waiting for {waited}", self.name_of(given_up.by)));
        if limit.is_some() {
            let silent = silent.iter().map(|id| self.culprit_of(*id));
            verdict.culprits = silent.chain(absent.iter().map(nobody)).take(NAMED_MAX).collect();
        }
        verdict
    }

    fn list_missing(&self, silent: &[PeerId], absent: &[Name]) -> String {
        let mut text: Vec<String> = Vec::new();
        if !silent.is_empty() {
            text.push(self.list_peers(silent.iter().copied()));
        }
        text.extend(absent.iter().take(NAMED_MAX).map(|name| format!("{name}, which is not connected")));
        if absent.len() > NAMED_MAX {
            text.push(format!("{} more that are not connected", absent.len() - NAMED_MAX));
        }
        text.join("; ")
    }

    pub(crate) fn forming_verdict(
        &self,
        uuid: GroupUuid,
        cause: Cause,
        culprits: Vec<Culprit>,
        detail: String,
    ) -> Verdict {
        Verdict {
            cause,
            culprits,
            operation: Operation::Forming(uuid),
            phase: Phase::Voting,
            bytes_done: 0,
            silent_ms: 0,
            detail: Text::new(detail),
        }
    }

    fn blocked_forming(&self, pool: GroupId, uuid: GroupUuid, forming: &Forming) -> Option<String> {
        let vote = forming.votes.values().next()?;
        let (mut silent, mut absent) = (Vec::new(), Vec::new());
        for member in &vote.members {
            match (self.find_member(pool, member), member) {
                (Found::One(id), _) if forming.votes.contains_key(&id) => {}
                (Found::One(id) | Found::Several(id, _), _) => silent.push(id),
                (Found::Nobody, MemberRef::Name(name)) => absent.push(name.clone()),
                (Found::Nobody, MemberRef::Peer(id)) => silent.push(*id),
            }
        }
        Some(format!("form_group {uuid} waits for {}", self.list_missing(&silent, &absent)))
    }
}

impl MasterState {
    pub(crate) fn admit_form(&self, id: PeerId, group: GroupId, what: &str) -> Result<(), KickReason> {
        let waits = self.groups.get(&group).and_then(|group| group.formed.as_ref());
        if self.formings.of(id).is_some() || waits.is_some_and(|formed| formed.votes.contains_key(&id)) {
            let text = format!("{what} while it waits for another forming");
            return Err(KickReason::new(KickCode::Protocol, text));
        }
        self.admit_blocking_vote(id, group, what)
    }

    /// Rule: a forming fails as soon as it cannot come about, and the group is set up as soon as all members have
    /// called.
    pub(crate) fn settle_formings(&mut self) -> bool {
        let mut fired = false;
        for (pool, uuid) in self.formings.open.keys().copied().collect::<Vec<_>>() {
            let Some((step, votes)) = self.formings.next_decision(&self.roll, pool, uuid) else { continue };
            fired = true;
            match step {
                Step::Wait | Step::Forget => {}
                Step::Fail(verdict) => {
                    self.formings.fail(&self.roll, &mut self.out, pool, &votes, verdict);
                }
                Step::Form(members) => self.set_up_group(pool, uuid, members, votes),
            }
        }
        fired
    }
}
