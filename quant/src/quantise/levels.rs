//! The loops, compiled once per level of processor features, and the choice among them by run-time values. The only
//! place of quantisation that needs `unsafe`: to call what is compiled for features that the processor was asked for.

#![allow(unsafe_code)]

use half::{bf16, f16};

use super::{
    Rounding, Scheme,
    block::{self, Add, Nearest, Round, Set, Sink},
    cast,
    chunk::{self, Integer},
    codes::{Affine, Code, Symmetric},
    fp8::Float8,
    noise::{NoiseKey, SEGMENT},
    work::Source,
};
use crate::{DataType, Level};

/// A checked call: what to encode from and to.
pub(super) struct Encode<'a> {
    pub(super) scheme: Scheme,
    pub(super) data_type: DataType,
    pub(super) rounding: Rounding,
    /// Number of the first element, in the operation.
    pub(super) first_element: u64,
    pub(super) data: &'a [u8],
    pub(super) encoded: &'a mut [u8],
}

/// A checked call: what to decode from and to.
pub(super) struct Decode<'a> {
    pub(super) scheme: Scheme,
    pub(super) data_type: DataType,
    pub(super) encoded: &'a [u8],
    pub(super) data: &'a mut [u8],
    pub(super) add: bool,
}

/// `level` must be available on this processor.
pub(super) fn encode(level: Level, call: Encode<'_>) {
    match level {
        // SAFETY: the caller has seen that the processor has the features that the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512::encode(call) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::encode(call) },
        _ => base::encode(call),
    }
}

/// `level` must be available on this processor.
pub(super) fn decode(level: Level, call: Decode<'_>) {
    match level {
        // SAFETY: the caller has seen that the processor has the features that the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512::decode(call) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::decode(call) },
        _ => base::decode(call),
    }
}

fn is_signed(codes: DataType) -> bool {
    matches!(codes, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64)
}

/// The functions of one level. Each is generic and not inlined into its caller, so that every combination of types is
/// compiled with the features of the level, and on its own.
macro_rules! functions {
    ($($features:meta)?) => {
        use super::*;

        $(#[$features])?
        pub(super) fn encode(call: Encode<'_>) {
            match call.data_type {
                DataType::Float32 => encode_of::<f32>(call),
                DataType::Float64 => encode_of::<f64>(call),
                DataType::Float16 => encode_of::<f16>(call),
                DataType::BFloat16 => encode_of::<bf16>(call),
                _ => {}
            }
        }

        $(#[$features])?
        fn encode_of<S: Source>(call: Encode<'_>) {
            match call.scheme {
                Scheme::BlockAffineU8(block) => encode_blocks::<S, Affine<255>>(call, block.elements()),
                Scheme::BlockSymmetricI8(block) => encode_blocks::<S, Symmetric>(call, block.elements()),
                Scheme::BlockAffineU4(block) => encode_blocks::<S, Affine<15>>(call, block.elements()),
                Scheme::BlockE4m3(block) => encode_to::<S, Float8<3>, Nearest>(call, block.elements(), Nearest),
                Scheme::BlockE5m2(block) => encode_to::<S, Float8<2>, Nearest>(call, block.elements(), Nearest),
                Scheme::CastBf16 => cast::encode::<S, bf16>(call.data, call.encoded),
                Scheme::CastF16 => cast::encode::<S, f16>(call.data, call.encoded),
                Scheme::MinMax(codes) | Scheme::ZeroPointScale(codes) => match codes.size_bytes() {
                    1 => encode_chunk::<S, u8>(call, codes),
                    2 => encode_chunk::<S, u16>(call, codes),
                    4 => encode_chunk::<S, u32>(call, codes),
                    _ => encode_chunk::<S, u64>(call, codes),
                },
            }
        }

        $(#[$features])?
        fn encode_blocks<S: Source, C: Code>(call: Encode<'_>, block: usize) {
            match call.rounding {
                Rounding::NearestEven => encode_to::<S, C, Nearest>(call, block, Nearest),
                Rounding::Stochastic(key) => encode_to::<S, C, NoiseKey>(call, block, key),
            }
        }

        $(#[$features])?
        #[inline(never)]
        fn encode_to<S: Source, C: Code, R: Round>(call: Encode<'_>, block: usize, rounding: R) {
            let first_segment = call.first_element / SEGMENT as u64;
            block::encode::<S, C, R>(call.data, call.encoded, block, rounding, first_segment);
        }

        $(#[$features])?
        #[inline(never)]
        fn encode_chunk<S: Source, I: Integer>(call: Encode<'_>, codes: DataType) {
            let is_min_max = matches!(call.scheme, Scheme::MinMax(_));
            let noise = match call.rounding {
                Rounding::NearestEven => None,
                Rounding::Stochastic(key) => Some(key),
            };
            let first_segment = call.first_element / SEGMENT as u64;
            let signed = is_signed(codes);
            chunk::encode::<S, I>(call.data, call.encoded, is_min_max, signed, noise, first_segment);
        }

        $(#[$features])?
        pub(super) fn decode(call: Decode<'_>) {
            match call.data_type {
                DataType::Float32 => decode_of::<f32>(call),
                DataType::Float64 => decode_of::<f64>(call),
                DataType::Float16 => decode_of::<f16>(call),
                DataType::BFloat16 => decode_of::<bf16>(call),
                _ => {}
            }
        }

        $(#[$features])?
        fn decode_of<S: Source>(call: Decode<'_>) {
            if call.add {
                decode_to::<S, Add>(call);
            } else {
                decode_to::<S, Set>(call);
            }
        }

        $(#[$features])?
        fn decode_to<S: Source, K: Sink>(call: Decode<'_>) {
            match call.scheme {
                Scheme::BlockAffineU8(block) => decode_blocks::<S, Affine<255>, K>(call, block.elements()),
                Scheme::BlockSymmetricI8(block) => decode_blocks::<S, Symmetric, K>(call, block.elements()),
                Scheme::BlockAffineU4(block) => decode_blocks::<S, Affine<15>, K>(call, block.elements()),
                Scheme::BlockE4m3(block) => decode_blocks::<S, Float8<3>, K>(call, block.elements()),
                Scheme::BlockE5m2(block) => decode_blocks::<S, Float8<2>, K>(call, block.elements()),
                Scheme::CastBf16 => cast::decode::<S, bf16, K>(call.encoded, call.data),
                Scheme::CastF16 => cast::decode::<S, f16, K>(call.encoded, call.data),
                Scheme::MinMax(codes) | Scheme::ZeroPointScale(codes) => match codes.size_bytes() {
                    1 => decode_chunk::<S, u8, K>(call, codes),
                    2 => decode_chunk::<S, u16, K>(call, codes),
                    4 => decode_chunk::<S, u32, K>(call, codes),
                    _ => decode_chunk::<S, u64, K>(call, codes),
                },
            }
        }

        $(#[$features])?
        #[inline(never)]
        fn decode_blocks<S: Source, C: Code, K: Sink>(call: Decode<'_>, block: usize) {
            block::decode::<S, C, K>(call.encoded, call.data, block);
        }

        $(#[$features])?
        #[inline(never)]
        fn decode_chunk<S: Source, I: Integer, K: Sink>(call: Decode<'_>, codes: DataType) {
            chunk::decode::<S, I, K>(call.encoded, call.data, is_signed(codes));
        }
    };
}

mod base {
    functions!();
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    functions!(target_feature(enable = "avx2,f16c"));
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    functions!(target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq"));
}
