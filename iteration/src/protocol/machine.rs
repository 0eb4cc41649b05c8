//! One join or one advance, from the first call to its outcome.

use super::{
    Call, Reply,
    decision::{Decision, Entry, Member, Register, Relation, encode_slot},
    judge::{Facts, Rules, Verdict, judge},
    keys::Keys,
    look::{Look, View},
};
use std::{collections::VecDeque, sync::Arc};

/// The step that the machine wants next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make this call, as often as it takes, and [`deliver`](Machine::deliver) its reply. It does no harm if it is
    /// carried out twice, or once more at any later time.
    Call(Call),
    /// The same, but try it once only: if it fails, deliver [`Reply::Done`].
    Hint(Call),
    /// Wait for news, then [`peek`](Machine::peek) or [`look`](Machine::look).
    Wait(Waiting),
    /// It is over.
    Done(Outcome),
}

/// The things that are waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// A key that appears when there is a decision; only a hint.
    pub wake: String,
    /// Members that have not arrived. Empty before the first look.
    pub missing: Vec<Member>,
    /// How many have arrived or want to join, for measuring progress.
    pub present: usize,
    /// The place of this member in the order of arrival, or of joiners in front of it, from 1. A hint.
    pub place: i64,
}

/// How a join or an advance ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// There is a decision, and this member is in it.
    Decided(Arc<Register>),
    /// The others went on without this life of the member. `None`: a later life of the same identity takes over.
    Fenced(Option<Arc<Register>>),
    /// The deadline has passed and too few are there; these are absent.
    NoQuorum(Vec<Member>),
    /// The store does not hold what it held, or holds something else; in words.
    Lost(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum At {
    Incarnation,
    Slot,
    Enter,
    Arrive,
    Count,
    Wait,
    /// Reads the register; then looks around if there are facts.
    Read(Option<Facts>),
    Look(Look, Facts),
    Propose(Register),
    Verify(Register),
    /// Gives hints and cleans up, then it is over.
    Tidy(VecDeque<Call>, Outcome),
}

/// One join or one advance. See the [module](super) for the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    keys: Keys,
    rules: Rules,
    me: Member,
    payload: Vec<u8>,
    /// Of the next proposal.
    nonce: u128,
    /// The last decision; none for a joiner of a new run.
    base: Option<Arc<Register>>,
    /// The slot of a joiner; none for a member.
    slot: Option<u64>,
    at: At,
    missing: Vec<Member>,
    present: usize,
    place: i64,
}

impl Machine {
    /// A life of `id` that wants to join. `nonce` and the numbers behind it must never be used by anybody else.
    pub fn join(keys: Keys, rules: Rules, id: &str, payload: Vec<u8>, nonce: u128) -> Self {
        let me = Member { id: id.to_owned(), incarnation: 0 };
        Self::new(keys, rules, me, payload, nonce, None, At::Incarnation)
    }

    /// A member of `base` that wants the next decision.
    pub fn advance(
        keys: Keys,
        rules: Rules,
        me: Member,
        base: Arc<Register>,
        payload: Vec<u8>,
        nonce: u128,
    ) -> Self {
        Self::new(keys, rules, me, payload, nonce, Some(base), At::Arrive)
    }

    fn new(
        keys: Keys,
        rules: Rules,
        me: Member,
        payload: Vec<u8>,
        nonce: u128,
        base: Option<Arc<Register>>,
        at: At,
    ) -> Self {
        Self {
            keys,
            rules,
            me,
            payload,
            nonce,
            base,
            slot: None,
            at,
            missing: Vec::new(),
            present: 0,
            place: 0,
        }
    }

    /// The member of this machine. The incarnation of a joiner is 0 until it is known.
    pub fn member(&self) -> &Member {
        &self.me
    }

    /// The decision that it knows.
    pub fn base(&self) -> Option<&Register> {
        self.base.as_deref()
    }

    fn decision(&self) -> Option<&Decision> {
        self.base.as_deref().map(|base| &base.decision)
    }

    fn next_iteration(&self) -> u64 {
        self.decision().map_or(self.rules.first_iteration, |base| base.iteration + 1)
    }

    /// The step that is to be done now.
    pub fn step(&self) -> Step {
        let keys = &self.keys;
        Step::Call(match &self.at {
            At::Incarnation => Call::Increment(keys.incarnation(&self.me.id)),
            At::Slot => Call::Increment(keys.joins()),
            At::Enter => {
                Call::Set(keys.join(self.slot.unwrap_or_default()), encode_slot(&self.me, &self.payload))
            }
            At::Arrive => Call::Set(keys.arrival(self.next_iteration(), &self.me), self.payload.clone()),
            At::Count => return Step::Hint(Call::Increment(keys.count(self.next_iteration()))),
            At::Wait => {
                return Step::Wait(Waiting {
                    wake: keys.wake(self.next_iteration()),
                    missing: self.missing.clone(),
                    present: self.present,
                    place: self.place(),
                });
            }
            At::Read(_) | At::Verify(_) => Call::Get(keys.state()),
            At::Look(look, _) => match look.call(keys, self.decision()) {
                Some(call) => call,
                // `deliver` leaves no finished look behind.
                None => Call::Get(keys.state()),
            },
            At::Propose(register) => Call::CompareSet {
                key: keys.state(),
                expected: self.base.as_ref().map(|base| base.bytes.clone()).unwrap_or_default(),
                desired: register.bytes.clone(),
            },
            At::Tidy(calls, outcome) => {
                return match calls.front() {
                    Some(call) => Step::Hint(call.clone()),
                    None => Step::Done(outcome.clone()),
                };
            }
        })
    }

    /// While it waits: see whether there is a decision.
    pub fn peek(&mut self) {
        if self.at == At::Wait {
            self.at = At::Read(None);
        }
    }

    /// While it waits: look who is there, and propose if that is due.
    pub fn look(&mut self, facts: Facts) {
        if self.at == At::Wait {
            self.at = At::Read(Some(facts));
        }
    }

    /// Takes the reply to the last call.
    pub fn deliver(&mut self, reply: Reply) {
        let number = if let Reply::Number(number) = reply { number } else { 0 };
        self.at = match std::mem::replace(&mut self.at, At::Wait) {
            At::Incarnation => {
                self.me.incarnation = number.unsigned_abs();
                At::Slot
            }
            At::Slot => {
                self.slot = Some(number.unsigned_abs());
                At::Enter
            }
            At::Enter => At::Read(Some(Facts::default())),
            At::Arrive => At::Count,
            At::Count => {
                self.place = number;
                let all = self.decision().map_or(0, |base| base.entries.len());
                // The last one to arrive looks at once.
                if number >= all as i64 { At::Read(Some(Facts::default())) } else { At::Read(None) }
            }
            At::Wait => At::Wait,
            At::Read(facts) => self.has_read(reply, facts),
            At::Look(mut look, facts) => {
                look.deliver(self.base.as_deref().map(|base| &base.decision), reply);
                match look.call(&self.keys, self.decision()) {
                    Some(_) => At::Look(look, facts),
                    None => self.has_looked(&look.into_view(), &facts),
                }
            }
            At::Propose(register) => At::Verify(register),
            At::Verify(register) => self.has_verified(reply, register),
            At::Tidy(mut calls, outcome) => {
                calls.pop_front();
                At::Tidy(calls, outcome)
            }
        };
    }

    fn over(outcome: Outcome) -> At {
        At::Tidy(VecDeque::new(), outcome)
    }

    /// Reads what the register holds; fails, in words, if the store does not hold what it must.
    fn found(&self, reply: Reply) -> Result<Option<Register>, String> {
        let Reply::Value(value) = reply else { return Ok(None) };
        // A compare-and-set takes an empty value for a missing key.
        let Some(bytes) = value.filter(|bytes| !bytes.is_empty()) else {
            return match self.decision() {
                None => Ok(None),
                Some(base) => {
                    Err(format!("the store has lost the register, which held iteration {}", base.iteration))
                }
            };
        };
        let register =
            Register::read(bytes).map_err(|error| format!("the register cannot be read: {error}"))?;
        match &self.base {
            Some(base) if base.relation(&register.decision) == Relation::Broken => Err(format!(
                "the store holds another iteration {} than the one that was decided behind iteration {}",
                register.decision.iteration, base.decision.iteration
            )),
            _ => Ok(Some(register)),
        }
    }

    fn has_read(&mut self, reply: Reply, facts: Option<Facts>) -> At {
        let found = match self.found(reply) {
            Ok(found) => found,
            Err(text) => return Self::over(Outcome::Lost(text)),
        };
        if let Some(register) = found
            && self.base.as_ref().is_none_or(|base| base.bytes != register.bytes)
            && let Some(at) = self.adopt(register)
        {
            return at;
        }
        match facts {
            Some(facts) => At::Look(Look::new(self.decision()), facts),
            None => At::Wait,
        }
    }

    /// Takes over a decision of somebody else. `None`: a joiner has to wait for the next one.
    fn adopt(&mut self, register: Register) -> Option<At> {
        let old = self.base.take();
        let was_member = old.as_ref().is_some_and(|old| old.decision.contains(&self.me));
        let register = Arc::new(register);
        let decision = &register.decision;
        if decision.contains(&self.me) {
            let tidy = self.tidy_own(old.as_deref());
            return Some(At::Tidy(tidy, Outcome::Decided(register)));
        }
        let later = decision.members().any(|m| m.id == self.me.id && m.incarnation > self.me.incarnation);
        if was_member || later {
            let tidy = self.tidy_own(old.as_deref());
            return Some(At::Tidy(tidy, Outcome::Fenced(Some(register))));
        }
        let passed_over = self.slot.is_some_and(|slot| slot <= decision.slots);
        self.base = Some(register);
        passed_over.then_some(At::Slot)
    }

    /// Calls that remove the keys that this member has written for the decision that is now behind it.
    fn tidy_own(&self, old: Option<&Register>) -> VecDeque<Call> {
        match (self.slot, old) {
            (Some(slot), _) => [Call::Delete(self.keys.join(slot))].into(),
            (None, Some(old)) => {
                [Call::Delete(self.keys.arrival(old.decision.iteration + 1, &self.me))].into()
            }
            (None, None) => VecDeque::new(),
        }
    }

    fn has_looked(&mut self, view: &View, facts: &Facts) -> At {
        self.present = view.arrived.len() + view.joiners.len();
        match judge(&self.rules, self.decision(), view, facts, &self.me) {
            Verdict::Wait(missing) => {
                self.missing = missing;
                At::Wait
            }
            Verdict::Superseded => At::Tidy(self.tidy_own(self.base.as_deref()), Outcome::Fenced(None)),
            Verdict::NoQuorum(absent) => Self::over(Outcome::NoQuorum(absent)),
            Verdict::Propose(entries) => {
                let decision = self.proposal(entries, view.slots);
                At::Propose(Register::new(decision))
            }
        }
    }

    fn proposal(&mut self, entries: Vec<Entry>, slots: u64) -> Decision {
        let nonce = self.nonce;
        self.nonce = nonce.wrapping_add(1);
        Decision {
            iteration: self.next_iteration(),
            entries,
            proposer: self.me.clone(),
            slots,
            nonce,
            past: self.decision().map(Decision::past_of_next).unwrap_or_default(),
        }
    }

    fn has_verified(&mut self, reply: Reply, mine: Register) -> At {
        let found = match self.found(reply) {
            Ok(found) => found,
            Err(text) => return Self::over(Outcome::Lost(text)),
        };
        match found {
            Some(found) if found.bytes == mine.bytes => self.has_won(mine),
            Some(found) if self.base.as_ref().is_none_or(|base| base.bytes != found.bytes) => {
                self.adopt(found).unwrap_or(At::Wait)
            }
            // Nothing has changed: the call was lost on the way.
            _ => At::Wait,
        }
    }

    /// Wakes the others and removes what nobody needs any more. All of it can be lost.
    fn has_won(&self, mine: Register) -> At {
        let keys = &self.keys;
        let decision = &mine.decision;
        let n = decision.iteration;
        let old = self.decision();
        let mut calls = VecDeque::from([Call::Set(keys.wake(n), b"1".to_vec())]);
        calls.extend(self.tidy_own(self.base.as_deref()));
        if let Some(before) = n.checked_sub(2).filter(|_| old.is_some()) {
            calls.push_back(Call::Delete(keys.wake(before)));
            calls.push_back(Call::Delete(keys.count(n - 1)));
        }
        let seen = old.map_or(0, |old| old.slots);
        calls.extend(
            (seen + 1..=decision.slots)
                .filter(|slot| self.slot != Some(*slot))
                .map(|slot| Call::Delete(keys.join(slot))),
        );
        for gone in old.iter().flat_map(|old| old.members()).filter(|member| !decision.contains(member)) {
            calls.push_back(Call::Delete(keys.arrival(n, gone)));
            calls.push_back(Call::Delete(keys.left(gone)));
            calls.push_back(Call::Delete(keys.heartbeat(gone)));
        }
        if decision.contains(&self.me) {
            At::Tidy(calls, Outcome::Decided(Arc::new(mine)))
        } else {
            At::Tidy(calls, Outcome::Fenced(Some(Arc::new(mine))))
        }
    }

    /// The same machine without what only tells the one who waits; for comparing states.
    pub fn without_hints(mut self) -> Self {
        self.missing.clear();
        (self.present, self.place) = (0, 0);
        self
    }

    fn place(&self) -> i64 {
        match self.slot {
            Some(slot) => slot.saturating_sub(self.decision().map_or(0, |base| base.slots)).cast_signed(),
            None => self.place,
        }
    }
}
