//! The peer's listeners and what happens to those who connect.

use super::{Shared, event::Event};
use crate::{Error, Reason, config::Config, tickets::is_visit};
use log::Level;
use pccl_protocol::{Address, PeerId, limits};
use std::{net::IpAddr, sync::Arc, time::Instant};
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    bucket::Lines,
    listener::Listener,
    place::own_addresses,
    preamble::{Refusal, Role},
    throttle::LINES_ABOUT_STRANGERS,
    ticket::Lock,
};

/// Index of the data listener.
pub(crate) const P2P: usize = 0;
/// Index of the shared-state listener.
pub(crate) const STATE: usize = 1;

/// Binds both listeners. `here`: the address of this machine by which it reaches a master that nobody else reaches.
/// Then nobody else has to reach this peer either, unless the program says where it listens, or what others dial: the
/// master may be at the other end of a tunnel.
pub(crate) fn bind(config: &Config, here: Option<IpAddr>) -> Result<Vec<(Role, Listener)>, Error> {
    let here = here.filter(|_| config.advertised_host.is_none());
    let address = config.settings.bind.or(here);
    let tries = if config.settings.strict_ports { 1 } else { limits::PORT_TRIES };
    let bind = |role, first| {
        let listener = Listener::bind(address, first, tries).map_err(|error| {
            let more = if config.settings.strict_ports { "" } else { " or the ones behind it" };
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
        Ok::<_, Error>((role, listener))
    };
    Ok(vec![
        bind(Role::Data, config.settings.first_p2p_port)?,
        bind(Role::State, config.settings.first_state_port)?,
    ])
}

/// Addresses of this machine under which others may try the listeners, beside the one that the master sees; `near` is
/// that on the way to it.
pub(crate) fn announced(
    config: &Config,
    listeners: &[(Role, Listener)],
    near: Option<IpAddr>,
) -> Vec<Address> {
    if config.advertised_host.is_some() || config.outbound_only == Some(true) {
        return Vec::new();
    }
    let has_ipv6 = listeners.iter().all(|(_, listener)| listener.local_addr().is_ipv6());
    let own = own_addresses(config.settings.bind, has_ipv6, near).into_iter().filter_map(Address::new);
    own.take(limits::MAX_ADDRESSES).collect()
}

fn what_for(role: Role) -> &'static str {
    match role {
        Role::State | Role::StateBack => "shared state",
        Role::Relay => "a relay",
        Role::Data | Role::DataBack | Role::Probe | Role::ProbeBack | Role::Check | Role::Control => {
            "tensors"
        }
    }
}

/// Starts to accept, once this peer knows who it is: a connection that comes before waits in the kernel.
pub(crate) fn spawn(listeners: Vec<(Role, Listener)>, shared: &Arc<Shared>) -> Result<Acceptor, Error> {
    let lock = match (&shared.config.run_keys, shared.told.wallet.service_key()) {
        (None, _) => None,
        (Some(keys), Some(service_key)) => Some(Lock::of_peer(keys.clone(), service_key.clone())),
        (Some(_), None) => {
            return Err(Error::System("the master has not said by what tickets are known".to_owned().into()));
        }
    };
    let shared = Arc::downgrade(shared);
    let mut lines = Lines::new(LINES_ABOUT_STRANGERS, Instant::now());
    let handler = Box::new(move |incoming: Incoming| match shared.upgrade() {
        Some(shared) => answer(&shared, incoming, &mut lines),
        None => incoming.refuse(Refusal::ShuttingDown),
    });
    Acceptor::spawn(listeners, AcceptLimits::default(), lock, handler)
        .map_err(|error| Error::System(Reason::system("cannot accept connections", error)))
}

fn answer(shared: &Arc<Shared>, incoming: Incoming, lines: &mut Lines<Instant>) {
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
    // Checks are encrypted in any mode.
    if preamble.security != identity.wire.security()
        && preamble.role != Role::Check
        && shared.config.run_keys.is_some()
    {
        log::warn!("{} connects in another wire mode than that of the run", PeerId(preamble.from));
        return incoming.refuse(Refusal::UnsupportedSecurity);
    }
    let remote = incoming.remote_addr;
    let plan = shared.operations.table.plan();
    if let Err(why) = shared.told.wallet.judge(&preamble, plan.as_deref()) {
        let (from, role) = (PeerId(preamble.from), preamble.role);
        // A member whose plan was overtaken by the next one means no harm.
        let is_member = plan.is_some_and(|plan| plan.rank_of(from).is_some());
        let (level, more) = match if is_member { None } else { lines.next(Instant::now()) } {
            Some(more) => (Level::Warn, more),
            None => (Level::Debug, String::new()),
        };
        log::log!(level, "refusing connection from {remote}, of peer {from} for {role:?}: {why}{more}");
        return incoming.refuse(Refusal::WrongTicket);
    }
    let place = shared.dial_backs.place_of(&preamble);
    if matches!(preamble.role, Role::StateBack | Role::ProbeBack) && place.is_none() {
        log::debug!(
            "refusing connection from {remote}: nobody has asked peer {} to dial",
            PeerId(preamble.from)
        );
        return incoming.refuse(Refusal::NotExpected);
    }
    let visit = match is_visit(&preamble).then(|| shared.probes.admit(&preamble)).transpose() {
        Ok(visit) => visit,
        Err(refusal) => {
            log::debug!("refusing connection from {remote}, of the visitor {}", PeerId(preamble.from));
            return incoming.refuse(refusal);
        }
    };
    let taken = match shared.config.settings.shared_memory {
        true => incoming.accept_sharing(),
        false => incoming.accept(),
    };
    let conn = match taken {
        Ok(conn) => conn,
        Err(error) => return log::debug!("connection from {remote} broke during the preamble: {error}"),
    };
    match preamble.role {
        Role::Data | Role::DataBack => drop(shared.conductor.send(Event::Inbound(preamble, conn))),
        Role::State => shared.syncs.server.serve(&shared.syncs, conn, preamble.connection_index, remote),
        Role::Probe => shared.probes.serve(conn, remote, visit),
        Role::StateBack | Role::ProbeBack => {
            if let Some(place) = place {
                place.take(conn);
            }
        }
        // The reply was all.
        Role::Check => {}
        // The acceptor lets only the roles of the two listeners through.
        Role::Control | Role::Relay => {}
    }
}
