//! Every packet survives its encoding, and no other bytes do.

use crate::arbitrary::{ArbVariants, Packets};
use pccl_protocol::{C2m, M2c, Operation, P2p, WireError};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use std::collections::BTreeSet;
use tinysockets::wire::FRAME_HEADER_BYTES;

const CASES: u32 = 256;

fn runner() -> TestRunner {
    TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(CASES) })
}

/// Runs `check` with arbitrary packets of every kind of one direction.
fn for_every_kind<P: Packets>(check: impl Fn(&P) -> Result<(), TestCaseError>) {
    let seen = std::cell::RefCell::new(BTreeSet::new());
    for variant in P::variants() {
        runner()
            .run(&variant, |packet| {
                seen.borrow_mut().insert(packet.kind_of());
                check(&packet)
            })
            .unwrap();
    }
    assert_eq!(
        seen.into_inner(),
        P::ALL_KINDS.iter().copied().collect::<BTreeSet<_>>(),
        "kinds without a test"
    );
}

#[test]
fn every_kind_of_operation_is_tried() {
    assert_eq!(Operation::variants().len(), Operation::CODES.len());
}

fn survives<P: Packets>(packet: &P) -> Result<(), TestCaseError> {
    let frame = packet.frame();
    let len = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
    prop_assert_eq!(len, frame.len() - 4);
    prop_assert_eq!(u16::from_be_bytes(frame[4..6].try_into().unwrap()), packet.kind_of());
    let again = P::parse(packet.kind_of(), &frame[FRAME_HEADER_BYTES..]);
    prop_assert_eq!(again, Ok(packet.clone()));
    Ok(())
}

fn every_truncation_is_an_error<P: Packets>(packet: &P) -> Result<(), TestCaseError> {
    let frame = packet.frame();
    let body = &frame[FRAME_HEADER_BYTES..];
    for end in 0..body.len() {
        let short = P::parse(packet.kind_of(), &body[..end]);
        prop_assert!(short.is_err(), "{} of {} bytes decode to {:?}", end, body.len(), short);
    }
    Ok(())
}

fn a_byte_more_is_an_error<P: Packets>(packet: &P) -> Result<(), TestCaseError> {
    let mut frame = packet.frame();
    frame.push(0);
    let long = P::parse(packet.kind_of(), &frame[FRAME_HEADER_BYTES..]);
    prop_assert_eq!(long, Err(WireError::Trailing { left: 1 }));
    Ok(())
}

#[test]
fn packets_survive_their_encoding() {
    for_every_kind::<C2m>(survives);
    for_every_kind::<M2c>(survives);
    for_every_kind::<P2p>(survives);
}

#[test]
fn truncated_packets_are_errors() {
    for_every_kind::<C2m>(every_truncation_is_an_error);
    for_every_kind::<M2c>(every_truncation_is_an_error);
    for_every_kind::<P2p>(every_truncation_is_an_error);
}

#[test]
fn packets_with_bytes_left_over_are_errors() {
    for_every_kind::<C2m>(a_byte_more_is_an_error);
    for_every_kind::<M2c>(a_byte_more_is_an_error);
    for_every_kind::<P2p>(a_byte_more_is_an_error);
}

#[test]
fn kinds_that_do_not_exist_are_errors() {
    fn check<P: Packets>() {
        for kind in (0..=u16::MAX).filter(|kind| !P::ALL_KINDS.contains(kind)) {
            assert!(matches!(P::parse(kind, &[]), Err(WireError::BadValue { .. })), "kind {kind}");
        }
    }
    check::<C2m>();
    check::<M2c>();
    check::<P2p>();
}

/// Whatever decodes has exactly one encoding: the bytes that it was decoded from.
fn decodes_to_itself_or_fails<P: Packets>(kind: u16, body: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(packet) = P::parse(kind, body) {
        prop_assert_eq!(&packet.frame()[FRAME_HEADER_BYTES..], body);
    }
    Ok(())
}

fn random_bytes<P: Packets>() {
    for kind in P::ALL_KINDS {
        // Small values, so that length fields and codes are often right.
        let byte = prop_oneof![3 => 0u8..3, 1 => any::<u8>()];
        runner()
            .run(&prop::collection::vec(byte, 0..300), |body| decodes_to_itself_or_fails::<P>(*kind, &body))
            .unwrap();
    }
}

#[test]
fn random_bytes_never_panic() {
    random_bytes::<C2m>();
    random_bytes::<M2c>();
    random_bytes::<P2p>();
}

fn altered_packets<P: Packets>() {
    let packet_and_changes =
        (P::arb(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4));
    runner()
        .run(&packet_and_changes, |(packet, changes)| {
            let mut body = packet.frame().split_off(FRAME_HEADER_BYTES);
            for (at, byte) in changes {
                if !body.is_empty() {
                    let at = at.index(body.len());
                    body[at] = byte;
                }
            }
            decodes_to_itself_or_fails::<P>(packet.kind_of(), &body)
        })
        .unwrap();
}

#[test]
fn altered_packets_never_panic() {
    altered_packets::<C2m>();
    altered_packets::<M2c>();
    altered_packets::<P2p>();
}
