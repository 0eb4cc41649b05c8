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

/// When a measurement ends.
#[derive(Debug, Clone, Copy)]
pub struct Until {
    /// At the latest.
    pub deadline: Instant,
    /// When the rate is stable.
    pub is_stable: bool,
    /// When this number of bytes has gone over each connection: as many as the other end counts, or fewer.
    pub bytes: u64,
}

/// Measures the way over fresh connections that nobody has used yet, and ends them. Ends as `until` says, and soon when
/// it is `cancelled`.
///
/// # Errors
/// Why there is no rate, in words.
pub fn measure(conns: &[Conn], until: Until, cancelled: &AtomicBool) -> Result<Measured, String> {
    // That of an idle path: the shortest of the handshakes.
    let round_trip = conns.iter().map(Conn::round_trip).min().unwrap_or_default();
    for conn in conns {
        // Bytes that are still queued at the end must not meet the next probe.
        conn.discard_on_close()
            .map_err(|error| format!("cannot set an option of the connection: {error}"))?;
    }
    let rate = transfer(conns, until, window(round_trip), cancelled)?;
    Ok(Measured { kbit_s: ((rate * 8.0 / 1000.0) as u64).max(1), round_trip })
}

/// Sends over all connections at once; the rate in bytes per second, as the receiving end counts it.
fn transfer(conns: &[Conn], until: Until, window: Duration, cancelled: &AtomicBool) -> Result<f64, String> {
    let counts: Vec<Mutex<Count>> = conns.iter().map(|_| Mutex::default()).collect();
    let broken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut started = Ok(());
        for (conn, count) in conns.iter().zip(&counts) {
            let broken = &broken;
            started = started
                .and_then(|()| start(scope, move || send(conn, until.bytes, broken)))
                .and_then(|()| start(scope, move || take_reports(conn, until.bytes, count)));
        }
        let mut meter = Meter::default();
        let parker = Parker::new();
        let is_sent = || counts.iter().all(|count| count.lock().bytes >= until.bytes);
        let is_over = |meter: &Meter| until.is_stable && meter.stable().is_some();
        while started.is_ok() && !is_over(&meter) && !broken.load(Ordering::Relaxed) {
            let end = (Instant::now() + window).min(until.deadline);
            parker.park_until(end);
            let all_sent = is_sent();
            if cancelled.load(Ordering::Relaxed) || end >= until.deadline && !all_sent {
                break;
            }
            meter.add(&counts.iter().map(|count| *count.lock()).collect::<Vec<_>>());
            if all_sent {
                break;
            }
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

fn send(conn: &Conn, bytes: u64, broken: &AtomicBool) {
    let piece = vec![0x5a; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        left -= now as u64;
        if conn.send_all(&piece[..now], None).is_err() {
            // Also by our own end, after which nobody looks at this.
            return broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Up to the first report by which all bytes have arrived: later ones count time in which nothing could.
fn take_reports(conn: &Conn, bytes: u64, count: &Mutex<Count>) {
    let mut report = [0; REPORT_BYTES];
    while count.lock().bytes < bytes && conn.recv_all(&mut report, None).is_ok() {
        let number = |at: usize| u64::from_be_bytes(report[at..at + 8].try_into().unwrap_or_default());
        *count.lock() = Count { bytes: number(0), micros: number(8) };
    }
}
