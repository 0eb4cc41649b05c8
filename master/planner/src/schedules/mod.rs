//! How large operations go over a ring or beside it, and how fast each way is: around the ring, between all pairs with
//! the best shares, or by sites.

mod interfaces;
mod loads;
mod schedule;
mod shares;
mod simplex;
mod site_search;
mod sites;

pub use interfaces::{Interfaces, Uplink};
pub use loads::{SCHEDULED_PEERS, pairwise_rate, part_of_edge, sites_rate};
pub use schedule::Schedules;
pub use shares::SHARE_PARTS;
pub use site_search::BySites;
pub use sites::Sites;
