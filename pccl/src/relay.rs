//! The relay of the master, where this peer meets others that nobody can dial, as nobody can dial this one.
//!
//! A connection through it is one as any other: one end dials and begins it, and the other end treats it as one that
//! has come to its listener.

use crate::threads::spawn;
use pccl_protocol::PeerId;
use std::time::{Duration, Instant};
use tinysockets::{
    acceptor::Entrance,
    conn::Conn,
    dial::introduce,
    key::{RunKey, RunKeys, SecretKey},
    link::tune_data_socket,
    place::Place,
    preamble::{Preamble, Role},
    relay::{Visit, visit},
};

/// The way to the relay of one session.
#[derive(Debug, Clone)]
pub(crate) struct Relay {
    /// Where it is.
    pub(crate) place: Place,
    pub(crate) run: u128,
    pub(crate) me: u128,
    pub(crate) token: u64,
    pub(crate) keys: Option<RunKeys>,
    /// Where connections go that others begin.
    pub(crate) entrance: Entrance,
    /// Time for a dial.
    pub(crate) timeout: Duration,
}

/// The purpose of a meeting: as the end that begins says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purpose {
    pub(crate) role: Role,
    /// Of an edge; 0 for state.
    pub(crate) generation: u64,
    pub(crate) index: u16,
}

impl Relay {
    fn visit(&self, to: u128, what: Purpose, begins: bool, deadline: Instant) -> Result<Conn, String> {
        let Purpose { role, generation, index } = what;
        let (run, token, from) = (self.run, self.token, self.me);
        let wish = Visit { run, token, from, to, begins, role, generation, index };
        let key = self.keys.as_ref().map(RunKeys::oldest);
        let conn = visit(&self.place, &wish, key.as_ref().map(RunKey::secret), deadline);
        conn.map_err(|error| error.to_string())
    }

    /// Meets the peer that a preamble names, and begins the connection with it.
    pub(crate) fn begin(
        &self,
        preamble: &Preamble,
        ticket: Option<&SecretKey>,
        deadline: Instant,
    ) -> Result<Conn, String> {
        let is_edge = preamble.role == Role::Data;
        let what = Purpose {
            role: preamble.role,
            // That of others is the end of their ticket, which only this end knows.
            generation: if is_edge { preamble.link_generation } else { 0 },
            index: preamble.connection_index,
        };
        let conn = self.visit(preamble.to, what, true, deadline)?;
        if is_edge {
            tune_data_socket(&conn, conn.round_trip());
        }
        let met = introduce(conn, &self.place.target, preamble, ticket, deadline);
        met.map_err(|error| format!("through the relay: {error}"))
    }

    /// Meets a peer that begins, on a thread of its own. The connection that comes of it is treated as one to the
    /// listener of its kind; if none does, the other end says so.
    pub(crate) fn expect(&self, peer: PeerId, what: Purpose) {
        let (relay, deadline) = (self.clone(), Instant::now() + self.timeout * 2);
        // Not joined when the session ends: it ends by its deadline, and holds nothing of the session but the way in.
        let spawned = spawn("pccl-relay", move || match relay.visit(peer.0, what, false, deadline) {
            Ok(conn) => {
                let listener = if what.role == Role::StateBack { Role::State } else { Role::Data };
                relay.entrance.bring(listener, conn);
            }
            Err(text) => log::info!("peer {peer} was not met for {:?}: {text}", what.role),
        });
        if let Err(error) = spawned {
            log::warn!("cannot wait for peer {peer} at the relay: {error}");
        }
    }
}
