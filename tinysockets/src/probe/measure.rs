//! The sending end of a probe.

use super::meter::{Count, Meter, window};
use super::{PIECE_BYTES, REPORT_BYTES};
use crate::{conn::Conn, threads::STACK_BYTES};
use parking_lot::Mutex;
use std::{
    net::Shutdown,
    sync::atomic::{AtomicBool, Ordering},
    thread::{Builder, Scope},
    time::{Duration, Instant},
};
use threadpark::Parker;

/// The rate of connections to a port that [counts](super::count), all of them together.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Bits in a millisecond, at least 1.
    pub kbit_s: u64,
    /// Of an idle path.
    pub round_trip: Duration,
}

/// Measures the way over fresh connections that nobody has used yet, and ends them. Ends at the deadline, earlier when
/// the rate is stable if it may, and soon when it is `cancelled`.
///
/// # Errors
/// Why there is no rate, in words.
pub fn measure(
    conns: &[Conn],
    deadline: Instant,
    ends_early: bool,
    cancelled: &AtomicBool,
) -> Result<Measured, String> {
    // That of an idle path: the shortest of the handshakes.
    let round_trip = conns.iter().map(Conn::round_trip).min().unwrap_or_default();
    for conn in conns {
        // What is still queued at the end must not meet the next probe.
        conn.discard_on_close()
            .map_err(|error| format!("cannot set an option of the connection: {error}"))?;
    }
    let rate = transfer(conns, (deadline, ends_early), window(round_trip), cancelled)?;
    Ok(Measured { kbit_s: ((rate * 8.0 / 1000.0) as u64).max(1), round_trip })
}

/// Sends over all connections at once; the rate in bytes per second, as the receiving end counts it.
fn transfer(
    conns: &[Conn],
    (deadline, ends_early): (Instant, bool),
    window: Duration,
    cancelled: &AtomicBool,
) -> Result<f64, String> {
    let counts: Vec<Mutex<Count>> = conns.iter().map(|_| Mutex::default()).collect();
    let broken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut started = Ok(());
        for (conn, count) in conns.iter().zip(&counts) {
            let broken = &broken;
            started = started
                .and_then(|()| start(scope, move || send(conn, broken)))
                .and_then(|()| start(scope, move || take_reports(conn, count)));
        }
        let mut meter = Meter::default();
        let parker = Parker::new();
        let is_over = |meter: &Meter| ends_early && meter.stable().is_some();
        while started.is_ok() && !is_over(&meter) && !broken.load(Ordering::Relaxed) {
            let end = (Instant::now() + window).min(deadline);
            parker.park_until(end);
            if cancelled.load(Ordering::Relaxed) || end >= deadline {
                break;
            }
            meter.add(&counts.iter().map(|count| *count.lock()).collect::<Vec<_>>());
        }
        let broke = broken.load(Ordering::Relaxed);
        // Wakes the threads, which wait in the kernel.
        for conn in conns {
            let _ = conn.shutdown(Shutdown::Both);
        }
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        if broke {
            return Err("the connection broke".to_owned());
        }
        meter.rate().ok_or_else(|| "no bytes arrived in time".to_owned())
    })
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() + Send + 'scope,
) -> std::io::Result<()> {
    Builder::new().name("pccl-probe".into()).stack_size(STACK_BYTES).spawn_scoped(scope, run).map(drop)
}

fn send(conn: &Conn, broken: &AtomicBool) {
    let piece = vec![0x5a; PIECE_BYTES];
    loop {
        if conn.send_all(&piece, None).is_err() {
            // Also by our own end, after which nobody looks at this.
            return broken.store(true, Ordering::Relaxed);
        }
    }
}

fn take_reports(conn: &Conn, count: &Mutex<Count>) {
    let mut report = [0; REPORT_BYTES];
    while conn.recv_all(&mut report, None).is_ok() {
        let number = |at: usize| u64::from_be_bytes(report[at..at + 8].try_into().unwrap_or_default());
        *count.lock() = Count { bytes: number(0), micros: number(8) };
    }
}
