//! Every interleaving of a gate's users, by the model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p tinysockets --test link_loom --release`.
#![cfg(loom)]

use loom::{cell::UnsafeCell, sync::Arc, thread};
use tinysockets::link::Gate;

/// Memory behind a gate. The checker reports any access that is not ordered.
struct Guarded {
    gate: Gate,
    memory: UnsafeCell<u32>,
}

// SAFETY: the point of these tests: accesses are ordered by the gate, and the checker verifies it.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { gate: Gate::new(), memory: UnsafeCell::new(0) })
    }

    /// The work of a link's thread: one access under a pass, if the gate is open.
    fn read_as_borrower(&self) -> bool {
        let Some(_pass) = self.gate.enter() else { return false };
        // SAFETY: under a pass the owner does not write; the checker verifies it.
        self.memory.with(|memory| unsafe { *memory });
        true
    }

    /// The work of the owner once it has its memory back.
    fn write_as_owner(&self) {
        // SAFETY: the gate is drained, so nobody else has access; the checker verifies it.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
    }
}

/// Every interleaving with at most `switches` forced ones; two already find every bug that needs a certain order of two
/// steps, and with three threads there is no end to all of them.
fn check(switches: Option<usize>, program: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = switches;
    model.check(program);
}

#[test]
fn after_the_wait_the_memory_is_the_owners_alone() {
    check(Some(2), || {
        let guarded = Guarded::new();
        let borrowers: Vec<_> = (0..2)
            .map(|_| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || guarded.read_as_borrower())
            })
            .collect();
        guarded.gate.close();
        assert!(guarded.gate.wait_drained(None));
        guarded.write_as_owner();
        assert!(!guarded.read_as_borrower(), "nobody enters a closed gate");
        for borrower in borrowers {
            borrower.join().expect("no panic");
        }
    });
}

#[test]
fn a_waiter_that_does_not_close_is_woken_whoever_comes_last() {
    check(Some(2), || {
        let guarded = Guarded::new();
        let borrower = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.read_as_borrower())
        };
        let closer = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.gate.close())
        };
        assert!(guarded.gate.wait_drained(None));
        guarded.write_as_owner();
        borrower.join().expect("no panic");
        closer.join().expect("no panic");
    });
}

#[test]
fn one_borrower_and_the_owner_in_every_interleaving() {
    check(None, || {
        let guarded = Guarded::new();
        let borrower = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.read_as_borrower())
        };
        guarded.gate.close();
        assert!(guarded.gate.wait_drained(None));
        guarded.write_as_owner();
        borrower.join().expect("no panic");
    });
}

#[test]
fn two_waiters_are_both_woken() {
    check(Some(3), || {
        let guarded = Guarded::new();
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.gate.wait_drained(None))
        };
        guarded.gate.close();
        assert!(guarded.gate.wait_drained(None));
        assert!(other.join().expect("no panic"));
    });
}

/// The reading thread, those that visit, and those that want them to look up, over a wire that the test writes.
mod reading {
    use super::check;
    use loom::{
        sync::{
            Arc, Condvar, Mutex,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        thread,
    };
    use std::time::Instant;
    use threadpark::Parker;
    use tinysockets::queued::turns::{LINGER, Next, Turns, Wake};

    /// The wire that a reader waits for in the kernel.
    #[derive(Default)]
    struct Wire {
        state: Mutex<WireState>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct WireState {
        /// The waker has been set and not cleared.
        woken: bool,
        /// Packets that wait to be read.
        packets: usize,
        /// The other side has closed.
        ended: bool,
    }

    impl Wire {
        fn change(&self, change: impl FnOnce(&mut WireState)) {
            change(&mut self.state.lock().expect("no panic"));
            self.changed.notify_all();
        }

        /// Sleeps as `poll` does; clears the waker and takes what has arrived. `None`: the end.
        fn read(&self) -> Option<usize> {
            let mut state = self.state.lock().expect("no panic");
            while !state.woken && state.packets == 0 && !state.ended {
                state = self.changed.wait(state).expect("no panic");
            }
            state.woken = false;
            if state.packets == 0 && state.ended { None } else { Some(std::mem::take(&mut state.packets)) }
        }
    }

    /// Sets the waker.
    struct Bell(Arc<Wire>);

    impl Wake for Bell {
        fn wake(&self) {
            self.0.change(|state| state.woken = true);
        }
    }

    struct Socket {
        wire: Arc<Wire>,
        turns: Turns<(), Bell>,
        /// Packets that have been read, by whomever.
        read: AtomicUsize,
        /// Somebody waits for the reading thread.
        awaited: AtomicBool,
        /// The moment in which all happens: a clock that ran would not be the same in each interleaving.
        now: Instant,
    }

    impl Socket {
        fn new(parker: &Parker) -> Arc<Self> {
            let wire = Arc::new(Wire::default());
            let turns = Turns::new((), Bell(Arc::clone(&wire)), parker.unparker());
            let (read, awaited) = (AtomicUsize::new(0), AtomicBool::new(false));
            Arc::new(Self { wire, turns, read, awaited, now: Instant::now() })
        }

        /// One turn: `false` at the end of the connection.
        fn step(&self, turn: &mut Option<()>) -> bool {
            if turn.is_none() {
                return false;
            }
            match self.wire.read() {
                Some(packets) => {
                    self.read.fetch_add(packets, Ordering::SeqCst);
                }
                None => {
                    *turn = None;
                    self.turns.wake_all();
                }
            }
            turn.is_some()
        }

        /// The work of the reading thread. There is no clock here: a sleep with a limit is over when the thread runs
        /// next, and a linger that nobody ends by a recall lasts for ever.
        fn run(&self, parker: &Parker, lingers_end: bool) {
            let (mut seen, mut now) = (None, self.now);
            loop {
                match self.turns.next(&mut seen, now) {
                    Next::Read => {
                        if !self.step(&mut self.turns.take()) {
                            return;
                        }
                    }
                    Next::SleepUntil(until) if lingers_end => {
                        now = until;
                        thread::yield_now();
                    }
                    Next::SleepUntil(_) | Next::Sleep => parker.park(),
                }
            }
        }

        /// The work of a visitor.
        fn visit(&self, done: impl Fn() -> bool) {
            let Some(mut turn) = self.turns.begin_visit() else { return };
            while !done() && self.step(&mut turn) {}
            self.turns.end_visit(turn, self.now, || self.awaited.load(Ordering::SeqCst));
        }
    }

    fn socket() -> (Arc<Socket>, thread::JoinHandle<()>) {
        start(true)
    }

    fn start(lingers_end: bool) -> (Arc<Socket>, thread::JoinHandle<()>) {
        let parker = Parker::new();
        let socket = Socket::new(&parker);
        let for_thread = Arc::clone(&socket);
        (socket, thread::spawn(move || for_thread.run(&parker, lingers_end)))
    }

    #[test]
    fn a_visitor_gets_the_turn_and_gives_it_back() {
        check(Some(2), || {
            let (socket, thread) = socket();
            socket.wire.change(|state| state.packets = 1);
            // The visit ends, whoever reads the packet: the reading thread tells nobody, so only a wake of the
            // visitor's own, or what it reads itself, can end its wait.
            let read = {
                let socket = Arc::clone(&socket);
                move || socket.read.load(Ordering::SeqCst) == 1
            };
            socket.visit(read);
            assert_eq!(socket.read.load(Ordering::SeqCst), 1);
            // The reading thread is back, from however deep a sleep, and sees the end.
            socket.wire.change(|state| state.ended = true);
            thread.join().expect("no panic");
        });
    }

    #[test]
    fn an_interrupt_reaches_the_visitor_whenever_it_comes() {
        check(Some(2), || {
            let (socket, thread) = socket();
            let done = Arc::new(AtomicBool::new(false));
            let other = {
                let (socket, done) = (Arc::clone(&socket), Arc::clone(&done));
                thread::spawn(move || {
                    done.store(true, Ordering::SeqCst);
                    socket.turns.interrupt();
                })
            };
            // No packet ever arrives.
            socket.visit(|| done.load(Ordering::SeqCst));
            other.join().expect("no panic");
            socket.wire.change(|state| state.ended = true);
            thread.join().expect("no panic");
        });
    }

    #[test]
    fn whoever_begins_to_wait_has_the_reading_thread_back_after_a_visit() {
        check(Some(2), || {
            // Lingers do not end by themselves here, so that a recall that is lost is a deadlock.
            let (socket, thread) = start(false);
            let waiter = {
                let socket = Arc::clone(&socket);
                thread::spawn(move || {
                    socket.awaited.store(true, Ordering::SeqCst);
                    socket.turns.recall();
                })
            };
            socket.visit(|| true);
            waiter.join().expect("no panic");
            socket.wire.change(|state| state.ended = true);
            thread.join().expect("no panic");
        });
    }

    #[test]
    fn the_end_of_the_connection_ends_the_visit_and_the_thread() {
        check(Some(2), || {
            let (socket, thread) = socket();
            let closer = {
                let socket = Arc::clone(&socket);
                thread::spawn(move || {
                    socket.wire.change(|state| state.ended = true);
                    socket.turns.wake_all();
                })
            };
            socket.visit(|| false);
            socket.turns.wait_until_over();
            thread.join().expect("no panic");
            closer.join().expect("no panic");
        });
    }

    #[test]
    fn there_is_one_visitor_at_a_time() {
        check(Some(2), || {
            let parker = Parker::new();
            let socket = Socket::new(&parker);
            let inside = Arc::new(AtomicUsize::new(0));
            let visit = |socket: &Socket, inside: &AtomicUsize| {
                let Some(turn) = socket.turns.begin_visit() else { return };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                thread::yield_now();
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                socket.turns.end_visit(turn, socket.now, || false);
            };
            let other = {
                let (socket, inside) = (Arc::clone(&socket), Arc::clone(&inside));
                thread::spawn(move || visit(&socket, &inside))
            };
            visit(&socket, &inside);
            other.join().expect("no panic");
            assert_eq!(socket.turns.next(&mut None, socket.now + LINGER), Next::Read);
        });
    }
}
