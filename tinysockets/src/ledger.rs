//! Which sockets of this process are ours: for the child after a `fork`, which has to close its copies of them. As long
//! as a child keeps them, nobody notices the death of its parent.
//!
//! Off until [`enable`] is called. A socket is known by its inode, which no other file of the machine has as long as
//! any process holds it; so nothing of somebody else is ever closed, and copies of a descriptor are found as well.
//! Inodes of sockets that are gone are forgotten now and then.

use parking_lot::{Mutex, MutexGuard};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::sys;

/// Known sockets before the first clean-up.
const SMALL: usize = 256;

static ENABLED: AtomicBool = AtomicBool::new(false);
static BOOK: Mutex<Book> = Mutex::new(Book { inodes: BTreeSet::new(), clean_at: SMALL });

struct Book {
    /// Inodes of sockets, without those of other file systems: all sockets live in one.
    inodes: BTreeSet<u64>,
    /// At this size the sockets that are gone are taken out.
    clean_at: usize,
}

thread_local! {
    /// The lock of the book in the thread that forks.
    static HELD: RefCell<Option<MutexGuard<'static, Book>>> = const { RefCell::new(None) };
}

/// From now on sockets are entered.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Enters a socket of ours.
pub fn enter(socket: impl AsFd) {
    if !ENABLED.load(Ordering::Relaxed) {
        return;
    }
    let Some(ours) = inode(socket.as_fd().as_raw_fd()) else { return };
    let mut book = BOOK.lock();
    if book.inodes.len() >= book.clean_at {
        let open: BTreeSet<u64> = descriptors().into_iter().filter_map(inode).collect();
        book.inodes.retain(|inode| open.contains(inode));
        book.clean_at = (book.inodes.len() * 2).max(SMALL);
    }
    book.inodes.insert(ours);
}

/// Before a `fork`: nobody else uses the book until [`thaw`], which the same thread has to call.
pub fn freeze() {
    HELD.with(|held| *held.borrow_mut() = Some(BOOK.lock()));
}

/// Ends [`freeze`], after the `fork`, in the parent, and in a child that has nothing of ours.
pub fn thaw() {
    HELD.with(|held| drop(held.borrow_mut().take()));
}

/// In the child of a `fork`, after [`freeze`]: closes all its copies of our sockets. Nothing of this crate may be used
/// in this process afterwards: what other threads of the parent had locked stays so.
pub fn close_in_child() {
    let Some(book) = HELD.with(|held| held.borrow_mut().take()) else { return };
    for fd in descriptors() {
        if inode(fd).is_some_and(|inode| book.inodes.contains(&inode)) {
            sys::close_inherited(fd);
        }
    }
    // Locked for good: to wake those who wait for it would mean threads that are not here.
    std::mem::forget(book);
}

/// All descriptors of this process, if the system lists them.
fn descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The inode of a descriptor that is a socket, which the system calls `socket:[12345]`.
fn inode(fd: RawFd) -> Option<u64> {
    let target = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn sockets_are_known_by_more_than_their_number() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let copy = listener.try_clone().expect("a copy");
        let ours = inode(listener.as_raw_fd()).expect("a socket");
        assert_eq!(inode(copy.as_raw_fd()), Some(ours));
        let other = TcpListener::bind("127.0.0.1:0").expect("loopback");
        assert_ne!(inode(other.as_raw_fd()), Some(ours));
        let file = std::fs::File::open("/proc/self/status").expect("a file");
        assert_eq!(inode(file.as_raw_fd()), None);
        assert!(descriptors().contains(&listener.as_raw_fd()));
    }

    #[test]
    fn the_book_forgets_sockets_that_are_gone() {
        enable();
        for _ in 0..3 * SMALL {
            enter(TcpListener::bind("127.0.0.1:0").expect("loopback"));
        }
        freeze();
        thaw();
        thaw();
        // Other tests of this process may have some open.
        assert!(BOOK.lock().inodes.len() <= 2 * SMALL, "{}", BOOK.lock().inodes.len());
    }
}
