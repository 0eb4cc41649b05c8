//! A relay: joins two connections, for two ends that nobody can dial. Both of them dial the relay and say whom they
//! want to meet; from then on each gets the bytes of the other one, and what these mean is a matter of the two.
//!
//! A visit begins with a preamble of [`Role::Relay`], in a run with a key proven by that, and with the token of the
//! relay. The bytes that follow travel as the two ends agree, so the records of the visit end with the reply, see
//! [`SECURITY_OFF`]. When both are here, each gets one more reply; a visitor that is alone for too long is closed. A
//! dead end closes the other one at once.
//!
//! All visitors are served by two threads: one takes connections and one moves bytes. A rate bounds all of these
//! together, and for each direction of a pair there is a buffer of a fixed size.

mod pairing;
mod server;

pub use server::{Gauge, Relay, RelayLimits};

use std::{io, time::Instant};

use crate::{
    conn::Conn,
    dial::{DialError, dial_place},
    key::SecretKey,
    place::Place,
    preamble::{Preamble, REPLY_BYTES, Reply, Role, SECURITY_NONE, SECURITY_OFF},
};

/// The statement of a visitor to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// The run.
    pub run: u128,
    /// The token that the relay has to be told to let somebody in.
    pub token: u64,
    /// The visitor.
    pub from: u128,
    /// Whom it wants to meet.
    pub to: u128,
    /// Whether this end begins the connection that the relay carries; the other one must not.
    pub begins: bool,
    /// The purpose of that connection, as the one that begins says it.
    pub role: Role,
    /// Which incarnation of it.
    pub generation: u64,
    /// Which of several.
    pub index: u16,
}

impl Visit {
    fn preamble(&self) -> Preamble {
        Preamble {
            run: self.run,
            from: self.from,
            to: self.to,
            epoch: self.token,
            features: self.begins.into(),
            connection_index: self.index,
            connection_count: self.role as u16,
            link_generation: self.generation,
            ..Preamble::new(Role::Relay)
        }
    }
}

/// Why two ends did not meet.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// The relay was not reached, or does not let this end in.
    #[error("the relay: {0}")]
    Dial(#[from] DialError),
    /// The relay closed the connection, or the time was over.
    #[error("the other end did not come to the relay in time ({0})")]
    Alone(io::Error),
}

/// Dials the relay at `place`, with the run key if there is one, and waits there until the other end has come. Ends at
/// the deadline at the latest.
pub fn visit(
    place: &Place,
    visit: &Visit,
    key: Option<&SecretKey>,
    deadline: Instant,
) -> Result<Conn, VisitError> {
    let security = if key.is_some() { SECURITY_OFF } else { SECURITY_NONE };
    let preamble = Preamble { security, ..visit.preamble() };
    // Neither end can tell where on the two halves of the way long packets are lost.
    let place = Place { short_segments: true, ..place.clone() };
    let conn = dial_place(&place, &|_| preamble, key, deadline)?;
    let mut bytes = [0; REPLY_BYTES];
    conn.recv_all(&mut bytes, Some(deadline)).map_err(VisitError::Alone)?;
    match Reply::decode(&bytes) {
        Ok(Reply::Accepted) => Ok(conn),
        _ => Err(VisitError::Alone(io::ErrorKind::InvalidData.into())),
    }
}
