//! Runs with the same key and different names, as an operator starts them and asks for them.

use crate::common::{PATIENCE, launch, private_file};
use crate::process::{Program, command};
use pccl_master::{
    AcceptedKeys, Master, MasterConfig, MasterError, RunKey, RunName, query_status, rotate_key,
};
use pccl_testkit::directory::Directory;
use std::{
    thread,
    time::{Duration, Instant},
};

const ANOTHER: &str = "the run key, or the name of the run, is another one";

fn key() -> RunKey {
    RunKey::from_bytes([1; 32])
}

fn name(text: &str) -> RunName {
    text.parse().unwrap()
}

/// Whether the command ended well, and all that it has printed.
fn said(arguments: &[&str], run_name: Option<&str>) -> (bool, String) {
    let key = ("PCCL_RUN_KEY", key().to_text());
    let mut command = command();
    let command = command.args(arguments).envs([key]).envs(run_name.map(|name| ("PCCL_RUN_NAME", name)));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn status_doctor_and_rotate_key_work_with_the_name_of_the_run_and_with_no_other() {
    let directory = Directory::new("program");
    let (file, admin) = (directory.0.join("run.key"), directory.0.join("admin"));
    private_file(&file, &key().to_text());
    let (file, admin) = (file.to_str().unwrap(), admin.to_str().unwrap());
    let arguments = ["--listen", "127.0.0.1:0", "--key-file", file, "--admin", admin, "--run", "A"];
    let mut program = Program::start(&arguments);
    let address = program.address.to_string();
    let [a, b] = ["A", "B"].map(|name| format!("pccl://{address}/{name}"));
    let ask = |place: &str, run_name| said(&["status", place], run_name);
    let look = |arguments: &[&str], run_name| {
        let ports = ["doctor", &address, "--p2p-port", "0", "--state-port", "0"];
        said(&[&ports[..], arguments].concat(), run_name)
    };
    // Before the rotation, and after it.
    for _ in 0..2 {
        for (is_good, text) in [ask(&a, None), ask(&address, Some("A")), ask(&a, Some("B"))] {
            assert!(is_good && text.contains("run key"), "{text}");
        }
        for (is_good, text) in [ask(&address, None), ask(&b, None), ask(&address, Some("B"))] {
            assert!(!is_good && text.contains(ANOTHER), "{text}");
        }
        for (is_good, text) in [look(&["--run", "A"], None), look(&[], Some("A"))] {
            assert!(is_good, "{text}");
        }
        for (is_good, text) in [look(&["--run", "B"], Some("A")), look(&[], None)] {
            assert!(!is_good && text.contains(ANOTHER) && text.contains("names of the run"), "{text}");
        }
        let (is_good, text) = said(&["rotate-key", "--key-file", file, "--admin", admin], None);
        assert!(is_good && text.contains("the run key stays, no other one is accepted"), "{text}");
    }
    program.signal("TERM");
    assert_eq!(program.end().0.code(), Some(0));
}

#[test]
fn a_name_without_a_key_is_refused_in_words() {
    for (arguments, variable) in [(vec!["--run", "A"], None), (vec![], Some("A"))] {
        let variable = variable.map(|name| ("PCCL_RUN_NAME", name));
        let mut command = command();
        let output =
            command.args(["--listen", "127.0.0.1:0"]).args(arguments).envs(variable).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains("the run has a name and no run key"), "{text}");
    }
    let listen = "127.0.0.1:0".to_owned();
    let config = MasterConfig { listen, run_name: Some(name("A")), ..MasterConfig::default() };
    assert!(matches!(Master::launch(config), Err(MasterError::Setting(text)) if text.contains("no run key")));
    let error = query_status("pccl://127.0.0.1:1/A", None, PATIENCE).unwrap_err();
    assert!(error.contains("the run has a name and no run key"), "{error}");
}

#[test]
fn only_a_master_of_the_same_name_stands_by_also_when_the_key_has_changed() {
    let directory = Directory::new("standby");
    let admin = |who: &str| directory.0.join(who);
    let first = launch(|config| {
        (config.run_key, config.run_name) = (Some(key()), Some(name("A")));
        (config.accept_standbys, config.return_grace) = (true, None);
        config.admin = Some(admin("first"));
    });
    let stand_by = |text: &str| {
        launch(|config| {
            (config.run_key, config.run_name) = (Some(key()), Some(name(text)));
            (config.standby_of, config.return_grace) = (vec![first.local_addr().to_string()], None);
            config.admin = Some(admin(text));
        })
    };
    let place = format!("pccl://{}/A", first.local_addr());
    let of_same_name = |standby: &Master, key: &RunKey| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let standbys = query_status(&place, Some(key), PATIENCE).expect("an answer").lead.standbys;
            let ports: Vec<u16> = standbys.iter().map(|standby| standby.port).collect();
            if !ports.is_empty() {
                assert_eq!(ports, [standby.local_addr().port()]);
                return;
            }
            assert!(Instant::now() < deadline, "nobody stands by");
            thread::sleep(Duration::from_millis(20));
        }
    };
    let _other = stand_by("B");
    let standby = stand_by("A");
    of_same_name(&standby, &key());
    let new = RunKey::from_bytes([2; 32]);
    for keys in [AcceptedKeys { used: new.clone(), second: Some(key()) }, new.clone().into()] {
        for who in ["A", "first"] {
            rotate_key(&admin(who), &keys, PATIENCE).expect("obeyed");
        }
    }
    of_same_name(&standby, &new);
    let of_standby = |key: RunKey| {
        let place = format!("pccl://{}/A", standby.local_addr());
        query_status(&place, Some(&key), PATIENCE)
    };
    assert!(!of_standby(new).expect("an answer").lead.acts);
    assert!(of_standby(key()).unwrap_err().contains(ANOTHER));
}
