//! The walk down the tree finds what differs, and believes nothing that was not voted for.

use super::*;
use proptest::prelude::*;

fn levels_of(bytes: u64, digests: Vec<Digest128>) -> Levels {
    let tree = Tree::keyed([3; 32]);
    let mut levels = vec![digests];
    for level in 2..=tree::top_level(bytes) {
        let above = tree.parent_digests(levels.last().expect("level 1"), level);
        levels.push(above);
    }
    Levels { tree, bytes, levels }
}

/// A tensor of this number of MiB whose content nobody needs to know.
fn made_up(mebibytes: u64, changed: &[u64]) -> Levels {
    let digest = |i: u64| {
        let changed = u128::from(changed.contains(&i));
        Digest128::from_u128(u128::from(i) << 8 | 2 | changed)
    };
    levels_of(mebibytes * MEBIBYTE as u64 - 3, (0..mebibytes).map(digest).collect())
}

/// Asks an honest source until only MiBs are left; returns their numbers and how many lists it took.
fn walk(own: &Levels, theirs: &Levels) -> (Vec<u64>, usize) {
    let comparison = Comparison::new(own, theirs.root());
    let mut open: Vec<Wanted> = comparison.first().into_iter().collect();
    let (mut found, mut lists) = (Vec::new(), 0);
    while let Some(wanted) = open.pop() {
        match wanted.part {
            StatePart::Mebibyte(number) => found.push(number),
            StatePart::Digests(list) => {
                lists += 1;
                let bytes = theirs.list(list).expect("it is there");
                assert_eq!(comparison.bytes(wanted.part), Some(bytes.len()));
                open.extend(comparison.check(&wanted, &bytes).expect("honest"));
            }
        }
    }
    found.sort_unstable();
    (found, lists)
}

#[test]
fn exactly_what_differs_is_found_in_trees_of_every_height() {
    for (mebibytes, changed, lists) in [
        (1, vec![0], 0),
        (2, vec![1], 1),
        (256, vec![0, 255], 1),
        (257, vec![256], 2),
        (1000, vec![3, 300, 301, 999], 4),
        (70_000, vec![0, 69_999], 5),
        (70_000, vec![], 0),
    ] {
        let (own, theirs) = (made_up(mebibytes, &[]), made_up(mebibytes, &changed));
        assert_eq!(walk(&own, &theirs), (changed, lists), "{mebibytes} MiB");
    }
}

#[test]
fn a_list_that_does_not_lead_to_the_root_is_refused() {
    let (own, theirs) = (made_up(600, &[]), made_up(600, &[5, 400]));
    let comparison = Comparison::new(&own, theirs.root());
    let first = comparison.first().expect("they differ");
    let StatePart::Digests(list) = first.part else { panic!("{first:?}") };
    let honest = theirs.list(list).expect("it is there");
    // A list of the own tensor is a list, but not the elected one.
    assert!(comparison.check(&first, &own.list(list).expect("it is there")).is_err());
    for bad in [&honest[..honest.len() - 1], &honest[16..], &[honest.clone(), honest.clone()].concat(), &[]] {
        assert!(comparison.check(&first, bad).is_err());
    }
    let below = comparison.check(&first, &honest).expect("honest");
    assert_eq!(below.len(), 2);
    for wanted in below {
        let StatePart::Digests(list) = wanted.part else { panic!("{wanted:?}") };
        let mut forged = theirs.list(list).expect("it is there");
        forged[0] ^= 1;
        assert!(comparison.check(&wanted, &forged).is_err());
    }
}

#[test]
fn what_is_not_there_is_not_given() {
    let levels = made_up(300, &[]);
    for (level, parent) in [(0, 0), (1, 2), (1, u64::MAX), (2, 1), (3, 0), (255, 0)] {
        assert_eq!(levels.list(DigestList { level, parent }), None, "{level} {parent}");
    }
    assert_eq!(levels.list(DigestList { level: 1, parent: 1 }).map(|list| list.len()), Some(44 * 16));
    assert_eq!((levels.mebibyte(300), levels.mebibyte(u64::MAX)), (None, None));
    assert_eq!(levels.mebibyte(299), Some(299 * MEBIBYTE..300 * MEBIBYTE - 3));
    let empty = Levels::of(&Tree::Plain, &[], 1);
    assert_eq!((empty.mebibyte(0), empty.root()), (None, pccl_hash::tree_hash(&[])));
    assert_eq!(Comparison::new(&empty, Digest128::default()).first(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Real bytes: what is found and replaced makes the whole equal, and a byte that is wrong is noticed.
    #[test]
    fn what_is_found_repairs(
        bytes in 1..5 * MEBIBYTE,
        changed in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        wrong in any::<prop::sample::Index>(),
        is_keyed in any::<bool>(),
    ) {
        let theirs: Vec<u8> = (0..bytes).map(|i| (i / 7 % 251) as u8).collect();
        let mut own = theirs.clone();
        changed.iter().for_each(|at| own[at.index(bytes)] ^= 1);
        let tree = if is_keyed { Tree::keyed([9; 32]) } else { Tree::Plain };
        let (mine, elected) = (Levels::of(&tree, &own, 1), Levels::of(&tree, &theirs, 2));
        prop_assert_eq!(elected.root(), tree.hash(&theirs, 1));
        let comparison = Comparison::new(&mine, elected.root());
        let mut open: Vec<Wanted> = comparison.first().into_iter().collect();
        while let Some(wanted) = open.pop() {
            match wanted.part {
                StatePart::Digests(list) => {
                    open.extend(comparison.check(&wanted, &elected.list(list).expect("there")).expect("honest"));
                }
                StatePart::Mebibyte(number) => {
                    let range = mine.mebibyte(number).expect("there");
                    let mut piece = theirs[range.clone()].to_vec();
                    prop_assert!(comparison.check(&wanted, &piece).is_ok());
                    own[range].copy_from_slice(&piece);
                    let at = wrong.index(piece.len());
                    piece[at] ^= 0x40;
                    prop_assert!(comparison.check(&wanted, &piece).is_err());
                }
            }
        }
        prop_assert!(own == theirs);
    }
}
