//! How many descriptors of the process are for whom: peers must not take those that an operator needs to see what is
//! wrong.

use crate::event_loop::MAX_CLIENTS;
use std::fs;
use tinysockets::throttle::MAX_HALF_OPEN;

/// Listening sockets, event queue, journal, operator's socket, checks of ports, logs.
const OWN: usize = 12;
/// Of the clients, those who ask for the status, stand by, or come back.
const FOR_QUESTIONS: usize = 4;
/// Where the system says how many there are.
const LIMITS: &str = "/proc/self/limits";

/// Bounds for connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Of which it is not known whose they are.
    pub(crate) half_open: usize,
    /// Of clients, registered or not.
    pub(crate) clients: usize,
    /// Of those, how many may be peers.
    pub(crate) peers: usize,
    descriptors: usize,
}

impl Room {
    /// That of this process.
    pub(crate) fn here() -> Self {
        let room = Self::of(descriptors(&fs::read_to_string(LIMITS).unwrap_or_default()));
        if room.clients < MAX_CLIENTS {
            log::info!("{}", room.text());
        }
        room
    }

    fn of(descriptors: usize) -> Self {
        let half_open = (descriptors / 8).clamp(1, MAX_HALF_OPEN);
        let clients = descriptors.saturating_sub(OWN + half_open).clamp(FOR_QUESTIONS + 1, MAX_CLIENTS);
        Self { half_open, clients, peers: clients - FOR_QUESTIONS, descriptors }
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        format!(
            "the master may open {} files, which is room for {} peers: raise `ulimit -n` (LimitNOFILE of a service) \
             where it runs",
            self.descriptors, self.peers
        )
    }
}

/// The soft limit in the table of the system; as many as anybody needs, if it says nothing.
fn descriptors(table: &str) -> usize {
    let line = table.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    soft.and_then(|soft| soft.parse().ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_has_room_whatever_the_limit_is() {
        let table =
            "Max processes   1  2  processes\nMax open files            64           1024       files\n";
        assert_eq!(
            Room::of(descriptors(table)),
            Room { half_open: 8, clients: 44, peers: 40, descriptors: 64 }
        );
        for none in ["", "Max open files unlimited unlimited files"] {
            let room = Room::of(descriptors(none));
            assert_eq!((room.half_open, room.clients), (MAX_HALF_OPEN, MAX_CLIENTS));
        }
        for few in OWN + FOR_QUESTIONS + 3..2000 {
            let room = Room::of(few);
            assert!(room.peers >= 1 && OWN + room.half_open + room.clients <= few.max(20), "{room:?}");
        }
    }
}
