//! Trains a digit classifier on several peers that die and are replaced.
#![allow(dead_code, reason = "the two roles start from here once they have a communicator")]

mod args;
mod dataset;
mod diloco;
mod launch;
mod model;
mod peer;
mod plot;
mod progress;
mod report;
mod rng;
mod run;
mod supervisor;

#[cfg(test)]
mod peer_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod sim;

fn main() {}
