//! The programs of both ends of an edge send the part of a tensor that the planner expects.

use super::{Sites, part_of_edge};
use pccl_protocol::{PartDescriptor, Site};
use pccl_quant::{DataType, ReduceOp};
use pccl_schedule::{Ownership, Plan, Program, Shape};

/// Elements of the tensor.
const COUNT: usize = 400_000;
/// Bytes of a frame. Each frame has one owner, so a share may be off by one.
const FRAME_BYTES: usize = 4096;

/// The part of the tensor that the programs of these peers send from each to each other one.
fn sent(peers: usize, owned: impl Fn(&Plan) -> Ownership) -> Vec<Vec<f64>> {
    let parts = [PartDescriptor::new(COUNT as u64, DataType::Float32, ReduceOp::Sum)];
    let mut sent = vec![vec![0.0; peers]; peers];
    for (from, edges) in sent.iter_mut().enumerate() {
        let plan = Plan::new(&parts, &Shape::all_reduce(peers), from, FRAME_BYTES);
        let owned = owned(&plan);
        for (hop, frame) in Program::tree(plan, owned).sent() {
            edges[hop.rank] += frame.len as f64 / (4.0 * COUNT as f64);
        }
    }
    sent
}

fn assert_as_expected(sent: &[Vec<f64>], shares: &[u16], sites: Option<&Sites>) {
    let peers = sent.len();
    // Each owner has its share but for a frame, and a local owner its part of each owner's, likewise.
    let rounding = (peers * FRAME_BYTES) as f64 / (4.0 * COUNT as f64);
    for (from, edges) in sent.iter().enumerate() {
        for (to, part) in edges.iter().enumerate() {
            let expected = part_of_edge(peers, shares, sites, (from, to));
            assert!((part - expected).abs() <= rounding, "{from} to {to}: {part} and not {expected}");
        }
    }
}

#[test]
fn pairwise_exchange_sends_what_is_expected() {
    for shares in [vec![], vec![1, 1, 1], vec![5, 0, 3, 2], vec![0, 0, 1], vec![7, 1, 1, 1, 20, 3, 0, 9]] {
        let peers = if shares.is_empty() { 6 } else { shares.len() };
        assert_as_expected(&sent(peers, |plan| Ownership::new(plan, &shares)), &shares, None);
    }
}

#[test]
fn two_levels_send_what_is_expected() {
    for (of, shares) in [
        (vec![0, 0, 1, 1], vec![]),
        (vec![0, 1, 0, 2, 1], vec![]),
        (vec![0, 0, 0, 1], vec![3, 1]),
        (vec![0, 1, 1, 2, 2, 2, 0, 0], vec![1, 5, 2]),
        (vec![0, 0, 1, 1, 2, 2], vec![1, 1, 0]),
    ] {
        let sites = Sites { of, shares };
        let share = |site: u16| sites.shares.get(usize::from(site)).copied().unwrap_or(0);
        let places: Vec<Site> =
            sites.of.iter().map(|site| Site { number: *site, share: share(*site) }).collect();
        let sent = sent(places.len(), |plan| Ownership::over_sites(plan, &places));
        assert_as_expected(&sent, &[], Some(&sites));
    }
}
