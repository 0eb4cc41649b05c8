//! Rates over simulated seconds.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The bytes that go from `from` on for `time` to somebody who takes whatever he gets, at an uplink of `line` bytes per
/// second.
fn give(
    pacer: &mut Pacer,
    from: Duration,
    time: Duration,
    line: f64,
    is_busy: impl Fn(Duration) -> bool,
) -> u64 {
    let (mut now, mut sent) = (from, 0);
    while now < from + time {
        match pacer.ask(now, 1 << 20, is_busy(now)) {
            Turn::Bytes(bytes) => {
                sent += bytes as u64;
                now += Duration::from_secs_f64(bytes as f64 / line);
            }
            Turn::At(at) => {
                assert!(at > now);
                now = at;
            }
        }
    }
    sent
}

fn is_about(bytes: u64, expected: f64) -> bool {
    (bytes as f64 / expected - 1.0).abs() < 0.03
}

#[test]
fn newcomers_get_their_share_of_the_measured_uplink() {
    for (share, line) in [(50, 25e6), (10, 25e6), (100, 1e6), (1, 1e9)] {
        let mut pacer = Pacer::new(share);
        pacer.note_rate(line);
        let sent = give(&mut pacer, SECOND, SECOND * 4, line, |_| false);
        assert!(is_about(sent, line * f64::from(share) / 100.0 * 4.0), "{share} % of {line}: {sent}");
    }
}

#[test]
fn where_nothing_was_measured_the_first_half_second_is_the_measurement() {
    let mut pacer = Pacer::new(50);
    let first = give(&mut pacer, SECOND, SECOND / 2, 25e6, |_| false);
    assert!(is_about(first, 12.5e6), "{first}");
    let then = give(&mut pacer, SECOND * 3 / 2, SECOND * 2, 25e6, |_| false);
    assert!(is_about(then, 25e6), "{then}");
}

#[test]
fn a_pause_is_no_part_of_the_measurement() {
    let mut pacer = Pacer::new(100);
    give(&mut pacer, SECOND, SECOND / 4, 25e6, |_| false);
    give(&mut pacer, SECOND * 5, SECOND, 25e6, |_| false);
    assert!(pacer.uplink.is_some_and(|rate| is_about(rate as u64, 25e6)), "{pacer:?}");
}

#[test]
fn a_collective_leaves_a_little_and_afterwards_it_goes_on_at_once() {
    let mut pacer = Pacer::new(50);
    pacer.note_rate(25e6);
    let busy = |now: Duration| now < SECOND * 3;
    let slow = give(&mut pacer, SECOND, SECOND * 2, 25e6, busy);
    assert!(slow > 0 && slow as f64 <= 2.0 * FLOOR + 20_000.0, "{slow}");
    let fast = give(&mut pacer, SECOND * 3, SECOND * 2, 25e6, busy);
    assert!(is_about(fast, 25e6), "{fast}");
    // Nobody is silent for long meanwhile.
    pacer.ask(SECOND * 10, 1 << 20, true);
    assert!(matches!(pacer.ask(SECOND * 10, 1 << 20, true), Turn::At(at) if at < SECOND * 21 / 2));
}

#[test]
fn what_the_socket_did_not_take_is_not_counted() {
    let mut pacer = Pacer::new(50);
    pacer.note_rate(2e6);
    let Turn::Bytes(bytes) = pacer.ask(SECOND, 1 << 20, false) else { panic!("nothing has gone yet") };
    pacer.take_back(bytes, false);
    assert_eq!(pacer.ask(SECOND, 1 << 20, false), Turn::Bytes(bytes));
}

#[test]
fn the_best_rate_of_late_counts() {
    let mut pacer = Pacer::new(50);
    pacer.note_rate(1e6);
    pacer.note_rate(10e6);
    pacer.note_rate(1e3);
    assert_eq!(pacer.uplink, Some(9.9e6));
    (0..2000).for_each(|_| pacer.note_rate(1e6));
    assert_eq!(pacer.uplink, Some(1e6));
}

#[test]
fn a_gauge_adds_what_has_gone_over_all_links() {
    let mut gauge = Gauge::default();
    let sent = |a: u64, b: u64| BTreeMap::from([("a", a), ("b", b)]);
    assert_eq!(gauge.note(SECOND, sent(100, 0), true), None);
    assert_eq!(gauge.note(SECOND * 2, sent(600, 500), true), Some(1000.0));
    assert_eq!(gauge.note(SECOND * 2 + Duration::from_millis(1), sent(900, 500), true), None);
    // A link that goes, and one that comes.
    let other = BTreeMap::from([("a", 700), ("c", 200)]);
    assert_eq!(gauge.note(SECOND * 3, other.clone(), true), Some(300.0));
    assert_eq!(gauge.note(SECOND * 4, other, true), None);
}

#[test]
fn what_goes_while_nothing_waits_says_nothing_about_the_line() {
    let mut gauge = Gauge::default();
    for (second, waits, rate) in
        [(1, true, None), (2, false, None), (3, true, None), (4, true, Some(10.0)), (5, false, None)]
    {
        let sent = BTreeMap::from([("a", u64::from(second) * 10)]);
        assert_eq!(gauge.note(SECOND * second, sent, waits), rate, "{second}");
    }
}
