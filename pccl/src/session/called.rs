//! Dials peers that want a connection from this one and cannot dial it: that they may fetch shared state, or measure
//! the way to it.

use super::{Shared, edges};
use crate::threads::spawn;
use pccl_protocol::{Call, TicketRole};
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};
use tinysockets::{conn::Conn, dial::dial_place, key::SecretKey, preamble::Preamble};

/// Most calls that are answered at the same time. A peer that asks for more waits in vain, and asks again or somebody
/// else.
const MAX_CALLS: usize = 64;

/// How many calls are being answered.
#[derive(Debug, Default)]
pub(super) struct CallDesk {
    busy: AtomicUsize,
}

/// Dials on a thread of its own, and then does what the connection is for.
pub(super) fn answer(shared: &Arc<Shared>, call: Call) {
    log::debug!("peer {} at {} wants to be dialed for {}", call.peer, call.hosts, call.role);
    let Some(me) = shared.told.identity() else { return };
    let preamble = Preamble {
        security: me.wire.security(),
        run: me.run.0,
        from: me.peer.0,
        to: call.peer.0,
        group: shared.config.group.0,
        connection_index: call.index,
        connection_count: call.count,
        ..Preamble::new(call.role.role())
    };
    let stamped = match shared.told.wallet.stamp(preamble) {
        Ok(stamped) => stamped,
        Err(text) => return log::warn!("cannot dial peer {}: {text}", call.peer),
    };
    if shared.called.busy.fetch_add(1, Ordering::Relaxed) >= MAX_CALLS {
        shared.called.busy.fetch_sub(1, Ordering::Relaxed);
        return log::debug!("peer {} is not dialed: {MAX_CALLS} others are", call.peer);
    }
    let deadline = Instant::now() + shared.config.settings.dial_timeout;
    let for_thread = Arc::downgrade(shared);
    // Not joined when the session ends: a dial cannot be cut off, and it holds nothing of the session.
    let spawned = spawn("pccl-call", move || {
        let peer = call.peer;
        if let Err(text) = dial(&for_thread, &call, stamped, deadline) {
            log::warn!("cannot dial peer {peer}, which has asked for it: {text}");
        }
        if let Some(shared) = for_thread.upgrade() {
            shared.called.busy.fetch_sub(1, Ordering::Relaxed);
        }
    });
    if let Err(error) = spawned {
        shared.called.busy.fetch_sub(1, Ordering::Relaxed);
        log::warn!("cannot dial another peer: {error}");
    }
}

fn dial(
    shared: &Weak<Shared>,
    call: &Call,
    (preamble, ticket): (Preamble, Option<SecretKey>),
    deadline: Instant,
) -> Result<(), String> {
    let Some(ways) = shared.upgrade().map(|shared| shared.told.ways.clone()) else { return Ok(()) };
    let place = ways.to(call.peer, &call.hosts, call.port);
    let conns: Vec<Conn> = match call.role {
        TicketRole::ProbeBack => edges::dial_pool(&place, preamble, ticket.as_ref(), deadline)?,
        TicketRole::StateBack if call.relayed => {
            let relay = shared.upgrade().and_then(|shared| shared.told.relay.get().cloned());
            let relay = relay.ok_or("the master has no relay")?;
            vec![relay.begin(&preamble, ticket.as_ref(), deadline)?]
        }
        TicketRole::StateBack => {
            let conn = dial_place(&place, &|_| preamble, ticket.as_ref(), deadline);
            vec![conn.map_err(|error| error.to_string())?]
        }
        other => return Err(format!("connections for {other} are not asked for")),
    };
    if let Some(first) = conns.first().filter(|_| !call.relayed) {
        ways.led_to(call.peer, first);
    }
    let Some(shared) = shared.upgrade() else { return Ok(()) };
    for conn in conns {
        let remote = conn.peer_addr().map_err(|error| error.to_string())?;
        match call.role {
            TicketRole::ProbeBack => shared.probes.serve(conn, remote, None),
            _ => shared.syncs.server.serve(&shared.syncs, conn, call.index, remote),
        }
    }
    Ok(())
}
