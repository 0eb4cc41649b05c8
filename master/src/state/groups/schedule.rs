//! Chooses the schedule of large operations of a group whose callers did not: around the ring, or over its mesh by
//! pairwise exchange or in two levels over sites, where that is predicted to be faster by a tenth. And how much of a
//! tensor each member owns in an exchange, and which sites there are: the same as before, unless others are faster by a
//! tenth.
//!
//! This is decided when a ring is planned, from what is known of the edges then, and is a part of the ring plan.

use super::edges::{EdgeEnds, Mark, Severity};
use super::group::Group;
use crate::state::membership::members::Roll;
use crate::state::optimise::measured::Measured;
use pccl_planner::{
    BySites, Interfaces, JobLink, MIN_GAIN, Matrix, Schedules, Sites, pairwise_rate, part_of_edge,
    sites_rate, to_link,
};
use pccl_protocol::{Algorithm, PeerId, Site};
use std::collections::BTreeMap;

impl Group {
    /// The known links between these peers, row by row, without edges that cannot be used or that break again and
    /// again.
    pub(crate) fn known_links(
        &self,
        roll: &Roll,
        measured: &Measured,
        peers: &[PeerId],
    ) -> Vec<Option<JobLink>> {
        let barred = |ends: EdgeEnds| {
            let mark = self.net.edges.marks.get(&ends);
            let is_marked = |mark: &Mark| mark.until > roll.now && mark.severity >= Severity::Avoided;
            !roll.may_meet(ends) || mark.is_some_and(is_marked)
        };
        let link = |from: PeerId, to: PeerId| {
            let rate = measured.rate((from, to)).filter(|_| from != to && !barred((from, to)))?;
            Some(JobLink { kbit_s: rate.kbit_s, latency_us: rate.latency_us })
        };
        let pairs = peers.iter().flat_map(|from| peers.iter().map(move |to| (*from, *to)));
        pairs.map(|(from, to)| link(from, to)).collect()
    }

    /// The edges between these peers, and their network interfaces.
    fn network(&self, roll: &Roll, measured: &Measured, order: &[PeerId]) -> Option<(Matrix, Interfaces)> {
        let (links, places) = (self.known_links(roll, measured, order), roll.places(order));
        if places.len() != order.len() {
            return None;
        }
        let links: Vec<_> = links.into_iter().map(|link| link.map(to_link)).collect();
        let matrix = Matrix::of_links(order.len(), &links).ok()?.with_places(&places);
        let mut interfaces = Interfaces::of(&matrix);
        interfaces.learn(&matrix, carried_by_all(measured, order));
        Some((matrix, interfaces))
    }

    /// How fast large operations are predicted to be by each schedule, in a group with a ring in this order. With the
    /// shares and the sites that its members have, unless others are better by a tenth.
    pub(crate) fn schedules(&self, roll: &Roll, measured: &Measured, order: &[PeerId]) -> Option<Schedules> {
        let (matrix, mut interfaces) = self.network(roll, measured, order)?;
        let ring: Vec<usize> = (0..order.len()).collect();
        let named = roll.site_names(order);
        let of = |interfaces: &Interfaces, named: &[Option<u16>]| {
            Some(Schedules::of(&matrix, interfaces, &ring)?.with_sites(&matrix, interfaces, named))
        };
        let mut found = of(&interfaces, &named)?;
        let used = self.net.sites_of(order).filter(|_| self.has_members(order));
        let used =
            used.and_then(|sites| Some(BySites { rate: sites_rate(&matrix, &interfaces, &sites)?, sites }));
        if let (Some(best), Some(used)) = (&found.sites, &used)
            && used.rate > best.rate / (1.0 + MIN_GAIN)
        {
            found.sites = Some(used.clone());
        }
        // The uplinks that hosts of a site have in common limit all schedules.
        if let Some(BySites { sites, .. }) = &found.sites {
            interfaces = interfaces.with_uplinks(&matrix, sites, carried_by_all(measured, order));
            if !interfaces.uplinks.is_empty() {
                let of_all: Vec<Option<u16>> = sites.of.iter().copied().map(Some).collect();
                found = of(&interfaces, &of_all)?;
            }
        }
        if self.has_members(order) {
            let used = self.net.shares_of(order);
            let rate = pairwise_rate(&matrix, &interfaces, &used);
            if rate > found.pairwise.map(|best| best / (1.0 + MIN_GAIN)) {
                (found.pairwise, found.shares) = (rate, used);
            }
        }
        Some(found)
    }

    /// The rate in Mbit/s that an operation by this schedule is predicted to have over an edge of the ring or the mesh.
    /// The prediction uses the shares and sites of its group.
    pub(crate) fn exchange_mbit_s(
        &self,
        roll: &Roll,
        measured: &Measured,
        (from, to): EdgeEnds,
        algorithm: Algorithm,
    ) -> Option<f64> {
        let (matrix, mut interfaces) = self.network(roll, measured, &self.ring)?;
        let sites = self.net.sites_of(&self.ring);
        if let Some(sites) = &sites {
            interfaces = interfaces.with_uplinks(&matrix, sites, carried_by_all(measured, &self.ring));
        }
        let rank = |peer: PeerId| self.ring.iter().position(|other| *other == peer);
        let ends = (rank(from)?, rank(to)?);
        let shares = self.net.shares_of(&self.ring);
        let sites = sites.filter(|_| algorithm == Algorithm::Sites);
        let tensor_mbit_s = match &sites {
            Some(sites) => sites_rate(&matrix, &interfaces, sites),
            None => pairwise_rate(&matrix, &interfaces, &shares),
        };
        Some(tensor_mbit_s? * part_of_edge(self.ring.len(), &shares, sites.as_ref(), ends))
    }

    /// How large operations of a group with a ring in this order are to go, and what its members own.
    pub(crate) fn schedule_for(&self, roll: &Roll, measured: &Measured, order: &[PeerId]) -> Large {
        if !self.net.mesh.is_possible(order, roll.now) || roll.dials(order).need_relay(order) {
            return Large::ring();
        }
        if !roll.dials(order).barred(order).is_empty() {
            return self.partial_schedule(roll, measured, order);
        }
        let found = self.schedules(roll, measured, order);
        let schedule = found.as_ref().map_or(Algorithm::Ring, |found| found.preferred(self.used_with(order)));
        let names = roll.site_names(order);
        let is_named = names.iter().any(Option::is_some);
        let (shares, sites) = found.map_or_else(Default::default, |found| {
            // Others are none if the ring is faster.
            (found.shares, found.sites.filter(|sites| is_named || sites.rate >= found.ring))
        });
        // Sites that are named are there for who asks for them, whatever is known of rates.
        let named = || {
            let apart = |at: usize| (order.len() + at) as u16;
            let of = names.iter().enumerate().map(|(at, name)| name.unwrap_or(apart(at)));
            Some(Sites::new(&of.collect::<Vec<_>>())).filter(Sites::have_two_levels)
        };
        let sites = sites.map(|found| found.sites).or_else(named).unwrap_or_default();
        let place = |number: &u16| {
            let share = sites.shares.get(usize::from(*number)).copied().unwrap_or(0);
            Site { number: *number, share }
        };
        let sites = order.iter().copied().zip(sites.of.iter().map(place)).collect();
        Large { schedule, shares: order.iter().copied().zip(shares).collect(), sites, is_named }
    }

    /// The same, where some edges of the mesh are missing because nobody can dial their ends. Those own nothing, and
    /// the others the same.
    fn partial_schedule(&self, roll: &Roll, measured: &Measured, order: &[PeerId]) -> Large {
        let owns: Vec<bool> = order.iter().map(|id| !roll.is_outbound_only(*id)).collect();
        let shares = order.iter().copied().zip(owns.iter().map(|owns| u16::from(*owns))).collect();
        let found = self.network(roll, measured, order);
        let found = found.and_then(|(matrix, interfaces)| Schedules::among(&matrix, &interfaces, &owns));
        let schedule = found.map_or(Algorithm::Ring, |found| found.preferred(self.used_with(order)));
        Large { schedule, shares, ..Large::ring() }
    }

    /// By what large operations go now. Only for the same members is there something to change from.
    fn used_with(&self, order: &[PeerId]) -> Algorithm {
        if self.has_members(order) { self.net.large() } else { Algorithm::Ring }
    }

    /// Whether large operations of a group are to go by another schedule, with other shares or over other sites, than
    /// its ring plan says.
    pub(crate) fn schedule_is_outdated(&self, roll: &Roll, measured: &Measured) -> bool {
        let large = self.schedule_for(roll, measured, &self.ring);
        let differs = match large.schedule {
            Algorithm::Pairwise => large.shares != self.net.shares,
            Algorithm::Sites => large.sites != self.net.sites,
            _ => false,
        };
        differs || large.schedule != self.net.large()
    }
}

/// The rates of edges between these peers while all sent to all, in Mbit/s, or 0, by their numbers.
fn carried_by_all(measured: &Measured, order: &[PeerId]) -> impl Fn(usize, usize) -> f64 {
    move |from, to| {
        let kbit_s = measured.crowded((order[from], order[to]));
        kbit_s.map_or(0.0, |kbit_s| kbit_s as f64 / 1000.0)
    }
}

/// How large operations of a group are to go whose callers leave it open, and what its members own.
#[derive(Debug)]
pub(crate) struct Large {
    pub(crate) schedule: Algorithm,
    /// In pairwise exchange; empty: equal chunks.
    pub(crate) shares: BTreeMap<PeerId, u16>,
    /// Over sites; empty: there are none.
    pub(crate) sites: BTreeMap<PeerId, Site>,
    /// Whether programs name them.
    is_named: bool,
}

impl Large {
    pub(crate) fn ring() -> Self {
        let (shares, sites) = (BTreeMap::new(), BTreeMap::new());
        Self { schedule: Algorithm::Ring, shares, sites, is_named: false }
    }

    /// Whether a larger group is to have direct edges: large operations go over them, or sites are named.
    pub(crate) fn is_worth_a_mesh(&self) -> bool {
        self.schedule != Algorithm::Ring || (self.is_named && self.has_sites())
    }

    /// Whether there are several sites.
    pub(crate) fn has_sites(&self) -> bool {
        !self.sites.is_empty()
    }
}

impl Roll {
    /// The names of the sites of these peers, as numbers, of those whose programs give one.
    fn site_names(&self, peers: &[PeerId]) -> Vec<Option<u16>> {
        let name_of = |id: &PeerId| self.peers.get(id).map_or("", |peer| peer.info.site.as_str());
        let first_with = |name: &str| peers.iter().position(|other| name_of(other) == name);
        let number = |id: &PeerId| {
            let name = Some(name_of(id)).filter(|name| !name.is_empty())?;
            u16::try_from(first_with(name)?).ok()
        };
        peers.iter().map(number).collect()
    }
}
