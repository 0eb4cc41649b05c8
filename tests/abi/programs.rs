//! Masters and peers in C and C++, as processes.

use crate::build::{Language, compile};
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// A program that is talked to by lines. It dies with this value.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it.
    pub(crate) fn start(path: &Path, arguments: &[String]) -> Self {
        Self::start_with(path, arguments, &[])
    }

    /// The same, with further variables of its environment.
    pub(crate) fn start_with(path: &Path, arguments: &[String], variables: &[(&str, &Path)]) -> Self {
        let mut child = Command::new(path)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// Its next line; empty at the end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the output can be read");
        line.trim_end().to_owned()
    }

    /// Reads lines until one begins like this.
    pub(crate) fn expect(&mut self, start: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it ended before it said {start:?}");
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Lets it go on.
    pub(crate) fn go(&mut self) {
        self.tell("go");
    }

    /// Writes a line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("it listens");
    }

    /// Ends its input and waits for its end, which has to be a good one.
    pub(crate) fn finish(&mut self) {
        drop(self.input.take());
        let status = self.child.wait().expect("it can be waited for");
        assert!(status.success(), "{status}");
    }

    /// The end, at once.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it can be waited for");
    }

    /// Asks for the end.
    pub(crate) fn terminate(&self) {
        signal(&self.child.id().to_string(), "TERM");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal without calling the system directly.
pub(crate) fn signal(process: &str, name: &str) {
    let status =
        Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status().expect("a shell");
    assert!(status.success());
}

/// A master in C, and its port.
pub(crate) fn master() -> (Program, String) {
    let path = compile(Language::C99, "tests/abi/c/master.c", &format!("master-{}", unique()))
        .expect("a C compiler");
    let mut master = Program::start(&path, &[]);
    let port = master.line();
    assert!(port.parse::<u16>().is_ok_and(|port| port > 0), "{port:?}");
    (master, port)
}

/// Tests run side by side and build each their own program.
pub(crate) fn unique() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A process that nobody else ends.
struct Orphan(String);

impl Drop for Orphan {
    fn drop(&mut self) {
        signal(&self.0, "KILL");
    }
}

pub(crate) fn peer_program(language: Language) -> Option<PathBuf> {
    compile(language, "tests/abi/c/peer.c", &format!("peer-{language:?}-{}", unique()))
}

pub(crate) fn start_peers(program: &Path, port: &str, scenario: &str, peers: usize) -> Vec<Program> {
    let arguments =
        |index: usize| [port.to_owned(), scenario.to_owned(), peers.to_string(), index.to_string()];
    (0..peers).map(|index| Program::start(program, &arguments(index))).collect()
}

/// Peers of one scenario that are all in; they go on when told.
fn peers(program: &Path, port: &str, scenario: &str, peers: usize) -> Vec<Program> {
    let mut started = start_peers(program, port, scenario, peers);
    for peer in &mut started {
        peer.expect("joined");
    }
    for peer in &mut started {
        peer.go();
    }
    started
}

fn everything(language: Language, count: usize) {
    let Some(program) = peer_program(language) else { return };
    let (mut master, port) = master();
    for mut peer in peers(&program, &port, "all", count) {
        peer.finish();
    }
    // The interrupt comes from its handler of the signal.
    master.terminate();
    master.finish();
}

#[test]
fn two_peers_in_c() {
    everything(Language::C99, 2);
}

#[test]
fn three_peers_in_c() {
    everything(Language::C99, 3);
}

#[test]
fn three_peers_in_cpp() {
    everything(Language::Cpp17, 3);
}

/// Two peers in one site, two in another and one without a name.
#[test]
fn peers_in_c_name_their_sites_and_reduce_over_them() {
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    for mut peer in peers(&program, &port, "sites", 5) {
        peer.finish();
    }
}

#[test]
fn a_standby_in_the_process_of_peers_takes_over() {
    let path = compile(Language::C99, "tests/abi/c/standby.c", "standby").expect("a C compiler");
    Program::start(&path, &[]).finish();
}

#[test]
fn a_peer_gives_up_and_calls_do_not_match() {
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    let mut peers = peers(&program, &port, "give-up", 3);
    for peer in &mut peers {
        peer.expect("done");
    }
    for peer in &mut peers {
        peer.go();
    }
    for peer in &mut peers {
        peer.finish();
    }
}

/// Three peers, of which the first one differs in its shared state.
fn one_deviates(scenario: &str) {
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    let mut peers = peers(&program, &port, scenario, 3);
    for peer in &mut peers {
        peer.expect("done");
    }
    for peer in &mut peers {
        peer.go();
        peer.finish();
    }
}

#[test]
fn a_deviating_key_costs_its_peer_the_run_and_the_others_nothing() {
    one_deviates("deviate");
}

#[test]
fn a_revision_that_skips_costs_its_peer_the_run_and_the_others_nothing() {
    one_deviates("skip");
}

#[test]
fn a_limit_that_passes_frees_all_peers() {
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    let mut peers = peers(&program, &port, "limits", 3);
    peers[0].expect("limited");
    for peer in &mut peers {
        peer.go();
    }
    for peer in &mut peers {
        peer.expect("done");
    }
    for peer in &mut peers {
        peer.go();
        peer.finish();
    }
}

#[test]
fn groups_of_given_members_in_c_and_cpp() {
    for language in [Language::C99, Language::Cpp17] {
        let name = format!("groups-{language:?}-{}", unique());
        let Some(program) = compile(language, "tests/abi/c/groups.c", &name) else { continue };
        let (_master, port) = master();
        let mut peers = start_peers(&program, &port, "groups", 3);
        for peer in &mut peers {
            peer.expect("formed");
        }
        // The first one leaves; what the others do then fails until they form a group again.
        let mut others = peers.split_off(1);
        peers[0].go();
        peers[0].expect("done");
        for peer in &mut others {
            peer.go();
            peer.expect("done");
            peer.finish();
        }
        peers[0].finish();
    }
}

fn collectives(language: Language, scenario: &str) -> Option<(Program, Vec<Program>)> {
    let name = format!("collectives-{language:?}-{}", unique());
    let program = compile(language, "tests/abi/c/collectives.c", &name)?;
    let (master, port) = master();
    Some((master, peers(&program, &port, scenario, 3)))
}

#[test]
fn collectives_in_c_and_cpp_give_the_right_numbers_and_refuse_wrong_arguments() {
    for language in [Language::C99, Language::Cpp17] {
        let Some((_master, mut peers)) = collectives(language, "results") else { continue };
        // One of them comes late to the barrier, and the others wait for it.
        let lines: Vec<String> = peers.iter_mut().map(Program::line).collect();
        let late = lines.iter().position(|line| line == "late").expect("the one with rank 0");
        assert_eq!(lines.iter().filter(|line| *line == "waiting").count(), 2, "{lines:?}");
        peers[late].go();
        for peer in &mut peers {
            peer.expect("done");
            peer.finish();
        }
    }
}

#[test]
fn collectives_for_a_peer_that_dies_fail_and_leave_what_they_were_given() {
    let (_master, mut peers) = collectives(Language::C99, "missing").expect("a C compiler");
    let mut victim = peers.pop().expect("three");
    victim.expect("here");
    for peer in &mut peers {
        peer.expect("waiting");
    }
    victim.kill();
    for peer in &mut peers {
        peer.expect("done");
        peer.finish();
    }
}

#[test]
fn a_peer_that_dies_in_the_middle_of_broadcasts_leaves_whole_ones() {
    let (_master, mut peers) = collectives(Language::C99, "killed").expect("a C compiler");
    let mut victim = peers.pop().expect("three");
    for _ in 0..3 {
        victim.expect("begun");
    }
    victim.kill();
    for peer in &mut peers {
        peer.expect("done");
        peer.finish();
    }
}

#[test]
fn a_killed_peer_is_noticed_although_its_forked_child_lives() {
    let program = peer_program(Language::C99).expect("a C compiler");
    let (_master, port) = master();
    let mut peers = peers(&program, &port, "survive", 3);
    let mut victim = peers.pop().expect("three");
    let child = Orphan(victim.expect("child").split_once(' ').expect("its number").1.to_owned());
    for peer in &mut peers {
        peer.expect("waiting");
    }
    victim.kill();
    for peer in &mut peers {
        let line = peer.line();
        if line != "done" {
            // It had begun without the news; whoever is silent would have another verdict.
            assert!(line.contains("died"), "{line}");
            assert_eq!(peer.line(), "done");
        }
    }
    for peer in &mut peers {
        peer.go();
        peer.finish();
    }
    drop(child);
}
