//! A packet: `u16` kind and body. Each input is refused, or decodes to a packet that encodes to itself.
#![no_main]

use pccl_protocol::P2p;
use tinysockets::wire::FRAME_HEADER_BYTES;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first_chunk() else { return };
    let kind = u16::from_be_bytes(*kind);
    if let Ok(packet) = P2p::from_frame(kind, body) {
        let again = P2p::from_frame(kind, &packet.to_frame()[FRAME_HEADER_BYTES..]);
        assert_eq!(again.as_ref(), Ok(&packet));
    }
});
