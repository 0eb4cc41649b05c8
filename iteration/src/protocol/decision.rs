//! The content of the register.

use std::{cmp::Ordering, fmt};
use tinysockets::wire::{Decode, Encode, ListItem, Reader, WireError, decode_exact, put_string};

/// Longest identity of a member, in bytes.
pub const MAX_ID_BYTES: usize = 64;
/// Most members of a run.
pub const MAX_MEMBERS: usize = 1024;
/// Longest payload of one member, in bytes. With it the largest decision is smaller than the largest value of a store.
pub const MAX_PAYLOAD_BYTES: usize = 4096;
/// Decisions whose numbers a decision remembers.
const MAX_PAST: usize = 16;
/// In front of every decision.
const MAGIC: [u8; 8] = *b"PCCLit1\n";

/// A member of a run: an identity that survives restarts, and the number of this life of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    /// The name that the user gives it, for instance its rank.
    pub id: String,
    /// 1 for the first life.
    pub incarnation: u64,
}

impl Ord for Member {
    /// Numbers in the order of numbers: 2 stands before 10.
    fn cmp(&self, other: &Self) -> Ordering {
        (self.id.len(), &self.id, self.incarnation).cmp(&(other.id.len(), &other.id, other.incarnation))
    }
}

impl PartialOrd for Member {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (life {})", self.id, self.incarnation)
    }
}

/// Refuses an identity or the name of a run that would not be readable as part of a key.
///
/// # Errors
/// One sentence.
pub fn check_id(what: &str, id: &str) -> Result<(), String> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(fine) {
        return Err(format!(
            "{id:?} is no {what}: use 1 to {MAX_ID_BYTES} letters, digits, hyphens, underscores and points"
        ));
    }
    Ok(())
}

/// One member in a decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The member.
    pub member: Member,
    /// The payload that it brought when it arrived or joined.
    pub payload: Vec<u8>,
    /// It has come with this decision.
    pub joined: bool,
}

/// One agreed step: which iteration begins, and who is in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decision {
    /// The iteration. Grows by exactly one from decision to decision.
    pub iteration: u64,
    /// The members, in order.
    pub entries: Vec<Entry>,
    /// The member that proposed it.
    pub proposer: Member,
    /// Slots of joiners that this decision and those before it have looked at.
    pub slots: u64,
    /// Never used twice.
    pub nonce: u128,
    /// Nonces of the decisions before, the last one first.
    pub past: Vec<u128>,
}

impl Decision {
    /// All members, in order.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.entries.iter().map(|entry| &entry.member)
    }

    /// Whether this life of a member is in it.
    pub fn contains(&self, member: &Member) -> bool {
        self.members().any(|other| other == member)
    }

    /// The place of a member among all, from 0; the same for every member that knows this decision.
    pub fn position(&self, id: &str) -> Option<usize> {
        self.members().position(|member| member.id == id)
    }

    /// The nonces that the decision behind this one remembers.
    pub(crate) fn past_of_next(&self) -> Vec<u128> {
        std::iter::once(self.nonce).chain(self.past.iter().copied()).take(MAX_PAST).collect()
    }
}

/// A decision and the bytes in which it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Register {
    /// The decision that the bytes encode.
    pub decision: Decision,
    /// The value of the key.
    pub bytes: Vec<u8>,
}

/// How a decision that was found relates to one that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// It is the same.
    Same,
    /// It follows.
    Newer,
    /// The store went back, or holds another run: it has lost what it had promised to keep.
    Broken,
}

impl Register {
    /// Writes a decision.
    pub fn new(decision: Decision) -> Self {
        let mut bytes = MAGIC.to_vec();
        decision.encode(&mut bytes);
        Self { decision, bytes }
    }

    /// Reads a decision.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn read(bytes: Vec<u8>) -> Result<Self, WireError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(WireError::BadValue { what: "register", value: 0 })?;
        let decision = decode_exact(rest)?;
        Ok(Self { decision, bytes })
    }

    /// How `found`, read from the store, relates to this one.
    pub fn relation(&self, found: &Decision) -> Relation {
        let known = &self.decision;
        let Some(distance) = found.iteration.checked_sub(known.iteration) else { return Relation::Broken };
        let Some(behind) = usize::try_from(distance).ok().and_then(|distance| distance.checked_sub(1)) else {
            return if found.nonce == known.nonce { Relation::Same } else { Relation::Broken };
        };
        match found.past.get(behind) {
            Some(nonce) if *nonce != known.nonce => Relation::Broken,
            // A decision remembers all before it, or as many as it can.
            None if found.past.len() < MAX_PAST => Relation::Broken,
            _ => Relation::Newer,
        }
    }
}

impl Encode for Member {
    fn encode(&self, out: &mut Vec<u8>) {
        put_string(out, &self.id);
        self.incarnation.encode(out);
    }
}

impl Decode for Member {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { id: reader.string(MAX_ID_BYTES, "identity")?, incarnation: u64::decode(reader)? })
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.member.encode(out);
        (self.payload.len() as u32).encode(out);
        out.extend_from_slice(&self.payload);
        self.joined.encode(out);
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let member = Member::decode(reader)?;
        let len = reader.length(MAX_PAYLOAD_BYTES, "payload")?;
        let payload = reader.take(len, "payload")?.to_vec();
        Ok(Self { member, payload, joined: bool::decode(reader)? })
    }
}

impl ListItem for Entry {
    const LIST: &'static str = "members";
    const MAX_ITEMS: usize = MAX_MEMBERS;
}

impl Encode for Decision {
    fn encode(&self, out: &mut Vec<u8>) {
        self.iteration.encode(out);
        self.entries.encode(out);
        self.proposer.encode(out);
        self.slots.encode(out);
        self.nonce.encode(out);
        (self.past.len() as u8).encode(out);
        self.past.iter().for_each(|nonce| nonce.encode(out));
    }
}

impl Decode for Decision {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let iteration = u64::decode(reader)?;
        let entries = Vec::decode(reader)?;
        let proposer = Member::decode(reader)?;
        let slots = u64::decode(reader)?;
        let nonce = u128::decode(reader)?;
        let past = u8::decode(reader)?;
        if usize::from(past) > MAX_PAST {
            return Err(WireError::TooLong { what: "past", len: past.into(), max: MAX_PAST });
        }
        let past = (0..past).map(|_| u128::decode(reader)).collect::<Result<_, _>>()?;
        Ok(Self { iteration, entries, proposer, slots, nonce, past })
    }
}

/// A slot of a joiner: who, and what it says.
pub(crate) fn encode_slot(member: &Member, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Entry { member: member.clone(), payload: payload.to_vec(), joined: true }.encode(&mut out);
    out
}

impl Entry {
    /// Reads the slot of a joiner.
    pub fn of_slot(bytes: &[u8]) -> Option<Self> {
        decode_exact(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(iteration: u64, nonce: u128, past: &[u128]) -> Decision {
        let member = |id: &str| Member { id: id.into(), incarnation: 1 };
        let entry = |id: &str| Entry { member: member(id), payload: vec![1, 2], joined: false };
        Decision {
            iteration,
            entries: vec![entry("2"), entry("10")],
            proposer: member("2"),
            slots: 3,
            nonce,
            past: past.to_vec(),
        }
    }

    #[test]
    fn decisions_are_read_as_written() {
        let register = Register::new(decision(7, 9, &[8, 7]));
        assert_eq!(Register::read(register.bytes.clone()).unwrap(), register);
        for end in 0..register.bytes.len() {
            assert!(Register::read(register.bytes[..end].to_vec()).is_err());
        }
        assert!(Register::read([register.bytes.as_slice(), &[0]].concat()).is_err());
        assert_eq!(register.decision.position("10"), Some(1));
        assert!(Register::read(b"7".to_vec()).is_err());
    }

    #[test]
    fn the_largest_decision_fits_a_store() {
        let mut large = decision(u64::MAX, 1, &[1; MAX_PAST]);
        let member = Member { id: "x".repeat(MAX_ID_BYTES), incarnation: 1 };
        large.entries =
            vec![Entry { member, payload: vec![0; MAX_PAYLOAD_BYTES], joined: true }; MAX_MEMBERS];
        assert!(Register::new(large).bytes.len() < crate::store::MAX_VALUE_BYTES);
    }

    #[test]
    fn a_store_that_went_back_or_was_replaced_is_found_out() {
        let known = Register::new(decision(7, 9, &[8]));
        assert_eq!(known.relation(&decision(7, 9, &[8])), Relation::Same);
        assert_eq!(known.relation(&decision(8, 10, &[9, 8])), Relation::Newer);
        assert_eq!(known.relation(&decision(9, 11, &[10, 9])), Relation::Newer);
        assert_eq!(known.relation(&decision(7, 5, &[8])), Relation::Broken);
        assert_eq!(known.relation(&decision(6, 8, &[])), Relation::Broken);
        assert_eq!(known.relation(&decision(8, 10, &[6])), Relation::Broken);
        assert_eq!(known.relation(&decision(9, 11, &[10])), Relation::Broken);
        assert_eq!(known.relation(&decision(99, 11, &[10; MAX_PAST])), Relation::Newer);
    }

    #[test]
    fn identities_stay_readable() {
        for good in ["0", "rank-7.node_3"] {
            check_id("member", good).unwrap();
        }
        for bad in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(check_id("member", bad).unwrap_err().contains("is no member"), "{bad}");
        }
        let number = |id: &str| Member { id: id.into(), incarnation: 1 };
        assert!(number("2") < number("10"));
    }
}
