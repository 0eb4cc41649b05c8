//! Thin, safe wrappers over the system calls that the standard library lacks: `poll`, `send` and `recv` with flags,
//! `eventfd`, TCP options.
//!
//! No call here raises `SIGPIPE` (all sends carry `MSG_NOSIGNAL`) and none returns `EINTR` (all are repeated). A
//! `deadline` is an instant of the monotonic clock; `None` waits for ever. A deadline that has passed still looks once.
//!
//! One of the few modules with `unsafe`; it keeps no state, so that each block can be judged by itself.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use libc::{c_int, c_short, c_void, pollfd};
use socket2::SockRef;

/// The flag with which a file is opened whose writes go past the page cache; `None` where there is no such flag.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub const PAST_PAGE_CACHE: Option<i32> = Some(libc::O_DIRECT);
/// The flag with which a file is opened whose writes go past the page cache; `None` where there is no such flag.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub const PAST_PAGE_CACHE: Option<i32> = None;

/// The events to wait for on a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Bytes, a connection, or the end of the stream can be read.
    Read,
    /// Bytes can be written, or a connect has ended.
    Write,
    /// Either of them.
    ReadWrite,
    /// Only errors and hang-ups, which are always reported.
    None,
}

impl Interest {
    fn events(self) -> c_short {
        match self {
            Self::Read => libc::POLLIN,
            Self::Write => libc::POLLOUT,
            Self::ReadWrite => libc::POLLIN | libc::POLLOUT,
            Self::None => 0,
        }
    }
}

/// The operations that a descriptor is ready for. Nothing set: the deadline passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read will not block.
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
    /// The connection is down in both directions; bytes that have arrived before can still be read.
    pub hangup: bool,
    /// The descriptor has an error pending, or is not open; the next call on it says which.
    pub error: bool,
}

impl Readiness {
    fn from_events(events: c_short) -> Self {
        Self {
            readable: events & libc::POLLIN != 0,
            writable: events & libc::POLLOUT != 0,
            hangup: events & libc::POLLHUP != 0,
            error: events & (libc::POLLERR | libc::POLLNVAL) != 0,
        }
    }

    /// Whether anything happened; `false` means that the deadline passed first.
    #[must_use]
    pub fn any(self) -> bool {
        self.readable || self.writable || self.hangup || self.error
    }
}

/// One descriptor of a [`poll_many`] call.
#[repr(transparent)]
#[derive(Debug)]
pub struct PollEntry<'fd> {
    raw: pollfd,
    fd: PhantomData<BorrowedFd<'fd>>,
}

impl<'fd> PollEntry<'fd> {
    /// Waits for `interest` on `fd`.
    #[must_use]
    pub fn new(fd: BorrowedFd<'fd>, interest: Interest) -> Self {
        Self { raw: pollfd { fd: fd.as_raw_fd(), events: interest.events(), revents: 0 }, fd: PhantomData }
    }

    /// The readiness that the last [`poll_many`] found.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_events(self.raw.revents)
    }
}

/// Waits until one of `entries` is ready or `deadline` passes. Returns how many are ready; 0 means the deadline passed.
pub fn poll_many(entries: &mut [PollEntry<'_>], deadline: Option<Instant>) -> io::Result<usize> {
    loop {
        let (timeout_ms, is_last_round) = poll_timeout_ms(deadline);
        // SAFETY: `PollEntry` is a transparent wrapper of `pollfd`, and pointer and length are those of one exclusively
        // borrowed slice. The descriptors are borrowed for the call, so they are open.
        let ready = unsafe {
            libc::poll(entries.as_mut_ptr().cast::<pollfd>(), entries.len() as libc::nfds_t, timeout_ms)
        };
        match ready {
            0 if is_last_round => return Ok(0),
            0 => {}
            1.. => return Ok(ready as usize),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Waits until `fd` is ready for `interest` or `deadline` passes; [`Readiness::any`] tells the two apart.
pub fn poll_fd(fd: BorrowedFd<'_>, interest: Interest, deadline: Option<Instant>) -> io::Result<Readiness> {
    let mut entry = [PollEntry::new(fd, interest)];
    poll_many(&mut entry, deadline)?;
    Ok(entry[0].readiness())
}

/// Milliseconds until `deadline`, rounded up so that a wait never ends early, and whether the deadline has passed when
/// that time is over (a wait longer than the type can say takes several rounds).
fn poll_timeout_ms(deadline: Option<Instant>) -> (c_int, bool) {
    const LONGEST_ROUND_MS: u128 = 3_600_000;
    let Some(deadline) = deadline else { return (-1, false) };
    let left = deadline.saturating_duration_since(Instant::now());
    let left_ms = left.as_nanos().div_ceil(1_000_000);
    (left_ms.min(LONGEST_ROUND_MS) as c_int, left_ms <= LONGEST_ROUND_MS)
}

fn flags(dont_wait: bool) -> c_int {
    libc::MSG_NOSIGNAL | if dont_wait { libc::MSG_DONTWAIT } else { 0 }
}

/// Repeats `call` while a signal interrupts it, and turns -1 into the error.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends from `bytes`; returns how many were taken. With `dont_wait` a full socket buffer is `WouldBlock`.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], dont_wait: bool) -> io::Result<usize> {
    // SAFETY: the range is that of a live slice.
    unsafe { send_raw(fd, bytes.as_ptr(), bytes.len(), dont_wait) }
}

/// As [`send`], from several places in a row.
pub fn send_many(fd: BorrowedFd<'_>, parts: &[io::IoSlice<'_>], dont_wait: bool) -> io::Result<usize> {
    // SAFETY: an `IoSlice` has the layout of an `iovec`, each of them is that of a live slice, and sending only reads
    // them.
    unsafe { send_message(fd, parts.as_ptr().cast_mut().cast::<libc::iovec>(), parts.len(), dont_wait) }
}

/// Receives into `buffer`; 0 is the end of the stream. With `dont_wait` "nothing there yet" is `WouldBlock`.
pub fn recv(fd: BorrowedFd<'_>, buffer: &mut [u8], dont_wait: bool) -> io::Result<usize> {
    // SAFETY: the range is that of an exclusively borrowed slice.
    unsafe { recv_raw(fd, buffer.as_mut_ptr(), buffer.len(), dont_wait) }
}

/// [`send`] from memory for which there may be no reference.
///
/// # Safety
/// `len` bytes from `bytes` must be mapped and stay so during the call. Others may write to them meanwhile; which
/// bytes are then sent is undetermined, nothing else is.
pub unsafe fn send_raw(
    fd: BorrowedFd<'_>,
    bytes: *const u8,
    len: usize,
    dont_wait: bool,
) -> io::Result<usize> {
    // SAFETY: the kernel only reads the range, which the caller vouches for. The descriptor is borrowed, so it is open.
    retry(|| unsafe { libc::send(fd.as_raw_fd(), bytes.cast::<c_void>(), len, flags(dont_wait)) })
}

/// [`recv`] into memory for which there may be no reference.
///
/// # Safety
/// `len` bytes from `buffer` must be mapped, writable, and owned by the caller for the duration of the call: nobody
/// else reads or writes them, and no reference covers them.
pub unsafe fn recv_raw(
    fd: BorrowedFd<'_>,
    buffer: *mut u8,
    len: usize,
    dont_wait: bool,
) -> io::Result<usize> {
    // SAFETY: the kernel writes to the range only, which the caller vouches for. The descriptor is borrowed, so it is
    // open.
    retry(|| unsafe { libc::recv(fd.as_raw_fd(), buffer.cast::<c_void>(), len, flags(dont_wait)) })
}

/// A place in memory for [`send_parts_raw`] and [`recv_parts_raw`]: its address and its length.
pub type RawPart = libc::iovec;

/// A part of nothing but an address and a length, to which the callers of the functions below give a meaning.
pub fn raw_part(start: *mut u8, len: usize) -> RawPart {
    libc::iovec { iov_base: start.cast::<c_void>(), iov_len: len }
}

/// [`send_raw`] from several places in a row, with one system call.
///
/// # Safety
/// As for [`send_raw`], for each of the parts.
pub unsafe fn send_parts_raw(fd: BorrowedFd<'_>, parts: &[RawPart], dont_wait: bool) -> io::Result<usize> {
    // SAFETY: the parts are those of a live slice, and for what they name the caller vouches; sending only reads both.
    unsafe { send_message(fd, parts.as_ptr().cast_mut(), parts.len(), dont_wait) }
}

/// [`recv_raw`] into several places in a row, with one system call.
///
/// # Safety
/// As for [`recv_raw`], for each of the parts.
pub unsafe fn recv_parts_raw(fd: BorrowedFd<'_>, parts: &[RawPart], dont_wait: bool) -> io::Result<usize> {
    // SAFETY: `msghdr` is a plain C struct for which all zeroes means: no address, no buffers, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the message names only the parts, which the kernel reads, and what they name, to which it writes and for
    // which the caller vouches. The descriptor is borrowed, so it is open.
    retry(|| unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags(dont_wait)) })
}

/// # Safety
/// `count` entries from `parts` must be valid, each naming readable memory, all of it for the duration of the call.
unsafe fn send_message(
    fd: BorrowedFd<'_>,
    parts: *mut libc::iovec,
    count: usize,
    dont_wait: bool,
) -> io::Result<usize> {
    // SAFETY: `msghdr` is a plain C struct for which all zeroes means: no address, no buffers, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts;
    message.msg_iovlen = count as _;
    // SAFETY: the message names only the parts, for which the caller vouches. The descriptor is borrowed, so it is
    // open.
    retry(|| unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags(dont_wait)) })
}

/// Wakes a thread that waits in [`poll_many`]. Cheap to clone; all clones are the same waker.
///
/// Wakes before the thread looks are kept; many of them count as one.
#[derive(Debug, Clone)]
pub struct Waker {
    fd: Arc<OwnedFd>,
}

impl Waker {
    /// A waker that is not set. It takes one descriptor.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        Ok(Self { fd: Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// Makes the descriptor readable until [`clear`](Self::clear). Never blocks.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes are read from a live array. The only possible failure is a full counter, and then the
        // descriptor is readable already.
        let _ =
            retry(|| unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast::<c_void>(), one.len()) });
    }

    /// Takes all wakes so far; says whether there was one.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes are written to a live array. An unset waker gives `WouldBlock`.
        retry(|| unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast::<c_void>(), count.len()) })
            .is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The effective user of this process.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: `geteuid` takes nothing, touches no memory and always succeeds.
    unsafe { libc::geteuid() }
}

/// Chooses the congestion control of a TCP socket by its name, such as `bbr`. Fails where the kernel does not have it
/// or does not let this process choose it.
pub fn set_congestion_control(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    SockRef::from(&fd).set_tcp_congestion(name.as_bytes())
}

/// Asks for a send buffer of `bytes`; the kernel doubles it for its own bookkeeping, caps it by `net.core.wmem_max`,
/// and no longer adapts it by itself.
pub fn set_send_buffer_bytes(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    SockRef::from(&fd).set_send_buffer_size(bytes)
}

/// Bounds the bytes in the send buffer that are not on their way yet.
pub fn set_notsent_lowat(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    SockRef::from(&fd).set_tcp_notsent_lowat(bytes)
}

/// Bounds the rate at which a connection is paced, in bytes per second.
pub fn set_max_pacing_rate(fd: BorrowedFd<'_>, bytes_per_second: u64) -> io::Result<()> {
    // SAFETY: the kernel reads the length of an integer from where one lives on this stack.
    retry(|| unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_second).cast::<c_void>(),
            size_of::<u64>() as libc::socklen_t,
        ) as isize
    })?;
    Ok(())
}

/// The state of a TCP connection that the kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip time in microseconds.
    pub rtt_us: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Milliseconds since the other end last acknowledged anything, whether new to this side or not.
    pub last_ack_ms: u32,
    /// Milliseconds since bytes were last sent or received.
    pub idle_ms: u32,
    /// How often in a row the system has asked the other end, without an answer, whether it is there.
    pub vain_questions: u8,
    /// How often in a row the oldest segment was sent again in vain.
    pub vain_retransmits: u8,
    /// Bytes in the send buffer that were not sent yet.
    pub notsent_bytes: u32,
    /// Segments sent again over the life of the connection.
    pub retransmitted_segments: u32,
    /// Largest packet that the path takes, as far as the kernel has learnt, in bytes.
    pub path_mtu: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Segments that the other end has, as far as it has said so, in order or not. Wraps.
    pub delivered_segments: u32,
}

/// Asks the kernel about a TCP connection. Fields that an old kernel does not report are 0.
pub fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    // SAFETY: `tcp_info` consists of integers only, for which all zeroes is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info` and the length to `len`; both live on this stack.
    retry(|| unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast::<c_void>(),
            &raw mut len,
        ) as isize
    })?;
    Ok(TcpInfo {
        rtt_us: info.tcpi_rtt,
        unacked_segments: info.tcpi_unacked,
        last_ack_ms: info.tcpi_last_ack_recv,
        idle_ms: info.tcpi_last_data_sent.min(info.tcpi_last_data_recv),
        vain_questions: info.tcpi_probes,
        vain_retransmits: info.tcpi_retransmits,
        notsent_bytes: info.tcpi_notsent_bytes,
        retransmitted_segments: info.tcpi_total_retrans,
        path_mtu: info.tcpi_pmtu,
        segment_bytes: info.tcpi_snd_mss,
        delivered_segments: info.tcpi_delivered,
    })
}

/// Closes a descriptor that no value of this process stands for: one that a `fork` has copied.
pub(crate) fn close_inherited(fd: std::os::fd::RawFd) {
    // SAFETY: closing a number touches no memory. Values of the parent that stand for it are not used in this process.
    unsafe { libc::close(fd) };
}

/// The instant `timeout` from now; `None` (no limit) where the clock cannot name it.
#[must_use]
pub fn deadline_after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn soon() -> Option<Instant> {
        deadline_after(Duration::from_secs(20))
    }

    #[test]
    fn a_connection_takes_a_bound_of_its_rate_and_none() {
        let (one, _other) = pair();
        for bytes_per_second in [1 << 20, u64::MAX] {
            set_max_pacing_rate(one.as_fd(), bytes_per_second).unwrap();
        }
        // The segment that opened the connection counts.
        assert!(tcp_info(one.as_fd()).unwrap().delivered_segments <= 1);
    }

    #[test]
    fn a_wake_before_the_poll_is_kept_and_many_are_one() {
        let waker = Waker::new().unwrap();
        assert!(!waker.clear());
        waker.wake();
        waker.clone().wake();
        assert!(poll_fd(waker.as_fd(), Interest::Read, soon()).unwrap().readable);
        assert!(waker.clear());
        assert!(!waker.clear());
        assert!(!poll_fd(waker.as_fd(), Interest::Read, Some(Instant::now())).unwrap().any());
    }

    #[test]
    fn sending_into_a_closed_connection_is_an_error_and_no_signal() {
        let (one, other) = pair();
        drop(other);
        let error = loop {
            match send(one.as_fd(), b"x", false) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn without_waiting_an_empty_or_full_socket_would_block() {
        let (one, other) = pair();
        assert_eq!(recv(one.as_fd(), &mut [0; 4], true).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let block = [0; 65536];
        let full = loop {
            match send(one.as_fd(), &block, true) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(tcp_info(one.as_fd()).unwrap().notsent_bytes > 0);
        drop(other);
    }

    #[test]
    fn parts_go_one_after_the_other_and_come_into_parts() {
        let (one, other) = pair();
        let (mut head, mut tail) = (*b"fg", *b"xyz");
        let mut parts = || [raw_part(head.as_mut_ptr(), 2), raw_part(tail.as_mut_ptr(), 3)];
        // SAFETY: the parts are live arrays, to which nobody refers meanwhile.
        let n = unsafe { send_parts_raw(one.as_fd(), &parts(), true) };
        assert_eq!(n.unwrap(), 5);
        // SAFETY: as above.
        unsafe { send_parts_raw(one.as_fd(), &[raw_part(tail.as_mut_ptr(), 2)], true) }.unwrap();
        poll_fd(other.as_fd(), Interest::Read, None).unwrap();
        let (mut few, mut many) = ([0; 3], [0; 9]);
        // SAFETY: as above.
        let n = unsafe {
            let parts = [raw_part(few.as_mut_ptr(), 3), raw_part(many.as_mut_ptr(), 9)];
            recv_parts_raw(other.as_fd(), &parts, false)
        };
        assert_eq!((n.unwrap(), &few, &many[..4]), (7, b"fgx", &b"yzxy"[..]));
    }

    #[test]
    fn an_unknown_congestion_control_is_an_error() {
        let (one, _other) = pair();
        assert!(set_congestion_control(one.as_fd(), "no such thing").is_err());
        set_congestion_control(one.as_fd(), "reno").unwrap();
    }
}
