//! Whatever was replaced, by however many lanes, in memory or in the file, comes back bit by bit, unless it is
//! committed.

use super::*;
use proptest::prelude::*;

const PIECE: usize = 64;

fn pieces(tensor: &mut [u8]) -> Pieces<'_> {
    tensor.chunks_mut(PIECE).map(Mutex::new).collect()
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
    // What is short enough still finds room.
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

proptest! {
    #[test]
    fn what_was_replaced_comes_back(
        sizes in prop::collection::vec(1..400_usize, 1..4),
        limit in 0..600_usize,
        order in prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize), 0..40),
        explicit in any::<bool>(),
    ) {
        let mut tensors = content(&sizes);
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
            let writer = writers[lane].get_or_insert_with(|| journal.writer());
            writer.replace(tensor, piece, &vec![0xee; len]).expect("room");
            in_memory += if journal.spilled_bytes() == spilled { len } else { 0 };
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
