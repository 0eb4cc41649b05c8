use super::*;

fn histogram(durations: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    durations.iter().for_each(|&us| histogram.add(us));
    histogram
}

/// A report of one part of ten seconds.
pub(super) fn report(status: Status) -> Report {
    let part = Part {
        number: 1,
        status,
        seed: 5,
        replay: "pccl-stress --seconds 10 --seed 5 --peers 3..4".into(),
        wanted_seconds: 10,
        seconds: 10.5,
        began_unix_s: 951_868_800,
        machine: "2 cores".into(),
        operations: 400,
        faults: 5,
        kept: Kept { operations: 90, expected: 100.0 },
        baseline: Baseline { sizes: [(3, Done { us: 1_000_000, operations: 10 })].into() },
    };
    let undisturbed = histogram(&[12_345, 100_000]);
    let totals = Totals {
        seconds: 10.5,
        faults: [("kill".to_owned(), 3), ("stop".to_owned(), 2)].into(),
        counts: Counts { operations: 400, joins: 7, ..Counts::default() },
        kept: part.kept,
        longest_gap_us: 700_000,
        longest_gap_at_us: 3_000_000,
        recoveries: [("kill".to_owned(), Recoveries { undisturbed, disturbed: histogram(&[2_000_000]) })]
            .into(),
        costs: [("kill".to_owned(), Cost { faults: 3, lost_us: 300_000.0 })].into(),
        sizes: [(3, AtSize { us: 9_000_000, kept: part.kept })].into(),
    };
    let mut timeline = Timeline::default();
    for second in 0..10 {
        timeline.push(Slot {
            part: 1,
            from_us: second * 1_000_000,
            span_us: 1_000_000,
            operations: 40,
            expected: (second > 2).then_some(45.0),
            world_us: 3_000_000,
            world_min: 2,
            world_max: 4,
            faults: BTreeMap::new(),
        });
    }
    timeline.fault("kill");
    let growth = Growth { span_us: 70_000_000, memory_kib: 5.5, threads: 0.0, descriptors: -1.0 };
    let survivor = Survivor { part: 1, name: "master".into(), growth };
    let failed = status == Status::Failed;
    let violation =
        Finding { part: 1, seconds: 2.5, check: "result".into(), text: "wrong <b>&\"bytes\"\u{7}".into() };
    let violations = if failed { vec![violation] } else { Vec::new() };
    Report::of("--peers 3..4".into(), "cafe".into(), part, totals, timeline, vec![survivor], violations)
}

#[test]
fn a_report_is_read_as_it_was_written() {
    for status in [Status::Passed, Status::Failed, Status::Interrupted, Status::Unfinished] {
        let report = report(status);
        assert_eq!(Report::parse(&report.json().expect("written")).expect("read"), report);
    }
    let other = report(Status::Passed).json().expect("written").replace("\"format\": 2", "\"format\": 99");
    assert!(Report::parse(&other).expect_err("another format").to_string().contains("99"));
    assert!(Report::parse("{}").is_err());
}

#[test]
fn only_a_whole_run_without_violations_passes() {
    assert!(report(Status::Passed).passed);
    for status in [Status::Failed, Status::Interrupted, Status::Unfinished] {
        let report = report(status);
        assert!(!report.passed);
        assert!(report.summary(Path::new("here")).starts_with(status.word()));
    }
    let summary = report(Status::Failed).summary(Path::new("here"));
    for part in ["2.500 s", "result: wrong", "here", "--seed 5"] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
    assert!(report(Status::Failed).json().expect("written").contains("\"result\": 1"));
}

#[test]
fn parts_add_up() {
    let first = report(Status::Passed);
    let mut second = report(Status::Passed);
    second.totals.longest_gap_us = 900_000;
    second.parts[0].seed = 6;
    let sum = first.with(second);
    assert!(sum.passed);
    assert_eq!(
        (sum.totals.counts.operations, sum.totals.counts.joins, sum.totals.faults_made()),
        (800, 14, 10)
    );
    assert_eq!((sum.totals.longest_gap_us, sum.totals.longest_gap_at_us), (900_000, 13_000_000));
    assert_eq!(sum.totals.kept.percent(), Some(90.0));
    assert_eq!((sum.totals.kills().undisturbed.count, sum.totals.kills().disturbed.count), (4, 2));
    assert_eq!(sum.totals.costs.get("kill").map(|cost| cost.faults), Some(6));
    assert_eq!(sum.totals.sizes.get(&3).map(|at| at.us), Some(18_000_000));
    assert_eq!(sum.parts.iter().map(|part| (part.number, part.seed)).collect::<Vec<_>>(), [(1, 5), (2, 6)]);
    assert_eq!(sum.timeline.end_us(), 20_000_000);
    assert_eq!((sum.survivors[1].part, sum.next_seed()), (2, 7));
    assert_eq!((sum.missing_seconds(), sum.length().as_str()), (0, "0:21 of 0:20 in 2 parts of 0:10, 0:10"));
    // A third one counts from the sum, also after it was stored.
    let stored = Report::parse(&sum.json().expect("written")).expect("read");
    assert_eq!(stored.with(report(Status::Passed)).parts[2].number, 3);
}

#[test]
fn a_run_that_was_cut_short_lacks_the_rest() {
    let mut first = report(Status::Interrupted);
    (first.goal_seconds, first.parts[0].wanted_seconds) = (8 * 3600, 8 * 3600);
    assert_eq!((first.missing_seconds(), first.length().as_str()), (28_790, "0:10 of 8:00:00"));
    // A part that lasts for what the first one lacks completes the run; a short one leaves the goal as it is.
    let mut rest = report(Status::Passed);
    (rest.goal_seconds, rest.totals.seconds) = (first.missing_seconds(), 28_790.5);
    assert_eq!(first.with(rest).missing_seconds(), 0);
    assert_eq!(first.with(report(Status::Passed)).missing_seconds(), 28_779);
}

#[test]
fn a_part_that_failed_stays_failed_and_one_cut_short_does_not_count_as_failed() {
    let sum = |first, second| report(first).with(report(second)).status;
    assert_eq!(sum(Status::Failed, Status::Passed), Status::Failed);
    assert_eq!(sum(Status::Passed, Status::Failed), Status::Failed);
    assert_eq!(sum(Status::Interrupted, Status::Passed), Status::Passed);
    assert_eq!(sum(Status::Unfinished, Status::Passed), Status::Passed);
    assert_eq!(sum(Status::Passed, Status::Interrupted), Status::Interrupted);
    let failed_first = report(Status::Failed).with(report(Status::Passed));
    assert_eq!(failed_first.violations[0].part, 1);
    assert!(!failed_first.passed);
}

#[test]
fn the_live_line_has_what_matters() {
    let totals = report(Status::Passed).totals;
    let line = live_line(3_725, 4, &totals, &totals.counts);
    for part in
        ["1:02:05 left", "world 4", "3 kills", "2 other faults", "7 joins", "recovery 2000 ms", "90.0 %"]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
}
