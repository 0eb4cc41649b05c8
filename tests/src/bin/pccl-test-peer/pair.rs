//! The commands that send to one other peer, and receive from one.

use crate::{Reply, failed_with, usage};
use pccl::{Communicator, PeerId};
use pccl_tests::{
    collectives::{bytes, input},
    pattern,
};

/// `send PEER COUNT TAG` or `recv PEER COUNT TAG`: what the peer with that identity gets is what this one puts into
/// collectives, and the other way round.
pub(crate) fn run(comm: &Communicator, index: usize, call: &str, words: &[&str]) -> Reply {
    let &[peer, count, tag] = words else { return Err(usage("PEER COUNT TAG")) };
    let number = |text: &str| text.parse::<u64>().map_err(|_| usage(text));
    let (count, tag) = (number(count)? as usize, number(tag)?);
    let other = PeerId(u128::from_str_radix(peer, 16).map_err(|_| usage(peer))?);
    let own = input(index, count);
    let mut data = if call == "send" { own.clone() } else { vec![0; count] };
    let result = if call == "send" { comm.send(&data, other, tag) } else { comm.recv(&mut data, other, tag) };
    let restored = call == "recv" || data == own;
    match result {
        Ok(info) => Ok(format!(
            "participants={} own={} digests={} restored={restored}",
            info.world_size,
            info.rank,
            pattern::digest(&bytes(&data))
        )),
        Err(error) => Err(failed_with(&error, &format!("restored={restored}"))),
    }
}
