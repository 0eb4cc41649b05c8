//! The header in front of every frame of the data link.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | magic `F7 A3` |
//! | 2 | flags: 1 a checksum, 2 an operation of the two ends of the link only, 4 an early frame |
//! | 3 | track of the operation's tag |
//! | 4..8 | payload length |
//! | 8..16, 16..24, 24..28 | operation: epoch, tag, attempt |
//! | 28..32, 32..36 | part, stage |
//! | 36..44 | offset |
//! | 44..48 | checksum of the payload (32 bits of its XXH3-64), 0 without the flag |
//! | 48..52 | CRC-32C of bytes 0..48 |
//!
//! All integers are big-endian. The check word tells a header from whatever follows a lost byte, on a path that damages
//! data, or from a peer that is out of step, before its length or identity is believed.

use byteorder::{BigEndian, ByteOrder};
use pccl_hash::crc32c;

/// Length of an encoded [`FrameHeader`].
pub const FRAME_HEADER_BYTES: usize = 52;

/// Most payload bytes of one frame.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// Flag: the field `checksum` holds the checksum of the payload. Set and cleared by the sending link.
pub const FLAG_CHECKSUM: u8 = 1;

/// Flag: [`OpKey::pair`].
const FLAG_PAIR: u8 = 2;

/// Flag: the sender does not know whether the receiver has announced the operation.
pub const FLAG_EARLY: u8 = 4;

/// The flags that are a field of the header.
const FLAGS: u8 = FLAG_CHECKSUM | FLAG_EARLY;

const MAGIC: [u8; 2] = [0xF7, 0xA3];
const CHECK_AT: usize = FRAME_HEADER_BYTES - 4;

/// Identity of one attempt of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpKey {
    /// Epoch of the membership in which the operation runs.
    pub epoch: u64,
    /// Tag that the caller gave the operation.
    pub tag: u64,
    /// Which attempt of this tag in this epoch.
    pub attempt: u32,
    /// Whether only the two ends of the link take part: such operations have tags of their own.
    pub pair: bool,
    /// Which of the operations that share the tag, 0 for one that does not.
    pub track: u8,
}

/// The attempt and the buffer that a frame is a piece of, and the length of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameHeader {
    /// The attempt that the frame belongs to.
    pub op: OpKey,
    /// Which buffer of the operation.
    pub part: u32,
    /// Which stage of the operation's plan.
    pub stage: u32,
    /// Where the payload begins, in bytes from the start of the part.
    pub offset: u64,
    /// Bytes of payload, at most [`MAX_FRAME_BYTES`].
    pub len: u32,
    /// [`FLAG_CHECKSUM`] and [`FLAG_EARLY`], or nothing.
    pub flags: u8,
    /// Checksum of the payload if [`FLAG_CHECKSUM`] is set.
    pub checksum: u32,
}

/// Why bytes are not a frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The first bytes are not those of a frame.
    #[error("no frame begins here: magic bytes {0:02x}{1:02x}")]
    Magic(u8, u8),
    /// The check word does not match the header.
    #[error("damaged frame header: check word {found:#010x}, computed {computed:#010x}")]
    Check {
        /// The word in the header.
        found: u32,
        /// The word that belongs to the bytes.
        computed: u32,
    },
    /// The payload is longer than a frame may be.
    #[error("frame of {0} bytes, at most {MAX_FRAME_BYTES} are allowed")]
    TooLong(u32),
    /// Flags that this version does not know.
    #[error("unknown frame flags {0:#04x}")]
    Flags(u8),
}

impl FrameHeader {
    /// The bytes of this header.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        out[0..2].copy_from_slice(&MAGIC);
        out[2] = self.flags | if self.op.pair { FLAG_PAIR } else { 0 };
        out[3] = self.op.track;
        BigEndian::write_u32(&mut out[4..8], self.len);
        BigEndian::write_u64(&mut out[8..16], self.op.epoch);
        BigEndian::write_u64(&mut out[16..24], self.op.tag);
        BigEndian::write_u32(&mut out[24..28], self.op.attempt);
        BigEndian::write_u32(&mut out[28..32], self.part);
        BigEndian::write_u32(&mut out[32..36], self.stage);
        BigEndian::write_u64(&mut out[36..44], self.offset);
        BigEndian::write_u32(&mut out[44..48], self.checksum);
        let check = crc32c(&out[..CHECK_AT]);
        BigEndian::write_u32(&mut out[CHECK_AT..], check);
        out
    }

    /// Reads a header back. Every input gives a header within the limits or an error.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, HeaderError> {
        if bytes[0..2] != MAGIC {
            return Err(HeaderError::Magic(bytes[0], bytes[1]));
        }
        let found = BigEndian::read_u32(&bytes[CHECK_AT..]);
        let computed = crc32c(&bytes[..CHECK_AT]);
        if found != computed {
            return Err(HeaderError::Check { found, computed });
        }
        if bytes[2] & !(FLAGS | FLAG_PAIR) != 0 {
            return Err(HeaderError::Flags(bytes[2]));
        }
        let len = BigEndian::read_u32(&bytes[4..8]);
        if len as usize > MAX_FRAME_BYTES {
            return Err(HeaderError::TooLong(len));
        }
        Ok(Self {
            op: OpKey {
                epoch: BigEndian::read_u64(&bytes[8..16]),
                tag: BigEndian::read_u64(&bytes[16..24]),
                attempt: BigEndian::read_u32(&bytes[24..28]),
                pair: bytes[2] & FLAG_PAIR != 0,
                track: bytes[3],
            },
            part: BigEndian::read_u32(&bytes[28..32]),
            stage: BigEndian::read_u32(&bytes[32..36]),
            offset: BigEndian::read_u64(&bytes[36..44]),
            len,
            flags: bytes[2] & !FLAG_PAIR,
            checksum: BigEndian::read_u32(&bytes[44..48]),
        })
    }

    /// Whether `checksum` holds the checksum of the payload.
    #[must_use]
    pub fn has_checksum(&self) -> bool {
        self.flags & FLAG_CHECKSUM != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = FrameHeader> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>());
        (numbers, 0..=MAX_FRAME_BYTES as u32, any::<[u8; 2]>(), any::<u32>()).prop_map(
            |((epoch, tag, attempt, part, stage, offset), len, [flags, track], checksum)| FrameHeader {
                op: OpKey { epoch, tag, attempt, pair: flags & FLAG_PAIR != 0, track },
                part,
                stage,
                offset,
                len,
                flags: flags & FLAGS,
                checksum,
            },
        )
    }

    #[test]
    fn bytes_are_as_documented() {
        let header = FrameHeader {
            op: OpKey { epoch: 0x0102_0304_0506_0708, tag: 9, attempt: 10, pair: false, track: 16 },
            part: 11,
            stage: 12,
            offset: 13,
            len: 14,
            flags: FLAG_CHECKSUM,
            checksum: 15,
        };
        let bytes = header.encode();
        assert_eq!(bytes[..16], [0xF7, 0xA3, 1, 16, 0, 0, 0, 14, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..28], [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 10]);
        assert_eq!(bytes[28..48], [0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0, 15]);
    }

    #[test]
    fn too_long_and_unknown_flags_are_refused_with_a_good_check_word() {
        let header = FrameHeader {
            op: OpKey { epoch: 0, tag: 0, attempt: 0, pair: false, track: 0 },
            part: 0,
            stage: 0,
            offset: 0,
            len: MAX_FRAME_BYTES as u32 + 1,
            flags: 0,
            checksum: 0,
        };
        assert_eq!(FrameHeader::decode(&header.encode()), Err(HeaderError::TooLong(header.len)));
        let flags = FrameHeader { len: 0, flags: 8, ..header };
        assert_eq!(FrameHeader::decode(&flags.encode()), Err(HeaderError::Flags(8)));
    }

    proptest! {
        #[test]
        fn round_trip(header in headers()) {
            prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn one_damaged_byte_is_always_found(header in headers(), at in 0..FRAME_HEADER_BYTES, change in 1u8..) {
            let mut bytes = header.encode();
            bytes[at] ^= change;
            prop_assert!(FrameHeader::decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in any::<[u8; 24]>(), magic: bool) {
            let mut input = [0; FRAME_HEADER_BYTES];
            input[..24].copy_from_slice(&bytes);
            if magic {
                input[..2].copy_from_slice(&MAGIC);
            }
            prop_assert!(FrameHeader::decode(&input).is_err(), "no check word was computed for this");
        }
    }
}
