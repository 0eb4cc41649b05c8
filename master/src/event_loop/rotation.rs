//! Changing the run keys while the run goes on. The members hear of the new ones; every other connection goes that was
//! opened by a key which is not accepted any more, so that nobody hears of the new key who has only an old one.

use super::{
    EventLoop,
    connections::conn::{Conn, Phase},
};
use crate::state::{ClientKey, Input};
use pccl_protocol::{KickCode, KickReason, PeerId};
use tinysockets::{
    key::{AcceptedKeys, KeyError},
    preamble::Refusal,
};

/// The reason that a client with an old key is told.
const OLD_KEY: &str = "the run has another key, and the one with which this connection was opened is not accepted any \
                       more";

impl EventLoop {
    /// Accepts other run keys from now on, and tells all peers. Some are dropped before, so that they do not hear.
    pub(crate) fn rotate_key(
        &mut self,
        keys: Result<AcceptedKeys, KeyError>,
        dropped: &[&str],
    ) -> Result<String, String> {
        let keys = keys.map_err(|error| error.to_string())?.of_run(&self.run_name);
        if self.standing.is_some() && !dropped.is_empty() {
            return Err("this master stands by: only the acting one drops peers".into());
        }
        if let Some(done) = self.change_keys_of_standing(&keys) {
            self.close_those_with_old_keys(&keys);
            return Ok(done);
        }
        let Some(issuer) = &self.tickets else {
            return Err("this run has no key: it has to be started again to get one".into());
        };
        let is_in_use = issuer.accepted().used == keys.used;
        if !dropped.is_empty() {
            check_lock_out(&keys, is_in_use)?;
        }
        let locked_out = self.drop_before_rotation(dropped)?;
        let closed = self.close_those_with_old_keys(&keys);
        let told = self.change_keys(&keys);
        // Not before: what follows from it may be that somebody with an old key is let in, and told.
        self.settle();
        let first = if is_in_use { "the run key stays" } else { "the run has a new key" };
        let second =
            if keys.second.is_some() { "another one is still accepted" } else { "no other one is accepted" };
        let mut done = format!("{locked_out}{first}, {second}; peers that were told: {told}");
        if closed > 0 {
            done += &format!("; connections of others with an old key that were closed: {closed}");
        }
        log::warn!("an operator changes the run keys: {done}");
        // The state knows nothing of keys, so nobody could do this once more.
        self.write_snapshot();
        Ok(done)
    }

    /// Drops these peers, all or none. Returns it in words.
    fn drop_before_rotation(&mut self, dropped: &[&str]) -> Result<String, String> {
        let found: Result<Vec<(PeerId, String)>, String> =
            dropped.iter().map(|peer| self.state.find_peer(peer)).collect();
        let mut done = String::new();
        for (peer, name) in found? {
            log::warn!("an operator locks {name} out");
            let client = self.state.client_of(peer);
            self.take(Input::Kick { peer, reason: "the run has another key".into() });
            // Its connection may still have to be flushed.
            if let (Some(client), Some(issuer)) = (client, &mut self.tickets) {
                issuer.forget(client);
            }
            done += &format!("removed {name}; ");
        }
        Ok(done)
    }

    /// How many were told.
    fn change_keys(&mut self, keys: &AcceptedKeys) -> usize {
        let now_ms = self.now().millis();
        let told = self.tickets.as_mut().map(|issuer| issuer.change_keys(keys.clone(), now_ms));
        let told = told.unwrap_or_default();
        let count = told.len();
        let mut slow = Vec::new();
        for (client, packet) in told {
            self.send(&[client], &packet, &mut slow);
        }
        for client in slow {
            self.take(Input::SlowReader { client });
        }
        count
    }

    /// Closes all connections that were opened by other keys, but for those of members. How many there were.
    fn close_those_with_old_keys(&mut self, keys: &AcceptedKeys) -> usize {
        let is_member = |key| self.tickets.as_ref().is_some_and(|issuer| issuer.is_member(ClientKey(key)));
        let has_old_key = |conn: &Conn| {
            matches!(conn.phase, Phase::Client(_))
                && conn.opened_by.as_ref().is_some_and(|opened_by| !keys.accepts(opened_by))
        };
        let old = self.conns.iter().filter(|(key, conn)| has_old_key(conn) && !is_member(**key));
        let old: Vec<u64> = old.map(|(key, _)| *key).collect();
        for &key in &old {
            if let Some(conn) = self.conns.get(&key) {
                log::info!("{}: closed, {OLD_KEY}", conn.remote);
            }
            if self.standing.is_some() {
                self.guest_has_gone(key);
                self.close(key);
            } else if self.is_standby(key) {
                self.lose_standby(key, OLD_KEY);
                self.remove(key);
            } else {
                let reason = KickReason::new(KickCode::Operator, OLD_KEY);
                self.take(Input::Refused { client: ClientKey(key), reason });
            }
        }
        old.len()
    }

    /// Why a connection that has proven a run key is not to be served all the same: that key may have gone between the
    /// two halves of its handshake.
    pub(crate) fn objection_to_key(&self, key: u64) -> Option<(Refusal, String)> {
        let Some(Phase::HalfOpen(half_open, _)) = self.conns.get(&key).map(|conn| &conn.phase) else {
            return None;
        };
        let opened_by = half_open.opened_by()?;
        let is_accepted = self.lock.as_ref().is_none_or(|lock| lock.accepted().accepts(opened_by));
        (!is_accepted).then(|| (Refusal::WrongKey, "its run key is not accepted any more".to_owned()))
    }
}

/// Whether a peer that is dropped would be locked out.
fn check_lock_out(keys: &AcceptedKeys, is_in_use: bool) -> Result<(), String> {
    if is_in_use {
        return Err("nobody is locked out by the key that the run has already: the peer that is dropped knows it; the \
                    first line of the file has to be a new key"
            .into());
    }
    if keys.second.is_some() {
        return Err(
            "nobody is locked out while a second key is accepted: the peer that is dropped may have it; the \
                    file has to have one line, the new key"
                .into(),
        );
    }
    Ok(())
}
