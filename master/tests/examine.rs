//! Addresses that a master dials for somebody who has not registered: nobody behind its own firewall.

use crate::common::{Client, launch};
use pccl_protocol::{C2m, Examine, Host, M2c, Padding, PeerId, RequestId};
use std::net::{SocketAddr, TcpListener, TcpStream};
use tinysockets::place::own_address;

/// The master's words about two ports of a host, to somebody who comes from `from`, an address of this machine.
fn ask(from: &str, master: SocketAddr, host: &str, port: u16) -> Vec<String> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from.parse().unwrap(), 0).into()).unwrap();
    socket.connect(&master.into()).unwrap();
    let mut client = Client::greet(TcpStream::from(socket));
    client.send(&C2m::Examine(Examine {
        request: RequestId(1),
        peer: PeerId(9),
        advertised_host: Some(Host::new(host)),
        addresses: Vec::new(),
        p2p_port: port,
        state_port: port,
        padding: Padding(0),
    }));
    client.wait_for("Examined", |packet| match packet {
        M2c::Examined(told) => {
            Some(told.unreached.into_iter().map(|it| it.text.as_str().to_owned()).collect())
        }
        _ => None,
    })
}

#[test]
fn a_master_dials_no_address_that_only_it_reaches_for_somebody_from_elsewhere() {
    let master = launch(|config| {
        config.listen = "0.0.0.0:0".into();
        config.insecure = true;
    });
    let port = master.local_addr().port();
    let inner = TcpListener::bind("127.0.0.1:0").unwrap();
    inner.set_nonblocking(true).unwrap();
    let inner_port = inner.local_addr().unwrap().port();
    // From this machine all of it may be dialed, by whatever address it comes.
    let here = SocketAddr::from(([127, 0, 0, 1], port));
    let said = ask("127.0.0.1", here, "127.0.0.1", inner_port);
    assert!(said.iter().all(|text| !text.contains("is not tried")), "{said:?}");
    assert!(inner.accept().is_ok(), "it was dialed");
    while inner.accept().is_ok() {}
    let said = ask("127.0.0.1", here, "169.254.169.254", 80);
    assert!(said.len() == 2 && said[0].contains("169.254.169.254:80 is not tried"), "{said:?}");
    // Another address than that at which it reaches the master stands for another machine.
    let elsewhere =
        own_address("192.0.2.1:9".parse().unwrap()).expect("this machine has an address of a network");
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let said = ask(&elsewhere.to_string(), here, host, inner_port);
        let why = format!("is not tried for somebody who comes from {elsewhere}");
        assert!(said.len() == 2 && said.iter().all(|text| text.contains(&why)), "{said:?}");
    }
    assert!(inner.accept().is_err(), "the master dialed its own machine for somebody from elsewhere");
    // Where it comes from is tried, whatever address that is.
    let said = ask(&elsewhere.to_string(), here, &elsewhere.to_string(), inner_port);
    assert!(said.iter().all(|text| !text.contains("is not tried")), "{said:?}");
}
