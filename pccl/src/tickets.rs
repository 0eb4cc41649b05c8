//! The secrets that the master of a run with a key has given this peer to connect to others, and those by which it
//! judges those who connect to it.
//!
//! That somebody has a good [ticket](tinysockets::ticket) is found out before this: the master gave it, for what the
//! preamble says. This module finds out whether that still holds.

use parking_lot::Mutex;
use pccl_protocol::{GroupPlan, Keys, PeerId, TicketRole, Tickets};
use std::{
    collections::BTreeMap,
    sync::OnceLock,
    time::{Duration, Instant},
};
use tinysockets::{
    key::{AcceptedKeys, RunKeys, SecretKey},
    preamble::{Preamble, Role},
    ticket::ServiceKey,
};

/// The tickets of one session. Empty in a run without a key.
#[derive(Debug, Default)]
pub(crate) struct Wallet {
    service_key: OnceLock<ServiceKey>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// The master's time in milliseconds, and when it was so late.
    time: Option<(u64, Instant)>,
    tickets: BTreeMap<(u128, TicketRole), pccl_protocol::Ticket>,
}

impl Wallet {
    /// The key by which this peer knows tickets, in a run with a key, once the master has said it.
    pub(crate) fn service_key(&self) -> Option<&ServiceKey> {
        self.service_key.get()
    }

    /// The master has told the secrets for tickets in this run.
    pub(crate) fn take_keys(&self, keys: Keys, run_keys: Option<&RunKeys>) {
        // The first packet of a session says it, and it never changes.
        let is_known = self.service_key.set(keys.service_key.into()).is_err();
        self.held.lock().time = Some((keys.now_ms, Instant::now()));
        let mut run = keys.run.into_iter();
        if let (Some(run_keys), Some(used)) = (run_keys, run.next()) {
            let keys = AcceptedKeys { used: used.into(), second: run.next().map(Into::into) };
            if is_known && run_keys.used() != keys.used {
                log::info!("the run has a new key");
            }
            run_keys.replace(keys);
        }
    }

    /// The master has given tickets.
    pub(crate) fn take_tickets(&self, given: Tickets) {
        let mut held = self.held.lock();
        held.time = Some((given.now_ms, Instant::now()));
        held.tickets.extend(given.tickets.into_iter().map(|ticket| ((ticket.to.0, ticket.role), ticket)));
    }

    /// The beginning of a connection to another peer: its preamble, and in a run with a key the ticket for it.
    pub(crate) fn stamp(&self, preamble: Preamble) -> Result<(Preamble, Option<SecretKey>), String> {
        if self.service_key.get().is_none() {
            return Ok((preamble, None));
        }
        let role = TicketRole::ALL.iter().find(|role| role.role() == preamble.role);
        let held = self.held.lock();
        let ticket = role.and_then(|role| held.tickets.get(&(preamble.to, *role)));
        // An edge has the generation of its plan; the master may have gone on to the next one.
        let fits = |ticket: &&pccl_protocol::Ticket| {
            !matches!(preamble.role, Role::Data | Role::DataBack)
                || ticket.generation == preamble.link_generation
        };
        let Some(ticket) = ticket.filter(fits) else {
            let (to, role) = (PeerId(preamble.to), preamble.role);
            return Err(format!("the master has given no ticket for {role:?} to peer {to}"));
        };
        let stamped = Preamble { epoch: ticket.epoch.0, link_generation: ticket.generation, ..preamble };
        Ok((stamped, Some(ticket.secret.clone())))
    }

    /// Whether a connection with a good ticket is still to be taken, or why not; `plan` is the newest one of the group
    /// of this peer.
    pub(crate) fn judge(&self, preamble: &Preamble, plan: Option<&GroupPlan>) -> Result<(), &'static str> {
        if self.service_key.get().is_none() {
            return Ok(());
        }
        let now_ms = self.held.lock().time.map_or(0, |(ms, since)| ms + millis(since.elapsed()));
        judge(preamble, plan, now_ms)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whether it is a probe by somebody who is in no group: a machine that is examined.
pub(crate) fn is_visit(preamble: &Preamble) -> bool {
    preamble.role == Role::Probe && preamble.epoch == 0
}

fn judge(preamble: &Preamble, plan: Option<&GroupPlan>, now_ms: u64) -> Result<(), &'static str> {
    // Of an epoch that this peer has yet to hear of nothing is known: the master has spoken to the other one first.
    let plan = plan.filter(|plan| plan.epoch.0 >= preamble.epoch);
    match preamble.role {
        Role::Data | Role::DataBack => {
            let back = preamble.role == Role::DataBack;
            let (dialer, dialed) = (preamble.from, preamble.to);
            let (from, to) = if back { (dialed, dialer) } else { (dialer, dialed) };
            let has_it = |plan: &GroupPlan| {
                let edges = plan.edges.iter().filter(|edge| edge.back == back);
                let mut edges = edges.filter_map(|edge| plan.name_of(edge));
                edges.any(|edge| {
                    (edge.from.0, edge.to.0, edge.generation.0) == (from, to, preamble.link_generation)
                })
            };
            if plan.is_none_or(has_it) { Ok(()) } else { Err("its edge is not in the plan of the group") }
        }
        Role::State | Role::Probe | Role::StateBack | Role::ProbeBack
            if preamble.link_generation < now_ms =>
        {
            Err("its ticket is over")
        }
        // Before it is in any group a newcomer may fetch what is lent.
        Role::State if preamble.epoch == 0 => Ok(()),
        // So may a visitor measure, within the limits of the desk.
        Role::Probe if is_visit(preamble) => Ok(()),
        // This peer has asked for it, perhaps before it is in any group, and takes nothing that it has not asked for.
        Role::StateBack | Role::ProbeBack => Ok(()),
        Role::State | Role::Probe => match plan {
            Some(plan) if plan.rank_of(PeerId(preamble.from)).is_none() => {
                Err("it is no member of the group")
            }
            _ => Ok(()),
        },
        // Nothing follows from it.
        Role::Check | Role::Control | Role::Relay => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{
        GroupEpoch, GroupId, Host, LinkGeneration, Member, Paths, PlanEdge, Purpose, Ticket, WorldSizes,
    };
    use tinysockets::key::RunKey;

    /// Peers 1 and 2, with an edge of generation 9 from 1 to 2.
    fn plan(epoch: u64) -> GroupPlan {
        let member = |peer| Member {
            peer: PeerId(peer),
            hosts: Host::new("h").into(),
            p2p_port: 1,
            state_port: 1,
            share: 0,
            site: pccl_protocol::Site::default(),
        };
        GroupPlan {
            group: GroupId(0),
            epoch: GroupEpoch(epoch),
            counted_since: GroupEpoch(epoch),
            sizes: WorldSizes::default(),
            members: vec![member(1), member(2)],
            edges: vec![PlanEdge {
                from: 0,
                to: 1,
                generation: LinkGeneration(9),
                connections: 1,
                purpose: Purpose::Ring,
                back: false,
                relayed: false,
                short_segments: false,
            }],
            paths: Paths::default(),
        }
    }

    fn preamble(role: Role, from: u128, epoch: u64, generation: u64) -> Preamble {
        Preamble { from, to: 2, epoch, link_generation: generation, ..Preamble::new(role) }
    }

    #[test]
    fn an_edge_is_taken_as_long_as_the_plan_has_it() {
        let data = |from, epoch, generation| {
            judge(&preamble(Role::Data, from, epoch, generation), Some(&plan(5)), 0).is_ok()
        };
        assert!(data(1, 5, 9) && data(1, 4, 9), "one that two plans have");
        assert!(!data(1, 5, 8) && !data(1, 4, 8), "an older generation");
        assert!(!data(3, 4, 9), "who is not in the plan any more");
        assert!(data(3, 6, 1), "one of a plan that is on its way");
        assert!(judge(&preamble(Role::Data, 1, 1, 1), None, 0).is_ok());
    }

    #[test]
    fn an_edge_is_taken_from_the_end_that_dials() {
        let mut plan = plan(5);
        let taken = |plan: &GroupPlan, role, from, to| {
            let preamble = Preamble { from, to, epoch: 5, link_generation: 9, ..Preamble::new(role) };
            judge(&preamble, Some(plan), 0).is_ok()
        };
        assert!(taken(&plan, Role::Data, 1, 2) && !taken(&plan, Role::DataBack, 2, 1));
        plan.edges[0].back = true;
        assert!(!taken(&plan, Role::Data, 1, 2) && taken(&plan, Role::DataBack, 2, 1));
        assert!(!taken(&plan, Role::DataBack, 1, 2), "that is the edge in the other direction");
    }

    #[test]
    fn state_and_probes_are_for_members_and_for_a_time() {
        for role in [Role::State, Role::Probe] {
            let taken = |from, epoch, now| judge(&preamble(role, from, epoch, 100), Some(&plan(5)), now);
            assert_eq!([taken(1, 5, 100), taken(1, 4, 0), taken(3, 6, 0)], [Ok(()); 3]);
            assert_eq!(taken(1, 5, 101), Err("its ticket is over"));
            assert_eq!(taken(3, 4, 0), Err("it is no member of the group"));
        }
        let outside = |role, now| judge(&preamble(role, 3, 0, 100), Some(&plan(5)), now);
        for role in [Role::State, Role::Probe] {
            assert_eq!([outside(role, 100), outside(role, 101)], [Ok(()), Err("its ticket is over")]);
        }
        assert_eq!(outside(Role::Check, 100), Ok(()));
        assert!(outside(Role::Data, 0).is_err() && outside(Role::DataBack, 0).is_err());
    }

    #[test]
    fn the_newest_ticket_is_used_and_without_a_key_none() {
        let wallet = Wallet::default();
        let wanted = preamble(Role::State, 1, 0, 0);
        assert_eq!(wallet.stamp(wanted), Ok((wanted, None)));
        assert!(wallet.judge(&preamble(Role::Data, 3, 0, 0), Some(&plan(5))).is_ok());
        let run_keys = RunKeys::new(RunKey::from_bytes([1; 32]).into());
        let secret = |byte| SecretKey::from_bytes([byte; 32]);
        let keys = Keys { now_ms: 50, service_key: secret(3), run: vec![secret(2), secret(1)] };
        wallet.take_keys(keys, Some(&run_keys));
        assert_eq!(run_keys.used(), secret(2).into());
        assert_eq!(run_keys.oldest(), secret(1).into());
        assert!(wallet.stamp(wanted).unwrap_err().contains("no ticket for State"));
        let ticket = |role, generation, byte| Ticket {
            to: PeerId(2),
            role,
            epoch: GroupEpoch(4),
            generation,
            secret: secret(byte),
        };
        let of_state = [ticket(TicketRole::State, 60, 4), ticket(TicketRole::State, 70, 5)];
        for ticket in of_state {
            wallet.take_tickets(Tickets { now_ms: 55, tickets: vec![ticket] });
        }
        let stamped = Preamble { epoch: 4, link_generation: 70, ..wanted };
        assert_eq!(wallet.stamp(wanted), Ok((stamped, Some(secret(5)))));
        wallet.take_tickets(Tickets { now_ms: 56, tickets: vec![ticket(TicketRole::Data, 9, 6)] });
        assert!(wallet.stamp(preamble(Role::Data, 1, 4, 9)).is_ok());
        assert!(wallet.stamp(preamble(Role::Data, 1, 4, 8)).is_err(), "of another generation");
    }
}
