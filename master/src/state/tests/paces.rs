//! The rates of edges as operations show them.

use super::harness::Rig;
use super::optimize::RATE;
use pccl_protocol::*;

impl Rig {
    /// Clients beat for some seconds while `op` runs: every edge moves `kbit_s`, and bytes wait on those for which
    /// `busy` says so.
    fn beats(&mut self, op: OpId, seconds: u64, moved: &mut u64, kbit_s: u64, busy: &dyn Fn(u64) -> bool) {
        for _ in 0..seconds {
            self.all_beat(op, 1000, moved, kbit_s, busy);
        }
    }

    /// All beat once, this many milliseconds after the last time.
    fn all_beat(&mut self, op: OpId, ms: u64, moved: &mut u64, kbit_s: u64, busy: &dyn Fn(u64) -> bool) {
        self.all_beat_at_work(op, ms, (moved, kbit_s), busy, &|_| false);
    }

    /// The same, while those that `at_work` names take nothing because they are at work on what has come.
    fn all_beat_at_work(
        &mut self,
        op: OpId,
        ms: u64,
        (moved, kbit_s): (&mut u64, u64),
        busy: &dyn Fn(u64) -> bool,
        at_work: &dyn Fn(u64) -> bool,
    ) {
        self.now = self.now + std::time::Duration::from_millis(ms);
        *moved += kbit_s * ms / 8;
        for n in self.accepted() {
            let (me, plan) = (self.peers[&n], self.plans[&n].clone());
            let edge = |is_mine: &dyn Fn(&EdgeName) -> bool| {
                plan.edges_for(Purpose::Ring).find(is_mine).expect("an edge")
            };
            let (next, previous) = (edge(&|name| name.from == me), edge(&|name| name.to == me));
            let bytes = |peer, generation| EdgeBytes { peer, generation, bytes: *moved };
            let work = BusyEdge { from: previous.from, generation: previous.generation, busy_ms: 200 };
            let beat = Beat {
                sequence: 1,
                call: CallKind::Collective(CollectiveKind::AllReduce),
                call_ms: 1,
                operation: Some(CollectiveId { kind: CollectiveKind::AllReduce, op }),
                moved_bytes: *moved,
                sent: if busy(n) { Vec::new() } else { vec![bytes(next.to, next.generation)] },
                received: vec![bytes(previous.from, previous.generation)],
                busy: if at_work(n) { vec![work] } else { Vec::new() },
                ..Beat::default()
            };
            self.send(n, C2m::Beat(beat));
        }
    }

    /// An operation with these milliseconds before each look, of which the first is only just under way.
    fn short_operation(&mut self, tag: u64, looks_ms: &[u64], kbit_s: u64, busy: &dyn Fn(u64) -> bool) {
        let op = self.op(1, tag, 0);
        self.commence(op);
        // The bytes that were moved before are of no interest.
        let mut moved = tag * 1_000_000_000;
        for ms in looks_ms {
            self.all_beat(op, *ms, &mut moved, kbit_s, busy);
        }
        self.done(op);
    }

    fn done(&mut self, op: OpId) {
        for n in self.accepted() {
            self.complete(n, op, None);
        }
    }

    /// Four clients on a ring of edges that were all measured at [`RATE`], and an operation that runs.
    fn measured_and_busy() -> (Self, OpId) {
        let mut rig = Self::world(4);
        rig.vote_optimize(&[1, 2, 3, 4]);
        rig.rounds(&|_, _| RATE);
        rig.plan();
        rig.mail.clear();
        let op = rig.op(1, 0, 0);
        rig.commence(op);
        (rig, op)
    }
}

#[test]
fn an_edge_that_operations_show_to_be_slow_is_planned_around_without_probes() {
    let (mut rig, op) = Rig::measured_and_busy();
    let mut moved = 0;
    // The edge behind client 2 is the slowest; the others wait for it.
    rig.beats(op, 6, &mut moved, RATE / 5, &|n| n == 2);
    rig.plan();
    assert_eq!(rig.ring(0), [1, 2, 3, 4], "the operation is not disturbed");
    rig.done(op);
    let ring = rig.ring(0);
    let at = ring.iter().position(|n| *n == 2).expect("member");
    assert_ne!(ring[(at + 1) % 4], 3, "{ring:?}");
    rig.confirm_all();
    assert!((1..=4).all(|n| rig.probes(n).is_empty()));
    let op = rig.op(1, 0, 0);
    rig.commence(op);
    // On the new ring all is as planned, so it stays.
    let mut moved = 0;
    rig.beats(op, 10, &mut moved, RATE, &|n| n == 2);
    assert!(rig.jobs.is_empty());
}

#[test]
fn an_end_that_is_slow_with_what_has_come_says_nothing_of_the_edge() {
    let (mut rig, op) = Rig::measured_and_busy();
    let mut moved = 0;
    for _ in 0..6 {
        rig.all_beat_at_work(op, 1000, (&mut moved, RATE / 5), &|n| n == 2, &|n| n == 3);
    }
    assert!(rig.jobs.is_empty());
}

#[test]
fn noise_and_waiting_for_others_move_no_ring() {
    // A tenth slower than measured, on edges that are busy all the time.
    let (mut rig, op) = Rig::measured_and_busy();
    let mut moved = 0;
    rig.beats(op, 30, &mut moved, RATE * 9 / 10, &|_| true);
    assert!(rig.jobs.is_empty());
    // Nobody has bytes waiting: the callers compute.
    rig.beats(op, 30, &mut moved, RATE / 100, &|_| false);
    assert!(rig.jobs.is_empty());
    // Nothing moves at all: that is for the faults of edges.
    rig.beats(op, 10, &mut moved, 0, &|_| true);
    assert!(rig.jobs.is_empty());
    rig.done(op);
    // Short operations that are a tenth slower.
    for tag in 1..30 {
        rig.short_operation(tag, &[100, 100, 200], RATE * 9 / 10, &|_| true);
    }
    assert!(rig.jobs.is_empty());
    // Slow ones, but now and then nothing waits on an edge: another one holds it up.
    for tag in 30..60 {
        rig.short_operation(tag, &[100, 100], RATE / 10, &|n| tag % 3 != n % 3);
    }
    assert!(rig.jobs.is_empty());
    // Looks that follow each other too fast, or only one in each operation.
    for tag in 60..90 {
        rig.short_operation(tag, &[100, 20, 20], RATE / 10, &|_| true);
        rig.short_operation(tag + 100, &[100], RATE / 10, &|_| true);
    }
    assert!(rig.jobs.is_empty());
}

#[test]
fn what_short_operations_show_adds_up() {
    let (mut rig, op) = Rig::measured_and_busy();
    rig.done(op);
    for tag in 1..=3 {
        assert!(rig.jobs.is_empty(), "too early, after {tag}");
        rig.short_operation(tag, &[100, 100], RATE / 5, &|n| n == 2);
    }
    rig.plan();
    let ring = rig.ring(0);
    let at = ring.iter().position(|n| *n == 2).expect("member");
    assert_ne!(ring[(at + 1) % 4], 3, "{ring:?}");
    rig.confirm_all();
    assert!((1..=4).all(|n| rig.probes(n).is_empty()));
}

#[test]
fn one_operation_of_a_second_shows_enough() {
    let (mut rig, op) = Rig::measured_and_busy();
    rig.done(op);
    rig.short_operation(1, &[100, 100, 200, 400], RATE / 5, &|n| n == 2);
    assert_eq!(rig.jobs.len(), 1);
}

#[test]
fn the_way_back_of_a_slow_edge_is_avoided_and_measured_at_the_next_opportunity() {
    let (mut rig, op) = Rig::measured_and_busy();
    rig.beats(op, 6, &mut 0, RATE / 5, &|n| n == 2);
    rig.plan();
    rig.done(op);
    let ring = rig.ring(0);
    let edge = |from: u64, to: u64| {
        let at = ring.iter().position(|n| *n == from).expect("member");
        ring[(at + 1) % 4] == to
    };
    assert!(!edge(2, 3) && !edge(3, 2), "{ring:?}");
    rig.confirm_all();
    rig.mail.clear();
    rig.vote_optimize(&[1, 2, 3, 4]);
    assert_eq!(rig.rounds(&|_, _| RATE).concat(), [(3, 2)]);
}

#[test]
fn of_three_the_other_way_round_is_tried() {
    let mut rig = Rig::world(3);
    rig.vote_optimize(&[1, 2, 3]);
    rig.rounds(&|_, _| RATE);
    rig.plan();
    rig.mail.clear();
    let op = rig.op(1, 0, 0);
    rig.commence(op);
    rig.beats(op, 6, &mut 0, RATE / 5, &|n| n == 2);
    rig.plan();
    rig.done(op);
    assert_eq!(rig.ring(0), [1, 3, 2]);
}

#[test]
fn without_measurements_operations_show_nothing() {
    let mut rig = Rig::world(4);
    let op = rig.op(1, 0, 0);
    rig.commence(op);
    let mut moved = 0;
    rig.beats(op, 10, &mut moved, 1, &|_| true);
    assert!(rig.jobs.is_empty());
}

#[test]
fn rates_that_operations_confirm_are_not_measured_again() {
    let (mut rig, op) = Rig::measured_and_busy();
    let mut moved = 0;
    rig.beats(op, 700, &mut moved, RATE, &|_| true);
    rig.done(op);
    rig.mail.clear();
    rig.vote_optimize(&[1, 2, 3, 4]);
    let edges = rig.rounds(&|_, _| RATE).concat();
    assert_eq!(edges.len(), 12 - 4, "{edges:?}");
    assert!(!edges.contains(&(1, 2)));
}
