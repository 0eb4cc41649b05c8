//! How a connection begins: the end that knocks says what it wants, both prove that they hold the same secret, and only
//! then does anything else of the protocol flow.
//!
//! Without a run key that is the [preamble](crate::preamble) and the reply to it. With one, the preamble says so, and a
//! handshake lies between the two: Noise, `NNpsk0_25519_ChaChaPoly_BLAKE2s`. The shared secret is the run key on the
//! way to a master, and for checks between peers; for all else it is the [ticket](crate::ticket) of the connection.
//!
//! | | who dials | | who listens |
//! |---|---|---|---|
//! | 1 | preamble (116 bytes), first message (49) | → | |
//! | 2 | | ← | reply "go on" (16 bytes), second message (49) |
//! | 3 | an empty record (20 bytes) | → | |
//! | 4 | | ← | the reply to the preamble, in a record |
//!
//! The preamble is the prologue of both messages: a byte of it that is changed on its way fails the first one. The
//! first message proves the key and says which cipher its sender is fast with, the second one proves it back and
//! chooses. Both carry fresh keys, so that the key of the run, found later, opens nothing that was recorded. The empty
//! record proves that the first message is not a recorded one, and nobody but the handshake has seen the connection
//! before. A dialer that is connected to somebody else than it meant learns it from the last reply: the preamble names
//! both.
//!
//! Pure: bytes in, bytes out. [`Knock`] is the side that dials, [`Door`] the one that listens; neither takes a byte
//! that is not its own, nor keeps more than a few hundred.

use std::io;

use snow::HandshakeState;

use crate::{
    key::{AcceptedKeys, KEY_BYTES, RunKey, SecretKey},
    mode::WireMode,
    preamble::{
        PREAMBLE_BYTES, Preamble, PreambleError, REPLY_BYTES, Refusal, Reply, ReplyError, SECURITY_NONE,
        could_be_preamble,
    },
    seal::{PROOF_BYTES, Seal, Suite},
    ticket::Lock,
};

const PATTERN: &str = "NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The bytes in front of the preamble in the prologue.
const CONTEXT: &[u8] = b"PCCL run key 1";
/// Each message of the handshake: a public key, a byte for the cipher, a tag.
const MESSAGE_BYTES: usize = 32 + 1 + 16;
/// Length of the answer to a good first message.
pub const ANSWER_BYTES: usize = REPLY_BYTES + MESSAGE_BYTES;

fn state(
    key: &SecretKey,
    preamble: &[u8; PREAMBLE_BYTES],
    dials: bool,
) -> Result<HandshakeState, snow::Error> {
    let pattern = format!("Noise_{PATTERN}").parse()?;
    let prologue = [CONTEXT, preamble].concat();
    let builder = snow::Builder::new(pattern).psk(0, key.bytes())?.prologue(&prologue)?;
    if dials { builder.build_initiator() } else { builder.build_responder() }
}

/// The seal that a finished handshake leaves to the end that dials, or to the other one.
fn seal(mut state: HandshakeState, suite: Suite, mode: WireMode, dials: bool) -> io::Result<Seal> {
    let (forth, back): ([u8; KEY_BYTES], [u8; KEY_BYTES]) = state.dangerously_get_raw_split();
    let (send, receive) = if dials { (forth, back) } else { (back, forth) };
    Seal::new(suite, mode, send, receive)
}

/// Bytes of known length that arrive in pieces.
#[derive(Debug)]
struct Inlet<const N: usize> {
    bytes: [u8; N],
    have: usize,
    wanted: usize,
}

impl<const N: usize> Inlet<N> {
    fn new(wanted: usize) -> Self {
        Self { bytes: [0; N], have: 0, wanted }
    }

    fn missing(&mut self) -> &mut [u8] {
        &mut self.bytes[self.have..self.wanted]
    }

    /// This number of bytes was put there; whether all are there now.
    fn received(&mut self, bytes: usize) -> bool {
        self.have = (self.have + bytes).min(self.wanted);
        self.have == self.wanted
    }

    fn expect(&mut self, wanted: usize) {
        (self.have, self.wanted) = (0, wanted.min(N));
    }
}

/// The side that dials, until the reply to its preamble.
#[derive(Debug)]
pub struct Knock {
    inlet: Inlet<MESSAGE_BYTES>,
    /// Of a handshake whose second message has not come. Missing without a key.
    noise: Option<Box<HandshakeState>>,
    mode: WireMode,
    is_greeted: bool,
}

/// The consequence of bytes that [`Knock`] was given.
#[derive(Debug)]
pub enum Heard {
    /// More of them are needed.
    Nothing,
    /// The answer, without a key or to somebody without the right one.
    Reply(Reply),
    /// The other side has the key. These bytes are to be sent, and the connection is to be
    /// [protected](crate::conn::Conn::protect) with the seal; then the reply comes over it.
    Proven([u8; PROOF_BYTES], Box<Seal>),
}

/// Why what answers is not to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KnockError {
    /// The bytes are not a reply.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// The reply says yes without a proof that its sender has the key.
    #[error("it says yes, and does not prove that it has the run key")]
    Unproven,
    /// The second message of the handshake is not good.
    #[error("its proof that it has the run key is not good")]
    Proof,
}

impl Knock {
    /// The bytes to begin with, and what takes those that come back.
    pub fn new(preamble: &Preamble, key: Option<&SecretKey>) -> io::Result<(Self, Vec<u8>)> {
        let mode = WireMode::of(preamble.security).unwrap_or_default();
        let security = if key.is_some() { mode.security() } else { SECURITY_NONE };
        let preamble = Preamble { security, ..*preamble }.encode();
        let (mut hello, mut noise) = (preamble.to_vec(), None);
        if let Some(key) = key {
            let failed = |error: snow::Error| io::Error::other(format!("no handshake can be made: {error}"));
            let mut begun = state(key, &preamble, true).map_err(failed)?;
            let mut message = [0; MESSAGE_BYTES];
            begun.write_message(&[Suite::preferred() as u8], &mut message).map_err(failed)?;
            hello.extend_from_slice(&message);
            noise = Some(Box::new(begun));
        }
        Ok((Self { inlet: Inlet::new(REPLY_BYTES), noise, mode, is_greeted: false }, hello))
    }

    /// Where the next bytes are to be put: never more than are its own. Empty once it has come to an end.
    pub fn missing(&mut self) -> &mut [u8] {
        self.inlet.missing()
    }

    /// This number of bytes was put there.
    pub fn received(&mut self, bytes: usize) -> Result<Heard, KnockError> {
        if !self.inlet.received(bytes) {
            return Ok(Heard::Nothing);
        }
        if self.is_greeted {
            return self.second_message();
        }
        let mut reply = [0; REPLY_BYTES];
        reply.copy_from_slice(&self.inlet.bytes[..REPLY_BYTES]);
        match (Reply::decode(&reply)?, self.noise.is_some()) {
            (Reply::GoOn, true) => {
                self.is_greeted = true;
                self.inlet.expect(MESSAGE_BYTES);
                Ok(Heard::Nothing)
            }
            (Reply::Accepted | Reply::AcceptedHere | Reply::AcceptedShared, true) => {
                Err(KnockError::Unproven)
            }
            (Reply::GoOn, false) => Err(ReplyError::NotAReply.into()),
            (reply, _) => Ok(Heard::Reply(reply)),
        }
    }

    /// The version of the end that wrote the reply which was [heard](Heard::Reply).
    #[must_use]
    pub fn version(&self) -> u16 {
        self.inlet.bytes.first_chunk().map_or(0, Reply::version_of)
    }

    fn second_message(&mut self) -> Result<Heard, KnockError> {
        let mut noise = self.noise.take().ok_or(KnockError::Proof)?;
        let mut chosen = [0; MESSAGE_BYTES];
        let read = noise.read_message(&self.inlet.bytes, &mut chosen).map_err(|_| KnockError::Proof)?;
        let suite = match read {
            1 => Suite::from_byte(chosen[0]).ok_or(KnockError::Proof)?,
            _ => return Err(KnockError::Proof),
        };
        let seal = seal(*noise, suite, self.mode, true);
        let proven = seal.and_then(|mut seal| Ok(Heard::Proven(seal.sealer.proof()?, Box::new(seal))));
        self.inlet.expect(0);
        proven.map_err(|_| KnockError::Proof)
    }
}

/// The side that listens, until it is known who knocks.
#[derive(Debug)]
pub struct Door {
    lock: Option<Lock>,
    inlet: Inlet<PREAMBLE_BYTES>,
    stage: Stage,
    /// The run key that the first message has proven.
    opened_by: Option<RunKey>,
}

#[derive(Debug)]
enum Stage {
    Preamble,
    /// The preamble has come, and the first message is to come.
    Message(Preamble, Box<[u8; PREAMBLE_BYTES]>),
    /// Both messages are through; the proof that the other end is there is to come.
    Proof(Preamble, Box<Seal>),
    Over,
}

/// The consequence of bytes that [`Door`] was given.
#[derive(Debug)]
pub enum Visit {
    /// More of them are needed.
    Nothing,
    /// These are to be sent, and more are needed then.
    Answer([u8; ANSWER_BYTES]),
    /// It is known who knocks, and it has the key if there is one. The connection is to be
    /// [protected](crate::conn::Conn::protect) with the seal if there is one; then comes the reply.
    Known(Preamble, Option<Box<Seal>>),
    /// Nobody to talk to: the answer, if it should get one, and why.
    Unwanted(Option<Refusal>, String),
}

impl Door {
    /// For one connection to somebody who has this lock, or none.
    #[must_use]
    pub fn new(lock: Option<Lock>) -> Self {
        Self { lock, inlet: Inlet::new(PREAMBLE_BYTES), stage: Stage::Preamble, opened_by: None }
    }

    /// The run key that the other end has proven, if it was one: it may not be accepted any more when that is asked.
    #[must_use]
    pub fn opened_by(&self) -> Option<&RunKey> {
        self.opened_by.as_ref()
    }

    /// Whether the first message was good, and the proof that it is no recorded one is to come.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Proof(..))
    }

    /// Where the next bytes are to be put: never more than are its own. Empty once it has come to an end.
    pub fn missing(&mut self) -> &mut [u8] {
        self.inlet.missing()
    }

    /// This number of bytes was put there.
    pub fn received(&mut self, bytes: usize) -> Visit {
        let is_complete = self.inlet.received(bytes);
        let is_preamble = matches!(self.stage, Stage::Preamble);
        if is_preamble && !could_be_preamble(&self.inlet.bytes[..self.inlet.have]) {
            return self.close(None, PreambleError::Magic);
        }
        if !is_complete {
            return Visit::Nothing;
        }
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Preamble => self.preamble(),
            Stage::Message(preamble, bytes) => self.first_message(preamble, &bytes),
            Stage::Proof(preamble, seal) => self.proof(preamble, seal),
            Stage::Over => self.close(None, "it is over already"),
        }
    }

    fn close(&mut self, answer: Option<Refusal>, why: impl ToString) -> Visit {
        self.inlet.expect(0);
        self.stage = Stage::Over;
        Visit::Unwanted(answer, why.to_string())
    }

    fn refuse(&mut self, answer: Refusal, why: &str) -> Visit {
        self.close(Some(answer), why)
    }

    fn preamble(&mut self) -> Visit {
        let preamble = match Preamble::decode(&self.inlet.bytes) {
            Ok(preamble) => preamble,
            Err(error) => return self.close(error.refusal(), error),
        };
        match (&self.lock, preamble.security) {
            (None, SECURITY_NONE) => {
                self.inlet.expect(0);
                Visit::Known(preamble, None)
            }
            (None, _) => self.refuse(Refusal::NoKey, "it comes with a run key, and this side has none"),
            (Some(_), SECURITY_NONE) => self.refuse(Refusal::KeyWanted, "it comes without the run key"),
            (Some(_), _) => {
                self.stage = Stage::Message(preamble, Box::new(self.inlet.bytes));
                self.inlet.expect(MESSAGE_BYTES);
                Visit::Nothing
            }
        }
    }

    fn first_message(&mut self, preamble: Preamble, bytes: &[u8; PREAMBLE_BYTES]) -> Visit {
        let Some(lock) = &self.lock else { return self.close(None, "there is no key") };
        let mode = WireMode::of(preamble.security).unwrap_or_default();
        let message = &self.inlet.bytes[..MESSAGE_BYTES];
        let ticket = lock.ticket(&preamble);
        let needs_ticket = ticket.is_some();
        let answered = match ticket {
            Some(ticket) => answer(&ticket, mode, bytes, message),
            None => {
                let AcceptedKeys { used, second } = lock.accepted();
                let (answered, key) = match (answer(used.secret(), mode, bytes, message), second) {
                    (Err(Unanswered::WrongKey), Some(second)) => {
                        (answer(second.secret(), mode, bytes, message), second)
                    }
                    (answered, _) => (answered, used),
                };
                self.opened_by = answered.is_ok().then_some(key);
                answered
            }
        };
        match answered {
            Ok((answer, seal)) => {
                self.stage = Stage::Proof(preamble, Box::new(seal));
                self.inlet.expect(PROOF_BYTES);
                Visit::Answer(answer)
            }
            Err(Unanswered::WrongKey) if needs_ticket => {
                let (from, role) = (preamble.from >> 96, preamble.role);
                let why = format!(
                    "it says that it is peer {from:08x}, and has no ticket for {role:?} from the master"
                );
                self.refuse(Refusal::WrongTicket, &why)
            }
            Err(Unanswered::WrongKey) => {
                self.refuse(Refusal::WrongKey, "its run key, or its name of the run, is another one")
            }
            Err(Unanswered::Own(why)) => self.close(None, why),
        }
    }

    fn proof(&mut self, preamble: Preamble, mut seal: Box<Seal>) -> Visit {
        if seal.opener.is_proof(&self.inlet.bytes[..PROOF_BYTES]) {
            self.inlet.expect(0);
            Visit::Known(preamble, Some(seal))
        } else {
            self.close(None, "it repeats what somebody else has said, and cannot go on")
        }
    }
}

/// Why a first message has no answer.
enum Unanswered {
    WrongKey,
    /// Something failed here.
    Own(String),
}

/// The answer to a first message, and what it leads to.
fn answer(
    key: &SecretKey,
    mode: WireMode,
    preamble: &[u8; PREAMBLE_BYTES],
    message: &[u8],
) -> Result<([u8; ANSWER_BYTES], Seal), Unanswered> {
    let own = |error: snow::Error| Unanswered::Own(error.to_string());
    let mut noise = state(key, preamble, false).map_err(own)?;
    let mut wish = [0; MESSAGE_BYTES];
    let read = noise.read_message(message, &mut wish).map_err(|_| Unanswered::WrongKey)?;
    let wanted = if read == 1 { Suite::from_byte(wish[0]) } else { None };
    // Both have to be fast with it.
    let suite = match (wanted.ok_or(Unanswered::WrongKey)?, Suite::preferred()) {
        (Suite::Aes128Gcm, Suite::Aes128Gcm) => Suite::Aes128Gcm,
        _ => Suite::ChaCha20Poly1305,
    };
    let mut answer = [0; ANSWER_BYTES];
    answer[..REPLY_BYTES].copy_from_slice(&Reply::GoOn.encode());
    noise.write_message(&[suite as u8], &mut answer[REPLY_BYTES..]).map_err(own)?;
    let seal = seal(noise, suite, mode, false).map_err(|error| Unanswered::Own(error.to_string()))?;
    Ok((answer, seal))
}
