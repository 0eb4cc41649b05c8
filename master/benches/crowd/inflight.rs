//! Operations in flight in the state machine by itself: eight peers, each operation begins, runs and is replaced by
//! another one while the rest waits.

use core::net::{IpAddr, Ipv4Addr};
use pccl_master::state::{Action, ClientKey, IdSource, Input, MasterState, Options, Timestamp};
use pccl_protocol::{
    Algorithm, C2m, Complete, Descriptor, EdgeReport, GroupEpoch, GroupId, GroupPlan, Initiate, M2c, Name,
    OpId, PartDescriptor, PeerId, Purpose, Register, RequestId, RunId, VoteTopology,
};
use pccl_quant::{DataType, ReduceOp};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

const PEERS: u64 = 8;

struct Counter(u128);

impl IdSource for Counter {
    fn peer_id(&mut self, _nth: u64) -> PeerId {
        self.0 += 1;
        PeerId(self.0)
    }
}

struct Bench {
    state: MasterState,
    now: Timestamp,
    out: Vec<Action>,
    epoch: GroupEpoch,
    /// Packets for the clients.
    mail: VecDeque<(ClientKey, M2c)>,
}

impl Bench {
    fn input(&mut self, input: Input) {
        self.now = self.now + Duration::from_micros(10);
        self.state.handle(self.now, input, &mut self.out);
        let _ = self.state.next_deadline();
        for action in self.out.drain(..).flat_map(Action::split) {
            if let Action::Send { client, packet } = action {
                self.mail.push_back((client, packet));
            }
        }
    }

    fn send(&mut self, client: ClientKey, packet: C2m) {
        self.input(Input::Packet { client, packet });
    }

    /// Confirms rings until nothing is left to confirm.
    fn confirm(&mut self) {
        while let Some((client, packet)) = self.mail.pop_front() {
            if let M2c::GroupPlan(plan) = packet {
                self.confirm_plan(client, &plan);
            }
        }
    }

    fn confirm_plan(&mut self, client: ClientKey, plan: &GroupPlan) {
        self.epoch = plan.epoch;
        // Identities count like clients.
        let report = EdgeReport::all_up(plan, PeerId(client.0.into()), &[Purpose::Ring]);
        self.send(client, C2m::EdgeReport(report));
    }

    fn vote(&mut self, tag: u64) {
        let op = OpId { epoch: self.epoch, tag: tag.into(), attempt: 0 };
        let part = PartDescriptor::new(1 << 20, DataType::Float32, ReduceOp::Sum);
        let descriptor = Descriptor::all_reduce(vec![part], Algorithm::Ring);
        for client in 1..=PEERS {
            let initiate = Initiate { op, descriptor: descriptor.clone(), has_begun: false };
            self.send(ClientKey(client), C2m::Initiate(initiate));
        }
    }
}

fn world() -> Bench {
    let state = MasterState::new(Options::new(RunId(1)), Box::new(Counter(0)));
    let (mail, now) = (VecDeque::new(), Timestamp::from_millis(1000));
    let mut bench = Bench { state, now, out: Vec::new(), epoch: GroupEpoch(0), mail };
    for client in 1..=PEERS {
        let (key, host) = (ClientKey(client), IpAddr::V4(Ipv4Addr::new(10, 0, 0, client as u8)));
        bench.input(Input::Connected { client: key, remote: host, local: host });
        let (p2p_port, state_port) = (1, 2);
        let (group, advertised_host, previous) = (GroupId(0), None, None);
        let register = Register {
            group,
            advertised_host,
            addresses: Vec::new(),
            p2p_port,
            state_port,
            pool_connections: 1,
            name: Name::default(),
            previous,
            formed: false,
            alone: false,
            resume: None,
            outbound_only: Some(false),
            site: Name::default(),
        };
        bench.send(key, C2m::Register(register));
        let vote = VoteTopology { request: RequestId(client), wait_for_world: 0 };
        (1..client).for_each(|member| bench.send(ClientKey(member), C2m::VoteTopology(vote.clone())));
        bench.confirm();
    }
    bench
}

/// Operations of which `flying` are in flight at any time, for a second and until as many are done.
fn measure(flying: u64) -> f64 {
    let mut bench = world();
    let began = Instant::now();
    (0..flying).for_each(|tag| bench.vote(tag));
    let (mut next, mut done) = (flying, 0_u64);
    while began.elapsed() < Duration::from_secs(1) || done < flying {
        // Whatever began completes in the order in which it began; each outcome makes room for another.
        let Some((client, packet)) = bench.mail.pop_front() else { break };
        match packet {
            M2c::Commence(commence) => {
                let (op, fault, moved_bytes) = (commence.op, None, 1);
                bench.send(client, C2m::Complete(Complete { op, fault, moved_bytes }));
            }
            M2c::Outcome(_) if client == ClientKey(PEERS) => {
                done += 1;
                bench.vote(next);
                next += 1;
            }
            M2c::GroupPlan(plan) => {
                bench.confirm_plan(client, &plan);
            }
            M2c::Stale(stale) if client == ClientKey(PEERS) => {
                if let pccl_protocol::VoteRef::Collective(op) = stale.vote {
                    bench.vote(op.tag.number);
                }
            }
            _ => {}
        }
    }
    done as f64 / began.elapsed().as_secs_f64()
}

pub(crate) fn run() {
    for flying in [1, 16, 100, 1000] {
        println!("{PEERS} peers, {flying:>4} operations in flight: {:>8.0} operations/s", measure(flying));
    }
}
