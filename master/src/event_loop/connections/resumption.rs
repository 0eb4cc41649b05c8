//! Connections that end while the peer behind them goes on: its place, and what is to be written to it, is kept, and
//! another connection takes it over. The state hears that a peer is away, and that it is back; of the packets it
//! notices nothing, see [`pccl_protocol::Return`].

use super::conn::{Conn, Phase};
use super::frame::frame;
use crate::event_loop::EventLoop;
use crate::event_loop::LoopEnd;
use crate::event_loop::connections::reading::Progress;
use crate::state::{ClientKey, Input};
use pccl_protocol::{C2m, KickCode, KickReason, M2c, PeerId, Received, Return, Returned};
use tinysockets::throttle::Network;

impl EventLoop {
    /// The connection of a client has ended. Whether its place is kept.
    pub(crate) fn keep_place(&mut self, key: u64, text: &str) -> bool {
        let client = ClientKey(key);
        let is_client = |conn: &Conn| matches!(conn.phase, Phase::Client(_)) && !conn.overflowed;
        if !self.conns.get(&key).is_some_and(is_client)
            || !self.state.may_return(client)
            || self.stop_deadline.is_some()
        {
            return false;
        }
        self.give_room(key);
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.away = true;
            self.reactor.remove(key, &mut conn.stream);
        }
        let with_master = self.has_slept();
        self.take(Input::Away { client, text: text.to_owned(), with_master });
        true
    }

    /// Deals with what is about connections and their packets, and counts and gives back all others.
    pub(crate) fn take_about_connection(&mut self, key: u64, packet: C2m) -> Result<C2m, Progress> {
        if self.standing.is_some() {
            self.answer_guest(key, packet);
            return Err(Progress::More);
        }
        if self.is_standby(key) {
            return Err(self.take_of_standby(key, &packet));
        }
        match packet {
            C2m::Return(asked) => {
                self.take_over(key, asked);
                Err(Progress::Drained)
            }
            C2m::StandBy(asked) => {
                self.take_standby(key, asked);
                Err(Progress::More)
            }
            C2m::Register(_) if self.is_second_run().is_some() => {
                self.send_to_other_run(key);
                Err(Progress::Drained)
            }
            C2m::Register(_) if self.state.registered().count() >= self.room.peers => {
                let reason = KickReason::new(KickCode::Full, self.room.text());
                self.take(Input::Refused { client: ClientKey(key), reason });
                Err(Progress::More)
            }
            C2m::CopiesKnown(known) if self.state.is_peer(ClientKey(key)) => {
                self.take_known(key, known);
                Err(Progress::More)
            }
            C2m::CopiesKnown(known) if self.is_dropped(key) => {
                self.take_known_of_dropped(key, known);
                Err(Progress::Drained)
            }
            // A late one: enough others had promised themselves before.
            C2m::Promise(_) if self.state.is_peer(ClientKey(key)) => Err(Progress::More),
            C2m::Received(Received { count }) if self.state.is_peer(ClientKey(key)) => {
                let Some(conn) = self.conns.get_mut(&key) else { return Err(Progress::Drained) };
                if !conn.queue.acknowledge(count) {
                    let error = format!("says that {count} packets have come, and fewer have left");
                    self.take(Input::Malformed { client: ClientKey(key), error });
                    return Err(Progress::Drained);
                }
                self.record_acknowledged(ClientKey(key), count);
                let held_until = self.held_until();
                let Some(conn) = self.conns.get_mut(&key) else { return Err(Progress::Drained) };
                let answer = M2c::Received(Received { count: conn.received });
                // A master that takes over must know these packets before the peer lets go of them.
                conn.queue.push(frame(&answer).held_until(held_until));
                self.reactor.mark_dirty(key);
                Err(Progress::More)
            }
            packet => {
                if let Some(conn) = self.conns.get_mut(&key) {
                    conn.received += 1;
                }
                Ok(packet)
            }
        }
    }

    /// A packet of somebody who stands by.
    fn take_of_standby(&mut self, key: u64, packet: &C2m) -> Progress {
        match packet {
            C2m::Appended(appended) if self.take_appended(key, *appended) => Progress::More,
            other => {
                self.lose_standby(key, &format!("{} has no place here", other.name()));
                self.remove(key);
                Progress::Drained
            }
        }
    }

    /// A connection wants to take the place of the one that a peer had.
    pub(crate) fn take_over(&mut self, key: u64, asked: Return) {
        let term = self.term();
        // Only a member can know of a successor, and without a journal there is none.
        if asked.term > term && self.replication.is_some() && self.is_of_member(&asked) {
            let text =
                format!("a peer knows a master of term {}, this one was that of term {term}", asked.term);
            self.ends_with = Some(LoopEnd::Superseded(text));
            return;
        }
        if let Some(why) = self.outdated(&asked) {
            let text =
                self.replication.as_mut().map_or_else(String::new, |replication| replication.set_aside(&why));
            self.ends_with = Some(LoopEnd::Outdated(text));
            return;
        }
        match self.place_of(key, &asked) {
            Ok(old) => self.move_connection(key, old, &asked),
            Err(reason) if self.wants_word_of(&asked) => self.ask_dropped(key, asked.peer, reason),
            Err(reason) => self.take(Input::Refused { client: ClientKey(key), reason }),
        }
    }

    /// A sign that this master goes on from an older copy of its journal, or from one whose end is lost: a peer has
    /// more of it than that holds. A peer that has come back once says nothing new.
    fn outdated(&self, asked: &Return) -> Option<String> {
        let replication = self.replication.as_ref().filter(|replication| !replication.recalled.is_empty())?;
        if asked.run != self.run || !self.is_proved(asked) {
            return None;
        }
        let peer = asked.peer;
        let Some(client) = self.state.client_of(peer) else {
            return replication
                .is_to_be_given(peer, self.state.drawn())
                .then(|| format!("peer {peer} has registered behind its end"));
        };
        let conn = self.conns.get(&client.0).filter(|_| replication.recalled.contains(&client.0))?;
        let is_behind = !conn.overflowed && !conn.queue.has_sent(asked.received);
        is_behind.then(|| format!("peer {peer} has received {} packets, more than it holds", asked.received))
    }

    /// Whether something waits until a peer knows which copies are complete, be it a peer of this run still or not: a
    /// refusal would wait for that as well.
    fn wants_word_of(&self, asked: &Return) -> bool {
        let leader = self.replication.as_ref().map(|replication| &replication.leader);
        let is_missing = leader.is_some_and(|leader| leader.missing().contains(&asked.peer));
        is_missing && asked.run == self.run && self.is_proved(asked)
    }

    /// One that was dropped is told of the copies, and refused when it knows them.
    fn ask_dropped(&mut self, key: u64, peer: PeerId, reason: KickReason) {
        if let Some(copies) = self.copies_to_tell() {
            self.tell_ahead(key, frame(&copies));
        }
        if let Some(replication) = &mut self.replication {
            replication.followers.dropped.insert(key, (peer, reason));
        }
    }

    /// Whether a member of this run says it, who proves that if it can.
    fn is_of_member(&self, asked: &Return) -> bool {
        asked.run == self.run && self.is_proved(asked) && self.state.client_of(asked.peer).is_some()
    }

    fn is_proved(&self, asked: &Return) -> bool {
        self.tickets.as_ref().is_none_or(|issuer| issuer.is_proof(asked.peer, asked.proof.as_ref()))
    }

    /// The connection whose place this one takes, or why it takes none.
    fn place_of(&self, key: u64, asked: &Return) -> Result<u64, KickReason> {
        let protocol = |text: String| Err(KickReason::new(KickCode::Protocol, text));
        let peer = asked.peer;
        if self.state.is_peer(ClientKey(key)) {
            return protocol("a registered peer that comes back over its own connection".into());
        }
        if asked.run != self.run || !self.is_proved(asked) {
            return protocol(format!("it says that it is peer {peer}, and does not prove it"));
        }
        let gone = |text: &str| KickReason::new(KickCode::Silent, format!("{peer} {text}"));
        let old =
            self.state.client_of(peer).ok_or_else(|| gone("was dropped, or did not come back in time"))?;
        let conn = self.conns.get(&old.0).filter(|conn| matches!(conn.phase, Phase::Client(_)));
        let conn = conn.ok_or_else(|| gone("is being dropped"))?;
        let knows_more = conn.at_most.is_some_and(|(term, most)| asked.term > term || asked.received > most);
        if knows_more || conn.overflowed || !conn.queue.can_rewind(asked.received) {
            return Err(gone("cannot go on: what it has not received is not kept any more"));
        }
        Ok(old.0)
    }

    fn move_connection(&mut self, key: u64, old: u64, asked: &Return) {
        // The end of the connection before may not have been noticed. Packets that came over it and were not looked at
        // come again.
        let is_away = self.conns.get(&old).is_some_and(|conn| conn.away);
        if !is_away && !self.keep_place(old, "another connection takes its place") {
            let reason = KickReason::new(KickCode::Silent, "this run keeps no place for whoever is away");
            return self.take(Input::Refused { client: ClientKey(key), reason });
        }
        self.give_room(key);
        let (held_until, term, acting) = (self.held_until(), self.term(), self.copy());
        // Nobody has registered over the new one.
        self.take(Input::Disconnected { client: ClientKey(key), text: String::new() });
        let (Some(mut new), Some(conn)) = (self.conns.remove(&key), self.conns.get_mut(&old)) else { return };
        if let Err(error) = self.reactor.rekey(key, old, &mut new.stream) {
            log::warn!("{}: cannot take the place of another connection: {error}", new.remote);
            return;
        }
        conn.queue.rewind(asked.received);
        conn.at_most = None;
        let answer = Returned { received: conn.received, term, acting };
        conn.queue.push_first(frame(&M2c::Returned(answer)).held_until(held_until));
        conn.take_over(new);
        if let Some(replication) = &mut self.replication {
            replication.recalled.remove(&old);
        }
        if let Some(copies) = self.copies_to_tell() {
            self.tell_ahead(old, frame(&copies));
        }
        if let Some(conn) = self.conns.get(&old) {
            self.throttle.give_back(Network::of(conn.remote.ip()));
        }
        self.take(Input::Returned { client: ClientKey(old) });
    }
}
