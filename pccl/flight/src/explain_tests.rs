use super::*;
use crate::{Event, Role, Subject, What};
use pccl_protocol::{
    Cause, CollectiveId, CollectiveKind, Culprit, GroupEpoch, GroupId, Host, Name, OpId, Operation, PeerId,
    Phase, Text, Verdict,
};

const RUN: RunId = RunId(0xabc << 96);
/// Start of every recorder by the true clock.
const START: u64 = 1_795_235_000_000_000;

fn id(n: u128) -> PeerId {
    PeerId(n << 96)
}

fn op(tag: u64) -> Subject {
    Subject::Op(OpId { epoch: GroupEpoch(1), tag: tag.into(), attempt: 0 })
}

/// A recorder whose wall clock is wrong by `skew_us`; times are true ones, in milliseconds.
struct Script {
    file: File,
}

impl Script {
    fn new(role: Role, peer: Option<PeerId>, skew_us: i64) -> Self {
        let header = Header {
            role,
            run: Some(RUN),
            peer,
            group: GroupId(0),
            name: Name::default(),
            host: peer.map_or("m".into(), |peer| format!("h{}", peer.0 >> 96)),
            pid: 1,
            instance: peer.map_or(0, |peer| (peer.0 >> 96) as u64),
            started_us: START.checked_add_signed(skew_us).unwrap(),
            written_us: 0,
            dropped: 0,
            why: "test".into(),
        };
        Self { file: File { header, entries: Vec::new() } }
    }

    fn at(&mut self, ms: u64, event: Event) -> &mut Self {
        let sequence = self.file.entries.len() as u64;
        self.file.entries.push(Entry { sequence, at_us: ms * 1000, event });
        self.file.header.written_us = ms * 1000;
        self
    }

    fn text(&self) -> (String, String) {
        (format!("{}.flight", self.file.header.host), self.file.to_text())
    }
}

fn packet(what: What, name: &'static str, tag: u64) -> Event {
    Event::new(what).named(name).about(op(tag))
}

fn verdict(dead: PeerId) -> Event {
    Event::verdict(&Verdict {
        cause: Cause::PeerDied,
        culprits: vec![Culprit { peer: dead, host: Host::new("h2"), name: Name::default() }],
        operation: Operation::Collective(CollectiveId {
            kind: CollectiveKind::AllReduce,
            op: OpId { epoch: GroupEpoch(1), tag: 7.into(), attempt: 0 },
        }),
        phase: Phase::Transfer,
        bytes_done: 100,
        silent_ms: 0,
        detail: Text::new("connection reset"),
    })
}

/// Peers 1, 2, 3 and a master; peer 2 dies in an all-reduce, peer 1 notices first. Clocks are wrong by `skews` (peers).
fn death(skews: [i64; 3], with_master: bool) -> Vec<(String, String)> {
    let mut master = Script::new(Role::Master, None, 0);
    let mut peers: Vec<Script> =
        (1..=3).map(|n| Script::new(Role::Peer, Some(id(n)), skews[n as usize - 1])).collect();
    for (n, peer) in (1..).zip(&mut peers) {
        peer.at(0, Event::new(What::Registered).peer(id(n)).text(RUN.to_string()));
        master.at(0, Event::new(What::PeerRegistered).peer(id(n)).text(format!("h{n}")));
        peer.at(100, packet(What::Sent, "Initiate", 7));
        master.at(101, packet(What::Received, "Initiate", 7).peer(id(n)));
    }
    for (n, peer) in (1..).zip(&mut peers) {
        master.at(102, packet(What::Sent, "Commence", 7).peer(id(n)));
        peer.at(103, packet(What::Received, "Commence", 7));
    }
    peers[0].at(200, Event::new(What::LinkBroken).named("in").peer(id(2)).text("reset by peer"));
    peers[0].at(201, packet(What::Sent, "Complete", 7));
    master.at(202, packet(What::Received, "Complete", 7).peer(id(1)));
    master.at(203, Event::new(What::PeerLost).peer(id(2)).text("connection closed"));
    master.at(204, verdict(id(2)));
    for (n, peer) in [(1, 0), (3, 2)] {
        master.at(205, packet(What::Sent, "Outcome", 7).peer(id(n)));
        peers[peer].at(206, packet(What::Received, "Outcome", 7));
        peers[peer].at(206, verdict(id(2)));
        peers[peer].at(207, Event::new(What::OpResult).named("aborted").about(op(7)).bytes(50));
    }
    let mut files = vec![peers[0].text(), peers[2].text()];
    if with_master {
        files.push(master.text());
    }
    files
}

fn explained(files: Vec<(String, String)>) -> Explained {
    explain(files, &Options::default()).unwrap()
}

/// Events of the time line in order: those that contain one of `wanted`.
fn order_of<'a>(text: &str, wanted: &[&'a str]) -> Vec<&'a str> {
    let lines = text.split("Time line").nth(1).unwrap().lines();
    lines.filter_map(|line| wanted.iter().find(|wanted| line.contains(**wanted)).copied()).collect()
}

#[test]
fn it_begins_with_the_first_cause_and_says_who_only_suffered() {
    let Explained { text, warnings } = explained(death([0; 3], true));
    assert!(warnings.is_empty(), "{warnings:?}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "First cause: peer died: peer 00000002 (h2)");
    assert!(lines[1].contains("all-reduce tag 7 (epoch 1, attempt 0) failed while transfer"), "{text}");
    assert!(lines[2].contains("peer 00000001 (h1): connection from peer 00000002 (h2) broken"), "{text}");
    let suffered = text.split("Only suffered:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    assert_eq!(suffered.lines().count(), 2, "{text}");
    assert!(suffered.contains("peer 00000001 (h1): +0.007000 s  op result: aborted, tag 7"), "{text}");
    assert!(suffered.contains("peer 00000003 (h3)"), "{text}");
    let last = text.split("Last events of each").nth(1).unwrap().split("\n\n").next().unwrap();
    assert!(last.lines().nth(1).unwrap().contains("peer 00000002 (h2)  (cause)"), "{text}");
    assert!(
        last.contains("to peer 00000002 (h2): Commence, tag 7"),
        "what the master saw of it last: {text}"
    );
}

#[test]
fn wrong_clocks_are_put_right() {
    let expected = ["Initiate", "Commence", "connection from", "lost peer", "op result"];
    let right = order_of(&explained(death([0; 3], true)).text, &expected);
    for skews in [[5_000_000, 0, -7_000_000], [-3_600_000_000, 0, 86_400_000_000], [20_000, 0, -20_000]] {
        for with_master in [true, false] {
            let text = explained(death(skews, with_master)).text;
            let found = order_of(&text, &expected);
            if with_master {
                assert_eq!(found, right, "{skews:?}: {text}");
                assert_eq!(text.lines().filter(|line| line.contains("is moved by")).count(), 2, "{text}");
            } else {
                let alone = order_of(&explained(death([0; 3], false)).text, &expected);
                assert_eq!(found, alone, "{skews:?}: {text}");
            }
            assert!(text.starts_with("First cause: peer died: peer 00000002"), "{text}");
        }
    }
}

#[test]
fn damaged_files_are_skipped_with_a_warning() {
    let mut files = death([0; 3], true);
    files.push(("noise".into(), "\u{0}\u{fffd} not a file".into()));
    let (name, whole) = files[0].clone();
    let cut = whole[..whole.len() - 30].to_owned();
    files[0] = (name, cut);
    let Explained { text, warnings } = explained(files);
    assert!(text.starts_with("First cause: peer died: peer 00000002"), "{text}");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("h1.flight"), "{warnings:?}");
    assert!(warnings[1].contains("noise: skipped"), "{warnings:?}");
}

#[test]
fn without_files_it_is_an_error() {
    let error = explain([], &Options::default()).unwrap_err();
    assert!(error.contains("no file"), "{error}");
    let error = explain([("a".into(), "b".into())], &Options::default()).unwrap_err();
    assert!(error.contains("a: skipped"), "{error}");
}

#[test]
fn files_of_one_recorder_are_put_together() {
    let mut files = death([0; 3], true);
    let (name, text) = files[0].clone();
    let (mut early, _) = File::parse(&text).unwrap();
    early.entries.truncate(2);
    early.header.written_us = 1;
    files.push((format!("early-{name}"), early.to_text()));
    assert_eq!(explained(files).text, explained(death([0; 3], true)).text);
}

#[test]
fn a_lost_master_is_the_cause_for_all() {
    let mut files = Vec::new();
    for n in 1..=3 {
        let mut peer = Script::new(Role::Peer, Some(id(n)), 0);
        peer.at(0, Event::new(What::Registered).peer(id(n)).text(RUN.to_string()));
        peer.at(500 + n as u64, Event::new(What::SessionEnded).named("master-lost").text("connection reset"));
        files.push(peer.text());
    }
    let text = explained(files).text;
    assert!(text.starts_with("First cause: master lost: the master\n  connection reset\n"), "{text}");
    assert_eq!(
        text.split("Only suffered:").nth(1).unwrap().split("\n\n").next().unwrap().trim().lines().count(),
        3
    );
}

#[test]
fn failures_that_lie_apart_are_told_apart() {
    let mut peer = Script::new(Role::Peer, Some(id(1)), 0);
    peer.at(0, Event::new(What::Registered).peer(id(1)).text(RUN.to_string()));
    peer.at(1000, verdict(id(2))).at(60_000, verdict(id(3)));
    let file = peer.text();
    let show = |incident| explain([file.clone()], &Options { incident, ..Options::default() });
    assert!(show(None).unwrap().text.starts_with("First cause: peer died: peer 00000003"));
    assert!(show(Some(1)).unwrap().text.starts_with("First cause: peer died: peer 00000002"));
    assert!(show(Some(3)).unwrap_err().contains("2"));
}

#[test]
fn other_runs_are_left_out() {
    let mut files = death([0; 3], true);
    let mut old = Script::new(Role::Master, None, -3_600_000_000);
    old.file.header.run = Some(RunId(0xdef << 96));
    old.at(1, Event::new(What::PeerLost).peer(id(9)).text("long ago"));
    files.push(old.text());
    let text = explained(files.clone()).text;
    assert!(!text.contains("long ago") && text.contains("00000def"), "{text}");
    let options = Options { run: Some("00000def".into()), ..Options::default() };
    let text = explain(files.clone(), &options).unwrap().text;
    assert!(text.starts_with("First cause: connection to the master lost: peer 00000009"), "{text}");
    let options = Options { run: Some("77".into()), ..Options::default() };
    assert!(explain(files, &options).unwrap_err().contains("00000abc"));
}

#[test]
fn no_failure_is_no_error() {
    let mut peer = Script::new(Role::Peer, Some(id(1)), 0);
    peer.at(0, Event::new(What::Note).text("fine"));
    assert!(explained(vec![peer.text()]).text.starts_with("No failure"));
}
