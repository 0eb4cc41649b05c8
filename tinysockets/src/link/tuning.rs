//! Socket options for the connections of a link, by the length of the path.

use std::time::Duration;

use crate::{conn::Conn, sys};

/// Round trips from here on are a long path.
pub const LONG_PATH: Duration = Duration::from_millis(2);

/// One more connection for each such part of a round trip, where one alone does not fill the path.
pub const ROUND_TRIP_PER_CONNECTION: Duration = Duration::from_millis(20);

/// Most connections between two peers that a path gets if nobody asked for a number.
pub const MAX_AUTOMATIC_CONNECTIONS: u16 = 8;

/// Send buffer on a short path. Enough to keep the wire busy while the sending thread sleeps, and small enough to stay
/// in the cache.
const SHORT_SEND_BUFFER_BYTES: usize = 512 << 10;

/// The rate that one connection of a long path should be able to carry, in bytes per second: 10 Gbit/s. Sets the send
/// buffer.
const LONG_PATH_RATE: u64 = 1_250_000_000;

/// Limits of the send buffer on a long path; the kernel has its own below (`net.core.wmem_max`).
const LONG_SEND_BUFFER_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=16 << 20;

/// Most bytes that a connection of a long path takes before it can send them. Where an edge has several connections,
/// frames then go to the one that can send, and do not wait in the buffer of one that has not found its rate yet.
/// Enough for 20 ms at 100 Mbit/s, in which a thread wakes up.
const LONG_UNSENT_BYTES: u32 = 256 << 10;

/// The congestion control of long paths.
const LONG_CONGESTION_CONTROL: &str = "bbr";

/// Whether a connection goes by a model of its path, and so is paced by the kernel.
pub(super) fn is_paced(conn: &Conn) -> bool {
    conn.congestion_control().as_deref() == Some(LONG_CONGESTION_CONTROL)
}

/// The properties of a connection that was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuned {
    /// It goes by a model of its path (`bbr`), so that it alone can fill a path that loses packets now and then.
    pub is_paced: bool,
    /// Its send buffer holds what the path asks for, as far as [`tune_data_socket`] asks for it.
    pub has_room: bool,
}

/// Prepares a connection for a link, from the round trip measured on it.
///
/// - Nothing waits for acknowledgements before it is sent (`TCP_NODELAY`).
/// - On a short path congestion control is `reno`, and the send buffer 512 KiB. Pacing, as `bbr` does it, costs a good
///   part of the speed there, and the system's default may be `bbr`.
/// - On a long path it is `bbr` where the kernel has it, which does not take every lost packet for congestion, and the
///   send buffer holds what is on its way at 10 Gbit/s, at most 16 MiB. If the kernel allows less than it would take
///   by itself (`net.core.wmem_max` caps a buffer that is set, and setting it ends the adaptation), none is set. The
///   kernel takes little that it cannot send at once, where it knows how to.
/// - The receive buffer is left to the kernel, which adapts it.
///
/// An option that cannot be set is left as it is: the connection works without.
pub fn tune_data_socket(conn: &Conn, round_trip: Duration) -> Tuned {
    if let Err(error) = conn.send_at_once() {
        log::debug!("TCP_NODELAY was not set: {error}");
    }
    let is_long = round_trip >= LONG_PATH;
    let congestion_control = if is_long { LONG_CONGESTION_CONTROL } else { "reno" };
    let chosen = sys::set_congestion_control(conn.fd(), congestion_control);
    if let Err(error) = &chosen {
        log::debug!("congestion control {congestion_control} was not set: {error}");
    }
    if !is_long {
        set_send_buffer(conn, SHORT_SEND_BUFFER_BYTES);
        return Tuned { is_paced: false, has_room: true };
    }
    let wanted = long_send_buffer_bytes(round_trip, max_settable_send_buffer_bytes());
    if let Some(wanted) = wanted {
        set_send_buffer(conn, wanted);
    }
    if let Err(error) = sys::set_notsent_lowat(conn.fd(), LONG_UNSENT_BYTES) {
        log::debug!("TCP_NOTSENT_LOWAT was not set: {error}");
    }
    Tuned { is_paced: chosen.is_ok(), has_room: wanted.is_some() }
}

fn set_send_buffer(conn: &Conn, bytes: usize) {
    if let Err(error) = sys::set_send_buffer_bytes(conn.fd(), bytes) {
        log::debug!("a send buffer of {bytes} bytes was not set: {error}");
    }
}

/// The send buffer to ask for on a long path, or `None` where the kernel's own adaptation gets further than `settable`
/// (by default it grows to 4 MiB).
fn long_send_buffer_bytes(round_trip: Duration, settable: Option<u64>) -> Option<usize> {
    let product = u128::from(LONG_PATH_RATE) * round_trip.as_micros() / 1_000_000;
    let product = u64::try_from(product).unwrap_or(u64::MAX);
    let wanted = product.clamp(*LONG_SEND_BUFFER_BYTES.start(), *LONG_SEND_BUFFER_BYTES.end());
    let granted = wanted.min(settable?);
    (granted >= *LONG_SEND_BUFFER_BYTES.start()).then_some(granted as usize)
}

/// `net.core.wmem_max`, where it can be read.
fn max_settable_send_buffer_bytes() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/net/core/wmem_max").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::SockRef;

    use super::*;

    fn tuned(round_trip: Duration) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        tune_data_socket(&Conn::from(stream.try_clone().expect("a copy")), round_trip);
        stream
    }

    #[test]
    fn nagle_is_off_on_every_path() {
        for round_trip in [Duration::ZERO, Duration::from_millis(100), Duration::MAX] {
            assert!(tuned(round_trip).nodelay().expect("option"));
        }
    }

    #[test]
    fn a_short_path_gets_reno_and_a_fixed_send_buffer() {
        let stream = tuned(Duration::from_micros(50));
        let socket = SockRef::from(&stream);
        // Unprivileged, and built into every kernel.
        assert!(socket.tcp_congestion().expect("option").starts_with(b"reno"));
        let settable = max_settable_send_buffer_bytes().unwrap_or(0).min(SHORT_SEND_BUFFER_BYTES as u64);
        assert!(socket.send_buffer_size().expect("option") as u64 >= settable);
    }

    #[test]
    fn a_long_path_takes_little_that_it_cannot_send() {
        let unsent = |round_trip| SockRef::from(&tuned(round_trip)).tcp_notsent_lowat().expect("option");
        assert_eq!(unsent(Duration::from_millis(150)), LONG_UNSENT_BYTES);
        assert_ne!(unsent(Duration::from_micros(50)), LONG_UNSENT_BYTES);
    }

    #[test]
    fn a_long_path_gets_its_bandwidth_delay_product_within_limits() {
        let plenty = Some(64 << 20);
        assert_eq!(long_send_buffer_bytes(Duration::from_millis(2), plenty), Some(4 << 20));
        assert_eq!(long_send_buffer_bytes(Duration::from_millis(8), plenty), Some(10_000_000));
        assert_eq!(long_send_buffer_bytes(Duration::MAX, plenty), Some(16 << 20));
        assert_eq!(long_send_buffer_bytes(Duration::from_millis(100), Some(8 << 20)), Some(8 << 20));
    }

    #[test]
    fn a_small_kernel_limit_leaves_the_buffer_to_the_kernel() {
        assert_eq!(long_send_buffer_bytes(Duration::from_millis(100), Some(212_992)), None);
        assert_eq!(long_send_buffer_bytes(Duration::from_millis(100), None), None);
    }
}
