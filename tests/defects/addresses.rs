//! Addresses of every kind.

use crate::support::{Meeting, PATIENCE, count, join, master_on, settings};
use pccl::{Builder, Communicator, Master, SharedState, SyncStrategy};
use std::net::{IpAddr, Ipv6Addr, TcpListener, UdpSocket};

/// Peers with these settings form a run, reduce, and move state.
fn meet(peers: &[Builder]) {
    let end = Meeting::new(peers.len());
    std::thread::scope(|scope| {
        for (index, settings) in peers.iter().enumerate() {
            let end = &end;
            scope.spawn(move || {
                let comm = join(settings.clone(), peers.len());
                assert_eq!(count(&comm), peers.len());
                let mut weights = [index as u64; 1000];
                let mut state = SharedState::new(u64::from(index == 0));
                state.tensor("w", &mut weights).expect("key");
                let info = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("sync");
                assert_eq!(info.rx_bytes, if index == 0 { 0 } else { 8000 });
                assert_eq!(weights, [0; 1000]);
                end.wait();
            });
        }
    });
}

/// A peer that reaches the master under this address of its.
fn through(master: &Master, ip: IpAddr) -> Builder {
    let address = std::net::SocketAddr::new(ip, master.local_addr().port());
    Communicator::builder(&address.to_string()).first_ports(0, 0).connect_timeout(PATIENCE)
}

/// Over IPv6 the listeners of the original never bind, and search for a port for ever.
#[test]
fn bug_28_peers_meet_over_ipv6_and_over_both() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return println!("this machine has no IPv6");
    }
    let ipv6 = master_on("[::1]:0");
    meet(&[settings(&ipv6), settings(&ipv6), settings(&ipv6).bind(Ipv6Addr::LOCALHOST.into())]);
    let both = master_on("[::]:0");
    let (four, six) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from(Ipv6Addr::LOCALHOST));
    meet(&[through(&both, four), through(&both, six), through(&both, four)]);
}

/// The original tells others the address from which a connection came, with no way to say another, and refuses peers of
/// the master's own machine when there are others, or the others.
#[test]
fn gap_13_peers_say_how_to_reach_them_and_local_ones_mix_with_others() {
    let master = master_on("0.0.0.0:0");
    let local = IpAddr::from([127, 0, 0, 1]);
    let mut peers = vec![through(&master, local), through(&master, local).advertised_host("localhost")];
    // Nothing is sent: this only asks which address would be used towards the outside.
    let outside = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    match outside {
        Ok(address) if !address.ip().is_loopback() => peers.push(through(&master, address.ip())),
        _ => println!("this machine has no address beside the local one"),
    }
    meet(&peers);
}
