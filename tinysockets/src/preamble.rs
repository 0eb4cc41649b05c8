//! The fixed bytes with which every connection starts, and the fixed answer to them.
//!
//! The dialling side sends a [`Preamble`]; the accepting side answers with a [`Reply`]; only then does anything else
//! flow. Thus a port that was reused by somebody else, a role that does not fit, and bytes that are no preamble at all
//! are found out before any state is built for a connection. All integers are big-endian.
//!
//! | offset | field | | offset | field |
//! |---|---|---|---|---|
//! | 0 | magic, 8 bytes | | 64 | group, `u32` |
//! | 8 | protocol version, `u16` | | 68 | epoch, `u64` |
//! | 10 | role, `u8` | | 76 | connection index, `u16` |
//! | 11 | security mode, `u8` | | 78 | connection count, `u16` |
//! | 12 | feature bits, `u32` | | 80 | link generation, `u64` |
//! | 16 | run id, `u128` | | 88 | memory to share: process, `u32`; 0 for none |
//! | 32 | own peer id, `u128` | | 92 | its descriptor there, `u32` |
//! | 48 | destination peer id, `u128` | | 96 | the number that it holds, `u128` |
//! | | | | 112 | CRC-32C of bytes 0 to 111, `u32` |
//!
//! Magic and version keep their places in all versions of the protocol, and so does the whole of the reply.
//! Codec only: no I/O happens here, so that blocking and non-blocking servers share it.

use crate::{
    shm::Offer,
    wire::{Decode, Encode, Reader, WireError},
};
use pccl_hash::crc32c;

/// Size of an encoded [`Preamble`] in bytes.
pub const PREAMBLE_BYTES: usize = 116;
/// Size of an encoded [`Reply`] in bytes.
pub const REPLY_BYTES: usize = 16;
/// Version of the protocol that this build speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// The security mode of a connection that is neither authenticated nor encrypted.
pub const SECURITY_NONE: u8 = 0;
/// The security mode of a connection whose ends prove that they hold the run key, and whose bytes travel in records
/// from then on, see [`handshake`](crate::handshake).
pub const SECURITY_KEY: u8 = 1;
/// As [`SECURITY_KEY`], with records that are authenticated and not encrypted. For bulk data only.
pub const SECURITY_INTEGRITY: u8 = 2;
/// As [`SECURITY_KEY`] up to the reply to the preamble; the bytes that follow are not protected. For bulk data only.
pub const SECURITY_OFF: u8 = 3;

/// Not text, and with both kinds of line end: neither a terminal nor another protocol sends it by accident.
const MAGIC: [u8; 8] = *b"\xffPCCL\r\n\0";
/// The code of [`Reply::GoOn`].
const GO_ON: u16 = 256;
/// The code of [`Reply::AcceptedHere`].
const ACCEPTED_HERE: u16 = 257;
/// The code of [`Reply::AcceptedShared`].
const ACCEPTED_SHARED: u16 = 258;
/// The bit of [`Preamble::features`] of a dialer that would share memory.
pub const SHARES_MEMORY: u32 = 2;
const REPLY_MAGIC: [u8; 4] = *b"\xffPCR";

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Packets between a peer and the master.
    Control = 1,
    /// Frames of collective operations from one peer to the next in the ring.
    Data = 2,
    /// Shared state from a peer that has it to one that needs it.
    State = 3,
    /// Bandwidth measurement.
    Probe = 4,
    /// Whether the one that is meant can be reached here: the reply is all that flows.
    Check = 5,
    /// As [`Role::Data`], dialed by the one that receives, since it cannot be dialed itself.
    DataBack = 6,
    /// As [`Role::State`], dialed by the one that has the state.
    StateBack = 7,
    /// As [`Role::Probe`], dialed by the one that is measured.
    ProbeBack = 8,
    /// To meet somebody at a [relay](crate::relay), which nobody can dial either. Other fields mean other things there,
    /// see [`Visit`](crate::relay::Visit).
    Relay = 9,
}

impl Role {
    /// Whether bulk data travels over such a connection, which the run may protect less than others.
    fn is_bulk(self) -> bool {
        match self {
            Self::Data
            | Self::State
            | Self::Probe
            | Self::DataBack
            | Self::StateBack
            | Self::ProbeBack
            | Self::Relay => true,
            Self::Control | Self::Check => false,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Control),
            2 => Some(Self::Data),
            3 => Some(Self::State),
            4 => Some(Self::Probe),
            5 => Some(Self::Check),
            6 => Some(Self::DataBack),
            7 => Some(Self::StateBack),
            8 => Some(Self::ProbeBack),
            9 => Some(Self::Relay),
            _ => None,
        }
    }
}

/// The dialer, its goal and the purpose of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// Protocol version of the sender.
    pub version: u16,
    /// The purpose of the connection.
    pub role: Role,
    /// Security mode, such as [`SECURITY_KEY`]. The dialer sets it by whether it has a key; with one and
    /// [`SECURITY_NONE`] here it is [`SECURITY_KEY`].
    pub security: u8,
    /// Optional abilities of the sender; bits that the receiver does not know are to be ignored.
    pub features: u32,
    /// The run that the sender belongs to; 0 on its first control connection.
    pub run: u128,
    /// Peer id of the sender; 0 while it has none.
    pub from: u128,
    /// Peer id of the one that the sender means to reach; 0 for the master.
    pub to: u128,
    /// Peer group of the sender.
    pub group: u32,
    /// Epoch of the world in which the connection is made.
    pub epoch: u64,
    /// Index of this connection in its pool, from 0.
    pub connection_index: u16,
    /// Number of connections in the pool.
    pub connection_count: u16,
    /// Which incarnation of the link between the two peers this connection belongs to. Of state and probe connections
    /// in a run with a key: until when its ticket is good, in milliseconds of the master's life.
    pub link_generation: u64,
    /// Memory through which the bytes of the connection may go. The dialing end puts it in, for a caller that has set
    /// [`SHARES_MEMORY`].
    pub memory: Option<Offer>,
}

/// Why bytes are no acceptable preamble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// Something else than this protocol.
    #[error("the connection does not start with the magic bytes of this protocol")]
    Magic,
    /// Another version of this protocol.
    #[error("protocol version {0} is not supported, this side speaks version {PROTOCOL_VERSION}")]
    Version(u16),
    /// The bytes were altered on their way, or made by a broken program.
    #[error("the check word of the preamble does not match")]
    Check,
    /// A role without a meaning.
    #[error("undefined role {0}")]
    Role(u8),
    /// A security mode that this build does not have.
    #[error("security mode {0} is not supported, or not for this role")]
    Security(u8),
}

impl PreambleError {
    /// The answer that the sender should get; `None` if it does not speak this protocol and gets none.
    #[must_use]
    pub fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Magic | Self::Check => None,
            Self::Version(_) => Some(Refusal::UnsupportedVersion),
            Self::Role(_) => Some(Refusal::WrongRole),
            Self::Security(_) => Some(Refusal::UnsupportedSecurity),
        }
    }
}

impl Preamble {
    /// A preamble of this build's version for `role`, every other field 0.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            version: PROTOCOL_VERSION,
            role,
            security: SECURITY_NONE,
            features: 0,
            run: 0,
            from: 0,
            to: 0,
            group: 0,
            epoch: 0,
            connection_index: 0,
            connection_count: 0,
            link_generation: 0,
            memory: None,
        }
    }

    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let mut out = Vec::with_capacity(PREAMBLE_BYTES);
        MAGIC.encode(&mut out);
        self.version.encode(&mut out);
        (self.role as u8).encode(&mut out);
        self.security.encode(&mut out);
        self.features.encode(&mut out);
        self.run.encode(&mut out);
        self.from.encode(&mut out);
        self.to.encode(&mut out);
        self.group.encode(&mut out);
        self.epoch.encode(&mut out);
        self.connection_index.encode(&mut out);
        self.connection_count.encode(&mut out);
        self.link_generation.encode(&mut out);
        let memory = self.memory.unwrap_or(Offer { process: 0, descriptor: 0, nonce: 0 });
        memory.process.encode(&mut out);
        memory.descriptor.encode(&mut out);
        memory.nonce.encode(&mut out);
        seal(&out)
    }

    /// Reads what [`encode`](Self::encode) wrote. The version is looked at before everything behind it, because
    /// another version may mean something else by those bytes.
    pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Self, PreambleError> {
        if !could_be_preamble(bytes) {
            return Err(PreambleError::Magic);
        }
        let version = u16::from_be_bytes([bytes[8], bytes[9]]);
        if version != PROTOCOL_VERSION {
            return Err(PreambleError::Version(version));
        }
        if !is_sealed(bytes) {
            return Err(PreambleError::Check);
        }
        let role = Role::from_byte(bytes[10]).ok_or(PreambleError::Role(bytes[10]))?;
        if bytes[11] > if role.is_bulk() { SECURITY_OFF } else { SECURITY_KEY } {
            return Err(PreambleError::Security(bytes[11]));
        }
        let security = bytes[11];
        read_fields(version, role, security, &mut Reader::new(&bytes[12..PREAMBLE_BYTES - 4]))
            .map_err(|_: WireError| PreambleError::Check)
    }
}

fn read_fields(
    version: u16,
    role: Role,
    security: u8,
    reader: &mut Reader<'_>,
) -> Result<Preamble, WireError> {
    Ok(Preamble {
        version,
        role,
        security,
        features: Decode::decode(reader)?,
        run: Decode::decode(reader)?,
        from: Decode::decode(reader)?,
        to: Decode::decode(reader)?,
        group: Decode::decode(reader)?,
        epoch: Decode::decode(reader)?,
        connection_index: Decode::decode(reader)?,
        connection_count: Decode::decode(reader)?,
        link_generation: Decode::decode(reader)?,
        memory: read_memory(reader)?,
    })
}

fn read_memory(reader: &mut Reader<'_>) -> Result<Option<Offer>, WireError> {
    let process = Decode::decode(reader)?;
    let (descriptor, nonce) = (Decode::decode(reader)?, Decode::decode(reader)?);
    Ok((process != 0).then_some(Offer { process, descriptor, nonce }))
}

/// Whether a preamble of any version may start with `prefix`. As soon as this is `false`, a connection is not worth
/// another byte.
#[must_use]
pub fn could_be_preamble(prefix: &[u8]) -> bool {
    prefix.iter().zip(&MAGIC).all(|(byte, wanted)| byte == wanted)
}

/// Why a connection is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum Refusal {
    /// The peer that was meant does not live here: somebody else has its port now.
    #[error("another peer listens on this port than the one that was meant")]
    WrongDestination = 1,
    /// This port serves another role.
    #[error("this port serves another kind of connection")]
    WrongRole = 2,
    /// Both belong to different runs.
    #[error("this peer belongs to another run")]
    WrongRun = 3,
    /// The versions differ.
    #[error("the other side speaks another version of the protocol")]
    UnsupportedVersion = 4,
    /// The security mode is not available.
    #[error("the other side does not support the requested security mode")]
    UnsupportedSecurity = 5,
    /// Nobody waits for this connection, or not any more.
    #[error("the other side does not expect this connection")]
    NotExpected = 6,
    /// No room for another one.
    #[error("the other side has no room for another connection")]
    Full = 7,
    /// The other side is going away.
    #[error("the other side is shutting down")]
    ShuttingDown = 8,
    /// The other side has a run key, and this connection comes without.
    #[error("it wants a run key: set PCCL_RUN_KEY to the key of the run")]
    KeyWanted = 9,
    /// The other side has no run key, and this connection comes with one.
    #[error(
        "it has no run key, and this side has one: give the key to both, or to none (PCCL_RUN_KEY, --key-file)"
    )]
    NoKey = 10,
    /// Both have a run key, and not the same one, or not the same name of the run.
    #[error(
        "the run key, or the name of the run, is another one: compare PCCL_RUN_KEY and PCCL_RUN_NAME of both sides"
    )]
    WrongKey = 11,
    /// The master has not given this connection a ticket, or that is over.
    #[error("it does not take the ticket of this connection: the master has not given it, or it is over")]
    WrongTicket = 12,
}

impl Refusal {
    /// All refusals, in the order of their codes from 1.
    pub const ALL: [Self; 12] = [
        Self::WrongDestination,
        Self::WrongRole,
        Self::WrongRun,
        Self::UnsupportedVersion,
        Self::UnsupportedSecurity,
        Self::NotExpected,
        Self::Full,
        Self::ShuttingDown,
        Self::KeyWanted,
        Self::NoKey,
        Self::WrongKey,
        Self::WrongTicket,
    ];
}

/// The answer to a preamble: magic (4 bytes), version `u16`, code `u16` (0 = accepted, 256 = go on with the
/// handshake, else the refusal), four bytes
/// of 0, CRC-32C of the bytes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The connection is taken; what its role prescribes comes next.
    Accepted,
    /// The same, by a master without a key that only its own machine reaches: so nobody else has to reach its peers.
    AcceptedHere,
    /// The same, and the bytes of the connection go through the memory that its preamble offers.
    AcceptedShared,
    /// The first message of the handshake is good; the second one follows.
    GoOn,
    /// It is not; the connection is closed.
    Refused(Refusal),
}

/// Why bytes are no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// Not the bytes of a reply.
    #[error("the answer is not one of this protocol")]
    NotAReply,
    /// A code that this version does not know.
    #[error("the answer has the undefined code {0}")]
    Code(u16),
}

impl Reply {
    /// The bytes to send.
    #[must_use]
    pub fn encode(self) -> [u8; REPLY_BYTES] {
        let code = match self {
            Self::Accepted => 0,
            Self::AcceptedHere => ACCEPTED_HERE,
            Self::AcceptedShared => ACCEPTED_SHARED,
            Self::GoOn => GO_ON,
            Self::Refused(refusal) => refusal as u16,
        };
        let mut out = Vec::with_capacity(REPLY_BYTES);
        REPLY_MAGIC.encode(&mut out);
        PROTOCOL_VERSION.encode(&mut out);
        code.encode(&mut out);
        0u32.encode(&mut out);
        seal(&out)
    }

    /// Reads what [`encode`](Self::encode) wrote, in this or any other version.
    pub fn decode(bytes: &[u8; REPLY_BYTES]) -> Result<Self, ReplyError> {
        if bytes[..4] != REPLY_MAGIC || !is_sealed(bytes) {
            return Err(ReplyError::NotAReply);
        }
        match u16::from_be_bytes([bytes[6], bytes[7]]) {
            0 => Ok(Self::Accepted),
            GO_ON => Ok(Self::GoOn),
            ACCEPTED_HERE => Ok(Self::AcceptedHere),
            ACCEPTED_SHARED => Ok(Self::AcceptedShared),
            code => Refusal::ALL
                .get(usize::from(code) - 1)
                .map(|refusal| Self::Refused(*refusal))
                .ok_or(ReplyError::Code(code)),
        }
    }

    /// The protocol version of the end that wrote a reply, which stands at the same place in all versions.
    #[must_use]
    pub fn version_of(bytes: &[u8; REPLY_BYTES]) -> u16 {
        u16::from_be_bytes([bytes[4], bytes[5]])
    }
}

/// Copies `content`, which is four bytes shorter than the result, and adds its check word.
fn seal<const N: usize>(content: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out[..N - 4].copy_from_slice(content);
    let check = crc32c(&out[..N - 4]).to_be_bytes();
    out[N - 4..].copy_from_slice(&check);
    out
}

fn is_sealed<const N: usize>(bytes: &[u8; N]) -> bool {
    crc32c(&bytes[..N - 4]).to_be_bytes() == bytes[N - 4..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn preamble() -> impl Strategy<Value = Preamble> {
        let ids = (any::<u128>(), any::<u128>(), any::<u128>());
        let rest = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u16>(), any::<u16>(), any::<u64>());
        let memory = prop::option::of((1u32.., any::<u32>(), any::<u128>()));
        (1u8..=9, ids, rest, memory).prop_map(|(role, (run, from, to), rest, memory)| Preamble {
            features: rest.0,
            run,
            from,
            to,
            group: rest.1,
            epoch: rest.2,
            connection_index: rest.3,
            connection_count: rest.4,
            link_generation: rest.5,
            memory: memory.map(|(process, descriptor, nonce)| Offer { process, descriptor, nonce }),
            ..Preamble::new(Role::from_byte(role).unwrap())
        })
    }

    proptest! {
        #[test]
        fn a_preamble_survives_its_encoding(preamble in preamble()) {
            let bytes = preamble.encode();
            prop_assert_eq!(Preamble::decode(&bytes), Ok(preamble));
            prop_assert!((0..bytes.len()).all(|n| could_be_preamble(&bytes[..n])));
        }

        #[test]
        fn one_altered_byte_is_always_noticed(preamble in preamble(), at in 0..PREAMBLE_BYTES, flip in 1u8..) {
            let mut bytes = preamble.encode();
            bytes[at] ^= flip;
            prop_assert!(Preamble::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_are_never_a_preamble_or_a_reply(
            tail in prop::collection::vec(any::<u8>(), PREAMBLE_BYTES - 8),
        ) {
            let mut bytes = [0; PREAMBLE_BYTES];
            bytes[8..].copy_from_slice(&tail);
            prop_assert_eq!(Preamble::decode(&bytes), Err(PreambleError::Magic));
            bytes[..8].copy_from_slice(&MAGIC);
            prop_assert!(Preamble::decode(&bytes).is_err());
            let mut reply = [0; REPLY_BYTES];
            reply.copy_from_slice(&tail[..REPLY_BYTES]);
            prop_assert_eq!(Reply::decode(&reply), Err(ReplyError::NotAReply));
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = Preamble {
            features: 2,
            run: 3,
            from: 4,
            to: 5,
            group: 6,
            epoch: 7,
            connection_index: 8,
            connection_count: 9,
            link_generation: 10,
            memory: Some(Offer { process: 11, descriptor: 12, nonce: 13 }),
            ..Preamble::new(Role::State)
        }
        .encode();
        let set: Vec<(usize, u8)> =
            bytes[8..112].iter().enumerate().filter(|(_, b)| **b != 0).map(|(i, b)| (i + 8, *b)).collect();
        let last_bytes = [
            (9, 1),
            (10, 3),
            (15, 2),
            (31, 3),
            (47, 4),
            (63, 5),
            (67, 6),
            (75, 7),
            (77, 8),
            (79, 9),
            (87, 10),
            (91, 11),
            (95, 12),
            (111, 13),
        ];
        assert_eq!(set, last_bytes);
    }

    #[test]
    fn each_fault_has_its_reason() {
        let wrong_version = Preamble { version: 7, ..Preamble::new(Role::Data) }.encode();
        let error = Preamble::decode(&wrong_version).unwrap_err();
        assert_eq!((error, error.refusal()), (PreambleError::Version(7), Some(Refusal::UnsupportedVersion)));

        for (role, security) in
            [(Role::Data, SECURITY_OFF + 1), (Role::Control, SECURITY_INTEGRITY), (Role::Check, SECURITY_OFF)]
        {
            let secured = Preamble { security, ..Preamble::new(role) }.encode();
            let error = Preamble::decode(&secured).unwrap_err();
            assert_eq!(
                (error, error.refusal()),
                (PreambleError::Security(security), Some(Refusal::UnsupportedSecurity))
            );
        }
        for role in [Role::Data, Role::State, Role::Probe] {
            assert!(
                Preamble::decode(&Preamble { security: SECURITY_OFF, ..Preamble::new(role) }.encode())
                    .is_ok()
            );
        }

        let mut bytes = Preamble::new(Role::Data).encode();
        bytes[10] = 10;
        let no_role: [u8; PREAMBLE_BYTES] = seal(&bytes[..PREAMBLE_BYTES - 4]);
        assert_eq!(Preamble::decode(&no_role), Err(PreambleError::Role(10)));
        assert!(!could_be_preamble(b"GET / HTTP/1.1"));
    }

    #[test]
    fn every_reply_survives_its_encoding_and_unknown_codes_are_named() {
        for reply in [Reply::Accepted, Reply::AcceptedHere, Reply::AcceptedShared, Reply::GoOn] {
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }
        for refusal in Refusal::ALL {
            assert_eq!(Reply::decode(&Reply::Refused(refusal).encode()), Ok(Reply::Refused(refusal)));
        }
        let mut bytes = Reply::Accepted.encode();
        bytes[7] = 13;
        let unknown: [u8; REPLY_BYTES] = seal(&bytes[..REPLY_BYTES - 4]);
        assert_eq!(Reply::decode(&unknown), Err(ReplyError::Code(13)));
    }
}
