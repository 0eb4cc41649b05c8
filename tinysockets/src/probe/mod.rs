//! How fast a path is: one end fills connections, the other end throws the bytes away and says every few milliseconds
//! how many have arrived, so that what lies in buffers on the way does not count.

mod measure;
mod meter;

pub use measure::{Measured, Until, measure};

use crate::conn::Conn;
use std::{
    io,
    time::{Duration, Instant},
};

/// Bytes sent and received at a time.
const PIECE_BYTES: usize = 256 << 10;
/// A report of the receiving end: bytes so far, microseconds since the connection began.
const REPORT_BYTES: usize = 16;
/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(5);
/// Of a connection that is measured for longer than any probe lasts ...
const LONGEST: Duration = Duration::from_secs(120);
/// ... the counting end is closed. So is one on which nothing has arrived for this long.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// How much may be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// In all.
    pub time: Duration,
    /// In all.
    pub bytes: u64,
}

impl Share {
    /// That of a peer of the run: as long as any probe lasts.
    pub const WHOLE: Self = Self { time: LONGEST, bytes: u64::MAX };
}

/// Throws away what comes, and says how much it was, until the share is used up.
pub fn count(conn: &Conn, share: Share) {
    let began = Instant::now();
    let mut piece = vec![0; PIECE_BYTES];
    let (mut bytes, mut reported, mut arrived) = (0_u64, began, began);
    while began.elapsed() < share.time && arrived.elapsed() < LONGEST_SILENCE && bytes < share.bytes {
        let room = usize::try_from(share.bytes - bytes).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        // A path on which nothing arrives is reported, too.
        match conn.recv_some(&mut piece[..room], Some(Instant::now() + REPORT_INTERVAL * 4)) {
            Ok(0) => return,
            Ok(n) => {
                bytes += n as u64;
                arrived = Instant::now();
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(_) => return,
        }
        let now = Instant::now();
        if now.duration_since(reported) >= REPORT_INTERVAL || bytes == share.bytes {
            reported = now;
            let micros = now.duration_since(began).as_micros() as u64;
            let report = [bytes.to_be_bytes(), micros.to_be_bytes()].concat();
            // It is small enough to go out at once or never.
            if conn.send_all(&report, Some(now + REPORT_INTERVAL)).is_err() {
                return;
            }
        }
    }
}
