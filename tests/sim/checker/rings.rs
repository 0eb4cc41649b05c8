//! The part of the account that is about rings and meshes: what plans say, and what stands.

use super::{Checker, EdgeKey, Mesh, Ring};
use pccl_protocol::*;
use std::collections::BTreeSet;

impl Checker {
    pub(super) fn ring(&mut self, client: u64, plan: &GroupPlan) {
        if !self.clients[&client].in_ring {
            self.let_in(client);
        }
        self.clients.get_mut(&client).expect("a known client").in_ring = true;
        let place = (plan.group, self.life(plan.group));
        let edge = |rank: usize| {
            let mut edges = plan.edges.iter().filter(|edge| edge.purpose == Purpose::Ring);
            edges.find(|edge| (usize::from(edge.from), usize::from(edge.to)) == (rank, plan.next_of(rank)))
        };
        let member = |(rank, member): (usize, &Member)| {
            let edge = edge(rank).map_or((LinkGeneration(0), 0), |edge| (edge.generation, edge.connections));
            assert!(edge.0.0 > 0 || plan.members.len() == 1, "a ring with a hole: {plan:?}");
            (member.peer, edge.0, edge.1)
        };
        let ring: Ring = plan.members.iter().enumerate().map(member).collect();
        let known = self.rings.entry((place.0, place.1, plan.epoch)).or_insert_with(|| ring.clone());
        assert_eq!(*known, ring, "two rings in epoch {}", plan.epoch);
        let counted = self.counted.entry((place.0, place.1, plan.epoch)).or_insert(plan.counted_since);
        assert_eq!(*counted, plan.counted_since, "two ways to count in epoch {}", plan.epoch);
        let latest = self.latest.entry(place).or_insert(plan.epoch);
        assert!(*latest <= plan.epoch, "epochs run backwards");
        *latest = plan.epoch;
        let me = self.clients[&client].peer;
        assert!(plan.members.iter().any(|m| Some(m.peer) == me), "a ring for somebody outside it");
        self.mesh(place, plan);
    }

    /// Ring and mesh together connect everybody with everybody who can meet, without an edge that has failed; or there
    /// is no mesh.
    fn mesh(&mut self, place: (GroupId, u64), plan: &GroupPlan) {
        let edges: BTreeSet<EdgeKey> =
            plan.edges_for(Purpose::Mesh).map(|e| (e.from, e.to, e.generation)).collect();
        if let Some(known) = self.meshes.get(&place).filter(|mesh| mesh.epoch == plan.epoch) {
            let told = (&edges, plan.paths, &plan.shares());
            let known = (&known.edges, known.paths, &known.shares);
            assert_eq!(known, told, "two meshes in epoch {}", plan.epoch);
            return;
        }
        let n = plan.members.len();
        let next = (0..n).map(|rank| (plan.members[rank].peer, plan.members[plan.next_of(rank)].peer));
        let pairs: BTreeSet<_> = edges.iter().map(|edge| (edge.0, edge.1)).chain(next).collect();
        let members = || plan.members.iter().map(|member| member.peer);
        let missing: Vec<_> = members()
            .flat_map(|from| members().map(move |to| (from, to)))
            .filter(|pair| pair.0 != pair.1 && !pairs.contains(pair))
            .collect();
        // Nobody can dial the ends of the others.
        let is_dialed =
            |peer| self.clients.values().any(|seen| seen.peer == Some(peer) && seen.surely_dialed);
        let may_miss = |(from, to): &(PeerId, PeerId)| !is_dialed(*from) && !is_dialed(*to);
        let has_holes = !edges.is_empty() && !missing.iter().all(may_miss);
        assert!(!has_holes, "a mesh with holes: {plan:?}");
        assert!(
            edges.is_empty() || plan.paths.partial != missing.is_empty(),
            "not what is missing: {plan:?}"
        );
        assert!(edges.len() <= n * n.saturating_sub(2), "a mesh with edges of the ring: {plan:?}");
        // A plan that continues the one before has the ring and the mesh of the one before, an edge that failed
        // included; then it is not used.
        let ring_of = |epoch| self.rings.get(&(place.0, place.1, GroupEpoch(epoch)));
        let is_same_ring = ring_of(plan.epoch.0 - 1) == ring_of(plan.epoch.0);
        let continued = self.meshes.get(&place).filter(|mesh| is_same_ring && mesh.edges == edges);
        let has_failed = continued.is_some_and(|mesh| mesh.failed);
        let failed = self.failed.get(&place).filter(|_| !has_failed);
        assert!(failed.is_none_or(|failed| failed.is_disjoint(&edges)), "an edge that failed: {plan:?}");
        let (epoch, paths) = (plan.epoch, plan.paths);
        if paths.mesh {
            assert!(!edges.is_empty() && !has_failed, "a mesh that does not stand: {plan:?}");
            let told = self.members(place.0).all(|(_, seen)| {
                let mine = |edge: &&EdgeKey| seen.peer == Some(edge.0) || seen.peer == Some(edge.1);
                edges.iter().filter(mine).all(|edge| seen.up.contains(edge))
            });
            assert!(told, "not all have said that the mesh stands: {plan:?}");
        }
        let before = self.meshes.get(&place).is_some_and(|mesh| mesh.failed || mesh.edges.is_empty());
        let is_same =
            |before: &Ring| before.iter().map(|one| one.0).eq(plan.members.iter().map(|one| one.peer));
        let last = self.rings.get(&(place.0, place.1, GroupEpoch(plan.epoch.0 - 1)));
        self.renewed_meshes +=
            u64::from(before && !has_failed && !edges.is_empty() && last.is_some_and(is_same));
        let shares = plan.shares();
        assert!(shares.is_empty() || !edges.is_empty(), "shares of a tensor that nobody exchanges: {plan:?}");
        let sites: BTreeSet<u16> = plan.members.iter().map(|member| member.site.number).collect();
        assert_eq!(paths.sites, (2..n).contains(&sites.len()), "other sites than it says: {plan:?}");
        assert!(!paths.by_sites || (paths.sites && !paths.pairwise), "two schedules, or none: {plan:?}");
        self.shared_plans += u64::from(paths.pairwise && !shares.is_empty());
        self.meshes.insert(place, Mesh { epoch, edges, failed: has_failed, paths, shares });
    }

    pub(super) fn mesh_failed(&mut self, group: GroupId, edge: EdgeKey) {
        let place = (group, self.life(group));
        if let Some(mesh) = self.meshes.get_mut(&place).filter(|mesh| mesh.edges.contains(&edge)) {
            mesh.failed = true;
            self.failed.entry(place).or_default().insert(edge);
        }
    }

    /// Members of the latest ring of a client's group.
    pub(crate) fn ring_of(&self, client: u64) -> Vec<PeerId> {
        let place = self.clients.get(&client).map(|seen| (seen.group, self.life(seen.group)));
        let epoch = place.and_then(|place| Some((place, *self.latest.get(&place)?)));
        let ring = epoch.and_then(|((group, life), epoch)| self.rings.get(&(group, life, epoch)));
        ring.into_iter().flatten().map(|member| member.0).collect()
    }
}
