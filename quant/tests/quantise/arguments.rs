//! Bad arguments are refused by value, and nothing is written.

use pccl_quant::{
    DataType,
    quantise::{Block, Codec, NoiseKey, QuantiseError, Rounding, Scheme},
};

const SCHEME: Scheme = Scheme::BlockAffineU8(Block::B64);

#[test]
fn only_floats_become_integers() {
    let integer = DataType::Int32;
    assert_eq!(Codec::new(SCHEME, integer).unwrap_err(), QuantiseError::ElementType(integer));
    let float = DataType::BFloat16;
    for scheme in [Scheme::MinMax(float), Scheme::ZeroPointScale(float)] {
        assert_eq!(Codec::new(scheme, DataType::Float32).unwrap_err(), QuantiseError::CodeType(float));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let codec = Codec::new(SCHEME, DataType::Float32).unwrap();
    let (mut data, mut encoded) = ([1; 8], [2; 11]);
    let error = QuantiseError::EncodedLength { encoded_bytes: 11, elements: 2 };
    assert_eq!(codec.encode(&data, &mut encoded, Rounding::NearestEven, 0), Err(error.clone()));
    assert_eq!(codec.decode_set(&encoded, &mut data), Err(error.clone()));
    assert_eq!(codec.decode_add(&encoded, &mut data), Err(error));
    assert_eq!((data, encoded), ([1; 8], [2; 11]));
    let error = QuantiseError::PartialElement { bytes: 7, data_type: DataType::Float32 };
    assert_eq!(codec.decode_set(&encoded, &mut data[..7]), Err(error));
}

#[test]
fn stochastic_rounding_has_its_conditions() {
    let rounding = Rounding::Stochastic(NoiseKey::new(1, 2, 3));
    let codec = Codec::new(SCHEME, DataType::Float32).unwrap();
    let mut encoded = [0; 9];
    let error = QuantiseError::NoiseOffset { first_element: 65 };
    assert_eq!(codec.encode(&[0; 4], &mut encoded, rounding, 65), Err(error));
    for scheme in
        [Scheme::CastF16, Scheme::CastBf16, Scheme::BlockE4m3(Block::B64), Scheme::BlockE5m2(Block::B64)]
    {
        let codec = Codec::new(scheme, DataType::Float32).unwrap();
        let mut encoded = vec![0; codec.encoded_len(1).unwrap()];
        let result = codec.encode(&[0; 4], &mut encoded, rounding, 0);
        assert_eq!(result, Err(QuantiseError::NoStochastic(scheme)));
    }
}
