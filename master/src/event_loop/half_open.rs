//! Judges the first bytes of a connection.

use pccl_protocol::RunId;
use tinysockets::preamble::{PREAMBLE_BYTES, Preamble, PreambleError, Refusal, Role, could_be_preamble};

/// What is to be done with a connection after some more of its bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The preamble is not complete yet.
    Incomplete,
    /// Not a client of this master. `None`: it does not even speak the protocol and gets no answer.
    Unwanted(Option<Refusal>, String),
    /// A client. These bytes followed the preamble.
    Client(Vec<u8>),
}

/// The preamble of one connection as far as it has arrived.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    bytes: Vec<u8>,
}

impl HalfOpen {
    /// Takes received bytes and judges. What is kept is never more than `bytes` and one incomplete preamble.
    pub(super) fn feed(&mut self, bytes: &[u8], run: RunId) -> Judgement {
        self.bytes.extend_from_slice(bytes);
        let seen = self.bytes.len().min(PREAMBLE_BYTES);
        if !could_be_preamble(&self.bytes[..seen]) {
            return Judgement::Unwanted(None, PreambleError::Magic.to_string());
        }
        let Some(preamble) = self.bytes.first_chunk::<PREAMBLE_BYTES>() else { return Judgement::Incomplete };
        match Preamble::decode(preamble) {
            Err(error) => Judgement::Unwanted(error.refusal(), error.to_string()),
            Ok(preamble) => match check(&preamble, run) {
                Some((refusal, why)) => Judgement::Unwanted(Some(refusal), why),
                None => Judgement::Client(self.bytes.split_off(PREAMBLE_BYTES)),
            },
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
    if preamble.run != 0 && preamble.run != run.0 {
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

    const RUN: RunId = RunId(77);

    fn judge(preamble: Preamble) -> Judgement {
        HalfOpen::default().feed(&preamble.encode(), RUN)
    }

    fn refusal(judgement: Judgement) -> Option<Refusal> {
        match judgement {
            Judgement::Unwanted(refusal, _) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_control_connections_to_this_run_are_clients() {
        let good = Preamble::new(Role::Control);
        assert_eq!(judge(good), Judgement::Client(Vec::new()));
        assert_eq!(judge(Preamble { run: RUN.0, ..good }), Judgement::Client(Vec::new()));
        assert_eq!(refusal(judge(Preamble { run: 78, ..good })), Some(Refusal::WrongRun));
        assert_eq!(refusal(judge(Preamble { to: 1, ..good })), Some(Refusal::WrongDestination));
        assert_eq!(refusal(judge(Preamble::new(Role::Data))), Some(Refusal::WrongRole));
        assert_eq!(refusal(judge(Preamble { version: 9, ..good })), Some(Refusal::UnsupportedVersion));
        assert_eq!(refusal(judge(Preamble { security: 1, ..good })), Some(Refusal::UnsupportedSecurity));
    }

    #[test]
    fn byte_by_byte_with_packets_behind() {
        let mut stream = Preamble::new(Role::Control).encode().to_vec();
        let mut half_open = HalfOpen::default();
        let last = stream.pop().unwrap();
        for byte in stream {
            assert_eq!(half_open.feed(&[byte], RUN), Judgement::Incomplete);
        }
        assert_eq!(half_open.feed(&[last, 1, 2, 3], RUN), Judgement::Client(vec![1, 2, 3]));
    }

    #[test]
    fn garbage_is_known_at_its_first_byte() {
        assert_eq!(refusal(HalfOpen::default().feed(b"G", RUN)), None);
        assert_eq!(refusal(HalfOpen::default().feed(&[0; 8], RUN)), None);
    }
}
