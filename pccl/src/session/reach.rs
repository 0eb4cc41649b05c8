//! Whom this peer reaches, when the master asks.

use crate::{control::Control, threads::spawn, world::Identity};
use pccl_protocol::{C2m, GroupEpoch, GroupId, PeerId, ReachPlan, ReachReport, Text, Unreached};
use std::{sync::Arc, time::Duration};
use tinysockets::{
    key::RunKey,
    preamble::{Preamble, Role},
    reach::{Reach, Target, reach_all},
};

/// Tries all ports on a thread of its own, and tells the master which were not reached. `epoch` is that of the newest
/// ring that this peer works on.
pub(super) fn answer(
    control: &Arc<Control>,
    (me, group): (Identity, GroupId),
    key: Option<RunKey>,
    epoch: GroupEpoch,
    plan: ReachPlan,
) {
    let preamble = Preamble {
        run: me.run.0,
        from: me.peer.0,
        group: group.0,
        epoch: epoch.0,
        ..Preamble::new(Role::Check)
    };
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
