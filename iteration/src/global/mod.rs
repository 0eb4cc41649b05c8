//! A member of a run: carries out what the protocol wants, on the caller's thread, beside one thread for signs of life.

mod error;
mod heart;
mod nonce;
mod watch;

pub use error::IterationError;

use crate::{
    protocol::{
        Call, Decision, MAX_MEMBERS, MAX_PAYLOAD_BYTES, Machine, Member, Outcome, Policy, Register, Reply,
        Rules, Step, Waiting, check_id, keys, keys::Keys,
    },
    store::{Store, StoreError},
};
use heart::Heart;
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use watch::Watch;

/// Time that one call of the store gets before it is tried again.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a failed call is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time of any setting.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a member takes part. All members of a run must have the same `run`, `policy` and `world_size`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IterationConfig {
    /// Name of the run: letters, digits, hyphens, underscores and points. Runs with different names do not see each
    /// other.
    pub run: String,
    /// A new run begins when this many members have joined.
    pub world_size: usize,
    /// Number of the first iteration of a new run.
    pub first_iteration: u64,
    /// Who must be there for a decision.
    pub policy: Policy,
    /// A member gives a sign of life this often.
    pub heartbeat_interval: Duration,
    /// A member without a sign of life for this long, by the clock of the one who waits for it, is not waited for.
    pub inactive_after: Duration,
    /// Without any progress for this long, members that live but have not arrived are not waited for either.
    pub no_progress: Duration,
    /// Who waits looks at the store this often, should the wake-up be lost.
    pub poll_interval: Duration,
    /// The store may be unreachable for this long within one call.
    pub store_timeout: Duration,
    /// How long [`GlobalIteration::join`] and [`GlobalIteration::catch_up`] wait to be taken in. Without it they wait
    /// as long as any member lives.
    pub join_timeout: Option<Duration>,
    /// Whether to write `global_iteration_counter`, `rank_ID_last_iteration` and `heartbeat_ID` for humans and old
    /// tools.
    pub mirror: bool,
}

impl Default for IterationConfig {
    fn default() -> Self {
        Self {
            run: "default".into(),
            world_size: 1,
            first_iteration: 0,
            policy: Policy::AnySubset,
            heartbeat_interval: Duration::from_secs(5),
            inactive_after: Duration::from_secs(30),
            no_progress: Duration::from_secs(60),
            poll_interval: Duration::from_millis(200),
            store_timeout: Duration::from_secs(60),
            join_timeout: None,
            mirror: true,
        }
    }
}

impl IterationConfig {
    fn check(&self) -> Result<(), IterationError> {
        check_id("name of a run", &self.run).map_err(IterationError::Setting)?;
        let setting = |text: String| Err(IterationError::Setting(text));
        if !(1..=MAX_MEMBERS).contains(&self.world_size) {
            return setting(format!(
                "a world size of {} is not between 1 and {MAX_MEMBERS}",
                self.world_size
            ));
        }
        let times = [self.heartbeat_interval, self.inactive_after, self.no_progress, self.poll_interval];
        if let Some(time) = times.into_iter().chain([self.store_timeout]).find(|time| *time < SHORTEST) {
            return setting(format!("a time of {time:?} is too short, use at least {SHORTEST:?}"));
        }
        if self.heartbeat_interval * 2 > self.inactive_after {
            return setting(format!(
                "a heartbeat every {:?} does not fit a limit of {:?}: at most half of it",
                self.heartbeat_interval, self.inactive_after
            ));
        }
        Ok(())
    }
}

/// Where this member stands.
#[derive(Debug, Clone)]
struct Standing {
    me: Member,
    /// The last decision that this member knows.
    register: Arc<Register>,
    is_member: bool,
}

/// A member of a run whose members agree on a global iteration through a store, without a coordinator.
///
/// Every decision has a number that is one larger than the last. All members that return from the same `advance` hold
/// the same [`Decision`]. May be used from several threads; calls that take part run one after the other.
pub struct GlobalIteration {
    store: Arc<dyn Store>,
    config: IterationConfig,
    keys: Keys,
    id: String,
    heart: Heart,
    standing: Mutex<Standing>,
    forced: Mutex<BTreeSet<String>>,
    /// Held by whoever takes part.
    turn: Mutex<()>,
}

impl GlobalIteration {
    /// Joins a run as `id`, and begins it when `world_size` members have joined. Returns once the run has taken this
    /// member in; [`decision`](Self::decision) tells which iteration has begun with it. A member that was started again
    /// thus learns where the others are before it takes part. `payload` (at most 4096 bytes) is shown to all members.
    ///
    /// # Errors
    /// See [`IterationError`].
    pub fn join(
        store: Arc<dyn Store>,
        id: &str,
        payload: &[u8],
        config: IterationConfig,
    ) -> Result<Self, IterationError> {
        config.check()?;
        check_id("member", id).map_err(IterationError::Setting)?;
        let keys = Keys::new(&config.run);
        let heart = Heart::start(Arc::clone(&store), keys.clone(), config.heartbeat_interval, config.mirror)
            .map_err(|error| IterationError::Setting(format!("cannot start a thread: {error}")))?;
        let driver = Driver { store: &*store, config: &config, keys: &keys, heart: &heart };
        let (me, register) = driver.join(id, payload, &BTreeSet::new())?;
        Ok(Self {
            id: id.to_owned(),
            heart,
            standing: Mutex::new(Standing { me, register, is_member: true }),
            forced: Mutex::default(),
            turn: Mutex::default(),
            store,
            config,
            keys,
        })
    }

    /// Who this is.
    pub fn member(&self) -> Member {
        self.standing.lock().me.clone()
    }

    /// The last decision that this member has taken part in or was taken in by. Asks nobody.
    pub fn decision(&self) -> Decision {
        self.standing.lock().register.decision.clone()
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The settings.
    pub fn config(&self) -> &IterationConfig {
        &self.config
    }

    /// Arrives for the next iteration and returns when it is decided: when all members have arrived, or those that
    /// live, or, after a time without progress, as many as the policy demands. `payload` (at most 4096 bytes) stands in
    /// the decision.
    ///
    /// # Errors
    /// See [`IterationError`]. After [`Fenced`](IterationError::Fenced) only [`catch_up`](Self::catch_up) helps; after
    /// most others the same call may be made again.
    pub fn advance(&self, payload: &[u8]) -> Result<Decision, IterationError> {
        check_payload(payload)?;
        let _turn = self.turn.lock();
        let standing = self.standing.lock().clone();
        if !standing.is_member {
            return Err(IterationError::NotMember(self.id.clone()));
        }
        let driver = self.driver();
        let rules = driver.rules(&self.forced.lock());
        let members = standing.register.decision.entries.len();
        let (me, base) = (standing.me.clone(), standing.register);
        let mut machine =
            Machine::advance(self.keys.clone(), rules, me.clone(), base, payload.to_vec(), nonce::next());
        let register = driver.drive(&mut machine, members, None).inspect_err(|error| {
            if matches!(error, IterationError::Fenced { .. }) {
                self.standing.lock().is_member = false;
                self.heart.beat_for(None);
                // Others may have removed the key already, and this life gives no further sign.
                let deadline = Instant::now() + CALL_TIMEOUT;
                if let Err(error) = self.store.delete(&self.keys.heartbeat(&me), deadline) {
                    log::debug!("the sign of life of {me} stays: {error}");
                }
            }
        })?;
        self.forced.lock().clear();
        Ok(self.adopt(me, register))
    }

    /// Comes back after this member was fenced off or has left: joins again as a new life, and returns the decision
    /// that has taken it in. A member that is in already gets its last decision.
    ///
    /// # Errors
    /// See [`IterationError`].
    pub fn catch_up(&self, payload: &[u8]) -> Result<Decision, IterationError> {
        check_payload(payload)?;
        let _turn = self.turn.lock();
        let standing = self.standing.lock().clone();
        if standing.is_member {
            // Somebody who sleeps may have been dropped without knowing.
            match self.current()? {
                Some(found) if found.contains(&standing.me) => return Ok(standing.register.decision.clone()),
                _ => {}
            }
        }
        let forced = self.forced.lock().clone();
        let (me, register) = self.driver().join(&self.id, payload, &forced)?;
        Ok(self.adopt(me, register))
    }

    /// What the store holds now, whoever is in it; `None` before the run has begun.
    ///
    /// # Errors
    /// The store, or what it holds, is no use.
    pub fn current(&self) -> Result<Option<Decision>, IterationError> {
        read_current(&*self.store, &self.config.run, Instant::now() + self.config.store_timeout)
    }

    /// Leaves: the others do not wait for this member any more. What is left of its last iteration goes on without it.
    ///
    /// # Errors
    /// The store cannot be told. The others will find out by the missing signs of life.
    pub fn leave(&self) -> Result<(), IterationError> {
        let _turn = self.turn.lock();
        let me = {
            let mut standing = self.standing.lock();
            if !std::mem::replace(&mut standing.is_member, false) {
                return Ok(());
            }
            standing.me.clone()
        };
        self.heart.beat_for(None);
        self.driver().call(Call::Set(self.keys.left(&me), b"1".to_vec())).map(drop)
    }

    /// For the next decision that this member proposes, these identities and no others must be there, whatever the
    /// policy demands. For an operator who knows that the rest will not come back. The register still admits one
    /// decision only.
    pub fn force_members<S: Into<String>>(&self, ids: impl IntoIterator<Item = S>) {
        *self.forced.lock() = ids.into_iter().map(Into::into).collect();
    }

    fn adopt(&self, me: Member, register: Arc<Register>) -> Decision {
        let decision = register.decision.clone();
        self.driver().write_mirror(&me, &decision);
        *self.standing.lock() = Standing { me, register, is_member: true };
        decision
    }

    fn driver(&self) -> Driver<'_> {
        Driver { store: &*self.store, config: &self.config, keys: &self.keys, heart: &self.heart }
    }
}

impl std::fmt::Debug for GlobalIteration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let standing = self.standing.lock();
        f.debug_struct("GlobalIteration")
            .field("member", &standing.me)
            .field("iteration", &standing.register.decision.iteration)
            .finish_non_exhaustive()
    }
}

/// What the register of a run holds; `None` before the run has begun.
///
/// # Errors
/// The store, or what it holds, is no use.
pub fn read_current(
    store: &dyn Store,
    run: &str,
    deadline: Instant,
) -> Result<Option<Decision>, IterationError> {
    let bytes = store.get(&Keys::new(run).state(), deadline).map_err(IterationError::Store)?;
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return Ok(None) };
    match Register::read(bytes) {
        Ok(register) => Ok(Some(register.decision)),
        Err(error) => Err(IterationError::Lost(format!("the register cannot be read: {error}"))),
    }
}

fn check_payload(payload: &[u8]) -> Result<(), IterationError> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        let text = format!("a payload of {} bytes, at most {MAX_PAYLOAD_BYTES} are allowed", payload.len());
        return Err(IterationError::Setting(text));
    }
    Ok(())
}

/// Everything that a machine needs to get on.
struct Driver<'a> {
    store: &'a dyn Store,
    config: &'a IterationConfig,
    keys: &'a Keys,
    heart: &'a Heart,
}

impl Driver<'_> {
    fn rules(&self, forced: &BTreeSet<String>) -> Rules {
        Rules {
            policy: self.config.policy,
            forced: forced.clone(),
            world_size: self.config.world_size,
            first_iteration: self.config.first_iteration,
        }
    }

    fn join(
        &self,
        id: &str,
        payload: &[u8],
        forced: &BTreeSet<String>,
    ) -> Result<(Member, Arc<Register>), IterationError> {
        check_payload(payload)?;
        let rules = self.rules(forced);
        let mut machine = Machine::join(self.keys.clone(), rules, id, payload.to_vec(), nonce::next());
        let result = self.drive(&mut machine, self.config.world_size, self.config.join_timeout);
        match result {
            Ok(register) => {
                self.write_mirror(machine.member(), &register.decision);
                Ok((machine.member().clone(), register))
            }
            Err(error) => {
                self.heart.beat_for(None);
                Err(error)
            }
        }
    }

    /// Carries a machine to its end.
    fn drive(
        &self,
        machine: &mut Machine,
        members: usize,
        timeout: Option<Duration>,
    ) -> Result<Arc<Register>, IterationError> {
        let began = Instant::now();
        let mut watch = Watch::new(self.config, members, began);
        let mut useless_wake = None;
        loop {
            match machine.step() {
                Step::Call(call) => machine.deliver(self.call(call)?),
                Step::Hint(call) => {
                    let deadline = Instant::now() + CALL_TIMEOUT;
                    let reply = execute(self.store, call, deadline).unwrap_or_else(|error| {
                        log::debug!("a hint was not given: {error}");
                        Reply::Done
                    });
                    machine.deliver(reply);
                }
                Step::Wait(waiting) => {
                    if let Some(timeout) = timeout.filter(|timeout| began.elapsed() >= *timeout) {
                        let id = machine.member().id.clone();
                        let awaited = waiting.missing;
                        return Err(IterationError::TimedOut { id, awaited, waited: timeout });
                    }
                    self.wait(machine, waiting, &mut watch, &mut useless_wake)?;
                }
                Step::Done(outcome) => return self.finish(machine.member(), outcome, &watch),
            }
            if machine.member().incarnation != 0 {
                self.heart.beat_for(Some(machine.member()));
            }
        }
    }

    /// Waits for news, and tells the machine what to do next.
    fn wait(
        &self,
        machine: &mut Machine,
        waiting: Waiting,
        watch: &mut Watch,
        useless_wake: &mut Option<String>,
    ) -> Result<(), IterationError> {
        watch.note(&waiting, Instant::now());
        let until = Instant::now() + watch.turn();
        // A wake-up that was followed by no decision is left from another time, and would wake again at once.
        let woken = if useless_wake.as_ref() == Some(&waiting.wake) {
            thread::sleep(watch.turn());
            false
        } else {
            match self.store.wait(std::slice::from_ref(&waiting.wake), until) {
                Ok(woken) => woken,
                Err(error) if error.is_passing() => {
                    thread::sleep(RETRY_PAUSE.min(watch.turn()));
                    false
                }
                Err(error) => return Err(IterationError::Store(error)),
            }
        };
        let now = Instant::now();
        if woken {
            *useless_wake = Some(waiting.wake);
            machine.peek();
            return Ok(());
        }
        if !watch.should_look(&waiting, now) {
            machine.peek();
            return Ok(());
        }
        let hearts = watch.hearts_to_read(&waiting, now);
        if !hearts.is_empty() {
            let keys = hearts.iter().map(|member| self.keys.heartbeat(member)).collect();
            if let Reply::Values(values) = self.call(Call::GetAll(keys))? {
                let now = Instant::now();
                hearts
                    .into_iter()
                    .zip(values)
                    .for_each(|(member, value)| watch.saw_heart(member, value, now));
            }
        }
        machine.look(watch.facts(Instant::now()));
        Ok(())
    }

    fn finish(&self, me: &Member, outcome: Outcome, watch: &Watch) -> Result<Arc<Register>, IterationError> {
        let fenced = |reason: String| Err(IterationError::Fenced { member: me.clone(), reason });
        match outcome {
            Outcome::Decided(register) => Ok(register),
            Outcome::Fenced(Some(register)) => {
                let iteration = register.decision.iteration;
                fenced(format!("the others began iteration {iteration} without it"))
            }
            Outcome::Fenced(None) => fenced("the same member was started again and takes its place".into()),
            Outcome::NoQuorum(absent) => Err(IterationError::NoQuorum {
                policy: self.config.policy,
                absent,
                waited: watch.quiet(Instant::now()),
            }),
            Outcome::Lost(text) => Err(IterationError::Lost(text)),
        }
    }

    /// Makes one call, again and again while the store cannot be reached. Every call of the protocol may be carried out
    /// twice.
    fn call(&self, call: Call) -> Result<Reply, IterationError> {
        let give_up = Instant::now() + self.config.store_timeout;
        loop {
            let deadline = give_up.min(Instant::now() + CALL_TIMEOUT);
            match execute(self.store, call.clone(), deadline) {
                Ok(reply) => return Ok(reply),
                Err(error) if error.is_passing() && Instant::now() < give_up => {
                    log::debug!("trying again: {error}");
                    thread::sleep(RETRY_PAUSE);
                }
                Err(error) => return Err(IterationError::Store(error)),
            }
        }
    }

    /// For humans and old tools; nothing depends on it.
    fn write_mirror(&self, me: &Member, decision: &Decision) {
        if !self.config.mirror {
            return;
        }
        let deadline = Instant::now() + CALL_TIMEOUT;
        let text = decision.iteration.to_string();
        let mut keys = vec![keys::mirror_last_iteration(&me.id)];
        if decision.proposer == *me {
            keys.push(keys::MIRROR_COUNTER.into());
        }
        for key in keys {
            if let Err(error) = self.store.set(&key, text.as_bytes(), deadline) {
                log::debug!("{key} stays behind: {error}");
            }
        }
    }
}

/// Makes one call of the protocol once.
fn execute(store: &dyn Store, call: Call, deadline: Instant) -> Result<Reply, StoreError> {
    Ok(match call {
        Call::Get(key) => Reply::Value(store.get(&key, deadline)?),
        Call::GetAll(keys) => Reply::Values(store.get_all(&keys, deadline)?),
        Call::Set(key, value) => {
            store.set(&key, &value, deadline)?;
            Reply::Done
        }
        Call::Increment(key) => Reply::Number(store.add(&key, 1, deadline)?),
        Call::CompareSet { key, expected, desired } => {
            store.compare_set(&key, &expected, &desired, deadline)?;
            Reply::Done
        }
        Call::Delete(key) => {
            store.delete(&key, deadline)?;
            Reply::Done
        }
    })
}
