//! Records as they are sent, and as they come from somebody who does not want the connection to go on.

use pccl_testkit::random::Rng;

use super::*;

/// The two ends of a connection.
fn pair(suite: Suite) -> (Sealer, Opener) {
    pair_in(WireMode::Encrypt, suite)
}

fn pair_in(mode: WireMode, suite: Suite) -> (Sealer, Opener) {
    let sending = Seal::new(suite, mode, [1; KEY_BYTES], [2; KEY_BYTES]).unwrap();
    let receiving = Seal::new(suite, mode, [2; KEY_BYTES], [1; KEY_BYTES]).unwrap();
    (sending.sealer, receiving.opener)
}

fn seal(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let sealed = sealer.seal(bytes.len(), |from, room| room.copy_from_slice(&bytes[from..from + room.len()]));
    assert_eq!(sealed.unwrap(), bytes.len());
    let record = sealer.waiting().to_vec();
    sealer.sent(record.len());
    record
}

/// Everything that comes out of `stream`, received in pieces of at most this number of bytes.
fn open(opener: &mut Opener, stream: &[u8], piece: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    open_into(opener, stream, piece, &mut all).map(|()| all)
}

fn open_into(opener: &mut Opener, mut stream: &[u8], piece: usize, all: &mut Vec<u8>) -> io::Result<()> {
    loop {
        while opener.open()? {
            all.extend_from_slice(opener.plain());
            opener.take(usize::MAX);
        }
        if stream.is_empty() {
            return Ok(());
        }
        let room = opener.room();
        let count = room.len().min(piece).min(stream.len());
        room[..count].copy_from_slice(&stream[..count]);
        opener.received(count);
        stream = &stream[count..];
    }
}

const SUITES: [Suite; 2] = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305];

#[test]
fn records_of_all_sizes_survive_in_any_pieces() {
    for (suite, mode) in SUITES.iter().flat_map(|suite| WireMode::ALL.iter().map(move |mode| (*suite, *mode)))
    {
        for piece in [1, 7, 4096, usize::MAX] {
            let (mut sealer, mut opener) = pair_in(mode, suite);
            let sizes = [
                0,
                1,
                100,
                8191,
                8192,
                20_000,
                RECORD_BYTES,
                3,
                0,
                RECORD_BYTES - 1,
                3 * RECORD_BYTES + 7,
                9,
            ];
            let plain: Vec<u8> = (0..sizes.iter().sum()).map(|i: usize| (i % 251) as u8).collect();
            let (mut stream, mut rest) = (Vec::new(), plain.as_slice());
            for size in sizes {
                stream.extend(seal(&mut sealer, &rest[..size]));
                rest = &rest[size..];
            }
            assert!(open(&mut opener, &stream, piece).unwrap() == plain, "{suite}, {mode}, by {piece}");
        }
    }
}

#[test]
fn one_changed_bit_anywhere_opens_nothing_from_there_on() {
    WireMode::ALL.iter().copied().for_each(no_changed_bit_is_taken);
}

fn no_changed_bit_is_taken(mode: WireMode) {
    let (mut sealer, _) = pair_in(mode, Suite::Aes128Gcm);
    let first = seal(&mut sealer, b"first");
    let second = seal(&mut sealer, b"second");
    assert_eq!(second.windows(6).any(|bytes| bytes == b"second"), mode == WireMode::Integrity);
    for bit in 0..8 * second.len() {
        let (_, mut opener) = pair_in(mode, Suite::Aes128Gcm);
        let mut damaged = second.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(open(&mut opener, &first, 64).unwrap(), b"first");
        // A longer length waits for bytes that belong to the tag of another record.
        damaged.extend(seal(&mut sealer, &[0; RECORD_BYTES]));
        let opened = open(&mut opener, &damaged, 4096);
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidData, "bit {bit}");
        assert!(opener.open().is_err() && opener.plain().is_empty(), "and nothing afterwards");
    }
}

#[test]
fn records_have_one_place_in_one_direction_of_one_connection() {
    let (mut sealer, mut opener) = pair(Suite::ChaCha20Poly1305);
    let (first, second) = (seal(&mut sealer, b"first"), seal(&mut sealer, b"second"));
    assert!(open(&mut opener, &second, 64).is_err(), "the first one is missing");
    let (_, mut opener) = pair(Suite::ChaCha20Poly1305);
    assert_eq!(open(&mut opener, &first, 64).unwrap(), b"first");
    assert!(open(&mut opener, &first, 64).is_err(), "it comes again");
    let back =
        Seal::new(Suite::ChaCha20Poly1305, WireMode::Encrypt, [1; KEY_BYTES], [2; KEY_BYTES]).unwrap().opener;
    let mut reflected = back;
    assert!(open(&mut reflected, &first, 64).is_err(), "it comes back to whoever sent it");
    let other =
        Seal::new(Suite::ChaCha20Poly1305, WireMode::Encrypt, [2; KEY_BYTES], [3; KEY_BYTES]).unwrap().opener;
    let mut spliced = other;
    assert!(open(&mut spliced, &first, 64).is_err(), "it is of another connection");
}

#[test]
fn before_the_bytes_of_another_kind_a_record_is_all_that_is_read() {
    let (mut sealer, mut opener) = pair_in(WireMode::Off, Suite::Aes128Gcm);
    let stream = [seal(&mut sealer, b"the reply"), b"what follows".to_vec()].concat();
    let (mut taken, mut said) = (0, Vec::new());
    while said.is_empty() {
        let room = opener.room();
        let count = room.len().min(stream.len() - taken);
        room[..count].copy_from_slice(&stream[taken..taken + count]);
        opener.received(count);
        taken += count;
        if opener.open().unwrap() {
            said.extend_from_slice(opener.plain());
        }
    }
    assert_eq!((said.as_slice(), &stream[taken..]), (&b"the reply"[..], &b"what follows"[..]));
}

#[test]
fn lengths_without_a_meaning_take_no_memory() {
    for length in [0, 15, RECORD_BYTES as u32 + 17, u32::MAX] {
        let (_, mut opener) = pair(Suite::Aes128Gcm);
        assert!(open(&mut opener, &length.to_be_bytes(), 4).is_err());
        assert!(opener.is_ready() && opener.bytes.len() <= READ_AHEAD_BYTES);
    }
}

/// How often random input is tried in each of the two tests that do so: together with those of handshakes that is ten
/// million times with `PCCL_TEST_FULL=1`.
fn rounds() -> u64 {
    if std::env::var_os("PCCL_TEST_FULL").is_some() { 3_000_000 } else { 20_000 }
}

#[test]
fn random_bytes_never_open() {
    let rounds = rounds() / 2;
    for suite in [Suite::Aes128Gcm, Suite::ChaCha20Poly1305] {
        let (_, mut opener) = pair(suite);
        for round in 0..rounds {
            let mut rng = Rng::keyed(&[round, suite as u64]);
            // A length that has a meaning, most of the time.
            let any = rng.next() as u32;
            let length = if rng.index(4) == 0 { any } else { 16 + any % 200 };
            let size = rng.index(300);
            let stream = [&length.to_be_bytes()[..], &rng.bytes(size)].concat();
            let piece = 1 + rng.index(64);
            match open(&mut opener, &stream, piece) {
                Ok(bytes) => assert!(bytes.is_empty(), "round {round}"),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "round {round}");
                    assert!(opener.plain().is_empty() && opener.open().is_err(), "round {round}");
                    opener = pair(suite).1;
                }
            }
            assert!(opener.bytes.len() <= RECORDS_AT_ONCE * RECORD_ROOM);
        }
    }
}

#[test]
fn a_direction_goes_over_to_new_keys() {
    let (mut sealer, mut opener) = pair(Suite::Aes128Gcm);
    (sealer.keys.next, opener.keys.next) = (RECORDS_PER_KEY - 1, RECORDS_PER_KEY - 1);
    let old = sealer.keys.secret.0;
    let stream = [seal(&mut sealer, b"old"), seal(&mut sealer, b"new")].concat();
    assert_eq!(open(&mut opener, &stream, 64).unwrap(), b"oldnew");
    assert_ne!(sealer.keys.secret.0, old);
    assert_eq!(sealer.keys.next, RECORDS_PER_KEY + 1);
}

/// One of the things that somebody on the way can do to records: those of this stream, and those of others that the
/// same two ends, or one of them with somebody else, have sent.
fn harm(rng: &mut Rng, records: &mut Vec<Vec<u8>>, others: &[Vec<u8>]) {
    let at = rng.index(records.len());
    match rng.index(8) {
        // Bytes changed, a record cut short, gone, repeated, moved, one of another stream, another length, all cut off.
        0 => {
            let byte = rng.index(records[at].len());
            records[at][byte] ^= 1 << rng.index(8);
        }
        1 => {
            let left = rng.index(records[at].len());
            records[at].truncate(left);
        }
        2 => drop(records.remove(at)),
        3 => {
            let again = records[at].clone();
            records.insert(rng.index(records.len() + 1), again);
        }
        4 => {
            let other = rng.index(records.len());
            records.swap(at, other);
        }
        5 => records.insert(at, others[rng.index(others.len())].clone()),
        6 => {
            records[at].iter_mut().zip((rng.next() as u32).to_be_bytes()).for_each(|(byte, new)| *byte = new)
        }
        _ => records.truncate(at),
    }
    records.retain(|record| !record.is_empty());
    if records.is_empty() {
        records.push(vec![0]);
    }
}

#[test]
fn whatever_is_done_to_records_nothing_comes_out_but_the_beginning_of_what_was_sent() {
    for round in 0..rounds() {
        let mut rng = Rng::keyed(&[round, 3]);
        let mode = [WireMode::Encrypt, WireMode::Integrity][rng.index(2)];
        let suite = SUITES[rng.index(2)];
        let (mut sealer, mut opener) = pair_in(mode, suite);
        let mut sent = Vec::new();
        let mut records: Vec<Vec<u8>> = (0..1 + rng.index(5))
            .map(|_| {
                let size = rng.index(120);
                let bytes = rng.bytes(size);
                sent.extend_from_slice(&bytes);
                seal(&mut sealer, &bytes)
            })
            .collect();
        let whole = records.concat();
        // The other direction, another connection, and the same one in another mode, each at its beginning.
        let other_mode = WireMode::ALL[usize::from(mode == WireMode::Encrypt)];
        let mut back = Seal::new(suite, mode, [2; KEY_BYTES], [1; KEY_BYTES]).unwrap().sealer;
        let mut elsewhere = Seal::new(suite, mode, [3; KEY_BYTES], [2; KEY_BYTES]).unwrap().sealer;
        let others = [
            seal(&mut back, b"back"),
            seal(&mut elsewhere, b"elsewhere"),
            seal(&mut pair_in(other_mode, suite).0, b"in another mode"),
        ];
        for _ in 0..1 + rng.index(3) {
            harm(&mut rng, &mut records, &others);
        }
        let (stream, piece) = (records.concat(), 1 + rng.index(300));
        let mut heard = Vec::new();
        let ended = open_into(&mut opener, &stream, piece, &mut heard);
        assert!(sent.starts_with(&heard), "round {round}");
        match ended {
            Ok(()) => assert!(heard.len() <= sent.len()),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "round {round}");
                assert!(opener.open().is_err() && opener.plain().is_empty(), "round {round}");
            }
        }
        assert!(stream != whole || heard == sent, "round {round}: nothing was done to it");
    }
}
