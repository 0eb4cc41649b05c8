//! Values of the protocol in files: in the form that they have on the wire, so that there is one form of each.

use serde::{
    Deserializer, Serializer,
    de::{Error, Visitor},
};
use std::{fmt, marker::PhantomData};
use tinysockets::wire::{Decode, Encode, decode_exact};

/// Writes a value as its bytes on the wire. With [`deserialize`] for `serde(with = ...)`.
pub fn serialize<T: Encode, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes);
    serializer.serialize_bytes(&bytes)
}

/// Reads what [`serialize`] has written.
pub fn deserialize<'de, T: Decode, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Wire<T>(PhantomData<T>);

    impl<T: Decode> Visitor<'_> for Wire<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes in the form of the wire")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<T, E> {
            decode_exact(bytes).map_err(E::custom)
        }
    }

    deserializer.deserialize_bytes(Wire(PhantomData))
}
