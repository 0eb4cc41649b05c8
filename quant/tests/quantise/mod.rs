//! Quantisation: the same bytes on every level as the oracle's, errors within their bounds, no bias, hostile bytes.

mod arguments;
mod bounds;
mod combine;
mod data;
mod hops;
mod parity;
