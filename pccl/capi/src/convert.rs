//! Values of the header as values of the library. Whatever is not in an enum is refused.

use crate::{
    failure::{Failure, GIVE_UP, Outcome},
    types::{QuantizationOptions, SocketAddress},
};
use pccl::{Algorithm, Block, DataType, Quantisation, ReduceOp, Remedy, Schedule, Scheme, SyncStrategy};
use std::{
    ffi::c_int,
    net::{IpAddr, SocketAddr},
};

/// The header calls this `PCCL_NO_TIMEOUT`.
pub(crate) const NO_TIMEOUT: u64 = u64::MAX;
/// The header calls this `PCCL_DEFAULT_TIMEOUT`.
pub(crate) const DEFAULT_TIMEOUT: u64 = u64::MAX - 1;

/// A `pcclDataType_t`; the library has the same numbers.
pub(crate) fn data_type(value: c_int) -> Outcome<DataType> {
    let known = u8::try_from(value).ok().and_then(DataType::from_code);
    known.ok_or_else(|| Failure::argument(format!("{value} is no pcclDataType_t")))
}

/// A `pcclRedOp_t`; the library has the same numbers.
pub(crate) fn reduce_op(value: c_int) -> Outcome<ReduceOp> {
    let known = u8::try_from(value).ok().and_then(ReduceOp::from_code);
    known.ok_or_else(|| Failure::argument(format!("{value} is no pcclRedOp_t")))
}

/// A `pcclSharedStateSyncStrategy_t`.
pub(crate) fn strategy(value: c_int) -> Outcome<SyncStrategy> {
    Ok(match value {
        0 => SyncStrategy::EnforcePopular,
        1 => SyncStrategy::ReceiveOnly,
        2 => SyncStrategy::SendOnly,
        _ => return Err(Failure::argument(format!("{value} is no pcclSharedStateSyncStrategy_t"))),
    })
}

/// A `pcclDistributionHint_t`, which says nothing to this library.
pub(crate) fn distribution_hint(value: c_int) -> Outcome {
    match value {
        0..=2 => Ok(()),
        _ => Err(Failure::argument(format!("{value} is no pcclDistributionHint_t"))),
    }
}

/// Whether a `pcclDeviceType_t` is that of CUDA.
pub(crate) fn is_on_device(value: c_int) -> Outcome<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failure::argument(format!("{value} is no pcclDeviceType_t"))),
    }
}

/// How to quantise: what the header calls an algorithm, and the type that travels where the algorithm leaves a choice.
pub(crate) fn quantisation(options: &QuantizationOptions, data: DataType) -> Outcome<Option<Quantisation>> {
    let travelling = || data_type(options.quantized_data_type);
    let scheme = match options.algorithm {
        0 => return Ok(None),
        // The original has no way to say "as it is" with an algorithm but the type itself.
        1 | 2 if travelling()? == data => return Ok(None),
        1 => Scheme::MinMax(travelling()?),
        2 => Scheme::ZeroPointScale(travelling()?),
        100 => Scheme::BlockAffineU8(Block::default()),
        101 => Scheme::BlockSymmetricI8(Block::default()),
        102 => Scheme::BlockAffineU4(Block::default()),
        103 => Scheme::CastBf16,
        104 => Scheme::CastF16,
        other => return Err(Failure::argument(format!("{other} is no pcclQuantizationAlgorithm_t"))),
    };
    Ok(Some(scheme.into()))
}

/// A `pcclRemedy_t`; none if there was no failure.
pub(crate) fn remedy(value: c_int) -> Outcome<Option<Remedy>> {
    Ok(Some(match value {
        0 => return Ok(None),
        1 => Remedy::Retry,
        2 => Remedy::WaitForPeers,
        3 => Remedy::Reconnect,
        GIVE_UP => Remedy::GiveUp,
        5 => Remedy::FormGroup,
        _ => return Err(Failure::argument(format!("{value} is no pcclRemedy_t"))),
    }))
}

/// A `pcclSchedule_t` that can be chosen.
pub(crate) fn schedule(value: c_int) -> Outcome<Schedule> {
    Ok(match value {
        0 => Schedule::Automatic,
        1 => Schedule::Ring,
        5 => Schedule::Pairwise,
        6 => Schedule::Sites,
        2..=4 => return Err(Failure::argument(format!("the pcclSchedule_t {value} cannot be chosen"))),
        _ => return Err(Failure::argument(format!("{value} is no pcclSchedule_t"))),
    })
}

/// The `pcclSchedule_t` that a reduce took; the protocol has the same numbers.
pub(crate) fn schedule_code(algorithm: Algorithm) -> c_int {
    algorithm.code().into()
}

/// The `pcclSchedule_t` of a schedule that callers can choose.
pub(crate) fn chosen_schedule_code(schedule: Schedule) -> c_int {
    schedule_code(schedule.algorithm())
}

/// An address of the header.
pub(crate) fn socket_address(address: &SocketAddress) -> Outcome<SocketAddr> {
    let host: IpAddr = match address.inet.protocol {
        0 => address.inet.ipv4.into(),
        1 => address.inet.ipv6.into(),
        other => return Err(Failure::argument(format!("{other} is no ccoip_inet_protocol_t"))),
    };
    Ok(SocketAddr::new(host, address.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{InetAddress, code};

    #[test]
    fn the_types_have_the_numbers_of_the_header() {
        let types: Vec<String> = (0..12).map(|value| data_type(value).expect("in").to_string()).collect();
        assert_eq!(types.join(" "), "u8 i8 i16 u16 u32 i32 u64 i64 f16 bf16 f32 f64");
        let ops: Vec<ReduceOp> = (0..5).map(|value| reduce_op(value).expect("in")).collect();
        assert_eq!(ops, [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min]);
    }

    #[test]
    fn schedules_have_the_numbers_of_the_header() {
        let names: Vec<_> =
            (0..7).filter_map(Algorithm::from_code).map(|it| (schedule_code(it), it.to_string())).collect();
        let names: Vec<_> = names.iter().map(|(code, name)| format!("{code} {name}")).collect();
        let all = "0 automatic, 1 ring, 2 all-gather, 3 direct, 4 reduce-broadcast, 5 pairwise, 6 sites";
        assert_eq!(names.join(", "), all);
        assert_eq!(schedule(0), Ok(Schedule::Automatic));
        assert_eq!(schedule(1), Ok(Schedule::Ring));
        assert_eq!(schedule(5), Ok(Schedule::Pairwise));
        assert_eq!(schedule(6), Ok(Schedule::Sites));
    }

    #[test]
    fn what_is_in_no_enum_is_refused() {
        for value in [-1, 12, i32::MAX, i32::MIN] {
            assert_eq!(data_type(value).unwrap_err().code, code::INVALID_ARGUMENT);
            assert_eq!(reduce_op(value).unwrap_err().code, code::INVALID_ARGUMENT);
            assert_eq!(strategy(value).unwrap_err().code, code::INVALID_ARGUMENT);
            assert_eq!(distribution_hint(value).unwrap_err().code, code::INVALID_ARGUMENT);
            assert_eq!(is_on_device(value).unwrap_err().code, code::INVALID_ARGUMENT);
            assert_eq!(schedule(value).unwrap_err().code, code::INVALID_ARGUMENT);
        }
        for small in 2..=4 {
            assert!(schedule(small).unwrap_err().text.contains("cannot be chosen"));
        }
        let options = |algorithm, quantized_data_type| QuantizationOptions { algorithm, quantized_data_type };
        let of = |algorithm, data_type| quantisation(&options(algorithm, data_type), DataType::Float32);
        assert_eq!(of(3, 0).unwrap_err().code, code::INVALID_ARGUMENT);
        assert_eq!(of(1, 77).unwrap_err().code, code::INVALID_ARGUMENT);
        assert_eq!(of(0, 77), Ok(None));
        assert_eq!(of(2, 10), Ok(None));
        assert_eq!(of(1, 0), Ok(Some(Scheme::MinMax(DataType::Uint8).into())));
        assert_eq!(of(104, 77), Ok(Some(Scheme::CastF16.into())));
    }

    #[test]
    fn addresses_of_both_families() {
        let mut ipv6 = [0; 16];
        ipv6[15] = 1;
        let address = |protocol| SocketAddress {
            inet: InetAddress { protocol, ipv4: [10, 0, 0, 7], ipv6 },
            port: 48148,
        };
        assert_eq!(socket_address(&address(0)).expect("good").to_string(), "10.0.0.7:48148");
        assert_eq!(socket_address(&address(1)).expect("good").to_string(), "[::1]:48148");
        assert_eq!(socket_address(&address(2)).unwrap_err().code, code::INVALID_ARGUMENT);
    }
}
