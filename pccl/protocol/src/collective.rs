//! The parts of a collective: its descriptor, its algorithm, its result.

use crate::{Collective, CollectiveKind, Nothing, OpId, PartDescriptor, Paths, Verdict, limits};
use std::fmt;
use tinysockets::wire::{Decode, Encode, Reader, WireError};

/// The descriptor that travels with a vote to begin a collective. All votes of one attempt must be equal, but for what
/// the voter says of itself: whether its contribution [is finite](Finite), whether it knew the ring, and whether it
/// named a peer by its rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The collective that is done.
    pub collective: Collective,
    /// The tensors, in the caller's order. Of a collective that reduces nothing the reduction is `Sum`.
    pub parts: Vec<PartDescriptor>,
    /// Caller's choice of the algorithm: [`Algorithm::Ring`], [`Algorithm::Pairwise`], [`Algorithm::Sites`], or
    /// [`Algorithm::Automatic`], which leaves it to the master.
    pub algorithm: Algorithm,
    /// Whether contributions have to be finite, which all votes say alike, and whether that of the voter is.
    pub finite: Finite,
    /// Which segment it is of a call that has several.
    pub cut: Option<Cut>,
    /// Whether the voter knew the ring of this attempt when it made the call. One that did not may have taken its
    /// arguments, the root for instance, from another one: then it is no mistake if they differ from those of others.
    pub knew_ring: bool,
    /// Whether the caller has named a peer by its rank. A rank means a member of the world that the caller knew: if
    /// that is not the ring of this attempt, nothing is done.
    pub by_rank: bool,
}

impl Encode for Descriptor {
    fn encode(&self, out: &mut Vec<u8>) {
        self.collective.encode(out);
        self.parts.encode(out);
        self.algorithm.encode(out);
        self.finite.encode(out);
        self.cut.encode(out);
        self.knew_ring.encode(out);
        self.by_rank.encode(out);
    }
}

impl Decode for Descriptor {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let collective = Collective::decode(reader)?;
        let (parts, algorithm) = (Vec::decode(reader)?, Algorithm::decode(reader)?);
        let (finite, cut) = (Finite::decode(reader)?, Option::<Cut>::decode(reader)?);
        let (knew_ring, by_rank) = (bool::decode(reader)?, bool::decode(reader)?);
        collective.check(&parts)?;
        if cut.is_some() && (collective.kind() != CollectiveKind::AllReduce || parts.len() != 1) {
            let what = "code of a collective that is a segment";
            return Err(WireError::BadValue { what, value: collective.kind().code().into() });
        }
        Ok(Self { collective, parts, algorithm, finite, cut, knew_ring, by_rank })
    }
}

serialized_as_wire!(Descriptor);

impl Descriptor {
    /// An all-reduce of these tensors.
    pub const fn all_reduce(parts: Vec<PartDescriptor>, algorithm: Algorithm) -> Self {
        let (collective, finite) = (Collective::AllReduce(Nothing {}), Finite::NotAsked(Nothing {}));
        Self { collective, parts, algorithm, finite, cut: None, knew_ring: true, by_rank: false }
    }

    /// The kind of collective.
    pub const fn kind(&self) -> CollectiveKind {
        self.collective.kind()
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        let part_bytes =
            |part: &PartDescriptor| part.count.saturating_mul(part.data_type.size_bytes() as u64);
        self.parts.iter().map(part_bytes).fold(0, u64::saturating_add)
    }

    /// Most bytes that one of `ranks` peers moves for this, sent and received together.
    pub fn moved_bytes_max(&self, ranks: usize) -> u64 {
        // In both halves of the ring each byte but the own chunk is sent once and received once. In pairwise exchange
        // who owns a byte gets it from all others and sends it to them, and somebody may own all.
        let passes = if ranks <= limits::MAX_MESH_RANKS { 2 * (ranks as u64).saturating_sub(1) } else { 0 };
        match self.algorithm_for(ranks, Paths::default()) {
            Algorithm::AllGather | Algorithm::Direct | Algorithm::ReduceBroadcast => {
                self.bytes().saturating_mul(2 * (ranks as u64 - 1))
            }
            Algorithm::Automatic | Algorithm::Ring | Algorithm::Pairwise | Algorithm::Sites => {
                let bytes = self.parts.iter().map(PartDescriptor::most_bytes).fold(0, u64::saturating_add);
                bytes.saturating_mul(passes.max(4))
            }
        }
    }

    /// The algorithm by which `ranks` peers do this in an epoch with these `paths`: known to each of them when it
    /// votes, and to the master.
    pub fn algorithm_for(&self, ranks: usize, paths: Paths) -> Algorithm {
        let bytes = self.bytes();
        // Partial sums are what is quantised, and there are none where all contributions go to all.
        let is_small = bytes.saturating_mul(ranks as u64) <= limits::MAX_ALL_GATHER_BYTES
            && self.parts.iter().all(|part| part.quantisation.is_none());
        match self.kind() {
            CollectiveKind::AllReduce => {}
            // There is one way from one member to another.
            CollectiveKind::SendRecv => return Algorithm::Ring,
            _ => return self.algorithm_of_others(ranks, paths),
        }
        let can_be_pairwise = self.can_be_pairwise(ranks);
        // A tensor that cannot be cut has its owner by rank, whatever the shares.
        let has_owners = !paths.partial || self.parts.iter().all(|part| part.quantisation.is_none());
        let pairwise = if paths.mesh && has_owners { Algorithm::Pairwise } else { Algorithm::Ring };
        let can_cross = can_be_pairwise && paths.mesh && paths.sites && !paths.partial;
        match self.algorithm {
            Algorithm::Ring => Algorithm::Ring,
            Algorithm::Sites if can_cross => Algorithm::Sites,
            Algorithm::Pairwise if can_be_pairwise => pairwise,
            _ if ranks > 1 && bytes > 0 && is_small => match paths {
                Paths { mesh: false, .. } | Paths { partial: true, .. } => Algorithm::AllGather,
                // Where peers share processors, few messages are what counts; else it is few hops.
                Paths { one_host: true, .. } => Algorithm::ReduceBroadcast,
                Paths { one_host: false, .. } => Algorithm::Direct,
            },
            _ if paths.by_sites && can_cross => Algorithm::Sites,
            _ if paths.pairwise && can_be_pairwise => pairwise,
            _ => Algorithm::Ring,
        }
    }

    /// Over the mesh a small collective has one hop, and so has what only moves, of any size. A large one that has one
    /// root goes along a chain, so that the root sends it once only.
    fn algorithm_of_others(&self, ranks: usize, paths: Paths) -> Algorithm {
        let goes_straight = self.bytes() <= limits::MAX_ALL_GATHER_BYTES || self.kind().only_moves();
        let wants = match self.algorithm {
            Algorithm::Ring => false,
            Algorithm::Pairwise => true,
            _ => goes_straight || paths.pairwise && self.collective.split().is_some(),
        };
        // Any rank may have something for all others.
        if wants && paths.mesh && !paths.partial && self.can_be_pairwise(ranks) {
            Algorithm::Pairwise
        } else {
            Algorithm::Ring
        }
    }

    /// Whether the caller has asked for the mesh by name, and `ranks` peers can have one.
    pub fn asks_for_mesh(&self, ranks: usize) -> bool {
        let by_name = match self.algorithm {
            Algorithm::Pairwise => true,
            Algorithm::Sites => self.kind() == CollectiveKind::AllReduce,
            _ => false,
        };
        by_name && self.can_be_pairwise(ranks)
    }

    fn can_be_pairwise(&self, ranks: usize) -> bool {
        // Over the mesh an owner quantises what it has folded, and an owner that alone keeps that should not lose by
        // it.
        let is_lossy = self.parts.iter().any(|part| part.quantisation.is_some());
        let kind = self.kind();
        let stays = matches!(kind, CollectiveKind::Reduce | CollectiveKind::ReduceScatter);
        (3..=limits::MAX_MESH_RANKS).contains(&ranks)
            && self.bytes() > 0
            && !(stays && is_lossy)
            && kind != CollectiveKind::SendRecv
    }

    /// Names the first difference between two descriptors, for the verdict of a mismatch: how this one was called,
    /// and how the other one was.
    pub fn difference(&self, other: &Self) -> Option<(String, String)> {
        if self.collective != other.collective {
            return Some((format!("as {}", self.collective), format!("as {}", other.collective)));
        }
        if self.cut != other.cut {
            let text = |cut: &Option<Cut>| cut.map_or("as a whole".to_owned(), |cut| format!("with {cut}"));
            return Some((text(&self.cut), text(&other.cut)));
        }
        if self.parts.len() != other.parts.len() {
            let tensors = |count| format!("with {count} tensors");
            return Some((tensors(self.parts.len()), tensors(other.parts.len())));
        }
        if self.algorithm != other.algorithm {
            let algorithm = |algorithm| format!("with algorithm {algorithm}");
            return Some((algorithm(self.algorithm), algorithm(other.algorithm)));
        }
        if self.finite.is_asked() != other.finite.is_asked() {
            let text = |finite: &Finite| match finite.is_asked() {
                true => "refusing contributions that are not finite".to_owned(),
                false => "with any contributions".to_owned(),
            };
            return Some((text(&self.finite), text(&other.finite)));
        }
        let (index, (a, b)) = self.parts.iter().zip(&other.parts).enumerate().find(|(_, (a, b))| a != b)?;
        Some((format!("with tensor {index}: {a}"), format!("with tensor {index}: {b}")))
    }
}

wire_union! {
    /// The statement of a voter about the values that it contributes. Nobody else looks at them: a peer with the key of
    /// the run is trusted for its values.
    #[derive(Copy)]
    pub enum Finite {
        /// They may be anything, and nobody has looked.
        NotAsked(Nothing) = 0,
        /// They have to be finite, and are.
        All(Nothing) = 1,
        /// They have to be finite, and one of them is not.
        Not(NotFinite) = 2,
    }
}

wire_struct! {
    /// The first value that is NaN or an infinity.
    #[derive(Copy)]
    pub struct NotFinite {
        /// Number of the tensor.
        pub tensor: u32,
        /// Number of the element in it.
        pub element: u64,
    }
}

wire_struct! {
    /// The cut that a segment is a part of. A segment is an operation like any other; this is in its descriptor so that
    /// votes for different segments, and for tensors that are cut in different ways, do not match.
    #[derive(Copy)]
    pub struct Cut {
        /// Number of the segment, from 1. 0 is an operation without elements, before the segments of a tensor that has
        /// several: whether all cut alike shows by that.
        pub segment: u32,
        /// Most bytes of a segment, as the caller has given it.
        pub segment_bytes: u64,
        /// Elements of the whole tensor.
        pub count: u64,
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, segment_bytes, count } = self;
        write!(f, "segment {segment} of {count} elements in segments of {segment_bytes} bytes")
    }
}

impl Finite {
    /// Whether contributions have to be finite.
    pub const fn is_asked(self) -> bool {
        !matches!(self, Self::NotAsked(_))
    }
}

wire_code! {
    /// How the data of a collective travels.
    #[non_exhaustive]
    pub enum Algorithm {
        /// The master chooses.
        Automatic = 0 => "automatic",
        /// Pipelined ring: reduce-scatter, then gather.
        Ring = 1 => "ring",
        /// Every rank gets all contributions around the ring and folds them itself: half the hops, more bytes. For
        /// small operations.
        AllGather = 2 => "all-gather",
        /// As [`Algorithm::AllGather`], over the mesh: every rank sends to every other. For small operations, where all
        /// members are connected directly.
        Direct = 3 => "direct",
        /// Over the mesh: rank 0 gets all contributions, folds them, and sends the result to all. One hop more than
        /// [`Algorithm::Direct`] for fewer messages, which is less work where all peers share one host.
        ReduceBroadcast = 4 => "reduce-broadcast",
        /// Over the mesh: every rank sends each chunk to the rank that owns it, which folds the contributions and sends
        /// the result to all. As many bytes as around the ring, over all edges at once. For large operations.
        Pairwise = 5 => "pairwise",
        /// Over the mesh, in two levels: each chunk has an owner in every site, who folds what its site contributes,
        /// and one of them folds what the sites do. The result goes back the same way, so that each byte crosses
        /// between two sites once. For large operations.
        Sites = 6 => "sites",
    }
}

impl Algorithm {
    /// How large operations go that this carries out.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Pairwise => "by pairwise exchange",
            Self::Sites => "in two levels over sites",
            _ => "around the ring",
        }
    }

    /// Whether it is for large operations, which show how fast edges are.
    pub const fn is_for_large(self) -> bool {
        matches!(self, Self::Ring | Self::Pairwise | Self::Sites)
    }

    /// Whether data goes over the mesh.
    pub const fn uses_mesh(self) -> bool {
        matches!(self, Self::Direct | Self::ReduceBroadcast | Self::Pairwise | Self::Sites)
    }
}

wire_struct! {
    /// A fault that a peer met in a collective.
    pub struct OpFault {
        /// The kind of the fault.
        pub kind: OpFaultKind,
        /// The other end of the edge, if an edge is at fault.
        pub peer: Option<crate::PeerId>,
        /// Generation of that edge.
        pub generation: crate::LinkGeneration,
        /// Details.
        pub text: crate::Text,
    }
}

wire_code! {
    /// Kinds of faults in a collective.
    pub enum OpFaultKind {
        /// The connection from the previous peer of the ring broke.
        InboundLost = 1 => "connection from the previous peer lost",
        /// The connection to the next peer of the ring broke.
        OutboundLost = 2 => "connection to the next peer lost",
        /// A frame arrived with a wrong checksum.
        Corrupt = 3 => "corrupt frame",
        /// The previous peer sent what the plan does not contain.
        Violation = 4 => "frame outside the plan",
        /// Anything else that stopped this peer.
        Local = 5 => "local failure",
    }
}

wire_union! {
    /// How one attempt of a collective ended. Decided once by the master, the same for all.
    pub enum Outcome {
        /// Every participant holds the result.
        Done(crate::Nothing) = 0,
        /// Nobody may use the result; buffers are restored.
        Aborted(Verdict) = 1,
    }
}

impl OpId {
    /// The identity of the next attempt of the same tag in the same epoch.
    pub const fn next_attempt(self) -> Self {
        Self { attempt: self.attempt + 1, ..self }
    }
}
