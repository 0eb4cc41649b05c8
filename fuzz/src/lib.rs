//! The part that the targets for packets share.

/// A target for one direction of packets: `u16` kind and body. Each input is refused, or decodes to a packet that
/// encodes to itself.
#[macro_export]
macro_rules! packets {
    ($direction:ty) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            let Some((kind, body)) = data.split_first_chunk() else { return };
            let kind = u16::from_be_bytes(*kind);
            if let Ok(packet) = <$direction>::from_frame(kind, body) {
                let frame = packet.to_frame();
                let again = <$direction>::from_frame(kind, &frame[tinysockets::wire::FRAME_HEADER_BYTES..]);
                assert_eq!(again.as_ref(), Ok(&packet));
            }
        });
    };
}
