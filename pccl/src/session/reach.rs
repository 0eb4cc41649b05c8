//! Whom this peer reaches, when the master asks, or when nothing passes on an edge.

use super::event::Event;
use crate::{collective::links::Name, control::Control, threads::spawn, world::Identity};
use crossbeam_channel::Sender;
use pccl_protocol::{C2m, GroupEpoch, GroupId, PeerId, ReachPlan, ReachReport, Text, Unreached};
use std::{sync::Arc, time::Duration};
use tinysockets::{
    key::RunKey,
    place::Place,
    preamble::{Preamble, Role},
    reach::{Reach, Target, reach_all},
};

/// The preamble of a connection by which a peer is tried.
fn check(me: Identity, group: GroupId, epoch: GroupEpoch) -> Preamble {
    let (run, from) = (me.run.0, me.peer.0);
    Preamble { run, from, group: group.0, epoch: epoch.0, ..Preamble::new(Role::Check) }
}

/// An end of an edge at this peer, and the place of the peer at the other end.
pub(super) type Silent = ((bool, Name), Place);

/// Tries the other ends of edges on which nothing passes, on a thread of its own that tells the conductor which are
/// there. Whether it could be started.
pub(super) fn listen(
    events: &Sender<Event>,
    (me, group): (Identity, GroupId),
    key: Option<RunKey>,
    epoch: GroupEpoch,
    (silent, limit): (Vec<Silent>, Duration),
) -> bool {
    let target = |((_, (peer, _)), place): &Silent| {
        let preamble = Preamble { to: *peer, ..check(me, group, epoch) };
        let key = key.as_ref().map(|key| key.secret().clone());
        Target { place: place.clone(), preamble, key, asker: None }
    };
    let targets: Vec<Target> = silent.iter().map(target).collect();
    let events = events.clone();
    let spawned = spawn("pccl-reach", move || {
        let results = reach_all(&targets, limit);
        let reached = silent.into_iter().zip(results);
        let reached = reached.filter(|(_, result)| matches!(result, Reach::Reached(_)));
        // Nobody listens any more after the end of the session.
        let _ = events.send(Event::Heard(reached.map(|((end, _), _)| end).collect()));
    });
    spawned.inspect_err(|error| log::warn!("cannot start a thread that tries edges: {error}")).is_ok()
}

/// Tries all ports on a thread of its own, and tells the master which were not reached. `epoch` is that of the newest
/// ring that this peer works on.
pub(super) fn answer(
    control: &Arc<Control>,
    (me, group): (Identity, GroupId),
    key: Option<RunKey>,
    epoch: GroupEpoch,
    plan: ReachPlan,
) {
    let preamble = check(me, group, epoch);
    let ports: Vec<(PeerId, bool, Target)> = plan
        .targets
        .iter()
        .flat_map(|target| {
            [(false, target.p2p_port), (true, target.state_port)].map(|(is_state, port)| {
                let preamble = Preamble { to: target.peer.0, ..preamble };
                let key = key.as_ref().map(|key| key.secret().clone());
                (target.peer, is_state, Target { place: target.hosts.at(port), preamble, key, asker: None })
            })
        })
        .collect();
    log::debug!("the master asks which of {} ports are reached", ports.len());
    let limit = Duration::from_millis(plan.limit_ms.into());
    let weak = Arc::downgrade(control);
    // Not joined when the session ends: an attempt cannot be cut off, and it holds nothing of the session.
    let spawned = spawn("pccl-reach", move || {
        let targets: Vec<Target> = ports.iter().map(|(_, _, target)| target.clone()).collect();
        let results = reach_all(&targets, limit);
        let failed = |(port, result): (&(PeerId, bool, Target), Reach)| match result {
            Reach::Failed(text) => Some(Unreached { peer: port.0, is_state: port.1, text: Text::new(text) }),
            Reach::Reached(_) => None,
            Reach::Unknown(why) => {
                log::warn!("cannot try to reach {}: {why}", port.2.place.target);
                None
            }
        };
        let unreached: Vec<Unreached> = ports.iter().zip(results).filter_map(failed).collect();
        for port in &unreached {
            log::warn!("peer {} is not reached: {}", port.peer, port.text);
        }
        if let Some(control) = weak.upgrade() {
            control.send(&C2m::ReachReport(ReachReport { check: plan.check, epoch, unreached }));
        }
    });
    if let Err(error) = spawned {
        log::warn!("cannot start a thread that tries to reach others: {error}");
    }
}
