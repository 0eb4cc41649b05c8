//! Every level against the scalar oracle, by bytes.

use pccl_quant::{
    DataType, Level,
    quantise::{Codec, Rounding, Scheme},
};
use pccl_quant_reference::{
    codecs::{self, Seeds},
    data::elements_of,
};
use pccl_testkit::random::Rng;
use proptest::prelude::*;

use super::data::{FLOATS, all_schemes};

/// A copy of bytes at an address that is `offset` past a multiple of 64.
struct Misaligned {
    memory: Vec<u8>,
    range: std::ops::Range<usize>,
}

impl Misaligned {
    fn new(data: &[u8], offset: usize) -> Self {
        let memory = vec![0; data.len() + 64 + offset];
        let start = memory.as_ptr().align_offset(64) + offset;
        let mut copy = Self { memory, range: start..start + data.len() };
        copy.bytes().copy_from_slice(data);
        copy
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.range.clone()]
    }
}

#[derive(Clone, Debug)]
struct Case {
    scheme: Scheme,
    data_type: DataType,
    data: Vec<u8>,
    own: Vec<u8>,
    seeds: Option<Seeds>,
    first_element: u64,
    offsets: [usize; 2],
}

fn assert_same(what: &str, level: Level, case: &Case, found: &[u8], expected: &[u8]) {
    if let Some(at) = (0..expected.len().max(found.len())).find(|at| found.get(*at) != expected.get(*at)) {
        let Case { scheme, data_type, seeds, .. } = case;
        panic!(
            "{what} of {} bytes of {data_type} by {scheme}, {level:?}, {seeds:?}: byte {at} is {:02x?}, not {:02x?}",
            case.data.len(),
            found.get(at),
            expected.get(at)
        );
    }
}

fn check(case: &Case) {
    let Case { scheme, data_type, data, own, seeds, first_element, offsets } = case;
    let elements = data.len() / data_type.size_bytes();
    let encoded = codecs::encode(*scheme, *data_type, data, *seeds, *first_element);
    let set = codecs::decode(*scheme, *data_type, &encoded, data, false);
    let sum = codecs::decode(*scheme, *data_type, &encoded, own, true);
    let rounding = seeds.map_or(Rounding::NearestEven, Seeds::rounding);
    for level in Level::ALL {
        let Some(codec) = Codec::new(*scheme, *data_type).unwrap().at(level) else { continue };
        assert_eq!(codec.encoded_len(elements), Some(encoded.len()), "{scheme} {data_type} {elements}");
        let mut source = Misaligned::new(data, offsets[0]);
        let mut out = Misaligned::new(&vec![0xA5; encoded.len()], offsets[1]);
        codec.encode(source.bytes(), out.bytes(), rounding, *first_element).unwrap();
        assert_same("code", level, case, out.bytes(), &encoded);
        codec.decode_set(out.bytes(), source.bytes()).unwrap();
        assert_same("value", level, case, source.bytes(), &set);
        let mut target = Misaligned::new(own, offsets[0]);
        codec.decode_add(out.bytes(), target.bytes()).unwrap();
        assert_same("sum", level, case, target.bytes(), &sum);
    }
}

fn case(scheme: Scheme, data_type: DataType, kind: u8, elements: usize, seed: u64) -> Case {
    let mut rng = Rng(seed);
    let stochastic = scheme.has_stochastic() && rng.next().is_multiple_of(2);
    let seeds = Seeds { seed: rng.next(), operation: rng.next(), rank: rng.next() as u32 };
    Case {
        scheme,
        data_type,
        data: elements_of(data_type, kind, elements, &mut rng),
        own: elements_of(data_type, kind, elements, &mut rng),
        seeds: stochastic.then_some(seeds),
        first_element: rng.next() >> 7 << 6,
        offsets: [rng.next() as usize % 64, rng.next() as usize % 64],
    }
}

#[test]
fn every_scheme_type_and_kind_of_data() {
    for scheme in all_schemes() {
        for data_type in FLOATS {
            for kind in 0..10 {
                for elements in [1, 200] {
                    check(&case(scheme, data_type, kind, elements, u64::from(kind) + 7 * elements as u64));
                }
            }
        }
    }
}

/// More elements than are treated at once.
#[test]
fn every_scheme_over_many_blocks() {
    for scheme in all_schemes() {
        for (kind, data_type) in FLOATS.into_iter().enumerate() {
            check(&case(scheme, data_type, kind as u8, 10_000, 3));
        }
    }
}

#[test]
fn every_short_length() {
    for scheme in
        all_schemes().into_iter().filter(|scheme| !scheme.to_string().contains(['3', '6', '2', '5']))
    {
        for elements in 0..140 {
            check(&case(scheme, DataType::Float32, 0, elements, elements as u64));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn levels_agree_with_the_oracle(
        scheme in prop::sample::select(all_schemes()),
        data_type in prop::sample::select(&FLOATS[..]),
        kind in 0..10_u8,
        elements in 0..5000_usize,
        seed in any::<u64>(),
    ) {
        check(&case(scheme, data_type, kind, elements, seed));
    }

    /// Frames: pieces that begin at blocks are the bytes of the whole, and decode as it.
    #[test]
    fn pieces_are_parts_of_the_whole(
        scheme in prop::sample::select(all_schemes()),
        data_type in prop::sample::select(&FLOATS[..]),
        elements in 1..5000_usize,
        cut in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let codec = Codec::new(scheme, data_type).unwrap();
        let Some(piece) = codec.piece_elements() else { return Ok(()) };
        let piece = piece.max(64);
        let case = case(scheme, data_type, 0, elements, seed);
        let rounding = case.seeds.map_or(Rounding::NearestEven, Seeds::rounding);
        let cut = cut.index(elements / piece + 1) * piece;
        let (cut_bytes, cut_encoded) = (cut * data_type.size_bytes(), codec.encoded_len(cut).unwrap());
        let mut whole = vec![0; codec.encoded_len(elements).unwrap()];
        codec.encode(&case.data, &mut whole, rounding, case.first_element).unwrap();
        let mut parts = vec![0; whole.len()];
        let (first, second) = parts.split_at_mut(cut_encoded);
        codec.encode(&case.data[..cut_bytes], first, rounding, case.first_element).unwrap();
        codec.encode(&case.data[cut_bytes..], second, rounding, case.first_element + cut as u64).unwrap();
        prop_assert_eq!(&parts, &whole);
        let (mut at_once, mut in_parts) = (case.own.clone(), case.own);
        codec.decode_add(&whole, &mut at_once).unwrap();
        let (first, second) = in_parts.split_at_mut(cut_bytes);
        codec.decode_add(&whole[cut_encoded..], second).unwrap();
        codec.decode_add(&whole[..cut_encoded], first).unwrap();
        prop_assert_eq!(in_parts, at_once);
    }

    /// A stranger's bytes: some numbers come out, the same on every level.
    #[test]
    fn any_bytes_decode_alike(
        scheme in prop::sample::select(all_schemes()),
        data_type in prop::sample::select(&FLOATS[..]),
        elements in 0..1500_usize,
        seed in any::<u64>(),
    ) {
        let codec = Codec::new(scheme, data_type).unwrap();
        let mut rng = Rng(seed);
        let encoded: Vec<u8> =
            (0..codec.encoded_len(elements).unwrap()).map(|_| rng.next() as u8).collect();
        let own = elements_of(data_type, 9, elements, &mut rng);
        for add in [false, true] {
            let expected = codecs::decode(scheme, data_type, &encoded, &own, add);
            for codec in Level::ALL.into_iter().filter_map(|level| codec.at(level)) {
                let mut found = own.clone();
                if add { codec.decode_add(&encoded, &mut found) } else { codec.decode_set(&encoded, &mut found) }
                    .unwrap();
                prop_assert!(found == expected, "{} {} {:?}", scheme, data_type, codec);
            }
        }
    }
}
