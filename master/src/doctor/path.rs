//! The kernel's knowledge of the way to the master, and the clocks of both ends.

use super::{
    Report,
    master::{Way, millis},
    ports::Answer,
};
use std::{fs, time::Duration};
use tinysockets::link::{LONG_PATH, tune_data_socket};

/// Clocks that differ by less are as good as equal for logs.
const CLOCKS_MAX: Duration = Duration::from_secs(1);
/// Buffers that let one connection carry less than this, in bytes per second, are worth a word.
const ENOUGH_RATE: u64 = 125_000_000;

/// Largest packet, clock, congestion control and buffers.
pub(super) fn look(way: &Way, answer: &Answer, report: &mut Report) {
    largest_packet(way, report);
    clock(way, answer, report);
    congestion_control(way, report);
    buffers(way.round_trip, report);
}

fn largest_packet(way: &Way, report: &mut Report) {
    if let Ok(info) = way.stream.conn().info() {
        let found =
            format!("{} bytes (segments of {}), long ones pass both ways", info.path_mtu, info.segment_bytes);
        let numbers = [("path_mtu", info.path_mtu.into()), ("segment_bytes", info.segment_bytes.into())];
        report.fine("largest packet", found).numbers.extend(numbers);
    }
}

fn clock(way: &Way, answer: &Answer, report: &mut Report) {
    // The master's answer was half a round trip on its way.
    let theirs = Duration::from_micros(answer.told.unix_us) + way.round_trip / 2;
    let difference = answer.came.abs_diff(theirs);
    let us = i64::try_from(difference.as_micros()).unwrap_or(i64::MAX);
    let (sign, word) = if answer.came >= theirs { (1, "ahead of") } else { (-1, "behind") };
    let found = format!("{} {word} that of the master", millis(difference));
    let finding = match difference < CLOCKS_MAX {
        true => report.fine("clock", found),
        false => {
            let remedy = "set both clocks by the network (`timedatectl set-ntp true`): nothing goes by them but the \
                          times in logs and flight records, which do not fit together otherwise";
            report.note("clock", found, remedy)
        }
    };
    finding.numbers.push(("clock_difference_us", sign * us));
}

/// The congestion control that an edge as long as this way would get.
fn congestion_control(way: &Way, report: &mut Report) {
    let conn = way.stream.conn();
    let is_paced = tune_data_socket(conn, way.round_trip).is_paced;
    let name = conn.congestion_control().unwrap_or_else(|| "not known".to_owned());
    if way.round_trip >= LONG_PATH && !is_paced {
        let found = format!("{name}, and this path is long ({})", millis(way.round_trip));
        let remedy = "bbr loses less to single lost packets: `modprobe tcp_bbr`, and as root \
                      `sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"`";
        report.note("congestion control", found, remedy);
    } else {
        report
            .fine("congestion control", format!("{name}, for data on a path of {}", millis(way.round_trip)));
    }
}

fn buffers(round_trip: Duration, report: &mut Report) {
    let (send, receive) = (largest("tcp_wmem"), largest("tcp_rmem"));
    let Some(smaller) = send.into_iter().chain(receive).min() else { return };
    let shown =
        |bytes: Option<u64>| bytes.map_or("not known".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    let mut found = format!("send at most {}, receive at most {}", shown(send), shown(receive));
    let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX).max(1);
    let rate = smaller.saturating_mul(1_000_000) / micros;
    let numbers = [("largest_buffer_bytes", i64::try_from(smaller).unwrap_or(i64::MAX))];
    let finding = if round_trip >= LONG_PATH && rate < ENOUGH_RATE {
        found += &format!(": one connection carries at most {} Mbit/s on this path", rate * 8 / 1_000_000);
        let remedy = "larger buffers on all machines: `sysctl -w net.ipv4.tcp_rmem=\"4096 131072 67108864\" \
                      net.ipv4.tcp_wmem=\"4096 65536 67108864\" net.core.wmem_max=16777216`; or more connections \
                      (pool_size)";
        report.note("buffers", found, remedy)
    } else {
        report.fine("buffers", found)
    };
    finding.numbers.extend(numbers);
}

/// The last of three numbers of a setting of the kernel: how far a buffer may grow.
fn largest(setting: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{setting}")).ok()?;
    text.split_whitespace().nth(2)?.parse().ok()
}
