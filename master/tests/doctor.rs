//! The doctor against masters and ports as they can be found, and beside clients that must not notice it.

use crate::common::{Client, launch};
use pccl_master::{
    RunKey,
    doctor::{Finding, Health, Patient, Report, examine},
};
use pccl_testkit::ports::free_port;
use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// A peer with any free ports, and enough time for a busy machine.
fn patient(master: impl ToString) -> Patient {
    Patient {
        first_p2p_port: 0,
        first_state_port: 0,
        timeout: Duration::from_secs(30),
        ..Patient::new(&master.to_string())
    }
}

fn finding<'a>(report: &'a Report, subject: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.subject.starts_with(subject));
    found.unwrap_or_else(|| panic!("nothing about {subject}:\n{report}"))
}

/// That nothing but this failed, last, with this text and this in the remedy.
fn fails(report: &Report, subject: &str, found: &str, remedy: &str) {
    let finding = finding(report, subject);
    assert_eq!((finding.health, report.passed()), (Health::Failed, false), "{report}");
    assert!(finding.found.contains(found), "{found}:\n{report}");
    assert!(finding.remedy.as_deref().unwrap_or_default().contains(remedy), "{remedy}:\n{report}");
}

#[test]
fn where_all_is_well_it_says_so() {
    for key in [None, Some(RunKey::generate().unwrap())] {
        let master = launch(|config| config.run_key = key.clone());
        let report = examine(&Patient { run_key: key.clone(), ..patient(master.local_addr()) });
        assert!(report.passed(), "{report}");
        let security = if key.is_some() { "run key, encrypted" } else { "no run key" };
        assert!(finding(&report, "security").found.contains(security), "{report}");
        for subject in ["port for tensors", "port for state"] {
            assert!(
                finding(&report, subject).found.contains("the master reaches it at 127.0.0.1"),
                "{report}"
            );
        }
        assert!(finding(&report, "largest packet").found.contains("both ways"));
        let clock = finding(&report, "clock").numbers[0];
        assert!(clock.0 == "clock_difference_us" && clock.1.abs() < 60_000_000, "the same clock: {clock:?}");
        assert!(finding(&report, "peers").found.contains("nobody is in the run"));
        master.stop();
    }
}

#[test]
fn it_says_what_is_wrong_with_the_way_to_the_master() {
    let key = || RunKey::generate().unwrap();
    let open = launch(|_| {});
    let keyed = launch(|config| config.run_key = Some(key()));
    let with = |address: SocketAddr| Patient { run_key: Some(key()), ..patient(address) };
    fails(&examine(&patient("nonsense")), "address", "nonsense", "host:port");
    fails(&examine(&patient("no..such..host:1")), "name", "no..such..host", "getent hosts no..such..host");
    fails(&examine(&patient(keyed.local_addr())), "master", "wants a run key", "PCCL_RUN_KEY");
    fails(
        &examine(&with(keyed.local_addr())),
        "master",
        "the run key, or the name of the run, is another one",
        "compare the keys",
    );
    fails(&examine(&with(open.local_addr())), "master", "has no run key", "--key-file");
    open.stop();
    keyed.stop();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let foreign = other.local_addr().unwrap();
    fails(&examine(&patient(address)), "master", "connection refused", "start pccl-master");
    thread::spawn(move || {
        other.accept().map(|(mut stream, _)| stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n"))
    });
    fails(&examine(&patient(foreign)), "master", "not a port of this protocol", "48148");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let patient = Patient { timeout: Duration::from_millis(200), ..patient(silent.local_addr().unwrap()) };
    fails(&examine(&patient), "master", "did not answer in time", "ip saddr 127.0.0.1 tcp dport");
}

#[test]
fn it_says_which_ports_are_wrong() {
    let master = launch(|_| {});
    // Nobody has this address: it is for documents.
    let host = Some("no..such..host".to_owned());
    let report = examine(&Patient { advertised_host: host, ..patient(master.local_addr()) });
    fails(&report, "port for tensors", "no..such..host", "look whether no..such..host is this machine");
    fails(&report, "port for state", "no..such..host", "tcp dport");
    let taken = TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let settings = Patient { first_p2p_port: port, ..patient(master.local_addr()) };
    let report = examine(&Patient { strict_ports: true, ..settings.clone() });
    fails(&report, "port for tensors", &port.to_string(), "free it");
    let report = examine(&settings);
    assert!(report.passed(), "{report}");
    assert_eq!(finding(&report, "port for tensors").health, Health::Note, "{report}");
    master.stop();
}

#[test]
fn what_becomes_of_a_peer_with_shut_ports_depends_on_the_master() {
    for (require_reachable, becomes, not) in [
        (false, "a peer here is outbound-only", "refused"),
        (true, "a peer here is refused", "outbound-only:"),
    ] {
        let master = launch(|config| config.require_reachable = require_reachable);
        let host = Some("no..such..host".to_owned());
        let report = examine(&Patient { advertised_host: host, ..patient(master.local_addr()) });
        for subject in ["port for tensors", "port for state"] {
            fails(&report, subject, "no..such..host", becomes);
            assert!(
                !finding(&report, subject).remedy.as_deref().unwrap_or_default().contains(not),
                "{report}"
            );
        }
        master.stop();
    }
}

/// The last line agrees with the others.
#[test]
fn a_machine_whose_ports_are_shut_takes_part_if_the_master_lets_it() {
    for (require_reachable, verdict) in [
        (false, "as it is, this machine takes part as an outbound-only peer"),
        (true, "this machine could not take part as it is"),
    ] {
        let master = launch(|config| config.require_reachable = require_reachable);
        let host = Some("no..such..host".to_owned());
        let report = examine(&Patient { advertised_host: host, ..patient(master.local_addr()) });
        assert_eq!(report.verdict(), Some(verdict), "{report}");
        assert_eq!(examine(&patient(master.local_addr())).verdict(), None);
    }
}

#[test]
fn of_several_masters_all_are_looked_at_and_the_one_that_acts_counts() {
    let (gone, port) = (free_port(), free_port());
    let standby = launch(|config| {
        config.standby_of = vec![format!("127.0.0.1:{port}")];
        config.return_grace = Some(Duration::from_secs(30));
    });
    let only_standby = examine(&patient(standby.local_addr()));
    assert!(said_of(&only_standby, "no master acts"), "{only_standby}");
    let acting = launch(|config| {
        config.listen = format!("127.0.0.1:{port}");
        config.accept_standbys = true;
        config.return_grace = Some(Duration::from_secs(30));
    });
    let list = format!("127.0.0.1:{gone},{},{}", standby.local_addr(), acting.local_addr());
    let report = examine(&patient(&list));
    assert!(report.passed(), "a peer with this list connects:\n{report}");
    let of_masters: Vec<_> = report.findings.iter().filter(|it| it.subject == "master").collect();
    let said =
        |health, text: &str| of_masters.iter().any(|it| it.health == health && it.found.contains(text));
    assert!(said(Health::Note, "connection refused"), "{report}");
    assert!(said(Health::Fine, "stands by"), "{report}");
    assert!(said(Health::Fine, &format!("{} answers", acting.local_addr())), "{report}");
    // The standby leads to the one that acts, once it hears it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !examine(&patient(standby.local_addr())).passed() {
        assert!(Instant::now() < deadline, "{}", examine(&patient(standby.local_addr())));
    }
    let other = launch(|_| {});
    let report = examine(&patient(format!("{},{}", acting.local_addr(), other.local_addr())));
    assert!(said_of(&report, "lead different runs"), "{report}");
}

fn said_of(report: &Report, text: &str) -> bool {
    !report.passed() && report.findings.iter().any(|finding| finding.found.contains(text))
}

#[test]
fn clients_of_a_run_do_not_notice_it_and_ports_that_nobody_has_are_named() {
    let master = launch(|_| {});
    let address = master.local_addr();
    let (mut first, _) = Client::register(address, 0);
    first.confirm_ring_of(1);
    first.wait_for_admission();
    let report = examine(&patient(address));
    // The client is one of a test, and has no ports.
    fails(&report, "peer ", "is not reached", "ip saddr 127.0.0.1 tcp dport");
    assert!(finding(&report, "way from peers").found.contains("not tried: whether they reach"), "{report}");
    // Nothing has come but the answer to this.
    first.check_alive(1);
    let status = pccl_master::query_status(&address.to_string(), None, Duration::from_secs(30)).unwrap();
    assert_eq!((status.peers.len(), status.sizes.global), (1, 1), "{status}");
    master.stop();
}

#[test]
fn the_program_prints_a_table_or_json_and_its_status_says_whether_all_is_well() {
    let master = launch(|_| {});
    let doctor = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-master"));
        command.args(["doctor", &master.local_addr().to_string(), "--p2p-port", "0", "--state-port", "0"]);
        let output = command.args(more).env_remove("PCCL_RUN_KEY").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, table) = doctor(&[]);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("ok      port for tensors") && table.ends_with("nothing failed\n"), "{table}");
    let (code, json) = doctor(&["--json", "--no-rates", "--advertised-host", "no..such..host"]);
    assert_eq!(code, Some(1), "{json}");
    assert!(json.starts_with(r#"{"passed":false,"findings":[{"subject":"master","health":"ok""#), "{json}");
    master.stop();
}
