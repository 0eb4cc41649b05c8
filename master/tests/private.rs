//! The program `pccl-master` and files that others have prepared, or may read.

use crate::common::PATIENCE;
use pccl_testkit::directory::{Directory, set_mode};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A master that was started; killed with this value.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program. The master, if it leads a run; else what it says.
fn start(arguments: &[&str]) -> Result<Started, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-master"));
    command.args(["--listen", "127.0.0.1:0", "--admin", "off"]).args(arguments);
    command.env_remove("PCCL_RUN_KEY").env_remove("PCCL_LOG_LEVEL").env_remove("RUST_LOG");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut started = Started(child);
    let (mut out, mut err) =
        (BufReader::new(started.0.stdout.take().unwrap()), started.0.stderr.take().unwrap());
    let (sender, line) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let _ = out.read_line(&mut line);
        let _ = sender.send(line);
    });
    // One that waits for somebody to open the other end of a FIFO says nothing.
    match line.recv_timeout(PATIENCE).expect("a line, or the end") {
        line if line.contains("listening") => Ok(started),
        _ => {
            let mut said = String::new();
            err.read_to_string(&mut said).unwrap();
            Err(said)
        }
    }
}

fn with_journal(directory: &Directory) -> Result<Started, String> {
    start(&["--journal", directory.0.to_str().unwrap()])
}

/// Waits for the journal that a master writes beside its work.
fn await_journal(directory: &Directory) -> fs::Metadata {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::symlink_metadata(directory.file("journal")) {
            Ok(journal) => return journal,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_journal_is_a_new_private_file_whatever_was_there() {
    let directory = Directory::new("journal");
    set_mode(&directory.0, 0o700);
    let (next, victim) = (directory.file("journal.next"), directory.file("victim"));
    let prepared = fs::File::create(&next).unwrap();
    set_mode(&next, 0o666);
    let first = with_journal(&directory).map_err(|said| panic!("{said}")).unwrap();
    let journal = await_journal(&directory);
    assert_eq!((journal.mode() & 0o777, journal.len() > 0), (0o600, true));
    assert_eq!(prepared.metadata().unwrap().len(), 0, "who has prepared it has it open");
    drop(first);
    fs::remove_file(directory.file("journal")).unwrap();
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, &next).unwrap();
    let second = with_journal(&directory).map_err(|said| panic!("{said}")).unwrap();
    assert!(await_journal(&directory).is_file());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    drop(second);
}

#[test]
fn a_journal_or_a_lock_that_is_a_link_or_a_fifo_is_refused_and_not_waited_for() {
    for name in ["journal", "lock"] {
        let directory = Directory::new(&format!("prepared-{name}"));
        set_mode(&directory.0, 0o700);
        mkfifo(&directory.file(name));
        let said = with_journal(&directory).map(drop).unwrap_err();
        assert!(said.contains(name), "{said}");
        fs::remove_file(directory.file(name)).unwrap();
        fs::write(directory.file("victim"), "precious").unwrap();
        symlink(directory.file("victim"), directory.file(name)).unwrap();
        let said = with_journal(&directory).map(drop).unwrap_err();
        assert!(said.contains("symbolic link"), "{said}");
        assert_eq!(fs::read(directory.file("victim")).unwrap(), b"precious");
    }
}

#[test]
fn no_journal_is_begun_where_everybody_may_put_another_one() {
    let directory = Directory::new("open");
    set_mode(&directory.0, 0o777);
    let said = with_journal(&directory).map(drop).unwrap_err();
    let remedy = format!("everybody may write to this directory: chmod o-w {}", directory.0.display());
    assert!(said.contains(&remedy), "{said}");
    set_mode(&directory.0, 0o1777);
    with_journal(&directory).map_err(|said| panic!("{said}")).unwrap();
}

#[test]
fn a_key_file_that_others_may_read_is_refused_with_the_command_that_mends_it() {
    let directory = Directory::new("key");
    set_mode(&directory.0, 0o755);
    let file = directory.file("run.key");
    let key = Command::new(env!("CARGO_BIN_EXE_pccl-master")).arg("--new-key").output().unwrap().stdout;
    fs::write(&file, key).unwrap();
    set_mode(&file, 0o644);
    let arguments = ["--key-file", file.to_str().unwrap()];
    let said = start(&arguments).map(drop).unwrap_err();
    let remedy = format!("other users may read or write it (mode 0644): chmod 600 {}", file.display());
    assert!(said.contains(&remedy), "{said}");
    set_mode(&file, 0o600);
    start(&arguments).map_err(|said| panic!("{said}")).unwrap();
}
