//! Collectives of all kinds on devices: what they leave there is what they leave on the host, byte by byte.

use crate::{device, peers, peers_of};
use pccl::{
    Block, Call, ClipReport, Communicator, DataType, DeviceMemory, LaunchOptions, Quantisation, ReduceOp,
    Schedule, Scheme, Source, Target, Tensor,
};
use pccl_quant_reference::data::elements_of;
use pccl_testkit::{random::Rng, standin::Standin};

/// A kind of collective, as all ranks call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    AllReduceInto,
    Many,
    Broadcast,
    Reduce,
    AllGather,
    AllGatherCounts,
    ReduceScatter,
    ReduceScatterCounts,
    Weighted,
    Gather,
    Scatter,
    AllToAll,
    SendRecv,
}

impl Kind {
    /// Whether its elements can be quantised: not if they only move.
    pub(crate) fn may_be_quantised(self) -> bool {
        !matches!(self, Self::Gather | Self::Scatter | Self::AllToAll | Self::SendRecv)
    }
}

pub(crate) const KINDS: [Kind; 14] = [
    Kind::AllReduce,
    Kind::AllReduceInto,
    Kind::Many,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllGather,
    Kind::AllGatherCounts,
    Kind::ReduceScatter,
    Kind::ReduceScatterCounts,
    Kind::Weighted,
    Kind::Gather,
    Kind::Scatter,
    Kind::AllToAll,
    Kind::SendRecv,
];

/// The rank that gives or gets everything.
pub(crate) const ROOT: usize = 1;

/// A collective with what it works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    /// Of one rank, where each has a part.
    pub(crate) elements: usize,
    pub(crate) schedule: Schedule,
    pub(crate) quantisation: Option<Quantisation>,
    pub(crate) tag: u64,
}

/// A buffer of a rank: on the host, or the address of one on a device, and what is there before.
#[derive(Debug, Clone)]
pub(crate) struct Buffer {
    pub(crate) before: Vec<u8>,
    host: Vec<u8>,
    pub(crate) address: Option<u64>,
    is_nowhere: bool,
    stream: u64,
}

/// Where buffers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Host,
    Device,
    /// On the host, at addresses that are named as some of a device.
    Nowhere,
    /// On a device, where a stream has yet to put what is in it.
    BehindStream(u64),
}

impl Buffer {
    fn new(standin: &Standin, before: Vec<u8>, place: Where) -> Self {
        let (address, stream) = match place {
            Where::Host | Where::Nowhere => (None, 0),
            Where::Device => (Some(device(standin, &before).0), 0),
            Where::BehindStream(stream) => {
                let (address, _) = device(standin, &vec![0; before.len()]);
                standin.put_later(stream, address, &before);
                (Some(address), stream)
            }
        };
        Self { host: before.clone(), before, address, is_nowhere: place == Where::Nowhere, stream }
    }

    /// Where it is as memory of a device, if it is said to be that.
    fn named(&self) -> Option<DeviceMemory> {
        let address = self.address.or_else(|| self.is_nowhere.then_some(self.host.as_ptr() as u64))?;
        // SAFETY: the memory stays until the call is over, which is the only one to use it.
        Some(unsafe { DeviceMemory::named(address, self.before.len(), self.stream) })
    }

    pub(crate) fn content(&self, standin: &Standin) -> Vec<u8> {
        self.address.map_or_else(|| self.host.clone(), |address| standin.get(address, self.before.len()))
    }

    fn source(&self, data_type: DataType) -> Source<'static> {
        let count = self.before.len() / data_type.size_bytes();
        match self.named() {
            Some(memory) => Source::on_device(memory, data_type).expect("whole"),
            // SAFETY: the buffer outlives the call, which is the only one to use it.
            None => unsafe { Source::from_raw(self.host.as_ptr(), count, data_type) },
        }
    }

    fn target(&mut self, data_type: DataType) -> Target<'static> {
        let count = self.before.len() / data_type.size_bytes();
        match self.named() {
            Some(memory) => Target::on_device(memory, data_type).expect("whole"),
            // SAFETY: as above.
            None => unsafe { Target::from_raw(self.host.as_mut_ptr(), count, data_type) },
        }
    }
}

impl Case {
    /// Elements of each rank, where they differ: the first one has none.
    fn counts(&self, ranks: usize) -> Vec<u64> {
        (0..ranks).map(|rank| (self.elements * rank) as u64).collect()
    }

    /// Buffers of one rank, each with something in it.
    pub(crate) fn buffers(
        &self,
        standin: &Standin,
        (rank, ranks): (usize, usize),
        place: Where,
    ) -> Vec<Buffer> {
        let own = self.counts(ranks)[rank] as usize;
        let counts_sum = self.counts(ranks).iter().sum::<u64>() as usize;
        let lengths = match self.kind {
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::Weighted | Kind::SendRecv => {
                vec![self.elements]
            }
            Kind::AllReduceInto => vec![self.elements; 2],
            Kind::Many => vec![self.elements, 3, 0, self.elements / 2 + 1],
            Kind::AllGather | Kind::Gather => vec![self.elements, ranks * self.elements],
            Kind::AllGatherCounts => vec![own, counts_sum],
            Kind::ReduceScatter | Kind::Scatter => vec![ranks * self.elements, self.elements],
            Kind::AllToAll => vec![ranks * self.elements; 2],
            Kind::ReduceScatterCounts => vec![counts_sum, own],
        };
        let buffer = |(index, count): (usize, usize)| {
            let mut rng = Rng::keyed(&[rank as u64, index as u64, count as u64]);
            // A prime number of elements, over and over: what is in a wrong place is not what belongs there.
            let (period, size) = (count.min(4_099), self.data_type.size_bytes());
            let content = match is_float(self.data_type) {
                true => elements_of(self.data_type, 0, period, &mut rng),
                false => rng.bytes(period * size),
            };
            let content = content.iter().copied().cycle().take(count * size).collect();
            Buffer::new(standin, content, place)
        };
        lengths.into_iter().enumerate().map(buffer).collect()
    }

    /// The buffers that are as before if it fails.
    pub(crate) fn is_kept(&self, buffer: usize, rank: usize) -> bool {
        match self.kind {
            Kind::SendRecv => rank == 0,
            Kind::AllReduceInto | Kind::AllGather | Kind::AllGatherCounts => buffer == 0,
            Kind::Gather | Kind::Scatter | Kind::AllToAll => buffer == 0,
            _ => true,
        }
    }

    /// Whether a rank has nothing to do in it.
    pub(crate) fn leaves_out(&self, rank: usize) -> bool {
        self.kind == Kind::SendRecv && rank > 1
    }

    /// The call of one rank.
    pub(crate) fn call(&self, buffers: &mut [Buffer], (rank, ranks): (usize, usize)) -> Call<'static> {
        let (data_type, op) = (self.data_type, self.op);
        let call = match (self.kind, buffers) {
            (Kind::AllReduceInto, [send, recv]) => Call::all_reduce(vec![between(send, recv, data_type, op)]),
            (Kind::AllReduce | Kind::Many, all) => {
                Call::all_reduce(all.iter_mut().map(|it| in_place(it, data_type, op)).collect::<Vec<_>>())
            }
            (Kind::Broadcast, [data]) => Call::broadcast(data.target(data_type), ROOT),
            (Kind::Reduce, [data]) => Call::reduce(data.target(data_type), ROOT, op),
            (Kind::Weighted, [data]) => Call::weighted_average(data.target(data_type), 1.0 + rank as f64),
            (Kind::SendRecv, [data]) if rank == 0 => Call::send(data.source(data_type), 1),
            (Kind::SendRecv, [data]) => Call::recv(data.target(data_type), 0),
            (Kind::AllGather, [send, recv]) => {
                Call::all_gather(send.source(data_type), recv.target(data_type))
            }
            (Kind::AllGatherCounts, [send, recv]) => {
                let counts = self.counts(ranks);
                Call::all_gather_counts(send.source(data_type), recv.target(data_type), &counts)
            }
            (Kind::ReduceScatter, [send, recv]) => {
                Call::reduce_scatter(send.source(data_type), recv.target(data_type), op)
            }
            (Kind::ReduceScatterCounts, [send, recv]) => {
                let counts = self.counts(ranks);
                Call::reduce_scatter_counts(send.source(data_type), recv.target(data_type), &counts, op)
            }
            (Kind::Gather, [send, recv]) => {
                Call::gather(send.source(data_type), recv.target(data_type), ROOT)
            }
            (Kind::Scatter, [send, recv]) => {
                Call::scatter(send.source(data_type), recv.target(data_type), ROOT)
            }
            (Kind::AllToAll, [send, recv]) => {
                Call::all_to_all(send.source(data_type), recv.target(data_type))
            }
            (kind, buffers) => panic!("{kind:?} with {} buffers", buffers.len()),
        };
        call.quantised(self.quantisation)
    }

    pub(crate) fn options(&self) -> LaunchOptions {
        LaunchOptions { tag: self.tag, schedule: self.schedule, ..LaunchOptions::from(()) }
    }
}

fn is_float(data_type: DataType) -> bool {
    use DataType::{BFloat16, Float16, Float32, Float64};
    matches!(data_type, Float16 | BFloat16 | Float32 | Float64)
}

fn in_place(data: &mut Buffer, data_type: DataType, op: ReduceOp) -> Tensor<'static> {
    let bytes = data.before.len();
    match data.named() {
        Some(memory) => Tensor::on_device(memory, data_type, op).expect("whole"),
        None => {
            let (start, count) = (data.host.as_mut_ptr(), bytes / data_type.size_bytes());
            // SAFETY: the buffer outlives the call, which is the only one to use it.
            unsafe { Tensor::from_raw(start, start, count, data_type, op) }
        }
    }
}

fn between(send: &Buffer, recv: &mut Buffer, data_type: DataType, op: ReduceOp) -> Tensor<'static> {
    let bytes = send.before.len();
    match send.named().zip(recv.named()) {
        Some((from, to)) => Tensor::between_devices(from, to, data_type, op).expect("whole"),
        None => {
            let count = bytes / data_type.size_bytes();
            // SAFETY: as above.
            unsafe { Tensor::from_raw(send.host.as_ptr(), recv.host.as_mut_ptr(), count, data_type, op) }
        }
    }
}

/// Makes the calls on the host, on devices, and with every second rank on a device whose stream has yet to put there
/// what it gives, and compares.
fn compare(standin: &Standin, comm: &Communicator, cases: &[Case]) {
    let (rank, ranks, stream) = (comm.world().rank, comm.world().group_size, standin.stream());
    for case in cases.iter().filter(|case| !case.leaves_out(rank)) {
        let run = |place: Where| {
            let mut buffers = case.buffers(standin, (rank, ranks), place);
            let call = case.call(&mut buffers, (rank, ranks));
            let info = comm.call(call, case.options()).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            if case.kind == Kind::AllReduce
                && case.elements >= 300_001
                && case.schedule != Schedule::default()
            {
                let names = (format!("{:?}", info.algorithm), format!("{:?}", case.schedule));
                assert_eq!(names.0, names.1, "the way that was asked for");
            }
            let contents: Vec<Vec<u8>> = buffers.iter().map(|it| it.content(standin)).collect();
            buffers.iter().filter_map(|it| it.address).for_each(|address| standin.free(address));
            contents
        };
        let expected = run(Where::Host);
        assert!(run(Where::Device) == expected, "{case:?} on devices, at rank {rank}");
        let some = |turn| if rank % 2 == turn { Where::BehindStream(stream) } else { Where::Host };
        assert!(run(some(0)) == expected, "{case:?} on some devices, at rank {rank}");
        assert!(run(some(1)) == expected, "{case:?} on other devices, at rank {rank}");
    }
}

/// A sum that is not quantised.
pub(crate) fn case(kind: Kind, data_type: DataType, elements: usize, schedule: Schedule) -> Case {
    Case { kind, data_type, op: ReduceOp::Sum, elements, schedule, quantisation: None, tag: 3 }
}

#[test]
fn every_kind_leaves_on_devices_what_it_leaves_on_the_host() {
    let standin = Standin::load().expect("the stand-in");
    let of = |schedule: Schedule| -> Vec<Case> {
        let sizes: &[usize] = match schedule {
            Schedule::Automatic => &[0, 7, 300_001],
            Schedule::Ring => &[600_001],
            _ => &[300_001],
        };
        let one = |kind| sizes.iter().map(move |size| case(kind, DataType::Float32, *size, schedule));
        KINDS.into_iter().flat_map(one).collect()
    };
    for (ranks, schedule) in
        [(2, Schedule::default()), (3, Schedule::Ring), (3, Schedule::Pairwise), (4, Schedule::Sites)]
    {
        // Two at each site.
        let site = |number: usize| (schedule == Schedule::Sites).then(|| format!("site-{}", number / 2));
        peers_of(ranks, site, |_, comm| compare(&standin, comm, &of(schedule)));
    }
}

#[test]
fn every_type_of_elements_can_be_on_a_device() {
    let standin = Standin::load().expect("the stand-in");
    let mut cases = Vec::new();
    for (type_at, data_type) in DataType::ALL.into_iter().enumerate() {
        for (kind_at, kind) in KINDS.into_iter().enumerate() {
            if kind == Kind::Weighted && !is_float(data_type) {
                continue;
            }
            cases.push(case(kind, data_type, 2_003, Schedule::default()));
            if (type_at + kind_at) % 3 == 0 {
                // More than what is waited for as one, of elements of eight bytes.
                cases.push(Case { op: ReduceOp::Avg, ..case(kind, data_type, 140_003, Schedule::Ring) });
            }
        }
    }
    peers_of(2, |_| None, |_, comm| compare(&standin, comm, &cases));
}

#[test]
fn every_kind_is_quantised_on_devices_as_on_the_host() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let min_max = Quantisation::new(Scheme::MinMax(DataType::Uint8));
    let mut cases = Vec::new();
    for (at, quantisation) in
        [affine, affine.stochastic(5), min_max, Quantisation::new(Scheme::CastBf16)].into_iter().enumerate()
    {
        for (kind_at, kind) in KINDS.into_iter().filter(|kind| kind.may_be_quantised()).enumerate() {
            for (schedule_at, schedule) in [Schedule::Ring, Schedule::Pairwise].into_iter().enumerate() {
                let elements = if (at + kind_at + schedule_at) % 3 == 0 { 150_003 } else { 1_001 };
                let quantisation = Some(quantisation);
                cases.push(Case { quantisation, ..case(kind, DataType::Float32, elements, schedule) });
            }
        }
    }
    peers_of(3, |_| None, |_, comm| compare(&standin, comm, &cases));
}

#[test]
fn a_clip_on_a_device_is_that_on_the_host() {
    let standin = Standin::load().expect("the stand-in");
    const COUNT: usize = 2_500_001;
    let clips = peers(2, |number, comm| {
        // The second one has far more than the first.
        let largest = if number == 0 { 0.001 } else { 1.0 };
        let mut rng = Rng::keyed(&[number as u64]);
        let values: Vec<u8> =
            (0..COUNT).flat_map(|_| (largest * rng.uniform() as f32).to_le_bytes()).collect();
        let run = |place| {
            let mut data = Buffer::new(&standin, values.clone(), place);
            let report = ClipReport::default();
            let call = Call::clip_to_median(vec![data.target(DataType::Float32)], 2.0, &report);
            comm.call(call, ()).expect("clipped");
            (report.take().expect("a report"), data.content(&standin))
        };
        let (on_host, expected) = run(Where::Host);
        let (on_device, content) = run(Where::Device);
        assert!(on_host == on_device && content == expected, "{on_host:?}, {on_device:?}");
        assert_eq!(content == values, number == 0, "who is beyond the bound is clipped");
        on_host
    });
    assert_eq!(clips[0].median, clips[1].median);
}

#[test]
fn segments_on_a_device_are_those_on_the_host() {
    let standin = Standin::load().expect("the stand-in");
    peers(2, |number, comm| {
        let values = elements_of(DataType::Float32, 0, 900_001, &mut Rng::keyed(&[number as u64]));
        let run = |place| {
            let mut data = Buffer::new(&standin, values.clone(), place);
            let tensor = in_place(&mut data, DataType::Float32, ReduceOp::Avg);
            let info = comm.all_reduce_in_segments(tensor, 1 << 20, ()).expect("reduced");
            (info.segments.len(), data.content(&standin))
        };
        let on_host = run(Where::Host);
        assert_eq!(on_host.0, 4);
        assert!(run(Where::Device) == on_host);
    });
}
