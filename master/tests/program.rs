//! The `pccl-master` program as a user or a service manager sees it.

use crate::common::{Client, PATIENCE, beat, launch};
use crate::process::{Program, command};
use pccl_master::Master;
use pccl_protocol::{C2m, CopiesKnown, CopyId, KickCode, M2c, Promise, Return, StandBy, Term};
use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tinysockets::preamble::{Preamble, Role};

fn ends_well_on(signal: &str) {
    let mut program = Program::start(&["--listen", "127.0.0.1:0"]);
    let (mut client, _) = Client::register(program.address, 0);
    program.signal(signal);
    assert_eq!(client.wait_for_kick().code, KickCode::MasterStopping);
    drop(client);
    let (status, rest) = program.end();
    assert_eq!(status.code(), Some(0), "{status}");
    assert_eq!(rest, "", "more than one line on stdout");
}

#[test]
fn sigterm_ends_it_with_status_0() {
    ends_well_on("TERM");
}

/// With a complete copy elsewhere it hands over; the client is told, and goes on with the other one.
#[test]
fn sigterm_hands_over_to_one_that_stands_by() {
    let mut first = Program::start(&["--listen", "127.0.0.1:0", "--accept-standbys"]);
    let (mut client, registered) = Client::register(first.address, 0);
    let standby = launch(|config| {
        config.standby_of = vec![first.address.to_string()];
        config.return_grace = None;
    });
    let known = client.wait_for("a list with a copy", |packet| match packet {
        M2c::Copies(copies) if !copies.standbys.is_empty() => Some(copies),
        _ => None,
    });
    client.send(&C2m::CopiesKnown(CopiesKnown { term: known.term, number: known.number }));
    client.check_alive(1);
    first.signal("TERM");
    let word = client.wait_for("its last word", |packet| match packet {
        M2c::StandsBy(word) => Some(word.text.to_string()),
        M2c::Kicked(reason) => panic!("the run ends: {reason}"),
        _ => None,
    });
    assert!(word.contains("steps down") && word.contains(&standby.local_addr().to_string()), "{word}");
    let (run, peer) = (registered.run, registered.peer);
    promise(&standby, &C2m::Return(Return { run, peer, proof: None, received: 1, term: known.term }));
    let (status, rest) = first.end();
    assert_eq!((status.code(), rest.as_str()), (Some(0), ""), "{status}");
}

/// Masters that all stand by say what to start, in the log and in the status, and one begins a run at an operator's
/// word.
#[test]
fn one_that_stands_by_for_nobody_says_what_to_start() {
    let admin = std::env::temp_dir().join(format!("pccl-program-nobody-{}.sock", std::process::id()));
    let admin_text = admin.to_str().expect("a plain path");
    let options =
        ["--listen", "127.0.0.1:0", "--standby-of", "127.0.0.1:9", "--admin", admin_text].map(str::to_owned);
    let mut child =
        command().args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a program");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("pccl-master listening on ").expect(&line).to_owned();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said = log.find(|line| line.contains("no leader for 30 s")).expect("it says so");
    assert!(said.contains("start one of these masters without --standby-of"), "{said}");
    let status = pccl_master::query_status(&address, None, PATIENCE).expect("a status");
    let text = status.lead.text.expect("what it waits for").to_string();
    assert!(!status.lead.acts && text.contains("start one of these masters"), "{text}");
    let take_over = |more: &[&str]| {
        let output = command().args(["take-over", "--admin", admin_text]).args(more).output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        (output.status.success(), out + &err)
    };
    let (done, text) = take_over(&[]);
    assert!(!done && text.contains("--force"), "{text}");
    let (done, text) = take_over(&["--force"]);
    assert!(done && text.contains("begins run"), "{text}");
    let status = pccl_master::query_status(&address, None, PATIENCE).expect("a status");
    assert!(status.lead.acts && status.run.0 != 0, "{status}");
    let (done, text) = take_over(&["--force"]);
    assert!(!done && text.contains("acts already"), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = std::fs::remove_file(admin);
}

#[test]
fn sigint_ends_it_with_status_0() {
    ends_well_on("INT");
}

/// Somewhere to write to that has no room left, and the other end, which nobody reads.
fn full() -> (UnixStream, UnixStream) {
    let (mut writer, reader) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    while writer.write(&[b'\n'; 4096]).is_ok() {}
    while writer.write(b"\n").is_ok() {}
    writer.set_nonblocking(false).unwrap();
    (writer, reader)
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    // More than the queue has room for: each peer that comes and goes leaves some.
    const VISITS: usize = 1800;
    let (stderr, unread) = full();
    let mut command = command();
    command.args(["--listen", "127.0.0.1:0"]).env("PCCL_LOG_LEVEL", "TRACE");
    let mut program = Program::start_with(&mut command, OwnedFd::from(stderr).into());
    // The program has the only other end.
    drop(command);
    for _ in 0..VISITS {
        drop(Client::register(program.address, 0));
    }
    let (mut client, _) = Client::register(program.address, 0);
    let mut lines = BufReader::new(unread).lines().map(|line| line.unwrap());
    let gap = lines.find(|line| line.contains("lines of the log were dropped here")).expect("the count");
    assert!(gap.contains("WARN"), "{gap}");
    // Nobody reads any more, and the end does not wait for long.
    program.signal("TERM");
    assert_eq!(client.wait_for_kick().code, KickCode::MasterStopping);
    drop(client);
    let (status, _) = program.end();
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn neither_output_has_to_be_read() {
    let (stdout, _unread) = full();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let stderr = stdout.try_clone().unwrap();
    let mut command = command();
    command.args(["--listen", &address.to_string()]);
    command.stdout(OwnedFd::from(stdout)).stderr(OwnedFd::from(stderr));
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(start.elapsed() < PATIENCE, "it does not listen");
        pccl_testkit::barrier::look_again();
    }
    let (mut client, _) = Client::register(address, 0);
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(client.wait_for_kick().code, KickCode::MasterStopping);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The rest of the line of a file of packaging/ that begins like this.
fn packaged(file: &str, start: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("{file} has no line {start}")).to_owned()
}

#[test]
fn service_and_image_call_it_as_it_is_called() {
    let unit = |start| packaged("pccl-master.service", start);
    assert_eq!(
        unit("ExecStart="),
        "/usr/local/bin/pccl-master --journal /var/lib/pccl/journal $PCCL_MASTER_OPTIONS"
    );
    let options = unit("Environment=\"PCCL_MASTER_OPTIONS=");
    let mut options: Vec<&str> = options.trim_end_matches('"').split(' ').collect();
    assert!(!options.contains(&"--insecure"), "{options:?}");
    options.extend(["--listen", "127.0.0.1:0"]);
    let mut program = Program::start(&options);

    let words = |start| -> Vec<String> {
        let line = packaged("Dockerfile", start);
        line.trim_matches(['[', ']']).split(", ").map(|word| word.trim_matches('"').to_owned()).collect()
    };
    assert_eq!(words("ENTRYPOINT "), ["pccl-master"]);
    assert_eq!(words("CMD ").join(" "), unit("Environment=\"PCCL_MASTER_OPTIONS=").trim_end_matches('"'));
    let check = words("HEALTHCHECK CMD ");
    assert_eq!((check[0].as_str(), check[2].as_str()), ("pccl-master", "127.0.0.1:48148"));
    let healthy = |program: &Program| {
        let output = command().args([&check[1], &program.address.to_string()]).output().unwrap();
        output.status.success()
    };
    assert!(healthy(&program));
    program.signal("TERM");
    assert_eq!(program.end().0.code(), Some(0));
    assert!(!healthy(&program));
}

#[test]
fn one_that_was_killed_goes_on_from_its_journal_and_one_that_was_stopped_does_not() {
    let directory = std::env::temp_dir().join(format!("pccl-program-journal-{}", std::process::id()));
    let journal = directory.to_str().expect("a plain path");
    let options = ["--listen", "127.0.0.1:0", "--journal", journal];
    let run = |program: &Program| {
        pccl_master::query_status(&program.address.to_string(), None, PATIENCE).expect("a status").run
    };
    let mut program = Program::start(&options);
    let first = run(&program);
    let refusal = |wanted: &str| {
        let output = command().args(options).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains(wanted), "{stderr}");
    };
    refusal("another master uses");
    // One that is started while the one before is not quite gone waits for its end.
    let mut next = command().args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(next.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("waiting for its end")), "it does not wait");
    program.signal("KILL");
    program.end();
    let mut line = String::new();
    BufReader::new(next.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listening on"), "{line}");
    next.kill().unwrap();
    next.wait().unwrap();
    let mut program = Program::start(&options);
    assert_eq!(run(&program), first);
    program.signal("TERM");
    assert_eq!(program.end().0.code(), Some(0));
    let mut program = Program::start(&options);
    assert_ne!(run(&program), first);
    program.signal("KILL");
    program.end();
    std::fs::write(directory.join("journal"), "something else").unwrap();
    refusal("remove it to begin a new run");
    std::fs::remove_dir_all(directory).unwrap();
}

/// The process before is still ending: it is waited for, and that is said.
#[test]
fn a_port_that_becomes_free_is_waited_for() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let arguments = ["--listen", &address.to_string()].map(str::to_owned);
    let mut child =
        command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a program");
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said = log.find(|line| line.contains("another process listens on")).expect("it says so");
    assert!(said.contains(&address.to_string()) && said.contains("10 s at most"), "{said}");
    drop(busy);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("pccl-master listening on {address}\n"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_busy_port_ends_it_with_a_sentence() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    // Whatever the log level.
    let output = command().args(["--listen", &address]).env("PCCL_LOG_LEVEL", "NONE").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("pccl-master: cannot listen on") && stderr.contains(&address), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn only_with_a_key_or_against_advice_it_listens_for_other_machines() {
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let output = command().args(["--listen", listen]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        for remedy in ["--new-key", "PCCL_RUN_KEY", "--insecure"] {
            assert!(stderr.contains(remedy), "{remedy} is missing in {stderr}");
        }
    }
    let mut program = Program::start(&["--listen", "0.0.0.0:0", "--insecure"]);
    program.signal("TERM");
    assert_eq!(program.end().0.code(), Some(0));
}

#[test]
fn who_asks_for_the_status_needs_the_key_and_nobody_prints_it() {
    let key = String::from_utf8(command().arg("--new-key").output().unwrap().stdout).unwrap();
    let other = String::from_utf8(command().arg("--new-key").output().unwrap().stdout).unwrap();
    let is_key = |text: &str| text.len() == 65 && text.trim().bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_key(&key) && is_key(&other) && key != other, "{key}{other}");
    let file = std::env::temp_dir().join(format!("pccl-key-{}", std::process::id()));
    crate::common::private_file(&file, &key);
    let file_name = file.to_str().unwrap().to_owned();
    let mut program = Program::start(&["--listen", "0.0.0.0:0", "--key-file", &file_name]);
    let address = format!("127.0.0.1:{}", program.address.port());
    let ask = |arguments: &[&str], key: Option<&str>| {
        let mut asking = command();
        asking.arg("status").args(arguments);
        let output = asking.envs(key.map(|key| ("PCCL_RUN_KEY", key))).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let with_key = format!("pccl://{address}#{}", key.trim());
    for (arguments, in_environment) in [
        (vec![address.as_str()], Some(key.as_str())),
        (vec![address.as_str(), "--key-file", &file_name], Some(other.as_str())),
        (vec![with_key.as_str()], None),
    ] {
        let (success, stdout, stderr) = ask(&arguments, in_environment);
        assert!(
            success && stdout.ends_with("run key, wire mode encrypt: every connection is encrypted\n"),
            "{stdout}{stderr}"
        );
    }
    for (in_environment, text) in [
        (None, "set PCCL_RUN_KEY"),
        (Some(other.as_str()), "the run key, or the name of the run, is another one"),
    ] {
        let (success, _, stderr) = ask(&[&address], in_environment);
        assert!(!success && stderr.contains(text), "{stderr}");
    }
    let (success, _, stderr) = ask(&[&address], Some(&key[..60]));
    assert!(!success && stderr.contains("64 hexadecimal digits") && !stderr.contains(&key[..20]), "{stderr}");
    std::fs::remove_file(&file).unwrap();
    program.signal("TERM");
    assert_eq!(program.end().0.code(), Some(0));
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for arguments in [
        &["--listen", "nonsense"][..],
        &["--peer-timeout", "soon"],
        &["--peer-timeout", "0"],
        &["--min-world-size", "0"],
        &["--min-world-size", "-1"],
        &["--unknown"],
    ] {
        let output = command().args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(output.status.code().is_some(), "{arguments:?} ended by a signal");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_names_every_option() {
    let output = command().arg("--help").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for option in
        ["--listen", "--peer-timeout", "--min-world-size", "--key-file", "--insecure", "PCCL_LOG_LEVEL"]
    {
        assert!(text.contains(option), "{option} is missing in {text}");
    }
}

#[test]
fn the_log_goes_to_stderr_at_the_level_asked_for() {
    let log_of = |level: &str| {
        let mut child = command()
            .args(["--listen", "127.0.0.1:0"])
            .env("PCCL_LOG_LEVEL", level)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let status = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap();
        assert!(status.success());
        String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
    };
    assert!(log_of("INFO").contains("stopping"));
    assert_eq!(log_of("ERR"), "");
    assert_eq!(log_of("NONE"), "");
    assert!(log_of("LOUD").contains("PCCL_LOG_LEVEL"));
}

#[test]
fn running_out_of_descriptors_is_survived() {
    let program = env!("CARGO_BIN_EXE_pccl-master");
    let program = Program::start_as(Command::new("sh").stdin(Stdio::null()).stderr(Stdio::null()).args([
        "-c",
        "ulimit -n 24 && exec \"$0\" --listen 127.0.0.1:0",
        program,
    ]));
    let (mut early, _) = Client::register(program.address, 0);
    // The kernel completes connections that the program has no descriptor for.
    let mut silent: Vec<_> = (0..60).map(|_| crate::common::stream_to(program.address)).collect();
    early.check_alive(1);
    // Some of them are served all the same, once others have gone.
    silent.drain(..50);
    early.check_alive(2);
    let mut last = silent.pop().unwrap();
    last.write_all(&Preamble::new(Role::Control).encode()).unwrap();
    Client::after_preamble(last);
    let (mut late, _) = Client::register(program.address, 0);
    late.check_alive(1);
    early.check_alive(3);
}

/// Peers take as many descriptors as they are let, and then some.
#[test]
fn with_few_descriptors_the_status_is_answered_and_newcomers_read_why_there_is_no_room() {
    let program = env!("CARGO_BIN_EXE_pccl-master");
    let program = Program::start_as(Command::new("sh").stdin(Stdio::null()).stderr(Stdio::null()).args([
        "-c",
        "ulimit -n 64 && exec \"$0\" --listen 127.0.0.1:0",
        program,
    ]));
    let mut peers = Vec::new();
    let refusal = loop {
        let mut client = Client::connect(program.address);
        client.send(&crate::common::registration(0));
        let answer = client.wait_for("an answer", |packet| match packet {
            M2c::Registered(_) => Some(None),
            M2c::Kicked(reason) => Some(Some(reason)),
            _ => None,
        });
        match answer {
            None => peers.push(client),
            Some(reason) => break reason,
        }
        assert!(peers.len() < 64, "there are too few descriptors");
    };
    assert_eq!(refusal.code, KickCode::Full);
    assert!(refusal.to_string().contains("ulimit -n"), "{refusal}");
    // Strangers hold what is left.
    let _silent: Vec<_> = (0..40).map(|_| crate::common::stream_to(program.address)).collect();
    let status = pccl_master::query_status(&program.address.to_string(), None, PATIENCE).expect("a status");
    assert_eq!(status.peers.len(), peers.len());
}

#[test]
fn a_master_that_was_stopped_for_a_while_blames_nobody() {
    let program = Program::start(&["--listen", "127.0.0.1:0", "--peer-timeout", "2s"]);
    let (mut client, _) = Client::register(program.address, 0);
    client.check_alive(1);
    program.signal("STOP");
    // The client behaves well all the time; what it sends lies in socket buffers.
    let pause = Duration::from_secs(5);
    let begin = Instant::now();
    let mut sequence = 1;
    while begin.elapsed() < pause {
        sequence += 1;
        client.send(&beat(sequence));
        thread::sleep(Duration::from_millis(100));
    }
    program.signal("CONT");
    client.wait_for("Echo", |packet| match packet {
        M2c::Echo(echo) if echo.sequence == sequence => Some(()),
        M2c::Kicked(reason) => panic!("kicked: {reason}"),
        _ => None,
    });
    client.check_alive(sequence + 1);
}

#[test]
fn a_client_that_was_silent_only_while_the_master_stood_still_is_kept() {
    let program = Program::start(&["--listen", "127.0.0.1:0", "--peer-timeout", "3s"]);
    let (mut client, _) = Client::register(program.address, 0);
    client.check_alive(1);
    program.signal("STOP");
    // Longer than the peer time-out: both machines were suspended, say.
    thread::sleep(Duration::from_secs(5));
    program.signal("CONT");
    client.check_alive(2);
}

#[test]
fn who_took_over_and_is_not_known_finds_out_that_another_one_acts() {
    let mut first = Program::start(&["--listen", "127.0.0.1:0", "--accept-standbys"]);
    let (mut client, registered) = Client::register(first.address, 0);
    let stand_by = || {
        launch(|config| {
            config.standby_of = vec![first.address.to_string()];
            config.return_grace = None;
        })
    };
    let (slow, fast) = (stand_by(), stand_by());
    let known = client.wait_for("a list of two copies", |packet| match packet {
        M2c::Copies(copies) if copies.standbys.len() == 2 => Some(copies),
        _ => None,
    });
    client.send(&C2m::CopiesKnown(CopiesKnown { term: known.term, number: known.number }));
    // The answer leaves when both have what led to it, and with it each other's place.
    client.check_alive(1);
    first.signal("KILL");
    first.end();
    // It promises itself to one, does not wait for what follows, and does the same with the other one.
    let mut term = Term(0);
    for standby in [&slow, &fast] {
        let (run, peer) = (registered.run, registered.peer);
        term = promise(standby, &C2m::Return(Return { run, peer, proof: None, received: 1, term }));
    }
    let began = Instant::now();
    while !slow.has_ended() {
        assert!(began.elapsed() < PATIENCE, "it waits for those who know another one");
        pccl_testkit::barrier::look_again();
    }
    let error = slow.wait().expect_err("it is none any more").to_string();
    assert!(error.contains(&format!("has taken over in term {term}")), "{error}");
    assert!(!fast.has_ended());
}

/// A standby that hears that another one is about to act by an operator's word asks for no promises, though more than
/// half of the members are there, before it hears that the other one does not act.
#[test]
fn one_that_hears_of_a_forced_take_over_holds_its_own_back() {
    let mut first = Program::start(&["--listen", "127.0.0.1:0", "--accept-standbys"]);
    let (mut client, registered) = Client::register(first.address, 0);
    let standby = Program::start(&["--listen", "127.0.0.1:0", "--standby-of", &first.address.to_string()]);
    let known = client.wait_for("a list with a copy", |packet| match packet {
        M2c::Copies(copies) if !copies.standbys.is_empty() => Some(copies),
        _ => None,
    });
    client.send(&C2m::CopiesKnown(CopiesKnown { term: known.term, number: known.number }));
    client.check_alive(1);
    first.signal("KILL");
    first.end();
    let word = |acts_soon| {
        let mut other = Client::connect(standby.address);
        let (run, copy, port) = (registered.run, CopyId(7), 7);
        other.send(&C2m::StandBy(StandBy { run, copy, advertised_host: None, port, acts_soon }));
        other.wait_for("its answer", |packet| match packet {
            M2c::StandsBy(answer) => Some(answer),
            _ => None,
        })
    };
    let began = Instant::now();
    while word(true).acting.is_some() {
        assert!(began.elapsed() < PATIENCE, "it hears one that is dead");
    }
    assert!(!word(true).acts_soon);
    let (run, peer) = (registered.run, registered.peer);
    let asked = C2m::Return(Return { run, peer, proof: None, received: 1, term: known.term });
    let mut member = Client::connect(standby.address);
    member.send(&asked);
    // It says so several times, and asks for nothing.
    for _ in 0..3 {
        let text = member.wait_for("what it waits for", |packet| match packet {
            M2c::StandsBy(answer) => Some(answer.text.to_string()),
            M2c::Claim(claim) => panic!("{claim:?}"),
            _ => None,
        });
        assert!(text.contains("waits for the master at 127.0.0.1:7, which was about to act"), "{text}");
    }
    word(false);
    let claim = member.wait_for("its claim", |packet| match packet {
        M2c::Claim(claim) => Some(claim),
        _ => None,
    });
    assert!(word(true).acts_soon, "one that has asked says so");
    assert_eq!(claim.term, Term(1));
}

/// Comes to a standby until that asks for a promise, and gives it. The term that it acts in then.
fn promise(standby: &Master, asked: &C2m) -> Term {
    loop {
        let mut client = Client::connect(standby.local_addr());
        client.send(asked);
        while let Some(packet) = client.receive() {
            let M2c::Claim(claim) = packet else { continue };
            client.send(&C2m::Promise(Promise { term: claim.term, refused: None }));
            client.wait_for("the list of the new term", |packet| {
                matches!(packet, M2c::Copies(copies) if copies.term == claim.term).then_some(())
            });
            return claim.term;
        }
    }
}
