//! A process that has the run key and has not registered may visit peers to measure the way to them, and may do nothing
//! else.

use crate::{
    fleet::{Fleet, config},
    peer::WATCHDOG,
    rogue::{control, receive, send, until},
};
use pccl::{MasterConfig, RunKey};
use pccl_protocol::{C2m, Examine, Examined, Host, M2c, Padding, PeerId, RequestId, Ticket, TicketRole};
use pccl_tests::spec::Spec;
use std::time::Instant;
use tinysockets::{
    address::HostPort,
    conn::Conn,
    dial::{DialError, dial_with_preamble},
    key::SecretKey,
    preamble::{Preamble, Refusal, Role},
    stream::PacketStream,
};

fn key() -> RunKey {
    RunKey::from_bytes([0x56; 32])
}

/// Somebody who has the run key and has asked to be examined, and what it was given.
struct Visitor {
    me: u128,
    told: Examined,
    tickets: Vec<Ticket>,
    /// The master forgets who leaves, and peers do not ask it.
    _control: PacketStream,
}

impl Visitor {
    fn examined(master: &str, me: u128) -> Self {
        let mut stream = control(master, &key());
        let question = Examine {
            request: RequestId(1),
            peer: PeerId(me),
            advertised_host: Some(Host::new("127.0.0.1")),
            addresses: Vec::new(),
            p2p_port: 9,
            state_port: 9,
            padding: Padding(0),
        };
        send(&mut stream, &C2m::Examine(question));
        let M2c::Tickets(given) = receive(&mut stream) else { panic!("the tickets come first") };
        let M2c::Examined(told) = receive(&mut stream) else { panic!("then the answer") };
        Self { me, told, tickets: given.tickets, _control: stream }
    }

    fn preamble(&self, ticket: &Ticket) -> Preamble {
        Preamble {
            run: self.told.run.0,
            from: self.me,
            to: ticket.to.0,
            epoch: ticket.epoch.0,
            link_generation: ticket.generation,
            connection_count: 1,
            security: self.told.wire.expect("a run with a key").security(),
            ..Preamble::new(ticket.role.role())
        }
    }

    /// Calls the port for a role; the connection, or why it was refused.
    fn call(&self, preamble: &Preamble, secret: &SecretKey) -> Result<Conn, Refusal> {
        let mut peers = self.told.peers.iter();
        let target = &peers.find(|it| it.target.peer.0 == preamble.to).expect("a peer").target;
        let is_state = matches!(preamble.role, Role::State | Role::StateBack);
        let port = if is_state { target.state_port } else { target.p2p_port };
        let place = HostPort::new(target.hosts.as_str(), port);
        match dial_with_preamble(&place, preamble, Some(secret), Instant::now() + WATCHDOG) {
            Ok(conn) => Ok(conn),
            Err(DialError::Refused { reason, .. }) => Err(reason),
            Err(other) => panic!("{other}"),
        }
    }

    fn refused(&self, preamble: &Preamble, secret: &SecretKey) -> Option<Refusal> {
        self.call(preamble, secret).err()
    }
}

/// Two peers in a run with a key.
fn fleet() -> Fleet {
    let config = MasterConfig { run_key: Some(key()), ..config() };
    Fleet::with(config, 2, &[&format!("key={}", key().to_text())])
}

#[test]
fn a_ticket_for_a_visit_opens_nothing_else() {
    let mut fleet = fleet();
    let visitor = Visitor::examined(&fleet.address, 77);
    let other = Visitor::examined(&fleet.address, 78);
    let given: Vec<_> = visitor.tickets.iter().map(|it| (it.to, it.role, it.epoch.0)).collect();
    let peers: Vec<_> = visitor.told.peers.iter().map(|it| (it.target.peer, TicketRole::Probe, 0)).collect();
    assert_eq!((given.len(), &given), (2, &peers));
    let wrong = Some(Refusal::WrongTicket);
    for (ticket, others) in visitor.tickets.iter().zip(&other.tickets) {
        let good = visitor.preamble(ticket);
        let refused = |preamble: Preamble| visitor.refused(&preamble, &ticket.secret);
        for role in [Role::Data, Role::State, Role::DataBack, Role::StateBack, Role::ProbeBack] {
            for epoch in [0, 1, 2] {
                assert_eq!(refused(Preamble { role, epoch, ..good }), wrong, "{role:?} in epoch {epoch}");
            }
        }
        assert_eq!(refused(Preamble { epoch: 1, ..good }), wrong, "as a member");
        for from in [0, other.me, given[0].0.0, given[1].0.0] {
            assert_eq!(refused(Preamble { from, ..good }), wrong, "as somebody else");
        }
        let end = good.link_generation + 1;
        assert_eq!(refused(Preamble { link_generation: end, ..good }), wrong, "for longer");
        assert_eq!(visitor.refused(&good, &others.secret), wrong, "by the ticket of another one");
        assert_eq!(visitor.refused(&good, key().secret()), wrong, "the run key is no ticket");
    }
    let [first, second] = &visitor.tickets[..] else { panic!("two peers") };
    assert_eq!(visitor.refused(&visitor.preamble(first), &second.secret), wrong, "at another peer");
    // None of that has used them up.
    assert!(visitor.tickets.iter().all(|it| visitor.refused(&visitor.preamble(it), &it.secret).is_none()));
    fleet.reduce(Spec::sum(700_000, 1));
}

#[test]
fn a_ticket_is_good_for_one_visit_and_a_peer_serves_few() {
    let mut fleet = fleet();
    let [first, second] = [80, 81].map(|me| Visitor::examined(&fleet.address, me));
    let call = |visitor: &Visitor| {
        let ticket = &visitor.tickets[0];
        visitor.call(&visitor.preamble(ticket), &ticket.secret)
    };
    let visits = [call(&first).expect("a visit"), call(&second).expect("another one")];
    assert_eq!(call(&first).unwrap_err(), Refusal::WrongTicket, "a second time, while it lasts");
    let third = Visitor::examined(&fleet.address, 82);
    assert_eq!(call(&third).unwrap_err(), Refusal::Full);
    drop(visits);
    // It was not used, and the peer finds out that the others have gone.
    until("room for the third", || call(&third).is_ok());
    assert_eq!(call(&second).unwrap_err(), Refusal::WrongTicket, "a second time, afterwards");
    let many = (100..120).map(|me| Visitor::examined(&fleet.address, me));
    let served = many.filter(|visitor| call(visitor).is_ok()).count();
    assert!(served < 10, "{served} of 20 at once");
    fleet.reduce(Spec::sum(700_000, 2));
}

#[test]
fn a_visit_ends_although_the_visitor_goes_on() {
    let mut fleet = fleet();
    let visitor = Visitor::examined(&fleet.address, 90);
    let ticket = &visitor.tickets[0];
    let conn = visitor.call(&visitor.preamble(ticket), &ticket.secret).expect("a visit");
    let piece = vec![0; 64 << 10];
    let mut sent = 0_u64;
    let deadline = Instant::now() + WATCHDOG;
    // Counts come back meanwhile, and nobody reads them.
    while conn.send_all(&piece, Some(deadline)).is_ok() {
        sent += piece.len() as u64;
    }
    assert!(Instant::now() < deadline, "it was never ended");
    let room = 64 << 20;
    assert!(sent < pccl_protocol::limits::MAX_VISIT_BYTES + room, "{sent} bytes");
    fleet.reduce(Spec::sum(700_000, 3));
}
