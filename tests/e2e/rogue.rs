//! Somebody who has the run key and speaks the protocol, and does what no peer would do.

use crate::peer::WATCHDOG;
use parking_lot::Mutex;
use pccl_protocol::{
    C2m, EdgeReport, GroupId, GroupPlan, M2c, Name, PeerId, PreviousIdentity, Purpose, Register, RunId,
    Ticket, TicketRole, limits,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor},
    address::HostPort,
    conn::Conn,
    dial::{DialError, dial_with_preamble},
    key::{RunKey, RunKeys, SecretKey},
    listener::Listener,
    mode::WireMode,
    preamble::{Preamble, Refusal, Role},
    stream::PacketStream,
    ticket::Lock,
};

/// A peer that is registered and answers by hand.
pub(crate) struct Rogue {
    pub(crate) run: RunId,
    pub(crate) me: PeerId,
    pub(crate) service_key: SecretKey,
    /// How bulk data travels, as the master says.
    pub(crate) wire: WireMode,
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) plan: Option<GroupPlan>,
    stream: PacketStream,
    /// Connections by which others called it, and by which it called them.
    conns: Arc<Mutex<Vec<Conn>>>,
    _acceptor: Acceptor,
}

fn soon() -> Instant {
    Instant::now() + WATCHDOG
}

/// A control connection to the master with this key.
pub(crate) fn control(master: &str, key: &RunKey) -> PacketStream {
    let master: HostPort = master.parse().expect("an address");
    let conn = dial_with_preamble(&master, &Preamble::new(Role::Control), Some(key.secret()), soon());
    PacketStream::new(conn.expect("the key is right"), limits::MAX_PACKET_BYTES)
}

pub(crate) fn send(stream: &mut PacketStream, packet: &C2m) {
    stream.send_bytes(&packet.to_frame(), soon()).expect("the master is there");
}

pub(crate) fn receive(stream: &mut PacketStream) -> M2c {
    let (kind, body) = stream.recv_packet(soon()).expect("the master is there");
    M2c::from_frame(kind, &body).expect("a packet")
}

/// The registration of somebody who says that it was a peer before.
pub(crate) fn registration([p2p_port, state_port]: [u16; 2], previous: Option<PreviousIdentity>) -> C2m {
    C2m::Register(Register {
        group: GroupId(0),
        advertised_host: None,
        addresses: Vec::new(),
        p2p_port,
        state_port,
        pool_connections: 1,
        name: Name::new("rogue"),
        previous,
        formed: false,
        alone: false,
        resume: None,
        outbound_only: Some(false),
        site: Name::default(),
    })
}

impl Rogue {
    pub(crate) fn register(master: &str, key: &RunKey) -> Self {
        let listener = || Listener::bind(Some([127, 0, 0, 1].into()), 0, 1).expect("a port");
        let listeners = vec![(Role::Data, listener()), (Role::State, listener())];
        let ports = [0, 1].map(|index: usize| listeners[index].1.local_port());
        let mut stream = control(master, key);
        send(&mut stream, &registration(ports, None));
        let M2c::Keys(keys) = receive(&mut stream) else { panic!("the keys come first") };
        let M2c::Registered(registered) = receive(&mut stream) else { panic!("then the answer") };
        let conns: Arc<Mutex<Vec<Conn>>> = Arc::default();
        let kept = Arc::clone(&conns);
        let lock = Lock::of_peer(RunKeys::new(key.clone().into()), keys.service_key.clone().into());
        let acceptor = Acceptor::spawn(
            listeners,
            AcceptLimits::default(),
            Some(lock),
            Box::new(move |incoming| kept.lock().extend(incoming.accept())),
        );
        Self {
            run: registered.run,
            me: registered.peer,
            service_key: keys.service_key,
            wire: registered.wire.expect("a run with a key"),
            tickets: Vec::new(),
            plan: None,
            stream,
            conns,
            _acceptor: acceptor.expect("a thread"),
        }
    }

    /// Does what a newcomer does until it is let in.
    pub(crate) fn join(&mut self) {
        loop {
            match receive(&mut self.stream) {
                M2c::Tickets(given) => self.tickets.extend(given.tickets),
                M2c::GroupPlan(plan) => self.connect(plan),
                M2c::Admitted(_) => return,
                M2c::Kicked(reason) => panic!("it was kicked: {reason}"),
                _ => {}
            }
        }
    }

    /// Dials all edges of a plan that begin here, and says that those of the ring stand.
    fn connect(&mut self, plan: GroupPlan) {
        let out = |ticket: &&Ticket| ticket.role == TicketRole::Data && ticket.epoch == plan.epoch;
        for ticket in self.tickets.iter().filter(out) {
            let conn = self.call(&plan, &self.preamble(ticket), &ticket.secret).expect("a good ticket");
            self.conns.lock().push(conn);
        }
        let report = EdgeReport::all_up(&plan, self.me, &[Purpose::Ring]);
        send(&mut self.stream, &C2m::EdgeReport(report));
        self.plan = Some(plan);
    }

    /// The preamble for which a ticket was given.
    pub(crate) fn preamble(&self, ticket: &Ticket) -> Preamble {
        Preamble {
            run: self.run.0,
            from: self.me.0,
            to: ticket.to.0,
            epoch: ticket.epoch.0,
            link_generation: ticket.generation,
            connection_count: 1,
            security: self.wire.security(),
            ..Preamble::new(ticket.role.role())
        }
    }

    /// Calls the member of a plan that a preamble means.
    pub(crate) fn call(
        &self,
        plan: &GroupPlan,
        preamble: &Preamble,
        key: &SecretKey,
    ) -> Result<Conn, DialError> {
        let member = plan.members.iter().find(|member| member.peer.0 == preamble.to).expect("a member");
        let port = if preamble.role == Role::State { member.state_port } else { member.p2p_port };
        dial_with_preamble(&HostPort::new(member.hosts.as_str(), port), preamble, Some(key), soon())
    }

    /// As [`Rogue::call`], and why it was refused.
    pub(crate) fn refused(&self, preamble: &Preamble, key: &SecretKey) -> Option<Refusal> {
        match self.call(self.plan.as_ref().expect("it was in a ring"), preamble, key) {
            Ok(_) => None,
            Err(DialError::Refused { reason, .. }) => Some(reason),
            Err(other) => panic!("{other}"),
        }
    }

    /// Waits until the master has dropped it.
    pub(crate) fn await_kick(&mut self) {
        while !matches!(receive(&mut self.stream), M2c::Kicked(_)) {}
    }
}

/// Asks until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
