//! Peers that nobody can dial: how they are found out, what is said of them, and what follows for who is let in.
//!
//! A peer that says so itself is outbound-only, and so is one that fails the master's test of its ports, unless the
//! master takes only peers that can be reached. It stays that until it connects anew. Which edges there can be with it
//! is the matter of [`Dials`].

use super::client::Peer;
use super::members::Roll;
use super::sender::Phase;
use crate::state::MasterState;
use crate::state::groups::edges::EdgeEnds;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_planner::{Dialer, Dials};
use pccl_protocol::{GroupId, KickCode, KickReason, M2c, PeerId, Text};
use std::collections::BTreeMap;

/// Peers that are named in one sentence; the rest is counted.
const NAMED_MAX: usize = 4;

impl Peer {
    /// Whether the master is to find out if others can dial it.
    pub(crate) const fn is_to_be_tested(&self, require_reachable: bool) -> bool {
        self.info.outbound_only.is_none() && !require_reachable && !self.tried
    }
}

impl Roll {
    /// Whether nobody can dial a peer.
    pub(crate) fn is_outbound_only(&self, id: PeerId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.outbound_only)
    }

    /// The dials that are possible among these peers.
    pub(crate) fn dials(&self, peers: &[PeerId]) -> Dials {
        let hidden: Dials = peers.iter().copied().filter(|id| self.is_outbound_only(*id)).collect();
        hidden.with_relay(self.options.relay.is_some())
    }

    /// Whether two peers meet at the relay, if they do.
    pub(crate) fn is_relayed(&self, ends: EdgeEnds) -> bool {
        self.options.relay.is_some() && !self.may_meet(ends)
    }

    /// Whether one of two peers can dial the other one.
    pub(crate) fn may_meet(&self, ends: EdgeEnds) -> bool {
        !(self.is_outbound_only(ends.0) && self.is_outbound_only(ends.1))
    }

    /// Whether the receiving end of an edge dials.
    pub(crate) fn dials_back(&self, ends: EdgeEnds) -> bool {
        self.dials(&[ends.0, ends.1]).dialer(ends.0, ends.1) == Some(Dialer::Receiver)
    }

    /// The peer that dials for an edge, and the one that is dialed.
    pub(crate) fn dialed(&self, (from, to): EdgeEnds) -> EdgeEnds {
        if self.dials_back((from, to)) { (to, from) } else { (from, to) }
    }

    /// Why a peer that says that nobody can dial it is not taken.
    pub(crate) fn admit_outbound(&self, outbound_only: Option<bool>) -> Result<(), KickReason> {
        if outbound_only == Some(true) && self.options.require_reachable {
            let text = "this master takes only peers that others can dial (--require-reachable), and this one says \
                        that it is outbound-only";
            return Err(KickReason::new(KickCode::Unreachable, text));
        }
        Ok(())
    }

    /// From now on nobody dials a peer. It hears what that means; `why` is what the master found.
    pub(crate) fn note_outbound_only(&mut self, out: &mut Outbox, id: PeerId, why: Option<&str>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.outbound_only = true;
        peer.closed.clear();
        let client = peer.client;
        let found = why.map_or_else(|| "as its program says".to_owned(), |why| format!("since {why}"));
        let text = format!(
            "this peer is outbound-only, {found}: it dials all of its connections itself. {} To have others dial it, \
             {}",
            match self.options.relay {
                None => {
                    "Two such peers are never neighbours, so a group takes no more of them than of others, and \
                     operations between two of them fail."
                }
                Some(_) => {
                    "Two such peers meet at the relay of the master where there is no other way, which is slow, and \
                     operations between two of them fail."
                }
            },
            self.how_to_open(id)
        );
        out.send(client, M2c::Warning(Text::new(text)));
        out.info(format!("{} is outbound-only, {found}", self.name_of(id)));
    }

    /// Advice to an operator so that others can dial a peer.
    fn how_to_open(&self, id: PeerId) -> String {
        let Some(peer) = self.peers.get(&id) else { return "open its ports".to_owned() };
        let target = peer.reach_target(id, peer);
        format!(
            "let others reach TCP ports {} and {} of {} (firewall, port forwarding) or set advertised_host",
            target.p2p_port, target.state_port, target.hosts
        )
    }

    /// Outbound-only peers, as a sentence names them: with what to open.
    fn list_hidden(&self, ids: &[PeerId]) -> String {
        let named = ids.iter().take(NAMED_MAX).map(|id| {
            let name = self.name_of(*id);
            match self.peers.get(id).map(|peer| peer.reach_target(*id, peer)) {
                Some(target) => {
                    format!(
                        "{name} (TCP ports {} and {} of {})",
                        target.p2p_port, target.state_port, target.hosts
                    )
                }
                None => name,
            }
        });
        let mut list: Vec<String> = named.collect();
        if ids.len() > NAMED_MAX {
            list.push(format!("{} more", ids.len() - NAMED_MAX));
        }
        list.join(", ")
    }

    /// Why these cannot all be in one ring, and what would help.
    pub(crate) fn why_no_ring(&self, members: &[PeerId]) -> String {
        let hidden: Vec<PeerId> = members.iter().copied().filter(|id| self.is_outbound_only(*id)).collect();
        let others = members.len() - hidden.len();
        format!(
            "{} of {} peers are outbound-only, and a ring takes no more of them than of others ({others}): let others \
             reach {}, or add a peer that can be dialed; the last resort is a relay (pccl-master --relay)",
            hidden.len(),
            members.len(),
            self.list_hidden(&hidden)
        )
    }

    /// Why two peers have no connection, if nobody can make one.
    pub(crate) fn why_apart(&self, ends: EdgeEnds) -> Option<String> {
        (!self.may_meet(ends)).then(|| {
            let both = [ends.0, ends.1];
            format!("both are outbound-only: let others reach one of {}", self.list_hidden(&both))
        })
    }

    /// Members of the group's ring, and those that are about to be.
    fn present(&self, group: GroupId) -> Vec<PeerId> {
        let is_in = |peer: &Peer| peer.group() == group && peer.phase() != Phase::Pending;
        self.peers.iter().filter(|(_, peer)| is_in(peer)).map(|(id, _)| *id).collect()
    }

    /// Of newcomers that may be let in otherwise, those for which their rings have room, and whose ports were tried.
    pub(crate) fn with_room(&self, newcomers: Vec<PeerId>) -> Vec<PeerId> {
        let mut of_group: BTreeMap<GroupId, Vec<(u64, PeerId)>> = BTreeMap::new();
        for id in newcomers {
            let Some(peer) = self.peers.get(&id) else { continue };
            if !peer.is_to_be_tested(self.options.require_reachable) {
                of_group.entry(peer.group()).or_default().push((peer.order, id));
            }
        }
        let mut all = Vec::new();
        for (group, mut waiting) in of_group {
            waiting.sort_unstable();
            let waiting: Vec<PeerId> = waiting.into_iter().map(|(_, id)| id).collect();
            let present = self.present(group);
            let everybody = [&present[..], &waiting].concat();
            all.extend(self.dials(&everybody).admit(&present, &waiting));
        }
        all.sort_unstable();
        all
    }

    /// Why a newcomer waits although the others would let it in: its ports are being tried, or its ring has no room for
    /// one more that cannot be dialed.
    pub(crate) fn why_outside(&self, id: PeerId) -> Option<String> {
        let peer = self.peers.get(&id).filter(|peer| peer.phase() == Phase::Pending && !peer.info.formed)?;
        if peer.is_to_be_tested(self.options.require_reachable) {
            return Some(
                "admission waits until the master has tried to reach the ports of this peer".to_owned(),
            );
        }
        let mut members = self.present(peer.group());
        members.push(id);
        (peer.outbound_only && !self.dials(&members).have_ring(&members))
            .then(|| format!("admission waits, since {}", self.why_no_ring(&members)))
    }

    /// Newcomers whose ports are being tried, and those for which there is no room: since when, and the sentence.
    pub(crate) fn outside_waits(&self) -> Vec<(Timestamp, String)> {
        let of = |(id, peer): (&PeerId, &Peer)| {
            let why = self.why_outside(*id)?;
            Some((peer.registered_at, format!("{}: {why}", self.name_of(*id))))
        };
        self.peers.iter().filter_map(of).collect()
    }
}

impl MasterState {
    /// A ring cannot separate all of its members that nobody can dial: those of them that came last go, newcomers
    /// first. Whether there were such.
    pub(crate) fn drop_who_cannot_be_separated(&mut self, group_id: GroupId, members: &[PeerId]) -> bool {
        let dials = self.roll.dials(members);
        if dials.have_ring(members) {
            return false;
        }
        let hidden = members.iter().filter(|id| dials.is_outbound_only(**id));
        let mut hidden: Vec<(bool, u64, PeerId)> = hidden
            .filter_map(|id| self.roll.peers.get(id).map(|peer| (!peer.accepted(), peer.order, *id)))
            .collect();
        hidden.sort_unstable();
        let others = members.len() - hidden.len();
        let text = self.roll.why_no_ring(members);
        // Without anybody else one is a ring by itself.
        let victims = hidden.split_off(others.max(usize::from(others == 0)));
        self.out.warn(format!("group {group_id}: {text}"));
        for (_, _, id) in victims {
            self.kick(id, KickReason::new(KickCode::Unreachable, text.clone()));
        }
        true
    }
}
