//! Leftovers of calls among what the driver has handed out.

use crate::{
    device,
    kinds::{Case, KINDS, Where, case},
    memory, peers,
};
use pccl::{
    Block, Call, DataType, Error, LaunchOptions, Quantisation, ReduceOp, Schedule, Scheme, Target, Tensor,
};
use pccl_testkit::standin::{Count, Standin};
use std::{fs, process::Command};

/// Resources that the driver has handed out, and work under way.
#[derive(Debug)]
struct Held {
    device_bytes: u64,
    pinned_bytes: u64,
    streams: u64,
    events: u64,
    modules: u64,
    queued: u64,
}

/// Lanes that are kept for later calls, at most: each has a stream and an event, and an event for each MiB of its ring.
const LANES: u64 = 8;
const MEBIBYTE: u64 = 1 << 20;

impl Held {
    fn now(standin: &Standin) -> Self {
        Self {
            device_bytes: standin.count(Count::DeviceBytes),
            pinned_bytes: standin.count(Count::PinnedBytes),
            streams: standin.count(Count::Streams),
            events: standin.count(Count::Events),
            modules: standin.count(Count::Modules),
            queued: standin.count(Count::Queued),
        }
    }

    /// All of it belongs to lanes that are kept, but for streams of the program.
    fn check(&self, streams: u64) {
        let lanes = self.streams - streams;
        assert!(lanes <= LANES, "streams are left: {self:?}");
        assert_eq!(self.queued, 0, "something is under way: {self:?}");
        assert_eq!(self.pinned_bytes % MEBIBYTE, 0, "half a buffer is left: {self:?}");
        assert_eq!(self.events, lanes + self.pinned_bytes / MEBIBYTE, "events or buffers are left: {self:?}");
        assert!(self.device_bytes <= lanes * MEBIBYTE, "device memory is left: {self:?}");
        assert_eq!(self.modules, 1, "kernels of quantisation, for one device: {self:?}");
    }
}

/// Threads of this process that copy.
fn copying_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("threads of this process");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "pccl-device").count()
}

#[test]
fn calls_leave_nothing_of_what_the_driver_has_handed_out() {
    // In a process in which nothing else was done.
    let test = std::env::current_exe().expect("this program");
    let arguments = ["--exact", "--ignored", "leaks::in_a_process_of_its_own"];
    let output = Command::new(test).args(arguments).output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "in a process of its own, which another test begins"]
fn in_a_process_of_its_own() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let streams: Vec<u64> = (0..2).map(|_| standin.stream()).collect();
    for _ in 0..2 {
        peers(2, |number, comm| {
            let (rank, ranks) = (comm.world().rank, comm.world().group_size);
            for kind in KINDS {
                for quantisation in [None, Some(affine).filter(|_| kind.may_be_quantised())] {
                    let plain = case(kind, DataType::Float32, 400_001, Schedule::Ring);
                    let case = Case { quantisation, ..plain };
                    let place = Where::BehindStream(streams[number]);
                    let mut buffers = case.buffers(&standin, (rank, ranks), place);
                    let call = case.call(&mut buffers, (rank, ranks));
                    comm.call(call, case.options()).expect("done");
                    buffers.iter().filter_map(|it| it.address).for_each(|address| standin.free(address));
                }
            }
            refused_and_failed(&standin, comm, number);
        });
        Held::now(&standin).check(streams.len() as u64);
        assert_eq!(copying_threads(), 0, "a thread still copies");
    }
}

/// Calls that end before they begin, that do not match, and that are given up while they copy.
fn refused_and_failed(standin: &Standin, comm: &pccl::Communicator, number: usize) {
    const BYTES: usize = 6 << 20;
    let (address, lent) = device(standin, &vec![1; BYTES]);
    let overlapping = Tensor::between_devices(
        memory(address, BYTES / 2),
        memory(address + 8, BYTES / 2),
        DataType::Uint8,
        ReduceOp::Max,
    );
    let refused = comm.call(vec![overlapping.expect("whole")], ());
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    let op = if number == 0 { ReduceOp::Max } else { ReduceOp::Min };
    let tensor = Tensor::on_device(lent.clone(), DataType::Uint8, op).expect("whole");
    let failed = comm.call(vec![tensor], 1);
    assert!(matches!(failed, Err(Error::Aborted(_))), "{failed:?}");
    let given_up = comm.scope(|scope| {
        let target = Target::on_device(lent, DataType::Uint8).expect("whole");
        let call = scope.launch(Call::broadcast(target, 0), LaunchOptions::from(2)).expect("launched");
        if number == 0 {
            call.abort();
        }
        call.wait()
    });
    // The outcome may have been decided before.
    assert!(matches!(given_up, Ok(_) | Err(Error::Aborted(_))), "{given_up:?}");
    assert!(standin.get(address, BYTES).iter().all(|byte| *byte == 1), "all had the same");
    standin.free(address);
}
