//! Programs that call as fast as they can: a limit may make them wait, and no one of them is dropped or refused.

use pccl::{Communicator, Error, Master, MasterConfig, ReduceOp};
use std::{thread, time::Duration};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn master() -> Master {
    let listen = "127.0.0.1:0".into();
    Master::launch(MasterConfig { listen, ..MasterConfig::default() }).expect("master starts")
}

fn peer(master: &Master) -> Communicator {
    Communicator::builder(&master.local_addr().to_string())
        .first_ports(0, 0)
        .call_timeout(PATIENCE)
        .build()
        .expect("valid settings")
}

/// Two peers do this.
fn two(body: impl Fn(&Communicator) -> Result<(), Error> + Sync) {
    let master = master();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let comm = peer(&master);
                comm.connect().expect("connect");
                comm.wait_for_world(2, None).expect("world");
                let id = comm.id();
                body(&comm).expect("nobody minds");
                assert_eq!(comm.id(), id, "it was dropped");
                comm.barrier(()).expect("both are there");
            });
        }
    });
}

#[test]
fn topology_calls_in_a_tight_loop() {
    two(|comm| {
        for _ in 0..1000 {
            comm.are_peers_pending()?;
        }
        for _ in 0..1000 {
            comm.update_topology()?;
        }
        (0..5).try_for_each(|_| comm.optimize_topology().map(drop))
    });
}

#[test]
fn calls_between_two_at_full_speed() {
    two(|comm| {
        let rank = comm.world().rank;
        for round in 0..2000_u32 {
            let mut data = [round; 4];
            if (round as usize + rank).is_multiple_of(2) {
                comm.send(&data, 1 - rank, ())?;
            } else {
                data = [0; 4];
                comm.recv(&mut data, 1 - rank, ())?;
                assert_eq!(data, [round; 4]);
            }
        }
        let mut sum = [1_u32; 4];
        (0..1000).try_for_each(|_| comm.all_reduce(&mut sum, ReduceOp::Max).map(drop))
    });
}

#[test]
fn questions_for_the_status_in_a_tight_loop() {
    // More than are answered at once.
    two(|comm| (0..160).try_for_each(|_| comm.status().map(drop)));
}

#[test]
fn connecting_and_closing_in_a_tight_loop() {
    let master = master();
    let comm = peer(&master);
    for _ in 0..100 {
        comm.connect().expect("nobody minds");
        comm.close();
    }
}
