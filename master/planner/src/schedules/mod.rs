//! How large operations go over a ring or beside it, and how fast each way is: around the ring, between all pairs with
//! the best shares, or by sites.

mod interfaces;
mod schedule;
mod shares;
mod simplex;
mod sites;

pub use interfaces::{Interfaces, Uplink};
pub use schedule::{BySites, SCHEDULED_PEERS, Schedules, pairwise_rate, part_of_edge, sites_rate};
pub use shares::SHARE_PARTS;
pub use sites::Sites;
