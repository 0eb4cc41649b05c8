//! Every collective in groups of given members and in a world of one; and frames of a forming that is over. Peers are
//! threads of this process.

use crate::formed::{PATIENCE, all, form, master, peer};
use pccl::{
    AsyncReduce, Cause, CollectiveOptions, Communicator, Error, LaunchOptions, PeerId, Quantisation,
    ReduceInfo, ReduceOp, Remedy, Scheme,
};
use pccl_testkit::ports::free_port;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// The buffers of one peer after a collective: what it has sent or worked on in place, and what it has got.
type Tried = (Result<ReduceInfo, Error>, Vec<f32>, Vec<f32>);

/// One collective of each kind.
const KINDS: [&str; 14] = [
    "all_reduce",
    "broadcast",
    "all_gather",
    "all_gather_counts",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_counts",
    "weighted_average",
    "barrier",
    "gather",
    "gather_counts",
    "scatter",
    "scatter_counts",
    "all_to_all",
];

/// The data that a peer of this rank gives: `count` elements, all of the same value.
fn given(rank: usize, count: usize) -> Vec<f32> {
    vec![rank as f32 + 1.0; count]
}

/// How many elements each rank has, where they differ.
fn counts(ranks: usize) -> Vec<u64> {
    (1..=ranks as u64).collect()
}

fn elements(ranks: usize) -> usize {
    counts(ranks).iter().sum::<u64>() as usize
}

/// Makes the collective of this kind for a world of `ranks` in which this peer has `rank`. The root is rank 0.
fn attempt(comm: &Communicator, kind: &str, (rank, ranks): (usize, usize), root: PeerId) -> Tried {
    let (by_rank, own) = (counts(ranks), rank + 1);
    let (mut data, mut recv) = (given(rank, 4), Vec::new());
    let result = match kind {
        "all_reduce" => comm.all_reduce(&mut data, ReduceOp::Sum),
        "broadcast" => comm.broadcast(&mut data, root, ()),
        "reduce" => comm.reduce(&mut data, root, ReduceOp::Sum),
        "weighted_average" => comm.weighted_average(&mut data, (rank + 1) as f64, ()),
        "barrier" => comm.barrier(()),
        "all_gather" => {
            recv = vec![0.0; 4 * ranks];
            comm.all_gather(&data, &mut recv, ())
        }
        "all_gather_counts" => {
            (data, recv) = (given(rank, own), vec![0.0; elements(ranks)]);
            comm.all_gather_counts(&data, &mut recv, &by_rank, ())
        }
        "reduce_scatter" => {
            (data, recv) = (given(rank, 4 * ranks), vec![0.0; 4]);
            comm.reduce_scatter(&data, &mut recv, ReduceOp::Sum)
        }
        "reduce_scatter_counts" => {
            (data, recv) = (given(rank, elements(ranks)), vec![0.0; own]);
            comm.reduce_scatter_counts(&data, &mut recv, &by_rank, ReduceOp::Sum)
        }
        "gather" => {
            recv = vec![0.0; if rank == 0 { 4 * ranks } else { 0 }];
            comm.gather(&data, &mut recv, root, ())
        }
        "gather_counts" => {
            (data, recv) = (given(rank, own), vec![0.0; if rank == 0 { elements(ranks) } else { 0 }]);
            comm.gather_counts(&data, &mut recv, &by_rank, root, ())
        }
        "scatter" => {
            (data, recv) = (given(rank, if rank == 0 { 4 * ranks } else { 0 }), vec![0.0; 4]);
            comm.scatter(&data, &mut recv, root, ())
        }
        "scatter_counts" => {
            (data, recv) = (given(rank, if rank == 0 { elements(ranks) } else { 0 }), vec![0.0; own]);
            comm.scatter_counts(&data, &mut recv, &by_rank, root, ())
        }
        "all_to_all" => {
            (data, recv) = (given(rank, 4 * ranks), vec![0.0; 4 * ranks]);
            comm.all_to_all(&data, &mut recv, ())
        }
        other => panic!("no collective {other}"),
    };
    (result, data, recv)
}

/// The data of a peer after a success: sent or worked on in place, and got.
fn wanted(kind: &str, rank: usize, ranks: usize) -> (Vec<f32>, Vec<f32>) {
    let sum = (ranks * (ranks + 1) / 2) as f32;
    let gathered = |count: fn(usize) -> usize| (0..ranks).flat_map(|of| given(of, count(of))).collect();
    match kind {
        "all_reduce" => (vec![sum; 4], vec![]),
        "broadcast" => (given(0, 4), vec![]),
        "reduce" => (if rank == 0 { vec![sum; 4] } else { given(rank, 4) }, vec![]),
        "weighted_average" => {
            let squares: usize = (1..=ranks).map(|weight| weight * weight).sum();
            (vec![(squares as f64 / f64::from(sum)) as f32; 4], vec![])
        }
        "barrier" => (given(rank, 4), vec![]),
        "all_gather" => (given(rank, 4), gathered(|_| 4)),
        "all_gather_counts" => (given(rank, rank + 1), gathered(|of| of + 1)),
        "reduce_scatter" => (given(rank, 4 * ranks), vec![sum; 4]),
        "reduce_scatter_counts" => (given(rank, elements(ranks)), vec![sum; rank + 1]),
        "gather" => (given(rank, 4), if rank == 0 { gathered(|_| 4) } else { vec![] }),
        "gather_counts" => (given(rank, rank + 1), if rank == 0 { gathered(|of| of + 1) } else { vec![] }),
        "scatter" => (given(rank, if rank == 0 { 4 * ranks } else { 0 }), given(0, 4)),
        "scatter_counts" => (given(rank, if rank == 0 { elements(ranks) } else { 0 }), given(0, rank + 1)),
        "all_to_all" => (given(rank, 4 * ranks), gathered(|_| 4)),
        other => panic!("no collective {other}"),
    }
}

/// Every collective succeeds among these peers and leaves what it should.
fn all_succeed(comms: &[&Communicator]) {
    for kind in KINDS {
        all(comms, |comm| {
            let world = comm.world();
            let place = (world.rank, world.ring.len());
            let (result, data, recv) = attempt(comm, kind, place, world.ring[0]);
            let info = result.unwrap_or_else(|error| panic!("{kind} at {place:?}: {error}"));
            assert_eq!((info.rank, info.world_size), place, "{kind}");
            assert_eq!((data, recv), wanted(kind, place.0, place.1), "{kind} at {place:?}");
        });
    }
}

#[test]
fn every_collective_works_in_formed_groups_of_any_size_and_order() {
    let master = master();
    let [a, b, c] = ["a", "b", "c"].map(|name| peer(&master, name));
    form(&[&a, &b, &c], 1, &["c", "a", "b"]);
    assert_eq!([&a, &b, &c].map(|comm| comm.world().rank), [1, 2, 0]);
    all_succeed(&[&a, &b, &c]);
    form(&[&a, &b], 2, &["b", "a"]);
    all_succeed(&[&a, &b]);
    form(&[&c], 3, &["c"]);
    all_succeed(&[&c]);
    form(&[&a, &b, &c], 4, &["a", "b", "c"]);
    all_succeed(&[&a, &b, &c]);
}

#[test]
fn a_missing_member_fails_every_collective_and_leaves_what_was_given() {
    let master = master();
    let [a, b, c] = ["a", "b", "c"].map(|name| peer(&master, name));
    form(&[&a, &b, &c], 1, &["a", "b", "c"]);
    let lost = c.id().expect("registered");
    c.close();
    for kind in KINDS {
        let errors = all(&[&a, &b], |comm| {
            let world = comm.world();
            let (result, data, recv) = attempt(comm, kind, (world.rank, 3), a.id().expect("registered"));
            let error = result.expect_err("a member is missing");
            let (before, after) = (given(world.rank, data.len()), recv.iter().all(|value| *value == 0.0));
            assert!(data == before && (after || kind.starts_with("all_gather")), "{kind}");
            error
        });
        for error in &errors {
            assert_eq!(error.remedy(), Remedy::FormGroup, "{kind}: {error}");
            let verdict = error.verdict().expect("a verdict");
            assert_eq!(verdict.cause, Cause::GroupBroken, "{kind}");
            assert_eq!(
                verdict.culprits.iter().map(|culprit| culprit.peer).collect::<Vec<_>>(),
                [lost],
                "{kind}"
            );
        }
        assert_eq!(errors[0].verdict(), errors[1].verdict(), "{kind}");
    }
    form(&[&a, &b], 2, &["a", "b"]);
    all_succeed(&[&a, &b]);
}

#[test]
fn in_a_world_of_one_every_collective_is_the_identity_and_then_the_run_goes_on() {
    let master = master();
    let address = master.local_addr().to_string();
    let builder = || Communicator::builder(&address).first_ports(0, 0).world_of_one(true);
    let first = builder().build().expect("valid");
    first.connect().expect("connect");
    all_succeed(&[&first]);
    // Data that does not travel is not quantised, and every bit stays.
    let odd: Vec<f32> = (0..100_000).map(|i| (i as f32).sin()).chain([-0.0, 1e-40]).collect();
    let bits = |data: &[f32]| data.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let options = CollectiveOptions {
        quantisation: Some(Quantisation::new(Scheme::MinMax(pccl::DataType::Uint8))),
        ..CollectiveOptions::default()
    };
    let (mut data, mut recv) = (odd.clone(), vec![0.0; odd.len()]);
    first.broadcast(&mut data, 0, options).expect("alone");
    first.all_gather(&odd, &mut recv, options).expect("alone");
    assert!(bits(&data) == bits(&odd) && bits(&recv) == bits(&odd));
    for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        let mut recv = vec![0.0; odd.len()];
        first.reduce(&mut data, 0, op).expect("alone");
        first.reduce_scatter(&odd, &mut recv, op).expect("alone");
        assert!(bits(&data) == bits(&odd) && bits(&recv) == bits(&odd), "{op}");
    }
    let second = builder().build().expect("valid");
    thread::scope(|scope| {
        scope.spawn(|| second.connect().expect("connect"));
        first.wait_for_world(2, Some(PATIENCE)).expect("the second joins");
    });
    all_succeed(&[&first, &second]);
    second.close();
    // Nobody has told it yet: what names the other one fails once, and leaves what was given.
    let world = first.world();
    let mut data = given(world.rank, 4);
    let other = world.ring[1 - world.rank];
    let error = first.broadcast(&mut data, other, ()).expect_err("the root has gone");
    assert_eq!(
        (error.verdict().map(|verdict| verdict.cause), data),
        (Some(Cause::WorldChanged), given(world.rank, 4))
    );
    all_succeed(&[&first]);
}

/// Stands in front of a port: what has been sent to it can be held back, and be sent once more.
#[derive(Default)]
struct Gate {
    /// Connections with lower numbers are held back.
    held_below: Mutex<usize>,
    changed: Condvar,
    connections: AtomicUsize,
    held: AtomicUsize,
    /// The bytes that each connection has carried.
    carried: Mutex<BTreeMap<usize, Vec<u8>>>,
}

impl Gate {
    /// Passes on what is sent to `shown`, to the same port of `hidden`.
    fn start(shown: TcpListener, hidden: IpAddr) -> Arc<Self> {
        let gate = Arc::new(Self::default());
        let port = shown.local_addr().expect("bound").port();
        let it = gate.clone();
        // It ends with the process.
        thread::spawn(move || {
            for near in shown.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect((hidden, port)) else { continue };
                let number = it.connections.fetch_add(1, Ordering::SeqCst);
                let (gate, back) = (it.clone(), (far.try_clone(), near.try_clone()));
                thread::spawn(move || gate.pass(number, near, far));
                if let (Ok(mut far), Ok(mut near)) = back {
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut far, &mut near);
                        let _ = near.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        gate
    }

    /// Holds back what comes over the connections that there are.
    fn hold(&self) {
        *self.held_below.lock().expect("no panic") = self.connections.load(Ordering::SeqCst);
    }

    fn release(&self) {
        *self.held_below.lock().expect("no panic") = 0;
        self.changed.notify_all();
    }

    /// Reads as soon as something comes, and sends when it may.
    fn pass(&self, number: usize, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length) = from.read(&mut buffer) {
            if length == 0 {
                break;
            }
            let mut carried = self.carried.lock().expect("no panic");
            carried.entry(number).or_default().extend_from_slice(&buffer[..length]);
            drop(carried);
            let mut below = self.held_below.lock().expect("no panic");
            if number < *below {
                self.held.fetch_add(length, Ordering::SeqCst);
            }
            while number < *below {
                below = self.changed.wait(below).expect("no panic");
            }
            drop(below);
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}

/// Begins the same all-reduce on both, lets `between` happen, and returns the results with the buffers.
fn reduce_both(
    comms: [&Communicator; 2],
    count: usize,
    value: f32,
    between: impl Fn([&AsyncReduce<'_>; 2]),
) -> [(Result<ReduceInfo, Error>, Vec<f32>); 2] {
    let mut data = [vec![value; count], vec![value + 1.0; count]];
    let [first, second] = &mut data;
    let options = || LaunchOptions { tag: 7, ..LaunchOptions::default() };
    let results = comms[0].scope(|a| {
        comms[1].scope(|b| {
            let tensor = |data| vec![pccl::Tensor::in_place(data, ReduceOp::Sum)];
            let one = a.launch(tensor(first), options()).expect("launched");
            let two = b.launch(tensor(second), options()).expect("launched");
            between([&one, &two]);
            [one.wait(), two.wait()]
        })
    });
    let [first, second] = data;
    let [one, two] = results;
    [(one, first), (two, second)]
}

#[test]
fn frames_of_a_forming_that_is_over_are_dropped() {
    const COUNT: usize = 1 << 20;
    let master = master();
    let a = peer(&master, "a");
    let hidden: IpAddr = "127.0.0.2".parse().expect("an address");
    let ports = [free_port(), free_port()];
    let [data, state] = ports.map(|port| TcpListener::bind(("127.0.0.3", port)).expect("a free port"));
    let builder = Communicator::builder(&master.local_addr().to_string());
    let builder = builder.name("b").formed_groups(true).bind(hidden).advertised_host("127.0.0.3");
    let b = builder.first_ports(ports[0], ports[1]).strict_ports(true).build().expect("valid settings");
    let gate = Gate::start(data, hidden);
    let _state = Gate::start(state, hidden);
    b.connect().expect("connect");
    form(&[&a, &b], 1, &["a", "b"]);
    let sums = reduce_both([&a, &b], COUNT, 1.0, |_| {});
    assert!(sums.iter().all(|(result, data)| result.is_ok() && *data == vec![3.0; COUNT]));

    // Frames for b are on their way when both give the operation up.
    gate.hold();
    let aborted = reduce_both([&a, &b], COUNT, 10.0, |handles| {
        while gate.held.load(Ordering::SeqCst) == 0 {
            assert!(handles.iter().all(|handle| !handle.is_done()));
            pccl_testkit::barrier::look_again();
        }
        handles[0].abort();
    });
    for ((result, data), before) in aborted.iter().zip([10.0, 11.0]) {
        let error = result.as_ref().expect_err("given up");
        assert_eq!(error.verdict().map(|verdict| verdict.cause), Some(Cause::CallerAbort));
        assert!(*data == vec![before; COUNT]);
    }

    // The same members and the same tag under another uuid: in the middle of it the frames of the old one come, over
    // their own connections, and what one of these has carried once more, over a new one.
    form(&[&a, &b], 2, &["a", "b"]);
    let carried = gate.carried.lock().expect("no panic").clone();
    let old = carried.into_values().max_by_key(Vec::len).expect("a connection");
    assert!(old.len() > COUNT, "it has carried frames");
    let replay = || {
        let mut late = TcpStream::connect((hidden, ports[0])).expect("b listens");
        late.set_nonblocking(true).expect("a connection");
        // As much as goes in: nobody need take it.
        let written = late.write(&old).expect("a new connection takes some");
        assert!(written > 512, "more than the preamble");
        late
    };
    let before = replay();
    let sums = reduce_both([&a, &b], COUNT, 100.0, |_| {
        gate.release();
        drop(replay());
    });
    for (result, data) in sums {
        assert_eq!(result.map(|info| info.world_size), Ok(2));
        assert!(data == vec![201.0; COUNT], "a frame of the forming before was taken");
    }
    drop(before);
    let sums = reduce_both([&a, &b], COUNT, 200.0, |_| {});
    assert!(sums.iter().all(|(result, data)| result.is_ok() && *data == vec![401.0; COUNT]));
}
