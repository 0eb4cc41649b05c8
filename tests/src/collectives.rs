//! Inputs of peers to each kind of collective, and the result that each has to have afterwards.

use crate::pattern::mix;

/// The kinds, as commands of test peers name them.
pub const KINDS: [&str; 8] =
    ["broadcast", "all_gather", "reduce", "reduce_scatter", "barrier", "gather", "scatter", "all_to_all"];

/// The input of peer number `index`.
#[must_use]
pub fn input(index: usize, count: usize) -> Vec<u64> {
    let start = mix(index as u64 + 1);
    (0..count as u64).map(|element| mix(start ^ element)).collect()
}

/// Elements of each of `ranks` equal parts.
#[must_use]
pub fn part(count: usize, ranks: usize) -> usize {
    count / ranks
}

/// The result of `rank` after a collective of these peers, in the order of their ranks; rank 0 is the root, sums wrap.
///
/// # Panics
/// If there is no such kind.
#[must_use]
pub fn expected(kind: &str, indices: &[usize], rank: usize, count: usize) -> Vec<u64> {
    let inputs: Vec<Vec<u64>> = indices.iter().map(|index| input(*index, count)).collect();
    let sum = |element: usize| inputs.iter().fold(0u64, |sum, input| sum.wrapping_add(input[element]));
    match kind {
        "broadcast" => inputs[0].clone(),
        "all_gather" => inputs.concat(),
        "reduce" if rank == 0 => (0..count).map(sum).collect(),
        "reduce" | "barrier" => inputs[rank].clone(),
        "reduce_scatter" => {
            let part = part(count, indices.len());
            (rank * part..(rank + 1) * part).map(sum).collect()
        }
        "gather" if rank == 0 => inputs.concat(),
        "gather" => Vec::new(),
        "scatter" => inputs[0][rank * part(count, indices.len())..][..part(count, indices.len())].to_vec(),
        "all_to_all" => {
            let part = part(count, indices.len());
            inputs.iter().flat_map(|input| input[rank * part..][..part].to_vec()).collect()
        }
        _ => panic!("no kind {kind}"),
    }
}

/// The bytes of the elements.
#[must_use]
pub fn bytes(elements: &[u64]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_ne_bytes()).collect()
}
