//! Which ranks are near each other, as plain data, and the order in which what they contribute is folded.
//!
//! In pairwise exchange each rank is a site of its own. Over sites a chunk has an owner in each of them, the *local
//! owner*: it folds what its site contributes, in the order of the ring, beginning with the rank at which the chunk
//! starts there. The sums of the sites are folded in the order in which that way around the ring comes to them first.
//! So the bytes of a result depend on the ring and the sites, and not on who owns what.

use pccl_protocol::{Site, limits};

/// Sites fit into the bits of a number.
const _: () = assert!(limits::MAX_MESH_RANKS <= 64);

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sites {
    /// Number of the site of each rank, from 0 in the order of their first ranks.
    of: Vec<u8>,
    /// The ranks of each site, one site after the other.
    members: Vec<u8>,
    /// Where each site begins in `members`, and the end of the last one.
    starts: Vec<usize>,
}

impl Sites {
    /// Every rank by itself.
    pub fn of_one(ranks: usize) -> Self {
        Self::new((0..ranks).map(|rank| rank as u8).collect(), ranks)
    }

    /// As a plan says, by rank.
    pub fn of_plan(places: &[Site]) -> Self {
        let mut seen: Vec<u16> = Vec::new();
        let mut of = Vec::with_capacity(places.len());
        for place in places {
            let known = seen.iter().position(|number| *number == place.number);
            of.push(known.unwrap_or(seen.len()) as u8);
            seen.extend(known.is_none().then_some(place.number));
        }
        Self::new(of, seen.len())
    }

    fn new(of: Vec<u8>, count: usize) -> Self {
        let mut members = Vec::with_capacity(of.len());
        let mut starts = vec![0];
        for site in 0..count {
            members
                .extend((0..of.len()).filter(|rank| usize::from(of[*rank]) == site).map(|rank| rank as u8));
            starts.push(members.len());
        }
        Self { of, members, starts }
    }

    /// Number of sites.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The site of a rank.
    pub fn of(&self, rank: usize) -> usize {
        usize::from(self.of[rank])
    }

    /// The ranks of a site, in ascending order.
    pub fn members(&self, site: usize) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.members[self.starts[site]..self.starts[site + 1]].iter().map(|rank| usize::from(*rank))
    }

    /// Ranks of the site of a rank.
    pub fn size_of(&self, rank: usize) -> usize {
        self.members(self.of(rank)).len()
    }

    /// The turn of a rank within its site, in a chunk that starts at rank `start`.
    pub fn turn_in_site(&self, rank: usize, start: usize) -> usize {
        let ranks = self.of.len();
        let turn = |rank: usize| (rank + ranks - start) % ranks;
        self.members(self.of(rank)).filter(|other| turn(*other) < turn(rank)).count()
    }

    /// The turn of a site among all, in a chunk that starts at rank `start`.
    pub fn turn_of(&self, site: usize, start: usize) -> usize {
        let ranks = self.of.len();
        // A group that exchanges over a mesh has few ranks.
        let (mut seen, mut turn) = (0_u64, 0);
        for step in 0..ranks {
            let next = self.of((start + step) % ranks);
            if next == site {
                break;
            }
            turn += usize::from(seen & (1 << next) == 0);
            seen |= 1 << next;
        }
        turn
    }
}
