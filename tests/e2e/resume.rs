//! A run that is killed wholly, master and all, goes on from the files of its peers.

use crate::{
    fleet::{Fleet, config},
    peer::WATCHDOG,
};
use pccl::StateFile;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

/// Revision of a file, if all of it is as it was written.
fn verified(file: &Path) -> Option<u64> {
    let mut file = StateFile::open(file).ok()?;
    file.verify().ok()?;
    Some(file.revision())
}

/// Peers that train, with a file for each, until there is this number of steps.
fn start(fleet: &mut Fleet, files: &[PathBuf], steps: u64) {
    for file in files {
        let place = fleet.spawn(&[]);
        fleet.peers[place].send(format!("train {} {steps} {}", file.display(), files.len()));
    }
}

#[test]
fn a_run_that_is_killed_wholly_goes_on_from_the_newest_file_that_is_whole() {
    let folder = std::env::temp_dir().join(format!("pccl-e2e-{}-resume", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let files: Vec<PathBuf> = (0..3).map(|number| folder.join(format!("peer-{number}"))).collect();
    let mut fleet = Fleet::with_master_process(config(), 0, &[]);
    start(&mut fleet, &files, u64::MAX);
    let deadline = Instant::now() + WATCHDOG;
    let is_saved = |file: &PathBuf| StateFile::open(file).is_ok_and(|file| file.revision() >= 5);
    while !files.iter().all(is_saved) {
        assert!(
            Instant::now() < deadline,
            "no files: {:?}",
            files.iter().map(|it| verified(it)).collect::<Vec<_>>()
        );
        pccl_testkit::barrier::look_again();
    }
    fleet.kill_master_process();
    while !fleet.is_empty() {
        fleet.remove(0);
    }
    // However the kills hit them, the files are whole.
    let mut saved: Vec<(u64, &PathBuf)> =
        files.iter().map(|file| (verified(file).expect("a whole file"), file)).collect();
    saved.sort();
    // Of three peers one comes without its file, and the newest file is damaged: the other one counts.
    let [fresh, (newest, _), damaged] = saved[..] else { panic!("{saved:?}") };
    fs::remove_file(fresh.1).expect("a file");
    let mut bytes = fs::read(damaged.1).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(damaged.1, bytes).expect("a file");

    fleet.start_master_process();
    start(&mut fleet, &files, newest + 5);
    for (peer, file) in fleet.peers.iter_mut().zip(&files) {
        let note = peer.note();
        let expected = match file {
            file if file == fresh.1 => "note fresh".to_owned(),
            file if file == damaged.1 => "note damaged".to_owned(),
            _ => format!("note restored={newest}"),
        };
        assert!(note.starts_with(&expected), "{note:?} instead of {expected:?}");
    }
    for (answer, file) in fleet.answers().into_iter().zip(&files) {
        let answer = answer.good();
        assert_eq!(answer.number("first") as u64, newest, "{answer:?}");
        // A peer that has the file fetches nothing.
        assert_eq!(answer.number("rx") == 0, file != fresh.1 && file != damaged.1, "{answer:?}");
        assert_eq!((answer.number("step") as u64, answer.field("right")), (newest + 5, "true"), "{answer:?}");
        assert_eq!(verified(file), Some(newest + 4));
    }
    fs::remove_dir_all(&folder).expect("the folder");
}
