//! Whatever was replaced, by however many lanes, in memory or in the file, comes back bit by bit, unless it is
//! committed.

use super::*;
use proptest::prelude::*;

const PIECE: usize = 64;

fn pieces(tensor: &mut [u8]) -> Pieces<'_> {
    tensor.chunks_mut(PIECE).map(|it| Mutex::new(Piece::Host(it))).collect()
}

fn content(tensors: &[usize]) -> Vec<Vec<u8>> {
    tensors.iter().enumerate().map(|(i, len)| (0..*len).map(|at| (at * 7 + i) as u8).collect()).collect()
}

#[test]
fn a_committed_journal_leaves_the_new_bytes() {
    let mut tensors = content(&[100, 64]);
    let before = tensors.clone();
    let journal = Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), 64, &std::env::temp_dir());
    let mut writer = journal.writer();
    writer.replace(0, 1, &[9; 36]).expect("in memory");
    writer.replace(1, 0, &[8; 64]).expect("in the file");
    drop(writer);
    assert_eq!(journal.spilled_bytes(), 64);
    journal.commit();
    assert_eq!(tensors[0], [&before[0][..64], &[9; 36]].concat());
    assert_eq!(tensors[1], [8; 64]);
}

#[test]
fn a_journal_that_cannot_spill_says_so_and_has_replaced_nothing() {
    let mut tensors = content(&[200]);
    let before = tensors.clone();
    let nowhere = Path::new("/nonexistent/directory");
    let journal = Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), 100, nowhere);
    let mut writer = journal.writer();
    writer.replace(0, 2, &[1; 64]).expect("in memory");
    let error = writer.replace(0, 0, &[1; 64]).expect_err("nowhere");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    // A piece that is short enough still finds room.
    writer.replace(0, 3, &[1; 8]).expect("in memory");
    drop(writer);
    drop(journal);
    assert_eq!(tensors, before);
}

#[test]
fn nothing_is_left_in_the_directory() {
    let directory = std::env::temp_dir().join(format!("pccl-journal-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let mut tensors = content(&[500]);
    let journal = Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), 0, &directory);
    let mut writer = journal.writer();
    writer.replace(0, 0, &[1; 64]).expect("in the file");
    assert_eq!(std::fs::read_dir(&directory).expect("there").count(), 0);
    drop(writer);
    drop(journal);
    std::fs::remove_dir(&directory).expect("empty");
}

#[test]
fn what_repeats_one_word_takes_no_room_and_comes_back() {
    let words: [&[u8]; 6] = [
        &[0; 128],
        &[7; 128],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[1, 2, 3, 4],
        &[9, 8],
        &[5, 5, 5, 5, 5, 5, 5, 5, 5],
    ];
    let mut tensors: Vec<Vec<u8>> = words.iter().map(|word| word.repeat(9)).collect();
    let before = tensors.clone();
    let nowhere = Path::new("/nonexistent/directory");
    let journal = Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), 0, nowhere);
    let mut writer = journal.writer();
    for (tensor, old) in before.iter().enumerate() {
        for (piece, old) in old.chunks(PIECE).enumerate().filter(|(_, old)| old.len() >= WORD_BYTES) {
            writer.replace(tensor, piece, &vec![0xee; old.len()]).expect("no room is needed");
        }
    }
    drop(writer);
    assert_eq!(journal.spilled_bytes(), 0);
    journal.roll_back().expect("in memory");
    assert_eq!(tensors, before);
}

#[test]
fn nearly_one_word_is_kept_whole() {
    for changed in [0, 8, 31, 63] {
        let mut tensor = vec![3; PIECE];
        tensor[changed] = 4;
        let before = tensor.clone();
        assert_eq!(repeated_word(&tensor), None);
        let journal = Journal::new(vec![pieces(&mut tensor)], PIECE, &std::env::temp_dir());
        journal.writer().replace(0, 0, &[1; PIECE]).expect("in memory");
        drop(journal);
        assert_eq!(tensor, before);
    }
}

/// Pieces that are large enough to be written past the page cache.
#[test]
fn where_not_all_fits_the_file_comes_before_the_rest_of_the_memory_while_it_is_fast() {
    const LARGE: usize = Spill::LEAST_FAST_BYTES + 8;
    let content = |at: usize| (at * 7 + at / 251) as u8;
    let mut tensor: Vec<u8> = (0..LARGE * 10).map(content).collect();
    let before = tensor.clone();
    let pieces = tensor.chunks_mut(LARGE).map(|it| Mutex::new(Piece::Host(it))).collect();
    let journal = Journal::new(vec![pieces], LARGE * 8, &std::env::temp_dir());
    let mut writer = journal.writer();
    let mut replace = |piece: usize| {
        writer.replace(0, piece, &vec![0xee; LARGE]).expect("room");
        journal.spilled_bytes() as usize / LARGE
    };
    assert_eq!((replace(0), replace(1)), (0, 0), "a quarter of the memory comes first");
    let spill = journal.held.lock().spill.clone();
    assert!(spill.is_none());
    let first = replace(2);
    let spill = journal.held.lock().spill.clone().expect("it was tried");
    if spill.is_fast() {
        assert_eq!((first, replace(3)), (1, 2));
    } else {
        // On a file system that cannot do that.
        assert_eq!((first, replace(3)), (0, 0));
    }
    // A disk that fails leaves the memory.
    let failing = Spill::of(std::fs::File::open("/dev/null").expect("there"), None);
    failing.set_fast();
    let working = journal.held.lock().spill.replace(Arc::new(failing));
    assert_eq!(replace(4), 0);
    assert!(journal.held.lock().spill_fails);
    journal.held.lock().spill = working;
    let kept = journal.spilled_bytes() as usize / LARGE;
    assert_eq!(replace(5), kept, "it is not trusted again while there is memory");
    let _ = (6..10).map(replace).max();
    drop(writer);
    drop(journal);
    assert!(tensor == before);
}

/// New bytes of a piece.
fn new_bytes(tensor: usize, piece: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13 + piece * 5 + tensor + 100) as u8).collect()
}

#[test]
fn what_is_kept_comes_back_in_the_next_attempt_and_only_if_it_is_right() {
    // The last tensor repeats a word, and the first piece of it does not.
    let mut tensors = content(&[3 * PIECE, 2 * PIECE + 9, 4 * PIECE]);
    tensors[2][PIECE..].fill(7);
    let before = tensors.clone();
    let all = [(0, 0, PIECE), (0, 2, PIECE), (1, 2, 9), (2, 0, PIECE), (2, 1, PIECE), (2, 3, PIECE)];
    let limit = 10 * PIECE;
    let journal =
        Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), limit, &std::env::temp_dir());
    for (tensor, piece, len) in all {
        // Each lane has blocks of its own.
        journal.writer().replace(tensor, piece, &new_bytes(tensor, piece, len)).expect("in memory");
    }
    let mut left = journal.roll_back_keeping().expect("in memory");
    assert_eq!(left.pages.entries.len(), all.len());
    assert!(left.bytes <= limit);
    assert_eq!(tensors, before);
    // Twice: the second attempt fails as well, when it has asked for some of it.
    for asked in [2, all.len()] {
        let journal =
            Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), limit, &std::env::temp_dir());
        let journal = journal.resume(left);
        let mut writer = journal.writer();
        for (tensor, piece, len) in &all[..asked] {
            let new = new_bytes(*tensor, *piece, *len);
            assert!(writer.recall(*tensor, *piece, |bytes| bytes == new));
            assert!(!writer.recall(*tensor, *piece, |_| true), "once");
        }
        assert!(!writer.recall(0, 1, |_| true), "it was never there");
        drop(writer);
        left = journal.roll_back_keeping().expect("in memory");
        assert_eq!(left.pages.entries.len(), all.len());
        assert_eq!(tensors, before);
    }
    let journal =
        Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), limit, &std::env::temp_dir());
    let journal = journal.resume(left);
    let mut writer = journal.writer();
    assert!(!writer.recall(0, 0, |_| false), "something else is wanted");
    assert!(writer.recall(0, 2, |_| true));
    drop(writer);
    journal.commit();
    assert_eq!(tensors[0], [&before[0][..2 * PIECE], &new_bytes(0, 2, PIECE)].concat());
    assert_eq!(tensors[1..], before[1..]);
}

#[test]
fn what_is_kept_in_a_fast_file_comes_back() {
    const LARGE: usize = Spill::LEAST_FAST_BYTES + 8;
    fn journal_of(tensor: &mut [u8]) -> Journal<'_> {
        let pieces = tensor.chunks_mut(LARGE).map(|it| Mutex::new(Piece::Host(it))).collect();
        Journal::new(vec![pieces], 0, &std::env::temp_dir())
    }
    let mut tensor: Vec<u8> = (0..LARGE * 2).map(|at| (at * 7 + at / 251) as u8).collect();
    // A piece that repeats a word leaves no place in the file: there is one behind it.
    tensor[LARGE..].fill(1);
    let before = tensor.clone();
    let journal = journal_of(&mut tensor);
    let mut writer = journal.writer();
    (0..2).for_each(|piece| writer.replace(0, piece, &new_bytes(0, piece, LARGE)).expect("room"));
    drop(writer);
    // As if it were, wherever this runs.
    journal.held.lock().spill.as_ref().expect("nothing fits into memory").set_fast();
    let left = journal.roll_back_keeping().expect("it can be read");
    assert!(tensor == before);
    let journal = journal_of(&mut tensor).resume(left);
    let mut writer = journal.writer();
    let right = |piece: usize| move |bytes: &[u8]| bytes == new_bytes(0, piece, LARGE);
    assert!(writer.recall(0, 0, right(0)) && writer.recall(0, 1, right(1)));
    drop(writer);
    drop(journal);
    assert!(tensor == before);
}

proptest! {
    #[test]
    fn what_was_replaced_comes_back(
        sizes in prop::collection::vec(1..400_usize, 1..4),
        limit in 0..600_usize,
        order in prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize), 0..40),
        explicit in any::<bool>(),
        flat in 0..4_usize,
    ) {
        let mut tensors = content(&sizes);
        // One of them may repeat a word.
        tensors.get_mut(flat).into_iter().for_each(|tensor| tensor.fill(3));
        let before = tensors.clone();
        let journal =
            Journal::new(tensors.iter_mut().map(|it| pieces(it)).collect(), limit, &std::env::temp_dir());
        let mut all: Vec<(usize, usize, usize)> = Vec::new();
        for (tensor, len) in sizes.iter().enumerate() {
            all.extend((0..len.div_ceil(PIECE)).map(|piece| (tensor, piece, PIECE.min(len - piece * PIECE))));
        }
        // Lanes come and go.
        let mut writers: Vec<_> = (0..3).map(|_| Some(journal.writer())).collect();
        let mut in_memory = 0;
        for (which, lane) in order {
            if all.is_empty() {
                break;
            }
            let (tensor, piece, len) = all.swap_remove(which.index(all.len()));
            let spilled = journal.spilled_bytes();
            let is_word = repeated_word(&before[tensor][piece * PIECE..][..len]).is_some();
            let writer = writers[lane].get_or_insert_with(|| journal.writer());
            writer.replace(tensor, piece, &vec![0xee; len]).expect("room");
            prop_assert!(!is_word || journal.spilled_bytes() == spilled);
            in_memory += if is_word || journal.spilled_bytes() > spilled { 0 } else { len };
            if which.index(3) == 0 {
                writers[lane] = None;
            }
        }
        prop_assert!(in_memory <= limit);
        drop(writers);
        if explicit {
            prop_assert!(journal.roll_back().is_ok());
        } else {
            drop(journal);
        }
        prop_assert_eq!(tensors, before);
    }
}
