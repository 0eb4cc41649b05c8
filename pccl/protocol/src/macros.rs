//! Declarations of structs, codes and packet sets together with their encodings.

/// A value that is kept in a file is kept in the form that it has on the wire: serde sees its bytes.
macro_rules! serialized_as_wire {
    ($($name:ty),* $(,)?) => { $(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                crate::kept::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::kept::deserialize(deserializer)
            }
        }
    )* };
}

/// A struct that is encoded field by field in the order of declaration.
macro_rules! wire_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty),* }

        impl tinysockets::wire::Encode for $name {
            fn encode(&self, _out: &mut Vec<u8>) {
                $(tinysockets::wire::Encode::encode(&self.$field, _out);)*
            }
        }

        impl tinysockets::wire::Decode for $name {
            fn decode(_reader: &mut tinysockets::wire::Reader<'_>) -> Result<Self, tinysockets::wire::WireError> {
                Ok(Self { $($field: tinysockets::wire::Decode::decode(_reader)?),* })
            }
        }

        serialized_as_wire!($name);
    };
}

/// A fieldless enum with a fixed one-byte code per variant.
macro_rules! wire_code {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $code:literal => $text:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant),* }

        impl $name {
            /// Every variant, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code on the wire.
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code),* }
            }

            /// The variant with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// In words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.text())
            }
        }

        impl tinysockets::wire::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(self.code());
            }
        }

        impl tinysockets::wire::Decode for $name {
            fn decode(reader: &mut tinysockets::wire::Reader<'_>) -> Result<Self, tinysockets::wire::WireError> {
                let code = <u8 as tinysockets::wire::Decode>::decode(reader)?;
                let what = stringify!($name);
                Self::from_code(code).ok_or(tinysockets::wire::WireError::BadValue { what, value: code.into() })
            }
        }

        serialized_as_wire!($name);
    };
}

/// An enum whose variants carry one body each behind a code of type `$code_ty`.
macro_rules! wire_union {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident($body:ty) = $code:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_meta])* $variant($body)),* }

        impl $name {
            /// Every code on the wire.
            pub const CODES: &'static [u8] = &[$($code),*];
        }

        impl tinysockets::wire::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Self::$variant(body) => {
                    out.push($code);
                    tinysockets::wire::Encode::encode(body, out);
                }),* }
            }
        }

        impl tinysockets::wire::Decode for $name {
            fn decode(reader: &mut tinysockets::wire::Reader<'_>) -> Result<Self, tinysockets::wire::WireError> {
                match <u8 as tinysockets::wire::Decode>::decode(reader)? {
                    $($code => Ok(Self::$variant(tinysockets::wire::Decode::decode(reader)?)),)*
                    other => {
                        let what = stringify!($name);
                        Err(tinysockets::wire::WireError::BadValue { what, value: other.into() })
                    }
                }
            }
        }

        serialized_as_wire!($name);
    };
}

/// The packets of one direction: each variant has a body, a packet kind and the rules of that kind.
macro_rules! packets {
    ($(#[$meta:meta])* pub enum $name:ident: $rules_ty:ident {
        $($(#[$variant_meta:meta])* $variant:ident($body:ty) = $kind:literal => $rules:expr),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_meta])* $variant($body)),* }

        impl $name {
            /// Every packet kind of this direction.
            pub const KINDS: &'static [u16] = &[$($kind),*];

            /// Kind, name and rules of every packet of this direction.
            pub const TABLE: &'static [(u16, &'static str, $rules_ty)] =
                &[$(($kind, stringify!($variant), $rules)),*];

            /// The rules of packets of this kind.
            pub const fn rules(&self) -> $rules_ty {
                match self { $(Self::$variant(_) => const { $rules }),* }
            }

            /// Whether it counts among the packets of a session ([`Return`](crate::Return)).
            pub const fn is_numbered(&self) -> bool {
                self.rules().is_numbered
            }

            /// The packet kind of this packet.
            pub const fn kind(&self) -> u16 {
                match self { $(Self::$variant(_) => $kind),* }
            }

            /// Name of the packet, for logs.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => stringify!($variant)),* }
            }

            /// The packet as one frame, ready to be written to a stream.
            pub fn to_frame(&self) -> Vec<u8> {
                match self { $(Self::$variant(body) => tinysockets::wire::frame($kind, body)),* }
            }

            /// Decodes the body of a frame of this kind; leftover bytes are an error.
            pub fn from_frame(kind: u16, body: &[u8]) -> Result<Self, tinysockets::wire::WireError> {
                match kind {
                    $($kind => Ok(Self::$variant(tinysockets::wire::decode_exact(body)?)),)*
                    other => {
                        let what = concat!(stringify!($name), " packet kind");
                        Err(tinysockets::wire::WireError::BadValue { what, value: other.into() })
                    }
                }
            }
        }

        /// The kind, and the body.
        impl tinysockets::wire::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                tinysockets::wire::Encode::encode(&self.kind(), out);
                match self { $(Self::$variant(body) => tinysockets::wire::Encode::encode(body, out)),* }
            }
        }

        impl tinysockets::wire::Decode for $name {
            fn decode(reader: &mut tinysockets::wire::Reader<'_>) -> Result<Self, tinysockets::wire::WireError> {
                let kind = <u16 as tinysockets::wire::Decode>::decode(reader)?;
                let body = reader.take(reader.remaining(), stringify!($name))?;
                Self::from_frame(kind, body)
            }
        }

        serialized_as_wire!($name);
    };
}
