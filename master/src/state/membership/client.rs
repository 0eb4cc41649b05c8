//! A connection and the peer behind it.

use super::rate_limits::Allowance;
use super::sender::Phase;
use crate::state::groups::formed::Past;
use crate::state::operations::crossed_calls::Crossing;
use crate::state::shared_state::prefetch::Ahead;
use crate::state::types::{ClientKey, Timestamp};
use core::{net::IpAddr, time::Duration};
use pccl_protocol::{
    Address, Beat, CallKind, Culprit, Examine, GroupId, Host, Hosts, Named, PeerId, Register, RequestId,
    WorldSizes,
};
use std::collections::{BTreeSet, VecDeque};
use tinysockets::place::{is_private, may_be_told};

/// One control connection.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Client {
    /// Source address.
    pub(crate) remote: IpAddr,
    /// Address of the master that the client reached.
    pub(crate) local: IpAddr,
    /// When the connection came.
    pub(crate) connected_at: Timestamp,
    /// The peer, once it has registered.
    pub(crate) peer: Option<PeerId>,
    /// How often it has asked for the status without being registered.
    pub(crate) requests: u32,
    /// The question whose answer waits until its ports have been tried.
    pub(crate) examined: Option<Examine>,
    /// The part of its allowance that it has used.
    pub(crate) allowance: Allowance,
    /// Its questions for the status that are not answered.
    pub(crate) questions: VecDeque<RequestId>,
}

impl Client {
    /// A fresh connection from the first of these addresses to the second.
    pub(crate) fn new((remote, local): (IpAddr, IpAddr), connected_at: Timestamp) -> Self {
        let (allowance, questions) = (Allowance::default(), VecDeque::new());
        Self { remote, local, connected_at, peer: None, requests: 0, examined: None, allowance, questions }
    }

    /// When its time to register is over, of which it has as much again while it waits for an answer.
    pub(crate) fn registration_due(&self, timeout: Duration) -> Timestamp {
        self.connected_at + timeout * (1 + u32::from(self.examined.is_some()))
    }
}

/// How far a peer has come, with what it can only be in there: a newcomer may fetch the state ahead, a member may vote.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum Membership {
    /// See [`Phase::Pending`]; how far it is with the state that it fetches before it is let in, if it wants to.
    Pending(Option<Ahead>),
    /// See [`Phase::Connecting`].
    Connecting,
    /// See [`Phase::Accepted`].
    Accepted {
        /// Its vote in a call of the whole run. There is one at a time: the call occupies the caller's thread.
        vote: Option<RunVote>,
        /// Its question for pending peers, which may be open beside any call.
        query: Option<PendingVote>,
    },
}

impl Membership {
    /// A fresh member, which has not voted.
    pub(crate) const fn accepted() -> Self {
        Self::Accepted { vote: None, query: None }
    }
}

/// A vote in a call of the whole run.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum RunVote {
    Topology(TopologyVote),
    Optimize(OptimizeVote),
}

/// A vote that all of the run give together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(crate) enum CommonVote {
    Topology,
    Optimize,
    Pending,
}

impl CommonVote {
    pub(crate) const ALL: [Self; 3] = [Self::Topology, Self::Optimize, Self::Pending];

    /// Whether a peer has given it.
    pub(crate) const fn is_given(self, peer: &Peer) -> bool {
        match self {
            Self::Topology => peer.topology().is_some(),
            Self::Optimize => peer.optimize().is_some(),
            Self::Pending => peer.query().is_some(),
        }
    }
}

/// A vote of `update_topology` or `wait_for_world`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct TopologyVote {
    pub(crate) request: RequestId,
    /// 0, or the size of the world that the vote waits for.
    pub(crate) wait_for_world: u32,
    pub(crate) since: Timestamp,
    /// Taken back while a round was running: it counts until the end of that round.
    pub(crate) withdrawn: bool,
    /// The count of accepted peers in the last progress report for this vote.
    pub(crate) told: Option<u32>,
}

impl TopologyVote {
    /// The call that it is of.
    pub(crate) const fn call(&self) -> CallKind {
        if self.wait_for_world == 0 { CallKind::UpdateTopology } else { CallKind::WaitForWorld }
    }
}

/// A vote of `optimize_topology`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct OptimizeVote {
    pub(crate) request: RequestId,
    pub(crate) since: Timestamp,
}

/// A vote of `are_peers_pending`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct PendingVote {
    pub(crate) request: RequestId,
    pub(crate) since: Timestamp,
}

/// The connection of a peer has ended, and it may come back over another one.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Away {
    pub(crate) since: Timestamp,
    /// If it has not come back then, it is lost.
    pub(crate) until: Timestamp,
    /// It was the master that was lost: the end of the connection says nothing of the peer, nor do edges that break
    /// then.
    pub(crate) with_master: bool,
    /// It has registered anew, or its port is closed.
    pub(crate) is_dead: bool,
    /// How the connection ended.
    pub(crate) text: String,
}

/// A port of a peer that the master has not reached.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Closed {
    pub(crate) is_state: bool,
    pub(crate) since: Timestamp,
    pub(crate) why: String,
    /// The others have been asked.
    pub(crate) asked: bool,
}

/// A registered peer.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Peer {
    pub(crate) client: ClientKey,
    pub(crate) info: Register,
    pub(crate) remote: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) membership: Membership,
    /// Counts registrations; newcomers join a ring in this order.
    pub(crate) order: u64,
    /// When the last packet came.
    pub(crate) heard_at: Timestamp,
    /// When it was heard again after it had last been suspect, or registered.
    pub(crate) lively_since: Timestamp,
    /// Its connection has ended.
    pub(crate) away: Option<Away>,
    /// When somebody else has last said that an edge to or from it broke.
    pub(crate) edge_broke: Option<Timestamp>,
    /// The last beat and when it came.
    pub(crate) beat: Option<(Beat, Timestamp)>,
    /// Votes that it took back, and has not given again.
    pub(crate) took_back: BTreeSet<CommonVote>,
    /// The crossing of its call with others, and since when that was seen.
    pub(crate) crossed: Option<(Crossing, Timestamp)>,
    /// Ports of it that the master did not reach, and of which nobody else said that it did.
    pub(crate) closed: Vec<Closed>,
    /// The master has tried its ports.
    pub(crate) tried: bool,
    /// Nobody can dial it.
    pub(crate) outbound_only: bool,
    /// When it came.
    pub(crate) registered_at: Timestamp,
    /// The sizes that this peer was told last.
    pub(crate) sizes_told: Option<WorldSizes>,
    /// The group of given members that it is in.
    pub(crate) formed: Option<GroupId>,
    /// Its past in such groups.
    pub(crate) past: Past,
}

impl Peer {
    /// Its group: the one that it was formed into, or the one for which it registered.
    pub(crate) const fn group(&self) -> GroupId {
        match self.formed {
            Some(group) => group,
            None => self.info.group,
        }
    }

    /// Whether votes for the whole run need its vote. A peer of a formed group lets nobody in.
    pub(crate) fn has_a_say(&self) -> bool {
        self.accepted() && !self.info.formed
    }

    pub(crate) const fn accepted(&self) -> bool {
        matches!(self.membership, Membership::Accepted { .. })
    }

    pub(crate) const fn phase(&self) -> Phase {
        match self.membership {
            Membership::Pending(_) => Phase::Pending,
            Membership::Connecting => Phase::Connecting,
            Membership::Accepted { .. } => Phase::Accepted,
        }
    }

    /// Bytes that the peer had moved, over all operations, by its last beat.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.beat.as_ref().map_or(0, |(beat, _)| beat.moved_bytes)
    }

    /// Whether a call that it is in ends by itself when a limit passes.
    pub(crate) fn is_limited(&self) -> bool {
        self.beat.as_ref().is_some_and(|(beat, _)| beat.limited)
    }

    /// How verdicts name this peer.
    pub(crate) fn culprit(&self, id: PeerId) -> Culprit {
        Culprit {
            peer: id,
            host: Host::new(self.remote.to_canonical().to_string()),
            name: self.info.name.clone(),
        }
    }

    /// Identity, name and address in one phrase, for sentences.
    pub(crate) fn name(&self, id: PeerId) -> String {
        Named(id, &self.info.name, &self.remote.to_canonical().to_string()).to_string()
    }

    /// Whether others reach this peer under different hosts, see [`Peer::hosts_for`].
    pub(crate) fn host_depends_on_viewer(&self) -> bool {
        self.info.advertised_host.is_none() && self.remote.to_canonical().is_loopback()
    }

    /// All that [`Peer::hosts_for`] uses of this peer as the viewer.
    pub(crate) fn view(&self) -> Option<IpAddr> {
        view((self.remote, self.local))
    }

    /// Where `viewer` reaches this peer.
    ///
    /// A peer that reached the master over loopback lives on the master's machine. Others reach that machine under the
    /// address under which they reach the master.
    pub(crate) fn hosts_for(&self, viewer: &Self) -> Hosts {
        self.hosts_in(viewer.view())
    }

    /// As [`Peer::hosts_for`], for who has this [`view`].
    pub(crate) fn hosts_in(&self, view: Option<IpAddr>) -> Hosts {
        if let Some(host) = &self.info.advertised_host {
            return host.clone().into();
        }
        let seen = view.filter(|_| self.host_depends_on_viewer()).unwrap_or(self.remote.to_canonical());
        let others = self.info.addresses.iter().filter(|address| address.ip() != seen);
        Hosts { host: Host::new(seen.to_string()), others: others.copied().collect() }
    }
}

/// The votes of a member, and the fetch of a newcomer.
impl Peer {
    pub(crate) const fn topology(&self) -> Option<&TopologyVote> {
        match &self.membership {
            Membership::Accepted { vote: Some(RunVote::Topology(vote)), .. } => Some(vote),
            _ => None,
        }
    }

    pub(crate) const fn topology_mut(&mut self) -> Option<&mut TopologyVote> {
        match &mut self.membership {
            Membership::Accepted { vote: Some(RunVote::Topology(vote)), .. } => Some(vote),
            _ => None,
        }
    }

    pub(crate) const fn optimize(&self) -> Option<&OptimizeVote> {
        match &self.membership {
            Membership::Accepted { vote: Some(RunVote::Optimize(vote)), .. } => Some(vote),
            _ => None,
        }
    }

    pub(crate) const fn query(&self) -> Option<&PendingVote> {
        match &self.membership {
            Membership::Accepted { query, .. } => query.as_ref(),
            _ => None,
        }
    }

    pub(crate) const fn ahead(&self) -> Option<&Ahead> {
        match &self.membership {
            Membership::Pending(ahead) => ahead.as_ref(),
            _ => None,
        }
    }

    pub(crate) const fn ahead_mut(&mut self) -> Option<&mut Ahead> {
        match &mut self.membership {
            Membership::Pending(ahead) => ahead.as_mut(),
            _ => None,
        }
    }

    /// Records a vote of a member.
    pub(crate) fn give(&mut self, given: RunVote) {
        if let Membership::Accepted { vote, .. } = &mut self.membership {
            *vote = Some(given);
        }
    }

    /// Records a question of a member.
    pub(crate) const fn ask(&mut self, asked: PendingVote) {
        if let Membership::Accepted { query, .. } = &mut self.membership {
            *query = Some(asked);
        }
    }

    /// Takes its vote for a topology, if `which` says so.
    pub(crate) fn take_topology(
        &mut self,
        which: impl FnOnce(&TopologyVote) -> bool,
    ) -> Option<TopologyVote> {
        let Membership::Accepted { vote, .. } = &mut self.membership else { return None };
        match vote.take_if(|vote| matches!(vote, RunVote::Topology(vote) if which(vote)))? {
            RunVote::Topology(vote) => Some(vote),
            RunVote::Optimize(_) => None,
        }
    }

    /// Takes its vote for an optimisation, if `which` says so.
    pub(crate) fn take_optimize(
        &mut self,
        which: impl FnOnce(&OptimizeVote) -> bool,
    ) -> Option<OptimizeVote> {
        let Membership::Accepted { vote, .. } = &mut self.membership else { return None };
        match vote.take_if(|vote| matches!(vote, RunVote::Optimize(vote) if which(vote)))? {
            RunVote::Optimize(vote) => Some(vote),
            RunVote::Topology(_) => None,
        }
    }

    /// Takes its question for pending peers, if `which` says so.
    pub(crate) fn take_query(&mut self, which: impl FnOnce(&PendingVote) -> bool) -> Option<PendingVote> {
        let Membership::Accepted { query, .. } = &mut self.membership else { return None };
        query.take_if(|query| which(query))
    }
}

/// The address under which a viewer with a connection from the first of these addresses to the second reaches the
/// machine of the master; `None` if it is on that machine itself.
pub(crate) fn view((remote, local): (IpAddr, IpAddr)) -> Option<IpAddr> {
    (!remote.to_canonical().is_loopback()).then(|| local.to_canonical())
}

/// Of the addresses that a peer announces, those under which others may dial it, beside the one from which the master
/// sees it come.
///
/// A peer that comes through a private network, or from this machine, is in a run that relies on its network: others
/// leave it only if everything that travels is encrypted. The private addresses of a peer that comes from elsewhere
/// mean other machines to most.
pub(crate) fn candidates(announced: &[Address], remote: IpAddr, is_encrypted: bool) -> Vec<Address> {
    let remote = remote.to_canonical();
    let is_near = is_private(remote) || !may_be_told(remote);
    let may = |address: &&Address| if is_near { is_encrypted } else { !is_private(address.ip()) };
    announced.iter().filter(may).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_network_is_left_only_by_what_is_encrypted() {
        let all = ["10.0.0.9", "fd00::9", "8.8.8.8", "2a00::9"]
            .map(|ip| Address::new(ip.parse().expect("an address")).expect("may be told"));
        let of =
            |remote: &str, is_encrypted| candidates(&all, remote.parse().expect("an address"), is_encrypted);
        for near in ["10.0.0.1", "127.0.0.1", "::1", "fd00::1", "fe80::1", "::ffff:192.168.1.1"] {
            assert_eq!((of(near, false), of(near, true)), (vec![], all.to_vec()), "{near}");
        }
        for far in ["8.8.4.4", "2a00::1"] {
            assert_eq!((of(far, false), of(far, true)), (all[2..].to_vec(), all[2..].to_vec()), "{far}");
        }
    }
}
