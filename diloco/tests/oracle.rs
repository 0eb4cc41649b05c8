//! A second, plain implementation of the whole method, in one thread: a run of three members in lock step ends with its
//! bits, error memory and momentum included. With a fault planted in it, it does not.

use pccl::{Block, Communicator, DataType, Master, MasterConfig, PeerId, Scheme};
use pccl_diloco::{Compression, DiLoCo, OuterStep, Settings};
use pccl_quant::quantise::{Codec, Rounding};
use std::{ops::Range, sync::Arc, thread, time::Duration};

const MEMBERS: usize = 3;
const LENGTHS: [usize; 2] = [1100, 700];
const ELEMENTS: usize = 1800;
const EVERY: usize = 8;
const STEPS: usize = 96;
const RATE: f32 = 0.7;
const MOMENTUM: f32 = 0.9;
const PATIENCE: Duration = Duration::from_secs(120);

fn inner_step(parameters: &mut [f32], member: usize, step: usize) {
    for (at, parameter) in parameters.iter_mut().enumerate() {
        let goal = ((at * 31 + member * 977 + step * 7) % 101) as f32 / 50.0;
        *parameter += 0.05 * (goal - *parameter);
    }
}

fn weight(member: usize) -> f64 {
    [1.0, 2.5, 7.0][member]
}

fn settings() -> Settings {
    Settings {
        every: EVERY as u32,
        fragment_lengths: LENGTHS.to_vec(),
        compression: Compression::Int8,
        outer: OuterStep::Nesterov { rate: RATE, momentum: MOMENTUM },
        min_world: MEMBERS,
        ..Settings::default()
    }
}

/// A fault of the plain implementation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    SourceErrorsDropped,
    OwnerErrorsDropped,
    MomentumTwice,
    EqualWeights,
}

/// A member of the plain implementation, at its rank.
struct Plain {
    /// The number of the member.
    member: usize,
    own: Vec<f32>,
    base: Vec<f32>,
    source_errors: Vec<f32>,
    owner_errors: Vec<f32>,
    weights: [f64; LENGTHS.len()],
}

/// The elements that a rank owns of a fragment: whole blocks of 256.
fn part(length: usize, rank: usize) -> Range<usize> {
    let bound = |rank: usize| (length.div_ceil(256) * rank / MEMBERS * 256).min(length);
    bound(rank)..bound(rank + 1)
}

/// The values that 8 bits can say; `values` hold the rest then.
fn said(values: &mut [f32]) -> Vec<f32> {
    let codec = Codec::new(Scheme::BlockSymmetricI8(Block::B256), DataType::Float32).expect("a codec");
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (mut encoded, mut decoded) =
        (vec![0; codec.encoded_len(values.len()).expect("a size")], vec![0; bytes.len()]);
    codec.encode(&bytes, &mut encoded, Rounding::NearestEven, 0).expect("encodes");
    codec.decode_set(&encoded, &mut decoded).expect("decodes");
    let said: Vec<f32> =
        decoded.chunks(4).map(|it| f32::from_le_bytes(it.try_into().expect("four bytes"))).collect();
    values.iter_mut().zip(&said).for_each(|(value, said)| *value -= said);
    said
}

/// The outer parameters and momenta at the end; `members` by their ranks.
fn plain(members: &[usize], fault: Fault) -> (Vec<f32>, Vec<f32>) {
    let zeros = || vec![0.0_f32; ELEMENTS];
    let mut all: Vec<_> = members
        .iter()
        .map(|member| Plain {
            member: *member,
            own: zeros(),
            base: zeros(),
            source_errors: zeros(),
            owner_errors: zeros(),
            weights: [0.0; LENGTHS.len()],
        })
        .collect();
    let (mut outer, mut momentum) = (zeros(), zeros());
    for step in 0..STEPS {
        for it in &mut all {
            inner_step(&mut it.own, it.member, step);
            it.weights.iter_mut().for_each(|sum| *sum += weight(it.member));
        }
        let span = EVERY / LENGTHS.len();
        if (step + 1) % span == 0 {
            let fragment = (step / span) % LENGTHS.len();
            let begin: usize = LENGTHS[..fragment].iter().sum();
            let range = begin..begin + LENGTHS[fragment];
            let mean = mean(&mut all, fragment, &range, fault);
            for (at, mean) in range.clone().zip(mean) {
                momentum[at] = MOMENTUM * momentum[at] + mean;
                if fault == Fault::MomentumTwice {
                    momentum[at] *= MOMENTUM;
                }
                outer[at] -= RATE * (mean + MOMENTUM * momentum[at]);
            }
            for it in &mut all {
                for at in range.clone() {
                    it.own[at] = 0.0 * it.own[at] + outer[at];
                    it.base[at] = outer[at];
                }
            }
        }
    }
    (outer, momentum)
}

fn mean(all: &mut [Plain], fragment: usize, range: &Range<usize>, fault: Fault) -> Vec<f32> {
    let length = range.len();
    let total: f64 = all.iter().map(|it| it.weights[fragment]).sum();
    let mut sums = vec![0.0_f64; length];
    for it in all.iter_mut() {
        let weight = if fault == Fault::EqualWeights { total / MEMBERS as f64 } else { it.weights[fragment] };
        it.weights[fragment] = 0.0;
        for rank in 0..MEMBERS {
            let part = part(length, rank);
            let places = range.start + part.start..range.start + part.end;
            let mut change: Vec<f32> =
                places.clone().map(|at| it.base[at] - it.own[at] + it.source_errors[at]).collect();
            for (at, said) in part.zip(said(&mut change)) {
                sums[at] += weight * f64::from(said);
            }
            if fault != Fault::SourceErrorsDropped {
                it.source_errors[places].copy_from_slice(&change);
            }
        }
    }
    let mut mean: Vec<f32> = sums.iter().map(|sum| (sum / total) as f32).collect();
    for (rank, it) in all.iter_mut().enumerate() {
        let part = part(length, rank);
        let errors = &mut it.owner_errors[range.start + part.start..range.start + part.end];
        let mut values: Vec<f32> =
            mean[part.clone()].iter().zip(errors.iter()).map(|(mean, lost)| mean + lost).collect();
        mean[part].copy_from_slice(&said(&mut values));
        if fault != Fault::OwnerErrorsDropped {
            errors.copy_from_slice(&values);
        }
    }
    mean
}

/// A member of a real run: its place in the ring, the outer state at the end, and the ring.
fn real(address: &str, member: usize) -> (PeerId, Vec<PeerId>, Vec<f32>, Vec<f32>) {
    let comm: Arc<Communicator> =
        Communicator::builder(address).first_ports(0, 0).build().expect("settings").into();
    let mut parameters = vec![0.0; ELEMENTS];
    let mut run = DiLoCo::join(comm.clone(), settings(), &mut parameters).expect("joins");
    // Nobody comes or goes before the end.
    let (id, ring) = (comm.id().expect("an identity"), comm.world().ring);
    for step in 0..STEPS {
        inner_step(&mut parameters, member, step);
        run.step(&mut parameters, weight(member)).expect("a step");
    }
    run.finish(&mut parameters, Some(PATIENCE)).expect("ends well");
    let outer = run.outer();
    assert_eq!(outer.rounds() as usize, STEPS * LENGTHS.len() / EVERY);
    (id, ring, outer.parameters().to_vec(), outer.momentum().to_vec())
}

#[test]
fn a_run_ends_with_the_bits_of_the_plain_method_and_with_those_of_no_wrong_one() {
    let config = MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let ends: Vec<_> = thread::scope(|scope| {
        let members: Vec<_> = (0..MEMBERS)
            .map(|member| {
                scope.spawn({
                    let address = &address;
                    move || real(address, member)
                })
            })
            .collect();
        members.into_iter().map(|member| member.join().expect("a member")).collect()
    });
    // Sums depend on the order of the ranks in the last bit.
    let ring = ends[0].1.iter().map(|peer| ends.iter().position(|end| end.0 == *peer).expect("a member"));
    let members: Vec<_> = ring.collect();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let (outer, momentum) = plain(&members, Fault::None);
    for end in &ends {
        assert!(bits(&end.2) == bits(&outer), "outer parameters differ");
        assert!(bits(&end.3) == bits(&momentum), "momenta differ");
    }
    for fault in
        [Fault::SourceErrorsDropped, Fault::OwnerErrorsDropped, Fault::MomentumTwice, Fault::EqualWeights]
    {
        assert!(bits(&plain(&members, fault).0) != bits(&outer), "{fault:?} makes no difference");
    }
}
