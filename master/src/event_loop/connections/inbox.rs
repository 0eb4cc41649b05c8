//! From the bytes of one client to its packets.

use pccl_protocol::{
    C2m, WireError,
    limits::{MAX_FIRST_PACKET_BYTES, MAX_PACKET_BYTES, MAX_SMALL_PACKET_BYTES},
};
use tinysockets::wire::{FRAME_HEADER_BYTES, FrameParser, check_frame_length};

/// Bytes in front of kind and body: the length field.
pub(crate) const LENGTH_BYTES: usize = 4;

/// Received bytes that are not a whole packet yet. A client that has not sent its first packet, or nothing but
/// questions, can make the master hold [`MAX_FIRST_PACKET_BYTES`] only.
#[derive(Debug)]
pub(crate) enum Inbox {
    /// Before the first packet.
    First(Vec<u8>),
    /// After it.
    Registered(FrameParser),
}

impl Inbox {
    /// An inbox that has not seen anything.
    pub(crate) const fn new() -> Self {
        Self::First(Vec::new())
    }

    /// Adds received bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::First(held) => held.extend_from_slice(bytes),
            Self::Registered(parser) => parser.feed(bytes),
        }
    }

    /// Bytes of the next packet, as far as that is known, behind the first one.
    pub(crate) fn next_bytes(&self) -> Option<usize> {
        match self {
            Self::First(_) => None,
            Self::Registered(parser) => parser.next_bytes(),
        }
    }

    /// Takes the next packet; `Ok(None)` means that more bytes are needed.
    pub(crate) fn next_packet(&mut self) -> Result<Option<C2m>, WireError> {
        match self {
            Self::First(held) => {
                let Some(end) = first_frame_end(held)? else { return Ok(None) };
                let kind = u16::from_be_bytes([held[LENGTH_BYTES], held[LENGTH_BYTES + 1]]);
                let packet = C2m::from_frame(kind, &held[FRAME_HEADER_BYTES..end])?;
                if let C2m::StatusRequest(_) | C2m::Examine(_) = packet {
                    held.drain(..end);
                    return Ok(Some(packet));
                }
                let mut parser = FrameParser::new(MAX_PACKET_BYTES);
                parser.feed(&held[end..]);
                *self = Self::Registered(parser);
                Ok(Some(packet))
            }
            Self::Registered(parser) => {
                let Some((kind, body)) = parser.next_frame()? else { return Ok(None) };
                let packet = C2m::from_frame(kind, body)?;
                if body.len() > MAX_SMALL_PACKET_BYTES {
                    parser.give_memory_back();
                }
                Ok(Some(packet))
            }
        }
    }
}

/// Where the first frame of `held` ends, if it is complete.
fn first_frame_end(held: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(prefix) = held.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let len = u32::from_be_bytes(*prefix) as usize;
    check_frame_length(len, MAX_FIRST_PACKET_BYTES)?;
    Ok((held.len() >= LENGTH_BYTES + len).then_some(LENGTH_BYTES + len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{Beat, Nothing, RequestId};
    use proptest::prelude::*;

    fn beat(sequence: u64) -> C2m {
        C2m::Beat(Beat { sequence, ..Beat::default() })
    }

    #[test]
    fn packets_come_out_whatever_the_fragments() {
        let packets = [beat(1), C2m::Leave(Nothing {}), C2m::VotePending(RequestId(7)), beat(2)];
        let stream: Vec<u8> = packets.iter().flat_map(C2m::to_frame).collect();
        for piece in 1..=stream.len() {
            let mut inbox = Inbox::new();
            let mut seen = Vec::new();
            for bytes in stream.chunks(piece) {
                inbox.feed(bytes);
                while let Some(packet) = inbox.next_packet().unwrap() {
                    seen.push(packet);
                }
            }
            assert_eq!(seen, packets, "pieces of {piece}");
        }
    }

    #[test]
    fn the_first_packet_is_small_and_later_ones_may_be_large() {
        let large = u32::try_from(MAX_FIRST_PACKET_BYTES + 1).unwrap().to_be_bytes();
        let mut inbox = Inbox::new();
        inbox.feed(&large);
        assert!(matches!(inbox.next_packet(), Err(WireError::TooLong { .. })));

        let mut inbox = Inbox::new();
        inbox.feed(&beat(1).to_frame());
        assert!(inbox.next_packet().unwrap().is_some());
        inbox.feed(&large);
        assert_eq!(inbox.next_packet(), Ok(None));

        let mut inbox = Inbox::new();
        for request in 0..3 {
            let packet = C2m::StatusRequest(RequestId(request));
            inbox.feed(&packet.to_frame());
            assert_eq!(inbox.next_packet(), Ok(Some(packet)));
        }
        inbox.feed(&large);
        assert!(matches!(inbox.next_packet(), Err(WireError::TooLong { .. })));

        let mut inbox = Inbox::new();
        inbox.feed(&beat(1).to_frame());
        assert!(inbox.next_packet().unwrap().is_some());
        inbox.feed(&u32::MAX.to_be_bytes());
        assert!(matches!(inbox.next_packet(), Err(WireError::TooLong { .. })));
    }

    #[test]
    fn an_unknown_kind_is_an_error() {
        let mut inbox = Inbox::new();
        inbox.feed(&[0, 0, 0, 2, 0xff, 0xff]);
        assert!(matches!(inbox.next_packet(), Err(WireError::BadValue { .. })));
    }

    proptest! {
        #[test]
        fn the_fragments_make_no_difference(
            bytes in prop::collection::vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 0..200),
            register in any::<bool>(),
            piece in 1usize..40,
        ) {
            let mut stream = if register { beat(0).to_frame() } else { Vec::new() };
            stream.extend(bytes);
            let read = |piece: usize| {
                let mut inbox = Inbox::new();
                let mut seen = Vec::new();
                for bytes in stream.chunks(piece) {
                    inbox.feed(bytes);
                    while let Some(next) = inbox.next_packet().transpose() {
                        let failed = next.is_err();
                        seen.push(next);
                        if failed {
                            return seen;
                        }
                    }
                }
                seen
            };
            prop_assert_eq!(read(piece), read(stream.len().max(1)));
        }
    }
}
