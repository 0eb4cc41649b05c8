//! States of the explorer: what is in the store, where each process stands, and what may still come late.
//!
//! States share their parts, and what a step makes of the parts that it touches is computed once: there are far fewer
//! of those parts than states.

use crate::explorer::{Answer, Keys, Next, Op, Process};
use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hash, Hasher},
    rc::Rc,
};

/// Entries of the memory of steps; then it begins anew.
const MEMO_ENTRIES: usize = 200_000;

#[derive(Clone, Hash)]
enum Slot<P> {
    Runs(P),
    /// Ended; can be started as this.
    Down(Option<P>),
}

/// The kind of step that a process can make, as far as it does not depend on others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads,
    Writes,
    Chooses,
    Done,
    CanStart,
    Gone,
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

struct Place<P> {
    slot: Marked<Slot<P>>,
    kind: Kind,
}

impl<P: Process> Place<P> {
    fn new(slot: Slot<P>, keys: &Keys) -> Rc<Self> {
        let kind = match &slot {
            Slot::Down(Some(_)) => Kind::CanStart,
            Slot::Down(None) => Kind::Gone,
            Slot::Runs(process) => match process.next(keys, &[]) {
                Next::Call(Op::Get(_) | Op::GetAll(_)) => Kind::Reads,
                Next::Call(_) => Kind::Writes,
                Next::Choose(_) => Kind::Chooses,
                Next::Done => Kind::Done,
            },
        };
        Rc::new(Self { slot: Marked { mark: mark(&slot), value: slot }, kind })
    }

    fn call(&self, keys: &Keys) -> Option<Op> {
        match &self.slot.value {
            Slot::Runs(process) => match process.next(keys, &[]) {
                Next::Call(op) => Some(op),
                _ => None,
            },
            Slot::Down(_) => None,
        }
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

/// For what is a fingerprint already.
#[derive(Default)]
pub(crate) struct Low(u64);

impl Hasher for Low {
    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints only");
    }

    fn write_u128(&mut self, mark: u128) {
        self.0 = mark as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Fingerprints of states.
pub(crate) type Seen = HashSet<u128, BuildHasherDefault<Low>>;
type Table<T> = HashMap<u128, T, BuildHasherDefault<Low>>;

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Move {
    Carried,
    ReplyLost,
    Ended,
    StartedAgain,
    Chose(u8),
}

/// The parts that a step touches, as it leaves them.
struct After<P: Process> {
    keys: Rc<Marked<Keys>>,
    place: Rc<Place<P>>,
    ghost: Rc<Marked<P::Ghost>>,
}

impl<P: Process> Clone for After<P> {
    fn clone(&self) -> Self {
        Self { keys: Rc::clone(&self.keys), place: Rc::clone(&self.place), ghost: Rc::clone(&self.ghost) }
    }
}

/// The keys, and what is known beside them, as a call that comes late leaves them.
type AfterLate<P> = (Rc<Marked<Keys>>, Rc<Marked<<P as Process>::Ghost>>);

/// Parts of states, each once, and what steps make of them.
pub(crate) struct Memo<P: Process> {
    steps: Table<Result<After<P>, String>>,
    late: Table<Result<AfterLate<P>, String>>,
    choices: Table<Rc<[(u8, u8)]>>,
    keys: Table<Rc<Marked<Keys>>>,
    places: Table<Rc<Place<P>>>,
    ghosts: Table<Rc<Marked<P::Ghost>>>,
}

impl<P: Process> Default for Memo<P> {
    fn default() -> Self {
        let (steps, late, choices) = (Table::default(), Table::default(), Table::default());
        let (keys, places, ghosts) = (Table::default(), Table::default(), Table::default());
        Self { steps, late, choices, keys, places, ghosts }
    }
}

impl<P: Process> Memo<P> {
    fn make_room(&mut self) {
        if self.steps.len() + self.late.len() + self.choices.len() > MEMO_ENTRIES {
            *self = Self::default();
        }
    }

    /// The same parts are kept once, so that states are small.
    fn share(&mut self, after: After<P>) -> After<P> {
        let keys = Rc::clone(self.keys.entry(after.keys.mark).or_insert(after.keys));
        let place = Rc::clone(self.places.entry(after.place.slot.mark).or_insert(after.place));
        let ghost = Rc::clone(self.ghosts.entry(after.ghost.mark).or_insert(after.ghost));
        After { keys, place, ghost }
    }
}

/// One state of everything.
pub(crate) struct World<P: Process> {
    keys: Rc<Marked<Keys>>,
    places: Vec<Rc<Place<P>>>,
    late: Vec<Rc<Marked<Op>>>,
    faults: u8,
    ghost: Rc<Marked<P::Ghost>>,
    trace: Option<Rc<Trace<P>>>,
}

impl<P: Process> Clone for World<P> {
    fn clone(&self) -> Self {
        Self {
            keys: Rc::clone(&self.keys),
            places: self.places.clone(),
            late: self.late.clone(),
            faults: self.faults,
            ghost: Rc::clone(&self.ghost),
            trace: self.trace.clone(),
        }
    }
}

enum Event<P> {
    Of(usize, Move, Rc<Place<P>>, Rc<Marked<Keys>>),
    LateCopy(Rc<Marked<Op>>),
}

struct Trace<P> {
    event: Event<P>,
    before: Option<Rc<Self>>,
}

impl<P> Drop for Trace<P> {
    /// Not recursive: a trace may be long.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(rc) = next {
            next = Rc::into_inner(rc).and_then(|mut trace| trace.before.take());
        }
    }
}

impl<P: Process> Event<P> {
    fn text(&self) -> String {
        let (place, step, at, keys) = match self {
            Self::LateCopy(op) => return format!("late copy: {:?}", op.value),
            Self::Of(place, step, at, keys) => (place, step, at, keys),
        };
        let call = || at.call(&keys.value).map_or_else(String::new, |op| format!("{op:?}"));
        match step {
            Move::Carried => format!("{place}: {}", call()),
            Move::ReplyLost => format!("{place}: reply lost: {}", call()),
            Move::Ended => format!("{place}: ends"),
            Move::StartedAgain => format!("{place}: is started again"),
            Move::Chose(choice) => format!("{place}: goes on by choice {choice}"),
        }
    }
}

impl<P: Process> World<P> {
    pub(crate) fn new(keys: Keys, processes: Vec<P>, faults: u8) -> Self {
        let mut ghost = P::Ghost::default();
        let mut settle = |mut process: P| {
            process.settle(&keys, &mut ghost).expect("nothing is wrong at the start");
            Place::new(Slot::Runs(process), &keys)
        };
        let places = processes.into_iter().map(&mut settle).collect();
        let (keys, ghost) = (Marked::new(keys), Marked::new(ghost));
        Self { keys, places, late: Vec::new(), faults, ghost, trace: None }
    }

    /// The memory of the run as a whole.
    pub(crate) fn ghost(&self) -> &P::Ghost {
        &self.ghost.value
    }

    /// How it came to this.
    pub(crate) fn story(&self) -> String {
        let mut lines = Vec::new();
        let mut next = self.trace.as_ref();
        while let Some(trace) = next {
            lines.push(trace.event.text());
            next = trace.before.as_ref();
        }
        lines.reverse();
        lines.join("\n")
    }

    pub(crate) fn fingerprint(&self) -> u128 {
        let mut hasher = Wide(0);
        for place in &self.places {
            hasher.write_u128(place.slot.mark);
        }
        for op in &self.late {
            hasher.write_u128(op.mark);
        }
        (self.keys.mark, self.ghost.mark, self.late.len(), self.faults).hash(&mut hasher);
        hasher.0 ^ hasher.0 >> 71
    }

    /// All states that can follow.
    pub(crate) fn successors(&self, memo: &mut Memo<P>, all: &mut Vec<Self>) -> Result<(), String> {
        memo.make_room();
        for place in 0..self.places.len() {
            self.steps_of(place, memo, all)?;
        }
        for i in 0..self.late.len() {
            all.push(self.late_copy(i, memo)?);
        }
        Ok(())
    }

    fn late_copy(&self, i: usize, memo: &mut Memo<P>) -> Result<Self, String> {
        let mut world = self.clone();
        let op = world.late.remove(i);
        let key = op.mark ^ self.keys.mark.rotate_left(43) ^ self.ghost.mark.rotate_left(86);
        let result = memo.late.entry(key).or_insert_with(|| {
            let (mut keys, mut ghost) = (self.keys.value.clone(), self.ghost.value.clone());
            keys.apply(&op.value);
            P::inspect(&keys, &mut ghost)?;
            Ok((Marked::new(keys), Marked::new(ghost)))
        });
        let result = result.clone();
        world.note(Event::LateCopy(op));
        (world.keys, world.ghost) = result.map_err(|text| format!("{text}\n{}", world.story()))?;
        Ok(world)
    }

    fn note(&mut self, event: Event<P>) {
        self.trace = Some(Rc::new(Trace { event, before: self.trace.take() }));
    }

    fn gone(&self) -> Vec<bool> {
        let is_gone = |place: &Rc<Place<P>>| matches!(place.kind, Kind::Done | Kind::CanStart | Kind::Gone);
        self.places.iter().map(is_gone).collect()
    }

    /// The ways in which a process that waits can go on, each with its price.
    fn choices(&self, place: usize, memo: &mut Memo<P>) -> Rc<[(u8, u8)]> {
        let at = &self.places[place];
        let gone = self.gone();
        let bits = gone.iter().fold(1_u128, |bits, gone| bits << 1 | u128::from(*gone));
        let key = at.slot.mark ^ self.keys.mark.rotate_left(43) ^ bits.rotate_left(86);
        let ways = memo.choices.entry(key).or_insert_with(|| match &at.slot.value {
            Slot::Runs(process) => match process.next(&self.keys.value, &gone) {
                Next::Choose(ways) => ways.into(),
                _ => [].into(),
            },
            Slot::Down(_) => [].into(),
        });
        Rc::clone(ways)
    }

    fn steps_of(&self, place: usize, memo: &mut Memo<P>, all: &mut Vec<Self>) -> Result<(), String> {
        let kind = self.places[place].kind;
        match kind {
            Kind::Done | Kind::Gone => {}
            Kind::CanStart => all.push(self.stepped(place, Move::StartedAgain, 0, memo)?),
            Kind::Chooses => {
                for (choice, price) in &*self.choices(place, memo) {
                    if *price <= self.faults {
                        all.push(self.stepped(place, Move::Chose(*choice), *price, memo)?);
                    }
                }
            }
            Kind::Reads | Kind::Writes => {
                all.push(self.stepped(place, Move::Carried, 0, memo)?);
                if self.faults > 0 {
                    all.push(self.stepped(place, Move::Ended, 1, memo)?);
                }
                // Reading twice is the same as reading late.
                if self.faults > 0 && kind == Kind::Writes {
                    all.push(self.stepped(place, Move::ReplyLost, 1, memo)?);
                    let mut late = self.stepped(place, Move::Carried, 1, memo)?;
                    let op = self.places[place].call(&self.keys.value).expect("it makes a call");
                    late.late.push(Marked::new(op));
                    late.late.sort_by_key(|op| op.mark);
                    all.push(late);
                }
            }
        }
        Ok(())
    }

    /// The state after a step of one process.
    fn stepped(&self, place: usize, step: Move, price: u8, memo: &mut Memo<P>) -> Result<Self, String> {
        let at = &self.places[place];
        let parts = at.slot.mark ^ self.keys.mark.rotate_left(43) ^ self.ghost.mark.rotate_left(86);
        let key = mark(&(parts, step));
        let known = memo.steps.get(&key).cloned();
        let result = known.unwrap_or_else(|| {
            let result = self.compute(at, step).map(|after| memo.share(after));
            memo.steps.insert(key, result.clone());
            result
        });
        let mut world = self.clone();
        world.faults -= price;
        world.note(Event::Of(place, step, Rc::clone(at), Rc::clone(&self.keys)));
        let after = result.map_err(|text| format!("{text}\n{}", world.story()))?;
        world.keys = after.keys;
        world.ghost = after.ghost;
        world.places[place] = after.place;
        Ok(world)
    }

    fn compute(&self, at: &Place<P>, step: Move) -> Result<After<P>, String> {
        let mut keys = self.keys.value.clone();
        let mut ghost = self.ghost.value.clone();
        let slot = match (&at.slot.value, step) {
            (Slot::Down(Some(successor)), _) => {
                let mut successor = successor.clone();
                successor.settle(&keys, &mut ghost)?;
                Slot::Runs(successor)
            }
            (Slot::Down(None), _) => Slot::Down(None),
            (Slot::Runs(process), Move::Ended) => Slot::Down(process.crash(&mut ghost)),
            (Slot::Runs(process), Move::Chose(choice)) => {
                let mut process = process.clone();
                process.choose(choice);
                Slot::Runs(process)
            }
            (Slot::Runs(process), _) => {
                let mut process = process.clone();
                carry_out(&mut process, &mut keys, &mut ghost, step != Move::ReplyLost)?;
                Slot::Runs(process)
            }
        };
        let place = Place::new(slot, &keys);
        Ok(After { keys: Marked::new(keys), place, ghost: Marked::new(ghost) })
    }

    /// From here on nothing fails, everybody is scheduled, and waits run out: does every process come to its end?
    pub(crate) fn comes_to_an_end(&self, steps: usize, memo: &mut Memo<P>) -> Result<(), String> {
        let mut world = self.clone();
        for _ in 0..steps {
            let mut is_over = true;
            for place in 0..world.places.len() {
                let step = match world.places[place].kind {
                    Kind::Done | Kind::Gone | Kind::CanStart => continue,
                    Kind::Reads | Kind::Writes => Move::Carried,
                    Kind::Chooses => {
                        let (last, _) = *world.choices(place, memo).last().expect("a way to go on");
                        Move::Chose(last)
                    }
                };
                world = world.stepped(place, step, 0, memo)?;
                is_over = false;
            }
            if is_over {
                return Ok(());
            }
        }
        Err(format!("somebody never comes to an end:\n{}", world.story()))
    }
}

/// Carries out the call of a process, and those that are glued to it. Without a reply it will be made again.
fn carry_out<P: Process>(
    process: &mut P,
    keys: &mut Keys,
    ghost: &mut P::Ghost,
    replied: bool,
) -> Result<(), String> {
    while let Next::Call(op) = process.next(keys, &[]) {
        let answer: Answer = keys.apply(&op);
        P::inspect(keys, ghost)?;
        if !replied {
            break;
        }
        process.deliver(answer, ghost)?;
        process.settle(keys, ghost)?;
        if !process.is_glued() {
            break;
        }
    }
    Ok(())
}
