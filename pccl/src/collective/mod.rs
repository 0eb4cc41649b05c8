//! Collectives: the plan, one attempt of it, and the operation that the caller waits for.

pub(crate) mod algorithm;
pub(crate) mod attempt;
pub(crate) mod calls;
mod coding;
mod early;
pub(crate) mod links;
pub(crate) mod op;
pub(crate) mod operations;
pub(crate) mod progress;
pub(crate) mod runs;
mod slot;
pub(crate) mod table;

#[cfg(test)]
mod attempt_tests;
#[cfg(test)]
mod coded_tests;
#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod pairwise_tests;
#[cfg(test)]
mod shape_tests;
