//! Where the master of the run may be: one acts, and others may stand by for it.

use parking_lot::Mutex;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use tinysockets::{address::HostPort, address::canonical};

/// See the module's documentation. All sessions of a communicator share what they have learned.
#[derive(Debug, Clone)]
pub(crate) struct Masters(Arc<Mutex<Vec<Place>>>);

#[derive(Debug, Clone)]
struct Place {
    at: HostPort,
    /// The address at which it was reached last, or the one that it is.
    address: Option<SocketAddr>,
    /// The user has named it; others are heard of.
    is_named: bool,
}

impl Place {
    fn new(at: HostPort, is_named: bool) -> Self {
        let ip: Option<IpAddr> = at.host.parse().ok();
        let address = ip.map(|ip| canonical(SocketAddr::new(ip, at.port)));
        Self { at, address, is_named }
    }
}

impl Masters {
    /// As the user says.
    pub(crate) fn new(places: Vec<HostPort>) -> Self {
        Self(Arc::new(Mutex::new(places.into_iter().map(|place| Place::new(place, true)).collect())))
    }

    /// All of them; the one that acted last comes first.
    pub(crate) fn all(&self) -> Vec<HostPort> {
        self.0.lock().iter().map(|place| place.at.clone()).collect()
    }

    /// There may be one here, too.
    pub(crate) fn note(&self, place: HostPort) {
        let (place, mut all) = (Place::new(place, false), self.0.lock());
        let is_known =
            |known: &Place| known.at == place.at || known.address.is_some() && known.address == place.address;
        if !all.iter().any(is_known) {
            all.push(place);
        }
    }

    /// A place was reached at this address. A master that was heard of by that is no other one.
    pub(crate) fn note_address(&self, place: &HostPort, address: Option<SocketAddr>) {
        let Some(address) = address.map(canonical) else { return };
        let mut all = self.0.lock();
        if let Some(known) = all.iter_mut().find(|known| known.at == *place) {
            known.address = Some(address);
        }
        let has_name = |known: &Place| known.is_named && known.address == Some(address);
        if all.iter().any(has_name) {
            all.retain(|known| known.is_named || known.address != Some(address));
        }
    }

    /// This one acts.
    pub(crate) fn note_acting(&self, place: &HostPort) {
        let mut all = self.0.lock();
        // It may be known under the name that the user has given it.
        let acting = Place::new(place.clone(), false);
        let is_it = |known: &Place| {
            known.at == acting.at || known.address.is_some() && known.address == acting.address
        };
        let acting = all.iter().position(is_it).map_or(acting, |at| all.remove(at));
        all.insert(0, acting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(masters: &Masters) -> Vec<String> {
        masters.all().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_machine_has_one_place_under_the_name_that_the_user_gave_it() {
        let [first, second] = ["h1", "h2"].map(|host| HostPort::new(host, 7));
        let masters = Masters::new(vec![first.clone(), second.clone()]);
        // Heard of before it was reached by its name, and after.
        masters.note(HostPort::new("10.0.0.1", 7));
        assert_eq!(shown(&masters), ["h1:7", "h2:7", "10.0.0.1:7"]);
        masters.note_address(&first, "[::ffff:10.0.0.1]:7".parse().ok());
        masters.note_address(&second, "10.0.0.2:7".parse().ok());
        masters.note(HostPort::new("10.0.0.2", 7));
        assert_eq!(shown(&masters), ["h1:7", "h2:7"]);
        masters.note(HostPort::new("10.0.0.2", 8));
        masters.note_acting(&HostPort::new("10.0.0.2", 7));
        assert_eq!(shown(&masters), ["h2:7", "h1:7", "10.0.0.2:8"]);
        masters.note_address(&HostPort::new("10.0.0.2", 8), "10.0.0.2:8".parse().ok());
        masters.note_acting(&HostPort::new("h9", 1));
        assert_eq!(shown(&masters), ["h9:1", "h2:7", "h1:7", "10.0.0.2:8"]);
    }
}
