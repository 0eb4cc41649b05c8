//! Virtual time, the links, and the real master between them.

use crate::audit::Audit;
use crate::blame::{Ledger, Who};
use crate::checker::Checker;
use crate::client::{Client, EdgeKey, Power};
use crate::log::{Log, Logging};
use crate::rng::Rng;
use crate::swarm::{MS, Model, Swarm};
use pccl_master::state::{Action, ClientKey, IdSource, Input, MasterState, Options, PlanKey, Timestamp};
use pccl_master::topology::Answer;
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Something that happens at a point of virtual time.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A connection reaches the master.
    Connected(u64),
    /// A packet reaches the master.
    ToMaster(u64, C2m),
    /// The master sees the end of a connection.
    EndAtMaster(u64),
    /// The master sees the end of a connection of a process that goes on and connects again.
    AwayAtMaster(u64),
    /// It has connected again.
    BackAtMaster(u64),
    /// A packet reaches a client.
    ToClient(u64, M2c),
    /// A client sees the end of its connection.
    EndAtClient(u64),
    /// Something inside a process, of this life.
    Wake(usize, u32, Wake),
    /// A stopped process of this life goes on.
    Resume(usize, u32),
    /// The planner answers the master.
    Planned(PlanKey, Result<Answer, String>),
    /// The master hears that it reaches the listeners of a peer.
    Tried(PeerId),
    /// The next fault is due.
    Inject,
    /// The next of the faults that came later is due.
    Strike,
}

/// What a process wakes up for.
#[derive(Debug, Clone)]
pub(crate) enum Wake {
    Beat,
    /// A dial of the outbound edge has an answer.
    Dialed(EdgeKey),
    /// A dial had no answer for too long.
    DialTimeout(EdgeKey),
    /// An inbound edge of this epoch should be there by now.
    InboundDue(GroupEpoch),
    /// An edge came up or went down.
    EdgeUp,
    EdgeLost(EdgeKey),
    Progress(OpId),
    Fetch(SyncId, u32),
    /// What came of the plan with this number, of a newcomer that fetches ahead.
    FetchAhead(u32),
    /// A loan begins or ends.
    Loan(SyncId),
    /// A probe of this round is over.
    Probed(ProbeRound, PeerId),
    /// All ports of a check were tried; these peers were reached when it began.
    Found(ReachPlan, BTreeSet<PeerId>),
    /// The caller goes on after computing.
    Continue,
    /// The caller's patience with a topology vote is over.
    Deadline(RequestId),
    GiveUp(OpId),
    /// A hostile client sends something.
    Mischief,
    /// A dropped process connects again.
    Reconnect,
}

/// One control connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) slot: usize,
    pub(crate) life: u32,
    /// Time of the last delivery in each direction: order is kept.
    pub(crate) up_last: u64,
    pub(crate) down_last: u64,
    /// Nothing is delivered before these times, to the master and to the client.
    pub(crate) up_stalled_until: u64,
    pub(crate) down_stalled_until: u64,
    /// The master has closed it or has seen its end.
    pub(crate) closed_at_master: bool,
    pub(crate) closed_at_client: bool,
    /// The master has seen its end and keeps its place.
    pub(crate) away: bool,
}

struct Ids(Rng);

impl IdSource for Ids {
    fn peer_id(&mut self, _nth: u64) -> PeerId {
        PeerId(u128::from(self.0.next()) << 64 | u128::from(self.0.next()))
    }
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) rng: Rng,
    /// Choices of the faults that came later.
    pub(crate) strikes: Rng,
    /// Choices of optimisations.
    pub(crate) probes: Rng,
    /// Choices of the mesh.
    pub(crate) mesh: Rng,
    /// Choices of what is found about who reaches whom.
    pub(crate) reach: Rng,
    /// Choices of lenders, and of newcomers that fetch ahead.
    pub(crate) ahead: Rng,
    /// Lengths of the turns of the master's loop.
    turns: Rng,
    /// Whether places are kept when connections end.
    pub(crate) ends: Rng,
    /// How often somebody was away, and came back.
    pub(crate) returns: (u64, u64),
    /// If the master dies now and then, and another one goes on: choices of when.
    pub(crate) recalls: Option<Rng>,
    pub(crate) swarm: Swarm,
    pub(crate) now: u64,
    pub(crate) sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    pub(crate) master: MasterState,
    pub(crate) master_busy_until: u64,
    /// Time of the last tick, and how many there were at that time.
    ticks: (u64, u32),
    last_master_input: u64,
    /// What waits in the sockets of a master that stands still.
    master_backlog: Vec<Event>,
    /// What waits for stopped processes.
    backlogs: BTreeMap<usize, Vec<Event>>,
    pub(crate) clients: Vec<Client>,
    /// Processes that nobody can dial.
    pub(crate) hidden: BTreeSet<usize>,
    pub(crate) conns: BTreeMap<u64, Conn>,
    /// Slot and life of every peer that ever was.
    pub(crate) slots: BTreeMap<PeerId, Who>,
    pub(crate) edges_up: BTreeSet<EdgeKey>,
    /// Pairs of slots between which no connection can be built, and until when.
    pub(crate) blocked: BTreeMap<(usize, usize), u64>,
    /// Pairs of slots between which nothing passes: until when, and whether something on the way acknowledges what it
    /// swallows.
    pub(crate) cut: BTreeMap<(usize, usize), (u64, bool)>,
    /// Bytes sent and received on each edge.
    pub(crate) flows: BTreeMap<EdgeKey, (u64, u64)>,
    /// What has to arrive on an edge for an attempt that goes over a mesh, and for all of them.
    pub(crate) due: BTreeMap<(OpId, EdgeKey), Vec<u64>>,
    pub(crate) owed: BTreeMap<EdgeKey, u64>,
    /// Participants that run an attempt.
    pub(crate) started: BTreeSet<(OpId, PeerId)>,
    pub(crate) healing: bool,
    pub(crate) checker: Checker,
    pub(crate) ledger: Ledger,
    pub(crate) audit: Audit,
    pub(crate) log: Log,
    /// The master has taken facts in and has not settled; when it will.
    pub(crate) unsettled: bool,
    turn_ends: u64,
    /// What it has said meanwhile.
    outbox: Vec<(u64, Event)>,
    pub(crate) inputs: u64,
    /// Optimisations that clients came through, and those that gave them another ring.
    pub(crate) optimizations: u64,
    /// Votes that callers took back.
    pub(crate) withdrawals: u64,
    pub(crate) rings_changed: u64,
    /// Groups that wait for the choice of an operator, since when, and how often one was made.
    pub(crate) undecided: BTreeMap<GroupId, u64>,
    pub(crate) choices: u64,
    /// How often newcomers were told of lenders, and held the state before they were let in.
    pub(crate) told_ahead: u64,
    pub(crate) held_ahead: u64,
}

pub(crate) fn options(swarm: &Swarm) -> Options {
    let mut options = Options::new(RunId(1));
    options.min_world_size = swarm.min_world;
    options.max_tag_history = swarm.tag_history;
    options.relay = swarm.relay.then_some(RelayOffer { port: 1, token: 1 });
    if swarm.straggler > 0 {
        options.straggler_timeout = Some(Duration::from_micros(swarm.straggler));
    }
    options
}

/// Processes that nobody can dial: of each group no more than a ring can separate, if there is no relay.
fn hidden_slots(clients: &[Client], (percent, has_relay): (u64, bool), rng: &mut Rng) -> BTreeSet<usize> {
    let mut hidden: BTreeSet<usize> = BTreeSet::new();
    for (slot, client) in clients.iter().enumerate() {
        let of_group = |slot: &&usize| clients[**slot].group == client.group;
        let (all, so_far) = (
            clients.iter().filter(|other| other.group == client.group).count(),
            hidden.iter().filter(of_group).count(),
        );
        if rng.percent(percent) && (has_relay || 2 * (so_far + 1) <= all) {
            hidden.insert(slot);
        }
    }
    hidden
}

impl World {
    /// A world of this seed.
    pub(crate) fn new(seed: u64, model: Model, logging: Logging) -> Self {
        let mut rng = Rng::new(seed);
        let mut swarm = Swarm::new(&mut rng);
        // From numbers of its own, so that the rest of a seed stays as it was.
        let mut of_straggler = Rng::new(seed ^ 0x5eed_0002);
        if of_straggler.percent(30) {
            swarm.straggler = of_straggler.range(5_000 * MS, 15_000 * MS);
        }
        let mut of_strikes = Rng::new(seed ^ 0x5eed_0003);
        if model >= Model::Strikes && of_strikes.percent(75) {
            swarm.extend(&mut of_strikes);
            swarm.inbound_reports = Rng::new(seed ^ 0x5eed_0004).percent(25);
        }
        let mut of_probes = Rng::new(seed ^ 0x5eed_0006);
        if of_probes.percent(40) {
            swarm.optimize_every = of_probes.range(1, 4);
        }
        let mut of_mesh = Rng::new(seed ^ 0x5eed_0008);
        swarm.mesh = model >= Model::Mesh && of_mesh.percent(70);
        swarm.one_host = swarm.mesh && of_mesh.percent(40);
        if swarm.mesh && of_mesh.percent(25) {
            swarm.favour_mesh(&mut of_mesh);
        }
        let mut of_sizes = Rng::new(seed ^ 0x5eed_0009);
        if model >= Model::Large && of_sizes.percent(80) {
            swarm.large = of_sizes.range(20, 100);
        }
        let mut of_limits = Rng::new(seed ^ 0x5eed_000b);
        if model >= Model::Limits && of_limits.percent(40) {
            swarm.limits = of_limits.range(1, 20);
        }
        let mut of_state = Rng::new(seed ^ 0x5eed_000a);
        if model >= Model::State && of_state.percent(35) {
            swarm.state_faults = of_state.range(5, 40);
        }
        let mut of_kinds = Rng::new(seed ^ 0x5eed_000e);
        if model >= Model::Kinds && of_kinds.percent(50) {
            swarm.kinds = of_kinds.range(10, 100);
        }
        let mut of_ahead = Rng::new(seed ^ 0x5eed_000f);
        if model >= Model::Ahead && of_ahead.percent(60) {
            (swarm.lend, swarm.ahead) = (of_ahead.range(20, 100), of_ahead.range(30, 100));
        }
        let mut ends = Rng::new(seed ^ 0x5eed_0010);
        if model >= Model::Away && ends.percent(60) {
            swarm.away = ends.range(20, 100);
        }
        let mut of_turns = Rng::new(seed ^ 0x5eed_000d);
        if of_turns.percent(60) {
            swarm.turn = [200, 5 * MS, 60 * MS][of_turns.below(3) as usize];
        }
        let mut of_outbound = Rng::new(seed ^ 0x5eed_0011);
        swarm.is_tested = model >= Model::Outbound;
        if swarm.is_tested && of_outbound.percent(50) {
            swarm.hidden = of_outbound.range(20, 80);
            swarm.relay = model >= Model::Relay && Rng::new(seed ^ 0x5eed_0012).percent(50);
        }
        let ids = Ids(Rng::new(seed ^ 0x5eed_0001));
        let slowest = swarm.delay.1 + if swarm.spike_percent > 0 { swarm.spike } else { 0 };
        let clients: Vec<Client> =
            (0..swarm.slots).map(|_| Client::new(GroupId(rng.below(swarm.groups) as u32))).collect();
        let hidden = hidden_slots(&clients, (swarm.hidden, swarm.relay), &mut of_outbound);
        let mut world = Self {
            seed,
            now: 1_000 * MS,
            sequence: 0,
            queue: BTreeMap::new(),
            master: MasterState::new(options(&swarm), Box::new(ids)),
            master_busy_until: 0,
            ticks: (0, 0),
            last_master_input: 1_000 * MS,
            master_backlog: Vec::new(),
            backlogs: BTreeMap::new(),
            clients,
            hidden,
            conns: BTreeMap::new(),
            slots: BTreeMap::new(),
            edges_up: BTreeSet::new(),
            blocked: BTreeMap::new(),
            cut: BTreeMap::new(),
            flows: BTreeMap::new(),
            due: BTreeMap::new(),
            owed: BTreeMap::new(),
            started: BTreeSet::new(),
            healing: false,
            checker: Checker::new(swarm.min_world),
            ledger: Ledger::new(slowest),
            audit: Audit::default(),
            log: Log { logging, hash: 0xcbf2_9ce4_8422_2325, lines: 0 },
            unsettled: false,
            turn_ends: 0,
            outbox: Vec::new(),
            inputs: 0,
            optimizations: 0,
            withdrawals: 0,
            rings_changed: 0,
            undecided: BTreeMap::new(),
            choices: 0,
            told_ahead: 0,
            held_ahead: 0,
            ahead: of_ahead,
            rng,
            strikes: of_strikes,
            probes: of_probes,
            mesh: of_mesh,
            reach: Rng::new(seed ^ 0x5eed_000c),
            turns: of_turns,
            ends,
            returns: (0, 0),
            recalls: None,
            swarm,
        };
        if logging == Logging::Printed {
            println!("{:?}", world.swarm);
        }
        for slot in 0..world.clients.len() {
            if slot < 2 || world.rng.percent(60) {
                world.start(slot, false);
            }
        }
        world.at(200 * MS, Event::Inject);
        if world.swarm.strike_gap > 0 {
            world.at(300 * MS, Event::Strike);
        }
        world
    }

    pub(crate) fn note(&mut self, text: std::fmt::Arguments<'_>) {
        self.log.line(self.now, text);
    }

    /// Schedules an event after `delay` microseconds.
    pub(crate) fn at(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), event);
    }

    pub(crate) fn wake(&mut self, slot: usize, delay: u64, wake: Wake) {
        let life = self.clients[slot].life;
        self.at(delay, Event::Wake(slot, life, wake));
    }

    pub(crate) fn delay(&mut self) -> u64 {
        let (low, high) = self.swarm.delay;
        let mut delay = self.rng.range(low, high);
        if !self.healing && self.rng.percent(self.swarm.spike_percent) {
            delay += self.rng.below(self.swarm.spike);
        }
        delay
    }

    /// A client sends a packet.
    pub(crate) fn send(&mut self, slot: usize, packet: C2m) {
        let Some(key) = self.clients[slot].conn else { return };
        let delay = self.delay();
        self.send_later(key, delay, Event::ToMaster(key, packet));
    }

    /// Puts an event at the end of what travels to the master on a connection.
    pub(crate) fn send_later(&mut self, key: u64, delay: u64, event: Event) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let at = (now + delay).max(conn.up_last).max(conn.up_stalled_until);
        conn.up_last = at;
        self.at(at - now, event);
    }

    fn send_down(&mut self, key: u64, event: Event) {
        let delay = self.delay();
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let at = (now + delay).max(conn.down_last).max(conn.down_stalled_until);
        conn.down_last = at;
        self.at(at - now, event);
    }

    /// Loses what travels to the master on a connection, from a random place on.
    pub(crate) fn lose_in_flight(&mut self, key: u64) {
        let mine = |event: &Event| matches!(event, Event::ToMaster(k, _) if *k == key);
        let travelling: Vec<(u64, u64)> =
            self.queue.iter().filter(|(_, e)| mine(e)).map(|(at, _)| *at).collect();
        let keep = self.rng.below(travelling.len() as u64 + 1) as usize;
        for at in travelling.iter().skip(keep) {
            self.queue.remove(at);
        }
    }

    /// The loop of the master stands still.
    pub(crate) fn stop_master(&mut self, time: u64) {
        self.master_busy_until = self.master_busy_until.max(self.now + time);
        self.ledger.master_gap(self.now, self.now + time);
    }

    /// Gives one fact to the master and checks and delivers what comes out.
    pub(crate) fn input(&mut self, input: Input) {
        self.inputs += 1;
        self.last_master_input = self.now;
        if self.log.logging == Logging::Printed || self.log.lines.is_multiple_of(8) {
            self.note(format_args!("< {input:?}"));
        }
        self.checker.before(self.now, &input);
        match &input {
            Input::Packet { client: ClientKey(key), packet } if self.checker.peer_of(*key).is_some() => {
                self.audit_packet(*key, packet);
            }
            Input::Disconnected { client: ClientKey(key), .. } => self.audit.forget(*key),
            _ => {}
        }
        // What a loop reads in one turn has its consequences at the end of the turn, all of it but what cannot wait.
        let can_wait = !matches!(
            input,
            Input::Tick | Input::LoopGap(_) | Input::Kick { .. } | Input::AcceptRevision { .. } | Input::Stop
        );
        if !std::mem::replace(&mut self.unsettled, true) {
            self.turn_ends = self.now + self.turns.below(self.swarm.turn.max(1));
        }
        let mut out = Vec::new();
        self.master.take(Timestamp(self.now), input, &mut out);
        self.carry_out(out);
        if !can_wait || self.turn_ends <= self.now {
            self.settle();
        }
    }

    /// The master draws the consequences of what it has taken in, and all that it has to say leaves.
    pub(crate) fn settle(&mut self) {
        self.unsettled = false;
        for (key, event) in std::mem::take(&mut self.outbox) {
            self.send_down(key, event);
        }
        let mut out = Vec::new();
        self.master.settle(&mut out);
        self.master.check_invariants();
        self.carry_out(out);
        self.checker.after(&self.master);
        self.audit_input();
        self.recall_master();
    }

    /// Nothing reaches a client before the master has settled.
    fn tell(&mut self, key: u64, event: Event) {
        if self.unsettled {
            self.outbox.push((key, event));
        } else {
            self.send_down(key, event);
        }
    }

    fn carry_out(&mut self, out: Vec<Action>) {
        for action in out.into_iter().flat_map(Action::split) {
            match action {
                Action::Send { client: ClientKey(key), packet } => {
                    self.note(format_args!("> c{key} {packet:?}"));
                    self.judge(key, &packet);
                    self.checker.sent(key, &packet);
                    if let (M2c::Registered(answer), Some(conn)) = (&packet, self.conns.get(&key)) {
                        self.slots.insert(answer.peer, (conn.slot, conn.life));
                        self.audit.heard(key, self.now);
                    }
                    self.tell(key, Event::ToClient(key, packet));
                }
                Action::Close { client: ClientKey(key) } => {
                    self.note(format_args!("> c{key} close"));
                    self.checker.closed(key);
                    self.audit.forget(key);
                    if let Some(conn) = self.conns.get_mut(&key) {
                        conn.closed_at_master = true;
                        if conn.away {
                            // What it hears when it comes back.
                            let reason = KickReason::new(KickCode::Silent, "did not come back in time");
                            self.tell(key, Event::ToClient(key, M2c::Kicked(reason)));
                        }
                    }
                    self.tell(key, Event::EndAtClient(key));
                }
                Action::Plan { plan, job, .. } => self.plan(plan, &job),
                Action::Reach { target, .. } => self.try_listeners(target.peer),
                // Its answer may be on its way.
                Action::DropPlan { plan } => self.note(format_args!("> drop {plan:?}")),
                // Split before.
                Action::SendAll { .. } => {}
                Action::Log { text, .. } => self.note(format_args!("  {text}")),
            }
        }
    }

    /// Runs until `end`.
    pub(crate) fn run_until(&mut self, end: u64, done: impl Fn(&Self) -> bool) {
        loop {
            let event = self.queue.first_key_value().map(|((at, _), _)| *at);
            if self.unsettled && event.is_none_or(|at| at > self.turn_ends.min(end)) {
                self.now = self.now.max(self.turn_ends.min(end));
                self.settle();
                continue;
            }
            if !self.unsettled && done(self) {
                return;
            }
            let tick = Some(&self.master).filter(|_| !self.unsettled).and_then(MasterState::next_deadline);
            let tick = tick.map(|d| d.as_micros().max(self.now).max(self.master_busy_until));
            let wake = Some(self.master_busy_until).filter(|at| *at > 0);
            let next = [event, tick, wake].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            self.now = next;
            self.audit_time();
            if self.master_busy_until > 0 && self.now >= self.master_busy_until {
                self.wake_master();
            } else if event.is_none_or(|event| event > next) {
                // Everything that has arrived was read before; now deadlines are judged.
                self.ticks =
                    if self.ticks.0 == self.now { (self.now, self.ticks.1 + 1) } else { (self.now, 0) };
                assert!(self.ticks.1 < 100, "seed {}: ticks leave a deadline behind that is due", self.seed);
                self.input(Input::Tick);
            } else if let Some((_, event)) = self.queue.pop_first() {
                self.happen(event);
            }
        }
    }

    fn wake_master(&mut self) {
        let gap = self.master_busy_until.saturating_sub(self.last_master_input);
        self.master_busy_until = 0;
        self.audit.gap(self.now, gap);
        self.input(Input::LoopGap(Duration::from_micros(gap)));
        for event in std::mem::take(&mut self.master_backlog) {
            self.happen(event);
        }
    }

    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Planned(..) | Event::Tried(_) if self.master_busy_until > self.now => {
                self.master_backlog.push(event)
            }
            Event::Planned(plan, result) => self.input(Input::Planned { plan, result }),
            // Whether the listeners of a peer are reached says nothing about the faults of a run.
            Event::Tried(peer) => {
                let is_hidden = self.slots.get(&peer).is_some_and(|(slot, _)| self.hidden.contains(slot));
                let closed = is_hidden.then(|| (false, "no answer".to_owned())).into_iter().collect();
                self.input(Input::Reached { peer, closed, unix_us: 0 });
            }
            Event::Connected(key)
            | Event::ToMaster(key, _)
            | Event::EndAtMaster(key)
            | Event::AwayAtMaster(key)
            | Event::BackAtMaster(key)
                if self.master_busy_until > self.now =>
            {
                self.note(format_args!("c{key} waits for the master"));
                self.master_backlog.push(event);
            }
            Event::Connected(key) => {
                let host = if self.swarm.one_host { 0 } else { self.conns[&key].slot };
                let remote = core::net::IpAddr::from([10, 0, 0, host as u8 + 1]);
                let local = core::net::IpAddr::from([10, 0, 0, 200]);
                self.input(Input::Connected { client: ClientKey(key), remote, local });
            }
            Event::ToMaster(key, packet) => {
                if self.conns.get(&key).is_some_and(|conn| !conn.closed_at_master) {
                    self.input(Input::Packet { client: ClientKey(key), packet });
                }
            }
            Event::AwayAtMaster(key) => drop(self.away(key)),
            Event::BackAtMaster(key) => {
                if let Some(conn) =
                    self.conns.get_mut(&key).filter(|conn| conn.away && !conn.closed_at_master)
                {
                    conn.away = false;
                    self.returns.1 += 1;
                    self.audit.heard(key, self.now);
                    self.input(Input::Returned { client: ClientKey(key) });
                }
            }
            // The master does not know whether it comes back.
            Event::EndAtMaster(key) if self.ends.percent(self.swarm.away) && self.away(key) => {}
            Event::EndAtMaster(key) => {
                if let Some(conn) = self.conns.get_mut(&key).filter(|conn| !conn.closed_at_master) {
                    conn.closed_at_master = true;
                    let text = "connection reset".to_owned();
                    self.input(Input::Disconnected { client: ClientKey(key), text });
                }
            }
            Event::ToClient(key, ref packet) => {
                if let Some(slot) = self.receiver(key, &event) {
                    let packet = packet.clone();
                    self.clients[slot].heard_at = self.now;
                    self.receive(slot, packet);
                }
            }
            Event::EndAtClient(key) => {
                if let Some(slot) = self.receiver(key, &event) {
                    let client = &self.clients[slot];
                    let told = client.told || client.hostile;
                    assert!(told, "seed {}: s{slot} was dropped and never learned why", self.seed);
                    self.connection_ended(slot);
                    self.come_back(slot);
                }
            }
            Event::Wake(slot, life, Wake::Reconnect) => {
                if self.clients[slot].life == life {
                    self.reconnect(slot);
                }
            }
            Event::Wake(slot, life, ref wake) => {
                if self.clients[slot].life != life || !self.postponed(slot, &event) {
                    return;
                }
                let wake = wake.clone();
                self.woken(slot, wake);
            }
            Event::Resume(slot, life) => {
                if self.clients[slot].life == life && self.clients[slot].power == Power::Paused {
                    self.note(format_args!("s{slot} goes on"));
                    self.clients[slot].power = Power::Up;
                    // What waits in its socket comes first, before it judges the master.
                    self.clients[slot].heard_at = self.now;
                }
                for event in self.backlogs.remove(&slot).unwrap_or_default() {
                    self.happen(event);
                }
            }
            Event::Inject => self.inject(),
            Event::Strike => self.strike(),
        }
    }

    /// The master sees the end of a connection. Whether it keeps the place.
    fn away(&mut self, key: u64) -> bool {
        let client = ClientKey(key);
        let conn = self.conns.get_mut(&key).filter(|conn| !conn.closed_at_master);
        let Some(conn) = conn.filter(|_| self.master.may_return(client)) else { return false };
        self.returns.0 += 1;
        if !std::mem::replace(&mut conn.away, true) {
            let with_master = goes_with_master(client.0);
            self.input(Input::Away { client, text: "connection reset".to_owned(), with_master });
        }
        true
    }

    /// Whether a client is away, and waited for as when another master goes on.
    pub(crate) fn has_more_time(&self, key: u64) -> bool {
        goes_with_master(key) && self.conns.get(&key).is_some_and(|conn| conn.away)
    }

    /// The slot that takes an event of a connection now.
    fn receiver(&mut self, key: u64, event: &Event) -> Option<usize> {
        let (slot, life) = self.conns.get(&key).filter(|c| !c.closed_at_client).map(|c| (c.slot, c.life))?;
        (self.clients[slot].life == life && self.postponed(slot, event)).then_some(slot)
    }

    /// Whether a process can act now. What happens to a stopped one waits until it goes on, in order.
    fn postponed(&mut self, slot: usize, event: &Event) -> bool {
        match self.clients[slot].power {
            Power::Up => true,
            Power::Paused => {
                self.backlogs.entry(slot).or_default().push(event.clone());
                false
            }
            Power::Down | Power::Vanished => false,
        }
    }
}

/// Whether the connection of a client ends as when another master goes on: that of some.
fn goes_with_master(key: u64) -> bool {
    key.is_multiple_of(4)
}
