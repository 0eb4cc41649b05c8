//! The subjects of packets. A packet that a peer and the master both recorded is recognised by its subject, if it is
//! unique.

use crate::Subject;
use pccl_protocol::{C2m, M2c, VoteRef};

fn voted_for(vote: &VoteRef) -> Subject {
    match vote {
        VoteRef::Collective(id) => Subject::Op(*id),
        VoteRef::Sync(request) | VoteRef::Forming(request) => Subject::Request(*request),
    }
}

/// The subject that a packet to the master belongs to.
pub fn subject_to_master(packet: &C2m) -> Option<Subject> {
    Some(match packet {
        C2m::Beat(beat) => Subject::Beat(beat.sequence),
        C2m::VoteTopology(vote) => Subject::Request(vote.request),
        C2m::WithdrawVote(request)
        | C2m::VotePending(request)
        | C2m::StatusRequest(request)
        | C2m::VoteOptimize(request) => Subject::Request(*request),
        C2m::EdgeReport(report) => Subject::Epoch(report.epoch),
        C2m::Initiate(initiate) => Subject::Op(initiate.op),
        C2m::Complete(complete) => Subject::Op(complete.op),
        C2m::GiveUp(give_up) => voted_for(&give_up.vote),
        C2m::RatesRequest(asked) => Subject::Request(asked.request),
        C2m::Examine(asked) => Subject::Request(asked.request),
        C2m::SyncInitiate(initiate) => Subject::Request(initiate.request),
        C2m::FormGroup(vote) => Subject::Request(vote.request),
        C2m::Loan(loan) => Subject::Sync(loan.sync),
        C2m::SyncComplete(complete) => Subject::Sync(complete.sync),
        _ => return None,
    })
}

/// The subject that a packet to a peer belongs to.
pub fn subject_to_peer(packet: &M2c) -> Option<Subject> {
    Some(match packet {
        M2c::GroupPlan(plan) => Subject::Epoch(plan.epoch),
        M2c::Sizes(sizes) | M2c::Admitted(sizes) => Subject::World(sizes.world_epoch),
        M2c::TopologyDone(done) => Subject::Request(done.request),
        M2c::TopologyProgress(progress) => Subject::Request(progress.request),
        M2c::VoteWithdrawn(answer) => Subject::Request(answer.request),
        M2c::Rates(answer) => Subject::Request(answer.request),
        M2c::Examined(answer) => Subject::Request(answer.request),
        M2c::PendingAnswer(answer) => Subject::Request(answer.request),
        M2c::Stale(stale) => voted_for(&stale.vote),
        M2c::TooFewPeers(answer) => voted_for(&answer.vote),
        M2c::Commence(commence) => Subject::Op(commence.op),
        M2c::Outcome(outcome) => Subject::Op(outcome.op),
        M2c::SyncPlan(plan) => Subject::Request(plan.request),
        M2c::StateAhead(plan) => Subject::Sync(plan.sync),
        M2c::SyncOutcome(outcome) => Subject::Request(outcome.request),
        M2c::OptimizeDone(done) => Subject::Request(done.request),
        M2c::GroupFormed(answer) => Subject::Request(answer.request),
        M2c::FormFailed(answer) => Subject::Request(answer.request),
        M2c::Status(status) => Subject::Request(status.request),
        M2c::Echo(echo) => Subject::Beat(echo.sequence),
        _ => return None,
    })
}
