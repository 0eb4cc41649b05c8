//! Replays `corpus/`: one file per packet, `u16` kind and body. Files whose name starts with `valid-` must decode and
//! encode to themselves, so they also pin the bytes of every packet; files that start with `bad-` must be refused.
//! To add an input that once caused trouble, drop it into the directory of its direction under one of these names.

use crate::arbitrary::Packets;
use pccl_protocol::{C2m, M2c, P2p};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use tinysockets::wire::FRAME_HEADER_BYTES;

/// Largest file that the generator writes, in bytes.
const MAX_FILE_BYTES: usize = 400;

fn directory<P: Packets>() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(P::DIRECTION)
}

fn replay<P: Packets>() {
    let mut valid_kinds = BTreeSet::new();
    let mut bad = 0;
    for entry in fs::read_dir(directory::<P>()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let kind = u16::from_be_bytes(bytes[..2].try_into().unwrap());
        let decoded = P::parse(kind, &bytes[2..]);
        if name.starts_with("valid-") {
            let packet = decoded.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(&packet.frame()[FRAME_HEADER_BYTES..], &bytes[2..], "{name} changed its encoding");
            valid_kinds.insert(kind);
        } else {
            assert!(name.starts_with("bad-"), "{name}: a name starts with valid- or bad-");
            assert!(decoded.is_err(), "{name} decodes to {:?}", decoded.unwrap());
            bad += 1;
        }
    }
    assert_eq!(valid_kinds, P::ALL_KINDS.iter().copied().collect(), "kinds without a valid file");
    assert!(bad >= P::ALL_KINDS.len(), "{bad} bad files only");
}

#[test]
fn client_to_master() {
    replay::<C2m>();
}

#[test]
fn master_to_client() {
    replay::<M2c>();
}

#[test]
fn peer_to_peer() {
    replay::<P2p>();
}

/// The files of one direction that the generator makes, for the kinds that are `wanted`.
fn generate<P: Packets>(runner: &mut TestRunner, wanted: impl Fn(u16) -> bool) {
    let directory = directory::<P>();
    fs::create_dir_all(&directory).unwrap();
    let write = |name: String, kind: u16, body: &[u8]| {
        let mut bytes = kind.to_be_bytes().to_vec();
        bytes.extend_from_slice(body);
        fs::write(directory.join(name), bytes).unwrap();
    };
    write("bad-kind-0".into(), 0, &[]);
    write("bad-kind-max".into(), u16::MAX, &[0; 16]);
    for variant in P::variants() {
        // The longest of those that fit has the most fields filled in.
        let mut bodies: Vec<(u16, Vec<u8>)> = (0..200)
            .map(|_| variant.new_tree(runner).unwrap().current())
            .map(|packet| (packet.kind_of(), packet.frame().split_off(FRAME_HEADER_BYTES)))
            .filter(|(_, body)| body.len() <= MAX_FILE_BYTES)
            .collect();
        bodies.sort_by_key(|(_, body)| body.len());
        let (kind, short) = bodies.first().unwrap().clone();
        if !wanted(kind) {
            continue;
        }
        let long = bodies.pop().unwrap().1;
        write(format!("valid-{kind:02}-short"), kind, &short);
        write(format!("valid-{kind:02}-long"), kind, &long);
        let mut trailing = long.clone();
        trailing.push(0);
        write(format!("bad-{kind:02}-trailing"), kind, &trailing);
        if !long.is_empty() {
            write(format!("bad-{kind:02}-truncated"), kind, &long[..long.len() - 1]);
        }
        write_lies::<P>(kind, &long, &write);
    }
}

/// The first place of `body` where 0xff makes a decoder fail, once for one byte (a code or flag) and once for four
/// (a length).
fn write_lies<P: Packets>(kind: u16, body: &[u8], write: &impl Fn(String, u16, &[u8])) {
    for (what, width) in [("code", 1), ("length", 4)] {
        for at in 0..(body.len() + 1).saturating_sub(width) {
            let mut altered = body.to_vec();
            altered[at..at + width].fill(0xff);
            if P::parse(kind, &altered).is_err() {
                write(format!("bad-{kind:02}-{what}"), kind, &altered);
                break;
            }
        }
    }
}

/// Writes the corpus anew. For a deliberate change of the protocol only: every file that differs afterwards is a packet
/// that older builds do not understand any more.
#[test]
#[ignore = "writes files; run it after a deliberate change of the protocol"]
fn regenerate() {
    let mut runner = TestRunner::deterministic();
    generate::<C2m>(&mut runner, |_| true);
    generate::<M2c>(&mut runner, |_| true);
    generate::<P2p>(&mut runner, |_| true);
}

/// Writes the files of new kinds of packets and leaves those of the others alone.
#[test]
#[ignore = "writes files; run it after a new kind of packet was added"]
fn generate_new_kinds() {
    fn is_new<P: Packets>(kind: u16) -> bool {
        !directory::<P>().join(format!("valid-{kind:02}-short")).exists()
    }
    let mut runner = TestRunner::deterministic();
    generate::<C2m>(&mut runner, is_new::<C2m>);
    generate::<M2c>(&mut runner, is_new::<M2c>);
    generate::<P2p>(&mut runner, is_new::<P2p>);
}
