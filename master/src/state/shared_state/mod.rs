//! Syncs of shared state: which content counts, who gives it to whom, and what is committed.
//!
//! `sync` counts the votes, `election` chooses the content, `sync_end` decides the outcome and `fetches` whose
//! fault a failed fetch is. `revisions` refuses a commit over a newer revision. `prefetch` and `serving` let
//! newcomers fetch the state before they are let in. `seeders` restricts who may give state to others.
//!
//! The room reads membership and groups.

pub(crate) mod election;
pub(crate) mod fetches;
pub(crate) mod prefetch;
pub(crate) mod revisions;
pub(crate) mod seeders;
pub(crate) mod serving;
pub(crate) mod sync;
pub(crate) mod sync_end;
