//! Everything that time alone brings about: when it is due, and how it moves when the master itself has stood still.
//!
//! The master waits for nothing that is not in this table, and the compiler asks for both answers of what is in it. A
//! pause of the master is nobody's fault: what is judged by the time since something happened is judged as if the pause
//! had not been.

use super::groups::group::{Group, Op, Sync, VoterReport};
use super::{MasterState, Timestamp};
use std::time::Duration;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Timer {
    /// A client that has not registered is refused.
    Registration,
    /// A peer that is silent is dropped.
    Silence,
    /// A peer whose connection has ended has not come back.
    Away,
    /// Members that build no ring are dropped.
    Ring,
    /// Members of a ring that does not stand are asked why.
    Overdue,
    /// The answers of a check are not waited for any longer.
    Check,
    /// A report about an edge is judged.
    HeldFault,
    /// An attempt is looked at again: a fault of it is judged, or a vote does not wait for the mesh any longer.
    Attempt,
    /// A failed fetch is judged.
    Sync,
    /// A mesh may be planned again.
    Mesh,
    /// A caller that alone holds up a vote is dropped.
    Straggler,
    /// A stage of an optimisation is over.
    Optimization,
    /// A peer that was dropped for its ports may come back.
    Probation,
    /// Newcomers are told of loans that began together, or have not got on with what they fetch ahead.
    Ahead,
    /// Somebody is answered who asks for the status often.
    Question,
    /// Bytes that are missing on an edge make it broken. Judged when beats come.
    Flow,
}

impl Timer {
    const ALL: [Self; 16] = [
        Self::Registration,
        Self::Silence,
        Self::Away,
        Self::Ring,
        Self::Overdue,
        Self::Check,
        Self::HeldFault,
        Self::Attempt,
        Self::Sync,
        Self::Mesh,
        Self::Straggler,
        Self::Optimization,
        Self::Probation,
        Self::Ahead,
        Self::Question,
        Self::Flow,
    ];

    /// When it is due next.
    fn due(self, master: &MasterState) -> Option<Timestamp> {
        let roll = &master.roll;
        let options = &roll.options;
        let of_groups =
            |due: &dyn Fn(&Group) -> Option<Timestamp>| master.groups.values().filter_map(due).min();
        match self {
            Self::Registration => roll
                .strangers()
                .map(|(_, client)| client.registration_due(options.registration_timeout))
                .min(),
            Self::Silence => roll.longest_silent().map(|heard_at| heard_at + options.peer_timeout),
            Self::Away => roll.return_deadline(),
            Self::Ring => of_groups(&|group| group.ring_deadline(roll)),
            Self::Overdue => of_groups(&|group| group.overdue_since(roll)),
            Self::Check => of_groups(&|group| group.check_deadline()),
            Self::HeldFault => of_groups(&|group| {
                group.net.edges.held().filter_map(|(ends, _)| group.fault_deadline(roll, ends)).min()
            }),
            Self::Attempt => {
                of_groups(&|group| group.work.ops.timed().filter_map(|op| group.op_deadline(roll, op)).min())
            }
            Self::Sync => of_groups(&|group| master.sync_deadline(group.shared.sync.as_ref()?)),
            Self::Mesh => of_groups(&|group| group.mesh_deadline(roll.tick)),
            Self::Straggler => master.stragglers.deadline(roll),
            Self::Optimization => master.optimizer.deadline(),
            Self::Probation => master.admission.probation.deadline(roll),
            Self::Ahead => master.groups.ahead_deadline(roll),
            Self::Question => master.asked.deadline(),
            Self::Flow => None,
        }
    }

    /// Moves it by a pause of the master: by all of it what is to come, and what was by no more than up to now.
    fn shift(self, master: &mut MasterState, gap: Duration) {
        let now = master.roll.now;
        let past = |at: &mut Timestamp| *at = (*at + gap).min(now);
        let groups = master.groups.values_mut();
        match self {
            Self::Registration => {
                master.roll.clients.values_mut().for_each(|client| past(&mut client.connected_at));
            }
            Self::Silence => {
                master.roll.peers.values_mut().for_each(|peer| {
                    past(&mut peer.heard_at);
                    past(&mut peer.lively_since);
                });
                master.roll.sort_by_silence();
            }
            Self::Away => {
                let away = master.roll.peers.values_mut().filter_map(|peer| peer.away.as_mut());
                away.for_each(|away| {
                    past(&mut away.since);
                    away.until = away.until + gap;
                });
            }
            // The time for a ring counts from its plan, and so does that after which its members are asked.
            Self::Ring => groups.for_each(|group| {
                past(&mut group.net.planned_at);
                group.net.stands_since.iter_mut().for_each(past);
            }),
            Self::Overdue => {}
            Self::Check => groups
                .filter_map(|group| group.reach.check.as_mut())
                .for_each(|check| check.extend(gap, past)),
            Self::HeldFault => groups.for_each(|group| {
                group.net.edges.held_mut().for_each(|fault| past(&mut fault.since));
                group.net.edges.busy_at_mut().for_each(past);
            }),
            Self::Attempt => groups.for_each(|group| {
                group.work.ops.change_some(|_, op| {
                    let Op::Running { participants, .. } = op else { return false };
                    let complete = participants.values_mut().filter_map(|part| part.complete.as_mut());
                    complete.map(|complete| past(&mut complete.at)).count() > 0
                });
            }),
            Self::Sync => groups.for_each(|group| {
                let Some(Sync::Running { voters, .. }) = &mut group.shared.sync else { return };
                for voter in voters.values_mut() {
                    if let VoterReport::Failed { at, .. } = &mut voter.report {
                        past(at);
                    }
                }
            }),
            // Memory of what was found or done, and not a time that somebody has for something.
            Self::Mesh | Self::Probation | Self::Question => {}
            Self::Straggler => master.stragglers.extend(past),
            Self::Optimization => {
                if let Some(due) = master.optimizer.due_mut() {
                    *due = *due + gap;
                }
            }
            Self::Ahead => {
                groups
                    .filter_map(|group| group.shared.agreed.as_mut())
                    .for_each(|agreed| agreed.extend(past));
                master.roll.peers.values_mut().for_each(|peer| peer.extend_ahead(past));
            }
            Self::Flow => groups.for_each(|group| {
                let flows = group.net.edges.all_mut().filter_map(|(_, edge)| edge.flow.as_mut());
                flows.for_each(|flow| past(&mut flow.since));
            }),
        }
    }
}

impl MasterState {
    /// When [`super::Input::Tick`] is due next.
    pub(crate) fn earliest_deadline(&self) -> Option<Timestamp> {
        Timer::ALL.into_iter().filter_map(|timer| timer.due(self)).min()
    }

    /// The caller stood still: nobody is blamed for that time.
    pub(crate) fn extend_deadlines(&mut self, gap: Duration) {
        for timer in Timer::ALL {
            timer.shift(self, gap);
        }
    }
}
