//! One look at who has arrived, who wants to join and who has left.

use super::{
    Call, Reply,
    decision::{Decision, Entry, Member},
    keys::Keys,
};
use std::collections::{BTreeMap, BTreeSet};

/// Slots of joiners that one look reads.
const MAX_SLOTS: u64 = 4096;

/// The findings of a look.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct View {
    /// The members that have arrived for the next iteration, with their payloads.
    pub(crate) arrived: BTreeMap<Member, Vec<u8>>,
    /// The members that want to join.
    pub(crate) joiners: Vec<Entry>,
    /// Slots of joiners looked at, by this look and all before.
    pub(crate) slots: u64,
    /// Members that need not be waited for.
    pub(crate) left: BTreeSet<Member>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum At {
    Arrivals,
    Joins,
    Slots(u64),
    Left(Vec<Member>),
    Done,
}

/// A look on its way. With no decision yet it looks at joiners only.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    at: At,
    view: View,
}

impl Look {
    /// Begins.
    pub(crate) fn new(base: Option<&Decision>) -> Self {
        let view = View { slots: base.map_or(0, |base| base.slots), ..View::default() };
        Self { at: if base.is_some() { At::Arrivals } else { At::Joins }, view }
    }

    /// The next call, or the end.
    pub(crate) fn call(&self, keys: &Keys, base: Option<&Decision>) -> Option<Call> {
        let next = base.map_or(0, |base| base.iteration + 1);
        Some(match &self.at {
            At::Arrivals => {
                let members = base.iter().flat_map(|base| base.members());
                Call::GetAll(members.map(|member| keys.arrival(next, member)).collect())
            }
            At::Joins => Call::Get(keys.joins()),
            At::Slots(end) => {
                Call::GetAll((self.view.slots + 1..=*end).map(|slot| keys.join(slot)).collect())
            }
            At::Left(missing) => Call::GetAll(missing.iter().map(|member| keys.left(member)).collect()),
            At::Done => return None,
        })
    }

    /// Takes the answer to the last call.
    pub(crate) fn deliver(&mut self, base: Option<&Decision>, reply: Reply) {
        match (std::mem::replace(&mut self.at, At::Done), reply) {
            (At::Arrivals, Reply::Values(values)) => {
                let members = base.iter().flat_map(|base| base.members().cloned());
                let arrived = members.zip(values).filter_map(|(member, value)| Some((member, value?)));
                self.view.arrived = arrived.collect();
                self.at = At::Joins;
            }
            (At::Joins, Reply::Value(count)) => {
                let count = count.and_then(|text| String::from_utf8(text).ok()?.parse().ok()).unwrap_or(0);
                let end = u64::min(count, self.view.slots + MAX_SLOTS);
                if end > self.view.slots {
                    self.at = At::Slots(end);
                } else {
                    self.ask_who_left(base);
                }
            }
            (At::Slots(end), Reply::Values(values)) => {
                self.view.joiners =
                    values.into_iter().flatten().filter_map(|slot| Entry::of_slot(&slot)).collect();
                self.view.slots = end;
                self.ask_who_left(base);
            }
            (At::Left(missing), Reply::Values(values)) => {
                let left = missing.into_iter().zip(values).filter(|(_, value)| value.is_some());
                self.view.left = left.map(|(member, _)| member).collect();
            }
            _ => {}
        }
    }

    fn ask_who_left(&mut self, base: Option<&Decision>) {
        let members = base.iter().flat_map(|base| base.members());
        let missing: Vec<Member> =
            members.filter(|member| !self.view.arrived.contains_key(member)).cloned().collect();
        self.at = if missing.is_empty() { At::Done } else { At::Left(missing) };
    }

    /// The findings, once there is no further call.
    pub(crate) fn into_view(self) -> View {
        self.view
    }
}
