//! The hash of one block of simplehash: the part that is compiled for several instruction sets.

/// Lanes of a block.
pub(crate) const LANES: usize = 256;
const WARP: usize = 32;
/// Bytes that a lane takes in at a time.
pub(crate) const VECTOR_BYTES: usize = 16;

/// Takes the word `b` into the state `a`.
#[inline(always)]
pub(crate) fn mix(a: u32, b: u32) -> u32 {
    (a ^ b.wrapping_add(0x9e37_79b1)).rotate_left(7).wrapping_mul(0x85eb_ca6b)
}

/// The hot loop. Inlined into its callers so that each compiles it for its own instruction set.
#[inline(always)]
pub(crate) fn hash_block(vectors: &[[u8; VECTOR_BYTES]]) -> u32 {
    let mut lanes = [0; LANES];
    let (rows, rest) = vectors.as_chunks::<LANES>();
    for row in rows {
        for (lane, vector) in lanes.iter_mut().zip(row) {
            *lane = mix_vector(*lane, vector);
        }
    }
    for (lane, vector) in lanes.iter_mut().zip(rest) {
        *lane = mix_vector(*lane, vector);
    }
    join_lanes(&lanes)
}

#[inline(always)]
fn mix_vector(lane: u32, vector: &[u8; VECTOR_BYTES]) -> u32 {
    let [a, b, c, d] = *vector.as_chunks::<4>().0 else { return lane };
    [a, b, c, d].into_iter().fold(lane, |lane, word| mix(lane, u32::from_le_bytes(word)))
}

/// Joins 32 lanes to one: each half of the lanes takes in the other, five times.
#[inline(always)]
fn join_warp(mut lanes: [u32; WARP]) -> u32 {
    for offset in [16, 8, 4, 2, 1] {
        for i in 0..offset {
            lanes[i] = mix(lanes[i], lanes[i + offset]);
        }
    }
    lanes[0]
}

/// Joins all lanes of a block: first each 32, then the eight results padded with zeros.
#[inline(always)]
pub(crate) fn join_lanes(lanes: &[u32; LANES]) -> u32 {
    let mut results = [0; WARP];
    for (result, warp) in results.iter_mut().zip(lanes.as_chunks::<WARP>().0) {
        *result = join_warp(*warp);
    }
    join_warp(results)
}
