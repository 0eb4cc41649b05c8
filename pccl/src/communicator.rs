//! The communicator: the calls that a training process makes.

mod ahead;
mod beginning;
mod builder;
mod clip;
mod collectives;
mod diff;
mod enter;
mod form;
mod join;
mod leave;
mod lend;
mod misfits;
mod moves;
mod operate;
mod recover;
mod reduce;
mod resume;
mod sync;
mod topology;

use crate::settings::Builder;
pub use form::Member;
pub use lend::DetachedLoan;
pub use resume::{Checkpoint, Resume};

use crate::{
    Error, Reason, World,
    config::Config,
    flight,
    limit::Limit,
    session::{Session, Shared, figures::Figures},
    world::Known,
};
use parking_lot::Mutex;
use pccl_flight::{Recorder, Role, What};
use pccl_protocol::{CallKind, PeerId, PreviousIdentity, ResumeOffer, Verdict};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A peer of a run. All calls block; all take `&self` and may come from any thread.
///
/// Calls that agree with all peers of the run or group (`update_topology`, `are_peers_pending`, `wait_for_world`,
/// `sync_shared_state`) go one after another; all-reduces with different tags run concurrently, see
/// [`Communicator::scope`].
#[derive(Debug)]
pub struct Communicator {
    config: Config,
    flight: Arc<Recorder>,
    figures: Arc<Figures>,
    door: join::Door,
    session: Mutex<Option<Session>>,
    /// Of calls that name no limit of their own.
    call_timeout: Mutex<Option<Duration>>,
    world: Mutex<Arc<Known>>,
    /// The result of the last forming: the members until the next one, also when somebody is lost.
    formed: Mutex<Option<Arc<Known>>>,
    misfits: misfits::Misfits,
    previous: Mutex<Option<PreviousIdentity>>,
    last_verdict: Mutex<Option<Verdict>>,
    carried: Option<resume::Carried>,
    /// The state that this peer says at its next connect that it holds.
    offer: Mutex<Option<ResumeOffer>>,
    /// The last sync failed for want of a newer state, which a newcomer may bring.
    lacks_state: AtomicBool,
    /// The last failure was one of an edge, which may fail again.
    edge_failed: AtomicBool,
    /// While the state is lacking.
    lack: Mutex<Option<join::Patience>>,
    kept: Mutex<lend::Kept>,
    /// This peer has not synced since it was let in with the state that its group lent.
    came_ahead: AtomicBool,
}

impl Communicator {
    /// Settings for a communicator of the run whose master listens on `master`: `host:port`, `1.2.3.4:port` or
    /// `[::1]:port`.
    pub fn builder(master: &str) -> Builder {
        Builder::new(master)
    }

    pub(crate) fn new(config: Config) -> Self {
        let flight = Recorder::new(Role::Peer, config.group, config.flight.clone());
        flight.set_name(config.name.clone());
        Self {
            call_timeout: Mutex::new(config.settings.call_timeout),
            carried: config.resume.clone().map(resume::Carried::new),
            config,
            flight: Arc::new(flight),
            figures: Arc::default(),
            door: join::Door::default(),
            session: Mutex::new(None),
            world: Mutex::new(Arc::default()),
            formed: Mutex::new(None),
            misfits: misfits::Misfits::default(),
            previous: Mutex::new(None),
            last_verdict: Mutex::new(None),
            offer: Mutex::new(None),
            lacks_state: AtomicBool::new(false),
            edge_failed: AtomicBool::new(false),
            lack: Mutex::new(None),
            kept: Mutex::default(),
            came_ahead: AtomicBool::new(false),
        }
    }

    /// Joins the run. Returns when this peer is a full member of its group's ring: at once for the first peer of a run,
    /// otherwise when the others have called [`Communicator::update_topology`]. May be called again after the
    /// connection to the master was lost or this peer was dropped.
    ///
    /// A peer that has synced before, or that has called [`Communicator::offer_resume`], tells the master which
    /// revision it holds: fresh peers let it in before they commit an older one.
    ///
    /// A master that cannot be reached is tried again, with pauses of up to 2 s, until `connect_timeout` (60 s) has
    /// passed: a refused connection, no way to its address, a name that is not known, a master that stops. So peers may
    /// be started before the master. [`Communicator::close`] in another thread ends the attempts.
    ///
    /// A master with a journal or with standbys may die meanwhile: this peer waits on, or registers anew, within
    /// `master_grace`.
    ///
    /// # Errors
    /// `ConnectFailed` if the master could not be reached in time; `Refused`, at once, if it does not take this peer,
    /// or is no master; `Kicked` or `MasterLost` if that happens while waiting to be let in; `TimedOut` if this peer
    /// was not let in within the call time-out; `NotConnected` after `close` in another thread; `InvalidUsage` if
    /// already connected.
    pub fn connect(&self) -> Result<(), Error> {
        self.connect_within(self.call_timeout())
    }

    /// As [`Communicator::connect`]; `timeout` is how long this peer waits to be let in, once it is registered,
    /// `None` for ever. Then it leaves the run.
    ///
    /// # Errors
    /// As [`Communicator::connect`].
    pub fn connect_within(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.came_ahead.store(false, Ordering::Relaxed);
        self.enter(timeout, false, |shared, limit| shared.wait_for_admission(limit.deadline()))
    }

    /// The limit of calls that name none of their own; see [`Builder::call_timeout`](crate::Builder::call_timeout).
    pub fn call_timeout(&self) -> Option<Duration> {
        *self.call_timeout.lock()
    }

    /// Changes the limit of the calls that begin from now on; `None` for no limit.
    pub fn set_call_timeout(&self, timeout: Option<Duration>) {
        *self.call_timeout.lock() = timeout;
    }

    /// The name of this peer; see [`Builder::name`](crate::Builder::name).
    pub fn name(&self) -> &str {
        self.config.name.as_str()
    }

    /// The identity of this peer in the run: a new one after each connect. `None` before the first registration, and
    /// after [`Communicator::close`].
    pub fn id(&self) -> Option<PeerId> {
        let slot = self.session.lock();
        slot.as_ref().and_then(|session| session.shared.told.identity()).map(|identity| identity.peer)
    }

    /// Whether this peer is connected to the run at the moment.
    pub fn is_connected(&self) -> bool {
        self.shared().is_ok_and(|shared| !shared.calls.is_connecting())
    }

    /// The run as it was when the last agreeing call was answered. See [`World`].
    pub fn world(&self) -> World {
        self.world.lock().world.clone()
    }

    /// Shows the caller what is known with the answer to a call, unless a later answer has been shown.
    fn show(&self, known: Option<Arc<Known>>) {
        let mut shown = self.world.lock();
        if let Some(known) = known.filter(|known| known.is_newer_than(&shown)) {
            *shown = known;
        }
    }

    /// Leaves the run: tells the master, closes every connection, and ends every thread. All-reduces in flight fail,
    /// here and on the other peers; [`Communicator::close_within`] lets them finish first. The communicator may connect
    /// again.
    pub fn close(&self) {
        self.door.call_back();
        *self.offer.lock() = None;
        self.end_loan();
        self.kept.lock().salvage = None;
        let session = self.session.lock().take();
        if let Some(session) = session {
            session.leave();
        }
        flight::settle(&self.flight);
    }

    /// Writes what the flight recorder holds into a new file in `directory`, which is made if it is not there, and
    /// returns the path of the file. `pccl-master explain` reads the files of several peers together.
    ///
    /// # Errors
    /// `System` if the file cannot be written.
    pub fn dump_flight(&self, directory: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let directory = directory.as_ref();
        self.flight.dump(directory, "on request").map_err(|error| {
            Error::System(Reason::system(format_args!("cannot write to {}", directory.display()), error))
        })
    }

    /// The live session, or why there is none.
    fn shared(&self) -> Result<Arc<Shared>, Error> {
        let slot = self.session.lock();
        let session = slot.as_ref().ok_or(Error::NotConnected)?;
        match session.shared.control.end() {
            None => Ok(session.shared.clone()),
            Some(_) => Err(session.shared.control.end_error()),
        }
    }

    /// Refuses a call that does not go with the way in which the group of this peer gets its members.
    fn check_kind(&self, kind: CallKind) -> Result<(), Error> {
        let refuse = |text: &str| Err(Error::InvalidUsage(format!("{kind}: {text}")));
        match kind {
            CallKind::UpdateTopology
            | CallKind::ArePeersPending
            | CallKind::WaitForWorld
            | CallKind::OptimizeTopology
                if self.config.settings.formed_groups =>
            {
                refuse(
                    "this communicator was built with formed_groups, form_group says who is in and in which order",
                )
            }
            CallKind::FormGroup if !self.config.settings.formed_groups => {
                refuse("this communicator was built without formed_groups, its group lets newcomers in")
            }
            CallKind::Sync => self.check_group("sync_shared_state"),
            _ => Ok(()),
        }
    }

    /// Refuses what needs a group before one was formed.
    fn check_group(&self, call: &str) -> Result<(), Error> {
        if self.config.settings.formed_groups && !self.shared()?.operations.table.has_ring() {
            return Err(Error::InvalidUsage(format!("{call}: there is no group yet, call form_group first")));
        }
        Ok(())
    }

    /// Begins a call that goes alone among its kind; `drained` says that no all-reduce may be in flight.
    fn exclusive(&self, kind: CallKind, drained: bool, limit: Limit) -> Result<Exclusive<'_>, Error> {
        let shared = self.shared()?;
        self.check_kind(kind)?;
        {
            let mut activity = shared.calls.activity();
            activity.check_not_draining()?;
            if let Some((other, ..)) = activity.exclusive {
                return Err(Error::InvalidUsage(format!("{kind} while another thread is in {other}")));
            }
            let count = activity.in_flight();
            if drained && count > 0 {
                return Err(Error::PendingAsyncOps { count });
            }
            activity.exclusive = Some((kind, Instant::now(), limit));
        }
        flight::call(&shared.flight, What::CallBegan, kind);
        shared.control.forget_answers();
        shared.told.take_answer_world();
        Ok(Exclusive { comm: self, shared })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.close();
    }
}

/// A call that goes alone. When it is over, the caller sees the world that its answer told.
struct Exclusive<'a> {
    comm: &'a Communicator,
    shared: Arc<Shared>,
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // Before the next call can be answered.
        let answer_world = self.shared.told.take_answer_world();
        if let Some(kind) = self.shared.calls.end_exclusive() {
            flight::call(&self.shared.flight, What::CallEnded, kind);
        }
        if self.shared.control.end().is_some() {
            flight::settle(&self.shared.flight);
        }
        self.comm.show(answer_world);
    }
}
