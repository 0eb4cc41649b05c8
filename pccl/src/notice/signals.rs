//! Handlers of signals, for programs that ask for them: the only unsafe code of notices.
//!
//! A handler may do next to nothing. It writes the number of the signal into a pipe of this process, which a thread
//! reads. Pipe and thread are made with the first handler and stay until the process ends, so that no handler that is
//! under way ever finds another file at the number of the pipe.

use super::Given;
use crate::{Error, Reason, threads};
use parking_lot::Mutex;
use std::{
    io::{self, PipeReader, Read},
    mem::MaybeUninit,
    os::fd::IntoRawFd,
    ptr::null,
    sync::{
        Arc, Weak,
        atomic::{AtomicI32, Ordering},
    },
};

/// The signal by which systems ask a program to end, also before a machine is taken away.
pub const SIGTERM: i32 = libc::SIGTERM;

/// Where handlers write, or -1; and the process that has asked for that.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static PROCESS: AtomicI32 = AtomicI32::new(0);
static INSTALLED: Mutex<Vec<Installed>> = Mutex::new(Vec::new());

/// A signal that is handled here.
struct Installed {
    signal: i32,
    /// The action that was there before.
    old: libc::sigaction,
    listeners: Vec<Weak<Given>>,
}

/// A notice that listens to a signal, as long as it lives.
#[derive(Debug)]
pub(super) struct Handler {
    signal: i32,
    given: Weak<Given>,
}

impl Handler {
    pub(super) fn install(signal: i32, given: &Arc<Given>) -> Result<Self, Error> {
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGKILL, libc::SIGSTOP];
        if !(1..=64).contains(&signal) || faults.contains(&signal) {
            return Err(Error::InvalidArgument(format!("signal {signal} cannot give a notice")));
        }
        let refused =
            |error| Error::System(Reason::system(format_args!("cannot handle signal {signal}"), error));
        let mut installed = INSTALLED.lock();
        let listener = Arc::downgrade(given);
        if let Some(known) = installed.iter_mut().find(|it| it.signal == signal) {
            known.listeners.push(listener.clone());
            return Ok(Self { signal, given: listener });
        }
        if PIPE.load(Ordering::Acquire) < 0 {
            let pipe = io::pipe().and_then(|(reader, writer)| {
                let writer = writer.into_raw_fd();
                do_not_wait(writer).map(|()| (reader, writer))
            });
            let (reader, writer) = pipe.map_err(refused)?;
            threads::spawn("pccl-signals", move || listen(reader))?;
            PROCESS.store(process(), Ordering::Release);
            PIPE.store(writer, Ordering::Release);
        }
        let old = change(signal, Some(&ours())).map_err(refused)?;
        installed.push(Installed { signal, old, listeners: vec![listener.clone()] });
        Ok(Self { signal, given: listener })
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let mut installed = INSTALLED.lock();
        let Some(index) = installed.iter().position(|it| it.signal == self.signal) else { return };
        let listeners = &mut installed[index].listeners;
        // A notice that asks twice listens twice.
        if let Some(own) = listeners.iter().position(|it| it.ptr_eq(&self.given)) {
            listeners.swap_remove(own);
        }
        if listeners.is_empty() {
            let Installed { old, .. } = installed.swap_remove(index);
            // A program that has put another handler there keeps it.
            let is_ours = change(self.signal, None).is_ok_and(|now| now.sa_sigaction == ours().sa_sigaction);
            if is_ours && let Err(error) = change(self.signal, Some(&old)) {
                log::warn!("cannot put the handler of signal {} back: {error}", self.signal);
            }
        }
    }
}

/// Tells notices of the signals that come.
fn listen(mut reader: PipeReader) {
    let mut signals = [0; 64];
    loop {
        let count = match reader.read(&mut signals) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return log::error!("signals are not heard any more: {error}"),
        };
        for signal in &signals[..count] {
            let signal = i32::from(*signal);
            let installed = INSTALLED.lock();
            let known = installed.iter().filter(|it| it.signal == signal);
            let listeners: Vec<_> = known.flat_map(|it| &it.listeners).filter_map(Weak::upgrade).collect();
            drop(installed);
            listeners.iter().for_each(|given| given.give(&format!("signal {signal}")));
        }
    }
}

/// The handler. It runs at any point of any thread, so it makes system calls only, and leaves the error number as it
/// was. In a forked child the signal does what it does by itself: the pipe is that of the parent.
extern "C" fn handle(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: these functions may be called from handlers; the byte is live memory of this frame, the pipe is never
    // closed, and the place of the error number is that of this thread.
    unsafe {
        let errno = errno();
        let before = *errno;
        if PROCESS.load(Ordering::Acquire) == libc::getpid() {
            libc::write(PIPE.load(Ordering::Acquire), (&raw const byte).cast(), 1);
        } else {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        *errno = before;
    }
}

/// # Safety
/// The returned pointer is for this thread, as long as it lives.
unsafe fn errno() -> *mut libc::c_int {
    // SAFETY: these take nothing and always succeed.
    unsafe {
        #[cfg(target_os = "linux")]
        return libc::__errno_location();
        #[cfg(not(target_os = "linux"))]
        return libc::__error();
    }
}

/// Our handler, by which system calls that it interrupts go on.
fn ours() -> libc::sigaction {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid value of this structure of numbers and of a pointer that may be null; the mask is
    // initialised by the call.
    unsafe {
        libc::sigemptyset(&raw mut (*action.as_mut_ptr()).sa_mask);
        let mut action = action.assume_init();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        action
    }
}

/// Puts a handler in the place of the one that is there, if there is one to put; returns the one that was there.
fn change(signal: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    let new = new.map_or(null(), std::ptr::from_ref);
    // SAFETY: `new` is null or live and initialised, and there is room for the old one, which zeros initialise anyway.
    let (result, old) = unsafe { (libc::sigaction(signal, new, old.as_mut_ptr()), old.assume_init()) };
    if result == 0 { Ok(old) } else { Err(io::Error::last_os_error()) }
}

/// A write to it that would have to wait fails instead.
fn do_not_wait(pipe: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    let result = unsafe { libc::fcntl(pipe, libc::F_SETFL, libc::O_NONBLOCK) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of this process.
fn process() -> i32 {
    // SAFETY: `getpid` takes nothing and always succeeds.
    unsafe { libc::getpid() }
}

/// Kills a group of processes.
pub(super) fn kill_group(leader: u32) {
    // 0 and 1 would be other groups than that of a child.
    let Some(group) = i32::try_from(leader).ok().filter(|group| *group > 1) else { return };
    // SAFETY: the call takes numbers only.
    if unsafe { libc::killpg(group, libc::SIGKILL) } != 0 {
        log::warn!("cannot kill the group of process {group}: {}", io::Error::last_os_error());
    }
}
