//! The kinds of collectives: what each does with which part of the tensors.

use crate::{Nothing, OpId, PartDescriptor, PeerId, limits};
use pccl_quant::ReduceOp;
use std::{collections::BTreeSet, fmt};
use tinysockets::wire::{ListItem, WireError};

wire_code! {
    /// The kind of a collective, without its arguments.
    pub enum CollectiveKind {
        /// Everybody gets the reduction of what all give.
        AllReduce = 0 => "all-reduce",
        /// Everybody gets what one gives.
        Broadcast = 1 => "broadcast",
        /// Everybody gets what each one gives, side by side.
        AllGather = 2 => "all-gather",
        /// Each one gets its part of the reduction of what all give.
        ReduceScatter = 3 => "reduce-scatter",
        /// One gets the reduction of what all give.
        Reduce = 4 => "reduce",
        /// Nobody goes on before all have come.
        Barrier = 5 => "barrier",
        /// One member gets what another one gives. Nobody else takes part.
        SendRecv = 6 => "send-recv",
        /// One gets what each one gives, side by side.
        Gather = 7 => "gather",
        /// Each one gets its part of what one gives.
        Scatter = 8 => "scatter",
        /// Each one gets a part of what each one gives.
        AllToAll = 9 => "all-to-all",
    }
}

impl CollectiveKind {
    /// Name of the call.
    pub const fn call(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Reduce => "reduce",
            Self::Barrier => "barrier",
            Self::SendRecv => "send_recv",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
        }
    }

    /// Whether contributions are combined by a reduction.
    pub const fn folds(self) -> bool {
        match self {
            Self::AllReduce | Self::ReduceScatter | Self::Reduce => true,
            Self::Broadcast | Self::AllGather | Self::Barrier | Self::SendRecv => false,
            Self::Gather | Self::Scatter | Self::AllToAll => false,
        }
    }

    /// Whether each part goes from one member to one other, and nowhere else.
    pub const fn only_moves(self) -> bool {
        matches!(self, Self::Gather | Self::Scatter | Self::AllToAll)
    }
}

wire_union! {
    /// The task of a collective: its kind with the arguments that are beside the tensors. Peers are named by their
    /// identity, since ranks may change between the call and its beginning.
    pub enum Collective {
        /// Everybody gets the reduction of what all give.
        AllReduce(Nothing) = 0,
        /// Everybody gets what this peer gives.
        Broadcast(PeerId) = 1,
        /// Everybody gets what each one gives, side by side.
        AllGather(Split) = 2,
        /// Each one gets its part of the reduction of what all give.
        ReduceScatter(Split) = 3,
        /// This peer gets the reduction of what all give.
        Reduce(PeerId) = 4,
        /// Nobody goes on before all have come. There are no tensors.
        Barrier(Nothing) = 5,
        /// One member gets what another one gives: which ones, the [tag](crate::Tag) says.
        SendRecv(Nothing) = 6,
        /// One peer gets what each one gives, side by side. The tensor is what it gets.
        Gather(Rooted) = 7,
        /// Each one gets its part of what one peer gives. The tensor is what that peer gives.
        Scatter(Rooted) = 8,
        /// Each one gets a part of what each one gives. The tensor is what all give, one behind the other.
        AllToAll(Blocks) = 9,
    }
}

wire_struct! {
    /// A tensor that one peer has, and of which each one has a part.
    pub struct Rooted {
        /// The one peer.
        pub root: PeerId,
        /// Which part belongs to whom.
        pub split: Split,
    }
}

wire_struct! {
    /// The parts of an all-to-all.
    pub struct Blocks {
        /// How much each one gives.
        pub split: Split,
        /// The low half of the tree hash of the numbers of elements that each rank gives each, 64 bits each,
        /// little-endian, rank by giving rank; 0 if all are equal. The peers have told each other these numbers before.
        pub digest: u64,
    }
}

wire_union! {
    /// Which part of a tensor belongs to which peer.
    pub enum Split {
        /// As many equal parts as the caller knows of ranks, in the order of the ranks when it begins.
        Equal(u32) = 0,
        /// How many elements each of these peers has, one behind the other; the order is that of their ranks.
        Members(Vec<MemberCount>) = 1,
    }
}

wire_struct! {
    /// How much of a tensor belongs to one peer.
    #[derive(Copy)]
    pub struct MemberCount {
        /// The peer.
        pub peer: PeerId,
        /// Number of elements.
        pub count: u64,
    }
}

impl ListItem for MemberCount {
    const LIST: &'static str = "counts of a collective";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// An attempt, and what kind of collective it is of.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct CollectiveId {
        /// The kind of the collective.
        pub kind: CollectiveKind,
        /// Identity of the attempt.
        pub op: OpId,
    }
}

impl fmt::Display for CollectiveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.op)
    }
}

/// Why a descriptor cannot be carried out by the members of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Peers that it names and that are no members.
    pub missing: Vec<PeerId>,
    /// The misfit, in words.
    pub text: String,
}

impl Collective {
    /// Its kind.
    pub const fn kind(&self) -> CollectiveKind {
        match self {
            Self::AllReduce(_) => CollectiveKind::AllReduce,
            Self::Broadcast(_) => CollectiveKind::Broadcast,
            Self::AllGather(_) => CollectiveKind::AllGather,
            Self::ReduceScatter(_) => CollectiveKind::ReduceScatter,
            Self::Reduce(_) => CollectiveKind::Reduce,
            Self::Barrier(_) => CollectiveKind::Barrier,
            Self::SendRecv(_) => CollectiveKind::SendRecv,
            Self::Gather(_) => CollectiveKind::Gather,
            Self::Scatter(_) => CollectiveKind::Scatter,
            Self::AllToAll(_) => CollectiveKind::AllToAll,
        }
    }

    /// The one peer that gives or gets everything, if there is one.
    pub const fn root(&self) -> Option<PeerId> {
        match self {
            Self::Broadcast(root) | Self::Reduce(root) => Some(*root),
            Self::Gather(rooted) | Self::Scatter(rooted) => Some(rooted.root),
            Self::AllReduce(_)
            | Self::AllGather(_)
            | Self::ReduceScatter(_)
            | Self::Barrier(_)
            | Self::SendRecv(_)
            | Self::AllToAll(_) => None,
        }
    }

    /// Which part of the tensors belongs to whom, if that is an argument.
    pub const fn split(&self) -> Option<&Split> {
        match self {
            Self::AllGather(split) | Self::ReduceScatter(split) => Some(split),
            Self::Gather(rooted) | Self::Scatter(rooted) => Some(&rooted.split),
            Self::AllToAll(blocks) => Some(&blocks.split),
            Self::AllReduce(_)
            | Self::Broadcast(_)
            | Self::Reduce(_)
            | Self::Barrier(_)
            | Self::SendRecv(_) => None,
        }
    }

    /// Whether these tensors can be given to it, whoever the members are.
    pub(crate) fn check(&self, parts: &[PartDescriptor]) -> Result<(), WireError> {
        let bad = |what, value| Err(WireError::BadValue { what, value });
        if let Some(part) = parts.iter().find(|part| !self.kind().folds() && part.op != ReduceOp::Sum) {
            return bad("reduction of a collective that has none", part.op.code().into());
        }
        if self.kind().only_moves() {
            if parts.len() != 1 {
                return bad("tensors of a collective that has one", parts.len() as u64);
            }
            if parts.iter().any(|part| part.quantisation.is_some()) {
                return bad("quantisation of what only moves", 1);
            }
        }
        match self.split() {
            None if self.kind() == CollectiveKind::Barrier && !parts.is_empty() => {
                bad("tensors of a barrier", parts.len() as u64)
            }
            None => Ok(()),
            Some(Split::Equal(0)) => bad("number of ranks", 0),
            Some(Split::Equal(ranks)) => {
                let ranks = u64::from(*ranks);
                let equal = if self.kind() == CollectiveKind::AllToAll { ranks * ranks } else { ranks };
                let odd = parts.iter().find(|part| !part.count.is_multiple_of(equal));
                odd.map_or(Ok(()), |part| bad("count of elements that are split equally", part.count))
            }
            Some(Split::Members(counts)) => {
                let peers: BTreeSet<PeerId> = counts.iter().map(|member| member.peer).collect();
                let sum = counts.iter().map(|member| member.count).try_fold(0, u64::checked_add);
                match parts {
                    _ if peers.len() != counts.len() => bad("peers that are named twice", peers.len() as u64),
                    [part] if sum == Some(part.count) => Ok(()),
                    [part] => bad("count of elements that are split", part.count),
                    _ => bad("tensors that are split by given counts", parts.len() as u64),
                }
            }
        }
    }

    /// Why the members of this ring cannot carry it out, if they cannot.
    pub fn misfit(&self, ring: &[PeerId]) -> Option<Misfit> {
        let (members, kind) = (ring.len(), self.kind());
        if let Some(root) = self.root().filter(|root| !ring.contains(root)) {
            let text = format!("the root of the {kind}, {root}, is no member of the group");
            return Some(Misfit { missing: vec![root], text });
        }
        match self.split()? {
            Split::Equal(ranks) => (*ranks as usize != members).then(|| {
                let text = format!("the {kind} was called for {ranks} peers, and the group has {members}");
                Misfit { missing: Vec::new(), text }
            }),
            Split::Members(counts) => {
                let is_named = |peer: &PeerId| counts.iter().any(|member| member.peer == *peer);
                let named = counts.iter().map(|member| member.peer);
                let missing: Vec<PeerId> = named.filter(|peer| !ring.contains(peer)).collect();
                let text = if let Some(peer) = missing.first() {
                    format!("the {kind} has a count for {peer}, which is no member of the group")
                } else if let Some(peer) = ring.iter().find(|peer| !is_named(peer)) {
                    format!("the {kind} has no count for {peer}, which is a member of the group")
                } else if counts.iter().zip(ring).any(|(member, peer)| member.peer != *peer) {
                    format!("the {kind} has its counts in another order than that of the ranks")
                } else {
                    return None;
                };
                Some(Misfit { missing, text })
            }
        }
    }
}

/// As a caller would say it.
impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match self.split() {
            Some(Split::Equal(ranks)) => write!(f, " of {ranks} equal parts")?,
            Some(Split::Members(counts)) => {
                let counts: Vec<String> =
                    counts.iter().map(|member| format!("{} of {}", member.count, member.peer)).collect();
                write!(f, " of parts of {} elements", counts.join(", "))?;
            }
            None => {}
        }
        match self {
            Self::Broadcast(root) | Self::Scatter(Rooted { root, .. }) => write!(f, " from {root}"),
            Self::Reduce(root) | Self::Gather(Rooted { root, .. }) => write!(f, " to {root}"),
            Self::AllToAll(Blocks { digest: digest @ 1.., .. }) => write!(f, ", counts {digest:016x}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Descriptor};
    use pccl_quant::DataType;
    use tinysockets::wire::{Encode, decode_exact};

    const RING: [PeerId; 3] = [PeerId(1 << 96), PeerId(2 << 96), PeerId(3 << 96)];

    fn decodes(collective: Collective, counts: &[u64], op: ReduceOp) -> Result<(), String> {
        let part = |count: &u64| PartDescriptor::new(*count, DataType::Float32, op);
        let parts = counts.iter().map(part).collect();
        let descriptor = Descriptor { collective, ..Descriptor::all_reduce(parts, Algorithm::Automatic) };
        let mut bytes = Vec::new();
        descriptor.encode(&mut bytes);
        let decoded = decode_exact::<Descriptor>(&bytes).map_err(|error| error.to_string())?;
        assert_eq!(decoded, descriptor);
        Ok(())
    }

    fn members(counts: &[(PeerId, u64)]) -> Collective {
        let counts = counts.iter().map(|(peer, count)| MemberCount { peer: *peer, count: *count });
        Collective::AllGather(Split::Members(counts.collect()))
    }

    #[test]
    fn what_cannot_be_carried_out_by_anybody_is_not_decoded() {
        let equal = |ranks| Collective::AllGather(Split::Equal(ranks));
        assert_eq!(decodes(equal(3), &[6, 0, 9], ReduceOp::Sum), Ok(()));
        assert!(decodes(equal(3), &[6, 7], ReduceOp::Sum).unwrap_err().contains("split equally"));
        assert!(decodes(equal(0), &[6], ReduceOp::Sum).unwrap_err().contains("number of ranks"));
        assert!(decodes(equal(3), &[6], ReduceOp::Max).unwrap_err().contains("reduction"));
        let [a, b, _] = RING;
        assert_eq!(decodes(members(&[(b, 5), (a, 0)]), &[5], ReduceOp::Sum), Ok(()));
        assert!(decodes(members(&[(b, 5), (a, 1)]), &[5], ReduceOp::Sum).unwrap_err().contains("split"));
        assert!(decodes(members(&[(b, 2), (b, 3)]), &[5], ReduceOp::Sum).unwrap_err().contains("twice"));
        assert!(decodes(members(&[(b, 5), (a, 1)]), &[5, 1], ReduceOp::Sum).unwrap_err().contains("tensors"));
        let blocks = |ranks| Collective::AllToAll(Blocks { split: Split::Equal(ranks), digest: 0 });
        assert_eq!(decodes(blocks(3), &[18], ReduceOp::Sum), Ok(()));
        assert!(decodes(blocks(3), &[6], ReduceOp::Sum).unwrap_err().contains("split equally"));
        assert!(decodes(blocks(3), &[9, 9], ReduceOp::Sum).unwrap_err().contains("tensors"));
        let overflow = [(a, u64::MAX), (b, 1)];
        assert!(decodes(members(&overflow), &[0], ReduceOp::Sum).unwrap_err().contains("split"));
    }

    #[test]
    fn who_is_missing_is_named() {
        let gone = PeerId(9 << 96);
        let misfit = |collective: Collective| collective.misfit(&RING);
        assert_eq!(misfit(Collective::AllReduce(Nothing {})), None);
        assert_eq!(misfit(Collective::Broadcast(RING[2])), None);
        let root = misfit(Collective::Reduce(gone)).unwrap();
        assert_eq!(root.missing, [gone]);
        assert_eq!(root.text, "the root of the reduce, 00000009, is no member of the group");
        let gather = |root| Collective::Gather(Rooted { root, split: Split::Equal(3) });
        let lost = misfit(gather(gone)).unwrap();
        assert_eq!(lost.text, "the root of the gather, 00000009, is no member of the group");
        assert_eq!(misfit(gather(RING[1])), None);
        assert_eq!(gather(RING[1]).to_string(), "gather of 3 equal parts to 00000002");
        assert_eq!(misfit(Collective::AllGather(Split::Equal(3))), None);
        let four = misfit(Collective::AllGather(Split::Equal(4))).unwrap();
        assert_eq!(four.text, "the all-gather was called for 4 peers, and the group has 3");
        let all = [(RING[0], 2), (RING[1], 1), (RING[2], 3)];
        assert_eq!(misfit(members(&all)), None);
        let turned = misfit(members(&[all[1], all[0], all[2]])).unwrap();
        assert_eq!(turned.text, "the all-gather has its counts in another order than that of the ranks");
        let few = misfit(members(&all[..2])).unwrap();
        assert_eq!(few.text, "the all-gather has no count for 00000003, which is a member of the group");
        let other = misfit(members(&[all[0], (gone, 7), all[2]])).unwrap();
        assert_eq!(other.missing, [gone]);
    }
}
