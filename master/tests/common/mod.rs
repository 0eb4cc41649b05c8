//! A client made of a plain TCP stream and the codecs, so that tests see every byte.
#![allow(dead_code, reason = "each test binary uses its own part")]

use pccl_master::{Master, MasterConfig, RunKey};
use pccl_protocol::{
    Beat, C2m, EdgeReport, GroupId, GroupPlan, KickReason, M2c, Name, PeerId, Purpose, Register, Registered,
    RequestId, VoteTopology, WorldSizes, limits::MAX_PACKET_BYTES,
};
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};
use tinysockets::{
    handshake::{ANSWER_BYTES, Heard, Knock},
    preamble::{Preamble, REPLY_BYTES, Reply, Role},
    seal::{PROOF_BYTES, Seal},
    wire::FrameParser,
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A master on a free port of the loopback interface. Clients listen nowhere and do not come back, unless the test is
/// about that.
pub(crate) fn launch(change: impl FnOnce(&mut MasterConfig)) -> Master {
    let mut config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        peer_timeout: PATIENCE,
        return_grace: Some(Duration::ZERO),
        ..MasterConfig::default()
    };
    change(&mut config);
    Master::launch(config).expect("a master starts on a free port")
}

/// A stream that fails rather than waits for ever.
pub(crate) fn stream_to(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the master accepts");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends bytes in place of a preamble and reads everything up to the end of the stream. Errors count as the end: a
/// connection that is closed with unread bytes in it is reset.
pub(crate) fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = stream_to(address);
    // The master may close while bytes are still being sent.
    let _ = stream.write_all(bytes);
    read_to_end(&mut stream)
}

/// Reads up to the end of the stream or its first error, except a time-out.
pub(crate) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                panic!("the master neither answers nor closes; {} bytes so far", all.len())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return all,
        }
    }
}

/// A beat that says nothing.
pub(crate) fn beat(sequence: u64) -> C2m {
    C2m::Beat(Beat { sequence, ..Beat::default() })
}

/// A registration for `group`.
pub(crate) fn registration(group: u32) -> C2m {
    C2m::Register(Register {
        group: GroupId(group),
        advertised_host: None,
        addresses: Vec::new(),
        p2p_port: 1,
        state_port: 2,
        pool_connections: 1,
        name: Name::new("client"),
        previous: None,
        formed: false,
        alone: false,
        resume: None,
        outbound_only: Some(false),
        site: Name::default(),
    })
}

/// A connection whose preamble was accepted.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    parser: FrameParser,
    /// Its identity, once it is registered.
    me: PeerId,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::greet(stream_to(address))
    }

    /// Sends a preamble and reads the answer.
    pub(crate) fn greet(mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&Preamble::new(Role::Control).encode()).unwrap();
        Self::after_preamble(stream)
    }

    /// Reads the answer to a preamble that was sent.
    pub(crate) fn after_preamble(mut stream: TcpStream) -> Self {
        let mut reply = [0; REPLY_BYTES];
        stream.read_exact(&mut reply).expect("an answer to the preamble");
        assert!(matches!(Reply::decode(&reply), Ok(Reply::Accepted | Reply::AcceptedHere)));
        Self { stream, parser: FrameParser::new(MAX_PACKET_BYTES), me: PeerId(0) }
    }

    /// Connects and registers.
    pub(crate) fn register(address: SocketAddr, group: u32) -> (Self, Registered) {
        let mut client = Self::connect(address);
        client.send(&registration(group));
        let registered = client.wait_for("Registered", |packet| match packet {
            M2c::Registered(registered) => Some(registered),
            _ => None,
        });
        client.me = registered.peer;
        (client, registered)
    }

    pub(crate) fn send(&mut self, packet: &C2m) {
        self.stream.write_all(&packet.to_frame()).expect("the master reads");
    }

    /// The next packet; `None` at the end of the stream.
    pub(crate) fn receive(&mut self) -> Option<M2c> {
        let mut piece = [0; 4096];
        loop {
            if let Some((kind, body)) =
                self.parser.next_frame().expect("frames of the master are well-formed")
            {
                return Some(M2c::from_frame(kind, body).expect("packets of the master can be decoded"));
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(n) => self.parser.feed(&piece[..n]),
                // A process that was stopped and goes on: a read with a time limit is not begun again by itself.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => panic!("no packet from the master: {error}"),
            }
        }
    }

    /// Passes over packets until `pick` takes one.
    pub(crate) fn wait_for<T>(&mut self, what: &str, mut pick: impl FnMut(M2c) -> Option<T>) -> T {
        let mut seen = Vec::new();
        loop {
            let packet =
                self.receive().unwrap_or_else(|| panic!("stream ended before {what}, after {seen:?}"));
            seen.push(format!("{packet:?}"));
            if let Some(found) = pick(packet) {
                return found;
            }
        }
    }

    /// Waits for a ring with `members` members, of whatever epoch, and confirms it and those before.
    pub(crate) fn confirm_ring_of(&mut self, members: usize) -> GroupPlan {
        loop {
            let plan = self.wait_for("GroupPlan", |packet| match packet {
                M2c::GroupPlan(plan) => Some(plan),
                _ => None,
            });
            self.send(&C2m::EdgeReport(EdgeReport::all_up(&plan, self.me, &[Purpose::Ring])));
            if plan.members.len() == members {
                return plan;
            }
        }
    }

    pub(crate) fn wait_for_admission(&mut self) -> WorldSizes {
        self.wait_for("Admitted", |packet| match packet {
            M2c::Admitted(sizes) => Some(sizes),
            _ => None,
        })
    }

    /// Votes to admit those who wait; the answer comes later.
    pub(crate) fn vote_topology(&mut self, request: u64) {
        self.send(&C2m::VoteTopology(VoteTopology { request: RequestId(request), wait_for_world: 0 }));
    }

    /// Sends a beat and waits for its echo: proof that the master still serves this client.
    pub(crate) fn check_alive(&mut self, sequence: u64) {
        self.send(&beat(sequence));
        self.wait_for("Echo", |packet| match packet {
            M2c::Echo(echo) if echo.sequence == sequence => Some(()),
            _ => None,
        });
    }

    /// Waits for the kick and the end of the stream behind it.
    pub(crate) fn wait_for_kick(&mut self) -> KickReason {
        let reason = self.wait_for("Kicked", |packet| match packet {
            M2c::Kicked(reason) => Some(reason),
            _ => None,
        });
        assert_eq!(self.receive(), None, "something behind the kick");
        reason
    }
}

/// A file that only this user reads, as a file with a key has to be.
pub(crate) fn private_file(path: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a new file");
}

/// A connection whose first message was answered, and what has to be said for it to go on.
pub(crate) fn half_way(mut stream: TcpStream, key: &RunKey) -> (TcpStream, [u8; PROOF_BYTES], Box<Seal>) {
    let (mut knock, hello) = Knock::new(&Preamble::new(Role::Control), Some(key.secret())).unwrap();
    stream.write_all(&hello).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).unwrap();
    let mut rest = &answer[..];
    loop {
        let place = knock.missing();
        let count = place.len();
        place.copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        match knock.received(count).expect("a good answer") {
            Heard::Proven(proof, seal) => return (stream, proof, seal),
            Heard::Nothing => {}
            Heard::Reply(reply) => panic!("{reply:?}"),
        }
    }
}
