//! Goes through all orders in which processes can make their calls of a store, with faults at every call.
//!
//! A fault is one of: the process ends before the call (and may be started again at any later time); the call is
//! carried out but its reply is lost, so that it is made again; a copy of the call is carried out once more at any
//! later time. A pause is no fault: any process may stand still while the others go on.

use crate::world::{Memo, Seen, World};
use std::{
    collections::{BTreeMap, VecDeque},
    hash::Hash,
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

/// The result of it.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Value(Option<Vec<u8>>),
    Values(Vec<Option<Vec<u8>>>),
    Number(i64),
    Done,
}

/// The step that a process wants next.
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
    /// The memory of the run as a whole.
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

/// In which order states are visited, and how many.
pub(crate) struct Search {
    /// Breadth first: the first story that is told of something is the shortest. Takes more memory than depth first.
    pub(crate) breadth_first: bool,
    /// Every such state must lead to an end; 0 for none.
    pub(crate) probe: usize,
    /// More states are a failure.
    pub(crate) limit: usize,
}

/// Goes through all states. `each` sees every new state and may end the search with `false`. Returns the number of
/// states.
///
/// # Errors
/// The fault, and how it came about.
pub(crate) fn explore<P: Process>(
    start: World<P>,
    search: &Search,
    mut each: impl FnMut(&World<P>) -> bool,
) -> Result<usize, String> {
    let mut memo = Memo::default();
    let mut seen = Seen::default();
    seen.insert(start.fingerprint());
    let mut open = VecDeque::from([start]);
    let mut next = Vec::new();
    while let Some(world) = if search.breadth_first { open.pop_front() } else { open.pop_back() } {
        if seen.len() > search.limit {
            return Err(format!("more than {} states", search.limit));
        }
        if search.probe != 0 && seen.len() % search.probe == 0 {
            world.comes_to_an_end(300, &mut memo)?;
        }
        world.successors(&mut memo, &mut next)?;
        for next in next.drain(..) {
            if seen.insert(next.fingerprint()) {
                if !each(&next) {
                    return Ok(seen.len());
                }
                open.push_back(next);
            }
        }
    }
    Ok(seen.len())
}
