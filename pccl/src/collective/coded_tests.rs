//! Whole rings of attempts on quantised tensors, without a network; each rank with the kernels of another processor.

use super::attempt_tests::{Ring, bytes_of, inputs};
use pccl_protocol::OpFault;
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
use pccl_quant_reference::quantised_ring_oracle;
use proptest::prelude::*;

const SCHEMES: [Scheme; 11] = [
    Scheme::MinMax(DataType::Uint8),
    Scheme::MinMax(DataType::Int16),
    Scheme::ZeroPointScale(DataType::Int8),
    Scheme::BlockAffineU8(Block::B64),
    Scheme::BlockAffineU8(Block::B1024),
    Scheme::BlockSymmetricI8(Block::B128),
    Scheme::BlockAffineU4(Block::B64),
    Scheme::CastBf16,
    Scheme::CastF16,
    Scheme::BlockE4m3(Block::B64),
    Scheme::BlockE5m2(Block::B64),
];

fn oracle(inputs: &[Vec<f32>], op: ReduceOp, quantisation: Quantisation) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = inputs.iter().map(|input| bytes_of(input)).collect();
    let views: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    // The tag of the attempts, and their only tensor.
    quantised_ring_oracle(DataType::Float32, op, quantisation, (9, 0), &views)
}

fn run(ring: &Ring) -> Vec<Vec<u8>> {
    ring.start();
    while ring.under_way() > 0 {
        assert!(ring.deliver(ring.under_way() - 1, 1 << 20, usize::MAX));
    }
    finish(ring);
    ring.results()
}

/// The work of the callers' threads after the outcome.
fn finish(ring: &Ring) {
    (0..ring.ranks.len()).for_each(|rank| ring.attempt(rank).deliver().expect("everything has come"));
}

fn faults(ring: &Ring) -> Vec<OpFault> {
    ring.ranks.iter().flat_map(|rank| rank.owner.faults.lock().clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// Frames are as small as the scheme allows, or whole chunks.
    #[test]
    fn any_order_of_delivery_gives_the_bytes_of_the_oracle(
        ranks in 2usize..6, count in 0usize..900, in_place: bool,
        frame in prop::sample::select(&[8usize, 64, 1 << 20][..]),
        op in prop::sample::select(&[ReduceOp::Sum, ReduceOp::Avg][..]),
        scheme in prop::sample::select(&SCHEMES[..]), seed: Option<u64>,
        order in prop::collection::vec(any::<prop::sample::Index>(), 100),
    ) {
        let quantisation = match seed {
            Some(seed) if scheme.has_stochastic() => Quantisation::new(scheme).stochastic(seed),
            _ => Quantisation::new(scheme),
        };
        let inputs = inputs(ranks, count);
        let ring = Ring::with(&inputs, in_place, op, frame, Some(quantisation));
        ring.start();
        let mut order = order.iter().cycle();
        while ring.under_way() > 0 {
            let index = order.next().expect("endless").index(ring.under_way());
            prop_assert!(ring.deliver(index, 40, usize::MAX));
        }
        prop_assert_eq!(faults(&ring), []);
        for (rank, input) in ring.ranks.iter().zip(&inputs) {
            prop_assert!(bytes_of(&rank.send) == bytes_of(input), "only read before the outcome");
        }
        finish(&ring);
        let expected = oracle(&inputs, op, quantisation);
        for (rank, result) in ring.results().iter().enumerate() {
            prop_assert_eq!(result, &expected, "rank {} of {}", rank, quantisation);
            prop_assert!(ring.attempt(rank).progress().has_received_all());
            prop_assert!(ring.attempt(rank).progress().has_released_all());
        }
        for (rank, input) in ring.ranks.iter().zip(&inputs) {
            prop_assert!(in_place || bytes_of(&rank.send) == bytes_of(input), "only read");
        }
    }
}

/// Stops after every number of whole frames, and then within the next one: whatever had been overwritten by then comes
/// back bit for bit.
#[test]
fn an_abort_at_every_frame_restores_every_byte() {
    for scheme in [
        Scheme::BlockAffineU8(Block::B64),
        Scheme::BlockAffineU4(Block::B64),
        Scheme::MinMax(DataType::Uint8),
        Scheme::CastBf16,
    ] {
        for (ranks, in_place) in [(2, true), (3, true), (4, true), (3, false)] {
            // Several units per chunk, or several frames per unit, the last of each shorter.
            let inputs = inputs(ranks, 600);
            for whole in 0.. {
                let mut finished = false;
                for pieces in 0..=2 {
                    let ring = Ring::with(&inputs, in_place, ReduceOp::Avg, 64, Some(scheme.into()));
                    ring.start();
                    let mut cut = true;
                    for _ in 0..whole {
                        cut = ring.under_way() > 0 && ring.deliver(ring.under_way() - 1, 24, usize::MAX);
                    }
                    finished = !cut;
                    if ring.under_way() > 0 {
                        ring.deliver(ring.under_way() / 2, 24, pieces);
                    }
                    ring.retract_all();
                    for (rank, input) in inputs.iter().enumerate() {
                        ring.attempt(rank).restore();
                        assert_eq!(
                            bytes_of(&ring.ranks[rank].send),
                            bytes_of(input),
                            "{scheme}, ranks {ranks}, in place {in_place}, after {whole} frames, rank {rank}"
                        );
                    }
                }
                if finished {
                    break;
                }
            }
        }
    }
}

/// After the caller's memory was taken back nothing is written any more.
#[test]
fn a_retracted_attempt_is_not_decoded() {
    let inputs = inputs(2, 600);
    let ring = Ring::with(&inputs, true, ReduceOp::Sum, 64, Some(Scheme::MinMax(DataType::Uint8).into()));
    ring.start();
    while ring.under_way() > 0 {
        assert!(ring.deliver(0, 1 << 20, usize::MAX));
    }
    ring.retract_all();
    assert!(ring.attempt(0).deliver().is_err());
    assert_eq!(bytes_of(&ring.ranks[0].send), bytes_of(&inputs[0]));
}

/// A NaN or infinity on one rank makes its block NaN on all, and leaves the others as they would be without it.
#[test]
fn not_a_number_stays_in_its_block() {
    let scheme = Scheme::BlockAffineU8(Block::B64);
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let plain = inputs(3, 600);
        let mut with_odd = plain.clone();
        // Chunk 1 is elements 200 to 399; its second block is 264 to 327.
        with_odd[2][300] = odd;
        let result = |inputs: &[Vec<f32>]| {
            run(&Ring::with(inputs, true, ReduceOp::Avg, 64, Some(scheme.into()))).swap_remove(1)
        };
        let (plain, got) = (result(&plain), result(&with_odd));
        for element in 0..600 {
            let bytes = element * 4..element * 4 + 4;
            let wanted =
                if (264..328).contains(&element) { &[0, 0, 0xC0, 0x7F] } else { &plain[bytes.clone()] };
            assert_eq!(&got[bytes], wanted, "element {element}, {odd}");
        }
    }
}

/// The encoded form travels, and nothing beside it.
#[test]
fn traffic_is_that_of_the_encoded_form() {
    let ring = Ring::with(
        &inputs(4, 4096),
        true,
        ReduceOp::Sum,
        1 << 20,
        Some(Scheme::BlockAffineU8(Block::B256).into()),
    );
    run(&ring);
    // Chunks of 1024 elements: four blocks of 256 + 8 bytes. Six stages.
    assert_eq!(ring.attempt(0).progress().traffic(), (6 * 4 * 264, 6 * 4 * 264));
}
