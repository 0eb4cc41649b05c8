//! Elements to quantise, and what the tests do with them.

use half::{bf16, f16};
use pccl_quant::{
    DataType,
    quantise::{Block, Codec, Rounding, Scheme},
};
pub(crate) use pccl_quant_reference::data::{FLOATS, bytes_of};

/// Every scheme with every size of block and type of codes.
pub(crate) fn all_schemes() -> Vec<Scheme> {
    let per_block: [fn(Block) -> Scheme; 5] = [
        Scheme::BlockAffineU8,
        Scheme::BlockSymmetricI8,
        Scheme::BlockAffineU4,
        Scheme::BlockE4m3,
        Scheme::BlockE5m2,
    ];
    let integers = DataType::ALL.into_iter().filter(|data_type| !FLOATS.contains(data_type));
    let chunks = integers.flat_map(|codes| [Scheme::MinMax(codes), Scheme::ZeroPointScale(codes)]);
    let blocks = per_block.into_iter().flat_map(|scheme| Block::ALL.map(scheme));
    blocks.chain(chunks).chain([Scheme::CastBf16, Scheme::CastF16]).collect()
}

pub(crate) fn values_of(data_type: DataType, bytes: &[u8]) -> Vec<f64> {
    let value = |bytes: &[u8]| match data_type {
        DataType::Float16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::BFloat16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::Float32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    };
    bytes.chunks_exact(data_type.size_bytes()).map(value).collect()
}

pub(crate) fn encode(codec: &Codec, data: &[u8], rounding: Rounding) -> Vec<u8> {
    let elements = data.len() / codec.data_type().size_bytes();
    let mut encoded = vec![0xA5; codec.encoded_len(elements).unwrap()];
    codec.encode(data, &mut encoded, rounding, 0).unwrap();
    encoded
}

pub(crate) fn decode(codec: &Codec, encoded: &[u8], elements: usize) -> Vec<u8> {
    let mut data = vec![0xA5; elements * codec.data_type().size_bytes()];
    codec.decode_set(encoded, &mut data).unwrap();
    data
}

/// There and back.
pub(crate) fn round_trip(codec: &Codec, values: &[f64], rounding: Rounding) -> Vec<f64> {
    let data = bytes_of(codec.data_type(), values);
    let encoded = encode(codec, &data, rounding);
    values_of(codec.data_type(), &decode(codec, &encoded, values.len()))
}
