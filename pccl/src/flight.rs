//! The reports of the client to its flight recorder: the events of packets, operations and syncs.

use crate::{Error, error::End};
use pccl_flight::{Event, Recorder, Subject, What, subject_to_master, subject_to_peer};
use pccl_protocol::{
    Algorithm, C2m, CallKind, Commence, Descriptor, EdgeFault, GroupPlan, M2c, OpFault, OpId, Outcome,
    PeerId, SyncOutcome,
};
use std::time::Duration;
use tinysockets::link::{Direction, LinkFault};

/// How long a call that failed waits for the file about it, so that it is there when the caller's process ends.
const FILE_WAIT: Duration = Duration::from_millis(250);

/// A packet is about to be sent.
pub(crate) fn sent(flight: &Recorder, packet: &C2m) {
    flight.record_with(|| Event {
        subject: subject_to_master(packet),
        ..Event::new(What::Sent).named(packet.name())
    });
}

/// A packet has arrived.
pub(crate) fn received(flight: &Recorder, packet: &M2c) {
    flight.record_with(|| Event {
        subject: subject_to_peer(packet),
        ..Event::new(What::Received).named(packet.name())
    });
    match packet {
        M2c::Registered(registered) => {
            flight.identify(registered.run, Some(registered.peer));
            flight.record_with(|| {
                Event::new(What::Registered).peer(registered.peer).text(registered.run.to_string())
            });
        }
        M2c::Outcome(outcome) => {
            if let Outcome::Aborted(verdict) = &outcome.outcome {
                flight.record_with(|| Event::verdict(verdict));
            }
        }
        M2c::SyncOutcome(outcome) => {
            if let SyncOutcome::Failed(verdict) = &outcome.outcome {
                flight.record_with(|| Event::verdict(verdict));
            }
        }
        M2c::FormFailed(failed) => flight.record_with(|| Event::verdict(&failed.verdict)),
        _ => {}
    }
}

/// The caller launches an operation.
pub(crate) fn launched(flight: &Recorder, tag: u64, descriptor: &Descriptor) {
    flight.record_with(|| {
        let bytes = |part: &pccl_protocol::PartDescriptor| {
            part.count.saturating_mul(part.data_type.size_bytes() as u64)
        };
        Event {
            part: descriptor.parts.first().copied(),
            ..Event::new(What::OpLaunched)
                .named(descriptor.kind().text())
                .about(Subject::Tag(tag))
                .count(descriptor.parts.len() as u64)
                .bytes(descriptor.parts.iter().map(bytes).fold(0, u64::saturating_add))
        }
    });
}

/// An attempt of an operation reaches a phase.
pub(crate) fn op(flight: &Recorder, what: What, id: OpId) {
    flight.record_with(|| Event::new(what).about(Subject::Op(id)));
}

/// All have voted for an attempt, and the master has named its algorithm.
pub(crate) fn commenced(flight: &Recorder, commence: &Commence) {
    let event = || Event::new(What::OpCommenced).about(Subject::Op(commence.op));
    flight.record_with(|| event().named(commence.algorithm.text()));
}

/// This peer sends what it contributes before all have voted.
pub(crate) fn began_early(flight: &Recorder, id: OpId, algorithm: Algorithm) {
    flight.record_with(|| Event::new(What::OpBeganEarly).about(Subject::Op(id)).named(algorithm.text()));
}

/// This peer votes to complete an attempt, or says why it cannot.
pub(crate) fn completing(flight: &Recorder, id: OpId, fault: Option<&OpFault>, moved_bytes: u64) {
    flight.record_with(|| match fault {
        None => Event::new(What::OpReceivedAll).about(Subject::Op(id)).bytes(moved_bytes),
        Some(fault) => Event {
            peer: fault.peer,
            ..Event::new(What::OpFault)
                .about(Subject::Op(id))
                .bytes(moved_bytes)
                .named(fault.kind.to_string())
                .text(fault.text.as_str())
        },
    });
}

/// An attempt has its outcome.
pub(crate) fn decided(flight: &Recorder, id: OpId, outcome: &Outcome) {
    let name = if matches!(outcome, Outcome::Done(_)) { "done" } else { "aborted" };
    flight.record_with(|| Event::new(What::OpDecided).about(Subject::Op(id)).named(name));
}

/// A call returns; `what` is the result of an operation or a sync.
pub(crate) fn result(
    flight: &Recorder,
    what: What,
    subject: Option<Subject>,
    bytes: u64,
    error: Option<&Error>,
) {
    let name = match error {
        None => "ok",
        Some(Error::Aborted(_)) => "aborted",
        Some(Error::OutcomeUnknown(_)) => "outcome unknown",
        Some(Error::TooFewPeers { .. }) => "too few peers",
        Some(Error::MasterLost(_)) => "master lost",
        Some(Error::TimedOut { .. }) => "timed out",
        Some(Error::Kicked(_)) => "dropped by the master",
        Some(_) => "error",
    };
    flight.record_with(|| Event { subject, ..Event::new(what).named(name).bytes(bytes) });
    if let Some(verdict) = error.and_then(Error::verdict) {
        flight.fail(|| verdict.to_string());
    }
}

/// A failed call returns: waits a little for the file about it, if there is to be one.
pub(crate) fn settle(flight: &Recorder) {
    flight.flush(FILE_WAIT);
}

/// The session is over.
pub(crate) fn ended(flight: &Recorder, end: &End) {
    let name = match end {
        End::Closed => "closed",
        End::Kicked(_) => "kicked",
        End::MasterLost(_) => "master-lost",
    };
    let text = match end {
        End::Closed => String::new(),
        End::Kicked(reason) => reason.to_string(),
        End::MasterLost(reason) => reason.to_string(),
    };
    flight.record_with(|| Event::new(What::SessionEnded).named(name).text(text));
    if *end != End::Closed {
        flight.fail(|| end.to_string());
    }
}

/// A new ring.
pub(crate) fn ring_planned(flight: &Recorder, plan: &GroupPlan) {
    flight.record_with(|| {
        let ring: Vec<String> = plan.members.iter().map(|member| member.peer.to_string()).collect();
        Event::new(What::RingPlanned)
            .about(Subject::Epoch(plan.epoch))
            .count(ring.len() as u64)
            .text(ring.join(" -> "))
    });
}

/// An edge could not be built, or broke.
pub(crate) fn edge_fault(flight: &Recorder, fault: &EdgeFault) {
    flight.record_with(|| {
        Event::new(What::EdgeFault)
            .peer(fault.from)
            .other(fault.to)
            .about(Subject::Edge(fault.generation))
            .text(fault.text.as_str())
    });
    flight.fail(|| format!("edge {} -> {}: {}", fault.from, fault.to, fault.text));
}

/// A link broke; noted on its own thread, at once.
pub(crate) fn link_broken(flight: &Recorder, fault: &LinkFault) {
    flight.record_with(|| {
        Event::new(What::LinkBroken)
            .named(if fault.direction == Direction::In { "in" } else { "out" })
            .peer(PeerId(fault.peer))
            .about(Subject::Edge(pccl_protocol::LinkGeneration(fault.generation)))
            .text(fault.text.as_str())
    });
}

/// The caller enters (`What::CallBegan`) or leaves a call that goes alone.
pub(crate) fn call(flight: &Recorder, what: What, kind: CallKind) {
    flight.record_with(|| Event::new(what).named(kind.text()));
}
