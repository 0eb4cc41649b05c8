//! `pccl-master explain` as a user calls it.

use pccl_flight::{Event, Recorder, Role, Settings, What};
use pccl_protocol::{GroupId, PeerId, RunId};
use pccl_testkit::directory::Directory;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn explain(directory: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-master"));
    command.arg("explain").arg(directory).args(more).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn recorder(role: Role, peer: Option<PeerId>) -> Recorder {
    let recorder = Recorder::new(role, GroupId(0), Settings { directory: None, capacity: 16 });
    recorder.identify(RunId(1), peer);
    recorder
}

#[test]
fn it_begins_with_the_first_cause() {
    let directory = Directory::new("cause");
    let peer = PeerId(0xfeed << 112);
    let master = recorder(Role::Master, None);
    master.record(Event::new(What::PeerRegistered).peer(peer).text("10.0.0.4"));
    master.record(Event::new(What::PeerLost).peer(peer).text("connection reset"));
    master.dump(&directory.0, "test").unwrap();
    fs::write(directory.0.join("broken.flight"), b"\xff\xfe").unwrap();
    fs::write(directory.0.join("other.txt"), "not looked at").unwrap();
    let output = explain(&directory.0, &["--all"]);
    assert!(output.status.success(), "{output:?}");
    let stdout = text(&output.stdout);
    assert!(
        stdout.starts_with("First cause: connection to the master lost: peer feed0000 (10.0.0.4)\n"),
        "{stdout}"
    );
    let stderr = text(&output.stderr);
    assert!(stderr.contains("broken.flight: skipped") && !stderr.contains("other.txt"), "{stderr}");
}

#[test]
fn without_files_it_fails_with_a_sentence() {
    let directory = Directory::new("empty");
    fs::write(directory.0.join("noise.flight"), "noise").unwrap();
    let noise = explain(&directory.0, &[]);
    fs::remove_file(directory.0.join("noise.flight")).unwrap();
    let empty = explain(&directory.0, &[]);
    let missing = explain(&directory.0.join("missing"), &[]);
    for (output, sentence) in [
        (noise, "noise.flight: skipped"),
        (empty, "they are written after a failure if PCCL_FLIGHT_DIR is set"),
        (missing, "cannot read"),
    ] {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert!(text(&output.stderr).contains(sentence), "{output:?}");
    }
}

#[test]
fn a_master_and_an_explanation_are_not_mixed_up() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-master"));
    let output = command.args(["--listen", "127.0.0.1:0", "explain", "somewhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
