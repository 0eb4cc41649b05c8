//! Where a run comes from: its identity, and one secret of which everything is made that must not be guessed. A master
//! that goes on after its death makes the same of it.

use crate::state::IdSource;
use pccl_protocol::{PeerId, RunId};
use serde::{Deserialize, Serialize};
use std::io;
use tinysockets::{key::SecretKey, ticket::Authority};

const RUN_LABEL: &str = "PCCL run";
const PEER_LABEL: &str = "PCCL peer";
const AUTHORITY_LABEL: &str = "PCCL tickets";
const STATE_LABEL: &str = "PCCL shared state";
const RELAY_LABEL: &str = "PCCL relay";

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) run: RunId,
    #[serde(with = "pccl_protocol::kept")]
    secret: SecretKey,
}

impl Origin {
    /// A new run, from the random numbers of the system.
    pub(crate) fn draw() -> io::Result<Self> {
        let secret = SecretKey::generate()?;
        // 0 stands for "no run".
        Ok(Self { run: RunId(number(&secret, RUN_LABEL, 0).max(1)), secret })
    }

    /// Some origin of this run.
    #[cfg(test)]
    pub(crate) fn of(run: RunId) -> Self {
        Self { run, secret: SecretKey::from_bytes([5; 32]) }
    }

    /// Gives identities to peers.
    pub(crate) fn identities(&self) -> Identities {
        Identities(self.secret.clone())
    }

    /// The authority of which the tickets of the run are made.
    pub(crate) fn authority(&self) -> Authority {
        Authority::of(self.secret.derive(AUTHORITY_LABEL, &[]))
    }

    /// Keys the digests of shared state.
    pub(crate) fn state_key(&self) -> SecretKey {
        self.secret.derive(STATE_LABEL, &[])
    }

    /// The token that visitors have to tell the relay.
    pub(crate) fn relay_token(&self) -> u64 {
        number(&self.secret, RELAY_LABEL, 0) as u64
    }
}

/// The `nth` number that follows from a secret for this purpose.
fn number(secret: &SecretKey, label: &str, nth: u64) -> u128 {
    let derived = secret.derive(label, &nth.to_be_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&derived.bytes()[..16]);
    u128::from_be_bytes(bytes)
}

/// Identities of peers.
#[derive(Debug)]
pub(crate) struct Identities(SecretKey);

impl IdSource for Identities {
    fn peer_id(&mut self, nth: u64) -> PeerId {
        // 0 stands for "no peer" in a preamble.
        PeerId(number(&self.0, PEER_LABEL, nth).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_identities_differ_and_come_again_with_their_secret() {
        let (one, other) = (Origin::draw().unwrap(), Origin::draw().unwrap());
        assert_ne!(one.run, other.run);
        let id = |origin: &Origin, nth| origin.identities().peer_id(nth);
        assert_ne!(id(&one, 0), id(&one, 1));
        assert_ne!(id(&one, 0), id(&other, 0));
        let again: Origin = postcard::from_bytes(&postcard::to_stdvec(&one).unwrap()).unwrap();
        assert_eq!((id(&again, 7), again.relay_token()), (id(&one, 7), one.relay_token()));
        assert_eq!(again.authority().service_key(5), one.authority().service_key(5));
        assert_ne!(again.state_key(), other.state_key());
    }
}
