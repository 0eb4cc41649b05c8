//! The processes that a measurement starts: a peer does what its standard input says and answers with times, a master
//! tells its processor time.

use crate::Args;
use crate::plain_ring::PlainRing;
use pccl::{
    Algorithm, Block, Call, Communicator, FrameChecksums, ManyOptions, Master, MasterConfig, ReduceOp,
    ReduceOptions, Schedule, Scheme, Tensor,
};
use pccl_testkit::usage::{clock_seconds, cpu_seconds};
use std::{
    error::Error,
    io::{self, BufRead, Write},
    net::TcpListener,
    time::{Duration, Instant},
};

/// Schedules as commands name them.
pub(crate) const AUTOMATIC: usize = 0;
pub(crate) const RING: usize = 1;
pub(crate) const PAIRWISE: usize = 2;
pub(crate) const SITES: usize = 3;

const PATIENCE: Duration = Duration::from_secs(60);

struct Peer {
    peers: usize,
    comm: Communicator,
    /// How the last operation by a schedule travelled.
    algorithm: Option<Algorithm>,
    plain: PlainRing,
    data: Vec<f32>,
    other: Vec<f32>,
    /// The data that is quantised: quantising equal elements would cost less.
    noise: Vec<f32>,
    bytes: Vec<u8>,
    other_bytes: Vec<u8>,
}

/// A master. Runs until the parent closes the input.
pub(crate) fn serve(listen: &str, args: &Args) -> Result<(), Box<dyn Error>> {
    let master = Master::launch(MasterConfig {
        listen: listen.to_owned(),
        insecure: true,
        wire: args.wire.unwrap_or_default(),
        journal: args.journal.clone(),
        accept_standbys: args.accept_standbys,
        standby_of: args.standby_of.clone(),
        ..MasterConfig::default()
    })?;
    say(&master.local_addr().to_string())?;
    for line in io::stdin().lock().lines() {
        line?;
        say(&cpu_seconds()?.to_string())?;
    }
    Ok(())
}

/// A peer. Runs until the parent closes the input.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let peers = args.peers[0];
    let listener = TcpListener::bind("0.0.0.0:0")?;
    say(&listener.local_addr()?.port().to_string())?;
    let mut lines = io::stdin().lock().lines();
    let next = lines.next().ok_or("the parent is gone")??;
    let plain = PlainRing::connect(&listener, &next)?;
    let checksums = if args.checksums { FrameChecksums::Always } else { FrameChecksums::Automatic };
    let comm = Communicator::builder(&args.master)
        .first_ports(0, 0)
        .pool_size(args.pool)
        .frame_checksums(checksums)
        .shared_memory(!args.tcp)
        .build()?;
    comm.connect()?;
    comm.wait_for_world(peers, Some(PATIENCE))?;
    say("ready")?;
    let (data, other, noise, bytes, other_bytes) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut peer = Peer { peers, comm, algorithm: None, plain, data, other, noise, bytes, other_bytes };
    for line in lines {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = words[1..].iter().map(|word| word.parse()).collect::<Result<Vec<usize>, _>>()?;
        let (seconds, cpu) = peer.command(words[0], &numbers)?;
        say(&format!("{seconds} {cpu}"))?;
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

impl Peer {
    fn command(&mut self, name: &str, numbers: &[usize]) -> Result<(f64, f64), Box<dyn Error>> {
        match (name, numbers) {
            ("limit", &[bytes, repetitions]) => {
                self.bytes.resize(bytes, 1);
                self.other_bytes.resize(bytes, 2);
                let (peers, plain) = (self.peers, &mut self.plain);
                timed(repetitions, || Ok(plain.run(peers, &self.bytes, &mut self.other_bytes)?))
            }
            ("in_place", &[bytes, repetitions]) => {
                self.data.resize(bytes / 4, 1.0);
                timed(repetitions, || Ok(self.comm.all_reduce(&mut self.data, ReduceOp::Sum).map(drop)?))
            }
            // How the last scheduled operation travelled.
            ("travelled", &[]) => {
                let place = |it: &Schedule| Some(it.algorithm()) == self.algorithm;
                Ok((SCHEDULES.iter().position(place).unwrap_or(AUTOMATIC) as f64, 0.0))
            }
            ("scheduled", &[schedule, bytes, repetitions]) => {
                self.data.resize(bytes / 4, 1.0);
                let how = ReduceOptions::new(ReduceOp::Sum).schedule(schedule_of(schedule)?);
                timed(repetitions, || {
                    self.algorithm = Some(self.comm.all_reduce(&mut self.data, how)?.algorithm);
                    Ok(())
                })
            }
            ("gather", &[peers]) => {
                timed(1, || Ok(self.comm.wait_for_world(peers, Some(PATIENCE)).map(drop)?))
            }
            ("rank", &[]) => Ok((self.comm.world().rank as f64, 0.0)),
            ("optimize", &[]) => timed(1, || Ok(self.comm.optimize_topology().map(drop)?)),
            ("out_of_place", &[bytes, repetitions]) => {
                self.data.resize(bytes / 4, 1.0);
                self.other.resize(bytes / 4, 1.0);
                timed(repetitions, || {
                    let done = self.comm.all_reduce_into(&self.data, &mut self.other, ReduceOp::Sum);
                    Ok(done.map(drop)?)
                })
            }
            ("quantised", &[schedule, bytes, repetitions]) => {
                let mut random = 0x9E37_79B9_u32;
                self.noise.resize_with(bytes / 4, || {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (random >> 8) as f32 / 65_536.0 - 128.0
                });
                let how = ReduceOptions::new(ReduceOp::Avg)
                    .quantisation(Scheme::BlockAffineU8(Block::B256))
                    .schedule(schedule_of(schedule)?);
                timed(repetitions, || Ok(self.comm.all_reduce(&mut self.noise, how).map(drop)?))
            }
            ("until_done", &[bytes]) => {
                self.data.resize(bytes / 4, 1.0);
                let (mut failed_at, mut start) = (0.0, Instant::now());
                while let Err(error) = self.comm.all_reduce(&mut self.data, ReduceOp::Sum) {
                    if !error.is_retryable() {
                        return Err(error.into());
                    }
                    (failed_at, start) = (clock_seconds(), Instant::now());
                }
                Ok((failed_at, start.elapsed().as_secs_f64()))
            }
            // Until there is a result, whoever dies meanwhile, and the fewest contributors of a part of it; in one
            // piece if a segment has no bytes.
            ("whole", &[bytes, segment_bytes]) => {
                self.data.resize(bytes / 4, 1.0);
                let tensor = Tensor::in_place(&mut self.data, ReduceOp::Sum);
                let start = Instant::now();
                let fewest = if segment_bytes > 0 {
                    let done = self.comm.all_reduce_in_segments(tensor, segment_bytes, ())?;
                    done.segments.iter().map(|segment| segment.contributors.len()).min().unwrap_or(0)
                } else {
                    self.comm.all_reduce_many(&mut [tensor], ManyOptions::default())?.world_size
                };
                Ok((start.elapsed().as_secs_f64(), fewest as f64))
            }
            ("all_to_all", &[bytes, repetitions]) => {
                self.resize_both(bytes);
                let (data, other) = (&self.data, &mut self.other);
                timed(repetitions, || Ok(self.comm.all_to_all(data, other, ()).map(drop)?))
            }
            ("with_counts", &[bytes, repetitions]) => {
                self.resize_both(bytes);
                let own = vec![(bytes / 4 / self.peers) as u64; self.peers];
                let (data, other) = (&self.data, &mut self.other);
                timed(repetitions, || {
                    let counts = self.comm.exchange_counts(&own, &own, ())?;
                    Ok(self.comm.all_to_all_counts(data, other, &counts, ()).map(drop)?)
                })
            }
            ("in_pairs", &[bytes, repetitions]) => {
                self.resize_both(bytes);
                let (rank, part) = (self.comm.world().rank, bytes / 4 / self.peers);
                timed(repetitions, || in_pairs(&self.comm, rank, part, &self.data, &mut self.other))
            }
            ("many", &[tensors, bytes, repetitions]) => {
                self.data.resize(tensors * bytes / 4, 1.0);
                timed(repetitions, || many(&self.comm, self.data.chunks_exact_mut(bytes / 4)))
            }
            // This number of pairs of a large tensor and a small one.
            ("pairs", &[tensors, bytes, repetitions]) => {
                self.data.resize(tensors * bytes / 4, 1.0);
                timed(repetitions, || {
                    let pairs = self.data.chunks_exact_mut(bytes / 4);
                    many(
                        &self.comm,
                        pairs.flat_map(|pair| <[_; 2]>::from(pair.split_at_mut(bytes / 4 - 256))),
                    )
                })
            }
            ("in_flight", &[operations, bytes, repetitions]) => {
                self.data.resize(operations * bytes / 4, 1.0);
                timed(repetitions, || {
                    let tensors = self.data.chunks_exact_mut(bytes / 4).zip(1..);
                    self.comm.scope(|scope| {
                        let launched: Result<Vec<_>, _> = tensors
                            .map(|(tensor, tag)| {
                                scope.all_reduce(tensor, ReduceOptions::new(ReduceOp::Sum).tag(tag))
                            })
                            .collect();
                        launched?.into_iter().try_for_each(|operation| operation.wait().map(drop))
                    })?;
                    Ok(())
                })
            }
            _ => Err(format!("unknown command {name} {numbers:?}").into()),
        }
    }

    fn resize_both(&mut self, bytes: usize) {
        self.data.resize(bytes / 4, 1.0);
        self.other.resize(bytes / 4, 1.0);
    }
}

/// Gives each other rank a part, and takes one of each, all at once.
fn in_pairs(
    comm: &Communicator,
    rank: usize,
    part: usize,
    send: &[f32],
    recv: &mut [f32],
) -> Result<(), Box<dyn Error>> {
    recv[rank * part..][..part].copy_from_slice(&send[rank * part..][..part]);
    let others = send.chunks_exact(part).zip(recv.chunks_exact_mut(part)).enumerate();
    Ok(comm.scope(|scope| -> Result<(), pccl::Error> {
        let mut all = Vec::new();
        for (other, (given, taken)) in others.filter(|(other, _)| *other != rank) {
            all.push(scope.launch(Call::send(given, other), 1)?);
            all.push(scope.launch(Call::recv(taken, other), 1)?);
        }
        all.into_iter().try_for_each(|transfer| transfer.wait().map(drop))
    })?)
}

/// Reduces tensors in one operation.
fn many<'a>(comm: &Communicator, tensors: impl Iterator<Item = &'a mut [f32]>) -> Result<(), Box<dyn Error>> {
    let mut tensors: Vec<_> = tensors.map(|tensor| Tensor::in_place(tensor, ReduceOp::Sum)).collect();
    Ok(comm.all_reduce_many(&mut tensors, ManyOptions::default()).map(drop)?)
}

/// In the order of [`AUTOMATIC`], [`RING`], [`PAIRWISE`], [`SITES`].
const SCHEDULES: [Schedule; 4] = [Schedule::Automatic, Schedule::Ring, Schedule::Pairwise, Schedule::Sites];

/// By its place in [`SCHEDULES`].
fn schedule_of(number: usize) -> Result<Schedule, String> {
    SCHEDULES.get(number).copied().ok_or_else(|| format!("no schedule {number}"))
}

/// Elapsed and processor time of some calls, in seconds.
fn timed(
    repetitions: usize,
    mut call: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let (start, cpu) = (Instant::now(), cpu_seconds()?);
    for _ in 0..repetitions {
        call()?;
    }
    Ok((start.elapsed().as_secs_f64(), cpu_seconds()? - cpu))
}
