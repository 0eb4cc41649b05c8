//! Probes: measuring the way to another peer when the master says so, and being measured.
//! [How](tinysockets::probe), over as many connections as an edge of the ring would have.

mod visits;

pub(crate) use visits::Visit;

use crate::{
    config::Config,
    control::Control,
    dial_back::DialBacks,
    session::edges,
    threads::spawn,
    ways::Ways,
    world::{Identity, Told},
};
use parking_lot::Mutex;
use pccl_protocol::{
    C2m, CallMe, PeerId, ProbePlan, ProbeRate, ProbeReport, ProbeResult, ProbeRound, Text, TicketRole, limits,
};
use std::{
    net::{Shutdown, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    key::SecretKey,
    link::tune_data_socket,
    place::Place,
    preamble::{Preamble, Refusal, Role},
    probe::{self, Share, Until},
};
use visits::Visits;

/// Most connections that are measured at once; one probe uses at most half of them, another may not have ended yet.
const MAX_SERVED: usize = 2 * limits::MAX_POOL_CONNECTIONS as usize;

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// The probes that this peer measures, of one round.
    measuring: Vec<(ProbeRound, Arc<AtomicBool>)>,
    /// Connections by which it is measured, each with its thread, which owns it: it closes with that.
    served: Vec<(Weak<Conn>, JoinHandle<()>)>,
    visits: Visits,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ProbeDesk {
    state: Mutex<State>,
}

impl ProbeDesk {
    /// Measures, on a thread of its own, and tells the master. A probe of another round that has not ended yet is given
    /// up.
    pub(crate) fn measure(
        &self,
        control: &Arc<Control>,
        dial_backs: &Arc<DialBacks>,
        (config, told): (&Config, &Told),
        me: Identity,
        plan: ProbePlan,
    ) {
        log::debug!("probe of {} at {}", plan.to, plan.hosts);
        let connections = if plan.crowded { 1 } else { config.probe_connections.unwrap_or(plan.connections) };
        let answer = move |control: &Control, result| {
            control.send(&C2m::ProbeReport(ProbeReport { round: plan.round, to: plan.to, result }));
        };
        let preamble = Preamble {
            security: me.wire.security(),
            run: me.run.0,
            from: me.peer.0,
            to: plan.to.0,
            group: config.group.0,
            epoch: plan.round.optimization,
            connection_count: connections.min(limits::MAX_POOL_CONNECTIONS),
            ..Preamble::new(Role::Probe)
        };
        let way = match plan.back {
            true => Way::Back {
                wish: CallMe {
                    peer: plan.to,
                    role: TicketRole::ProbeBack,
                    index: 0,
                    count: preamble.connection_count,
                },
                dial_backs: dial_backs.clone(),
                control: Arc::downgrade(control),
            },
            false => match told.wallet.stamp(preamble) {
                Ok((preamble, ticket)) => {
                    let place = told.ways.to(plan.to, &plan.hosts, plan.port);
                    Way::There { place, ways: told.ways.clone(), preamble, ticket }
                }
                Err(text) => return answer(control, ProbeResult::Failed(Text::new(text))),
            },
        };
        let target = Target {
            way,
            deadline: Instant::now() + Duration::from_millis(plan.limit_ms.into()),
            dial_timeout: config.settings.dial_timeout,
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

    /// Whether a visitor with this preamble may measure this peer now.
    pub(crate) fn admit(&self, preamble: &Preamble) -> Result<Visit, Refusal> {
        self.state.lock().visits.admit(preamble, Instant::now())
    }

    /// Serves one connection by which this peer is measured, on a thread of its own; a visit has the share of one.
    pub(crate) fn serve(&self, conn: Conn, remote: SocketAddr, visit: Option<Visit>) {
        let mut state = self.state.lock();
        state.served.retain(|(_, thread)| !thread.is_finished());
        // Visitors take no place of a peer.
        let most = MAX_SERVED + visits::AT_ONCE;
        if state.stopped || state.served.len() >= most {
            return log::debug!("probe from {remote} refused");
        }
        let conn = Arc::new(conn);
        let counted = Arc::downgrade(&conn);
        let share = if visit.is_some() { visits::SHARE } else { Share::WHOLE };
        let serve = move || {
            probe::count(&conn, share);
            drop((conn, visit));
        };
        match spawn("pccl-probed", serve) {
            Ok(thread) => state.served.push((counted, thread)),
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
        for conn in state.served.iter().filter_map(|(conn, _)| conn.upgrade()) {
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

/// The measurement that is to be made.
struct Target {
    way: Way,
    deadline: Instant,
    dial_timeout: Duration,
    /// Ends when the rate is stable.
    ends_early: bool,
}

/// The end that makes the connections.
enum Way {
    /// This peer does; with a ticket in a run with a key.
    There { place: Place, ways: Arc<Ways>, preamble: Preamble, ticket: Option<SecretKey> },
    /// The other one does, which cannot be dialed.
    Back { wish: CallMe, dial_backs: Arc<DialBacks>, control: Weak<Control> },
}

impl Way {
    fn connect(&self, deadline: Instant) -> Result<Vec<Conn>, String> {
        match self {
            Self::There { place, ways, preamble, ticket } => {
                let conns = edges::dial_pool(place, *preamble, ticket.as_ref(), deadline)?;
                if let Some(first) = conns.first() {
                    ways.led_to(PeerId(preamble.to), first);
                }
                Ok(conns)
            }
            Self::Back { wish, dial_backs, control } => {
                let dialed_back = dial_backs.ask(*wish, |wish| {
                    if let Some(control) = control.upgrade() {
                        control.send(&C2m::CallMe(wish));
                    }
                });
                let conns = dialed_back.collect(deadline)?;
                // As who dials has done with its end.
                for conn in &conns {
                    tune_data_socket(conn, conn.round_trip());
                }
                Ok(conns)
            }
        }
    }
}

/// Measures the way to a peer.
fn measure(target: &Target, cancelled: &AtomicBool) -> Result<ProbeRate, String> {
    let conns = target.way.connect(target.deadline.min(Instant::now() + target.dial_timeout))?;
    let until = Until { deadline: target.deadline, is_stable: target.ends_early, bytes: u64::MAX };
    let measured = probe::measure(&conns, until, cancelled)?;
    Ok(ProbeRate {
        kbit_s: measured.kbit_s,
        latency_us: u32::try_from(measured.round_trip.as_micros() / 2).unwrap_or(u32::MAX),
        connections: u16::try_from(conns.len()).unwrap_or(u16::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };
    use tinysockets::{address::HostPort, preamble::Reply};

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
            way: Way::There {
                place: HostPort::new("127.0.0.1", port).into(),
                ways: Arc::default(),
                preamble: Preamble { connection_count: connections, ..Preamble::new(Role::Probe) },
                ticket: None,
            },
            deadline: Instant::now() + Duration::from_secs(2),
            dial_timeout: Duration::from_secs(2),
            ends_early: true,
        }
    }

    #[test]
    fn several_connections_are_measured() {
        let rate = measure(&target(3, |conn| probe::count(&conn, Share::WHOLE)), &AtomicBool::new(false))
            .expect("a rate");
        assert_eq!(rate.connections, 3);
        assert!(rate.kbit_s > 10_000, "{rate:?}");
    }

    #[test]
    fn a_measurement_of_so_many_bytes_has_a_rate_and_ends() {
        let bytes = 32 << 20;
        let share = Share { time: Duration::from_secs(60), bytes };
        let deadline = Instant::now() + Duration::from_secs(60);
        let target = target(1, move |conn| probe::count(&conn, share));
        let conns = target.way.connect(deadline).expect("a connection");
        let until = Until { deadline, is_stable: false, bytes };
        let measured = probe::measure(&conns, until, &AtomicBool::new(false)).expect("a rate");
        assert!(measured.kbit_s > 10_000 && Instant::now() < deadline, "{measured:?}");
    }

    #[test]
    fn one_of_many_at_the_same_time_does_not_end_early() {
        let began = Instant::now();
        let target = Target { ends_early: false, ..target(1, |conn| probe::count(&conn, Share::WHOLE)) };
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
        let target = Target {
            deadline: Instant::now() + Duration::from_secs(60),
            ..target(1, |conn| probe::count(&conn, Share::WHOLE))
        };
        let began = Instant::now();
        assert!(measure(&target, &cancelled).is_err());
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
