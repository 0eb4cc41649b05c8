//! A piece of memory that two processes have: counters in a head, and the bytes of a ring behind it.
//!
//! It is a file in memory (`memfd`) whose length is sealed: nobody can make it shorter under the feet of the other one.
//! Its descriptor is closed once both have mapped it, and the system frees it when both are gone.

use std::{
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use crate::sys;

/// Bytes of the ring: enough that an end which waits is woken for much, and little enough for a cache.
pub(super) const RING_BYTES: usize = 2 << 20;
/// Room for the head: a page, so that the ring begins with one.
const HEAD_BYTES: usize = 4096;
const REGION_BYTES: usize = HEAD_BYTES + RING_BYTES;

/// Its name, as `/proc` shows it.
const NAME: &std::ffi::CStr = c"pccl-ring";
/// How the link of its descriptor in `/proc` begins.
const LINK: &str = "/memfd:pccl-ring";
/// Changes of its length, and of this list, are over.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A counter with a cache line, and its neighbour, for itself.
#[repr(C, align(128))]
struct Line<T>(T);

/// The head in front of the ring. All of it is atomic, and any bytes are values of it.
#[repr(C)]
struct Head {
    /// The nonce, in two halves, and the port from which the connection comes. Written before anybody knows of it.
    identity: [AtomicU64; 3],
    written: Line<AtomicU64>,
    read: Line<AtomicU64>,
    reader_waits: Line<AtomicU32>,
    writer_waits: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Head>() <= HEAD_BYTES);

/// A region, as this process has mapped it. Dropping it unmaps it.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
}

// SAFETY: the mapping belongs to no thread. The head is atomic; who may touch which bytes of the ring, and when, is the
// contract of `bytes` and `bytes_mut`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A new one, and the descriptor by which the other end opens it.
    pub(super) fn create(nonce: u128, port: u16) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: the name is a C string that lives for ever.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // With its pages, so that nobody dies later of there being none.
        // SAFETY: the call takes no pointers.
        check(unsafe { libc::fallocate(fd, 0, 0, REGION_BYTES as libc::off_t) })?;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) })?;
        let region = Self::map(&file)?;
        for (word, value) in region.head().identity.iter().zip(words(nonce, port)) {
            word.store(value, Ordering::Relaxed);
        }
        Ok((region, file))
    }

    /// The one that another process of this user has, behind a descriptor there. `nonce` and `port` are what it has to
    /// hold.
    pub(super) fn open(process: u32, descriptor: u32, nonce: u128, port: u16) -> io::Result<Self> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let path = format!("/proc/{process}/fd/{descriptor}");
        // To open something else could do something.
        if !fs::read_link(&path)?.as_os_str().as_encoded_bytes().starts_with(LINK.as_bytes()) {
            return Err(refused("there is another file behind this descriptor"));
        }
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path)?;
        Self::check(&file)?;
        let region = Self::map(&file.into())?;
        let identity = region.head().identity.iter().map(|word| word.load(Ordering::Relaxed));
        if !identity.eq(words(nonce, port)) {
            return Err(refused("it is the memory of another connection"));
        }
        Ok(region)
    }

    /// Whether a file is one that [`create`](Self::create) has made, for this user.
    fn check(file: &File) -> io::Result<()> {
        let known = file.metadata()?;
        // SAFETY: the call takes no pointers.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if known.is_file()
            && known.uid() == sys::effective_user()
            && known.len() == REGION_BYTES as u64
            && seals >= 0
            && seals & SEALS == SEALS
        {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is not memory that this version shares"))
    }

    fn map(file: &OwnedFd) -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the system chooses an address where nothing is; the descriptor is open.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES, access, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast())
            .map(|start| Self { start })
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn head(&self) -> &Head {
        // SAFETY: a mapping begins with a page, which is aligned for a head and has room for one, and lives as long as
        // this value. The file is as long as the mapping, and sealed. All fields are atomic.
        unsafe { self.start.cast::<Head>().as_ref() }
    }

    /// Bytes that were ever written.
    pub(super) fn written(&self) -> &AtomicU64 {
        &self.head().written.0
    }

    /// Bytes that were ever read.
    pub(super) fn read(&self) -> &AtomicU64 {
        &self.head().read.0
    }

    /// Whether the reader is to be woken when there are bytes: not 0.
    pub(super) fn reader_waits(&self) -> &AtomicU32 {
        &self.head().reader_waits.0
    }

    /// Whether the writer is to be woken when there is room: not 0.
    pub(super) fn writer_waits(&self) -> &AtomicU32 {
        &self.head().writer_waits.0
    }

    /// The bytes of a range of the ring.
    ///
    /// # Safety
    /// The range lies between what was read and what was written, and only the reader advances the former: so the
    /// writer does not touch them as long as the slice lives. Should a process of this user break that, which could
    /// write to any memory of this one as well, then what it sent is wrong: bytes of any value are taken here.
    pub(super) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= RING_BYTES, "{range:?} is no part of a ring");
        // SAFETY: the range lies within the mapping, which lives as long as this value; the rest by the contract.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(HEAD_BYTES + range.start), range.len()) }
    }

    /// The bytes of a range of the ring, to be written.
    ///
    /// # Safety
    /// The range lies outside of what is between read and written, only the writer advances the latter, and it has no
    /// other slice of this range: so nobody else touches it as long as the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is not that of this value")]
    pub(super) unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= RING_BYTES, "{range:?} is no part of a ring");
        // SAFETY: as in `bytes`.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(HEAD_BYTES + range.start), range.len())
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference into it outlives this value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), REGION_BYTES) };
    }
}

/// The words that tell one region from others.
fn words(nonce: u128, port: u16) -> [u64; 3] {
    [(nonce >> 64) as u64, nonce as u64, port.into()]
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
