//! Our protocol under the explorer: the machines are those of the library.

use crate::{
    explorer::{Answer, Keys, Next, Op, Process},
    world::World,
};
use pccl_iteration::{
    Member, Policy,
    protocol::{
        Call, Decision, Entry, Facts, Machine, Outcome, Register, Reply, Rules, Step, keys::Keys as Names,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The decisions, seen from outside: the bytes of every iteration.
#[derive(Debug, Clone, Hash, Default)]
pub(crate) struct Decided {
    by_iteration: BTreeMap<u64, Arc<[u8]>>,
}

impl Decided {
    fn check(&mut self, register: &Register) -> Result<(), String> {
        let n = register.decision.iteration;
        match self.by_iteration.get(&n) {
            Some(bytes) if **bytes != *register.bytes => Err(format!("iteration {n} is decided twice")),
            Some(_) => Ok(()),
            None => {
                let last = self.by_iteration.last_key_value().map(|(n, _)| *n);
                if last.is_some_and(|last| n != last + 1) {
                    return Err(format!("iteration {n} follows {last:?}"));
                }
                self.by_iteration.insert(n, register.bytes.as_slice().into());
                Ok(())
            }
        }
    }
}

/// A member of the model.
#[derive(Clone, Hash)]
pub(crate) struct Participant {
    id: u8,
    life: u8,
    goal: u64,
    rules: Rules,
    machine: Option<Machine>,
    /// The last decision that it has taken part in.
    base: Option<Arc<Register>>,
    nonces: u8,
    detail: Detail,
}

/// How much the explorer sees of what cannot do harm; less makes larger runs possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Detail {
    /// The reads of one look are single steps.
    pub(crate) looks: bool,
    /// Keys are removed. Otherwise all those hints are lost.
    pub(crate) tidies: bool,
}

fn rules(world_size: usize, policy: Policy) -> Rules {
    Rules { policy, forced: BTreeSet::new(), world_size, first_iteration: 0 }
}

impl Participant {
    fn nonce(&mut self) -> u128 {
        self.nonces += 1;
        (u128::from(self.id) + 1) << 64 | u128::from(self.life) << 32 | u128::from(self.nonces) << 16
    }

    fn joiner(id: u8, life: u8, goal: u64, rules: Rules, detail: Detail) -> Self {
        let mut this = Self { id, life, goal, rules, machine: None, base: None, nonces: 0, detail };
        let nonce = this.nonce();
        let rules = this.rules.clone();
        this.machine = Some(Machine::join(Names::new("m"), rules, &id.to_string(), Vec::new(), nonce));
        this
    }

    fn member(id: u8, goal: u64, rules: Rules, base: Arc<Register>, detail: Detail) -> Self {
        let mut this = Self { id, life: 1, goal, rules, machine: None, base: Some(base), nonces: 0, detail };
        this.machine = this.advancing();
        this
    }

    fn advancing(&mut self) -> Option<Machine> {
        let base = self.base.clone()?;
        let me = base.decision.members().find(|member| member.id == self.id.to_string())?.clone();
        if base.decision.iteration >= self.goal {
            return None;
        }
        let nonce = self.nonce();
        Some(Machine::advance(Names::new("m"), self.rules.clone(), me, base, Vec::new(), nonce))
    }

    /// Nobody reads these keys, or nobody writes them here: no order of such calls makes a difference, and hints may be
    /// lost.
    fn is_idle(key: &str) -> bool {
        ["/wake/", "/cnt/", "/hb/", "/left/"].iter().any(|part| key.contains(part))
    }

    /// Whether a look in time would find something else than a reason to wait.
    fn has_news(&self, keys: &Keys) -> bool {
        let known = self.machine.as_ref().and_then(Machine::base);
        let is_decided = keys.get("it/m/state").as_ref() != known.map(|known| &known.bytes);
        is_decided || self.waits_for_nobody(keys, &[])
    }

    /// Whether everybody who is missing is gone.
    fn waits_for_nobody(&self, keys: &Keys, gone: &[bool]) -> bool {
        let is_gone = |id: &str| id.parse().is_ok_and(|id: usize| gone.get(id) == Some(&true));
        let known = self.machine.as_ref().and_then(Machine::base);
        // Slots that no decision has looked at.
        let behind = known.map_or(0, |known| known.decision.slots);
        let slots = keys.0.iter().filter(|(key, _)| {
            key.strip_prefix("it/m/join/")
                .is_some_and(|slot| slot.parse().is_ok_and(|slot: u64| slot > behind))
        });
        let joiners: BTreeSet<String> =
            slots.map(|(_, value)| Entry::of_slot(value).expect("a joiner").member.id).collect();
        let Some(known) = known else {
            let mut everybody = (0..self.rules.world_size).map(|id| id.to_string());
            return everybody.all(|id| joiners.contains(&id) || is_gone(&id));
        };
        let (names, next) = (Names::new("m"), known.decision.iteration + 1);
        // A joiner waits for all members that could take it in, whether they have arrived or not.
        let is_member = self.base.as_ref().is_some_and(|base| base.bytes == known.bytes);
        known.decision.members().all(|member| {
            let has_arrived = is_member && keys.get(&names.arrival(next, member)).is_some();
            has_arrived || joiners.contains(&member.id) || is_gone(&member.id)
        })
    }

    fn has_ended(&mut self, outcome: Outcome, ghost: &mut Decided) -> Result<(), String> {
        match outcome {
            Outcome::Decided(register) => {
                ghost.check(&register)?;
                let n = register.decision.iteration;
                if let Some(base) = &self.base
                    && n != base.decision.iteration + 1
                {
                    return Err(format!("{} goes from {} to {n}", self.id, base.decision.iteration));
                }
                self.base = Some(register);
                self.machine = self.advancing();
            }
            // It catches up as a new life, unless the run is far enough.
            Outcome::Fenced(register) => {
                let is_over = register.is_none_or(|register| register.decision.iteration >= self.goal);
                self.machine = None;
                if !is_over && self.life < 3 {
                    *self = Self::joiner(self.id, self.life + 1, self.goal, self.rules.clone(), self.detail);
                }
            }
            // The caller tries again. Nothing was proposed, so no number is used up.
            Outcome::NoQuorum(_) => {
                self.nonces -= 1;
                self.machine = self.advancing();
            }
            Outcome::Lost(text) => return Err(format!("{} believes: {text}", self.id)),
        }
        Ok(())
    }
}

impl Process for Participant {
    type Ghost = Decided;

    fn next(&self, keys: &Keys, gone: &[bool]) -> Next {
        let Some(machine) = &self.machine else { return Next::Done };
        let call = match machine.step() {
            Step::Call(call) | Step::Hint(call) => call,
            // To look when nothing has changed leads back here.
            Step::Wait(_) => {
                // Patience ends for free with those who are gone; with those who only stand still it is a fault.
                let run_out = (1, u8::from(!self.waits_for_nobody(keys, gone)));
                let in_time = self.has_news(keys).then_some((0, 0));
                return Next::Choose(in_time.into_iter().chain([run_out]).collect());
            }
            Step::Done(_) => return Next::Done,
        };
        Next::Call(match call {
            Call::Get(key) => Op::Get(key),
            Call::GetAll(keys) => Op::GetAll(keys),
            Call::Set(key, value) => Op::Set(key, value),
            Call::Increment(key) => Op::Increment(key),
            Call::CompareSet { key, expected, desired } => Op::CompareSet(key, expected, desired),
            Call::Delete(key) => Op::Delete(key),
        })
    }

    fn deliver(&mut self, answer: Answer, _: &mut Decided) -> Result<(), String> {
        let reply = match answer {
            Answer::Value(value) => Reply::Value(value),
            Answer::Values(values) => Reply::Values(values),
            Answer::Number(number) => Reply::Number(number),
            Answer::Done => Reply::Done,
        };
        if let Some(machine) = &mut self.machine {
            machine.deliver(reply);
        }
        Ok(())
    }

    fn settle(&mut self, keys: &Keys, ghost: &mut Decided) -> Result<(), String> {
        while let Some(machine) = &mut self.machine {
            match machine.step() {
                Step::Call(Call::GetAll(keys)) if keys.iter().all(|key| Self::is_idle(key)) => {
                    machine.deliver(Reply::Values(vec![None; keys.len()]));
                }
                // After the arrival it looks for a decision once. If there is none, that is over before anybody goes
                // on.
                Step::Hint(Call::Increment(_)) => {
                    machine.deliver(Reply::Number(0));
                    let state = keys.get("it/m/state");
                    if state.as_ref() == self.base.as_ref().map(|base| &base.bytes) {
                        machine.deliver(Reply::Value(state));
                    }
                }
                Step::Hint(Call::Set(key, _) | Call::Delete(key)) if Self::is_idle(&key) => {
                    machine.deliver(Reply::Done);
                }
                Step::Hint(Call::Delete(_)) if !self.detail.tidies => machine.deliver(Reply::Done),
                Step::Done(outcome) => self.has_ended(outcome, ghost)?,
                _ => break,
            }
        }
        // A joiner that finds the run at its goal has come too late for it.
        let too_late = |machine: &Machine| {
            let is_over = machine.base().is_some_and(|known| known.decision.iteration >= self.goal);
            is_over && !matches!(machine.step(), Step::Hint(_))
        };
        self.machine = self.machine.take().filter(|machine| !too_late(machine)).map(Machine::without_hints);
        Ok(())
    }

    fn is_glued(&self) -> bool {
        let step = self.machine.as_ref().map(Machine::step);
        !self.detail.looks
            && match step {
                Some(Step::Call(Call::Get(key))) => key.ends_with("/joins"),
                Some(Step::Call(Call::GetAll(keys))) => keys.iter().any(|key| key.contains("/join/")),
                _ => false,
            }
    }

    fn choose(&mut self, choice: u8) {
        let run_out = || {
            let all = (0..3_u8).flat_map(|id| (1..4).map(move |incarnation| (id.to_string(), incarnation)));
            let inactive = all.map(|(id, incarnation)| Member { id, incarnation }).collect();
            Facts { expired: true, inactive }
        };
        if let Some(machine) = &mut self.machine {
            machine.look(if choice == 0 { Facts::default() } else { run_out() });
        }
    }

    fn crash(&self, _: &mut Decided) -> Option<Self> {
        let done = self.base.as_ref().is_some_and(|base| base.decision.iteration >= self.goal);
        (self.life < 3 && !done)
            .then(|| Self::joiner(self.id, self.life + 1, self.goal, self.rules.clone(), self.detail))
    }

    fn inspect(keys: &Keys, ghost: &mut Decided) -> Result<(), String> {
        match keys.get("it/m/state") {
            Some(bytes) => ghost.check(&Register::read(bytes).map_err(|error| error.to_string())?),
            None => Ok(()),
        }
    }
}

/// A run that is in iteration 0 and shall come to `goal`.
pub(crate) fn running(
    members: u8,
    goal: u64,
    policy: Policy,
    faults: u8,
    detail: Detail,
) -> World<Participant> {
    let entry = |id: u8| Entry {
        member: Member { id: id.to_string(), incarnation: 1 },
        payload: Vec::new(),
        joined: true,
    };
    let decision = Decision {
        iteration: 0,
        entries: (0..members).map(entry).collect(),
        proposer: entry(0).member,
        slots: members.into(),
        nonce: 1,
        past: Vec::new(),
    };
    let register = Arc::new(Register::new(decision));
    let mut keys = Keys::default();
    keys.set("it/m/state", &register.bytes);
    keys.set("it/m/joins", members.to_string().as_bytes());
    (0..members).for_each(|id| keys.set(&format!("it/m/inc/{id}"), b"1"));
    let rules = rules(members.into(), policy);
    let members = (0..members)
        .map(|id| Participant::member(id, goal, rules.clone(), Arc::clone(&register), detail))
        .collect();
    World::new(keys, members, faults)
}

/// A run that nobody has begun.
pub(crate) fn founding(members: u8, goal: u64, faults: u8, detail: Detail) -> World<Participant> {
    let rules = rules(members.into(), Policy::AnySubset);
    let members = (0..members).map(|id| Participant::joiner(id, 1, goal, rules.clone(), detail)).collect();
    World::new(Keys::default(), members, faults)
}
