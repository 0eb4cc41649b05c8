//! Round trips of every type, what damage is found, what is written again, and what a kill leaves.

use super::*;
use crate::{DataType, SharedState, StateMemory};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A directory of its own, which goes with this value.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pccl-files-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("state.safetensors")
    }

    fn names(&self) -> Vec<String> {
        let name = |file: std::io::Result<fs::DirEntry>| file.expect("listed").file_name().into_string();
        let mut names: Vec<String> =
            fs::read_dir(&self.0).expect("there").map(|file| name(file).expect("UTF-8")).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MIB: usize = 1 << 20;

/// Bytes that differ from place to place.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn options() -> SaveOptions {
    SaveOptions::default()
}

/// A state of two tensors: some MiBs of bytes, and a few numbers that may differ.
fn with_state<R>(
    revision: u64,
    big: &mut [u8],
    small: &mut [f64],
    work: impl FnOnce(&mut SharedState<'_>) -> R,
) -> R {
    let mut state = SharedState::new(revision);
    state.tensor("big", big).expect("a tensor");
    state.tensor_allowing_inequality("small \"quoted\" ü", small).expect("a tensor");
    work(&mut state)
}

/// Some tensors of each type.
macro_rules! all_types {
    ($($name:ident: $type:ty = $from:expr;)*) => {
        #[derive(Default)]
        struct AllTypes {
            $($name: [Vec<$type>; 4],)*
        }

        impl AllTypes {
            fn new(seed: u64) -> Self {
                let mut all = Self::default();
                $(for (values, count) in all.$name.iter_mut().zip(COUNTS) {
                    let bytes = noise(8 * count, seed);
                    let words = bytes.chunks_exact(8).map(|word| word.try_into().expect("8 bytes"));
                    let from: fn(u64) -> $type = $from;
                    *values = words.map(|word| from(u64::from_le_bytes(word))).collect();
                })*
                all
            }

            fn state(&mut self, revision: u64) -> SharedState<'_> {
                let mut state = SharedState::new(revision);
                $(for (place, values) in self.$name.iter_mut().enumerate() {
                    let key = format!("{}.{place}", stringify!($name));
                    state.memory(&key, StateMemory::new(values), place % 2 == 1).expect("a tensor");
                })*
                state
            }
        }
    };
}

const COUNTS: [usize; 4] = [0, 1, 7, 300_001];

all_types! {
    u8: u8 = |word| word as u8;
    i8: i8 = |word| word as i8;
    u16: u16 = |word| word as u16;
    i16: i16 = |word| word as i16;
    u32: u32 = |word| word as u32;
    i32: i32 = |word| word as i32;
    u64: u64 = |word| word;
    i64: i64 = |word| word as i64;
    f16: half::f16 = |word| half::f16::from_bits(word as u16);
    bf16: half::bf16 = |word| half::bf16::from_bits(word as u16);
    f32: f32 = |word| f32::from_bits(word as u32);
    f64: f64 = |word| f64::from_bits(word);
}

#[test]
fn every_type_comes_back_bit_for_bit() {
    let dir = Dir::new();
    let (mut saved, mut loaded) = (AllTypes::new(1), AllTypes::new(2));
    let state = saved.state(7);
    let info = state.save(dir.file(), &options()).expect("saved");
    assert_eq!((info.revision, info.bytes_kept, info.bytes_trusted), (7, 0, 0));
    assert_eq!(fs::metadata(dir.file()).expect("there").len(), info.bytes_written);
    let mut other = loaded.state(0);
    assert_ne!(other.hash(), state.hash());
    assert_eq!(other.load(dir.file()).expect("loaded"), 7);
    assert_eq!((other.revision(), other.hash()), (7, state.hash()));
    let mut file = StateFile::open(dir.file()).expect("opens");
    file.verify().expect("whole");
    assert_eq!((file.revision(), file.hash()), (7, state.hash()));
    let types: std::collections::BTreeSet<DataType> =
        file.tensors().map(|(_, data_type, _)| data_type).collect();
    assert_eq!(
        (file.tensors().count(), types.len()),
        (DataType::ALL.len() * COUNTS.len(), DataType::ALL.len())
    );
    assert_eq!(dir.names(), ["state.safetensors"]);
}

#[test]
fn other_readers_find_what_they_expect() {
    let dir = Dir::new();
    let (mut a, mut b) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [1_u8, 2, 3]);
    let mut state = SharedState::new(3);
    state.tensor("b", &mut b).expect("a tensor").tensor("a", &mut a).expect("a tensor");
    state.save(dir.file(), &options().shape("a", &[2, 3])).expect("saved");
    let bytes = fs::read(dir.file()).expect("read");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    assert_eq!((length + 8) % 4096, 0);
    let header = std::str::from_utf8(&bytes[8..8 + length]).expect("UTF-8");
    for part in [
        r#"{"__metadata__":{"pccl.format":"1","pccl.revision":"3","#,
        r#","a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
        r#","b":{"dtype":"U8","shape":[3],"data_offsets":[24,27]}}"#,
    ] {
        assert!(header.contains(part), "{header}");
    }
    let data: Vec<u8> = a.iter().flat_map(|x| x.to_le_bytes()).chain(b).collect();
    assert_eq!(bytes[8 + length..], data);
}

/// The Python package reads it, where there is one.
#[test]
fn the_package_safetensors_reads_it() {
    let has = |module: &str| {
        let check = format!("import {module}");
        Command::new("python3")
            .args(["-c", &check])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|it| it.success())
    };
    if !has("safetensors, numpy") {
        eprintln!("skipped: python3 has no safetensors and numpy");
        return;
    }
    let dir = Dir::new();
    let (mut a, mut b, mut c) = ([1.5_f64, -2.0], [7_u16, 8, 9], noise(MIB + 5, 3));
    let mut state = SharedState::new(3);
    state.tensor("a", &mut a).expect("a tensor").tensor("b", &mut b).expect("a tensor");
    state.tensor("c", &mut c).expect("a tensor");
    state.save(dir.file(), &options().shape("a", &[2, 1])).expect("saved");
    let script = r#"
import sys, zlib
from safetensors import safe_open
with safe_open(sys.argv[1], "np") as f:
    assert f.metadata()["pccl.revision"] == "3"
    a, b, c = (f.get_tensor(key) for key in "abc")
    assert a.tolist() == [[1.5], [-2.0]] and b.tolist() == [7, 8, 9] and b.dtype == "uint16", (a, b)
    print(sum(c.tolist()))
"#;
    let output = Command::new("python3").args(["-c", script]).arg(dir.file()).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sum: u64 = c.iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), sum.to_string());
}

/// Loads into fresh tensors, which have to be as they were if that fails.
fn load_damaged(path: &std::path::Path, big_len: usize) -> Result<u64, StateFileError> {
    let (mut big, mut small) = (vec![0xee_u8; big_len], [0.25_f64; 3]);
    let result = with_state(5, &mut big, &mut small, |state| {
        let result = state.load(path);
        assert!(result.is_ok() || state.revision() == 5);
        result
    });
    if result.is_err() {
        assert!(big.iter().all(|byte| *byte == 0xee) && small == [0.25; 3], "a failed load changed a tensor");
    }
    result
}

#[test]
fn every_kind_of_truncation_and_damage_is_found() {
    let dir = Dir::new();
    let (mut big, mut small) = (noise(2 * MIB + 100, 1), [1.0, 2.0, 3.0]);
    with_state(9, &mut big, &mut small, |state| state.save(dir.file(), &options())).expect("saved");
    let good = fs::read(dir.file()).expect("read");
    let data_at = 8 + u64::from_le_bytes(good[..8].try_into().expect("8 bytes")) as usize;
    let damaged = dir.0.join("damaged");
    let check = |bytes: &[u8], what: &str| {
        fs::write(&damaged, bytes).expect("written");
        match load_damaged(&damaged, big.len()) {
            Err(StateFileError::Damaged { place, .. }) => place,
            other => panic!("{what}: {other:?}"),
        }
    };
    // Cut in the length, at its end, in the header, at its end, in each piece, at each border.
    let cuts = [0, 1, 7, 8, 9, data_at / 2, data_at - 1, data_at, data_at + 1, data_at + 24, data_at + 25];
    let more = [data_at + MIB, data_at + 24 + MIB, good.len() - 100, good.len() - 1];
    for cut in cuts.into_iter().chain(more) {
        check(&good[..cut], &format!("cut at {cut}"));
    }
    check(&[&good[..], b"x"].concat(), "a byte more");
    for (at, tensor, range) in [
        (data_at, "small \"quoted\" ü", 0..24),
        (data_at + 24, "big", 0..MIB as u64),
        (data_at + 24 + MIB, "big", MIB as u64..2 * MIB as u64),
        (good.len() - 1, "big", 2 * MIB as u64..2 * MIB as u64 + 100),
    ] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        assert_eq!(check(&bytes, "data"), Some((tensor.to_owned(), range)));
    }
    assert_eq!(load_damaged(&dir.file(), big.len()).expect("loaded"), 9);
    let missing = load_damaged(&dir.0.join("nothing"), big.len()).unwrap_err();
    assert!(matches!(missing, StateFileError::Io { .. }), "{missing}");
}

#[test]
fn no_bit_of_a_header_can_change_unseen() {
    let dir = Dir::new();
    let (mut big, mut small) = (noise(100, 1), [1.0, 2.0, 3.0]);
    with_state(9, &mut big, &mut small, |state| state.save(dir.file(), &options())).expect("saved");
    let good = fs::read(dir.file()).expect("read");
    let data_at = good.len() - 124;
    let text_end = good[..data_at].iter().rposition(|byte| *byte == b'}').expect("an end") + 8;
    let damaged = dir.0.join("damaged");
    for (at, bit) in (0..text_end).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << bit;
        fs::write(&damaged, bytes).expect("written");
        let result = load_damaged(&damaged, big.len());
        let is_found = matches!(result, Err(StateFileError::Damaged { .. }));
        assert!(is_found, "bit {bit} of byte {at}: {result:?}");
    }
}

#[test]
fn hostile_headers_are_refused() {
    let dir = Dir::new();
    let put = |header: &[u8], data: &[u8]| {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, data].concat();
        fs::write(dir.file(), bytes).expect("written");
        StateFile::open(dir.file()).expect_err("refused").to_string()
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let tensor = |key: &str, shape: &str, offsets: &str| {
        format!(r#"{{"{key}":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let described =
        |shape: &str, offsets: &str| tensor("w", shape, offsets).replacen('{', "{\"__metadata__\":{},", 1);
    let cases: Vec<(String, &str)> = vec![
        (String::new(), "neither text"),
        ("{".into(), "no text"),
        ("[]".into(), "no object"),
        (deep, "too deep"),
        ("{\"a\":-1}".into(), "neither text"),
        ("{\"a\":1.5}".into(), "no ','"),
        ("{\"a\":01}".into(), "0 in front"),
        ("{\"a\":99999999999999999999999}".into(), "too large"),
        ("{\"a\":\"\\ud800\"}".into(), "half a character"),
        ("{\"a\":\"\\x\"}".into(), "unknown escape"),
        ("{\"a\":{},\"a\":{}}".into(), "twice"),
        ("{\"__metadata__\":{\"a\":1}}".into(), "is no text"),
        ("{\"__metadata__\":[]}".into(), "metadata is no object"),
        ("{\"__metadata__\":{}}".into(), "the file has 4"),
        ("{}".into(), "no metadata"),
        (tensor("w", "[1]", "[0,4]"), "no metadata"),
        (tensor("w", "[4294967296,4294967296]", "[0,4]"), "do not fit its shape"),
        (tensor("w", "[18446744073709551615]", "[0,4]"), "do not fit its shape"),
        (tensor("w", "[1]", "[4,0]"), "do not fit its shape"),
        (tensor("w", "[1]", "[0,4,8]"), "two offsets"),
        (described("[1]", "[4,8]"), "begins at byte 4"),
        (described("[2]", "[0,8]"), "the file has 4"),
        (described("[1]", "[0,4]"), "no pccl.format"),
        (tensor("", "[1]", "[0,4]"), "which no tensor can have"),
    ];
    for (header, expected) in cases {
        let text = put(header.as_bytes(), &[0; 4]);
        assert!(text.contains(expected), "{header:.200}: {text}");
    }
    assert!(put(b"\xff\xff", b"").contains("UTF-8"));
    // Lengths that would need more memory than there is.
    for length in [u64::MAX, 1 << 40, 100_000_001, 17] {
        fs::write(dir.file(), [&length.to_le_bytes()[..], &[b'{'; 16]].concat()).expect("written");
        let text = StateFile::open(dir.file()).expect_err("refused").to_string();
        assert!(text.contains("a header of"), "{text}");
    }
}

/// A state of one tensor.
fn one<'a, T: crate::Element>(key: &str, data: &'a mut [T]) -> SharedState<'a> {
    let mut state = SharedState::new(0);
    state.tensor(key, data).expect("a tensor");
    state
}

#[test]
fn a_state_of_another_shape_is_named() {
    let dir = Dir::new();
    let (mut big, mut small) = (vec![1_u8; 100], [1.0, 2.0, 3.0]);
    with_state(9, &mut big, &mut small, |state| state.save(dir.file(), &options())).expect("saved");
    let of = |mut state: SharedState<'_>| match state.load(dir.file()) {
        Err(StateFileError::Mismatch { tensor, text, .. }) => format!("{tensor}: {text}"),
        other => panic!("{other:?}"),
    };
    let small_key = "small \"quoted\" ü";
    let (mut bytes, mut short, mut ints) = (vec![0_u8; 100], vec![0_u8; 99], vec![0_i8; 100]);
    let mut three = [0.0_f64; 3];
    assert_eq!(of(one("big", &mut short)), "big: 99 elements of u8, the file has 100 of u8, shape [100]");
    assert_eq!(of(one("big", &mut ints)), "big: 100 elements of i8, the file has 100 of u8, shape [100]");
    assert_eq!(of(one("big", &mut bytes)), format!("{small_key}: the file has it, the state does not"));
    assert_eq!(of(one("another", &mut [0_u8])), "another: 1 elements of u8, the file has none");
    with_state(0, &mut bytes, &mut three, |state| state.load(dir.file())).expect("fits");
    assert_eq!((bytes, three), (vec![1; 100], [1.0, 2.0, 3.0]));
}

#[test]
fn only_what_has_changed_is_written_over_the_previous_file() {
    let dir = Dir::new();
    let (mut big, mut small) = (noise(20 * MIB, 1), [1.0, 2.0, 3.0]);
    let kept = options().keep_previous();
    let save = |revision: u64, big: &mut [u8], small: &mut [f64]| {
        with_state(revision, big, small, |state| state.save(dir.file(), &kept)).expect("saved")
    };
    let whole = fs::metadata({
        save(100, &mut big, &mut small);
        dir.file()
    })
    .expect("there")
    .len();
    big[0] = !big[0];
    assert_eq!(save(101, &mut big, &mut small).bytes_written, whole, "there is no previous one yet");
    assert_eq!(dir.names(), ["state.safetensors", "state.safetensors.previous"]);
    // Changes since the previous one: here, and one revision before.
    big[5 * MIB + 1] = !big[5 * MIB + 1];
    let info = save(102, &mut big, &mut small);
    let header = whole - 20 * MIB as u64 - 24;
    assert_eq!(
        (info.bytes_written, info.bytes_kept),
        (header + 2 * MIB as u64, whole - header - 2 * MIB as u64)
    );
    small[1] = 5.0;
    assert_eq!(save(103, &mut big, &mut small).bytes_written, header + MIB as u64 + 24);
    for (name, revision) in [("state.safetensors", 103), ("state.safetensors.previous", 102)] {
        let mut file = StateFile::open(dir.0.join(name)).expect("opens");
        file.verify().expect("whole");
        assert_eq!(file.revision(), revision);
    }
    // Somebody has given the previous file another name: it is theirs.
    let theirs = dir.0.join("theirs");
    fs::hard_link(dir.0.join("state.safetensors.previous"), &theirs).expect("linked");
    assert_eq!(save(104, &mut big, &mut small).bytes_written, whole);
    let mut file = StateFile::open(&theirs).expect("opens");
    file.verify().expect("whole");
    assert_eq!(file.revision(), 102);
    // A previous file that is damaged, or of another shape, is written anew.
    fs::write(dir.0.join("state.safetensors.previous"), b"nothing").expect("written");
    assert_eq!(save(105, &mut big, &mut small).bytes_written, whole);
    let (mut other, mut more) = (noise(MIB, 2), [0.0; 9]);
    save(106, &mut other, &mut more);
    save(107, &mut other, &mut more);
    let mut file = StateFile::open(dir.file()).expect("opens");
    file.verify().expect("whole");
    assert_eq!((file.revision(), dir.names().len()), (107, 3));
    // Without the wish the whole file is written, and nothing of the other is touched.
    let info =
        with_state(108, &mut other, &mut more, |state| state.save(dir.file(), &options())).expect("saved");
    assert_eq!(info.bytes_kept, 0);
}

#[test]
fn a_word_that_nothing_has_changed_spares_the_hash_and_is_checked() {
    let dir = Dir::new();
    let (mut big, mut small) = (noise(3 * MIB, 1), [1.0, 2.0, 3.0]);
    let save = |revision: u64, big: &mut [u8], small: &mut [f64], options: &SaveOptions| {
        with_state(revision, big, small, |state| state.save(dir.file(), options))
    };
    save(10, &mut big, &mut small, &options()).expect("saved");
    let word = options().unchanged_since("big", 10);
    small[0] = 9.0;
    assert_eq!(save(11, &mut big, &mut small, &word).expect("saved").bytes_trusted, 3 * MIB as u64);
    assert_eq!(load_damaged(&dir.file(), big.len()).expect("whole"), 11);
    // Of a revision that the file does not hold nothing is known.
    let later = options().unchanged_since("big", 12);
    assert_eq!(save(12, &mut big, &mut small, &later).expect("saved").bytes_trusted, 0);
    if cfg!(debug_assertions) {
        big[0] = !big[0];
        let error = save(13, &mut big, &mut small, &word).unwrap_err();
        assert!(matches!(error, StateFileError::InvalidArgument(_)), "{error}");
        assert_eq!(StateFile::open(dir.file()).expect("opens").revision(), 12);
    }
    for wrong in [options().unchanged_since("nothing", 1), options().shape("nothing", &[1])] {
        assert!(matches!(save(13, &mut big, &mut small, &wrong), Err(StateFileError::InvalidArgument(_))));
    }
    let wrong = options().shape("big", &[3, 5]);
    let error = save(13, &mut big, &mut small, &wrong).unwrap_err().to_string();
    assert!(error.contains("[3, 5]"), "{error}");
}

#[test]
fn what_is_saved_beside_the_training_is_what_was_there() {
    let dir = Dir::new();
    let (mut big, mut small) = (noise(5 * MIB, 1), [1.0, 2.0, 3.0]);
    let saving = with_state(4, &mut big, &mut small, |state| state.save_while(dir.file(), options()));
    let saving = saving.expect("a thread");
    let before = big.clone();
    big.fill(0);
    assert_eq!(saving.wait().expect("saved").revision, 4);
    with_state(0, &mut big, &mut small, |state| state.load(dir.file())).expect("loaded");
    assert!(big == before);
    let nowhere = dir.0.join("no directory").join("state");
    let saving = with_state(4, &mut big, &mut small, |state| state.save_while(&nowhere, options()));
    let error = saving.expect("a thread").wait().unwrap_err();
    assert!(matches!(error, StateFileError::Io { .. }), "{error}");
}

#[test]
fn files_that_cannot_be_written_leave_nothing_behind() {
    let dir = Dir::new();
    let (mut big, mut small) = (vec![1_u8; 10], [0.0; 1]);
    fs::create_dir(dir.file()).expect("a directory where the file should be");
    let error = with_state(1, &mut big, &mut small, |state| state.save(dir.file(), &options())).unwrap_err();
    assert!(matches!(error, StateFileError::Io { .. }), "{error}");
    assert_eq!(dir.names(), ["state.safetensors"]);
    let mut state = SharedState::new(0);
    state.tensor("__metadata__", &mut big).expect("a tensor");
    assert!(matches!(state.save(dir.0.join("x"), &options()), Err(StateFileError::InvalidArgument(_))));
    assert!(matches!(state.save("/", &options()), Err(StateFileError::InvalidArgument(_))));
}

/// Where the process of the next test writes.
const CHILD: &str = "PCCL_TEST_SAVES_TO";

/// Not a test of its own: the process that the next one kills.
#[test]
fn child_that_saves_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let (mut big, mut small) = (noise(8 * MIB, 1), [0.0; 3]);
    for revision in 1.. {
        big[(revision as usize * 77_777) % (8 * MIB)] ^= 1;
        small[0] = revision as f64;
        let kept = options().keep_previous();
        with_state(revision, &mut big, &mut small, |state| state.save(&path, &kept)).expect("saved");
        println!("saved {revision}");
    }
}

#[test]
fn a_kill_in_the_middle_leaves_a_whole_file() {
    let dir = Dir::new();
    for round in 1..=6_u64 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "state::files::tests::child_that_saves_until_it_is_killed", "--nocapture"])
            .env(CHILD, dir.file())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut saved = lines.filter_map(|line| line.ok()?.strip_prefix("saved ")?.parse::<u64>().ok());
        let last = saved.nth(round as usize).expect("it saves");
        child.kill().expect("a child");
        child.wait().expect("a child");
        let (mut big, mut small) = (vec![0; 8 * MIB], [0.0; 3]);
        let revision = with_state(0, &mut big, &mut small, |state| state.load(dir.file())).expect("whole");
        assert!(revision >= last && small[0] == revision as f64, "{revision} after {last}");
    }
    // The files that were left behind go with the next one.
    let (mut big, mut small) = (vec![0; 10], [0.0; 1]);
    with_state(1, &mut big, &mut small, |state| state.save(dir.file(), &options())).expect("saved");
    assert!(dir.names().iter().all(|name| !name.contains(".part-")), "{:?}", dir.names());
}

#[test]
fn a_file_is_private_and_nothing_that_others_have_prepared_is_opened() {
    let (dir, mut values) = (Dir::new(), [1.0f32; 4]);
    // It has the name of a leftover, and would be waited for.
    let fifo = dir.0.join("state.safetensors.part-1-1");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("it runs").success());
    let mut state = SharedState::new(1);
    state.tensor("a", &mut values).expect("a tensor");
    state.save(dir.file(), &SaveOptions::default()).expect("saved");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(dir.file()).expect("there"));
    assert_eq!((mode & 0o777, fifo.exists()), (0o600, true));
    let error = StateFile::open(&fifo).expect_err("no file");
    assert!(error.to_string().contains("no regular file"), "{error}");
}
