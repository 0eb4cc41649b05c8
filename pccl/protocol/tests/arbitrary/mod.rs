//! Strategies for arbitrary values of every packet. Each struct is listed with all of its fields, so a new field does
//! not compile until it is listed here.
#![allow(dead_code, reason = "each test binary uses its own part")]

use pccl_hash::Digest128;
use pccl_protocol::*;
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{self, Block, Quantisation, Scheme},
};
use proptest::{
    collection::vec,
    option,
    prelude::{BoxedStrategy, Strategy, any},
    sample::select,
    strategy::Union,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tinysockets::{key::SecretKey, wire::ListItem};

/// A type with arbitrary values.
pub(crate) trait Arb: Sized + std::fmt::Debug {
    fn arb() -> BoxedStrategy<Self>;
}

/// Arbitrary values of the type that the context asks for.
pub(crate) fn arb<T: Arb>() -> BoxedStrategy<T> {
    T::arb()
}

/// A union of packets or bodies: one strategy per variant.
pub(crate) trait ArbVariants: Sized {
    fn variants() -> Vec<BoxedStrategy<Self>>;
}

macro_rules! arb_plain {
    ($($ty:ty),*) => {$(
        impl Arb for $ty {
            fn arb() -> BoxedStrategy<Self> { any::<$ty>().boxed() }
        }
    )*};
}

macro_rules! arb_id {
    ($($name:ident),*) => {$(
        impl Arb for $name {
            fn arb() -> BoxedStrategy<Self> { arb().prop_map($name).boxed() }
        }
    )*};
}

macro_rules! arb_code {
    ($($name:ident),*) => {$(
        impl Arb for $name {
            fn arb() -> BoxedStrategy<Self> { select($name::ALL).boxed() }
        }
    )*};
}

macro_rules! arb_text {
    ($($name:ident up to $max:expr),*) => {$(
        impl Arb for $name {
            fn arb() -> BoxedStrategy<Self> {
                // Short ones mostly, and some that fill their kind.
                let chars = Union::new_weighted(vec![
                    (8, vec(any::<char>(), 0..12).boxed()),
                    (1, vec(any::<char>(), $max / 4..$max).boxed()),
                ]);
                chars.prop_map(|chars| $name::new(chars.into_iter().collect::<String>())).boxed()
            }
        }
    )*};
}

macro_rules! arb_struct {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Arb for $name {
            fn arb() -> BoxedStrategy<Self> {
                ($(arb_struct!(@arb $field),)*).prop_map(|($($field,)*)| $name { $($field),* }).boxed()
            }
        }
    )*};
    (@arb $field:ident) => { arb() };
}

macro_rules! arb_variants {
    ($($name:ident { $($variant:ident),* })*) => {$(
        impl ArbVariants for $name {
            fn variants() -> Vec<BoxedStrategy<Self>> {
                vec![$(arb().prop_map($name::$variant).boxed()),*]
            }
        }
        impl Arb for $name {
            fn arb() -> BoxedStrategy<Self> { Union::new(Self::variants()).boxed() }
        }
    )*};
}

macro_rules! arb_union {
    ($($name:ident { $($variant:ident),* })*) => {$(
        arb_variants! { $name { $($variant),* } }
        // Does not compile while a variant is missing from the list.
        const _: fn(&$name) = |value| match value { $($name::$variant(_) => {}),* };
    )*};
}

arb_plain!(bool, u8, u16, u32, u64, u128);
arb_id!(
    RunId,
    GroupId,
    WorldEpoch,
    GroupEpoch,
    LinkGeneration,
    SyncId,
    Revision,
    RequestId,
    Term,
    CopyId,
    PeerId,
    GroupUuid,
    Digest128
);
arb_code!(
    WireMode,
    CollectiveKind,
    Algorithm,
    OpFaultKind,
    KickCode,
    SyncStrategy,
    SourceFault,
    Cause,
    Phase,
    JournalStage,
    PeerStage,
    Purpose,
    TicketRole
);
arb_text!(Text up to limits::MAX_TEXT_BYTES, Host up to limits::MAX_HOST_BYTES, Key up to limits::MAX_KEY_BYTES);

impl Arb for FigureName {
    fn arb() -> BoxedStrategy<Self> {
        let chars = vec(any::<char>(), 0..limits::MAX_FIGURE_NAME_BYTES);
        chars.prop_map(|chars| Self::new(chars.into_iter().collect::<String>())).boxed()
    }
}

impl Arb for Name {
    fn arb() -> BoxedStrategy<Self> {
        let chars = vec(any::<char>(), 0..limits::MAX_NAME_BYTES);
        chars.prop_map(|chars| Self::new(chars.into_iter().collect::<String>())).boxed()
    }
}

impl Arb for [u8; 16] {
    fn arb() -> BoxedStrategy<Self> {
        any::<[u8; 16]>().boxed()
    }
}

impl Arb for Padding {
    fn arb() -> BoxedStrategy<Self> {
        (0..=limits::MAX_PADDING_BYTES as u16).prop_map(Padding).boxed()
    }
}

impl Arb for Append {
    fn arb() -> BoxedStrategy<Self> {
        vec(any::<u8>(), 0..40).prop_map(Self).boxed()
    }
}

impl Arb for SecretKey {
    fn arb() -> BoxedStrategy<Self> {
        any::<[u8; 32]>().prop_map(Self::from_bytes).boxed()
    }
}

impl Arb for Nothing {
    fn arb() -> BoxedStrategy<Self> {
        proptest::strategy::Just(Self {}).boxed()
    }
}

impl Arb for DataType {
    fn arb() -> BoxedStrategy<Self> {
        select((0..=u8::MAX).filter_map(Self::from_code).collect::<Vec<_>>()).boxed()
    }
}

impl Arb for ReduceOp {
    fn arb() -> BoxedStrategy<Self> {
        select((0..=u8::MAX).filter_map(Self::from_code).collect::<Vec<_>>()).boxed()
    }
}

impl Arb for CallKind {
    fn arb() -> BoxedStrategy<Self> {
        select(Self::all().collect::<Vec<_>>()).boxed()
    }
}

impl Arb for Descriptor {
    /// Only such as can be carried out: the tensors are made to fit the collective.
    fn arb() -> BoxedStrategy<Self> {
        let how = (Algorithm::arb(), Finite::arb(), Option::<Cut>::arb(), (bool::arb(), bool::arb()));
        let all = (Collective::arb(), Vec::<PartDescriptor>::arb(), how);
        let fitted = all.prop_map(|(mut collective, mut parts, (algorithm, finite, cut, knowledge))| {
            let (knew_ring, by_rank) = knowledge;
            let kind = collective.kind();
            let split = match &mut collective {
                Collective::AllGather(split) | Collective::ReduceScatter(split) => Some(split),
                Collective::Gather(rooted) | Collective::Scatter(rooted) => Some(&mut rooted.split),
                Collective::AllToAll(blocks) => Some(&mut blocks.split),
                _ => None,
            };
            if kind.only_moves() {
                parts.resize(1, PartDescriptor::new(0, DataType::Float64, ReduceOp::Sum));
                parts[0].quantisation = None;
            }
            if let Some(split) = split {
                match split {
                    Split::Equal(ranks) => {
                        *ranks = (*ranks).max(1);
                        let ranks = u64::from(*ranks);
                        let equal = if kind == CollectiveKind::AllToAll { ranks * ranks } else { ranks };
                        parts.iter_mut().for_each(|part| part.count -= part.count % equal);
                    }
                    Split::Members(counts) => {
                        counts.sort_by_key(|member| member.peer);
                        counts.dedup_by_key(|member| member.peer);
                        counts.iter_mut().for_each(|member| member.count >>= 8);
                        let count = counts.iter().map(|member| member.count).sum();
                        parts = vec![PartDescriptor::new(count, DataType::Float64, ReduceOp::Sum)];
                    }
                }
            }
            if collective.kind() == CollectiveKind::Barrier {
                parts.clear();
            }
            if !collective.kind().folds() {
                parts.iter_mut().for_each(|part| part.op = ReduceOp::Sum);
            }
            let cut = cut.filter(|_| collective.kind() == CollectiveKind::AllReduce);
            parts.truncate(if cut.is_some() { 1 } else { usize::MAX });
            let cut = cut.filter(|_| parts.len() == 1);
            Self { collective, parts, algorithm, finite, cut, knew_ring, by_rank }
        });
        fitted.boxed()
    }
}

impl Arb for Tag {
    fn arb() -> BoxedStrategy<Self> {
        let all = (u64::arb(), Option::<Pair>::arb(), 0..limits::TRACKS);
        let tag = |(number, pair, track): (u64, Option<Pair>, u8)| {
            let track = if pair.is_some() { 0 } else { track };
            Self { number, pair, track }
        };
        all.prop_map(tag).boxed()
    }
}

impl Arb for Quantisation {
    fn arb() -> BoxedStrategy<Self> {
        let parameters: Vec<u16> = (0..12).chain(Block::ALL.map(|block| block as u16)).collect();
        let schemes: Vec<Scheme> = quantise::Algorithm::ALL
            .into_iter()
            .flat_map(|algorithm| parameters.iter().filter_map(move |p| Scheme::of(algorithm, *p)))
            .collect();
        (select(schemes), Option::<u64>::arb())
            .prop_map(|(scheme, seed)| {
                seed.map_or(Self::new(scheme), |seed| Self::new(scheme).stochastic(seed))
            })
            .boxed()
    }
}

impl<T: Arb + Clone + 'static> Arb for Option<T> {
    fn arb() -> BoxedStrategy<Self> {
        option::of(T::arb()).boxed()
    }
}

impl<T: Arb + ListItem + 'static> Arb for Vec<T> {
    fn arb() -> BoxedStrategy<Self> {
        vec(T::arb(), 0..=T::MAX_ITEMS.min(4)).boxed()
    }
}

arb_struct! {
    OpId { epoch, tag, attempt }
    Pair { from, to }
    Hosts { host, others }
    ResumeOffer { revision, digest }
    FormGroup { request, uuid, members }
    GroupFormed { request, sizes }
    FormFailed { request, verdict }
    PreviousIdentity { run, peer, proof }
    Beat { sequence, call, call_ms, limited, operation, moved_bytes, stalled, sent, received, busy, fetch, figures }
    Figure { name, bits }
    FetchProgress { done_bytes, total_bytes, rate, sources }
    EdgeBytes { peer, generation, bytes }
    StalledEdge { to, generation, stalled_ms, idle_ms, segment_bytes }
    BusyEdge { from, generation, busy_ms }
    VoteTopology { request, wait_for_world }
    EdgeReport { epoch, up, broken }
    EdgeName { from, to, generation }
    Initiate { op, descriptor, has_begun }
    Complete { op, fault, moved_bytes }
    NotFinite { tensor, element }
    Cut { segment, segment_bytes, count }
    SyncInitiate { request, epoch, revision, strategy, entries, offered }
    SyncComplete { sync, report, failures, gave }
    SourceFailure { peer, fault, text }
    PartDescriptor { count, data_type, op, quantisation }
    MemberCount { peer, count }
    Rooted { root, split }
    Blocks { split, digest }
    CollectiveId { kind, op }
    OpFault { kind, peer, generation, text }
    Registered { run, peer, beat_interval_ms, peer_timeout_ms, wire, state_key, relay, comes_back }
    RelayOffer { port, token }
    Keys { now_ms, service_key, run }
    Ticket { to, role, epoch, generation, secret }
    Tickets { now_ms, tickets }
    TopologyDone { request, sizes }
    TopologyProgress { request, have, want, missing }
    PendingAnswer { request, pending }
    Stale { vote, epoch }
    TooFewPeers { vote, have, need, need_in_group }
    Commence { op, algorithm }
    OpOutcome { op, outcome }
    SyncPlanFor { request, plan }
    SyncOutcomeFor { request, outcome }
    Echo { sequence, blocked_on }
    StateRequest { sync, key, part }
    DigestList { level, parent }
    ProbeRound { optimization, round }
    ProbePlan { round, to, hosts, port, connections, limit_ms, crowded, back }
    ProbeRate { kbit_s, latency_us, connections }
    ProbeReport { round, to, result }
    EdgeRate { from, to, kbit_s }
    ReachTarget { peer, hosts, p2p_port, state_port }
    ReachPlan { check, limit_ms, targets }
    Unreached { peer, is_state, text }
    ReachReport { check, epoch, unreached }
    OptimizeDone {
        request, sizes, changed, slowest, bound_kbit_s, proven, unmeasured, schedule, pairwise_pct, sites_pct, note
    }
    GiveUp { vote, limit_ms }
    RatesRequest { request, group }
    Return { run, peer, proof, received, term }
    Returned { received, term, acting }
    StandBy { run, copy, advertised_host, port, acts_soon }
    Appended { turn }
    Standby { copy, hosts, port }
    Copies { term, number, acting, standbys }
    CopiesKnown { term, number }
    RunKnown { run, term, turn }
    StandsBy { acting, keeps, gives_back, process, knows, acts_soon, text }
    Claim { term, copy }
    Promise { term, refused }
    StatusJournal { stage, since_ms, text }
    StatusLead { term, acts, standbys, text, journal }
    Received { count }
    Examine { request, peer, advertised_host, addresses, p2p_port, state_port, padding }
    ExaminedPeer { target, group, name }
    Examined { request, peer, run, wire, seen, unix_us, hosts, require_reachable, unreached, peers, padding }
    VoteWithdrawn { request, missing, verdict }
    RatedPeer { peer, name }
    MeasuredEdge { from, to, kbit_s, latency_us }
    Rates { request, group, peers, edges, left_out }
    KickReason { code, detail }
    StateEntry { key, count, data_type, allow_inequality, digest }
    FetchItem { key, digest }
    StateSource { peer, hosts, port, back, relayed }
    CallMe { peer, role, index, count }
    Call { peer, hosts, port, role, index, count, relayed }
    SyncPlan { sync, revision, fetch, sources }
    Loan { sync, stands }
    AheadFailure { sync, failures }
    Culprit { peer, host, name }
    Verdict { cause, culprits, operation, phase, bytes_done, silent_ms, detail }
    WorldSizes { world_epoch, global, group, groups, largest_group, min_world }
    Member { peer, hosts, p2p_port, state_port, share, site }
    Site { number, share }
    PlanEdge { from, to, generation, connections, purpose, back, relayed, short_segments }
    Paths { mesh, one_host, pairwise, partial, sites, by_sites }
    GroupPlan { group, epoch, counted_since, sizes, members, edges, paths }
    EdgeFault { from, to, generation, forgotten, text }
    StatusGroup { group, epoch, connected, ring, revision, slowest, schedule }
    StatusWait { since_ms, text }
    RelayedPair { from, to }
    StatusRelay { port, mbit_per_s, bytes, pairs }
    Status { request, run, uptime_ms, run_keys, wire, trusted_seeders, sizes, groups, peers, waits, relay, lead }
}

impl Arb for Address {
    fn arb() -> BoxedStrategy<Self> {
        let four = u32::arb().prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits)));
        let six = u128::arb().prop_map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits)));
        Union::new([four.boxed(), six.boxed()]).prop_filter_map("not one that may be told", Self::new).boxed()
    }
}

// A tuple of strategies has at most twelve parts.
impl Arb for Register {
    fn arb() -> BoxedStrategy<Self> {
        let place = (arb(), arb(), arb(), arb(), arb(), arb());
        let what = (arb(), arb(), arb(), arb(), arb(), arb(), arb());
        (place, what)
            .prop_map(
                |((group, advertised_host, addresses, p2p_port, state_port, pool_connections), what)| {
                    let (name, previous, formed, alone, resume, outbound_only, site) = what;
                    Self {
                        group,
                        advertised_host,
                        addresses,
                        p2p_port,
                        state_port,
                        pool_connections,
                        name,
                        previous,
                        formed,
                        alone,
                        resume,
                        outbound_only,
                        site,
                    }
                },
            )
            .boxed()
    }
}

impl Arb for StatusPeer {
    fn arb() -> BoxedStrategy<Self> {
        let who = (arb(), arb(), arb(), arb(), arb(), arb());
        let what = (arb(), arb(), arb(), arb(), arb(), arb(), arb(), arb(), arb());
        (who, what)
            .prop_map(|((peer, host, name, p2p_port, state_port, group), what)| {
                let (stage, call, call_ms, silent_ms, moved_bytes, operation, fetch, outbound_only, figures) =
                    what;
                Self {
                    peer,
                    host,
                    name,
                    p2p_port,
                    state_port,
                    group,
                    stage,
                    call,
                    call_ms,
                    silent_ms,
                    moved_bytes,
                    operation,
                    fetch,
                    outbound_only,
                    figures,
                }
            })
            .boxed()
    }
}

// An enum that may grow: `round_trip` counts its variants.
arb_variants! {
    Operation { Collective, Sync, Forming, Call }
}

arb_union! {
    C2m {
        Register, Beat, VoteTopology, WithdrawVote, VotePending, EdgeReport, Initiate, Complete,
        SyncInitiate, SyncComplete, Leave, StatusRequest, VoteOptimize, ProbeReport, GiveUp,
        RatesRequest, ReachReport, FormGroup, Loan, Ahead, Examine, Return, Received, CallMe,
        StandBy, Appended, CopiesKnown, Promise
    }
    M2c {
        Registered, Kicked, GroupPlan, Sizes, Admitted, TopologyDone, TopologyProgress, PendingAnswer, Stale,
        TooFewPeers, Commence, Outcome, SyncPlan, SyncOutcome, Echo, Goodbye, Status, VoteWithdrawn,
        ProbePlan, OptimizeDone, Rates, ReachPlan, Warning, GroupFormed, FormFailed, StateAhead, Examined,
        Keys, Tickets, Returned, Received, Call, Append, Copies, StandsBy, Claim
    }
    P2p { StateRequest, StateAnswer }
    Outcome { Done, Aborted }
    VoteRef { Collective, Sync, Forming }
    MemberRef { Peer, Name }
    Collective {
        AllReduce, Broadcast, AllGather, ReduceScatter, Reduce, Barrier, SendRecv, Gather, Scatter, AllToAll
    }
    Split { Equal, Members }
    SyncReport { Ready, Failed }
    Finite { NotAsked, All, Not }
    AheadStep { Wanted, Holds, Failed, GivenUp }
    ProbeResult { Measured, Failed }
    SyncOutcome { Committed, Failed }
    StateAnswer { Bytes, NotServing, UnknownKey, UnknownPart }
    StatePart { Digests, Mebibyte }
}

/// The packets of one direction, so that one test serves all of them.
pub(crate) trait Packets: ArbVariants + Arb + Clone + PartialEq + 'static {
    const DIRECTION: &'static str;
    const ALL_KINDS: &'static [u16];
    fn kind_of(&self) -> u16;
    fn frame(&self) -> Vec<u8>;
    fn parse(kind: u16, body: &[u8]) -> Result<Self, WireError>;
}

macro_rules! packets {
    ($($name:ident = $direction:literal),*) => {$(
        impl Packets for $name {
            const DIRECTION: &'static str = $direction;
            const ALL_KINDS: &'static [u16] = $name::KINDS;
            fn kind_of(&self) -> u16 { self.kind() }
            fn frame(&self) -> Vec<u8> { self.to_frame() }
            fn parse(kind: u16, body: &[u8]) -> Result<Self, WireError> { $name::from_frame(kind, body) }
        }
    )*};
}

packets!(C2m = "c2m", M2c = "m2c", P2p = "p2p");
