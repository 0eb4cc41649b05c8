//! Parts that both ends of a link share: the connections, how the link ended, its threads, and the fence around
//! callbacks.

use std::{
    cell::Cell,
    io,
    net::Shutdown,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    thread::JoinHandle,
};

use parking_lot::Mutex;

use super::{Direction, FaultKind, LinkEvents, LinkFault, after_rest};
use crate::{conn::Conn, threads};

thread_local! {
    /// Set on threads of links for good, and on others while a link calls back on them.
    static MUST_NOT_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// An error on a connection, before it is known whether it is the link's first fault.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(super) fn io(what: &str, error: &io::Error) -> Self {
        Self::new(FaultKind::Io, format!("{what}: {error}"))
    }
}

/// Runs a callback, or code that runs some. A panic in it becomes a fault, and waiting for threads is off meanwhile.
pub(super) fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, Fault> {
    let before = MUST_NOT_WAIT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    MUST_NOT_WAIT.set(before);
    result.map_err(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Fault::new(FaultKind::Internal, format!("a callback of the link panicked: {text}"))
    })
}

/// The connections of one end of a link, and how the link ended.
pub(super) struct Core {
    direction: Direction,
    peer: u128,
    generation: u64,
    conns: Vec<Conn>,
    events: Arc<dyn LinkEvents>,
    /// Empty while the link lives; the first fault for ever after.
    ended: OnceLock<LinkFault>,
    /// Held by the thread that ends the link until all consequences are dealt with.
    ending: Mutex<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Core {
    pub(super) fn new(
        direction: Direction,
        peer: u128,
        generation: u64,
        conns: Vec<Conn>,
        events: Arc<dyn LinkEvents>,
    ) -> io::Result<Self> {
        if conns.is_empty() || conns.len() > usize::from(u16::MAX) {
            let text = format!("a link has 1 to {} connections, not {}", u16::MAX, conns.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (ended, ending, threads) = (OnceLock::new(), Mutex::new(()), Mutex::new(Vec::new()));
        Ok(Self { direction, peer, generation, conns, events, ended, ending, threads })
    }

    pub(super) fn connections(&self) -> usize {
        self.conns.len()
    }

    pub(super) fn conn(&self, connection: u16) -> &Conn {
        &self.conns[usize::from(connection)]
    }

    /// Whether nothing passes on a connection that has nothing to do.
    pub(super) fn is_deaf(&self) -> bool {
        self.fault().is_none() && self.conns.iter().any(Conn::is_deaf)
    }

    /// The fault of a connection on which nothing was under way, with how long that had been so.
    pub(super) fn after_rest(&self, connection: u16, fault: Fault) -> Fault {
        match self.conn(connection).rest() {
            Some(rest) if fault.kind == FaultKind::Io => {
                Fault::new(FaultKind::Forgotten, format!("{}; {}", fault.text, after_rest(rest)))
            }
            _ => fault,
        }
    }

    /// The fault of a link that [is deaf](Self::is_deaf).
    pub(super) fn forgotten(&self) -> Fault {
        let rest = self.conns.iter().filter_map(Conn::rest).min().unwrap_or_default();
        Fault::new(FaultKind::Forgotten, format!("nothing passes any more; {}", after_rest(rest)))
    }

    /// Peer and generation, as events name them.
    pub(super) fn name(&self) -> (u128, u64) {
        (self.peer, self.generation)
    }

    /// The first fault, once there is one.
    pub(super) fn fault(&self) -> Option<&LinkFault> {
        self.ended.get()
    }

    /// Ends the link unless it has ended already: shuts all connections down, which wakes every thread that waits for
    /// one, runs `consequences`, and tells the events. Returns the link's first fault.
    pub(super) fn end(
        &self,
        connection: u16,
        fault: Fault,
        consequences: impl FnOnce(&LinkFault),
    ) -> &LinkFault {
        if let Some(first) = self.ended.get() {
            return first;
        }
        let Self { direction, peer, generation, .. } = *self;
        let Fault { kind, text } = fault;
        let _ending = self.ending.lock();
        let mut is_first = false;
        let first = self.ended.get_or_init(|| {
            is_first = true;
            LinkFault { direction, peer, generation, connection, kind, text }
        });
        if is_first {
            for conn in &self.conns {
                // Fails only if the connection is down already.
                let _ = conn.shutdown(Shutdown::Both);
            }
            consequences(first);
            if kind != FaultKind::Closed {
                // The other end may well have left on purpose; whoever misses something says so.
                let is_harmless = matches!(kind, FaultKind::Eof | FaultKind::Forgotten);
                let level = if is_harmless { log::Level::Info } else { log::Level::Warn };
                log::log!(level, "{first}");
                let told = guarded(|| self.events.broken(first));
                if let Err(fault) = told {
                    log::error!("while the end of a link was reported: {}", fault.text);
                }
            }
        }
        first
    }

    /// Starts one of the link's threads.
    pub(super) fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = threads::spawn(name, move || {
            MUST_NOT_WAIT.set(true);
            run();
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Waits until the link, which has ended, is dealt with and its threads are gone. Returns at once on the thread of
    /// a link and within a callback, where it could wait for itself.
    pub(super) fn wait_until_gone(&self) {
        if MUST_NOT_WAIT.get() {
            return;
        }
        drop(self.ending.lock());
        // The lock is held while joining, so that a second caller returns no earlier. Threads of links never take it.
        let mut threads = self.threads.lock();
        for thread in threads.drain(..) {
            // A thread ends with a panic only if a panic's payload panics when it is dropped; there is nothing to add.
            let _ = thread.join();
        }
    }
}
