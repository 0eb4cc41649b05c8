//! Errors of the driver at every call. A program of its own: memory that it could not free makes each later use of the
//! stand-in slower.

mod common;

use common::{Filled, memory, noise, write_on_stream};
use pccl_cuda::CudaError;
use pccl_hash::tree::level1_digests;
use pccl_quant::{
    DataType,
    quantise::{Block, Codec, Rounding, Scheme},
};
use pccl_quant_reference::data::elements_of;
use pccl_testkit::{
    random::Rng,
    standin::{Count, Standin},
};

const OUT_OF_MEMORY: u32 = 2;
const INVALID_CONTEXT: u32 = 201;
const LAUNCH_FAILED: u32 = 719;

/// Fails every call in turn, until all of `work` gets through without coming to the one that would fail.
fn at_every_call(standin: &Standin, error: u32, mut work: impl FnMut() -> Result<(), CudaError>) -> u64 {
    for number in 1.. {
        standin.fail(number, error);
        let before = standin.count(Count::Calls);
        let result = work();
        let reached = standin.count(Count::Calls) - before >= number;
        standin.fail(0, 0);
        match result {
            Ok(()) if !reached => return number,
            // A device is freed of what is not used any more: that may fail unseen.
            Ok(()) => {}
            Err(CudaError::OutOfMemory { .. }) => assert_eq!(error, OUT_OF_MEMORY),
            Err(CudaError::Lost { code, .. } | CudaError::Failed { code, .. }) => assert_eq!(code, error),
            Err(other) => panic!("{other}"),
        }
        // The next one finds everything as it was.
        work().expect("nothing fails any more");
    }
    unreachable!("a call that is never reached ends it")
}

#[test]
fn an_error_at_any_call_is_told_and_the_next_use_works() {
    let standin = Standin::load().expect("the stand-in");
    let content = noise((5 << 20) + 3, 4);
    let filled = Filled::new(&standin, &content, 0);
    let expected = level1_digests(&content);
    for error in [OUT_OF_MEMORY, INVALID_CONTEXT, LAUNCH_FAILED] {
        let hash = || filled.memory.level1_digests().map(|digests| assert_eq!(digests, expected));
        assert!(at_every_call(&standin, error, hash) > 5);
        let read = || filled.memory.to_vec().map(|copy| assert_eq!(copy, content));
        assert!(at_every_call(&standin, error, read) > 10);
        let write = || {
            let mut memory = filled.memory.clone();
            memory.write(0, &content)?;
            memory.to_vec().map(|copy| assert_eq!(copy, content))
        };
        assert!(at_every_call(&standin, error, write) > 20);
    }
}

#[test]
fn an_error_at_any_call_of_a_coder_is_told_and_the_next_use_works() {
    let standin = Standin::load().expect("the stand-in");
    // More than a batch, so that both halves of the scratch memory are used twice.
    let elements = (2 << 18) + 300;
    let content = elements_of(DataType::Float16, 0, elements, &mut Rng::keyed(&[8]));
    let mut filled = Filled::new(&standin, &content, 0);
    let codec = Codec::new(Scheme::BlockAffineU4(Block::B256), DataType::Float16).expect("a codec");
    let mut expected = vec![0; codec.encoded_len(elements).expect("a length")];
    codec.encode(&content, &mut expected, Rounding::NearestEven, 0).expect("encoded");
    let mut sum = content.clone();
    codec.decode_add(&expected, &mut sum).expect("added");
    let mut of_sum = expected.clone();
    codec.encode(&sum, &mut of_sum, Rounding::NearestEven, 0).expect("encoded");
    let mut decoded = content.clone();
    codec.decode_set(&expected, &mut decoded).expect("decoded");
    let rounding = (Rounding::NearestEven, 0);
    for error in [OUT_OF_MEMORY, INVALID_CONTEXT, LAUNCH_FAILED] {
        let memory = &filled.memory;
        let encode = || {
            let mut encoded = vec![0; expected.len()];
            let result = memory.encode(&codec, &mut encoded, rounding);
            result.map(|()| assert!(encoded == expected))
        };
        assert!(at_every_call(&standin, error, encode) > 10);
        let hop = || {
            let mut encoded = expected.clone();
            let result = memory.add_and_encode(&codec, &mut encoded, None, rounding);
            result.map(|()| assert!(encoded == of_sum))
        };
        assert!(at_every_call(&standin, error, hop) > 20);
        let settle = || memory.clone().settled().map(drop);
        assert!(at_every_call(&standin, error, settle) > 4);
    }
    for error in [OUT_OF_MEMORY, INVALID_CONTEXT, LAUNCH_FAILED] {
        let memory = &mut filled.memory;
        let decode = || {
            memory.decode_set(&codec, &expected)?;
            memory.to_vec().map(|copy| assert!(copy == decoded))
        };
        assert!(at_every_call(&standin, error, decode) > 20);
    }
}

#[test]
fn nothing_is_under_way_after_a_copy_on_a_stream_that_has_failed() {
    let standin = Standin::load().expect("the stand-in");
    let (old, new) = (noise((5 << 20) + 3, 5), noise((5 << 20) + 3, 6));
    let filled = Filled::new(&standin, &old, 0);
    let stream = standin.stream();
    let memory = memory(filled.memory.range().start, new.len(), stream);
    for error in [OUT_OF_MEMORY, INVALID_CONTEXT] {
        let write = || {
            standin.settle(stream);
            assert_eq!(standin.count(Count::Queued), 0);
            let result = write_on_stream(&memory, &new);
            assert_eq!(standin.count(Count::Queued) > 0, result.is_ok(), "{result:?}");
            result
        };
        assert!(at_every_call(&standin, error, write) > 20);
        standin.settle(stream);
        assert!(standin.get(filled.memory.range().start, new.len()) == new);
    }
}

#[test]
fn a_device_without_memory_is_told() {
    let standin = Standin::load().expect("the stand-in");
    let filled = Filled::new(&standin, &[1; 100], 0);
    // Lanes that wait have their scratch memory already: as many are taken as there can be.
    standin.limit(0);
    assert_eq!(filled.memory.to_vec().expect("copies need no device memory"), [1; 100]);
}
