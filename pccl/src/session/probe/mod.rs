//! Probes: measuring the way to another peer when the master says so, and being measured.
//!
//! The sending end fills as many connections as an edge of the ring would have. The receiving end throws the bytes away
//! and says every few milliseconds how many have arrived, so that what lies in buffers on the way does not count.

mod measure;
mod meter;

use crate::{config::Config, control::Control, threads::spawn, world::Identity};
use measure::{Target, measure};
use parking_lot::Mutex;
use pccl_protocol::{C2m, ProbePlan, ProbeReport, ProbeResult, ProbeRound, Text, limits};
use std::{
    io,
    net::{Shutdown, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    conn::Conn,
    preamble::{Preamble, Role},
};

/// Bytes sent and received at a time.
const PIECE_BYTES: usize = 256 << 10;
/// A report of the receiving end: bytes so far, microseconds since the connection began.
const REPORT_BYTES: usize = 16;
/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(5);
/// Most connections that are measured at once; one probe uses at most half of them, another may not have ended yet.
const MAX_SERVED: usize = 2 * limits::MAX_POOL_CONNECTIONS as usize;
/// A connection that is measured for longer than any probe lasts is closed.
const LONGEST: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// The probes that this peer measures, of one round.
    measuring: Vec<(ProbeRound, Arc<AtomicBool>)>,
    /// Connections by which it is measured.
    served: Vec<(Arc<Conn>, JoinHandle<()>)>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ProbeDesk {
    state: Mutex<State>,
}

impl ProbeDesk {
    /// Measures, on a thread of its own, and tells the master. A probe of another round that has not ended yet is given
    /// up.
    pub(crate) fn measure(&self, control: &Arc<Control>, config: &Config, me: Identity, plan: ProbePlan) {
        log::debug!("probe of {} at {}", plan.to, plan.host);
        let connections = if plan.crowded { 1 } else { config.probe_connections.unwrap_or(plan.connections) };
        let target = Target {
            address: HostPort::new(plan.host.as_str(), plan.port),
            preamble: Preamble {
                run: me.run.0,
                from: me.peer.0,
                to: plan.to.0,
                group: config.group.0,
                epoch: plan.round.optimization,
                connection_count: connections.min(limits::MAX_POOL_CONNECTIONS),
                ..Preamble::new(Role::Probe)
            },
            deadline: Instant::now() + Duration::from_millis(plan.limit_ms.into()),
            dial_timeout: config.dial_timeout,
            ends_early: !plan.crowded,
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        {
            let mut state = self.state.lock();
            if state.stopped {
                return;
            }
            state.measuring.retain(|(round, other)| {
                let stays = *round == plan.round;
                other.fetch_or(!stays, Ordering::Relaxed);
                stays
            });
            state.measuring.push((plan.round, cancelled.clone()));
        }
        let answer = move |control: &Control, result| {
            control.send(&C2m::ProbeReport(ProbeReport { round: plan.round, to: plan.to, result }));
        };
        let weak = Arc::downgrade(control);
        // Not joined when the session ends: a dial cannot be cut off, and it holds nothing of the session.
        let spawned = spawn("pccl-probe", move || {
            let result = measure(&target, &cancelled);
            let Some(control) = weak.upgrade().filter(|_| !cancelled.load(Ordering::Relaxed)) else { return };
            answer(
                &control,
                result.map_or_else(|text| ProbeResult::Failed(Text::new(text)), ProbeResult::Measured),
            );
        });
        if let Err(error) = spawned {
            answer(control, ProbeResult::Failed(Text::new(error.to_string())));
        }
    }

    /// Serves one connection by which this peer is measured, on a thread of its own.
    pub(crate) fn serve(&self, conn: Conn, remote: SocketAddr) {
        let mut state = self.state.lock();
        state.served.retain(|(_, thread)| !thread.is_finished());
        if state.stopped || state.served.len() >= MAX_SERVED {
            return log::debug!("probe from {remote} refused");
        }
        let conn = Arc::new(conn);
        let counted = conn.clone();
        match spawn("pccl-probed", move || count(&counted)) {
            Ok(thread) => state.served.push((conn, thread)),
            Err(error) => log::warn!("probe from {remote}: {error}"),
        }
    }

    /// Ends all probes, and refuses others from now on.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        for (_, measuring) in state.measuring.drain(..) {
            measuring.store(true, Ordering::Relaxed);
        }
        for (conn, _) in &state.served {
            let _ = conn.shutdown(Shutdown::Both);
        }
    }

    /// Waits for the threads by which this peer is measured. After [`ProbeDesk::stop`].
    pub(crate) fn join(&self) {
        let served = std::mem::take(&mut self.state.lock().served);
        for (_, thread) in served {
            let _ = thread.join();
        }
    }
}

/// Throws away what comes, and says how much it was.
fn count(conn: &Conn) {
    let began = Instant::now();
    let mut piece = vec![0; PIECE_BYTES];
    let (mut bytes, mut reported) = (0_u64, began);
    while began.elapsed() < LONGEST {
        // A path on which nothing arrives is reported, too.
        match conn.recv_some(&mut piece, Some(Instant::now() + REPORT_INTERVAL * 4)) {
            Ok(0) => return,
            Ok(n) => bytes += n as u64,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(_) => return,
        }
        let now = Instant::now();
        if now.duration_since(reported) >= REPORT_INTERVAL {
            reported = now;
            let micros = now.duration_since(began).as_micros() as u64;
            let report = [bytes.to_be_bytes(), micros.to_be_bytes()].concat();
            // It is small enough to go out at once or never.
            if conn.send_all(&report, Some(now + REPORT_INTERVAL)).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };
    use tinysockets::preamble::Reply;

    /// A receiving end that accepts `connections` connections and then treats them as `serve` says.
    fn target(connections: u16, serve: impl Fn(Conn) + Send + Copy + 'static) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        std::thread::spawn(move || {
            for _ in 0..connections {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut preamble = [0; tinysockets::preamble::PREAMBLE_BYTES];
                stream.read_exact(&mut preamble).expect("a preamble");
                stream.write_all(&Reply::Accepted.encode()).expect("the reply");
                std::thread::spawn(move || serve(stream.into()));
            }
        });
        Target {
            address: HostPort::new("127.0.0.1", port),
            preamble: Preamble { connection_count: connections, ..Preamble::new(Role::Probe) },
            deadline: Instant::now() + Duration::from_secs(2),
            dial_timeout: Duration::from_secs(2),
            ends_early: true,
        }
    }

    #[test]
    fn several_connections_are_measured() {
        let rate = measure(&target(3, |conn| count(&conn)), &AtomicBool::new(false)).expect("a rate");
        assert_eq!(rate.connections, 3);
        assert!(rate.kbit_s > 10_000, "{rate:?}");
    }

    #[test]
    fn one_of_many_at_the_same_time_does_not_end_early() {
        let began = Instant::now();
        let target = Target { ends_early: false, ..target(1, |conn| count(&conn)) };
        let rate = measure(&target, &AtomicBool::new(false)).expect("a rate");
        assert!(rate.kbit_s > 10_000, "{rate:?}");
        assert!(Instant::now() >= target.deadline && began.elapsed() >= Duration::from_secs(1));
    }

    #[test]
    fn a_target_that_reads_nothing_has_no_rate() {
        let began = Instant::now();
        let silent = |conn: Conn| {
            std::thread::park_timeout(Duration::from_secs(20));
            drop(conn);
        };
        let text = measure(&target(1, silent), &AtomicBool::new(false)).expect_err("no rate");
        assert_eq!(text, "no bytes arrived in time");
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_target_that_dies_ends_the_probe() {
        let text = measure(&target(1, drop), &AtomicBool::new(false)).expect_err("no rate");
        assert_eq!(text, "the connection broke");
    }

    #[test]
    fn a_cancelled_probe_ends_early() {
        let cancelled = AtomicBool::new(true);
        let target =
            Target { deadline: Instant::now() + Duration::from_secs(60), ..target(1, |conn| count(&conn)) };
        let began = Instant::now();
        assert!(measure(&target, &cancelled).is_err());
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
