//! Tickets: what the master of a run with a key gives to one peer, so that it may connect to another one.
//!
//! A ticket is the shared secret of the handshake in the place of the run key: both ends prove that they have it, and
//! nobody sends it. The master draws an [`Authority`]. Of that it makes a [`ServiceKey`] for each peer, and tells it to
//! nobody else. Of the service key of a peer and of what a connection to it is for it makes the ticket, and tells it to
//! the peer that is to make the connection. So the one that is called makes the same ticket of the preamble, without
//! having been told who comes, and nobody but these three can.
//!
//! Pure: no input or output, but for the random numbers of an authority.

use std::io;

use crate::{
    key::{AcceptedKeys, RunKey, RunKeys, SecretKey},
    preamble::{Preamble, Role},
};

const SERVICE_LABEL: &str = "PCCL service key";
const TICKET_LABEL: &str = "PCCL ticket";

/// The secret from which the master of a run makes all tickets.
#[derive(Debug)]
pub struct Authority(SecretKey);

impl Authority {
    /// A new one from the random numbers of the system.
    pub fn draw() -> io::Result<Self> {
        SecretKey::generate().map(Self)
    }

    /// The one that is made of a secret that nobody else has.
    #[must_use]
    pub fn of(secret: SecretKey) -> Self {
        Self(secret)
    }

    /// The key by which a peer recognises tickets.
    #[must_use]
    pub fn service_key(&self, peer: u128) -> ServiceKey {
        ServiceKey(self.0.derive(SERVICE_LABEL, &peer.to_be_bytes()))
    }
}

/// The key by which a peer knows tickets that were made for connections to it. Only the master has it beside that peer,
/// which proves by it who it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceKey(SecretKey);

impl From<SecretKey> for ServiceKey {
    fn from(secret: SecretKey) -> Self {
        Self(secret)
    }
}

impl ServiceKey {
    /// Its bytes, still secret.
    #[must_use]
    pub fn secret(&self) -> &SecretKey {
        &self.0
    }

    /// The ticket for connections with this preamble. Group, index and number of the connections do not count.
    #[must_use]
    pub fn ticket(&self, preamble: &Preamble) -> SecretKey {
        let Preamble { role, run, from, to, epoch, link_generation, .. } = *preamble;
        let subject = Preamble { run, from, to, epoch, link_generation, ..Preamble::new(role) };
        self.0.derive(TICKET_LABEL, &subject.encode())
    }
}

/// The keys that a dialer has to have when it knocks.
#[derive(Debug, Clone)]
pub struct Lock {
    keys: RunKeys,
    own: Option<ServiceKey>,
}

impl Lock {
    /// Of a master: a key that the run accepts.
    #[must_use]
    pub fn of_master(keys: RunKeys) -> Self {
        Self { keys, own: None }
    }

    /// Of a peer: the ticket of the connection, or for a check by another peer, from which nothing follows, a key of
    /// the run.
    #[must_use]
    pub fn of_peer(keys: RunKeys, own: ServiceKey) -> Self {
        Self { keys, own: Some(own) }
    }

    /// The ticket that such a connection needs, if it needs one.
    pub(crate) fn ticket(&self, preamble: &Preamble) -> Option<SecretKey> {
        let own = self.own.as_ref()?;
        match preamble.role {
            Role::Data | Role::State | Role::Probe | Role::DataBack | Role::StateBack | Role::ProbeBack => {
                Some(own.ticket(preamble))
            }
            // One of the master: it need not know which run key a newcomer has.
            Role::Check if preamble.from == 0 => Some(own.ticket(preamble)),
            // A dialer on a relay's port meets somebody there who wants a ticket.
            Role::Control | Role::Check | Role::Relay => None,
        }
    }

    /// The keys that the run accepts.
    #[must_use]
    pub fn accepted(&self) -> AcceptedKeys {
        self.keys.accepted()
    }
}

impl From<RunKey> for Lock {
    fn from(key: RunKey) -> Self {
        Self::of_master(RunKeys::new(key.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_what_it_was_made_for_and_nothing_else() {
        let authority = Authority::draw().unwrap();
        let service_key = authority.service_key(7);
        assert_eq!(service_key, authority.service_key(7));
        let meant =
            Preamble { run: 1, from: 6, to: 7, epoch: 3, link_generation: 9, ..Preamble::new(Role::Data) };
        let ticket = service_key.ticket(&meant);
        let another_one_of_the_pool =
            Preamble { connection_index: 2, connection_count: 4, group: 5, security: 1, ..meant };
        assert_eq!(service_key.ticket(&another_one_of_the_pool), ticket);
        for other in [
            Preamble { role: Role::State, ..meant },
            Preamble { run: 2, ..meant },
            Preamble { from: 5, ..meant },
            Preamble { to: 8, ..meant },
            Preamble { epoch: 4, ..meant },
            Preamble { link_generation: 8, ..meant },
        ] {
            assert_ne!(service_key.ticket(&other), ticket, "{other:?}");
        }
        assert_ne!(authority.service_key(8).ticket(&meant), ticket, "another peer");
        assert_ne!(Authority::draw().unwrap().service_key(7).ticket(&meant), ticket, "another master");
    }

    #[test]
    fn only_what_leads_somewhere_needs_a_ticket() {
        let keys = RunKeys::new(RunKey::from_bytes([1; 32]).into());
        let peer = Lock::of_peer(keys.clone(), Authority::draw().unwrap().service_key(7));
        let needs = |lock: &Lock, role| lock.ticket(&Preamble { from: 1, ..Preamble::new(role) }).is_some();
        let roles = [Role::Data, Role::State, Role::Probe, Role::DataBack, Role::StateBack, Role::ProbeBack];
        assert_eq!(roles.map(|role| needs(&peer, role)), [true; 6]);
        assert_eq!([Role::Control, Role::Check].map(|role| needs(&peer, role)), [false; 2]);
        assert!(peer.ticket(&Preamble::new(Role::Check)).is_some(), "the master's");
        let master = Lock::of_master(keys);
        assert_eq!(roles.map(|role| needs(&master, role)), [false; 6]);
    }
}
