use super::*;
use crate::{Subject, What, buffer::BEATS};
use pccl_protocol::{GroupEpoch, OpId};
use std::{fs, thread};

/// A directory of its own, gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pccl-flight-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(&self.0).map_or(Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect());
        files.sort();
        files
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn recorder(directory: Option<&Directory>, capacity: usize) -> Recorder {
    let directory = directory.map(|directory| directory.0.clone());
    Recorder::new(Role::Peer, GroupId(3), Settings { directory, capacity })
}

fn op(tag: u64) -> Event {
    Event::new(What::OpCommenced).about(Subject::Op(OpId {
        epoch: GroupEpoch(1),
        tag: tag.into(),
        attempt: 0,
    }))
}

#[test]
fn it_is_bounded_and_in_order_and_frequent_events_do_not_push_rare_ones_out() {
    let recorder = recorder(None, 100);
    recorder.record(Event::new(What::SessionBegan).text("127.0.0.1:1"));
    for beat in 0..1000 {
        recorder.record(op(beat));
        recorder.record(Event::new(What::Sent).named("Beat").about(Subject::Beat(beat)));
    }
    let file = recorder.snapshot("test");
    assert_eq!(file.entries.len(), 100 + BEATS + 1);
    assert_eq!(file.header.dropped, 2001 - file.entries.len() as u64);
    assert_eq!(file.entries[0].event.what, What::SessionBegan);
    assert!(file.entries.is_sorted_by(|a, b| a.sequence < b.sequence && a.at_us <= b.at_us));
    let newest: Vec<u64> = file
        .entries
        .iter()
        .filter_map(|entry| match entry.event.subject {
            Some(Subject::Op(id)) => Some(id.tag.number),
            _ => None,
        })
        .collect();
    assert_eq!(newest, (900..1000).collect::<Vec<_>>());
    for _ in 0..1000 {
        recorder.record(Event::new(What::Note));
    }
    assert_eq!(recorder.snapshot("test").entries.len(), 100 + BEATS + 25);
}

#[test]
fn without_capacity_nothing_is_recorded() {
    let recorder = recorder(None, 0);
    recorder.record_with(|| unreachable!("not even made"));
    assert!(recorder.snapshot("test").entries.is_empty());
}

#[test]
fn threads_record_side_by_side() {
    let recorder = recorder(None, 4096);
    thread::scope(|scope| {
        for thread in 0..4 {
            let recorder = &recorder;
            scope.spawn(move || (0..1000).for_each(|i| recorder.record(op(thread * 1000 + i))));
        }
    });
    let file = recorder.snapshot("test");
    assert_eq!(file.entries.len(), 4000);
    assert!(file.entries.iter().enumerate().all(|(index, entry)| entry.sequence == index as u64));
    assert!(file.entries.is_sorted_by_key(|entry| entry.at_us));
}

#[test]
fn nothing_is_written_without_a_failure_or_without_a_directory() {
    let directory = Directory::new("quiet");
    let with = recorder(Some(&directory), 16);
    with.record(op(1));
    with.flush(Duration::from_secs(20));
    drop(with);
    let without = recorder(None, 16);
    without.fail(|| unreachable!("nobody asks why"));
    drop(without);
    assert!(directory.files().is_empty());
}

#[test]
fn a_failure_writes_a_whole_file() {
    let directory = Directory::new("failure");
    let recorder = recorder(Some(&directory), 16);
    recorder.identify(RunId(5), Some(PeerId(7 << 96)));
    recorder.record(op(1));
    recorder.fail(|| "edge broken".into());
    recorder.fail(|| "operation aborted".into());
    recorder.flush(Duration::from_secs(20));
    let files = directory.files();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(files[0].file_name().unwrap().to_str().unwrap().starts_with("peer-00000007-"), "{files:?}");
    let (file, problem) = File::parse(&fs::read_to_string(&files[0]).unwrap()).unwrap();
    assert_eq!(problem, None);
    assert_eq!(file.header.why, "edge broken (and 1 more)");
    assert_eq!((file.header.run, file.header.peer), (Some(RunId(5)), Some(PeerId(7 << 96))));
    assert_eq!((file.header.group, file.header.pid), (GroupId(3), std::process::id()));
    assert_eq!(file.entries, recorder.snapshot("").entries);
}

#[test]
fn failures_in_a_row_write_few_files_and_the_newest_remain() {
    let directory = Directory::new("many");
    let recorder = recorder(Some(&directory), 16);
    for tag in 0..100 {
        recorder.record(op(tag));
        recorder.fail(|| format!("failure {tag}"));
        recorder.flush(Duration::from_secs(20));
    }
    drop(recorder);
    let files = directory.files();
    assert!((2..=4).contains(&files.len()), "{files:?}");
    let (file, _) = File::parse(&fs::read_to_string(files.last().unwrap()).unwrap()).unwrap();
    assert_eq!(file.entries.last().unwrap().event, op(99), "the end of the recorder writes what is pending");
}

#[test]
fn a_directory_that_cannot_be_written_is_no_error() {
    let directory = Directory::new("file");
    fs::write(&directory.0, "not a directory").unwrap();
    let recorder = recorder(Some(&directory), 16);
    recorder.fail(|| "something".into());
    recorder.flush(Duration::from_secs(20));
    assert!(recorder.dump(&directory.0, "on request").is_err());
    drop(recorder);
    fs::remove_file(&directory.0).unwrap();
}

#[test]
fn on_request_a_file_is_written_anywhere() {
    let directory = Directory::new("dump");
    let recorder = recorder(None, 16);
    recorder.record(op(4));
    let path = recorder.dump(&directory.0, "on request").unwrap();
    assert_eq!(directory.files(), std::slice::from_ref(&path));
    let (file, problem) = File::parse(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!((file.entries.len(), problem), (1, None));
}

#[test]
fn a_directory_holds_a_bounded_number_of_files() {
    let directory = Directory::new("bounded");
    fs::create_dir_all(&directory.0).unwrap();
    for number in 0..10 {
        fs::write(directory.0.join(format!("{number}.flight")), "").unwrap();
    }
    fs::write(directory.0.join("other.txt"), "").unwrap();
    store::remove_oldest(&directory.0, 6).unwrap();
    let names: Vec<String> =
        directory.files().iter().map(|p| p.file_name().unwrap().to_str().unwrap().into()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    assert!(names.contains(&"other.txt".into()) && names.contains(&"9.flight".into()), "{names:?}");
}
