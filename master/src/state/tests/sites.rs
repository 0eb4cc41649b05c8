//! Sites: found by what is measured, or named; and the direct edges of larger groups.

use super::harness::{Rig, register};
use pccl_protocol::*;

const RATE: u64 = 100_000;

/// Clients 1 to 3 are in one site, 4 to 6 in another, and so on.
fn trios(from: u64, to: u64) -> u64 {
    if from.div_ceil(3) == to.div_ceil(3) { 10 * RATE } else { RATE }
}

impl Rig {
    /// All optimise; the plan that they have then.
    fn optimized_plan(&mut self, rate: &dyn Fn(u64, u64) -> u64) -> GroupPlan {
        let all = self.accepted();
        self.mail.clear();
        self.vote_optimize(&all);
        self.rounds(rate);
        self.plan();
        self.confirm_all();
        self.plans[&all[0]].clone()
    }

    /// The numbers of the sites of these clients.
    fn sites(&self, clients: &[u64]) -> Vec<u16> {
        let plan = &self.plans[&clients[0]];
        let site = |n: &u64| plan.rank_of(self.peers[n]).map(|rank| plan.members[rank].site.number);
        clients.iter().filter_map(site).collect()
    }

    fn has_mesh(&self, client: u64) -> bool {
        self.plans[&client].edges_for(Purpose::Mesh).next().is_some()
    }

    /// Clients from 1 on whose programs name their sites.
    pub(super) fn in_sites(names: &[&str]) -> Self {
        let mut rig = Self::new();
        for (n, site) in (1..).zip(names) {
            rig.connect(n);
            rig.send(n, C2m::Register(Register { site: Name::new(*site), ..register(0) }));
        }
        rig.confirm_all();
        for n in rig.accepted() {
            rig.vote_topology(n, 9000 + n, 0);
        }
        rig.confirm_all();
        assert_eq!(rig.accepted().len(), names.len());
        rig
    }

    fn mesh_is_up(&mut self) {
        for n in self.accepted() {
            self.up(n, Purpose::Mesh);
        }
        self.confirm_all();
    }
}

/// Whether clients are in one site exactly if `of` has the same for both.
fn agree(sites: &[u16], of: impl Fn(usize) -> u64) -> bool {
    let pairs = (0..sites.len()).flat_map(|i| (0..sites.len()).map(move |j| (i, j)));
    pairs.into_iter().all(|(i, j)| (sites[i] == sites[j]) == (of(i) == of(j)))
}

#[test]
fn sites_are_found_and_large_operations_go_over_them() {
    let mut rig = Rig::world(6);
    let plan = rig.optimized_plan(&trios);
    assert!(plan.paths.sites && plan.paths.by_sites && !plan.paths.pairwise);
    assert!(agree(&rig.sites(&[1, 2, 3, 4, 5, 6]), |at| at as u64 / 3));
    rig.mesh_is_up();
    rig.mail.clear();
    let op = rig.op(1, 7, 0);
    for n in 1..=6 {
        rig.send(
            n,
            C2m::Initiate(Initiate { op, descriptor: super::harness::descriptor(1 << 20), has_begun: false }),
        );
    }
    assert_eq!(rig.answer(1), M2c::Commence(Commence { op, algorithm: Algorithm::Sites }));
    (1..=6).for_each(|n| rig.complete(n, op, None));
    // A peer goes, and with another one its site.
    rig.die(6);
    assert!(agree(&rig.sites(&[1, 2, 3, 4, 5]), |at| at as u64 / 3));
    rig.confirm_all();
    rig.die(5);
    rig.confirm_all();
    rig.die(4);
    rig.confirm_all();
    assert!(!rig.plans[&1].paths.sites, "one site is none");
}

#[test]
fn larger_groups_have_direct_edges_where_they_pay() {
    let mut rig = Rig::world(9);
    assert!(!rig.has_mesh(1));
    let plan = rig.optimized_plan(&|_, _| RATE);
    assert!(!rig.has_mesh(1) && !plan.paths.by_sites && !plan.paths.pairwise);
    rig.pass(601_000, &rig.accepted());
    let plan = rig.optimized_plan(&trios);
    assert!(plan.paths.by_sites && rig.has_mesh(1));
    assert!(agree(&rig.sites(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), |at| at as u64 / 3));
    rig.mesh_is_up();
    assert!(rig.plans[&9].paths.mesh);
}

#[test]
fn sites_that_are_named_need_no_rates_and_win_over_them() {
    let mut rig = Rig::in_sites(&["odd", "even", "odd", "even", "odd", "even"]);
    let plan = rig.plans[&1].clone();
    assert!(plan.paths.sites && !plan.paths.by_sites, "nothing is known of rates");
    assert!(agree(&rig.sites(&[1, 2, 3, 4, 5, 6]), |at| at as u64 % 2));
    rig.optimized_plan(&trios);
    assert!(agree(&rig.sites(&[1, 2, 3, 4, 5, 6]), |at| at as u64 % 2));
    // Each in one of its own: there are none.
    let mut rig = Rig::in_sites(&["a", "b", "c", "d", "e", "f"]);
    assert!(!rig.optimized_plan(&trios).paths.sites);
}
