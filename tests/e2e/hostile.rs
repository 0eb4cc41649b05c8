//! Bytes that nobody should send, at every port, while the peers work: operations may be aborted and retried, but the
//! run goes on and every result is right.

use crate::{fleet::Fleet, peer::Peer};
use pccl_tests::{pattern::mix, spec::Spec};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tinysockets::{
    link::{FrameHeader, OpKey},
    preamble::{Preamble, Role},
};

/// Ports on which a process listens.
fn ports(peer: &Peer) -> Vec<u16> {
    let mut found: Vec<u16> = listeners(peer).into_iter().map(|(_, port)| port).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Addresses, as the kernel writes them, and ports on which a process listens.
fn listeners(peer: &Peer) -> Vec<(String, u16)> {
    let own: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", peer.pid()))
        .expect("descriptors")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in std::fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else { continue };
            if state == "0A" && own.contains(&format!("socket:[{inode}]")) {
                let (address, port) = local.rsplit_once(':').expect("address and port");
                found.push((address.to_owned(), u16::from_str_radix(port, 16).expect("a port")));
            }
        }
    }
    found
}

#[test]
fn peers_of_a_master_that_only_this_machine_reaches_listen_for_it_alone() {
    let mut fleet = Fleet::new(2);
    for peer in fleet.iter() {
        let found = listeners(peer);
        assert!(found.len() == 2 && found.iter().all(|(address, _)| address == "0100007F"), "{found:?}");
    }
    fleet.reduce(Spec::sum(1000, 1));
}

/// The knowledge of an attacker about a peer.
#[derive(Debug, Clone)]
struct Target {
    address: SocketAddr,
    run: u128,
    peer: u128,
    previous: u128,
}

fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| mix(seed ^ i) as u8).collect()
}

fn frame(seed: u64, len: u32) -> Vec<u8> {
    let header = FrameHeader {
        op: OpKey {
            epoch: seed % 8,
            tag: 0,
            attempt: (seed % 3) as u32,
            pair: seed.is_multiple_of(5),
            track: u8::from(seed.is_multiple_of(7)),
        },
        part: 0,
        stage: (seed % 5) as u32,
        offset: 0,
        len,
        flags: 0,
        checksum: 0,
    };
    [header.encode().to_vec(), random_bytes(seed, len as usize)].concat()
}

/// One attack. The returned connection stays open.
fn attack(kind: u64, seed: u64, target: &Target) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&target.address, Duration::from_secs(5)).ok()?;
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let data = Preamble {
        run: target.run,
        from: target.previous,
        to: target.peer,
        epoch: seed % 8,
        connection_count: 1,
        link_generation: seed % 8,
        ..Preamble::new(Role::Data)
    };
    let bytes = match kind {
        0 => random_bytes(seed, 1 + (seed % 3000) as usize),
        1 => data.encode()[..10 + (seed % 80) as usize].to_vec(),
        2 => vec![0; 8],
        // Half a preamble, held open.
        3 => {
            stream.write_all(&data.encode()[..46]).ok()?;
            return Some(stream);
        }
        4 => Preamble { to: target.peer ^ 1, ..data }.encode().to_vec(),
        5 => Preamble { run: target.run ^ 1, ..data }.encode().to_vec(),
        6 => Preamble { role: Role::Probe, ..data }.encode().to_vec(),
        // An impostor of the previous rank: noise, frames that nobody announced, half a frame.
        7 => [data.encode().to_vec(), random_bytes(seed, 5000)].concat(),
        8 => [data.encode().to_vec(), frame(seed, 4096), frame(seed ^ 1, 4096)].concat(),
        9 => {
            let bytes = [&data.encode()[..], &frame(seed, 512 << 10)[..100_000]].concat();
            stream.write_all(&bytes).ok()?;
            return Some(stream);
        }
        // Requests for state and control packets whose length is absurd, and noise behind a good preamble.
        10 => {
            let role = if seed.is_multiple_of(2) { Role::State } else { Role::Control };
            let noise = [&[0xFF; 4][..], &random_bytes(seed, 3000)].concat();
            [Preamble { role, ..data }.encode().to_vec(), noise].concat()
        }
        _ => {
            let noise = [&[0, 0, 0, 60, 0, 1][..], &random_bytes(seed, 58)].concat();
            [Preamble::new(Role::Control).encode().to_vec(), noise].concat()
        }
    };
    let _ = stream.write_all(&bytes);
    let _ = stream.read(&mut [0; 64]);
    None
}

#[test]
fn hostile_bytes_at_every_port() {
    let mut fleet = Fleet::new(3);
    let ring = fleet.all("world")[0].ring();
    let mut targets = Vec::new();
    for peer in fleet.iter() {
        let id = peer.id.clone().expect("connected");
        let rank = ring.iter().position(|other| *other == id).expect("in the ring");
        let number = |id: &str| u128::from_str_radix(id, 16).expect("an id");
        let log = peer.log();
        let run =
            log.split(" in run ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a run");
        let found = ports(peer);
        assert_eq!(found.len(), 2, "one port for data, one for state");
        targets.extend(found.into_iter().map(|port| Target {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            run: number(run),
            peer: number(&id),
            previous: number(&ring[(rank + 2) % 3]),
        }));
    }
    let master = Target { address: fleet.address.parse().expect("an address"), ..targets[0].clone() };
    targets.push(master);
    let over = AtomicBool::new(false);
    let rounds = if crate::fleet::full() { 20 } else { 3 };
    let mut aborted = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = Vec::new();
            for round in 0..rounds {
                for kind in 0..12 {
                    for (place, target) in targets.iter().enumerate() {
                        held.extend(attack(kind, mix(round << 16 | kind << 8 | place as u64), target));
                    }
                }
            }
            over.store(true, Ordering::Release);
        });
        let mut step = 0;
        while !over.load(Ordering::Acquire) {
            let answers = fleet.reduce(Spec::sum(50_000 + step, step as u64));
            assert_eq!(answers[0].number("participants"), 3);
            aborted += answers[0].number("failures");
            step += 1;
        }
        println!("{step} operations under attack, {aborted} of them aborted and retried");
    });
    // Somebody new gets in, and state is synced, as if nothing had been.
    fleet.join(&[]);
    let state = crate::fleet::sync_command(0, "popular", &[pccl_tests::spec::StateSpec::new("w", 1000, 1)]);
    assert!(fleet.all(state).iter().all(|answer| answer.ok));
    assert_eq!(fleet.reduce(Spec::sum(1000, 1))[0].number("participants"), 4);
}
