//! Masters as C sees them: made, run once, interrupted from anywhere, awaited, destroyed.
//!
//! An interrupt may come from a signal handler, in the middle of anything: it takes no lock and no memory. So each
//! master has one of a fixed number of slots for as long as it lives. A reader announces itself in the slot before it
//! looks at what is in there; whoever empties the slot waits until no reader is left, which takes as long as one system
//! call.

use crate::{
    child,
    failure::{Failure, Outcome},
    registry::{Registry, new_key},
    types::{Handle, ResultCode, code},
};
use parking_lot::Mutex;
use pccl::{Master, MasterConfig, MasterError};
use pccl_master::StopHandle;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicPtr, AtomicUsize, Ordering},
};

/// All masters of the process.
pub(crate) static MASTERS: Registry<MasterInstance> = Registry::new("master");

/// Masters that one process can have at a time.
const MAX_MASTERS: usize = 256;
static SLOTS: [Slot; MAX_MASTERS] = [const { Slot::new() }; MAX_MASTERS];

struct Slot {
    /// Of the master that lives here; 0 for none.
    key: AtomicUsize,
    /// How to stop it; null while it does not run.
    stop: AtomicPtr<StopHandle>,
    readers: AtomicUsize,
}

impl Slot {
    const fn new() -> Self {
        Self {
            key: AtomicUsize::new(0),
            stop: AtomicPtr::new(std::ptr::null_mut()),
            readers: AtomicUsize::new(0),
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct MasterInstance {
    slot: usize,
    state: Mutex<State>,
    running: OnceLock<Master>,
}

#[derive(Debug)]
struct State {
    config: MasterConfig,
    was_run: bool,
}

/// Makes a master that will listen on `host:port`.
pub(crate) fn create(listen: String) -> Outcome<Handle> {
    let key = new_key();
    let free = |slot: &&Slot| slot.key.compare_exchange(0, key, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let slot = SLOTS.iter().position(|slot| free(&slot));
    let slot =
        slot.ok_or_else(|| Failure::usage(format!("more than {MAX_MASTERS} masters in one process")))?;
    // Programs of the original name an address that others reach, and know of no key. The log warns of that.
    let config = MasterConfig { listen, insecure: true, ..MasterConfig::default() };
    let state = Mutex::new(State { config, was_run: false });
    Ok(MASTERS.insert(key, Arc::new(MasterInstance { slot, state, running: OnceLock::new() })))
}

/// Asks a master to stop, in one of the ways of its handle. For signal handlers: no lock, no memory, no text for a
/// failure.
pub(crate) fn interrupt(handle: Handle, stop_by: fn(&StopHandle)) -> ResultCode {
    if child::is_child() {
        return code::INVALID_USAGE;
    }
    let key = handle.addr();
    let Some(slot) = SLOTS.iter().find(|slot| key != 0 && slot.key.load(Ordering::SeqCst) == key) else {
        return code::INVALID_ARGUMENT;
    };
    slot.readers.fetch_add(1, Ordering::SeqCst);
    let stop = slot.stop.load(Ordering::SeqCst);
    // Looked at again: the slot may have gone to another master in between.
    let result = if slot.key.load(Ordering::SeqCst) != key {
        code::INVALID_ARGUMENT
    } else if stop.is_null() {
        code::INVALID_USAGE
    } else {
        // SAFETY: `destroy` takes the pointer out of the slot and frees what it points to only when there is no reader;
        // this reader was announced before it loaded the pointer.
        stop_by(unsafe { &*stop });
        code::SUCCESS
    };
    slot.readers.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Takes a master out of the world; one that runs is stopped.
pub(crate) fn destroy(handle: Handle) -> Outcome {
    let instance = MASTERS.remove(handle)?;
    let slot = &SLOTS[instance.slot];
    let stop = slot.stop.swap(std::ptr::null_mut(), Ordering::SeqCst);
    while slot.readers.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    if !stop.is_null() {
        // SAFETY: it comes from `Box::into_raw` in `run`, is out of the slot, and no reader is left that could have it.
        let stop = unsafe { Box::from_raw(stop) };
        // A caller that awaits it in another thread is woken.
        stop.stop();
    }
    slot.key.store(0, Ordering::SeqCst);
    Ok(())
}

impl MasterInstance {
    /// Changes a setting of a master that has not been run.
    pub(crate) fn set(&self, name: &str, value: &str) -> Outcome {
        let mut state = self.state.lock();
        if state.was_run {
            return Err(Failure::usage("the master has been run"));
        }
        state.config.set(name, value).map_err(|error| Failure::argument(error.to_string()))
    }

    /// Starts to listen and serve.
    pub(crate) fn run(&self) -> Outcome {
        let mut state = self.state.lock();
        if state.was_run {
            return Err(Failure::usage("the master has been run already"));
        }
        let master = Master::launch(state.config.clone())
            .map_err(|error: MasterError| Failure::usage(error.to_string()))?;
        state.was_run = true;
        let stop = Box::into_raw(Box::new(master.stop_handle()));
        if self.running.set(master).is_err() {
            return Err(Failure::internal("a master was run twice"));
        }
        SLOTS[self.slot].stop.store(stop, Ordering::SeqCst);
        Ok(())
    }

    /// The master that runs, or has run.
    pub(crate) fn running(&self) -> Outcome<&Master> {
        self.running.get().ok_or_else(|| Failure::usage("the master has not been run"))
    }
}
