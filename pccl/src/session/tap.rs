//! The treatment of packets of the master as they arrive, on the control connection's RX thread.
//!
//! Packets that drive operations and the ring are acted upon here, at once and without waiting for anything; answers to
//! a caller's request stay in the inbox until the caller fetches them.

use super::{Shared, called, event::Event, seek};
use crate::{collective::op::Op, error::End, flight};
use pccl_protocol::{C2m, GroupPlan, M2c, OpId, VoteRef};
use std::sync::{Arc, Weak};
use tinysockets::queued::{OnClose, Tap, TapFn};

/// The callbacks of the control connection.
pub(crate) fn callbacks(shared: &Arc<Shared>) -> (TapFn<M2c>, OnClose) {
    let (for_tap, for_close) = (Arc::downgrade(shared), Arc::downgrade(shared));
    let tap = Box::new(move |kind: u16, body: &[u8]| receive(&for_tap, kind, body));
    let on_close = Box::new(move |reason: &tinysockets::queued::CloseReason| {
        if let Some(shared) = for_close.upgrade() {
            seek::connection_ended(&shared, reason);
        }
    });
    (tap, on_close)
}

fn receive(shared: &Weak<Shared>, kind: u16, body: &[u8]) -> Tap<M2c> {
    let Some(shared) = shared.upgrade() else { return Tap::Close("session over".into()) };
    let packet = match M2c::from_frame(kind, body) {
        Ok(packet) => packet,
        Err(error) => return Tap::Close(format!("the master sent a malformed packet: {error}")),
    };
    shared.control.note_heard(&packet);
    match packet {
        M2c::Registered(registered) => {
            shared.told.registered(&registered);
            return Tap::Keep(M2c::Registered(registered));
        }
        M2c::Kicked(reason) => shared.finish(End::Kicked(reason)),
        M2c::GroupPlan(plan) => take_plan(&shared, plan),
        M2c::Sizes(sizes) => shared.told.learn(|known| known.apply_sizes(&sizes)),
        M2c::Admitted(sizes) => {
            shared.told.learn(|known| known.apply_sizes(&sizes));
            shared.syncs.ahead.lock().is_admitted = true;
            shared.syncs.source.stop();
            return answered(&shared, M2c::Admitted(sizes));
        }
        M2c::TopologyDone(done) => {
            shared.told.learn(|known| known.apply_sizes(&done.sizes));
            return answered(&shared, M2c::TopologyDone(done));
        }
        M2c::GroupFormed(formed) => {
            shared.told.learn(|known| known.apply_sizes(&formed.sizes));
            return answered(&shared, M2c::GroupFormed(formed));
        }
        M2c::OptimizeDone(done) => {
            shared.told.learn(|known| known.apply_sizes(&done.sizes));
            return answered(&shared, M2c::OptimizeDone(done));
        }
        M2c::ProbePlan(plan) => {
            if let Some(me) = shared.told.identity() {
                let from = (&*shared.config, &*shared.told);
                shared.probes.measure(&shared.control, &shared.dial_backs, from, me, plan);
            }
        }
        M2c::Call(call) => called::answer(&shared, call),
        M2c::ReachPlan(plan) => drop(shared.conductor.send(Event::Reach(plan))),
        M2c::Keys(keys) => shared.told.wallet.take_keys(keys, shared.config.run_keys.as_ref()),
        M2c::Tickets(given) => shared.told.wallet.take_tickets(given),
        M2c::Warning(text) => log::warn!("{text}"),
        M2c::Commence(commence) => {
            with_op(&shared, commence.op, |op| op.commence(&commence));
            shared.bell.operation_begins(commence.algorithm);
        }
        M2c::Outcome(outcome) => with_op(&shared, outcome.op, |op| op.outcome(outcome.op, outcome.outcome)),
        M2c::Stale(stale) => match stale.vote {
            VoteRef::Collective(id) => with_op(&shared, id, |op| {
                if op.stale(id) {
                    let _ = shared.conductor.send(Event::Revote(op.clone()));
                }
            }),
            VoteRef::Sync(_) | VoteRef::Forming(_) => return Tap::Keep(M2c::Stale(stale)),
        },
        M2c::TooFewPeers(answer) => match answer.vote {
            VoteRef::Collective(id) => with_op(&shared, id, |op| op.too_few(id, &answer)),
            VoteRef::Sync(_) | VoteRef::Forming(_) => return answered(&shared, M2c::TooFewPeers(answer)),
        },
        M2c::Echo(echo) => shared.calls.note_wait(echo.blocked_on.map(|text| text.as_str().to_owned())),
        M2c::Status(status) => shared.status.answer(status),
        kept @ (M2c::TopologyProgress(_) | M2c::SyncPlan(_)) => return Tap::Keep(kept),
        answer @ (M2c::VoteWithdrawn(_) | M2c::PendingAnswer(_) | M2c::FormFailed(_)) => {
            return answered(&shared, answer);
        }
        M2c::SyncOutcome(outcome) => {
            shared.syncs.source.stop();
            return answered(&shared, M2c::SyncOutcome(outcome));
        }
        M2c::StateAhead(plan) if shared.calls.is_connecting() => {
            shared.syncs.ahead.lock().plan = Some(plan.clone());
            shared.syncs.source.stop();
            return Tap::Keep(M2c::StateAhead(plan));
        }
        M2c::Received(received) => shared.control.acknowledged(received.count),
        M2c::Copies(copies) => {
            if let Some(known) = seek::learn(&shared, &copies) {
                shared.control.send_soon(C2m::CopiesKnown(known));
            }
        }
        // Of a master that acts nobody hears these.
        M2c::Claim(_) | M2c::Append(_) => {}
        M2c::StandsBy(answer) if shared.told.identity().is_none() => return Tap::Keep(M2c::StandsBy(answer)),
        M2c::StandsBy(answer) => log::info!("{}", answer.text),
        M2c::Returned(_) => return Tap::Close("the answer to a return that was not asked for".into()),
        // No peer asks for rates or is examined, and a peer that is let in has a sync for the state.
        M2c::Rates(_) | M2c::Examined(_) | M2c::StateAhead(_) => {}
        // Here and not where the leaving thread waits: the end of the connection behind it is no loss of the master.
        M2c::Goodbye(_) => shared.finish(End::Closed),
    }
    Tap::Consumed
}

/// Keeps the answer to a call that goes alone for that call, with the world as it is.
fn answered(shared: &Shared, answer: M2c) -> Tap<M2c> {
    shared.told.answered();
    Tap::Keep(answer)
}

fn with_op(shared: &Arc<Shared>, id: OpId, act: impl FnOnce(&Arc<Op>)) {
    if let Some(op) = shared.operations.table.op(id) {
        act(&op);
    }
}

/// Takes a plan over, everywhere at once as far as operations can see: attempts that are registered from now on belong
/// to it, find its edges, and begin only after this. Its edges are then built by the conductor.
fn take_plan(shared: &Arc<Shared>, plan: GroupPlan) {
    let Some(identity) = shared.told.identity() else { return };
    let plan = Arc::new(plan);
    let rank = plan.rank_of(identity.peer).unwrap_or(0);
    if !shared.operations.table.install(plan.clone(), identity.peer) {
        return log::warn!(
            "ignored a plan of epoch {} that is old or does not contain this peer",
            plan.epoch
        );
    }
    shared.operations.links.planned(&plan, rank, &shared.operations.table.epochs());
    shared.syncs.source.keep(|peer| plan.rank_of(peer).is_some());
    flight::ring_planned(&shared.flight, &plan);
    shared.told.learn(|known| known.apply_plan(&plan, rank));
    let _ = shared.conductor.send(Event::Plan(plan));
}
