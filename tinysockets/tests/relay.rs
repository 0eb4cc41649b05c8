//! Two ends meet at a relay: with a key and without, what is between them, and what ends it.

use std::{
    io,
    net::Shutdown,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor},
    address::HostPort,
    conn::Conn,
    dial::introduce,
    key::{RunKey, SecretKey},
    listener::Listener,
    place::Place,
    preamble::{Preamble, Role, SECURITY_KEY},
    relay::{Relay, RelayLimits, Visit, VisitError, visit},
    ticket::Lock,
};

const TOKEN: u64 = 99;
const LIMITS: RelayLimits =
    RelayLimits { bytes_per_second: 1 << 30, pairs_max: 2, patience: Duration::from_secs(60) };

fn key() -> RunKey {
    RunKey::from_bytes([5; 32])
}

fn relay(lock: Option<Lock>, limits: RelayLimits) -> (Relay, Place) {
    let listener = Listener::bind(Some([127, 0, 0, 1].into()), 0, 1).unwrap();
    let relay = Relay::start(listener, lock, (1, TOKEN), limits).unwrap();
    let place = HostPort::new("127.0.0.1", relay.local_port()).into();
    (relay, place)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn wish(begins: bool) -> Visit {
    let (from, to) = if begins { (7, 8) } else { (8, 7) };
    Visit { run: 1, token: TOKEN, from, to, begins, role: Role::Data, generation: 3, index: 0 }
}

fn meet(place: &Place, visits: [Visit; 2], key: Option<&SecretKey>) -> [Result<Conn, VisitError>; 2] {
    thread::scope(|scope| {
        let other = scope.spawn(|| visit(place, &visits[1], key, soon()));
        [visit(place, &visits[0], key, soon()), other.join().unwrap()]
    })
}

fn met(place: &Place, key: Option<&SecretKey>) -> [Conn; 2] {
    meet(place, [wish(true), wish(false)], key).map(Result::unwrap)
}

#[test]
fn the_ends_get_each_others_bytes_and_the_end_of_one_is_that_of_the_other() {
    let (relay, place) = relay(None, LIMITS);
    let [one, two] = met(&place, None);
    let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 % 251) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| one.send_all(&sent, Some(soon())).unwrap());
        let mut got = vec![0; sent.len()];
        two.recv_all(&mut got, Some(soon())).unwrap();
        assert!(got == sent);
    });
    two.send_all(b"back", Some(soon())).unwrap();
    let mut got = [0; 4];
    one.recv_all(&mut got, Some(soon())).unwrap();
    assert_eq!((&got, relay.gauge().pairs()), (b"back", vec![(7, 8)]));
    two.shutdown(Shutdown::Write).unwrap();
    assert_eq!(one.recv_some(&mut got, Some(soon())).unwrap(), 0);
    assert_eq!(relay.gauge().bytes(), sent.len() as u64 + 4);
    drop(relay);
}

#[test]
fn a_connection_of_its_own_begins_at_the_end_that_did_not_begin() {
    // With a key all of it is proven twice: to the relay by the key of the run, and to the other end by another one.
    let (_relay, place) = relay(Some(key().into()), LIMITS);
    let listener = Listener::bind(Some([127, 0, 0, 1].into()), 0, 1).unwrap();
    let (came, comes) = mpsc::channel();
    let lock = Lock::from(RunKey::from_bytes([6; 32]));
    let handler = Box::new(move |incoming: tinysockets::acceptor::Incoming| {
        came.send((incoming.preamble.from, incoming.accept().unwrap())).unwrap();
    });
    let acceptor =
        Acceptor::spawn(vec![(Role::Data, listener)], AcceptLimits::default(), Some(lock), handler).unwrap();
    let [one, two] = met(&place, Some(key().secret()));
    acceptor.entrance().bring(Role::Data, two);
    // Of a run with a key without tickets, as that of a master is.
    let hello = Preamble { security: SECURITY_KEY, from: 7, ..Preamble::new(Role::Data) };
    let inner = RunKey::from_bytes([6; 32]);
    let one = introduce(one, &place.target, &hello, Some(inner.secret()), soon()).unwrap();
    let (from, two) = comes.recv_timeout(Duration::from_secs(60)).unwrap();
    one.send_all(b"sealed", Some(soon())).unwrap();
    let mut got = [0; 6];
    two.recv_all(&mut got, Some(soon())).unwrap();
    assert_eq!((from, &got), (7, b"sealed"));
}

#[test]
fn who_has_no_right_to_it_is_turned_away_and_who_is_alone_is_closed() {
    let (_relay, place) = relay(Some(key().into()), RelayLimits { patience: Duration::ZERO, ..LIMITS });
    let another = RunKey::from_bytes([6; 32]);
    let of = |wish: Visit, key: Option<&RunKey>| {
        visit(&place, &wish, key.map(RunKey::secret), soon()).expect_err("it is closed")
    };
    let token = Visit { token: 1, ..wish(true) };
    let run = Visit { run: 2, ..wish(true) };
    for error in
        [of(wish(true), None), of(wish(true), Some(&another)), of(token, Some(&key())), of(run, Some(&key()))]
    {
        assert!(matches!(error, VisitError::Dial(_)), "{error}");
    }
    let alone = of(wish(true), Some(&key()));
    assert!(
        matches!(&alone, VisitError::Alone(error) if error.kind() == io::ErrorKind::UnexpectedEof),
        "{alone}"
    );
}

#[test]
fn all_bytes_together_are_bounded_and_so_are_the_pairs() {
    // The first tenth of a second is free; after that a MB takes half a second.
    let limits = RelayLimits { bytes_per_second: 2_000_000, pairs_max: 1, ..LIMITS };
    let (relay, place) = relay(None, limits);
    let [one, two] = met(&place, None);
    let one = Arc::new(one);
    let began = Instant::now();
    let writer = one.clone();
    let sends = thread::spawn(move || writer.send_all(&vec![1; 1_200_000], Some(soon())));
    two.recv_all(&mut vec![0; 1_200_000], Some(soon())).unwrap();
    sends.join().unwrap().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(480), "{:?}", began.elapsed());
    let more = [true, false].map(|begins| Visit { generation: 4, ..wish(begins) });
    assert!(meet(&place, more, None).iter().all(Result::is_err), "there is room for one pair");
    assert_eq!(relay.gauge().pairs().len(), 1);
}
