//! Connections that this peer wants from others that it cannot dial: it asks the master, they dial, and what comes is
//! handed to the caller that waits for it. A connection for which nobody waits is not taken.

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use pccl_protocol::{CallMe, PeerId, TicketRole, limits};
use std::{collections::BTreeMap, time::Instant};
use tinysockets::{
    conn::Conn,
    preamble::{Preamble, Role},
};

/// The peer that is to dial, the purpose, and which of several that are waited for one by one.
type Name = (u128, TicketRole, u16);

/// A connection that has come: its index, how many belong together, and the connection itself.
type Arrival = (u16, u16, Conn);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct DialBacks {
    open: Mutex<BTreeMap<Name, Sender<Arrival>>>,
}

fn name_of(peer: PeerId, role: TicketRole, index: u16) -> Name {
    (peer.0, role, if role == TicketRole::StateBack { index } else { 0 })
}

impl DialBacks {
    /// Waits from now on for what is asked for here, and tells the master by `send`.
    pub(crate) fn ask(&self, wish: CallMe, send: impl FnOnce(CallMe)) -> DialedBack<'_> {
        let (sender, arrivals) = crossbeam_channel::bounded(usize::from(limits::MAX_POOL_CONNECTIONS));
        let name = name_of(wish.peer, wish.role, wish.index);
        // A caller that waited for the same before has given it up.
        self.open.lock().insert(name, sender.clone());
        send(wish);
        DialedBack { all: self, name, sender, arrivals }
    }

    /// Where a connection belongs that somebody makes; `None`: nobody waits for it.
    pub(crate) fn place_of(&self, preamble: &Preamble) -> Option<Place> {
        let role = match preamble.role {
            Role::StateBack => TicketRole::StateBack,
            Role::ProbeBack => TicketRole::ProbeBack,
            _ => return None,
        };
        let name = name_of(PeerId(preamble.from), role, preamble.connection_index);
        let sender = self.open.lock().get(&name)?.clone();
        Some(Place { index: preamble.connection_index, count: preamble.connection_count, sender })
    }
}

/// Where a connection belongs.
pub(crate) struct Place {
    index: u16,
    count: u16,
    sender: Sender<Arrival>,
}

impl Place {
    /// Hands it over. It is closed if there is nobody any more, or if there are too many.
    pub(crate) fn take(self, conn: Conn) {
        let _ = self.sender.try_send((self.index, self.count, conn));
    }
}

/// Connections that are waited for as long as this lives.
#[derive(Debug)]
pub(crate) struct DialedBack<'a> {
    all: &'a DialBacks,
    name: Name,
    sender: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
}

impl DialedBack<'_> {
    /// One after the other.
    pub(crate) fn arrivals(&self) -> &Receiver<Arrival> {
        &self.arrivals
    }

    /// All that belong together, in their order.
    pub(crate) fn collect(&self, deadline: Instant) -> Result<Vec<Conn>, String> {
        let mut here: BTreeMap<u16, Conn> = BTreeMap::new();
        loop {
            let (index, count, conn) = self.arrivals.recv_deadline(deadline).map_err(|_| NOT_DIALED_BACK)?;
            let count = count.clamp(1, limits::MAX_POOL_CONNECTIONS);
            if index < count {
                here.insert(index, conn);
            }
            if here.len() == usize::from(count) {
                return Ok(here.into_values().collect());
            }
        }
    }
}

/// Why a connection did not come.
pub(crate) const NOT_DIALED_BACK: &str =
    "it cannot be dialed, and has not dialed back in time; can it reach the ports of this peer?";

impl Drop for DialedBack<'_> {
    fn drop(&mut self) {
        // Another one may wait under the same name by now.
        self.all.open.lock().retain(|name, sender| *name != self.name || !sender.same_channel(&self.sender));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{TcpListener, TcpStream},
        time::Duration,
    };

    fn conn() -> Conn {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let dialed = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        drop(listener.accept());
        dialed.into()
    }

    fn wish(role: TicketRole, index: u16) -> CallMe {
        CallMe { peer: PeerId(7), role, index, count: 2 }
    }

    fn preamble(role: Role, from: u128, index: u16) -> Preamble {
        Preamble { from, connection_index: index, connection_count: 2, ..Preamble::new(role) }
    }

    #[test]
    fn only_what_is_waited_for_has_a_place() {
        let dial_backs = DialBacks::default();
        let place = |role, from, index| dial_backs.place_of(&preamble(role, from, index)).is_some();
        assert!(!place(Role::StateBack, 7, 0));
        let mut sent = None;
        let one = dial_backs.ask(wish(TicketRole::StateBack, 1), |wish| sent = Some(wish));
        assert_eq!(sent, Some(wish(TicketRole::StateBack, 1)));
        assert!(
            place(Role::StateBack, 7, 1) && !place(Role::StateBack, 7, 0) && !place(Role::StateBack, 8, 1)
        );
        assert!(!place(Role::ProbeBack, 7, 1) && !place(Role::State, 7, 1));
        let again = dial_backs.ask(wish(TicketRole::StateBack, 1), drop);
        drop(one);
        assert!(place(Role::StateBack, 7, 1), "the newer one waits");
        dial_backs.place_of(&preamble(Role::StateBack, 7, 1)).expect("a place").take(conn());
        assert_eq!(again.arrivals().try_recv().map(|it| it.0), Ok(1));
        drop(again);
        assert!(!place(Role::StateBack, 7, 1));
    }

    #[test]
    fn those_that_belong_together_are_collected_in_their_order() {
        let dial_backs = DialBacks::default();
        let all = dial_backs.ask(wish(TicketRole::ProbeBack, 0), drop);
        let come =
            |index| dial_backs.place_of(&preamble(Role::ProbeBack, 7, index)).expect("a place").take(conn());
        come(1);
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(all.collect(soon).expect_err("one is missing").contains("has not dialed back in time"));
        come(1);
        come(0);
        assert_eq!(all.collect(Instant::now() + Duration::from_secs(20)).map(|conns| conns.len()), Ok(2));
    }
}
