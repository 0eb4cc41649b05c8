use super::*;
use pccl_flight::{Role, Settings};
use pccl_protocol::{
    Cause, CollectiveId, CollectiveKind, Host, KickCode, KickReason, Name, Nothing, OpId, OpOutcome,
    Operation, Phase, Register, Registered, RequestId, RunId, Text,
};
use std::net::Ipv4Addr;

fn observer() -> Observer {
    let settings = Settings { directory: None, capacity: 100 };
    Observer::new(Arc::new(Recorder::new(Role::Master, GroupId(0), settings)))
}

fn registration(host: Option<&str>) -> Register {
    Register {
        group: GroupId(4),
        advertised_host: host.map(Host::new),
        addresses: Vec::new(),
        p2p_port: 1,
        state_port: 2,
        pool_connections: 0,
        name: Name::default(),
        previous: None,
        formed: false,
        alone: false,
        resume: None,
        outbound_only: Some(false),
        site: Name::default(),
    }
}

fn register(observer: &mut Observer, key: u64, host: Option<&str>) -> PeerId {
    let client = ClientKey(key);
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, key as u8));
    observer.input(&Input::Connected { client, remote: ip, local: ip });
    let packet = C2m::Register(registration(host));
    observer.input(&Input::Packet { client, packet });
    let peer = PeerId(u128::from(key));
    let registered = Registered {
        run: RunId(1),
        peer,
        beat_interval_ms: 1,
        peer_timeout_ms: 1,
        wire: None,
        state_key: None,
        relay: None,
        comes_back: false,
    };
    observer.output(client, &M2c::Registered(registered));
    peer
}

fn events(observer: &Observer) -> Vec<Event> {
    observer.recorder.snapshot("test").entries.into_iter().map(|entry| entry.event).collect()
}

fn kinds(observer: &Observer) -> Vec<What> {
    events(observer).into_iter().map(|event| event.what).collect()
}

#[test]
fn a_peer_is_known_by_the_host_that_it_names_or_comes_from() {
    let mut observer = observer();
    let (a, b) = (register(&mut observer, 1, Some("node7")), register(&mut observer, 2, None));
    let found = events(&observer);
    let registered: Vec<&Event> = found.iter().filter(|event| event.what == What::PeerRegistered).collect();
    assert_eq!(registered[0], &Event::new(What::PeerRegistered).peer(a).count(4).text("node7"));
    assert_eq!(registered[1], &Event::new(What::PeerRegistered).peer(b).count(4).text("10.0.0.2"));
}

#[test]
fn packets_of_strangers_are_not_recorded() {
    let mut observer = observer();
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let client = ClientKey(1);
    observer.input(&Input::Connected { client, remote: ip, local: ip });
    observer.input(&Input::Packet { client, packet: C2m::StatusRequest(RequestId(1)) });
    observer.output(client, &M2c::Kicked(KickReason::new(KickCode::Full, "")));
    observer.input(&Input::Disconnected { client, text: "closed".into() });
    assert_eq!(kinds(&observer), []);
}

#[test]
fn a_loss_is_one_only_if_the_peer_was_neither_dropped_nor_left() {
    let mut observer = observer();
    for key in 1..=3 {
        register(&mut observer, key, None);
    }
    let before = events(&observer).len();
    observer.input(&Input::Disconnected { client: ClientKey(1), text: "reset".into() });
    observer.output(ClientKey(2), &M2c::Kicked(KickReason::new(KickCode::Silent, "10 s")));
    observer.closed(ClientKey(2));
    observer.output(ClientKey(3), &M2c::Goodbye(Nothing {}));
    observer.closed(ClientKey(3));
    for key in 1..=3 {
        observer.input(&Input::Disconnected { client: ClientKey(key), text: "closed".into() });
    }
    let kinds = kinds(&observer).split_off(before);
    assert_eq!(kinds, [What::PeerLost, What::PeerKicked, What::Sent, What::PeerLeft, What::Sent]);
}

#[test]
fn a_verdict_for_many_is_noted_once() {
    let mut observer = observer();
    let peers = [register(&mut observer, 1, None), register(&mut observer, 2, None)];
    let op = OpId { epoch: GroupEpoch(1), tag: 0.into(), attempt: 0 };
    for attempt in 0..2 {
        let op = OpId { attempt, ..op };
        let verdict = Verdict {
            cause: Cause::CallerAbort,
            culprits: Vec::new(),
            operation: Operation::Collective(CollectiveId { kind: CollectiveKind::AllReduce, op }),
            phase: Phase::Transfer,
            bytes_done: 0,
            silent_ms: 0,
            detail: Text::new(""),
        };
        for key in 1..=peers.len() as u64 {
            let outcome = OpOutcome { op, outcome: Outcome::Aborted(verdict.clone()) };
            observer.output(ClientKey(key), &M2c::Outcome(outcome));
        }
    }
    assert_eq!(kinds(&observer).into_iter().filter(|what| *what == What::Verdict).count(), 2);
}

#[test]
fn who_was_registered_with_a_master_that_died_is_known_to_the_next_one() {
    let mut observer = observer();
    let (client, peer, remote) = (ClientKey(3), PeerId(3), IpAddr::V4(Ipv4Addr::LOCALHOST));
    let register = Register { name: Name::new("blue"), ..registration(Some("node7")) };
    observer.recall([(client, peer, remote, &register)].into_iter());
    observer.input(&Input::Disconnected { client, text: "reset".into() });
    let found = events(&observer);
    assert_eq!((found[0].what, found[0].peer, found[0].count), (What::PeerRegistered, Some(peer), Some(4)));
    assert_eq!(found[0].text.as_deref(), Some("blue, node7"));
    assert_eq!((found[1].what, found[1].peer), (What::PeerLost, Some(peer)));
}
