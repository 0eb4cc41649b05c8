//! Carries out what the protocol wants, call by call.

use super::{Cancel, IterationConfig, IterationError, heart::Heart, nonce, watch::Watch};
use crate::{
    protocol::{
        Call, Decision, MAX_PAYLOAD_BYTES, Machine, Member, Outcome, Register, Reply, Rules, Step, Waiting,
        keys, keys::Keys,
    },
    store::{Store, StoreError},
};
use std::{
    collections::BTreeSet,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Time that one call of the store gets before it is tried again.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a failed call is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

pub(super) fn check_payload(payload: &[u8]) -> Result<(), IterationError> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        let text = format!("a payload of {} bytes, at most {MAX_PAYLOAD_BYTES} are allowed", payload.len());
        return Err(IterationError::Setting(text));
    }
    Ok(())
}

/// Everything that a machine needs to get on.
pub(super) struct Driver<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) config: &'a IterationConfig,
    pub(super) keys: &'a Keys,
    pub(super) heart: &'a Heart,
    pub(super) cancel: &'a Cancel,
}

impl Driver<'_> {
    pub(super) fn rules(&self, forced: &BTreeSet<String>) -> Rules {
        Rules {
            policy: self.config.policy,
            forced: forced.clone(),
            world_size: self.config.world_size,
            first_iteration: self.config.first_iteration,
        }
    }

    pub(super) fn join(
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
    pub(super) fn drive(
        &self,
        machine: &mut Machine,
        members: usize,
        timeout: Option<Duration>,
    ) -> Result<Arc<Register>, IterationError> {
        let began = Instant::now();
        let mut watch = Watch::new(self.config, members, began);
        let mut useless_wake = None;
        loop {
            if self.cancel.is_cancelled() {
                return Err(IterationError::Cancelled);
            }
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
        self.call_until(call, || self.cancel.is_cancelled())
    }

    /// The same, whoever has cancelled what.
    pub(super) fn call_anyway(&self, call: Call) -> Result<Reply, IterationError> {
        self.call_until(call, || false)
    }

    fn call_until(&self, call: Call, over: impl Fn() -> bool) -> Result<Reply, IterationError> {
        let give_up = Instant::now() + self.config.store_timeout;
        loop {
            if over() {
                return Err(IterationError::Cancelled);
            }
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
    pub(super) fn write_mirror(&self, me: &Member, decision: &Decision) {
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
