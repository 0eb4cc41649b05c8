//! A driver that fails at one call after the other, in every kind of collective, whichever way its data takes.

use crate::{
    kinds::{Buffer, Case, KINDS, Kind, ROOT, Where, case},
    peers, peers_of,
};
use pccl::{
    Block, Call, Communicator, DataType, Error, LaunchOptions, PeerId, Quantisation, Schedule, Scheme,
};
use pccl_testkit::{
    barrier::Barrier,
    standin::{Count, Standin},
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

const OUT_OF_MEMORY: u32 = 2;
const LAUNCH_FAILED: u32 = 719;
/// Where each case has its errors, spread over all calls of the driver.
fn points() -> u64 {
    if std::env::var_os("PCCL_TEST_FULL").is_some() { 40 } else { 3 }
}

/// One of the peers of a run, all of which go through the same cases; only the one with the rank `culprit` has its
/// buffers on a device.
struct Peer<'a> {
    standin: &'a Standin,
    comm: &'a Communicator,
    together: &'a Barrier,
    culprit: usize,
    /// Calls of the driver in a run without an error.
    calls: &'a AtomicU64,
    /// Peers that have succeeded in the last run.
    done: &'a AtomicU64,
}

impl Peer<'_> {
    fn rank(&self) -> usize {
        self.comm.world().rank
    }

    fn ranks(&self) -> usize {
        self.comm.world().group_size
    }

    fn buffers(&self, case: &Case) -> Vec<Buffer> {
        let place = if self.rank() == self.culprit { Where::Device } else { Where::Host };
        case.buffers(self.standin, (self.rank(), self.ranks()), place)
    }

    /// The call of all ranks, with an error at a call of the driver, none if that is 0.
    fn run(&self, case: &Case, buffers: &mut [Buffer], error: (u64, u32)) -> Result<(), Error> {
        self.run_beside(case, buffers, error, None::<fn()>)
    }

    /// The same; if there is something to do beside it, the call of the driver waits, and whoever does that lets it go.
    fn run_beside(
        &self,
        case: &Case,
        buffers: &mut [Buffer],
        (at, error): (u64, u32),
        beside: Option<impl FnOnce() + Send>,
    ) -> Result<(), Error> {
        let call = (!case.leaves_out(self.rank())).then(|| case.call(buffers, (self.rank(), self.ranks())));
        self.together.wait();
        if self.rank() == self.culprit {
            self.done.store(0, Ordering::SeqCst);
            self.standin.fail(at, error);
            self.standin.hold(if beside.is_some() { at } else { 0 });
        }
        self.together.wait();
        // Nobody waits for ever for somebody whose driver has failed.
        let options = LaunchOptions { timeout: Some(Duration::from_secs(300)), ..case.options() };
        let result = std::thread::scope(|scope| {
            beside.map(|beside| scope.spawn(beside));
            call.map_or(Ok(()), |call: Call<'static>| self.comm.call(call, options).map(drop))
        });
        let has_succeeded = result.is_ok() && !case.leaves_out(self.rank());
        self.done.fetch_add(u64::from(has_succeeded), Ordering::SeqCst);
        self.together.wait();
        if self.rank() == self.culprit {
            self.standin.fail(0, 0);
        }
        self.together.wait();
        result
    }

    /// A case without an error, and then with one at several calls. How many of these have failed.
    fn go_through(&self, case: &Case, error: u32) -> usize {
        let mut buffers = self.buffers(case);
        let before = self.standin.count(Count::Calls);
        self.run(case, &mut buffers, (0, 0)).unwrap_or_else(|failed| panic!("{case:?}: {failed}"));
        if self.rank() == self.culprit {
            self.calls.store(self.standin.count(Count::Calls) - before, Ordering::SeqCst);
        }
        let expected = self.take(buffers);
        self.together.wait();
        let calls = self.calls.load(Ordering::SeqCst);
        let step = (calls / points()).max(1);
        let numbers = (1..=calls).step_by(usize::try_from(step).expect("a few calls"));
        let failed = numbers.filter(|number| self.fails(case, (*number, error), &expected)).count();
        // And the next one works.
        let mut buffers = self.buffers(case);
        self.run(case, &mut buffers, (0, 0)).unwrap_or_else(|failed| panic!("{case:?} afterwards: {failed}"));
        assert!(self.take(buffers) == expected, "{case:?} afterwards");
        failed
    }

    fn take(&self, buffers: Vec<Buffer>) -> Vec<Vec<u8>> {
        let contents = buffers.iter().map(|it| it.content(self.standin)).collect();
        buffers.iter().filter_map(|it| it.address).for_each(|address| self.standin.free(address));
        contents
    }

    /// A case with an error at this call. Whether it has failed for anybody, that is for this peer.
    fn fails(&self, case: &Case, (number, error): (u64, u32), expected: &[Vec<u8>]) -> bool {
        let mut buffers = self.buffers(case);
        let given: Vec<Vec<u8>> = buffers.iter().map(|it| it.before.clone()).collect();
        let result = self.run(case, &mut buffers, (number, error));
        let (rank, after) = (self.rank(), self.take(buffers));
        let what = format!("{case:?}, error {error} at call {number}, rank {rank}: {result:?}");
        let is_culprit = rank == self.culprit;
        match &result {
            Ok(()) => assert!(after == expected, "a wrong result: {what}"),
            Err(Error::System(reason)) if is_culprit => {
                let text = reason.to_string();
                assert!(text.contains(": cu"), "no function of the driver: {what}");
            }
            Err(Error::Aborted(verdict)) if !is_culprit => {
                let named: Vec<PeerId> = verdict.culprits.iter().map(|it| it.peer).collect();
                assert_eq!(named, [self.comm.world().ring[self.culprit]], "{what}");
                assert!(verdict.detail.to_string().contains(": cu"), "no function of the driver: {what}");
            }
            Err(_) => panic!("{what}"),
        }
        // A device that is lost gives and takes nothing any more; and of what the others have this one may have a part.
        let have_others = self.done.load(Ordering::SeqCst) > 0;
        let is_undefined = is_culprit && (error == LAUNCH_FAILED || have_others);
        let is_alike = result.is_ok() == have_others || is_culprit || case.leaves_out(rank);
        assert!(is_alike, "not the same for all others: {what}");
        for (index, (content, given)) in after.iter().zip(&given).enumerate() {
            if result.is_err() && !is_undefined && case.is_kept(index, rank) {
                assert!(content == given, "buffer {index} is not as before: {what}");
            }
        }
        result.is_err()
    }
}

/// Goes through cases with both errors at two ranks.
fn check(ranks: usize, schedule: Schedule, cases: &[Case]) {
    let standin = Standin::load().expect("the stand-in");
    let site = |number: usize| (schedule == Schedule::Sites).then(|| format!("site-{}", number / 2));
    let (together, calls, done) = (Barrier::new(ranks), AtomicU64::new(0), AtomicU64::new(0));
    peers_of(ranks, site, |_, comm| {
        let _here = together.attend();
        for culprit in [0, ROOT] {
            for error in [OUT_OF_MEMORY, LAUNCH_FAILED] {
                let (standin, together, calls, done) = (&standin, &together, &calls, &done);
                let peer = Peer { standin, comm, together, culprit, calls, done };
                let failed: Vec<usize> = cases.iter().map(|case| peer.go_through(case, error)).collect();
                if comm.world().rank == culprit {
                    for (case, failed) in cases.iter().zip(failed) {
                        assert!(failed > 0, "{case:?}: no call of the driver matters");
                    }
                }
            }
        }
    });
}

/// All kinds, of few elements and of many.
fn cases(schedule: Schedule, sizes: &[usize]) -> Vec<Case> {
    let of = |kind: Kind| sizes.iter().map(move |size| case(kind, DataType::Float32, *size, schedule));
    KINDS.into_iter().flat_map(of).collect()
}

#[test]
fn around_the_ring() {
    check(3, Schedule::Ring, &cases(Schedule::Ring, &[501, 300_001]));
}

#[test]
fn by_pairwise_exchange() {
    check(3, Schedule::Pairwise, &cases(Schedule::Pairwise, &[300_001]));
}

#[test]
fn over_sites() {
    check(4, Schedule::Sites, &cases(Schedule::Sites, &[300_001]));
}

#[test]
fn quantised_on_the_device() {
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let quantised = |kind| {
        let plain = case(kind, DataType::Float32, 200_001, Schedule::Ring);
        Case { quantisation: Some(affine), ..plain }
    };
    let cases = [
        Kind::AllReduce,
        Kind::AllReduceInto,
        Kind::Broadcast,
        Kind::Reduce,
        Kind::AllGatherCounts,
        Kind::ReduceScatterCounts,
    ];
    let cases = cases.map(quantised);
    check(3, Schedule::Ring, &cases);
}

/// A peer that gives to all others receives nothing. If it were complete at once, nobody could be told of a copy that
/// fails while the others have received what came before it.
#[test]
fn a_copy_that_fails_when_the_others_have_a_part_ends_it_for_all() {
    let standin = Standin::load().expect("the stand-in");
    // More than is copied at once.
    let elements = 3 << 20;
    // Within the copies down of the last pieces: this number of tenths of all calls of the driver.
    for (kind, culprit, tenths) in [
        (Kind::Broadcast, ROOT, 9),
        (Kind::Reduce, 0, 9),
        (Kind::SendRecv, 0, 9),
        (Kind::ReduceScatter, 0, 5),
    ] {
        let case = case(kind, DataType::Float32, elements, Schedule::Ring);
        let (together, calls, done) = (Barrier::new(2), AtomicU64::new(0), AtomicU64::new(0));
        let run = |comm: &Communicator, at: u64, beside: Option<&(dyn Fn() + Sync)>| {
            let (standin, together, calls, done) = (&standin, &together, &calls, &done);
            let _here = together.attend();
            let peer = Peer { standin, comm, together, culprit, calls, done };
            let mut buffers = peer.buffers(&case);
            let given: Vec<Vec<u8>> = buffers.iter().map(|it| it.before.clone()).collect();
            let before = standin.count(Count::Calls);
            let result = peer.run_beside(&case, &mut buffers, (at, OUT_OF_MEMORY), beside);
            if peer.rank() == culprit {
                calls.store(standin.count(Count::Calls) - before, Ordering::SeqCst);
            }
            for (index, (content, given)) in peer.take(buffers).into_iter().zip(given).enumerate() {
                let is_as_before = content == given || !case.is_kept(index, peer.rank());
                assert!(result.is_ok() || is_as_before, "{case:?}, buffer {index}");
            }
            result
        };
        // The second one finds what the first one has made.
        for _ in 0..2 {
            peers(2, |_, comm| run(comm, 0, None).expect("nothing fails"));
        }
        let at = calls.load(Ordering::SeqCst) * tenths / 10;
        let errors = peers(2, |_, comm| {
            let let_go = || {
                let deadline = Instant::now() + Duration::from_secs(100);
                let has_moved = || comm.status().expect("a status").peers.iter().any(|it| it.moved_bytes > 0);
                while Instant::now() < deadline && !(standin.holds() && has_moved()) {
                    pccl_testkit::barrier::look_again();
                }
                standin.hold(0);
            };
            let error = run(comm, at, Some(&let_go)).expect_err("a copy has failed");
            (comm.world().rank == culprit, error)
        });
        for (is_culprit, error) in errors {
            match is_culprit {
                true => assert!(matches!(error, Error::System(_)), "{case:?}: {error}"),
                false => assert!(matches!(error, Error::Aborted(_)), "{case:?}: {error}"),
            }
        }
    }
}
