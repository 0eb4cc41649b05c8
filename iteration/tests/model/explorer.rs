//! Goes through all orders in which processes can make their calls of a store, with faults at every call.
//!
//! A fault is one of: the process ends before the call (and may be started again at any later time); the call is
//! carried out but its reply is lost, so that it is made again; a copy of the call is carried out once more at any
//! later time. A pause is no fault: any process may stand still while the others go on.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt,
    hash::{Hash, Hasher},
    rc::Rc,
};

/// A call of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Get(String),
    GetAll(Vec<String>),
    Set(String, Vec<u8>),
    Increment(String),
    CompareSet(String, Vec<u8>, Vec<u8>),
    Delete(String),
    Append(String, Vec<u8>),
}

/// What came of it.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Value(Option<Vec<u8>>),
    Values(Vec<Option<Vec<u8>>>),
    Number(i64),
    Done,
}

/// What a process wants.
pub(crate) enum Next {
    Call(Op),
    /// It can go on in one of these ways; the number is the price in faults.
    Choose(Vec<(u8, u8)>),
    Done,
}

/// The keys and values. Reading a missing key, and comparing with one, works as in a TCPStore.
#[derive(Debug, Clone, Hash, Default)]
pub(crate) struct Keys(pub(crate) BTreeMap<Rc<str>, Rc<[u8]>>);

impl Keys {
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.0.get(key).map(|value| value.to_vec())
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Answer {
        match op {
            Op::Get(key) => Answer::Value(self.get(key)),
            Op::GetAll(keys) => Answer::Values(keys.iter().map(|key| self.get(key)).collect()),
            Op::Set(key, value) => {
                self.set(key, value);
                Answer::Done
            }
            Op::Increment(key) => {
                let old = self.get(key).map_or(0, |value| String::from_utf8(value).unwrap().parse().unwrap());
                self.set(key, (old + 1_i64).to_string().as_bytes());
                Answer::Number(old + 1)
            }
            Op::CompareSet(key, expected, desired) => match self.get(key) {
                Some(value) if value != *expected => Answer::Value(Some(value)),
                None if !expected.is_empty() => Answer::Value(Some(expected.clone())),
                _ => {
                    self.set(key, desired);
                    Answer::Value(Some(desired.clone()))
                }
            },
            Op::Delete(key) => {
                self.0.remove(key.as_str());
                Answer::Done
            }
            Op::Append(key, more) => {
                let mut value = self.get(key).unwrap_or_default();
                value.extend_from_slice(more);
                self.set(key, &value);
                Answer::Done
            }
        }
    }
}

/// A protocol under test.
pub(crate) trait Process: Clone + Hash {
    /// What the run as a whole remembers.
    type Ghost: Clone + Hash + Default;

    /// `gone` tells which processes have ended, for good or until they are started again.
    fn next(&self, keys: &Keys, gone: &[bool]) -> Next;
    fn deliver(&mut self, answer: Answer, ghost: &mut Self::Ghost) -> Result<(), String>;
    fn choose(&mut self, choice: u8);
    /// The process has ended; what it had in mind goes into the ghost. Returns what starts in its place, if anything
    /// may.
    fn crash(&self, ghost: &mut Self::Ghost) -> Option<Self>;
    /// Whether the next call is carried out together with the last one.
    fn is_glued(&self) -> bool {
        false
    }
    /// Goes on by itself to the next call that matters.
    fn settle(&mut self, _: &Keys, _: &mut Self::Ghost) -> Result<(), String> {
        Ok(())
    }
    /// Looks at the store after a call.
    fn inspect(keys: &Keys, ghost: &mut Self::Ghost) -> Result<(), String>;
}

#[derive(Clone, Hash)]
enum Slot<P> {
    Runs(P),
    /// Ended; can be started as this.
    Down(Option<P>),
}

/// A value that is shared between states, with its fingerprint.
struct Marked<T> {
    value: T,
    mark: u128,
}

impl<T: Hash> Marked<T> {
    fn new(value: T) -> Rc<Self> {
        Rc::new(Self { mark: mark(&value), value })
    }
}

fn mark(value: &impl Hash) -> u128 {
    let mut hasher = Wide(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    value.hash(&mut hasher);
    hasher.0 ^ hasher.0 >> 71
}

/// FNV-1a with 128 bits, eight bytes at a time.
struct Wide(u128);

impl Hasher for Wide {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u128::from(u64::from_le_bytes(word)) ^ (chunk.len() as u128) << 64)
                .wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
            self.0 ^= self.0 >> 67;
        }
    }

    fn finish(&self) -> u64 {
        self.0 as u64
    }
}

/// One state of everything.
#[derive(Clone)]
pub(crate) struct World<P: Process> {
    keys: Rc<Marked<Keys>>,
    slots: Vec<Rc<Marked<Slot<P>>>>,
    late: Vec<Op>,
    faults: u8,
    pub(crate) ghost: P::Ghost,
    trace: Option<Rc<Trace>>,
}

struct Trace {
    place: usize,
    event: Event,
    before: Option<Rc<Self>>,
}

/// Something that has happened.
enum Event {
    Carried(Op),
    ReplyLost(Op),
    LateCopy(Op),
    Ended,
    StartedAgain,
    Chose(u8),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Carried(op) => write!(f, "{op:?}"),
            Self::ReplyLost(op) => write!(f, "reply lost: {op:?}"),
            Self::LateCopy(op) => write!(f, "late copy: {op:?}"),
            Self::Ended => f.write_str("ends"),
            Self::StartedAgain => f.write_str("is started again"),
            Self::Chose(choice) => write!(f, "goes on by choice {choice}"),
        }
    }
}

impl Drop for Trace {
    /// Not recursive: a trace may be long.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(rc) = next {
            next = Rc::into_inner(rc).and_then(|mut trace| trace.before.take());
        }
    }
}

impl<P: Process> World<P> {
    pub(crate) fn new(keys: Keys, processes: Vec<P>, faults: u8) -> Self {
        let mut ghost = P::Ghost::default();
        let mut settle = |mut process: P| {
            process.settle(&keys, &mut ghost).expect("nothing is wrong at the start");
            Marked::new(Slot::Runs(process))
        };
        let slots = processes.into_iter().map(&mut settle).collect();
        let keys = Marked::new(keys);
        Self { keys, slots, late: Vec::new(), faults, ghost, trace: None }
    }

    fn note(&mut self, place: usize, event: Event) {
        self.trace = Some(Rc::new(Trace { place, event, before: self.trace.take() }));
    }

    fn apply(&mut self, op: &Op) -> Answer {
        let mut keys = self.keys.value.clone();
        let answer = keys.apply(op);
        if !matches!(op, Op::Get(_) | Op::GetAll(_)) {
            self.keys = Marked::new(keys);
        }
        answer
    }

    pub(crate) fn story(&self) -> String {
        let mut lines = Vec::new();
        let mut next = self.trace.as_ref();
        while let Some(trace) = next {
            lines.push(format!("{}: {}", trace.place, trace.event));
            next = trace.before.as_ref();
        }
        lines.reverse();
        lines.join("\n")
    }

    fn fingerprint(&self) -> u128 {
        let slots: Vec<u128> = self.slots.iter().map(|slot| slot.mark).collect();
        mark(&(self.keys.mark, slots, &self.late, self.faults, &self.ghost))
    }

    /// All states that can follow.
    fn successors(&self) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        for place in 0..self.slots.len() {
            self.steps_of(place, &mut all)?;
        }
        for i in 0..self.late.len() {
            let mut world = self.clone();
            let op = world.late.remove(i);
            world.apply(&op);
            world.note(0, Event::LateCopy(op));
            world.inspect()?;
            all.push(world);
        }
        Ok(all)
    }

    fn inspect(&mut self) -> Result<(), String> {
        P::inspect(&self.keys.value, &mut self.ghost).map_err(|text| format!("{text}\n{}", self.story()))
    }

    fn gone(&self) -> Vec<bool> {
        let is_gone = |slot: &Rc<Marked<Slot<P>>>| match &slot.value {
            Slot::Down(_) => true,
            Slot::Runs(process) => matches!(process.next(&self.keys.value, &[]), Next::Done),
        };
        self.slots.iter().map(is_gone).collect()
    }

    fn steps_of(&self, place: usize, all: &mut Vec<Self>) -> Result<(), String> {
        let process = match &self.slots[place].value {
            Slot::Runs(process) => process,
            Slot::Down(None) => return Ok(()),
            Slot::Down(Some(successor)) => {
                let mut world = self.clone();
                world.note(place, Event::StartedAgain);
                let mut successor = successor.clone();
                successor.settle(&world.keys.value, &mut world.ghost)?;
                world.slots[place] = Marked::new(Slot::Runs(successor));
                all.push(world);
                return Ok(());
            }
        };
        match process.next(&self.keys.value, &self.gone()) {
            Next::Done => {}
            Next::Choose(choices) => {
                for (choice, price) in choices.into_iter().filter(|(_, price)| *price <= self.faults) {
                    let mut world = self.clone();
                    world.faults -= price;
                    world.choose(place, choice);
                    all.push(world);
                }
            }
            Next::Call(op) => {
                all.push(self.carried_out(place, &op, true)?);
                if self.faults > 0 {
                    let faulty = Self { faults: self.faults - 1, ..self.clone() };
                    all.push(faulty.crashed(place));
                    // Reading twice is the same as reading late.
                    if !matches!(op, Op::Get(_) | Op::GetAll(_)) {
                        all.push(faulty.carried_out(place, &op, false)?);
                    }
                    if !matches!(op, Op::Get(_) | Op::GetAll(_)) {
                        let mut late = faulty.carried_out(place, &op, true)?;
                        late.late.push(op);
                        late.late.sort_by_cached_key(mark);
                        late.late.sort_by_cached_key(mark);
                        all.push(late);
                    }
                }
            }
        }
        Ok(())
    }

    fn carried_out(&self, place: usize, op: &Op, replied: bool) -> Result<Self, String> {
        let mut world = self.clone();
        let answer = world.apply(op);
        world.note(place, if replied { Event::Carried(op.clone()) } else { Event::ReplyLost(op.clone()) });
        world.inspect()?;
        let Slot::Runs(process) = &world.slots[place].value else { return Ok(world) };
        if !replied {
            return Ok(world);
        }
        let mut process = process.clone();
        let settled = process
            .deliver(answer, &mut world.ghost)
            .and_then(|()| process.settle(&world.keys.value, &mut world.ghost));
        let glued = process.is_glued().then(|| process.next(&world.keys.value, &[]));
        world.slots[place] = Marked::new(Slot::Runs(process));
        settled.map_err(|text| format!("{text}\n{}", world.story()))?;
        match glued {
            Some(Next::Call(op)) => world.carried_out(place, &op, true),
            _ => Ok(world),
        }
    }

    fn crashed(&self, place: usize) -> Self {
        let mut world = self.clone();
        world.note(place, Event::Ended);
        if let Slot::Runs(process) = &self.slots[place].value {
            world.slots[place] = Marked::new(Slot::Down(process.crash(&mut world.ghost)));
        }
        world
    }

    fn choose(&mut self, place: usize, choice: u8) {
        self.note(place, Event::Chose(choice));
        if let Slot::Runs(process) = &self.slots[place].value {
            let mut process = process.clone();
            process.choose(choice);
            self.slots[place] = Marked::new(Slot::Runs(process));
        }
    }

    /// From here on nothing fails, everybody is scheduled, and waits run out: does every process come to its end?
    fn comes_to_an_end(&self, steps: usize) -> Result<(), String> {
        let mut world = self.clone();
        world.faults = u8::MAX;
        for _ in 0..steps {
            let mut is_over = true;
            for place in 0..world.slots.len() {
                let Slot::Runs(process) = &world.slots[place].value else { continue };
                match process.next(&world.keys.value, &world.gone()) {
                    Next::Done => continue,
                    Next::Call(op) => world = world.carried_out(place, &op, true)?,
                    Next::Choose(choices) => {
                        let (last, _) = choices.last().copied().expect("a way to go on");
                        world.choose(place, last);
                    }
                }
                is_over = false;
            }
            if is_over {
                return Ok(());
            }
        }
        Err(format!("somebody never comes to an end:\n{}", world.story()))
    }
}

/// Goes through all states. `each` sees every new state and may end the search with `false`. Every `probe`-th state
/// must lead to an end. Returns the number of states, of which there may be `limit`.
///
/// # Errors
/// What is wrong, and how it came about.
pub(crate) fn explore<P: Process>(
    start: World<P>,
    probe: usize,
    limit: usize,
    mut each: impl FnMut(&World<P>) -> bool,
) -> Result<usize, String> {
    let mut seen = HashSet::from([start.fingerprint()]);
    // Breadth first: the shortest story is told.
    let mut queue = VecDeque::from([start]);
    while let Some(world) = queue.pop_front() {
        if seen.len() > limit {
            return Err(format!("more than {limit} states"));
        }
        if probe != 0 && seen.len() % probe == 0 {
            world.comes_to_an_end(300)?;
        }
        for next in world.successors()? {
            if seen.insert(next.fingerprint()) {
                if !each(&next) {
                    return Ok(seen.len());
                }
                queue.push_back(next);
            }
        }
    }
    Ok(seen.len())
}
