//! How the members of each group are connected: the ring, the mesh of a small group, and edges between two members
//! that send to each other.
//!
//! The room owns the groups (`all_groups`, `group`) with their edges, the plan of their rings and what members
//! reported of edges that failed (`edges`, `connectivity`, `edge_faults`, `in_flight`); `losses` has the reasons for
//! which an operation comes to nothing. `ring`, `mesh` and `point_to_point` decide which connections there are,
//! `schedule` how large operations use them. `group_creation` and `fixed_group` are the votes and the life of a group
//! of given members, `formed` its facts.
//!
//! The room reads membership, and what was measured. Operations and syncs begin only over what it calls connected.

pub(crate) mod all_groups;
pub(crate) mod connectivity;
pub(crate) mod edge_faults;
pub(crate) mod edges;
pub(crate) mod fixed_group;
pub(crate) mod formed;
pub(crate) mod group;
pub(crate) mod group_creation;
pub(crate) mod in_flight;
pub(crate) mod losses;
pub(crate) mod mesh;
pub(crate) mod point_to_point;
pub(crate) mod ring;
pub(crate) mod schedule;
