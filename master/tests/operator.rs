//! An operator at a running master asks for the status, removes a peer, has stragglers dropped, chooses a revision.

use crate::common::{Client, PATIENCE, launch};
use pccl_master::{MasterConfig, RunKey, query_status, remove_peer};
use pccl_protocol::{
    Algorithm, C2m, Cause, Descriptor, GroupEpoch, Initiate, KickCode, M2c, OpId, Outcome, PartDescriptor,
    RequestId, Revision, StatusWait, SyncInitiate, SyncOutcome, SyncOutcomeFor, SyncStrategy,
    limits::MAX_STRANGER_REQUESTS,
};
use pccl_quant::{DataType, ReduceOp};
use pccl_testkit::{directory::Directory, ports::free_port};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Two accepted peers, the first of which waits with an all-reduce for the other.
fn two_peers(address: SocketAddr) -> (Client, Client, OpId) {
    let (mut first, _) = Client::register(address, 0);
    first.confirm_ring_of(1);
    first.wait_for_admission();
    let (mut second, _) = Client::register(address, 0);
    first.vote_topology(1);
    first.confirm_ring_of(2);
    let plan = second.confirm_ring_of(2);
    second.wait_for_admission();
    let op = OpId { epoch: plan.epoch, tag: 7.into(), attempt: 0 };
    first.send(&initiate(op));
    first.check_alive(1);
    (first, second, op)
}

fn initiate(op: OpId) -> C2m {
    let part = PartDescriptor::new(8, DataType::Float32, ReduceOp::Sum);
    C2m::Initiate(Initiate {
        op,
        descriptor: Descriptor::all_reduce(vec![part], Algorithm::Automatic),
        has_begun: false,
    })
}

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pccl-master"))
        .args(arguments)
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("RUNTIME_DIRECTORY")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn the_status_names_who_is_waited_for() {
    let master = launch(|_| {});
    let (mut first, _second, _) = two_peers(master.local_addr());
    let status = query_status(&master.local_addr().to_string(), None, PATIENCE).unwrap();
    assert_eq!((status.run, status.peers.len(), status.sizes.global), (master.run_id(), 2, 2));
    // Beside it stand the ports of these clients, at which nobody listens.
    let of_op = |wait: &&StatusWait| wait.text.as_str().contains("all-reduce tag 7");
    let wait = status.waits.iter().find(of_op).unwrap_or_else(|| panic!("{status}"));
    assert!(wait.text.as_str().contains(&status.peers[1].peer.to_string()), "{status}");
    // Asking made no peer and disturbed none.
    first.check_alive(2);

    let address = master.local_addr().to_string();
    let text = program(&["status", &address]);
    assert!(text.status.success());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("2 peers in 1 group (") && text.contains("all-reduce tag 7"), "{text}");
    // Nothing has been measured.
    let rates = program(&["status", &address, "--rates"]);
    assert_eq!(rates.status.code(), Some(1));
    assert!(String::from_utf8(rates.stderr).unwrap().contains("nothing has been measured in group 0"));
    let rates = program(&["status", &address, "--rates", "--json"]);
    assert!(String::from_utf8(rates.stdout).unwrap().starts_with("{\"group\":0,\"peers\":[{\"peer\":\""));
    let rates = program(&["status", &address, "--rates", "--group", "77"]);
    assert!(String::from_utf8(rates.stderr).unwrap().contains("no such group"));
    let json = program(&["status", &address, "--json"]);
    assert!(json.status.success());
    let json = String::from_utf8(json.stdout).unwrap();
    assert!(
        json.starts_with("{\"run\":\"") && json.ends_with("}\n") && json.contains("\"phase\":\"accepted\"")
    );
    assert_eq!(json.lines().count(), 1);
}

#[test]
fn a_master_that_is_not_there_is_a_sentence_and_a_status() {
    let nobody = format!("127.0.0.1:{}", free_port());
    for arguments in [&["status", &nobody][..], &["status", "nonsense"], &["status", &nobody, "--rates"]] {
        let output = program(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("pccl-master: ") && stderr.lines().count() == 1, "{stderr}");
    }
    for arguments in [&["--json"][..], &["--rates"], &["--kick", "ab"], &["kick", "ab"]] {
        assert_eq!(program(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = program(&["kick", "ab", "--reason", "x"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("--admin"));
}

/// How the sync of a peer that is alone with an empty state begins: by a plan for its revision, or by a failure.
fn sync_alone(client: &mut Client, request: u64, (epoch, revision): (GroupEpoch, u64)) -> Result<(), Cause> {
    let request = RequestId(request);
    let (revision, strategy) = (Revision(revision), SyncStrategy::EnforcePopular);
    client.send(&C2m::SyncInitiate(SyncInitiate {
        request,
        epoch,
        revision,
        strategy,
        entries: vec![],
        offered: None,
    }));
    client.wait_for("an answer to a sync", |packet| match packet {
        M2c::SyncPlan(plan) if plan.request == request => Some(Ok(())),
        M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. }) => {
            Some(Err(verdict.cause))
        }
        _ => None,
    })
}

#[test]
fn an_operator_says_from_which_revision_a_run_goes_on() {
    let directory = Directory::new("revision");
    let admin = directory.0.join("admin.sock");
    let socket = admin.to_str().unwrap();
    let accept = |arguments: &[&str]| {
        let output = program(&[&["accept-revision", "--admin", socket], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let master = launch(|config| config.admin = Some(admin.clone()));
    assert_eq!(accept(&["1000"]), "nothing below revision 1000 is committed\n");
    let (mut client, _) = Client::register(master.local_addr(), 0);
    let epoch = client.confirm_ring_of(1).epoch;
    client.wait_for_admission();
    assert_eq!(sync_alone(&mut client, 1, (epoch, 999)), Err(Cause::StateLost));
    let status = String::from_utf8(program(&["status", &master.local_addr().to_string()]).stdout).unwrap();
    assert!(status.contains("`pccl-master accept-revision 999`"), "{status}");
    assert_eq!(accept(&["999", "--group", "0"]), "group 0 goes on from revision 999 or a newer one\n");
    assert_eq!(sync_alone(&mut client, 2, (epoch, 999)), Ok(()));
    // As a setting from the beginning.
    let master = launch(|config| config.accept_revision = Some(5));
    let (mut client, _) = Client::register(master.local_addr(), 3);
    let epoch = client.confirm_ring_of(1).epoch;
    client.wait_for_admission();
    assert_eq!(sync_alone(&mut client, 1, (epoch, 4)), Err(Cause::StateLost));
    assert_eq!(sync_alone(&mut client, 2, (epoch, 5)), Ok(()));
    for wrong in [&["accept-revision"][..], &["accept-revision", "x"], &["--accept-revision", "-1"]] {
        assert_eq!(program(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// The program as a master, once it listens; killed at the end of the test.
struct Running(std::process::Child);

impl Running {
    fn start(arguments: &[&str], variable: Option<(&str, &std::path::Path)>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-master"));
        command.args(arguments).env_remove("XDG_RUNTIME_DIR").env_remove("RUNTIME_DIRECTORY");
        let mut child = command.envs(variable).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("pccl-master listening on "), "{line}");
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn a_peer_of_a_master_without_options_can_be_removed() {
    // Neither a login nor a service manager has set a directory, as for root, in a container, from cron.
    let port = free_port().to_string();
    let address = format!("127.0.0.1:{port}");
    let _master = Running::start(&["--listen-address", &address], None);
    let (mut client, registered) = Client::register(address.parse().unwrap(), 0);
    let asked = program(&["status", &address, "--json"]);
    let asked = String::from_utf8(asked.stdout).unwrap();
    assert!(asked.contains(&format!("{:#}", registered.peer)), "{asked}");
    let output = program(&["kick", &registered.peer.to_string(), "--reason", "a test", "--port", &port]);
    assert!(output.status.success(), "{output:?}");
    let reason = client.wait_for_kick();
    assert_eq!((reason.code, reason.detail.as_str()), (KickCode::Operator, "a test"));
}

#[test]
fn a_service_listens_in_the_directory_that_it_is_given() {
    let directory = Directory::new("service");
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let variable = Some(("RUNTIME_DIRECTORY", directory.0.as_path()));
    let master = Running::start(&["--listen", &address], variable);
    let socket = directory.0.join(format!("pccl-master-{port}.sock"));
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let (_client, registered) = Client::register(address.parse().unwrap(), 0);
    let peer = registered.peer.to_string();
    // A caller that looks elsewhere is told where, and how to find it.
    let lost = program(&["kick", &peer, "--reason", "a test", "--port", &port.to_string()]);
    let lost = String::from_utf8(lost.stderr).unwrap();
    assert!(lost.contains(&port.to_string()) && lost.contains("--admin"), "{lost}");
    let found = program(&["kick", &peer, "--reason", "a test", "--admin", socket.to_str().unwrap()]);
    assert!(found.status.success(), "{found:?}");
    drop(master);
    assert!(!socket.exists(), "the socket outlives its master");
}

#[test]
fn somebody_outside_can_ask_a_few_times_only() {
    let master = launch(|_| {});
    let mut client = Client::connect(master.local_addr());
    for request in 0..u64::from(MAX_STRANGER_REQUESTS) {
        client.send(&C2m::StatusRequest(RequestId(request)));
        let answered = client.wait_for("Status", |packet| match packet {
            M2c::Status(status) => Some(status.request),
            _ => None,
        });
        assert_eq!(answered, RequestId(request));
    }
    client.send(&C2m::StatusRequest(RequestId(99)));
    assert_eq!(client.wait_for_kick().code, KickCode::Protocol);
}

#[test]
fn a_kick_reaches_the_peer_and_is_the_cause_for_the_others() {
    let directory = Directory::new("kick");
    let admin = directory.0.join("admin.sock");
    let master = launch(|config| config.admin = Some(admin.clone()));
    assert_eq!(fs::metadata(&admin).unwrap().permissions().mode() & 0o777, 0o600);
    let (mut first, mut second, op) = two_peers(master.local_addr());
    second.send(&initiate(op));
    first.wait_for("Commence", |packet| matches!(packet, M2c::Commence(_)).then_some(()));
    let status = query_status(&master.local_addr().to_string(), None, PATIENCE).unwrap();
    let peer = status.peers[1].peer;

    let done = remove_peer(&admin, &format!("{peer:#}"), "bad\nmemory", PATIENCE).unwrap();
    assert!(done.contains(&peer.to_string()), "{done}");
    let reason = second.wait_for_kick();
    assert_eq!((reason.code, reason.detail.as_str()), (KickCode::Operator, "bad memory"));
    let verdict = first.wait_for("Outcome", |packet| match packet {
        M2c::Outcome(outcome) => match outcome.outcome {
            Outcome::Aborted(verdict) => Some(verdict),
            Outcome::Done(_) => panic!("done"),
        },
        _ => None,
    });
    assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::PeerDropped, peer));
    assert!(verdict.to_string().contains("bad memory"), "{verdict}");
    drop(master);
    assert!(!admin.exists(), "the socket outlives its master");
}

#[test]
fn the_program_kicks_and_says_why_it_could_not() {
    let directory = Directory::new("program");
    let admin = directory.0.join("admin.sock");
    let path = admin.to_str().unwrap();
    let kick = |peer: &str| program(&["kick", peer, "--reason", "a test", "--admin", path]);
    let nobody = kick("ab");
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8(nobody.stderr).unwrap().contains(path));

    let master = launch(|config| config.admin = Some(admin.clone()));
    let (mut client, registered) = Client::register(master.local_addr(), 0);
    let (_other, _) = Client::register(master.local_addr(), 0);
    for (peer, text) in [
        ("xyz", "no peer has the name \"xyz\""),
        ("ffffffffffffffffffffffffffffffff", "no peer"),
        ("client", "client names 2 peers"),
    ] {
        let output = kick(peer);
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(text), "{stderr}");
    }
    let output = kick(&registered.peer.to_string());
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("removed "));
    assert_eq!(client.wait_for_kick().code, KickCode::Operator);
    // By its name, now that only one has it.
    assert!(kick("client").status.success());
}

/// A master that stands by and has not heard of any run, in a run with a key; and later one that follows a master.
#[test]
fn a_standby_says_its_key_and_which_master_an_operator_has_to_ask() {
    let directory = Directory::new("standby");
    let (key, port) = (RunKey::from_bytes([7; 32]), free_port());
    let admin = directory.0.join("admin.sock");
    let standby = launch(|config| {
        config.run_key = Some(key.clone());
        config.standby_of = vec![format!("127.0.0.1:{port}")];
        config.admin = Some(admin.clone());
        config.return_grace = Some(PATIENCE / 2);
        config.journal = Some(directory.0.join("journal"));
    });
    let address = standby.local_addr().to_string();
    let ask = || query_status(&address, Some(&key), PATIENCE).unwrap();
    let status = ask();
    assert_eq!((status.run_keys, status.lead.acts), (1, false));
    assert!(status.to_string().contains("run key, the wire mode is that of the run"), "{status}");
    assert!(!status.to_string().contains("no run key"), "{status}");
    assert!(status.to_string().contains("the journal begins when this master acts"), "{status}");
    let kick = || remove_peer(&admin, "abcd", "a test", PATIENCE).unwrap_err();
    assert!(kick().contains("none acts"), "{}", kick());
    let _acting = launch(|config| {
        config.listen = format!("127.0.0.1:{port}");
        config.run_key = Some(key.clone());
        config.accept_standbys = true;
        config.return_grace = Some(PATIENCE / 2);
    });
    let deadline = Instant::now() + PATIENCE;
    while ask().wire.is_none() {
        assert!(Instant::now() < deadline, "it follows nobody: {}", ask());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask().run_keys, 1);
    let refusal = kick();
    assert!(refusal.contains(&format!("127.0.0.1:{port} acts")), "{refusal}");
    assert!(refusal.contains(&format!("--port {port}")), "{refusal}");
}

#[test]
fn an_operator_that_stalls_or_talks_nonsense_holds_up_nobody() {
    let directory = Directory::new("hostile");
    let admin = directory.0.join("admin.sock");
    let master = launch(|config| config.admin = Some(admin.clone()));
    let (mut client, registered) = Client::register(master.local_addr(), 0);
    // More than are served at a time, none of which ever sends a line.
    let mut stalled: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&admin).unwrap()).collect();
    for stream in &mut stalled {
        // Those that were dropped to make room refuse.
        let _ = stream.write_all(b"kick ");
    }
    client.check_alive(1);
    for nonsense in [&b"\n"[..], b"kick\n", b"kick \xff\xfe x\n", b"\0\0\0\n", b"stop now\n", b"kick ab   \n"]
    {
        let mut stream = UnixStream::connect(&admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(nonsense).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("error ") && answer.lines().count() == 1, "{nonsense:?}: {answer:?}");
    }
    let mut endless = UnixStream::connect(&admin).unwrap();
    endless.set_read_timeout(Some(PATIENCE)).unwrap();
    // The master closes in the middle.
    let _ = endless.write_all(&[b'x'; 100_000]);
    assert!(matches!(endless.read(&mut [0; 10]), Ok(0) | Err(_)));
    client.check_alive(2);
    remove_peer(&admin, &registered.peer.to_string(), "enough", PATIENCE).unwrap();
    assert_eq!(client.wait_for_kick().detail.as_str(), "enough");
}

#[test]
fn a_straggler_is_dropped_and_hears_why() {
    let master =
        launch(|config: &mut MasterConfig| config.straggler_timeout = Some(Duration::from_millis(300)));
    let (mut first, mut second, _) = two_peers(master.local_addr());
    let reason = second.wait_for_kick();
    assert_eq!(reason.code, KickCode::Straggler);
    assert!(reason.detail.as_str().contains("all-reduce tag 7"), "{reason}");
    // No abort for the other: its vote counts for nothing in a group of one.
    first.wait_for("TooFewPeers", |packet| matches!(packet, M2c::TooFewPeers(_)).then_some(()));
}

#[test]
fn a_time_out_of_nothing_is_refused() {
    let config = MasterConfig { straggler_timeout: Some(Duration::ZERO), ..MasterConfig::default() };
    let error = pccl_master::Master::launch(config).unwrap_err();
    assert!(error.to_string().contains("straggler"), "{error}");
}
