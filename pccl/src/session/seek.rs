//! Looks for the master again when the connection to it has ended that something on the way may have closed. Everything
//! else goes on meanwhile: who waits for an answer waits on, and what is sent leaves over the next connection.

use super::{Shared, dial_master, open_control};
use crate::{ConnectCause, LossCause, Reason, error::End, threads::spawn, world::Identity};
use pccl_flight::{Event, What};
use pccl_protocol::{C2m, KickReason, M2c, Return, Returned, limits};
use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    queued::CloseReason,
    wire::{FRAME_HEADER_BYTES, FrameParser},
};

/// Longest time for one attempt.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Shortest and longest pause between two attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Why an attempt came to nothing.
enum Failure {
    /// Another one may succeed.
    ForNow(String),
    /// None will.
    ForGood(String),
    /// The master has dropped this peer.
    Kicked(KickReason),
}

/// The connection to the master has ended. On the thread that read from it.
pub(super) fn connection_ended(shared: &Arc<Shared>, reason: &CloseReason) {
    let control = &shared.control;
    if control.end().is_some() {
        return;
    }
    let why: Reason<LossCause> = reason.into();
    let me = shared.told.identity();
    let grace = shared.config.master_grace.unwrap_or_else(|| {
        let comes_back = me.is_some_and(|me| me.comes_back);
        let usual =
            if comes_back { limits::JOURNAL_MASTER_GRACE_MS } else { limits::DEFAULT_MASTER_GRACE_MS };
        Duration::from_millis(usual)
    });
    let Some(me) = me.filter(|_| reason.may_be_the_way() && !grace.is_zero()) else {
        return shared.finish(End::MasterLost(why));
    };
    let (weak, because) = (Arc::downgrade(shared), why.clone());
    if let Err(error) = spawn("pccl-seek", move || run(&weak, me, grace, because)) {
        shared.finish(End::MasterLost(why.say(|why| format!("{why}; {error}"))));
    }
}

fn run(shared: &Weak<Shared>, me: Identity, grace: Duration, why: Reason<LossCause>) {
    let began = Instant::now();
    let mut pause = PAUSE.0;
    log::info!("the connection to the master ended ({why}); looking for it again");
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let control = &shared.control;
        if control.end().is_some() {
            return;
        }
        let lose = |text: &str| {
            shared.finish(End::MasterLost(why.clone().say(|why| format!("{why}; {text}"))));
        };
        match attempt(&shared, me, Instant::now() + ATTEMPT.min(grace)) {
            Ok(()) => {
                let millis = began.elapsed().as_millis();
                log::info!("connected to the master again after {millis} ms");
                shared.flight.record_with(|| {
                    Event::new(What::Note).text(format!("another connection to the master after {millis} ms"))
                });
                return;
            }
            Err(Failure::Kicked(reason)) => return shared.finish(End::Kicked(reason)),
            Err(Failure::ForGood(text)) => return lose(&text),
            Err(Failure::ForNow(text)) if began.elapsed() + pause >= grace => return lose(&text),
            Err(Failure::ForNow(text)) => {
                log::debug!("looking for the master: {text}");
                let seconds = began.elapsed().as_secs();
                shared
                    .calls
                    .note_wait(Some(format!("the master, to which there is no connection for {seconds} s")));
            }
        }
        control.pause(pause);
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Connects and takes the place of the connection that has ended.
fn attempt(shared: &Arc<Shared>, me: Identity, deadline: Instant) -> Result<(), Failure> {
    let config = &shared.config;
    let conn = dial_master(config, Some(me.run), deadline).map_err(|reason| match reason.kind() {
        // Whoever listened there has ended. One that goes on from its journal comes back.
        ConnectCause::ConnectionRefused if !me.comes_back => Failure::ForGood(reason.to_string()),
        kind if kind.is_permanent() => Failure::ForGood(reason.to_string()),
        _ => Failure::ForNow(reason.to_string()),
    })?;
    let Some(received) = shared.control.can_go_on() else {
        return Err(Failure::ForGood("more was sent than is kept for another connection".into()));
    };
    let proof = shared.told.wallet.door().map(|door| door.secret().clone());
    let asked = C2m::Return(Return { run: me.run, peer: me.peer, proof, received });
    let answer = conn.send_all(&asked.to_frame(), Some(deadline)).and_then(|()| receive_one(&conn, deadline));
    match answer {
        Ok(M2c::Returned(Returned { received })) => {
            open_control(shared, conn, received).map_err(|error| Failure::ForGood(error.to_string()))
        }
        Ok(M2c::Kicked(reason)) => Err(Failure::Kicked(reason)),
        Ok(other) => Err(Failure::ForGood(format!("the master answered a return with {}", other.name()))),
        Err(error) => Err(Failure::ForNow(format!("the master does not answer: {error}"))),
    }
}

/// The next packet of a connection that nobody else reads, and not a byte more.
fn receive_one(conn: &Conn, deadline: Instant) -> std::io::Result<M2c> {
    let malformed = |error: &dyn std::fmt::Display| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string())
    };
    let mut parser = FrameParser::new(limits::MAX_FIRST_PACKET_BYTES);
    let mut bytes = [0; FRAME_HEADER_BYTES];
    conn.recv_all(&mut bytes, Some(deadline))?;
    parser.feed(&bytes);
    loop {
        match parser.next_frame() {
            Ok(Some((kind, body))) => return M2c::from_frame(kind, body).map_err(|error| malformed(&error)),
            Ok(None) => {}
            Err(error) => return Err(malformed(&error)),
        }
        let mut byte = [0];
        conn.recv_all(&mut byte, Some(deadline))?;
        parser.feed(&byte);
    }
}
