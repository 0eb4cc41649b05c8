//! One peer loses the master on its side only, in the middle of an all-reduce, while the master still counts it as
//! alive. The others must never take for data what it had half sent.

use pccl::{Communicator, Error, FrameChecksums, Master, MasterConfig, ReduceOp};
use pccl_testkit::barrier::Barrier;
use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::Duration,
};

const COUNT: usize = 2 << 20;

/// Forwards one connection to `target`, and hands out the stream of its client.
fn proxy(target: SocketAddr) -> (SocketAddr, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect(target).expect("the master listens");
        sender.send(client.try_clone().expect("a descriptor")).expect("the test waits for it");
        let (mut from_client, mut to_server) =
            (client.try_clone().expect("a descriptor"), server.try_clone().expect("same"));
        let up = std::thread::spawn(move || io::copy(&mut from_client, &mut to_server));
        let (mut from_server, mut to_client) = (server, client);
        let _ = io::copy(&mut from_server, &mut to_client);
        // The master's end stays open until the master closes it: to the master the peer lives on.
        let _ = up.join();
        let _ = io::copy(&mut from_server, &mut io::sink());
    });
    (address, receiver)
}

fn peer(address: SocketAddr) -> Communicator {
    Communicator::builder(&address.to_string())
        .first_ports(0, 0)
        .frame_checksums(FrameChecksums::Never)
        .build()
        .expect("valid settings")
}

/// Reduces until the other two have gone on without the first; checks every result and every failure.
fn survive(comm: &Communicator, own: f32) {
    loop {
        let mut data = vec![own; COUNT];
        match comm.all_reduce(&mut data, ReduceOp::Sum) {
            Ok(info) => {
                let expected = if info.world_size == 3 { 111.0 } else { 110.0 };
                let wrong = data.iter().position(|&value| value != expected);
                assert_eq!(wrong.map(|i| (i, data[i])), None, "a result of {} peers", info.world_size);
                if info.world_size == 2 {
                    return;
                }
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                assert!(data.iter().all(|&value| value == own), "restored after: {error}");
            }
        }
    }
}

#[test]
fn a_peer_that_loses_the_master_alone_never_spoils_a_result() {
    for round in 0..6u64 {
        let config = MasterConfig {
            listen: "127.0.0.1:0".into(),
            peer_timeout: Duration::from_millis(1500),
            ..MasterConfig::default()
        };
        let master = Master::launch(config).expect("master starts");
        let (through, client) = proxy(master.local_addr());
        let ready = Barrier::new(3);
        std::thread::scope(|scope| {
            let ready = &ready;
            scope.spawn(move || {
                let comm = peer(through);
                comm.connect().expect("connect");
                comm.wait_for_world(3, Some(Duration::from_secs(60))).expect("complete");
                let control = client.recv().expect("proxied");
                ready.wait();
                let cutter = scope.spawn(move || {
                    // Another moment each round; where exactly it falls does not matter.
                    std::thread::sleep(Duration::from_micros(500 + round * 700));
                    let _ = control.shutdown(Shutdown::Both);
                });
                loop {
                    let mut data = vec![1.0f32; COUNT];
                    match comm.all_reduce(&mut data, ReduceOp::Sum) {
                        Ok(_) => assert!(data.iter().all(|&value| value == 111.0)),
                        Err(Error::OutcomeUnknown(_)) => {
                            assert!(data.iter().all(|&value| value == 111.0), "holds the whole result");
                            break;
                        }
                        Err(error) => {
                            assert!(data.iter().all(|&value| value == 1.0), "restored after: {error}");
                            if matches!(error, Error::MasterLost(_)) {
                                break;
                            }
                        }
                    }
                }
                cutter.join().expect("cut");
            });
            for own in [10.0, 100.0] {
                let master = &master;
                scope.spawn(move || {
                    let comm = peer(master.local_addr());
                    comm.connect().expect("connect");
                    comm.wait_for_world(3, Some(Duration::from_secs(60))).expect("complete");
                    ready.wait();
                    survive(&comm, own);
                });
            }
        });
    }
}
