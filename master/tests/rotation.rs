//! A peer that is locked out hears nothing of the new run key, however many connections it has opened with the old one.

use crate::common::{PATIENCE, half_way, launch, registration, stream_to};
use pccl_master::{Master, RunKey, lock_out, query_status, rotate_key};
use pccl_protocol::{
    C2m, EdgeReport, KickCode, KickReason, M2c, PeerId, Purpose, RequestId, VoteTopology,
    limits::MAX_PACKET_BYTES,
};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    dial::dial_with_preamble,
    preamble::{Preamble, REPLY_BYTES, Refusal, Reply, Role},
    stream::PacketStream,
};

fn old() -> RunKey {
    RunKey::from_bytes([1; 32])
}

fn new() -> RunKey {
    RunKey::from_bytes([2; 32])
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A master with the old key and its operator's socket, in a directory that goes with it.
struct Run {
    master: Master,
    directory: PathBuf,
}

impl Run {
    fn begin(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("pccl-rotation-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let master = launch(|config| {
            config.run_key = Some(old());
            config.admin = Some(directory.join("admin"));
        });
        Self { master, directory }
    }

    fn admin(&self) -> PathBuf {
        self.directory.join("admin")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A client with a key.
struct Client {
    stream: PacketStream,
    me: PeerId,
    /// The run keys that it was told.
    told: Vec<RunKey>,
}

impl Client {
    /// It has proven the key, and says nothing.
    fn open(run: &Run) -> Self {
        let address: HostPort = run.master.local_addr().to_string().parse().unwrap();
        let preamble = Preamble::new(Role::Control);
        let conn = dial_with_preamble(&address, &preamble, Some(old().secret()), soon()).expect("let in");
        Self { stream: PacketStream::new(conn, MAX_PACKET_BYTES), me: PeerId(0), told: Vec::new() }
    }

    fn register(run: &Run) -> Self {
        let mut client = Self::open(run);
        client.send(&registration(0));
        let M2c::Registered(registered) = client.wait(|packet| matches!(packet, M2c::Registered(_))) else {
            panic!("another packet")
        };
        client.me = registered.peer;
        client
    }

    fn send(&mut self, packet: &C2m) {
        self.stream.send_bytes(&packet.to_frame(), soon()).expect("the master is there");
    }

    fn wait(&mut self, is_it: impl Fn(&M2c) -> bool) -> M2c {
        loop {
            let (kind, body) = self.stream.recv_packet(soon()).expect("the master is there");
            let packet = M2c::from_frame(kind, &body).expect("a packet");
            match &packet {
                M2c::Keys(keys) => self.told.extend(keys.run.iter().cloned().map(RunKey::from)),
                M2c::GroupPlan(plan) => {
                    let report = EdgeReport::all_up(plan, self.me, &[Purpose::Ring]);
                    self.send(&C2m::EdgeReport(report));
                }
                _ => {}
            }
            if is_it(&packet) {
                return packet;
            }
        }
    }

    fn await_admission(&mut self) {
        self.wait(|packet| matches!(packet, M2c::Admitted(_)));
    }

    /// It is told to go, and nothing else.
    fn await_kick(&mut self) -> KickReason {
        match self.wait(|packet| matches!(packet, M2c::Kicked(_))) {
            M2c::Kicked(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    fn await_new_key(&mut self) {
        while !self.told.contains(&new()) {
            self.wait(|packet| matches!(packet, M2c::Keys(_)));
        }
    }
}

/// Two members.
fn members(run: &Run) -> [Client; 2] {
    let mut first = Client::register(run);
    first.await_admission();
    let mut second = Client::register(run);
    first.send(&C2m::VoteTopology(VoteTopology { request: RequestId(1), wait_for_world: 0 }));
    // Both have to say that the ring stands.
    std::thread::scope(|scope| {
        scope.spawn(|| first.wait(|packet| matches!(packet, M2c::TopologyDone(_))));
        second.await_admission();
    });
    [first, second]
}

#[test]
fn nobody_who_has_only_the_old_key_hears_of_the_new_one() {
    let run = Run::begin("locked-out");
    let [mut good, mut evil] = members(&run);
    let mut preopened = Client::open(&run);
    let mut waiting = Client::register(&run);
    let (mut stream, proof, seal) = half_way(stream_to(run.master.local_addr()), &old());
    let done = lock_out(&run.admin(), &[format!("{:#}", evil.me)], &new(), PATIENCE).expect("obeyed");
    assert!(done.starts_with(&format!("removed {}", evil.me)), "{done}");
    let rest = "the run has a new key, no other one is accepted; peers that were told: 1; connections of others with \
                an old key that were closed: 2";
    assert!(done.ends_with(rest), "{done}");
    good.await_new_key();
    for gone in [&mut evil, &mut preopened, &mut waiting] {
        let reason = gone.await_kick();
        assert_eq!(reason.code, KickCode::Operator, "{reason}");
        assert!(gone.stream.recv_packet(soon()).is_err(), "something behind the kick");
        assert!(!gone.told.contains(&new()), "it heard of the new key");
    }
    // Nor does it help to be in the middle of the handshake.
    stream.write_all(&proof).unwrap();
    let mut conn = tinysockets::conn::Conn::from(stream);
    conn.protect(*seal);
    let mut reply = [0; REPLY_BYTES];
    conn.recv_all(&mut reply, Some(soon())).expect("an answer");
    assert_eq!(Reply::decode(&reply), Ok(Reply::Refused(Refusal::WrongKey)));
    let address = run.master.local_addr().to_string();
    let status = |key| query_status(&address, Some(&key), Duration::from_secs(30));
    assert!(status(old()).unwrap_err().contains("the run key, or the name of the run, is another one"));
    assert_eq!(status(new()).expect("an answer").peers.len(), 1);
}

#[test]
fn a_rotation_without_overlap_closes_what_an_old_key_has_opened_and_one_with_overlap_does_not() {
    let run = Run::begin("overlap");
    let [mut first, mut second] = members(&run);
    let mut preopened = Client::open(&run);
    let both = pccl_master::AcceptedKeys { used: new(), second: Some(old()) };
    rotate_key(&run.admin(), &both, PATIENCE).expect("obeyed");
    preopened.send(&C2m::StatusRequest(RequestId(1)));
    preopened.wait(|packet| matches!(packet, M2c::Status(_)));
    let done = rotate_key(&run.admin(), &new().into(), PATIENCE).expect("obeyed");
    assert!(done.ends_with("closed: 1"), "{done}");
    assert_eq!(preopened.await_kick().code, KickCode::Operator);
    for member in [&mut first, &mut second] {
        member.await_new_key();
        member.send(&crate::common::beat(1));
        member.wait(|packet| matches!(packet, M2c::Echo(_)));
    }
}

fn program(admin: &Path, file: &Path, peer: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-master"));
    command.args(["rotate-key", "--drop", peer, "--key-file"]).arg(file).arg("--admin").arg(admin);
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn the_program_locks_out_only_by_a_key_that_is_new_and_alone() {
    let run = Run::begin("program");
    let mut only = Client::register(&run);
    only.await_admission();
    let me = only.me.to_string();
    let write = |lines: &[RunKey]| {
        let file = run.directory.join("keys");
        let _ = fs::remove_file(&file);
        crate::common::private_file(&file, &lines.iter().map(RunKey::to_text).collect::<Vec<_>>().join("\n"));
        file
    };
    for (lines, peer, text) in [
        (vec![new(), old()], &*me, "has to have one line"),
        (vec![old()], &me, "has to be a new key"),
        (vec![new()], "ffffffffffffffffffffffffffffffff", "no peer has the name"),
    ] {
        let (is_done, said) = program(&run.admin(), &write(&lines), peer);
        assert!(!is_done && said.contains(text), "{said}");
    }
    only.send(&crate::common::beat(1));
    only.wait(|packet| matches!(packet, M2c::Echo(_)));
    let (is_done, said) = program(&run.admin(), &write(&[new()]), &me);
    assert!(is_done && said.starts_with(&format!("removed {me}")), "{said}");
    assert_eq!(only.await_kick().code, KickCode::Operator);
}
