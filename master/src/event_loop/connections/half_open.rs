//! Judges the first bytes of a connection.

use pccl_protocol::RunId;
use tinysockets::{
    handshake::{ANSWER_BYTES, Door, Visit},
    key::RunKey,
    preamble::{Preamble, Refusal, Role},
    seal::Seal,
    ticket::Lock,
};

/// The judgement on a connection after some more of its bytes.
#[derive(Debug)]
pub(crate) enum Judgement {
    /// It is not known yet whose it is.
    Incomplete,
    /// The same, and this is to be sent at once.
    Answer([u8; ANSWER_BYTES]),
    /// Nobody to talk to. `None`: it does not even speak the protocol and gets no answer.
    Unwanted(Option<Refusal>, String),
    /// Somebody with the key of the run, if there is one: whose bytes travel under this seal from now on. It is a
    /// client, unless there is something against that.
    Known(Option<Box<Seal>>, Option<(Refusal, String)>),
}

/// The first bytes of one connection as far as they have arrived.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    door: Door,
}

impl HalfOpen {
    /// Of a connection to a run with this lock, or without one.
    pub(crate) fn new(lock: Option<Lock>) -> Self {
        Self { door: Door::new(lock) }
    }

    /// The run key that its first message has proven.
    pub(crate) fn opened_by(&self) -> Option<&RunKey> {
        self.door.opened_by()
    }

    /// Where the next bytes are to be put.
    pub(crate) fn missing(&mut self) -> &mut [u8] {
        self.door.missing()
    }

    /// Judges after this number of bytes was put there.
    pub(crate) fn received(&mut self, bytes: usize, run: RunId) -> Judgement {
        match self.door.received(bytes) {
            Visit::Nothing => Judgement::Incomplete,
            Visit::Answer(bytes) => Judgement::Answer(bytes),
            Visit::Unwanted(refusal, why) => Judgement::Unwanted(refusal, why),
            Visit::Known(preamble, seal) => Judgement::Known(seal, check(&preamble, run)),
        }
    }
}

/// Why this preamble, although valid, is not one for a master of `run`.
fn check(preamble: &Preamble, run: RunId) -> Option<(Refusal, String)> {
    if preamble.role != Role::Control {
        return Some((
            Refusal::WrongRole,
            format!("it asks for the role {:?}, a master serves Control only", preamble.role),
        ));
    }
    if preamble.to != 0 {
        return Some((
            Refusal::WrongDestination,
            format!("it means to reach peer {:032x}, this is a master", preamble.to),
        ));
    }
    // One that stands by may know no run yet.
    if preamble.run != 0 && run.0 != 0 && preamble.run != run.0 {
        return Some((
            Refusal::WrongRun,
            format!("it belongs to run {}, this is run {run}", RunId(preamble.run)),
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinysockets::key::RunKey;

    const RUN: RunId = RunId(77);

    /// Followers bytes as far as they are wanted, and says what the last of them led to.
    fn feed(half_open: &mut HalfOpen, bytes: &[u8]) -> Judgement {
        let mut judgement = Judgement::Incomplete;
        let mut rest = bytes;
        while !rest.is_empty() && matches!(judgement, Judgement::Incomplete) {
            let place = half_open.missing();
            let count = place.len().min(rest.len());
            place[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            judgement = half_open.received(count, RUN);
        }
        judgement
    }

    fn judge(preamble: Preamble) -> Judgement {
        feed(&mut HalfOpen::new(None), &preamble.encode())
    }

    fn refusal(judgement: Judgement) -> Option<Refusal> {
        match judgement {
            Judgement::Unwanted(refusal, _) => refusal,
            Judgement::Known(_, Some((refusal, _))) => Some(refusal),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_control_connections_to_this_run_are_clients() {
        let good = Preamble::new(Role::Control);
        assert!(matches!(judge(good), Judgement::Known(None, None)));
        assert!(matches!(judge(Preamble { run: RUN.0, ..good }), Judgement::Known(None, None)));
        assert_eq!(refusal(judge(Preamble { run: 78, ..good })), Some(Refusal::WrongRun));
        assert_eq!(refusal(judge(Preamble { to: 1, ..good })), Some(Refusal::WrongDestination));
        assert_eq!(refusal(judge(Preamble::new(Role::Data))), Some(Refusal::WrongRole));
        assert_eq!(refusal(judge(Preamble { version: 9, ..good })), Some(Refusal::UnsupportedVersion));
        assert_eq!(refusal(judge(Preamble { security: 2, ..good })), Some(Refusal::UnsupportedSecurity));
        assert_eq!(refusal(judge(Preamble { security: 1, ..good })), Some(Refusal::NoKey));
        let mut keyed = HalfOpen::new(Some(RunKey::from_bytes([1; 32]).into()));
        assert_eq!(refusal(feed(&mut keyed, &good.encode())), Some(Refusal::KeyWanted));
    }

    #[test]
    fn nothing_behind_a_preamble_is_taken() {
        let mut half_open = HalfOpen::new(None);
        let preamble = Preamble::new(Role::Control).encode();
        let (last, bytes) = preamble.split_last().expect("not empty");
        for byte in bytes {
            assert!(matches!(feed(&mut half_open, &[*byte]), Judgement::Incomplete));
        }
        assert_eq!(half_open.missing().len(), 1);
        assert!(matches!(feed(&mut half_open, &[*last]), Judgement::Known(None, None)));
        assert!(half_open.missing().is_empty());
    }

    #[test]
    fn garbage_is_known_at_its_first_byte() {
        assert_eq!(refusal(feed(&mut HalfOpen::new(None), b"G")), None);
        assert_eq!(refusal(feed(&mut HalfOpen::new(None), &[0; 8])), None);
    }
}
