//! The computation of the kernels, said a second time: one element at a time, without any code in common with them, as
//! slow as it pleases. Tests compare the bytes of real results with those of this crate. It is a development dependency
//! and part of no library.
//!
//! Modules from top to bottom, each of which uses only those below it: `codecs`, `data`.
#![forbid(unsafe_code)]

pub mod codecs;
pub mod data;

use half::{bf16, f16};
use pccl_quant::{DataType, ReduceOp, quantise::Quantisation};

/// `own OP received`, where [`ReduceOp::Avg`] is a sum.
///
/// # Panics
/// If the lengths differ or are not whole elements.
#[must_use]
pub fn fold_scalar(data_type: DataType, op: ReduceOp, own: &[u8], received: &[u8]) -> Vec<u8> {
    assert_eq!(own.len(), received.len(), "own and received must be equally long");
    let size = data_type.size_bytes();
    assert_eq!(own.len() % size, 0, "not a whole number of {data_type} elements");
    let pairs = own.chunks_exact(size).zip(received.chunks_exact(size));
    pairs.flat_map(|(own, received)| fold_element(data_type, op, own, received)).collect()
}

/// `data / ranks`, the division that ends an average.
///
/// # Panics
/// If `data` is not whole elements, or `ranks` is 0.
#[must_use]
pub fn divide_scalar(data_type: DataType, data: &[u8], ranks: u32) -> Vec<u8> {
    assert_ne!(ranks, 0, "an average needs ranks");
    let size = data_type.size_bytes();
    assert_eq!(data.len() % size, 0, "not a whole number of {data_type} elements");
    data.chunks_exact(size).flat_map(|element| divide_element(data_type, element, ranks)).collect()
}

/// The result of a ring all-reduce, the same on every rank, given the ranks' inputs in ring order.
///
/// Of N elements over n ranks, a chunk has N div n, and each of the first N mod n chunks one more. Chunk c starts with
/// rank c's value and is folded at the ranks c+1, c+2, ..., c-1 (mod n), each with its own value on the left and the
/// received partial result on the right. An average is divided once, at the end.
///
/// # Panics
/// If there is no input, or their lengths differ or are not whole elements.
#[must_use]
pub fn ring_all_reduce_oracle(data_type: DataType, op: ReduceOp, inputs_in_ring_order: &[&[u8]]) -> Vec<u8> {
    let inputs = inputs_in_ring_order;
    let ranks = inputs.len();
    let size = data_type.size_bytes();
    let count = inputs.first().expect("a ring has at least one rank").len() / size;
    let mut result = Vec::with_capacity(count * size);
    for chunk in 0..ranks {
        let elements = count / ranks + usize::from(chunk < count % ranks);
        let bytes = result.len()..result.len() + elements * size;
        let mut partial = inputs[chunk][bytes.clone()].to_vec();
        for step in 1..ranks {
            let own = &inputs[(chunk + step) % ranks][bytes.clone()];
            partial = fold_scalar(data_type, op, own, &partial);
        }
        result.extend_from_slice(&partial);
    }
    assert!(
        inputs.iter().all(|input| input.len() == result.len()),
        "inputs must be equal in length, whole elements"
    );
    if op == ReduceOp::Avg {
        let ranks = u32::try_from(ranks).expect("fewer than 2^32 inputs fit in memory");
        result = divide_scalar(data_type, &result, ranks);
    }
    result
}

/// The result of an all-reduce over sites, the same on every rank, given the ranks' inputs in ring order and the number
/// of the site of each.
///
/// Chunks are those of [`ring_all_reduce_oracle`]. Chunk c begins at rank c and goes around the ring. Ranks of a site
/// are folded in that order, and then what the sites come to, in the order in which that way comes to them first.
///
/// # Panics
/// As [`ring_all_reduce_oracle`], or if not every rank has a site.
#[must_use]
pub fn sites_all_reduce_oracle(
    data_type: DataType,
    op: ReduceOp,
    inputs_in_ring_order: &[&[u8]],
    sites: &[u16],
) -> Vec<u8> {
    let ranks = inputs_in_ring_order.len();
    assert_eq!(sites.len(), ranks, "every rank is in a site");
    let fold = |partial: Vec<u8>, own: Vec<u8>| fold_scalar(data_type, op, &own, &partial);
    by_chunks(data_type, inputs_in_ring_order, |chunk, inputs| {
        let way: Vec<usize> = (chunk..chunk + ranks).map(|rank| rank % ranks).collect();
        let sum_of = |members: Vec<usize>| members.iter().map(|rank| inputs[*rank].to_vec()).reduce(fold);
        let sums = in_order_of_sites(&way, sites).into_iter().filter_map(sum_of);
        let result = sums.reduce(fold).expect("there is a rank");
        if op == ReduceOp::Avg { divide_scalar(data_type, &result, ranks as u32) } else { result }
    })
}

/// The ranks of each site in the order of a way around the ring, the sites in the order in which it comes to them.
fn in_order_of_sites(way: &[usize], sites: &[u16]) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    for rank in way {
        match found.iter_mut().find(|members| sites[members[0]] == sites[*rank]) {
            Some(members) => members.push(*rank),
            None => found.push(vec![*rank]),
        }
    }
    found
}

/// The result of a ring all-reduce of quantised elements, the same on every rank, given the ranks' inputs in ring
/// order.
///
/// Chunks and order are those of [`ring_all_reduce_oracle`]. Rank c encodes its chunk c; each of the next ranks decodes
/// what it receives, adds that to its own elements, and encodes the sum; the last one divides an average before.
/// Everybody decodes what the last one encodes. Random numbers of stochastic rounding are those of an operation named
/// by `tag`, tensor number `part` and chunk, by rank, and by index in the chunk.
///
/// # Panics
/// As [`ring_all_reduce_oracle`]; if the elements are not floats, or the operation is neither sum nor average.
#[must_use]
pub fn quantised_ring_oracle(
    data_type: DataType,
    op: ReduceOp,
    quantisation: Quantisation,
    operation: (u64, u32),
    inputs_in_ring_order: &[&[u8]],
) -> Vec<u8> {
    let scheme = quantisation.scheme();
    assert!(matches!(op, ReduceOp::Sum | ReduceOp::Avg), "only sums are quantised");
    by_chunks(data_type, inputs_in_ring_order, |chunk, inputs| {
        let ranks = inputs.len();
        let encode = |rank, data: &[u8]| encode(quantisation, data_type, operation, (chunk, rank), data);
        let mut travelling = encode(chunk, inputs[chunk]);
        for step in 1..ranks {
            let rank = (chunk + step) % ranks;
            let mut sum = codecs::decode(scheme, data_type, &travelling, inputs[rank], true);
            if op == ReduceOp::Avg && step + 1 == ranks {
                sum = divide_scalar(data_type, &sum, ranks as u32);
            }
            travelling = encode(rank, &sum);
        }
        codecs::decode(scheme, data_type, &travelling, inputs[0], false)
    })
}

/// The result of pairwise exchange of quantised elements with equal chunks: the owner of chunk c is the rank before c.
/// Otherwise as [`quantised_exchange_oracle`].
///
/// # Panics
/// As [`quantised_ring_oracle`].
#[must_use]
pub fn quantised_pairwise_oracle(
    data_type: DataType,
    op: ReduceOp,
    quantisation: Quantisation,
    operation: (u64, u32),
    inputs_in_ring_order: &[&[u8]],
) -> Vec<u8> {
    let ranks = inputs_in_ring_order.len();
    let owner = |chunk: usize| (chunk + ranks - 1) % ranks;
    quantised_exchange_oracle(data_type, op, quantisation, operation, inputs_in_ring_order, owner)
}

/// The result of pairwise exchange of quantised elements, the same on every rank, given the ranks' inputs in ring order
/// and the owner of each chunk.
///
/// Chunks are those of [`ring_all_reduce_oracle`]. Every rank but the owner encodes its contribution. The owner adds
/// what they stand for in the order c, c+1, ..., its own elements as they are: in f32, for f64 in f64. It divides an
/// average, and encodes the result. Random numbers as for [`quantised_ring_oracle`].
///
/// # Panics
/// As [`quantised_ring_oracle`].
#[must_use]
pub fn quantised_exchange_oracle(
    data_type: DataType,
    op: ReduceOp,
    quantisation: Quantisation,
    operation: (u64, u32),
    inputs_in_ring_order: &[&[u8]],
    owner_of: impl Fn(usize) -> usize,
) -> Vec<u8> {
    assert!(matches!(op, ReduceOp::Sum | ReduceOp::Avg), "only sums are quantised");
    let sites: Vec<u16> = (0..inputs_in_ring_order.len() as u16).collect();
    let owners_of = |chunk: usize| Some(Owners { owner: owner_of(chunk), local: (0..sites.len()).collect() });
    quantised_sites_oracle(data_type, op, quantisation, operation, (inputs_in_ring_order, &sites), owners_of)
}

/// The ranks that fold a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owners {
    /// The rank that folds what the sites come to, or add, if it is its own.
    pub owner: usize,
    /// For each rank the local owner of its site; that of the owner's site is the owner.
    pub local: Vec<usize>,
}

/// The result of an all-reduce of quantised elements over sites, the same on every rank, given the ranks' inputs in
/// ring order, the number of the site of each, and the owners of each chunk. Chunks without owners are left out: zeros.
///
/// Chunks and order are those of [`sites_all_reduce_oracle`]. The local owner of a site adds what its ranks contribute:
/// in f32, for f64 in f64. It encodes that sum. The owner adds what those sums stand for, and, in the turn of its own
/// site, one by one what the ranks of that contribute. It divides an average, and encodes the result. A rank that is a
/// site by itself encodes its elements as they are. Random numbers as for [`quantised_ring_oracle`].
///
/// # Panics
/// As [`quantised_ring_oracle`].
#[must_use]
pub fn quantised_sites_oracle(
    data_type: DataType,
    op: ReduceOp,
    quantisation: Quantisation,
    operation: (u64, u32),
    (inputs_in_ring_order, sites): (&[&[u8]], &[u16]),
    owners_of: impl Fn(usize) -> Option<Owners>,
) -> Vec<u8> {
    assert!(matches!(op, ReduceOp::Sum | ReduceOp::Avg), "only sums are quantised");
    let scheme = quantisation.scheme();
    let sum_type = if data_type == DataType::Float64 { data_type } else { DataType::Float32 };
    let add = |sum: Vec<u8>, next: Vec<u8>| fold_scalar(sum_type, ReduceOp::Sum, &next, &sum);
    by_chunks(data_type, inputs_in_ring_order, |chunk, inputs| {
        let ranks = inputs.len();
        let Some(Owners { owner, local }) = owners_of(chunk) else { return vec![0; inputs[0].len()] };
        let widened = |rank: &usize| -> Vec<u8> {
            let elements = inputs[*rank].chunks_exact(data_type.size_bytes());
            elements.flat_map(|element| narrowed(sum_type, value(data_type, element))).collect()
        };
        let zeros = vec![0; inputs[0].len() / data_type.size_bytes() * sum_type.size_bytes()];
        let come_to = |members: &[usize]| -> Vec<u8> {
            let encoder = local[members[0]];
            let encode =
                |of: DataType, data: &[u8]| encode(quantisation, of, operation, (chunk, encoder), data);
            let encoded = match members {
                [alone] => encode(data_type, inputs[*alone]),
                _ => encode(sum_type, &members.iter().map(widened).reduce(add).unwrap_or_default()),
            };
            codecs::decode(scheme, sum_type, &encoded, &zeros, false)
        };
        let way: Vec<usize> = (chunk..chunk + ranks).map(|rank| rank % ranks).collect();
        let mut contributions: Vec<Vec<u8>> = Vec::new();
        for members in in_order_of_sites(&way, sites) {
            match members.contains(&owner) {
                true => contributions.extend(members.iter().map(widened)),
                false => contributions.push(come_to(&members)),
            }
        }
        let mut sum = contributions.into_iter().reduce(add).unwrap_or_default();
        if op == ReduceOp::Avg {
            sum = divide_scalar(sum_type, &sum, ranks as u32);
        }
        let encoded = encode(quantisation, sum_type, operation, (chunk, owner), &sum);
        codecs::decode(scheme, data_type, &encoded, inputs[0], false)
    })
}

/// The results of all chunks, given what becomes of one: of its number, and of the inputs of all ranks to it.
fn by_chunks(
    data_type: DataType,
    inputs_in_ring_order: &[&[u8]],
    result_of: impl Fn(usize, &[&[u8]]) -> Vec<u8>,
) -> Vec<u8> {
    let (inputs, ranks) = (inputs_in_ring_order, inputs_in_ring_order.len());
    let size = data_type.size_bytes();
    let count = inputs.first().expect("a ring has at least one rank").len() / size;
    let mut result = Vec::with_capacity(count * size);
    for chunk in 0..ranks {
        let elements = count / ranks + usize::from(chunk < count % ranks);
        let bytes = result.len()..result.len() + elements * size;
        let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[bytes.clone()]).collect();
        if !bytes.is_empty() {
            result.extend_from_slice(&result_of(chunk, &inputs));
        }
    }
    result
}

/// The encoded form of what `rank` sends of a chunk, in the operation with this tag and number of the tensor.
fn encode(
    quantisation: Quantisation,
    data_type: DataType,
    (tag, part): (u64, u32),
    (chunk, rank): (usize, usize),
    data: &[u8],
) -> Vec<u8> {
    let operation = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(part) << 32) ^ chunk as u64;
    let seeds = quantisation.seed().map(|seed| codecs::Seeds { seed, operation, rank: rank as u32 });
    codecs::encode(quantisation.scheme(), data_type, data, seeds, 0)
}

fn fold_element(data_type: DataType, op: ReduceOp, own: &[u8], received: &[u8]) -> Vec<u8> {
    match data_type {
        DataType::Float16 | DataType::BFloat16 | DataType::Float32 | DataType::Float64 => {
            fold_float(data_type, op, own, received)
        }
        _ => {
            let (own, received) = (integer(data_type, own), integer(data_type, received));
            let result = match op {
                ReduceOp::Sum | ReduceOp::Avg => own + received,
                // The low 64 bits of a product are right even where 128 bits overflow (u64).
                ReduceOp::Prod => own.wrapping_mul(received),
                ReduceOp::Max => own.max(received),
                ReduceOp::Min => own.min(received),
            };
            low_bytes(data_type, result)
        }
    }
}

fn divide_element(data_type: DataType, element: &[u8], ranks: u32) -> Vec<u8> {
    match data_type {
        DataType::Float16 | DataType::BFloat16 | DataType::Float32 => {
            narrowed(data_type, f64::from(value(data_type, element) as f32 / ranks as f32))
        }
        DataType::Float64 => narrowed(data_type, value(data_type, element) / f64::from(ranks)),
        _ => low_bytes(data_type, integer(data_type, element) / i128::from(ranks)),
    }
}

fn fold_float(data_type: DataType, op: ReduceOp, own: &[u8], received: &[u8]) -> Vec<u8> {
    let (left, right) = (value(data_type, own), value(data_type, received));
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Prod => {
            let is_product = op == ReduceOp::Prod;
            let result = if data_type == DataType::Float64 {
                if is_product { left * right } else { left + right }
            } else {
                let (left, right) = (left as f32, right as f32);
                f64::from(if is_product { left * right } else { left + right })
            };
            narrowed(data_type, result)
        }
        // The result is one of the operands, so its bytes are taken as they are.
        ReduceOp::Max | ReduceOp::Min => {
            if left.is_nan() {
                return quiet(data_type, own);
            }
            if right.is_nan() {
                return quiet(data_type, received);
            }
            // `total_cmp` has -0 before +0.
            let left_is_greater = left.total_cmp(&right).is_gt();
            let take_left = left_is_greater == (op == ReduceOp::Max);
            if take_left { own.to_vec() } else { received.to_vec() }
        }
    }
}

/// The element as an integer: sign-extended or zero-extended.
fn integer(data_type: DataType, element: &[u8]) -> i128 {
    let signed = matches!(data_type, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64);
    let negative = signed && element.last().is_some_and(|top| top & 0x80 != 0);
    let mut bytes = [if negative { 0xFF } else { 0 }; 16];
    bytes[..element.len()].copy_from_slice(element);
    i128::from_le_bytes(bytes)
}

fn low_bytes(data_type: DataType, result: i128) -> Vec<u8> {
    result.to_le_bytes()[..data_type.size_bytes()].to_vec()
}

fn pattern(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(bytes)
}

/// The float's value. Every float type fits in f64 exactly.
fn value(data_type: DataType, element: &[u8]) -> f64 {
    let bits = pattern(element);
    match data_type {
        DataType::Float16 => f16::from_bits(bits as u16).to_f64(),
        DataType::BFloat16 => bf16::from_bits(bits as u16).to_f64(),
        DataType::Float32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// Rounds a result to the type, each NaN to the type's quiet NaN without sign and payload. For the 16-bit types and f32
/// the result is an f32 in f64, so this is the first rounding after the one of the f32 operation.
fn narrowed(data_type: DataType, result: f64) -> Vec<u8> {
    let nan = result.is_nan();
    let bits = match data_type {
        DataType::Float16 if nan => 0x7E00,
        DataType::Float16 => u64::from(f16::from_f32(result as f32).to_bits()),
        DataType::BFloat16 if nan => 0x7FC0,
        DataType::BFloat16 => u64::from(bf16::from_f32(result as f32).to_bits()),
        DataType::Float32 if nan => 0x7FC0_0000,
        DataType::Float32 => u64::from((result as f32).to_bits()),
        _ if nan => 0x7FF8_0000_0000_0000,
        _ => result.to_bits(),
    };
    bits.to_le_bytes()[..data_type.size_bytes()].to_vec()
}

/// The NaN with its topmost mantissa bit set.
fn quiet(data_type: DataType, nan: &[u8]) -> Vec<u8> {
    let mantissa_bits = match data_type {
        DataType::Float16 => 10,
        DataType::BFloat16 => 7,
        DataType::Float32 => 23,
        _ => 52,
    };
    let bits = pattern(nan) | 1 << (mantissa_bits - 1);
    bits.to_le_bytes()[..data_type.size_bytes()].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn integers_wrap_and_averages_truncate_towards_zero() {
        assert_eq!(fold_scalar(DataType::Uint8, ReduceOp::Sum, &[200], &[100]), [44]);
        assert_eq!(fold_scalar(DataType::Int8, ReduceOp::Prod, &[100], &[2]), [200]);
        let max = u64::MAX.to_le_bytes();
        assert_eq!(fold_scalar(DataType::Uint64, ReduceOp::Prod, &max, &max), 1_u64.to_le_bytes());
        assert_eq!(divide_scalar(DataType::Int8, &(-7_i8).to_le_bytes(), 2), (-3_i8).to_le_bytes());
        assert_eq!(divide_scalar(DataType::Uint8, &[255], 300), [0]);
    }

    #[test]
    fn max_and_min_know_zeros_and_nans() {
        let fold = |op, left: u32, right: u32| {
            let result = fold_scalar(DataType::Float32, op, &left.to_le_bytes(), &right.to_le_bytes());
            u32::from_le_bytes(result.try_into().unwrap())
        };
        assert_eq!(fold(ReduceOp::Max, 0x8000_0000, 0), 0);
        assert_eq!(fold(ReduceOp::Max, 0, 0x8000_0000), 0);
        assert_eq!(fold(ReduceOp::Min, 0, 0x8000_0000), 0x8000_0000);
        assert_eq!(fold(ReduceOp::Max, 0xFF80_0001, 0x7FC0_0002), 0xFFC0_0001);
        assert_eq!(fold(ReduceOp::Min, 0x3F80_0000, 0x7F80_0003), 0x7FC0_0003);
        assert_eq!(fold(ReduceOp::Sum, 0x7F80_0000, 0xFF80_0000), 0x7FC0_0000);
    }

    /// Chunks of 2, 1 and 1 elements; addition that rounds shows the order of the folds.
    #[test]
    fn the_ring_folds_each_chunk_from_its_own_rank_on() {
        let huge = 16_777_216.0_f32;
        let inputs =
            [f32s(&[huge, 1.0, 1.0, 2.0]), f32s(&[1.0, 1.0, huge, 3.0]), f32s(&[1.0, 1.0, 1.0, 4.0])];
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let sum = ring_all_reduce_oracle(DataType::Float32, ReduceOp::Sum, &inputs);
        // Chunk 0: (huge + 1) + 1 = huge. Chunk 1: (huge at rank 1, + 1) + 1 = huge. Chunk 2: 4 + 2 + 3.
        assert_eq!(sum, f32s(&[huge, 3.0, huge, 9.0]));
        let average = ring_all_reduce_oracle(DataType::Float32, ReduceOp::Avg, &inputs);
        assert_eq!(average, f32s(&[huge / 3.0, 1.0, huge / 3.0, 3.0]));
    }

    /// Ranks 0 and 2 are a site. Chunks of 1, 1 and 1 elements.
    #[test]
    fn sites_are_folded_by_themselves_first() {
        let huge = 16_777_216.0_f32;
        let inputs = [f32s(&[1.0, 1.0, huge]), f32s(&[huge, huge, 1.0]), f32s(&[1.0, 1.0, 1.0])];
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let sum = |sites: &[u16]| sites_all_reduce_oracle(DataType::Float32, ReduceOp::Sum, &inputs, sites);
        // Chunk 0: (1 + 1) + huge. Chunk 1: huge + (1 + 1). Chunk 2: (1 at rank 2 + huge) + 1.
        assert_eq!(sum(&[5, 3, 5]), f32s(&[huge + 2.0, huge + 2.0, huge]));
        // Sites of one are a ring, and so is one site.
        let ring = ring_all_reduce_oracle(DataType::Float32, ReduceOp::Sum, &inputs);
        assert_eq!((sum(&[0, 1, 2]), sum(&[0; 3])), (ring.clone(), ring));
    }

    #[test]
    fn chunks_may_be_empty() {
        let sum = ring_all_reduce_oracle(DataType::Uint8, ReduceOp::Sum, &[&[1], &[2], &[3]]);
        assert_eq!(sum, [6]);
        assert!(ring_all_reduce_oracle(DataType::Uint8, ReduceOp::Sum, &[&[], &[]]).is_empty());
    }
}
