//! Calls in which the whole run agrees on who is in it, and how data travels.

use super::Communicator;
use crate::{Error, Optimized, World, control::Control, limit::Limit};
use pccl_protocol::{C2m, CallKind, M2c, RequestId, VoteTopology, VoteWithdrawn, limits};
use std::time::Duration;

impl Communicator {
    /// Lets in all peers that wait, and returns when all rings are connected. All peers of the run have to call it.
    ///
    /// # Errors
    /// `PendingAsyncOps` while all-reduces are in flight; `TimedOut` when the call time-out has passed; `Aborted` with
    /// cause `MismatchedCall` when others are in a call that waits for this peer; `NotConnected`, `Kicked`,
    /// `MasterLost`.
    pub fn update_topology(&self) -> Result<(), Error> {
        self.update_topology_within(self.call_timeout())
    }

    /// As [`Communicator::update_topology`], with a limit of its own; `None` waits for ever. When it has passed,
    /// this peer's vote is taken back, so that it may make other calls; those who have voted go on waiting for it. A
    /// round that has begun ends first, and then the call succeeds.
    ///
    /// # Errors
    /// As [`Communicator::update_topology`].
    pub fn update_topology_within(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::UpdateTopology, true, limit)?;
        let request = call.shared.control.next_request();
        vote_topology(&call.shared.control, CallKind::UpdateTopology, (request, 0), limit, &mut |_, _, _| {})
    }

    /// Measures the edges of which nothing is known, or only what is old, plans the best ring, and returns when all
    /// peers have it. All peers of the run have to call it; nobody is let in. Up to 2 s are spent on each pair of a
    /// group (the master's `probe_time`), many pairs at a time: at most that times the size of the group, less one. A
    /// peer that dies meanwhile is left out, which is no error.
    ///
    /// # Errors
    /// `PendingAsyncOps` while all-reduces are in flight; `TimedOut` when the call time-out has passed; `Aborted` with
    /// cause `MismatchedCall` when others are in a call that waits for this peer; `NotConnected`, `Kicked`,
    /// `MasterLost`.
    pub fn optimize_topology(&self) -> Result<Optimized, Error> {
        self.optimize_topology_within(self.call_timeout())
    }

    /// As [`Communicator::optimize_topology`], with a limit of its own; `None` waits for ever. When it has passed,
    /// this peer's vote is taken back. Once all peers have voted, the optimisation goes on to its end, and the call
    /// succeeds.
    ///
    /// # Errors
    /// As [`Communicator::optimize_topology`].
    pub fn optimize_topology_within(&self, timeout: Option<Duration>) -> Result<Optimized, Error> {
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::OptimizeTopology, true, limit)?;
        let request = call.shared.control.next_request();
        call.shared.control.send(&C2m::VoteOptimize(request));
        let optimized =
            agree(&call.shared.control, CallKind::OptimizeTopology, request, limit, |packet| match packet {
                M2c::OptimizeDone(done) if done.request == request => Ok(Optimized::new(&done)),
                other => Err(other),
            })?;
        log::info!("{optimized}");
        Ok(optimized)
    }

    /// Whether any peer waits to be let in. All peers of the run have to call it; all get the same answer. Allowed
    /// while all-reduces are in flight.
    ///
    /// # Errors
    /// `TimedOut` when the call time-out has passed; `NotConnected`, `Kicked`, `MasterLost`.
    pub fn are_peers_pending(&self) -> Result<bool, Error> {
        self.are_peers_pending_within(self.call_timeout())
    }

    /// As [`Communicator::are_peers_pending`], with a limit of its own; `None` waits for ever. When it has passed,
    /// this peer's vote is taken back.
    ///
    /// # Errors
    /// As [`Communicator::are_peers_pending`].
    pub fn are_peers_pending_within(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::ArePeersPending, false, limit)?;
        let request = call.shared.control.next_request();
        call.shared.control.send(&C2m::VotePending(request));
        agree(&call.shared.control, CallKind::ArePeersPending, request, limit, |packet| match packet {
            M2c::PendingAnswer(answer) if answer.request == request => Ok(answer.pending),
            other => Err(other),
        })
    }

    /// Waits until the run has at least `peers` peers, letting in all peers that come; `timeout` of `None` waits for
    /// ever, whatever the call time-out is. While it waits the log says who is missing.
    ///
    /// # Errors
    /// `TimedOut` when `timeout` has passed; `PendingAsyncOps`, `NotConnected`, `Kicked`, `MasterLost`.
    pub fn wait_for_world(&self, peers: usize, timeout: Option<Duration>) -> Result<World, Error> {
        self.wait_for_world_with(peers, timeout, |have, want, missing| {
            log::info!("waiting for the world: {have} of {want} peers ({missing})");
        })
    }

    /// As [`Communicator::wait_for_world`]; `progress` is called with the number of peers there are, the number wanted,
    /// and who is missing, in words, whenever that changes.
    ///
    /// # Errors
    /// As [`Communicator::wait_for_world`].
    pub fn wait_for_world_with(
        &self,
        peers: usize,
        timeout: Option<Duration>,
        mut progress: impl FnMut(usize, usize, &str),
    ) -> Result<World, Error> {
        let wanted =
            u32::try_from(peers).ok().filter(|&n| n as usize <= limits::MAX_PEERS).ok_or_else(|| {
                Error::InvalidArgument(format!("a world has at most {} peers", limits::MAX_PEERS))
            })?;
        let limit = Limit::of(timeout);
        let call = self.exclusive(CallKind::WaitForWorld, true, limit)?;
        let request = call.shared.control.next_request();
        // A vote that waits for one peer is answered by the present world, a plain vote would wait for all others.
        vote_topology(
            &call.shared.control,
            CallKind::WaitForWorld,
            (request, wanted.max(1)),
            limit,
            &mut progress,
        )?;
        drop(call);
        Ok(self.world())
    }
}

/// Votes for a round of topology and waits for its answer.
fn vote_topology(
    control: &Control,
    call: CallKind,
    (request, wait_for_world): (RequestId, u32),
    limit: Limit,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<(), Error> {
    enum News {
        Done,
        Progress(u32, u32, String),
    }
    control.send(&C2m::VoteTopology(VoteTopology { request, wait_for_world }));
    loop {
        let news = agree(control, call, request, limit, |packet| match packet {
            M2c::TopologyDone(done) if done.request == request => Ok(News::Done),
            M2c::TopologyProgress(p) if p.request == request && !limit.is_over() => {
                Ok(News::Progress(p.have, p.want, p.missing.as_str().to_owned()))
            }
            other => Err(other),
        });
        match news? {
            News::Done => return Ok(()),
            News::Progress(have, want, missing) => progress(have as usize, want as usize, &missing),
        }
    }
}

/// Waits for the answer to a vote for the whole run. When the limit passes, the vote is taken back, unless others
/// have counted on it: then it is answered, they go on with what follows, and so must this peer. Bounded by the end
/// of the round or of the optimisation, if one is running.
fn agree<T>(
    control: &Control,
    call: CallKind,
    request: RequestId,
    limit: Limit,
    mut pick: impl FnMut(M2c) -> Result<T, M2c>,
) -> Result<T, Error> {
    let refused = |withdrawn: VoteWithdrawn| withdrawn.verdict.map(|it| Error::judged(call, it, false));
    let early = control.receive(limit.deadline(), |packet| match packet {
        M2c::VoteWithdrawn(withdrawn) if withdrawn.request == request => Ok(Err(withdrawn)),
        other => pick(other).map(Ok),
    });
    match early {
        Err(Error::TimedOut { .. }) => {}
        Err(error) => return Err(error),
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(withdrawn)) => return Err(refused(withdrawn).unwrap_or(Error::NotConnected)),
    }
    control.send(&C2m::WithdrawVote(request));
    let answered = control.receive(None, |packet| match packet {
        M2c::VoteWithdrawn(withdrawn) if withdrawn.request == request => Ok(Err(withdrawn)),
        other => pick(other).map(Ok),
    })?;
    answered.map_err(|withdrawn| {
        let missing = withdrawn.missing.as_str();
        let text = format!("{call} was given up after {:?}; it waited for {missing}", limit.time());
        refused(withdrawn).unwrap_or(Error::TimedOut { call, text, verdict: None })
    })
}
