//! Where the master of the run may be: one acts, and others may stand by for it.

use parking_lot::Mutex;
use std::sync::Arc;
use tinysockets::address::HostPort;

/// See the module's documentation. All sessions of a communicator share what they have learned.
#[derive(Debug, Clone)]
pub(crate) struct Masters(Arc<Mutex<Vec<HostPort>>>);

impl Masters {
    /// As the user says.
    pub(crate) fn new(places: Vec<HostPort>) -> Self {
        Self(Arc::new(Mutex::new(places)))
    }

    /// All of them; the one that acted last comes first.
    pub(crate) fn all(&self) -> Vec<HostPort> {
        self.0.lock().clone()
    }

    /// There may be one here, too.
    pub(crate) fn note(&self, place: HostPort) {
        let mut all = self.0.lock();
        if !all.contains(&place) {
            all.push(place);
        }
    }

    /// This one acts.
    pub(crate) fn note_acting(&self, place: &HostPort) {
        let mut all = self.0.lock();
        all.retain(|other| other != place);
        all.insert(0, place.clone());
    }
}
