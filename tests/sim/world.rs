//! The world of a run: the processes, the links, and the real master between them, which hears what reaches it.

mod seed;
mod time;

use crate::audit::Audit;
use crate::blame::{Ledger, Who};
use crate::checker::Checker;
use crate::client::{Client, EdgeKey};
use crate::log::{Log, Logging};
use crate::rng::Rng;
use crate::swarm::Swarm;
use pccl_master::state::{Action, ClientKey, IdSource, Input, MasterState, Options, PlanKey, Timestamp};
use pccl_planner::Answer;
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

/// The reason for which a process wakes up.
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
    /// The result of the plan with this number, of a newcomer that fetches ahead.
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
    /// Choices of serving peers, and of newcomers that fetch ahead.
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
    /// Events that wait in the sockets of a master that stands still.
    master_backlog: Vec<Event>,
    /// Events that wait for stopped processes.
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
    /// Counts of bytes that have to arrive on an edge for an attempt that goes over a mesh, and for all of them.
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
    /// Messages that it has sent meanwhile.
    outbox: Vec<(u64, Event)>,
    pub(crate) inputs: u64,
    /// Optimisations that clients came through, and those that gave them another ring.
    pub(crate) optimizations: u64,
    /// Votes that callers took back.
    pub(crate) withdrawals: u64,
    /// Until when what somebody called instead of what the others call may have consequences.
    pub(crate) wrong_until: u64,
    /// Verdicts that calls waited for each other, by those who got them.
    pub(crate) crossings: u64,
    pub(crate) rings_changed: u64,
    /// Groups that wait for the choice of an operator, since when, and how often one was made.
    pub(crate) undecided: BTreeMap<GroupId, u64>,
    pub(crate) choices: u64,
    /// How often newcomers were told of serving peers, and held the state before they were let in.
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

impl World {
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
        // Inputs that a loop reads in one turn have their consequences at the end of the turn, all but those that
        // cannot wait.
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
                            // It hears this when it comes back.
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
}
