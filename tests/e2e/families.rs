//! Hosts with IPv6 and IPv4 of which one family is broken somewhere: peers find the other one, and nobody says which.
//!
//! Three hosts in network namespaces behind one router, each with an address of both families. The router drops what a
//! test does not want to pass, without a word, as a broken tunnel does. Needs root, and the program `ip`.

use crate::{
    fleet::{Fleet, config, sync_command},
    networks::run,
    peer::give_key,
};
use pccl::{MasterConfig, RunKey};
use pccl_tests::spec::{Spec, StateSpec};
use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// The host of the master, and two others.
const HOSTS: [usize; 3] = [0, 1, 2];
/// Ports of the master, and of every peer.
const MASTER: u16 = 48_148;
const PORTS: &str = "ports=48150,48149";

fn four(host: usize) -> String {
    format!("203.0.{host}.1")
}

fn six(host: usize) -> String {
    format!("2001:db8:a{host}::1")
}

/// Taken away when this is dropped.
struct Families {
    prefix: String,
}

impl Families {
    /// Makes them; nothing where this machine does not have what it takes.
    fn up() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The name of a namespace is that of a file, and that of a device is short.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let families = Self { prefix: format!("pf{}x{number}", std::process::id() % 100_000) };
        match families.make() {
            Ok(()) => Some(families),
            Err(why) => {
                eprintln!("skipped, this machine does not have what it takes: {why}");
                None
            }
        }
    }

    fn make(&self) -> Result<(), String> {
        let router = &self.space("r");
        run("ip", &format!("netns add {router}"))?;
        for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            run("ip", &format!("netns exec {router} sysctl -qw {setting}"))?;
        }
        for host in HOSTS {
            let (space, four, six) = (&self.space(&host.to_string()), four(host), six(host));
            run("ip", &format!("netns add {space}"))?;
            run("ip", &format!("-n {router} link add r{host} type veth peer name eth0 netns {space}"))?;
            run("ip", &format!("-n {router} addr add 203.0.{host}.254/24 dev r{host}"))?;
            run("ip", &format!("-n {router} addr add 2001:db8:a{host}::254/64 dev r{host} nodad"))?;
            run("ip", &format!("-n {router} link set r{host} up"))?;
            run("ip", &format!("-n {space} addr add {four}/24 dev eth0"))?;
            run("ip", &format!("-n {space} addr add {six}/64 dev eth0 nodad"))?;
            run("ip", &format!("-n {space} link set eth0 up"))?;
            run("ip", &format!("-n {space} link set lo up"))?;
            run("ip", &format!("-n {space} route add default via 203.0.{host}.254"))?;
            run("ip", &format!("-n {space} route add default via 2001:db8:a{host}::254"))?;
        }
        Ok(())
    }

    fn space(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn on(&self, name: &str, command: &str) {
        run("ip", &format!("-n {} {command}", self.space(name))).expect("the network is changed");
    }

    /// Packets that one host sends to another by this family are dropped.
    fn drop_between(&self, from: usize, to: usize, address: fn(usize) -> String) {
        let (from, to) = (address(from), address(to));
        let family = if from.contains(':') { "-6" } else { "-4" };
        self.on("r", &format!("{family} rule add from {from} to {to} blackhole"));
    }

    /// The peer program on a host.
    fn command(&self, host: usize, key: Option<&RunKey>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(&host.to_string()), env!("CARGO_BIN_EXE_pccl-test-peer")]);
        give_key(&mut command, key);
        command
    }

    /// A world with a peer on each host, which come to the master by these families.
    fn world(&self, key: Option<RunKey>, ways: [fn(usize) -> String; 3]) -> Fleet {
        let listen = format!("[::]:{MASTER}");
        let config = MasterConfig { listen, run_key: key.clone(), ..config() };
        let mut fleet = Fleet::with_master_by(self.command(0, key.as_ref()), "unused", config);
        for (host, way) in HOSTS.into_iter().zip(ways) {
            let address = way(0);
            fleet.address = if address.contains(':') {
                format!("[{address}]:{MASTER}")
            } else {
                format!("{address}:{MASTER}")
            };
            fleet.spawn_by(self.command(host, key.as_ref()), &[PORTS]);
        }
        fleet.send("connect");
        fleet.send("wait 3 0");
        for peer in &mut *fleet {
            peer.answer().good();
            peer.answer().good();
        }
        fleet.meet();
        fleet
    }
}

impl Drop for Families {
    fn drop(&mut self) {
        // The processes that run in them have been ended before.
        for name in ["r", "0", "1", "2"] {
            let _ = run("ip", &format!("netns del {}", self.space(name)));
        }
    }
}

/// Everything works, between all of them and in both directions.
fn works(fleet: &mut Fleet) {
    fleet.await_mesh();
    fleet.reduce(Spec::sum(2_000_000, 4));
    let tensor = |seed| [StateSpec::new("a", 3_000_000, seed)];
    let commands = [1, 1, 2].map(|seed| sync_command(0, "popular", &tensor(seed)));
    let digest = tensor(1)[0].digest();
    for answer in fleet.sync(&commands) {
        assert_eq!(answer.good().list("digests"), std::slice::from_ref(&digest));
    }
    fleet.all("optimize").into_iter().for_each(|answer| assert_eq!(answer.good().number("unmeasured"), 0));
    for peer in &**fleet {
        let log = peer.log();
        // The wrong host warns of those who mean another one.
        let is_bad = |line: &str| line.contains(" WARN ") && !line.contains("refusing connection");
        assert!(!log.lines().any(is_bad), "{log}");
    }
}

/// Under which address one peer has reached the one on a host.
fn reached_at(fleet: &Fleet, place: usize, address: &str) -> bool {
    fleet[place].log().lines().any(|line| line.ends_with(&format!("is reached at {address}")))
}

#[test]
fn where_ipv6_is_dropped_ipv4_is_found() {
    let Some(families) = Families::up() else { return };
    families.drop_between(1, 2, six);
    let mut fleet = families.world(None, [four, four, four]);
    works(&mut fleet);
    assert!(reached_at(&fleet, 1, &four(2)), "{}", fleet[1].log());
    assert!(reached_at(&fleet, 2, &four(1)), "the answers are dropped as well: {}", fleet[2].log());
    // Elsewhere IPv6 goes first.
    assert!(reached_at(&fleet, 0, &six(1)) && reached_at(&fleet, 1, &six(0)), "{}", fleet[0].log());
}

#[test]
fn where_ipv4_is_dropped_ipv6_is_found() {
    let Some(families) = Families::up() else { return };
    families.drop_between(1, 2, four);
    let key = RunKey::from_bytes(*b"\xf3key of a run, all of its bytes.");
    let mut fleet = families.world(Some(key), [four, four, four]);
    works(&mut fleet);
    assert!(reached_at(&fleet, 1, &six(2)) && reached_at(&fleet, 2, &six(1)), "{}", fleet[1].log());
}

#[test]
fn peers_of_one_family_each_and_of_both_meet_at_a_master_of_both() {
    let Some(families) = Families::up() else { return };
    // One host has no IPv6, and another one comes to the master by it.
    families.on("2", &format!("addr del {}/64 dev eth0", six(2)));
    let mut fleet = families.world(None, [six, six, four]);
    works(&mut fleet);
    assert!(reached_at(&fleet, 2, &four(1)) && reached_at(&fleet, 1, &four(2)), "{}", fleet[2].log());
    assert!(reached_at(&fleet, 0, &six(1)), "{}", fleet[0].log());
}

/// The first host has the address of the third one as well, and the second one is led there.
#[test]
fn a_wrong_host_at_one_of_the_addresses_costs_nobody_an_edge() {
    for key in [None, Some(RunKey::from_bytes(*b"\xf4key of a run, all of its bytes."))] {
        let Some(families) = Families::up() else { return };
        families.on("0", &format!("addr add {}/128 dev lo nodad", six(2)));
        families.on("r", &format!("-6 route add {} via {} table 77", six(2), six(0)));
        families.on("r", &format!("-6 rule add from {} to {} lookup 77", six(1), six(2)));
        let mut fleet = families.world(key, [four, four, four]);
        works(&mut fleet);
        assert!(reached_at(&fleet, 1, &four(2)), "{}", fleet[1].log());
        let refused = fleet[1]
            .log()
            .lines()
            .any(|line| line.contains(&format!("[{}]", six(2))) && line.contains("refused the connection"));
        assert!(refused, "{}", fleet[1].log());
    }
}
