//! Bad arguments are refused by value, and nothing is written.

use pccl_quant::{
    DataType, KernelError, Kernels, Level, ReduceOp, finish_average, fold_in_place, fold_in_place_saving,
    fold_into,
};

#[test]
fn different_lengths_are_refused() {
    let (mut own, received, mut other) = ([1; 8], [2; 4], [3; 8]);
    let expected =
        KernelError::LengthMismatch { one: "own", one_bytes: 8, other: "received", other_bytes: 4 };
    let result = fold_in_place(DataType::Uint8, ReduceOp::Sum, &mut own, &received);
    assert_eq!(result.as_ref(), Err(&expected));
    assert_eq!(expected.to_string(), "received has 4 bytes, but own has 8: they must be equally long");
    assert_eq!(
        fold_in_place_saving(DataType::Uint8, ReduceOp::Sum, &mut own, &received, &mut other).as_ref(),
        Err(&expected)
    );
    assert_eq!(fold_into(DataType::Uint8, ReduceOp::Sum, &mut other, &own, &received), Err(expected));
    assert_eq!((own, other), ([1; 8], [3; 8]));
}

#[test]
fn a_short_output_is_refused() {
    let (mut own, received, mut short) = ([1; 8], [2; 8], [3; 4]);
    assert!(fold_into(DataType::Uint8, ReduceOp::Sum, &mut short, &own, &received).is_err());
    assert!(fold_in_place_saving(DataType::Uint8, ReduceOp::Sum, &mut own, &received, &mut short).is_err());
    assert_eq!((own, short), ([1; 8], [3; 4]));
}

#[test]
fn partial_elements_are_refused() {
    for data_type in DataType::ALL.into_iter().filter(|data_type| data_type.size_bytes() > 1) {
        let bytes = data_type.size_bytes() + 1;
        let (mut own, received, mut other) = (vec![1; bytes], vec![2; bytes], vec![3; bytes]);
        let expected = Err(KernelError::PartialElement { bytes, data_type });
        assert_eq!(fold_in_place(data_type, ReduceOp::Sum, &mut own, &received), expected);
        assert_eq!(fold_into(data_type, ReduceOp::Sum, &mut other, &own, &received), expected);
        assert_eq!(fold_in_place_saving(data_type, ReduceOp::Sum, &mut own, &received, &mut other), expected);
        assert_eq!(finish_average(data_type, &mut own, 2), expected);
        assert_eq!((own, other), (vec![1; bytes], vec![3; bytes]));
    }
    let error = KernelError::PartialElement { bytes: 5, data_type: DataType::BFloat16 };
    assert_eq!(error.to_string(), "5 bytes are not a whole number of bf16 elements of 2 bytes");
}

#[test]
fn an_average_over_no_ranks_is_refused() {
    let mut data = [1; 8];
    assert_eq!(finish_average(DataType::Uint8, &mut data, 0), Err(KernelError::NoRanks));
    assert_eq!(data, [1; 8]);
}

#[test]
fn only_available_levels_give_kernels() {
    for level in Level::ALL {
        assert_eq!(Kernels::at(level).map(Kernels::level), level.is_available().then_some(level));
    }
    assert_eq!(Kernels::detect().level(), Level::detect());
    assert!(Level::Base.is_available());
}
