//! Packets that no delay can explain, and limits.

use super::harness::{Rig, broken, descriptor, register};
use super::sync::{entry, vote};
use crate::state::{ClientKey, Input};
use pccl_protocol::*;

/// One packet of every kind.
fn every_packet(rig: &Rig) -> Vec<C2m> {
    let epoch = rig.epoch(1);
    let op = OpId { epoch, tag: 1.into(), attempt: 0 };
    let me = rig.peers[&1];
    vec![
        C2m::Register(register(0)),
        C2m::Beat(Beat::default()),
        C2m::VoteTopology(VoteTopology { request: RequestId(1), wait_for_world: 0 }),
        C2m::WithdrawVote(RequestId(1)),
        C2m::VotePending(RequestId(1)),
        C2m::EdgeReport(EdgeReport { epoch, up: vec![], broken: vec![] }),
        C2m::Initiate(Initiate { op, descriptor: descriptor(1), has_begun: false }),
        C2m::Complete(Complete { op, fault: None, moved_bytes: 0 }),
        C2m::SyncInitiate(vote(epoch, 0, SyncStrategy::EnforcePopular, vec![entry("a", 1)])),
        C2m::SyncComplete(SyncComplete {
            sync: SyncId(0),
            report: SyncReport::Ready(Nothing {}),
            failures: vec![],
            gave: vec![],
        }),
        C2m::Leave(Nothing {}),
        C2m::StatusRequest(RequestId(1)),
        C2m::VoteOptimize(RequestId(1)),
        C2m::ProbeReport(ProbeReport {
            round: ProbeRound::default(),
            to: me,
            result: ProbeResult::Failed(Text::default()),
        }),
        C2m::GiveUp(GiveUp { vote: VoteRef::Collective(op), limit_ms: Some(1) }),
        C2m::RatesRequest(RatesRequest { request: RequestId(1), group: None }),
        C2m::FormGroup(FormGroup { request: RequestId(1), uuid: GroupUuid(1), members: vec![] }),
        C2m::ReachReport(ReachReport { check: 0, epoch, unreached: vec![] }),
        C2m::Loan(Loan { sync: SyncId(0), stands: true }),
        C2m::Ahead(AheadStep::Wanted(Nothing {})),
        C2m::CallMe(CallMe { peer: me, role: TicketRole::StateBack, index: 0, count: 1 }),
        C2m::Examine(Examine {
            request: RequestId(1),
            peer: PeerId(99),
            advertised_host: None,
            addresses: Vec::new(),
            p2p_port: 1,
            state_port: 2,
            padding: Padding(3),
        }),
        // The caller of the machine deals with these.
        C2m::Return(Return { run: RunId(1), peer: me, proof: None, received: 0, term: Term(0) }),
        C2m::Received(Received { count: 0 }),
        C2m::StandBy(StandBy {
            run: RunId(1),
            copy: CopyId(1),
            advertised_host: None,
            port: 1,
            acts_soon: false,
        }),
        C2m::Appended(Appended { turn: 1 }),
        C2m::CopiesKnown(CopiesKnown { term: Term(0), number: 1 }),
        C2m::Promise(Promise { term: Term(1), refused: None }),
    ]
}

#[test]
fn what_each_client_may_send() {
    // Kinds that are legal for: a stranger, a pending peer, a connecting one, an accepted idle one.
    let legal: [(&str, &[u16]); 4] = [
        ("stranger", &[1, 13, 18, 30]),
        ("pending", &[2, 12, 13, 18, 22, 33]),
        ("connecting", &[2, 6, 12, 13, 18, 19, 22, 33]),
        ("accepted", &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 22, 33]),
    ];
    for (who, kinds) in legal {
        for kind in C2m::KINDS {
            let mut rig = Rig::world(1);
            let n = match who {
                "stranger" => {
                    rig.connect(2);
                    2
                }
                "accepted" => 1,
                _ => {
                    rig.register(2, 0);
                    if who == "connecting" {
                        rig.vote_topology(1, 1, 0);
                    }
                    2
                }
            };
            let packet = every_packet(&rig).into_iter().find(|p| p.kind() == *kind).expect("covered");
            let name = packet.name();
            rig.send(n, packet);
            let kicked =
                rig.take(n).iter().any(|p| matches!(p, M2c::Kicked(r) if r.code == KickCode::Protocol));
            assert_eq!(kicked, !kinds.contains(kind), "{name} from a {who} client");
            assert_eq!(rig.closed.contains(&n), kicked || *kind == 12);
        }
    }
}

#[test]
fn one_vote_at_a_time() {
    type Step = fn(&mut Rig);
    let topology: Step = |rig| rig.vote_topology(1, 1, 0);
    let initiate: Step = |rig| {
        let op = rig.op(1, 1, 0);
        rig.initiate(1, op);
    };
    let running: Step = |rig| {
        let op = rig.op(1, 1, 0);
        rig.commence(op);
    };
    let sync: Step = |rig| {
        let epoch = rig.epoch(1);
        rig.send(1, C2m::SyncInitiate(vote(epoch, 0, SyncStrategy::EnforcePopular, vec![])));
    };
    let pending: Step = |rig| rig.send(1, C2m::VotePending(RequestId(1)));
    let other_tag: Step = |rig| {
        let op = rig.op(1, 2, 0);
        rig.initiate(1, op);
    };
    // (first, second, legal)
    let table: &[(Step, Step, bool)] = &[
        (topology, topology, false),
        (topology, initiate, false),
        (topology, sync, false),
        (topology, pending, true),
        (initiate, topology, false),
        (initiate, sync, false),
        (initiate, initiate, false),
        (initiate, other_tag, true),
        (initiate, pending, true),
        (running, topology, false),
        (running, sync, false),
        (running, initiate, false),
        (running, other_tag, true),
        (running, pending, true),
        (sync, topology, false),
        (sync, initiate, false),
        (sync, sync, false),
        (sync, pending, true),
        (pending, topology, true),
        (pending, initiate, true),
        (pending, sync, true),
    ];
    for (row, (first, second, legal)) in table.iter().enumerate() {
        let mut rig = Rig::world(2);
        first(&mut rig);
        assert!(rig.closed.is_empty());
        second(&mut rig);
        assert_eq!(rig.closed.is_empty(), *legal, "row {row}");
        assert!(!rig.closed.contains(&2), "row {row}");
    }
}

#[test]
fn identities_from_the_future_are_refused() {
    let epoch = |rig: &Rig| GroupEpoch(rig.epoch(1).0 + 1);
    type Case = Box<dyn Fn(&Rig) -> C2m>;
    let cases: Vec<Case> = vec![
        Box::new(move |rig| {
            let op = OpId { epoch: epoch(rig), tag: 1.into(), attempt: 0 };
            C2m::Initiate(Initiate { op, descriptor: descriptor(1), has_begun: false })
        }),
        Box::new(|rig| {
            C2m::Initiate(Initiate { op: rig.op(1, 1, 1), descriptor: descriptor(1), has_begun: false })
        }),
        Box::new(move |rig| C2m::EdgeReport(EdgeReport { epoch: epoch(rig), up: vec![], broken: vec![] })),
        Box::new(move |rig| C2m::SyncInitiate(vote(epoch(rig), 0, SyncStrategy::EnforcePopular, vec![]))),
        Box::new(|_| {
            let report = SyncReport::Ready(Nothing {});
            C2m::SyncComplete(SyncComplete { sync: SyncId(1), report, failures: vec![], gave: vec![] })
        }),
        Box::new(|rig| {
            let mut fault = rig.edge(1, 2);
            fault.generation = LinkGeneration(999);
            broken(rig.epoch(1), fault)
        }),
        Box::new(|rig| broken(rig.epoch(1), rig.edge(2, 3))),
        Box::new(|rig| broken(GroupEpoch(0), rig.edge(2, 3))),
        Box::new(|rig| {
            let EdgeFault { from, to, generation, .. } = rig.edge(2, 3);
            let up = vec![EdgeName { from, to, generation }];
            C2m::EdgeReport(EdgeReport { epoch: rig.epoch(1), up, broken: vec![] })
        }),
        Box::new(|rig| {
            let entries = vec![entry("b", 1), entry("a", 1)];
            C2m::SyncInitiate(vote(rig.epoch(1), 0, SyncStrategy::EnforcePopular, entries))
        }),
        Box::new(|rig| {
            let entries = vec![entry("a", 1), entry("a", 1)];
            C2m::SyncInitiate(vote(rig.epoch(1), 0, SyncStrategy::EnforcePopular, entries))
        }),
    ];
    for (row, case) in cases.iter().enumerate() {
        let mut rig = Rig::world(3);
        let packet = case(&rig);
        rig.send(1, packet);
        assert_eq!(rig.kick_of(1).code, KickCode::Protocol, "row {row}");
        assert_eq!(rig.accepted(), [2, 3]);
    }
}

#[test]
fn completions_that_nothing_explains() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.complete(1, op, None);
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);

    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    rig.complete(1, op, None);
    rig.complete(1, op, None);
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
}

#[test]
fn limits_on_peers_and_tags() {
    let mut rig = Rig::with(|options| {
        options.max_pending = 2;
        options.max_peers = 4;
        options.max_tags_in_flight = 2;
    });
    rig.join(&[1], 0);
    for n in 2..=4 {
        rig.register(n, 0);
    }
    assert_eq!(rig.kick_of(4).code, KickCode::Full);
    rig.vote_topology(1, 1, 0);
    rig.confirm_all();
    rig.register(5, 0);
    rig.register(6, 0);
    assert_eq!(rig.kick_of(6).code, KickCode::Full);
    for tag in 0..2 {
        let op = rig.op(1, tag, 0);
        rig.initiate(1, op);
        // The vote of another peer for a tag that is already in flight costs nothing.
        rig.initiate(2, op);
    }
    assert!(!rig.closed.contains(&1) && !rig.closed.contains(&2));
    let op = rig.op(1, 2, 0);
    rig.initiate(2, op);
    assert_eq!(rig.kick_of(2).code, KickCode::Protocol);
}

#[test]
fn bad_bytes_slow_readers_and_the_end() {
    let mut rig = Rig::world(3);
    rig.input(Input::Malformed { client: ClientKey(1), error: "list too long".into() });
    let reason = rig.kick_of(1);
    assert_eq!((reason.code, reason.detail.as_str()), (KickCode::Malformed, "list too long"));
    rig.input(Input::SlowReader { client: ClientKey(2) });
    assert_eq!(rig.kick_of(2).code, KickCode::SlowReader);
    rig.connect(4);
    rig.input(Input::Stop);
    assert_eq!(rig.kick_of(3).code, KickCode::MasterStopping);
    assert_eq!(rig.kick_of(4).code, KickCode::MasterStopping);
    assert!(rig.state.snapshot().peers.is_empty());
}
