//! The fixed headers: the preamble of a connection, the reply to it, and the header of a data frame, also behind a
//! check word that is right. Each input is refused, or gives a header that encodes to itself.
#![no_main]

use pccl_hash::crc32c;
use tinysockets::{
    link::frame::{FRAME_HEADER_BYTES, FrameHeader},
    preamble::{PREAMBLE_BYTES, Preamble, REPLY_BYTES, Reply},
};

/// Where the check word of a frame header begins: at its end.
const CHECK_AT: usize = FRAME_HEADER_BYTES - 4;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(preamble) =
        data.first_chunk::<PREAMBLE_BYTES>().and_then(|bytes| Preamble::decode(bytes).ok())
    {
        assert_eq!(Preamble::decode(&preamble.encode()), Ok(preamble));
    }
    if let Some(reply) = data.first_chunk::<REPLY_BYTES>().and_then(|bytes| Reply::decode(bytes).ok()) {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
    if let Some(bytes) = data.first_chunk::<FRAME_HEADER_BYTES>() {
        let mut checked = *bytes;
        let check = crc32c(&checked[..CHECK_AT]);
        checked[CHECK_AT..].copy_from_slice(&check.to_be_bytes());
        for bytes in [bytes, &checked] {
            if let Ok(header) = FrameHeader::decode(bytes) {
                assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
            }
        }
    }
});
