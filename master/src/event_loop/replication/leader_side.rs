//! Masters that stand by for this one: each is fed with what the journal is made of, and what follows from a turn
//! leaves only when all complete copies have the turn. [`crate::leadership`] says which they are.

use crate::event_loop::EventLoop;
use crate::event_loop::connections::conn::Conn;
use crate::event_loop::connections::frame::frame;
use crate::event_loop::replication::successor::Inquiry;
use crate::{
    journal::{Entry, FORMAT, Opening, put},
    state::{ClientKey, Input},
};
use pccl_protocol::{
    Append, Appended, Copies, CopiesKnown, CopyId, Host, KickCode, KickReason, M2c, PeerId, StandBy, Standby,
    StatusLead, Term, Text,
    limits::{APPEND_BYTES, STANDBY_SILENCE_MS},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::{Duration, Instant},
};
use tinysockets::address::HostPort;

/// Bytes that may wait for one standby; one that is further behind is given up.
const MAX_BEHIND_BYTES: usize = 128 << 20;
/// How often a standby hears that the master is there.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);
/// How long nothing may come from a standby.
pub(crate) const SILENCE: Duration = Duration::from_millis(STANDBY_SILENCE_MS);

/// A connection of somebody who stands by.
#[derive(Debug)]
struct Follower {
    standby: Standby,
    heard: Instant,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    connected: BTreeMap<u64, Follower>,
    /// Connections that are to be fed from the end of this turn on.
    joining: BTreeMap<u64, Standby>,
    /// The entries of this turn.
    news: Vec<u8>,
    /// The list of complete copies is another one.
    changed: bool,
    last_sent: Option<Instant>,
    /// Connections for which something is held.
    held: BTreeSet<u64>,
    /// How far what was done has left.
    released: u64,
    /// Connections of peers that were dropped, and whose word is wanted; how each is refused then.
    pub(crate) dropped: BTreeMap<u64, (PeerId, KickReason)>,
    /// Looks whether another master acts.
    pub(crate) inquiry: Inquiry,
}

impl Followers {
    pub(crate) fn record(&mut self, entry: &Entry<'_>) {
        if !self.connected.is_empty()
            && let Err(error) = put(&mut self.news, entry)
        {
            log::error!("internal error: those who stand by cannot get it: {error}");
        }
    }

    pub(crate) fn take_changed(&mut self) -> bool {
        mem::take(&mut self.changed)
    }

    /// The places of those who stand by, or did a moment ago: another one of them may act.
    pub(crate) fn note_places(&mut self, copies: &Copies) {
        self.inquiry.note_places(&copies.standbys);
    }
}

impl EventLoop {
    /// Whether this is a connection of somebody who stands by.
    pub(crate) fn is_standby(&self, key: u64) -> bool {
        let followers = self.replication.as_ref().map(|replication| &replication.followers);
        followers.is_some_and(|followers| {
            followers.connected.contains_key(&key) || followers.joining.contains_key(&key)
        })
    }

    /// The term in which this master acts.
    pub(crate) fn term(&self) -> Term {
        self.replication.as_ref().map_or(Term(0), |replication| replication.leader.term())
    }

    /// The copy of this master; that of nobody if it never has another one.
    pub(crate) fn copy(&self) -> CopyId {
        self.replication.as_ref().map_or(CopyId(0), |replication| replication.leader.copy())
    }

    /// The number that says when what follows from this turn may leave.
    pub(crate) fn held_until(&self) -> u64 {
        let leader = self.replication.as_ref().map(|replication| &replication.leader);
        leader.filter(|leader| leader.has_copies()).map_or(0, |leader| leader.turn() + 1)
    }

    /// A connection is that of somebody who wants to stand by.
    pub(crate) fn take_standby(&mut self, key: u64, asked: StandBy) {
        let client = ClientKey(key);
        let refuse = |text: &str| Input::Refused {
            client,
            reason: KickReason::new(KickCode::Protocol, text.to_owned()),
        };
        if self.state.is_peer(client) {
            return self.take(refuse("a registered peer that wants to stand by"));
        }
        let Some(remote) = self.conns.get(&key).map(|conn| conn.remote) else { return };
        if asked.run.0 != 0 && asked.run != self.run {
            let host = asked.advertised_host.map_or_else(|| remote.ip().to_string(), |host| host.to_string());
            self.note_other_run(asked.run, HostPort::new(&host, asked.port));
            return self.take(refuse("this is the master of another run"));
        }
        let Some(replication) = self.replication.as_mut().filter(|_| self.accepts_standbys) else {
            return self.take(refuse("this master takes nobody that stands by for it (--accept-standbys)"));
        };
        let host = asked.advertised_host.unwrap_or_else(|| Host::new(remote.ip().to_string()));
        let standby = Standby { copy: asked.copy, hosts: host.into(), port: asked.port };
        log::info!("{remote} stands by for this master, with the copy {}", standby.copy);
        replication.followers.joining.insert(key, standby);
        // The state has nothing to do with it.
        self.take(Input::Disconnected { client, text: "stands by".into() });
    }

    /// A packet of somebody who stands by. `false`: it has no place.
    pub(crate) fn take_appended(&mut self, key: u64, appended: Appended) -> bool {
        let Some(replication) = &mut self.replication else { return false };
        let Some(follower) = replication.followers.connected.get_mut(&key) else { return false };
        follower.heard = Instant::now();
        let copy = follower.standby.copy;
        match replication.leader.has(copy, appended.turn) {
            Ok(becomes_complete) => {
                if becomes_complete {
                    log::info!(
                        "the copy {copy} of {} is complete",
                        follower.standby.hosts.listed(follower.standby.port)
                    );
                }
                replication.followers.changed |= becomes_complete;
                true
            }
            Err(error) => {
                log::warn!("the standby with the copy {copy} {error}");
                false
            }
        }
    }

    /// A connection of somebody who stands by has ended.
    pub(crate) fn lose_standby(&mut self, key: u64, why: &str) {
        let Some(replication) = &mut self.replication else { return };
        replication.followers.joining.remove(&key);
        let Some(follower) = replication.followers.connected.remove(&key) else { return };
        let Standby { copy, hosts, port } = &follower.standby;
        log::warn!("{} with the copy {copy} does not stand by any more: {why}", hosts.listed(*port));
        replication.followers.changed |= replication.leader.lose(*copy);
        if replication.followers.connected.is_empty() {
            replication.followers.news.clear();
        }
    }

    /// A peer knows which copies are complete.
    pub(crate) fn take_known(&mut self, key: u64, known: CopiesKnown) {
        let peer = self.state.peer_of(ClientKey(key));
        if let (Some(replication), Some(peer)) = (&mut self.replication, peer) {
            replication.leader.know(peer, known);
        }
    }

    /// Whether this is the connection of one that was dropped, and whose word is wanted.
    pub(crate) fn is_dropped(&self, key: u64) -> bool {
        self.replication.as_ref().is_some_and(|replication| replication.followers.dropped.contains_key(&key))
    }

    /// One that was dropped knows which copies are complete, and is refused now.
    pub(crate) fn take_known_of_dropped(&mut self, key: u64, known: CopiesKnown) {
        let Some(replication) = &mut self.replication else { return };
        let Some((peer, reason)) = replication.followers.dropped.remove(&key) else { return };
        replication.leader.know(peer, known);
        self.take(Input::Refused { client: ClientKey(key), reason });
    }

    /// Tells all peers which copies are complete. That does not wait for anything: others wait for their answers.
    pub(crate) fn tell_copies(&mut self, copies: &Copies) {
        let list = frame(&M2c::Copies(copies.clone()));
        if let Some(replication) = &mut self.replication {
            replication.followers.note_places(copies);
        }
        let keys: Vec<u64> = self.conns.keys().copied().collect();
        for key in keys {
            if self.state.is_peer(ClientKey(key)) {
                self.tell_ahead(key, list.clone());
            }
        }
    }

    /// The list of complete copies for a peer that may not know it, if there is any to tell.
    pub(crate) fn copies_to_tell(&self) -> Option<M2c> {
        let leader = self.replication.as_ref().map(|replication| &replication.leader)?;
        leader.is_told().then(|| M2c::Copies(leader.copies()))
    }

    pub(crate) fn tell_ahead(&mut self, key: u64, frame: tinysockets::write_queue::Frame) {
        if let Some(conn) = self.conns.get_mut(&key).filter(|conn| !conn.away) {
            conn.queue.push_ahead(frame);
            self.reactor.mark_dirty(key);
        }
    }

    /// At the end of a turn: everybody who stands by is told what has happened in it.
    pub(crate) fn replicate(&mut self) {
        let Some(replication) = &mut self.replication else { return };
        let now = Instant::now();
        let news = mem::take(&mut replication.followers.news);
        let is_due =
            replication.followers.last_sent.is_none_or(|last| now.duration_since(last) >= SIGN_OF_LIFE);
        let keys: Vec<u64> = replication.followers.connected.keys().copied().collect();
        if !keys.is_empty() && (is_due || !news.is_empty()) {
            replication.followers.last_sent = Some(now);
            for key in keys {
                self.feed(key, &news);
            }
        }
        self.open_feeds();
    }

    /// Those who have come in this turn get all that is known.
    fn open_feeds(&mut self) {
        let Some(replication) = &mut self.replication else { return };
        for (key, standby) in mem::take(&mut replication.followers.joining) {
            let Some(snapshot) = self.snapshot() else { return self.close(key) };
            let Some(replication) = &mut self.replication else { return };
            if let Err(text) = replication.leader.join(standby.clone(), self.state.voters()) {
                log::warn!("{} cannot stand by: {text}", standby.hosts.listed(standby.port));
                self.close(key);
                continue;
            }
            replication.followers.connected.insert(key, Follower { standby, heard: Instant::now() });
            let opening = Opening { format: FORMAT.into(), settings: self.state.options().clone(), snapshot };
            let mut bytes = Vec::new();
            match put(&mut bytes, &opening) {
                Ok(()) => self.feed(key, &bytes),
                Err(error) => {
                    log::error!("internal error: what this master knows cannot be sent: {error}");
                    self.close(key);
                }
            }
        }
    }

    fn feed(&mut self, key: u64, bytes: &[u8]) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let pieces = bytes.chunks(APPEND_BYTES);
        // No bytes at all are a sign of life.
        let nothing = bytes.is_empty().then_some(&[][..]);
        for piece in pieces.chain(nothing) {
            conn.queue.push(frame(&M2c::Append(Append(piece.to_vec()))));
        }
        self.reactor.mark_dirty(key);
        if conn.queue.waiting_bytes() > MAX_BEHIND_BYTES + bytes.len() {
            self.give_up_standby(key, "it is too far behind");
        }
    }

    fn give_up_standby(&mut self, key: u64, why: &str) {
        self.lose_standby(key, why);
        self.remove(key);
    }

    /// Standbys that are silent are not waited for any longer.
    pub(crate) fn judge_standbys(&mut self) {
        let Some(replication) = &self.replication else { return };
        let now = Instant::now();
        let is_silent = |follower: &Follower| now.saturating_duration_since(follower.heard) > SILENCE;
        let silent = replication.followers.connected.iter().filter(|(_, follower)| is_silent(follower));
        let silent: Vec<u64> = silent.map(|(key, _)| *key).collect();
        for key in silent {
            self.give_up_standby(key, "it is silent");
        }
    }

    /// This process stood still: the silence of others in that time says nothing.
    pub(crate) fn excuse_standbys(&mut self, late: Duration) {
        if let Some(replication) = &mut self.replication {
            replication.followers.connected.values_mut().for_each(|follower| follower.heard += late);
        }
    }

    /// How far what was done may leave; what waited for that is written.
    pub(crate) fn release(&mut self) -> u64 {
        let Some(replication) = &mut self.replication else { return u64::MAX };
        let released = replication.leader.released();
        if released != mem::replace(&mut replication.followers.released, released) {
            for key in mem::take(&mut replication.followers.held) {
                self.reactor.mark_dirty(key);
            }
        }
        released
    }

    /// Something waits for a connection.
    pub(crate) fn note_held(&mut self, key: u64) {
        if let Some(replication) = &mut self.replication {
            replication.followers.held.insert(key);
        }
    }

    /// This master ends, and with it its run: there is nothing to take over.
    pub(crate) fn dismiss_standbys(&mut self) {
        self.end_turn();
        let reason = KickReason::new(KickCode::MasterStopping, "the run has ended");
        let keys = self
            .replication
            .as_ref()
            .map(|replication| replication.followers.connected.keys().copied().collect::<Vec<u64>>());
        for key in keys.unwrap_or_default() {
            if let Some(conn) = self.conns.get_mut(&key) {
                conn.queue.push(frame(&M2c::Kicked(reason.clone())));
            }
        }
    }

    /// The leadership of the run, for its status.
    pub(crate) fn lead(&self) -> StatusLead {
        let copies = self.replication.as_ref().map(|replication| replication.leader.copies());
        let standbys = copies.map(|copies| copies.standbys).unwrap_or_default();
        let journal = self.replication.as_ref().and_then(|it| it.journal_status());
        // One that was superseded and does not know it must not say that it leads.
        let is_in_doubt =
            self.replication.as_ref().is_some_and(|replication| replication.followers.inquiry.is_in_doubt());
        let second = self.is_second_run().map(Text::new);
        let acts = !is_in_doubt && second.is_none();
        StatusLead {
            term: self.term(),
            acts,
            standbys,
            text: second.or_else(|| self.what_is_held()),
            journal,
        }
    }

    /// The things that the master waits for beside its peers, in words.
    pub(crate) fn what_is_held(&self) -> Option<Text> {
        let leader = &self.replication.as_ref()?.leader;
        if !leader.is_letting_go() {
            return None;
        }
        let missing: Vec<String> = leader.missing().iter().map(ToString::to_string).collect();
        Some(Text::new(format!(
            "another master could take over: nothing leaves until half of the members know the list of those who \
             still may; missing: {}",
            missing.join(", ")
        )))
    }
}

impl Conn {
    /// Writes what may leave, see [`Conn::flush`].
    pub(crate) fn flush_released(&mut self, released: u64, now: Instant) -> bool {
        self.queue.release(released);
        self.flush(now)
    }
}
