//! Journals that cannot be written, are damaged, or are older than what peers know.

use crate::common::{Client, PATIENCE};
use crate::process::{Program, command};
use pccl_master::{query_status, status_to_json};
use pccl_protocol::{C2m, JournalStage, M2c, Registered, RequestId, Return, Status, Term};
use pccl_testkit::directory::Directory;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

fn start(directory: &Path) -> Program {
    Program::start(&["--listen", "127.0.0.1:0", "--journal", directory.to_str().unwrap()])
}

fn status(program: &Program) -> Status {
    query_status(&program.address.to_string(), None, PATIENCE).expect("a status")
}

/// Waits until the journal is in this stage.
fn await_stage(program: &Program, stage: JournalStage) -> Status {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = status(program);
        if status.lead.journal.as_ref().is_some_and(|journal| journal.stage == stage) {
            return status;
        }
        assert!(Instant::now() < deadline, "no journal that is {stage}: {status}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// One peer that is in the run.
fn peer(program: &Program) -> (Client, Registered) {
    let (mut client, registered) = Client::register(program.address, 0);
    client.confirm_ring_of(1);
    client.wait_for_admission();
    (client, registered)
}

/// Has the master send a few numbered packets, and counts them.
fn talk(client: &mut Client, requests: u64) -> u64 {
    for request in 0..requests {
        client.send(&C2m::StatusRequest(RequestId(request)));
        client.wait_for("Status", |packet| matches!(packet, M2c::Status(_)).then_some(()));
    }
    requests
}

/// A file that cannot grow stands for a disk without room: both end a write in the middle, and both can be mended while
/// the process goes on.
#[test]
fn a_journal_that_could_not_be_written_is_told_and_begun_again_when_there_is_room() {
    let directory = Directory::new("full");
    let mut start_small = Command::new("sh");
    start_small.stdin(Stdio::null()).stderr(Stdio::null()).args([
        "-c",
        "trap '' XFSZ && ulimit -S -f 24 && exec \"$0\" --listen 127.0.0.1:0 --journal \"$1\"",
        env!("CARGO_BIN_EXE_pccl-master"),
        directory.0.to_str().unwrap(),
    ]);
    let mut program = Program::start_as(&mut start_small);
    let kept = await_stage(&program, JournalStage::Kept);
    assert!(kept.to_string().contains("the journal is kept"), "{kept}");
    // Each registration is written down.
    let mut clients = Vec::new();
    while directory.file("journal").exists() {
        clients.push(Client::register(program.address, 0));
        assert!(clients.len() < 2000, "so much fits into a file that cannot grow");
    }
    let given_up = await_stage(&program, JournalStage::GivenUp);
    assert!(given_up.to_string().contains("NO JOURNAL for"), "{given_up}");
    let json = status_to_json(&given_up);
    assert!(json.contains(r#""journal":{"state":"given-up""#) && json.contains("large"), "{json}");
    assert!(!directory.0.join("journal.next").exists(), "what could not be written takes no room");
    let pid = program.child.id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status().unwrap().success());
    let again = await_stage(&program, JournalStage::Kept);
    assert_eq!(again.run, kept.run);
    // And another process goes on from it.
    program.signal("KILL");
    program.end();
    drop(clients);
    assert_eq!(status(&start(&directory.0)).run, kept.run);
}

#[test]
fn a_master_does_not_go_on_from_a_damaged_journal() {
    let directory = Directory::new("damaged");
    let mut program = start(&directory.0);
    let run = status(&program).run;
    let (mut client, _) = peer(&program);
    talk(&mut client, 20);
    program.signal("KILL");
    program.end();
    let whole = fs::read(directory.file("journal")).unwrap();
    for at in [whole.len() / 4, whole.len() / 2, whole.len() * 9 / 10] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(directory.file("journal"), &damaged).unwrap();
        let output = command()
            .args(["--listen", "127.0.0.1:0", "--journal", directory.0.to_str().unwrap()])
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "byte {at}: {stderr}");
        assert!(stderr.contains("is damaged") && stderr.contains("remove the file"), "byte {at}: {stderr}");
        assert_eq!(fs::read(directory.file("journal")).unwrap(), damaged, "nobody has touched it");
    }
    // The rest that a master leaves when it dies in the middle of a write is no damage.
    fs::write(directory.file("journal"), &whole[..whole.len() - 3]).unwrap();
    assert_eq!(status(&start(&directory.0)).run, run);
}

/// A peer comes back to a master with an older copy, says how many packets it has got, and the master ends by itself.
fn ends_by(directory: &Directory, came_back: Return) {
    let mut program = start(&directory.0);
    let mut client = Client::connect(program.address);
    client.send(&C2m::Return(came_back));
    assert_eq!(program.end().0.code(), Some(1), "it ends by itself");
    assert!(directory.0.join("journal.outdated").exists() && !directory.file("journal").exists());
}

#[test]
fn an_older_copy_of_a_journal_is_found_out_by_what_peers_hold_and_a_new_run_begins() {
    let directory = Directory::new("older");
    let mut program = start(&directory.0);
    let (mut first, registered) = peer(&program);
    let older = fs::read(directory.file("journal")).unwrap();
    // As many as there may have been before the copy, and these.
    let received = 20 + talk(&mut first, 40);
    let (_second, later) = Client::register(program.address, 0);
    program.signal("KILL");
    program.end();
    let back = |registered: &Registered, received| Return {
        run: registered.run,
        peer: registered.peer,
        proof: None,
        received,
        term: Term(0),
    };
    fs::write(directory.file("journal"), &older).unwrap();
    ends_by(&directory, back(&registered, received));
    fs::write(directory.file("journal"), &older).unwrap();
    ends_by(&directory, back(&later, 1));
    let program = start(&directory.0);
    assert_ne!(status(&program).run, registered.run);
}
