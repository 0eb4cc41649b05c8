//! The peer's listeners and what happens to those who connect.

use super::{Shared, conductor::Event};
use crate::{Error, Reason, config::Config};
use parking_lot::Mutex;
use pccl_protocol::limits;
use std::sync::{Arc, Weak};
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    listener::Listener,
    preamble::{Refusal, Role},
};

/// Index of the data listener.
pub(crate) const P2P: usize = 0;
/// Index of the shared-state listener.
pub(crate) const STATE: usize = 1;

/// Binds both listeners.
pub(crate) fn bind(config: &Config) -> Result<Vec<(Role, Listener)>, Error> {
    let tries = if config.strict_ports { 1 } else { limits::PORT_TRIES };
    let bind = |role, first| {
        let listener = Listener::bind(config.bind, first, tries).map_err(|error| {
            let more = if config.strict_ports { "" } else { " or the ones behind it" };
            Error::System(Reason::system(format_args!("cannot listen on port {first}{more}"), error))
        })?;
        let port = listener.local_port();
        if first != 0 && port != first {
            log::warn!(
                "port {first} for {} is taken: this peer listens on {port}, and firewalls have to let others reach \
                 that",
                what_for(role)
            );
        }
        Ok((role, listener))
    };
    Ok(vec![bind(Role::Data, config.first_p2p_port)?, bind(Role::State, config.first_state_port)?])
}

fn what_for(role: Role) -> &'static str {
    match role {
        Role::State => "shared state",
        Role::Data | Role::Probe | Role::Check | Role::Control => "tensors",
    }
}

/// Starts to accept.
pub(crate) fn spawn(listeners: Vec<(Role, Listener)>, shared: &Arc<Shared>) -> Result<Acceptor, Error> {
    let shared = Arc::downgrade(shared);
    Acceptor::spawn(listeners, AcceptLimits::default(), Box::new(move |incoming| take(&shared, incoming)))
        .map_err(|error| Error::System(Reason::system("cannot accept connections", error)))
}

/// Most connections that wait until this peer knows who it is.
const MAX_EARLY: usize = limits::MAX_POOL_CONNECTIONS as usize;

/// Connections from peers that heard of this one before it heard who it is itself: the master's packets reach each peer
/// in order, but different peers at different times.
#[derive(Debug, Default)]
pub(crate) struct Early {
    waiting: Mutex<Vec<Incoming>>,
}

/// This peer has learnt who it is: answers those who came before.
pub(crate) fn take_early(shared: &Arc<Shared>) {
    let waiting = std::mem::take(&mut *shared.early.waiting.lock());
    waiting.into_iter().for_each(|incoming| answer(shared, incoming));
}

fn take(shared: &Weak<Shared>, incoming: Incoming) {
    let Some(shared) = shared.upgrade() else { return incoming.refuse(Refusal::ShuttingDown) };
    {
        let mut waiting = shared.early.waiting.lock();
        // Under the lock: whoever sets the identity empties the list afterwards.
        if shared.told.identity().is_none() && waiting.len() < MAX_EARLY {
            return waiting.push(incoming);
        }
    }
    answer(&shared, incoming);
}

fn answer(shared: &Arc<Shared>, incoming: Incoming) {
    let Some(identity) = shared.told.identity() else { return incoming.refuse(Refusal::NotExpected) };
    let preamble = incoming.preamble;
    if shared.control.end().is_some() {
        return incoming.refuse(Refusal::ShuttingDown);
    }
    if preamble.run != identity.run.0 {
        return incoming.refuse(Refusal::WrongRun);
    }
    if preamble.to != identity.peer.0 {
        return incoming.refuse(Refusal::WrongDestination);
    }
    if preamble.group != shared.config.group.0 {
        return incoming.refuse(Refusal::NotExpected);
    }
    let remote = incoming.remote_addr;
    let conn = match incoming.accept() {
        Ok(conn) => conn,
        Err(error) => return log::debug!("connection from {remote} broke during the preamble: {error}"),
    };
    match preamble.role {
        Role::Data => drop(shared.conductor.send(Event::Inbound(preamble, conn))),
        Role::State => shared.syncs.server.serve(&shared.syncs, conn, preamble.connection_index, remote),
        Role::Probe => shared.probes.serve(conn, remote),
        // The reply was all.
        Role::Check => {}
        // The acceptor lets only the roles of the two listeners through.
        Role::Control => {}
    }
}
