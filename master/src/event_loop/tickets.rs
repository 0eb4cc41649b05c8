//! The ticket issuer of a run with a key: tells each peer what it needs to connect to others. It reads off the packets
//! that are sent what their receivers are about to do, so that the state machine knows nothing of keys.
//!
//! A machine that is examined without having registered gets tickets for visits: probes of a few peers, for a minute,
//! in no epoch.
//!
//! Tickets for edges are good as long as the edge is in the plan of whoever is called. Those for state and probes have
//! an end: what they are for may last, so those for state are renewed with the echoes of beats, as long as the receiver
//! fetches.

use crate::{origin::Origin, state::ClientKey};
use pccl_protocol::{
    C2m, Examined, GroupEpoch, GroupPlan, Keys, M2c, PeerId, RunId, SyncPlan, Ticket, TicketRole, Tickets,
    limits,
};
use std::collections::BTreeMap;
use tinysockets::{
    key::{AcceptedKeys, RunKey, RunKeys, SecretKey},
    preamble::Preamble,
    ticket::{Authority, ServiceKey},
};

/// How long a ticket for state is good, in milliseconds.
const STATE_LIFE_MS: u64 = 60_000;
/// How long one for a probe is good beyond the time that the probe has, in milliseconds.
const PROBE_LEEWAY_MS: u64 = 10_000;
/// How long one for a visit is good, in milliseconds: visits are made one after the other.
const VISIT_LIFE_MS: u64 = 60_000;
/// After so long a peer is told the time again, and gets new tickets for state if it fetches, in milliseconds.
const RENEWAL_MS: u64 = 20_000;

/// The issuer's knowledge of a registered peer.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Holder {
    peer: PeerId,
    /// The epoch of the newest plan that it was sent.
    epoch: GroupEpoch,
    /// From whom it may fetch shared state.
    sources: Vec<PeerId>,
    /// When it was told the time, in milliseconds.
    told_ms: u64,
    /// The run keys that it was told. A newcomer has one of those that are accepted, and hears of others when it is let
    /// in: who was thrown out, and comes again as long as it can, is not to hear of a new one.
    knows: Option<KeysTag>,
}

/// Tells accepted keys from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct KeysTag([u8; 16]);

impl KeysTag {
    fn of(keys: &AcceptedKeys) -> Self {
        let second = keys.second.as_ref().map_or(&[][..], |key| key.secret().bytes());
        let derived = keys.used.secret().derive("PCCL accepted keys", second);
        let mut tag = [0; 16];
        tag.copy_from_slice(&derived.bytes()[..16]);
        Self(tag)
    }
}

/// The key that the master proves to have when it tries a port.
#[derive(Debug)]
pub(crate) enum Opener {
    /// That of a registered peer.
    Service(ServiceKey),
    /// The run key: a machine that is examined has no service key.
    Key(RunKey),
}

impl Opener {
    /// For a connection with this preamble.
    pub(crate) fn key(&self, preamble: &Preamble) -> SecretKey {
        match self {
            Self::Service(service_key) => service_key.ticket(preamble),
            Self::Key(key) => key.secret().clone(),
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct TicketIssuer {
    authority: Authority,
    run: RunId,
    keys: RunKeys,
    holders: BTreeMap<ClientKey, Holder>,
}

impl TicketIssuer {
    /// For a run with these keys.
    pub(crate) fn open(origin: &Origin, keys: RunKeys) -> Self {
        Self { authority: origin.authority(), run: origin.run, keys, holders: BTreeMap::new() }
    }

    /// Its knowledge of peers, see [`TicketIssuer::recall`].
    pub(crate) fn remember(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_stdvec(&self.holders)
    }

    /// The issuer that knew this, with the keys that are accepted now.
    pub(crate) fn recall(origin: &Origin, keys: RunKeys, known: &[u8]) -> Result<Self, postcard::Error> {
        Ok(Self { holders: postcard::from_bytes(known)?, ..Self::open(origin, keys) })
    }

    /// The keys that are accepted now.
    pub(crate) fn accepted(&self) -> AcceptedKeys {
        self.keys.accepted()
    }

    /// Other keys are accepted from now on. Returns the packets that say so, and their receivers.
    pub(crate) fn change_keys(&mut self, keys: AcceptedKeys, now_ms: u64) -> Vec<(ClientKey, M2c)> {
        self.keys.replace(keys.clone());
        let mut told = Vec::new();
        for (client, holder) in self.holders.iter_mut().filter(|(_, holder)| holder.knows.is_some()) {
            holder.knows = Some(KeysTag::of(&keys));
            told.push((*client, keys_of(&self.authority, holder, Some(&keys), now_ms)));
        }
        told
    }

    /// Whether this is a client that was let in.
    pub(crate) fn is_member(&self, client: ClientKey) -> bool {
        self.holders.get(&client).is_some_and(|holder| holder.knows.is_some())
    }

    /// By what a peer knows tickets.
    fn service_key_of(&self, peer: PeerId) -> ServiceKey {
        self.authority.service_key(peer.0)
    }

    /// The secret by which a peer, or a machine that is examined, recognises a ticket of the master.
    pub(crate) fn opener_of(&self, peer: PeerId) -> Opener {
        match self.holders.values().any(|holder| holder.peer == peer) {
            true => Opener::Service(self.service_key_of(peer)),
            false => Opener::Key(self.keys.accepted().used),
        }
    }

    /// Whether this proves to be a peer of this run.
    pub(crate) fn is_proof(&self, peer: PeerId, proof: Option<&SecretKey>) -> bool {
        proof == Some(self.service_key_of(peer).secret())
    }

    /// Why a packet of a client is not to be believed.
    pub(crate) fn objection(&self, packet: &C2m) -> Option<String> {
        let C2m::Register(register) = packet else { return None };
        let previous = register.previous.as_ref().filter(|previous| previous.run == self.run)?;
        if self.is_proof(previous.peer, previous.proof.as_ref()) {
            return None;
        }
        Some(format!("it says that it was peer {}, and does not prove it", previous.peer))
    }

    /// The packets that a client has to be sent in front of a packet.
    pub(crate) fn in_front_of(&mut self, client: ClientKey, packet: &M2c, now_ms: u64) -> Vec<M2c> {
        if let M2c::Registered(registered) = packet {
            let holder = Holder {
                peer: registered.peer,
                epoch: GroupEpoch(0),
                sources: Vec::new(),
                told_ms: now_ms,
                knows: None,
            };
            let keys = keys_of(&self.authority, &holder, None, now_ms);
            self.holders.insert(client, holder);
            return vec![keys];
        }
        if let M2c::Examined(answer) = packet {
            return vec![self.for_visits(answer, now_ms)];
        }
        let Some(holder) = self.holders.get_mut(&client) else { return Vec::new() };
        let mut front = Vec::new();
        match packet {
            M2c::GroupPlan(plan) => {
                holder.epoch = plan.epoch;
                let accepted = self.keys.accepted();
                let tag = KeysTag::of(&accepted);
                if holder.knows != Some(tag) {
                    holder.knows = Some(tag);
                    front.push(keys_of(&self.authority, holder, Some(&accepted), now_ms));
                }
            }
            M2c::SyncPlan(plan) => holder.sources = sources_of(&plan.plan),
            M2c::StateAhead(plan) => holder.sources = sources_of(plan),
            M2c::SyncOutcome(_) => holder.sources.clear(),
            _ => {}
        }
        let is_due = now_ms.saturating_sub(holder.told_ms) >= RENEWAL_MS;
        if let Some(tickets) = self.tickets_for(client, packet, is_due, now_ms) {
            front.push(M2c::Tickets(Tickets { now_ms, tickets }));
            if let Some(holder) = self.holders.get_mut(&client) {
                holder.told_ms = now_ms;
            }
        }
        front
    }

    /// The tickets that a client needs for a packet; with an echo only if they are due.
    fn tickets_for(&self, client: ClientKey, packet: &M2c, is_due: bool, now_ms: u64) -> Option<Vec<Ticket>> {
        let holder = self.holders.get(&client)?;
        match packet {
            M2c::GroupPlan(plan) => Some(self.for_edges(holder, plan)),
            M2c::SyncPlan(_) | M2c::StateAhead(_) => Some(self.for_state(holder, now_ms)),
            M2c::Echo(_) if is_due => Some(self.for_state(holder, now_ms)),
            // A peer that cannot be dialed dials, with a ticket of its own.
            M2c::ProbePlan(plan) if plan.back => Some(Vec::new()),
            M2c::Call(call) => {
                let end = now_ms + STATE_LIFE_MS;
                Some(vec![self.ticket((holder.peer, holder.epoch), call.peer, call.role, end)])
            }
            M2c::ProbePlan(plan) => {
                let end = now_ms + u64::from(plan.limit_ms) + PROBE_LEEWAY_MS;
                Some(vec![self.ticket((holder.peer, holder.epoch), plan.to, TicketRole::Probe, end)])
            }
            _ => None,
        }
    }

    /// A client has gone.
    pub(crate) fn forget(&mut self, client: ClientKey) {
        self.holders.remove(&client);
    }

    /// For somebody in an epoch.
    fn ticket(
        &self,
        (from, epoch): (PeerId, GroupEpoch),
        to: PeerId,
        role: TicketRole,
        generation: u64,
    ) -> Ticket {
        let preamble = Preamble {
            run: self.run.0,
            from: from.0,
            to: to.0,
            epoch: epoch.0,
            link_generation: generation,
            ..Preamble::new(role.role())
        };
        let secret = self.service_key_of(to).ticket(&preamble);
        Ticket { to, role, epoch, generation, secret }
    }

    /// For the edges that the holder dials.
    fn for_edges(&self, holder: &Holder, plan: &GroupPlan) -> Vec<Ticket> {
        let edges = plan.edges.iter().filter_map(|edge| Some((edge.back, plan.name_of(edge)?)));
        let dialed = edges.filter_map(|(back, edge)| match back {
            false => (edge.from == holder.peer).then_some((edge.to, TicketRole::Data, edge.generation)),
            true => (edge.to == holder.peer).then_some((edge.from, TicketRole::DataBack, edge.generation)),
        });
        let from = (holder.peer, holder.epoch);
        dialed.map(|(to, role, generation)| self.ticket(from, to, role, generation.0)).collect()
    }

    fn for_state(&self, holder: &Holder, now_ms: u64) -> Vec<Ticket> {
        let from = (holder.peer, holder.epoch);
        let ticket = |to: &PeerId| self.ticket(from, *to, TicketRole::State, now_ms + STATE_LIFE_MS);
        holder.sources.iter().map(ticket).collect()
    }

    /// For who is in no group, and looks at the way to peers.
    fn for_visits(&self, answer: &Examined, now_ms: u64) -> M2c {
        let (from, end) = ((answer.peer, GroupEpoch(0)), now_ms + VISIT_LIFE_MS);
        let visited = answer.peers.iter().take(limits::MAX_VISITED).map(|peer| peer.target.peer);
        let tickets = visited.map(|to| self.ticket(from, to, TicketRole::Probe, end)).collect();
        M2c::Tickets(Tickets { now_ms, tickets })
    }
}

/// The keys that a peer is told: its own, and those of the run that it knows.
fn keys_of(authority: &Authority, holder: &Holder, known: Option<&AcceptedKeys>, now_ms: u64) -> M2c {
    let known = known.into_iter().flat_map(|keys| std::iter::once(&keys.used).chain(&keys.second));
    let run = known.map(|key| key.secret().clone()).collect();
    M2c::Keys(Keys { now_ms, service_key: authority.service_key(holder.peer.0).secret().clone(), run })
}

fn sources_of(plan: &SyncPlan) -> Vec<PeerId> {
    plan.sources.iter().map(|source| source.peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{
        Echo, ExaminedPeer, GroupId, Host, LinkGeneration, Member, Name, Padding, Paths, PlanEdge,
        PreviousIdentity, Purpose, ReachTarget, Register, Registered, RequestId, StateSource, SyncId,
        WorldSizes,
    };
    use tinysockets::{key::RunKey, preamble::Role};

    const RUN: RunId = RunId(9);

    fn issuer() -> TicketIssuer {
        let origin = Origin::of(RUN);
        let mut issuer = TicketIssuer::open(&origin, RunKeys::new(RunKey::from_bytes([1; 32]).into()));
        for peer in [1, 2, 3] {
            let registered = Registered {
                run: RUN,
                peer: PeerId(peer),
                beat_interval_ms: 1,
                peer_timeout_ms: 1,
                wire: Some(pccl_protocol::WireMode::Encrypt),
                state_key: None,
                relay: None,
                comes_back: false,
            };
            let client = ClientKey(peer as u64);
            let told = issuer.in_front_of(client, &M2c::Registered(registered), 5);
            let [M2c::Keys(keys)] = &told[..] else { panic!("{told:?}") };
            assert_eq!((keys.now_ms, keys.run.len()), (5, 0));
            assert_eq!(&keys.service_key, issuer.authority.service_key(peer).secret());
        }
        issuer
    }

    fn tickets(told: Vec<M2c>) -> Vec<(PeerId, TicketRole, u64, u64)> {
        let Some(M2c::Tickets(told)) = told.last() else { panic!("{told:?}") };
        told.tickets.iter().map(|it| (it.to, it.role, it.epoch.0, it.generation)).collect()
    }

    fn ahead(sources: &[u128]) -> M2c {
        let source = |peer: &u128| StateSource {
            peer: PeerId(*peer),
            hosts: Host::new("h").into(),
            port: 1,
            back: false,
            relayed: false,
        };
        let sources = sources.iter().map(source).collect();
        M2c::StateAhead(SyncPlan {
            sync: SyncId(4),
            revision: Default::default(),
            fetch: Vec::new(),
            sources,
        })
    }

    /// A ring of three.
    fn plan() -> M2c {
        let member = |peer| Member {
            peer: PeerId(peer),
            hosts: Host::new("h").into(),
            p2p_port: 1,
            state_port: 1,
            share: 0,
            site: pccl_protocol::Site::default(),
        };
        let edge = |from: u16, to: u16| PlanEdge {
            from,
            to,
            generation: LinkGeneration(u64::from(10 * from + to)),
            connections: 1,
            purpose: Purpose::Ring,
            back: false,
            relayed: false,
            short_segments: false,
        };
        M2c::GroupPlan(GroupPlan {
            group: GroupId(0),
            epoch: GroupEpoch(6),
            counted_since: GroupEpoch(6),
            sizes: WorldSizes::default(),
            members: vec![member(1), member(2), member(3)],
            edges: vec![edge(0, 1), edge(1, 2), edge(2, 0)],
            paths: Paths::default(),
        })
    }

    #[test]
    fn each_peer_gets_tickets_for_its_own_edges() {
        let (mut issuer, plan) = (issuer(), plan());
        let data = |to, generation| vec![(PeerId(to), TicketRole::Data, 6, generation)];
        assert_eq!(tickets(issuer.in_front_of(ClientKey(1), &plan, 7)), data(2, 1));
        assert_eq!(tickets(issuer.in_front_of(ClientKey(3), &plan, 7)), data(1, 20));
        let M2c::GroupPlan(mut back) = plan.clone() else { panic!("{plan:?}") };
        back.edges[0].back = true;
        let back = M2c::GroupPlan(back);
        assert_eq!(tickets(issuer.in_front_of(ClientKey(1), &back, 7)), []);
        let [ring, dialed_back] = &tickets(issuer.in_front_of(ClientKey(2), &back, 7))[..] else { panic!() };
        assert_eq!(dialed_back, &(PeerId(3), TicketRole::Data, 6, 12));
        assert_eq!(ring, &(PeerId(1), TicketRole::DataBack, 6, 1), "the receiver dials");
        assert_eq!(issuer.in_front_of(ClientKey(4), &plan, 7), [], "not registered");
        issuer.forget(ClientKey(2));
        assert_eq!(issuer.in_front_of(ClientKey(2), &plan, 7), []);
    }

    #[test]
    fn who_fetches_gets_new_tickets_until_it_is_done() {
        let mut issuer = issuer();
        let echo = M2c::Echo(Echo { sequence: 1, blocked_on: None });
        let at = |issuer: &mut TicketIssuer, now| issuer.in_front_of(ClientKey(1), &echo, now);
        let state = |now| vec![(PeerId(3), TicketRole::State, 0, now + STATE_LIFE_MS)];
        assert_eq!(tickets(issuer.in_front_of(ClientKey(1), &ahead(&[3]), 100)), state(100));
        assert_eq!(at(&mut issuer, 100 + RENEWAL_MS - 1), []);
        assert_eq!(tickets(at(&mut issuer, 100 + RENEWAL_MS)), state(100 + RENEWAL_MS));
        assert_eq!(at(&mut issuer, 101 + RENEWAL_MS), []);
        issuer.in_front_of(ClientKey(1), &ahead(&[]), 102 + RENEWAL_MS);
        // The time is told all the same.
        assert_eq!(tickets(at(&mut issuer, 102 + 2 * RENEWAL_MS)), []);
    }

    #[test]
    fn who_is_examined_gets_tickets_for_probes_of_a_few_and_nothing_else() {
        let mut issuer = issuer();
        let peer = |n: u128| ExaminedPeer {
            target: ReachTarget { peer: PeerId(n), hosts: Host::new("h").into(), p2p_port: 1, state_port: 1 },
            group: GroupId(0),
            name: Name::default(),
        };
        let answer = M2c::Examined(Examined {
            request: RequestId(1),
            peer: PeerId(77),
            run: RUN,
            wire: None,
            seen: Host::new("h"),
            unix_us: 0,
            hosts: Host::new("h").into(),
            require_reachable: false,
            unreached: Vec::new(),
            peers: (1..=20).map(peer).collect(),
            padding: Padding(0),
        });
        let told = issuer.in_front_of(ClientKey(9), &answer, 100);
        let [M2c::Tickets(given)] = &told[..] else { panic!("{told:?}") };
        let preamble = Preamble {
            run: RUN.0,
            from: 77,
            to: 2,
            link_generation: 100 + VISIT_LIFE_MS,
            ..Preamble::new(Role::Probe)
        };
        assert_eq!(given.tickets[1].secret, issuer.service_key_of(PeerId(2)).ticket(&preamble));
        let visits: Vec<_> =
            (1..=16).map(|n| (PeerId(n), TicketRole::Probe, 0, 100 + VISIT_LIFE_MS)).collect();
        assert_eq!(tickets(told), visits);
        assert_eq!(issuer.in_front_of(ClientKey(9), &plan(), 100), [], "it is not registered by that");
    }

    #[test]
    fn whoever_says_that_it_was_a_peer_proves_it() {
        let issuer = issuer();
        let objection = |run, proof| {
            let previous = Some(PreviousIdentity { run, peer: PeerId(2), proof });
            issuer.objection(&C2m::Register(Register {
                group: GroupId(0),
                advertised_host: None,
                addresses: Vec::new(),
                p2p_port: 1,
                state_port: 1,
                pool_connections: 0,
                name: Name::default(),
                previous,
                formed: false,
                alone: false,
                resume: None,
                outbound_only: None,
                site: Name::default(),
            }))
        };
        let of = |peer: u128| Some(issuer.authority.service_key(peer).secret().clone());
        assert_eq!(objection(RUN, of(2)), None);
        assert_eq!(objection(RunId(8), None), None, "nobody here knows of that run");
        for proof in [None, of(1)] {
            let text = objection(RUN, proof).expect("not believed");
            assert!(text.contains("it was peer 00000000, and does not prove it"), "{text}");
        }
    }

    #[test]
    fn those_who_were_let_in_hear_of_other_keys() {
        let mut issuer = issuer();
        let told = |issuer: &mut TicketIssuer, client| match &issuer.in_front_of(client, &plan(), 7)[..] {
            [M2c::Keys(keys), M2c::Tickets(_)] => keys.run.len(),
            [M2c::Tickets(_)] => 0,
            other => panic!("{other:?}"),
        };
        let [first, second, third] = [1, 2, 3].map(ClientKey);
        assert_eq!([first, second, second].map(|client| told(&mut issuer, client)), [1, 1, 0]);
        let [one, other] = [[1; 32], [2; 32]].map(RunKey::from_bytes);
        let keys = AcceptedKeys { used: other.clone(), second: Some(one.clone()) };
        let changed = issuer.change_keys(keys.clone(), 50);
        assert_eq!(issuer.accepted(), keys);
        assert_eq!(changed.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [first, second]);
        assert_eq!([first, third, third].map(|client| told(&mut issuer, client)), [0, 2, 0]);
        for (client, packet) in changed {
            let M2c::Keys(keys) = packet else { panic!("{packet:?}") };
            assert_eq!(keys.run, [other.secret().clone(), one.secret().clone()]);
            assert_eq!(&keys.service_key, issuer.authority.service_key(client.0.into()).secret());
        }
    }
}
