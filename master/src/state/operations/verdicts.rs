//! Words and numbers that answers and verdicts are made of.

use crate::state::groups::edges::EdgeEnds;
use crate::state::groups::losses::BrokenEdge;
use crate::state::membership::client::Peer;
use crate::state::membership::members::Roll;
use pccl_protocol::{
    CallKind, Cause, CollectiveId, Culprit, Host, Name, OpFault, OpFaultKind, Operation, Outcome, PeerId,
    Phase, Text, Verdict,
};

/// Names listed in one sentence; the rest is counted.
const NAMES_MAX: usize = 4;

/// The words of the master about a peer that got no shared state: behind its name in a verdict, behind "it" in the
/// reason of its drop. Programs that judge a run look for it.
pub const NO_STATE: &str = "could not fetch the shared state";

/// Why a transfer between two members ends if a new plan of their group has no edge for it. Programs that judge a run
/// look for it.
pub const NEW_PLAN: &str = "a new plan of the group replaced its connections";

impl Roll {
    /// Identity and address of a peer, or its identity alone if it has gone.
    pub(crate) fn name_of(&self, id: PeerId) -> String {
        self.peers.get(&id).map_or_else(|| id.to_string(), |peer| peer.name(id))
    }

    /// Both ends of an edge, for sentences.
    pub(crate) fn name_of_edge(&self, (from, to): EdgeEnds) -> String {
        format!("edge {} -> {}", self.name_of(from), self.name_of(to))
    }

    /// How a verdict names a peer, one that went not long ago included.
    pub(crate) fn culprit_of(&self, id: PeerId) -> Culprit {
        if let Some(peer) = self.peers.get(&id) {
            return peer.culprit(id);
        }
        let unknown = || Culprit { peer: id, host: Host::default(), name: Name::default() };
        self.who_went(id).cloned().unwrap_or_else(unknown)
    }

    /// "peer A, last seen in call X for 12 s, peer B, ... and 3 more".
    pub(crate) fn list_peers(&self, ids: impl Iterator<Item = PeerId>) -> String {
        let mut ids = ids.fuse();
        let mut text: Vec<String> = ids.by_ref().take(NAMES_MAX).map(|id| self.last_seen(id)).collect();
        let more = ids.count();
        if more > 0 {
            text.push(format!("{more} more"));
        }
        text.join("; ")
    }

    fn last_seen(&self, id: PeerId) -> String {
        let Some(peer) = self.peers.get(&id) else { return id.to_string() };
        let Some((beat, at)) = &peer.beat else { return format!("peer {}, no beat yet", peer.name(id)) };
        let call = if beat.call == CallKind::None { "no call".to_owned() } else { beat.call.to_string() };
        let late = self.now.since(*at) > self.options.suspicion();
        format!("peer {}, in {call}{}", peer.name(id), if late { ", no beat lately" } else { "" })
    }

    pub(crate) fn call_of(&self, peer: &Peer) -> String {
        let Some((beat, at)) = &peer.beat else { return "no beat yet".to_owned() };
        let ago = self.now.since(*at);
        let in_call = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX).saturating_add(beat.call_ms);
        let silent = if ago > self.options.suspicion() {
            format!(", no beat for {:.1} s", ago.as_secs_f64())
        } else {
            String::new()
        };
        if beat.call == CallKind::None {
            // How long a caller has been in no call is not known.
            return format!("in no call{silent}");
        }
        format!("in {} for {} s{silent}", beat.call, Seconds(in_call))
    }

    /// The outcome of an attempt that cannot begin although all have voted.
    pub(crate) fn refused(
        &self,
        id: CollectiveId,
        cause: Cause,
        culprits: &[PeerId],
        detail: &str,
    ) -> Outcome {
        Outcome::Aborted(Verdict {
            cause,
            culprits: culprits.iter().map(|peer| self.culprit_of(*peer)).collect(),
            operation: Operation::Collective(id),
            phase: Phase::Voting,
            bytes_done: 0,
            silent_ms: 0,
            detail: Text::new(detail),
        })
    }

    /// An edge broke, or stood still.
    pub(crate) fn edge_verdict(
        &self,
        id: CollectiveId,
        phase: Phase,
        bytes_done: u64,
        edge: &BrokenEdge,
    ) -> Verdict {
        Verdict {
            cause: Cause::EdgeBroken,
            culprits: vec![self.culprit_of(edge.ends.0), self.culprit_of(edge.ends.1)],
            operation: Operation::Collective(id),
            phase,
            bytes_done,
            silent_ms: edge.stalled_ms,
            detail: edge.text.clone(),
        }
    }

    /// A participant has reported a fault.
    pub(crate) fn fault_verdict(
        &self,
        id: CollectiveId,
        phase: Phase,
        bytes_done: u64,
        who: PeerId,
        fault: &OpFault,
    ) -> Verdict {
        let other = fault.peer.filter(|other| *other != who);
        let (cause, ends) = match fault.kind {
            OpFaultKind::InboundLost => (Cause::EdgeBroken, [other, Some(who)]),
            OpFaultKind::OutboundLost => (Cause::EdgeBroken, [Some(who), other]),
            OpFaultKind::Corrupt | OpFaultKind::Violation => (Cause::Corruption, [other, Some(who)]),
            OpFaultKind::Local => (Cause::LocalFault, [Some(who), None]),
        };
        let reporter = self.name_of(who);
        let detail = match fault.text.as_str() {
            "" => format!("{} reported by {reporter}", fault.kind),
            text => format!("{} reported by {reporter}: {text}", fault.kind),
        };
        Verdict {
            cause,
            culprits: ends.into_iter().flatten().map(|end| self.culprit_of(end)).collect(),
            operation: Operation::Collective(id),
            phase,
            bytes_done,
            silent_ms: 0,
            detail: Text::new(detail),
        }
    }
}

/// Milliseconds that are shown as seconds.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 100)
    }
}
