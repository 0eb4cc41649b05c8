//! The header of a file: which tensors it has, where they lie, and the digests of all that is in it.
//!
//! The tensors lie in the order of their element sizes, the largest first, then of their keys, so that each is aligned
//! as readers of safetensors that map the file expect. The data begins at a whole multiple of [`ALIGN`].

use super::json::{self, Json};
use pccl_hash::{Digest128, TreeHasher, tree};
use pccl_protocol::{Key, StateEntry, state_digest};
use pccl_quant::DataType;
use std::{collections::BTreeMap, fmt::Write};

/// The data begins at a multiple of this.
pub(super) const ALIGN: usize = 4096;
/// Longest header; the same limit as that of other readers.
pub(super) const HEADER_MAX: u64 = 100_000_000;
/// The length in front of the header.
pub(super) const LENGTH_BYTES: usize = 8;
/// Bytes that one digest of a file is of.
pub(super) const PIECE_BYTES: usize = tree::MEBIBYTE;

const METADATA: &str = "__metadata__";
const FORMAT: &str = "1";
const EQUAL: &str = "equal";
const MAY_DIFFER: &str = "may-differ";

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) data_type: DataType,
    pub(super) shape: Vec<u64>,
    pub(super) may_differ: bool,
    /// One digest for each MiB.
    pub(super) pieces: Vec<Digest128>,
}

impl Entry {
    /// Number of elements.
    pub(super) fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Length in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.count() * self.data_type.size_bytes() as u64
    }

    /// The state hash of the content.
    pub(super) fn digest(&self) -> Result<Digest128, String> {
        pccl_hash::root_from_level1(&self.pieces, self.bytes()).map_err(|error| error.to_string())
    }

    /// Whether the bytes of both lie at the same places of their files, if those of all others do.
    pub(super) fn has_place_of(&self, other: &Self) -> bool {
        (&self.key, self.data_type, self.bytes()) == (&other.key, other.data_type, other.bytes())
    }
}

/// The header in front of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) revision: u64,
    /// In the order of the data.
    pub(super) entries: Vec<Entry>,
}

impl Header {
    pub(super) fn new(revision: u64, mut entries: Vec<Entry>) -> Self {
        entries.sort_by(|a, b| order(a).cmp(&order(b)));
        Self { revision, entries }
    }

    /// Each tensor with the place of its first byte behind the header.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().scan(0, |at, entry| {
            let begin = *at;
            *at += entry.bytes();
            Some((begin, entry))
        })
    }

    /// The state's digest, as peers offer it.
    pub(super) fn state_digest(&self) -> Result<Digest128, String> {
        let mut entries: Vec<StateEntry> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            entries.push(StateEntry {
                key: Key::new(entry.key.as_str()),
                count: entry.count(),
                data_type: entry.data_type,
                allow_inequality: entry.may_differ,
                digest: entry.digest()?,
            });
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(state_digest(&entries))
    }

    /// Over everything that the header says.
    fn check(&self) -> Result<Digest128, String> {
        let mut hasher = TreeHasher::new();
        hasher.update(&self.revision.to_le_bytes());
        hasher.update(self.state_digest()?.as_bytes());
        for entry in &self.entries {
            hasher.update(&[u8::from(entry.may_differ)]);
            hasher.update(&(entry.shape.len() as u64).to_le_bytes());
            entry.shape.iter().for_each(|length| hasher.update(&length.to_le_bytes()));
        }
        Ok(hasher.finish())
    }

    /// The bytes in front of the data.
    pub(super) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut text = String::from("{");
        json::put_text(&mut text, METADATA);
        let _ = write!(text, ":{{\"pccl.format\":\"{FORMAT}\",\"pccl.revision\":\"{}\"", self.revision);
        let _ = write!(text, ",\"pccl.check\":\"{}\"", hex(self.check()?));
        for entry in &self.entries {
            text.push(',');
            json::put_text(&mut text, &tree_key(&entry.key));
            let flag = if entry.may_differ { MAY_DIFFER } else { EQUAL };
            let _ = write!(text, ":\"{flag} {}", hex(entry.digest()?));
            for piece in &entry.pieces {
                let _ = write!(text, " {}", hex(*piece));
            }
            text.push('"');
        }
        text.push('}');
        for (begin, entry) in self.places() {
            text.push(',');
            json::put_text(&mut text, &entry.key);
            let shape: Vec<String> = entry.shape.iter().map(u64::to_string).collect();
            let _ = write!(
                text,
                ":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{begin},{}]}}",
                type_name(entry.data_type),
                shape.join(","),
                begin + entry.bytes()
            );
        }
        text.push('}');
        let whole = (LENGTH_BYTES + text.len()).next_multiple_of(ALIGN);
        if (whole - LENGTH_BYTES) as u64 > HEADER_MAX {
            return Err(format!("a header of {} bytes, at most {HEADER_MAX} can be read", text.len()));
        }
        let mut out = Vec::with_capacity(whole);
        out.extend_from_slice(&((whole - LENGTH_BYTES) as u64).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
        out.resize(whole, b' ');
        Ok(out)
    }

    /// Reads a header behind which there are `data_bytes` bytes.
    pub(super) fn decode(bytes: &[u8], data_bytes: u64) -> Result<Self, String> {
        let Json::Object(fields) = json::parse(bytes)? else { return Err("the header is no object".into()) };
        let mut metadata = None;
        let mut placed = BTreeMap::new();
        for (key, value) in fields {
            if key == METADATA {
                metadata = Some(texts(value)?);
            } else {
                let (begin, end, entry) = tensor(key, value)?;
                // Of those without bytes several may lie at one place.
                let place = (begin, end, order(&entry).0, entry.key.clone());
                placed.insert(place, entry);
            }
        }
        let metadata = metadata.ok_or("it has no metadata, so another program has written it")?;
        let mut at = 0;
        for (begin, end, _, key) in placed.keys() {
            if *begin != at {
                return Err(format!("tensor {key:?} begins at byte {begin} of the data instead of {at}"));
            }
            at = *end;
        }
        if at != data_bytes {
            return Err(format!("the tensors have {at} bytes, the file has {data_bytes}"));
        }
        let mut entries: Vec<Entry> = placed.into_values().collect();
        let is_ordered = entries.is_sorted_by(|a, b| order(a) < order(b));
        let text =
            |key: &str| metadata.get(key).map(String::as_str).ok_or(format!("no {key} in its metadata"));
        if text("pccl.format")? != FORMAT {
            return Err(format!("format {}, this version reads {FORMAT}", text("pccl.format")?));
        }
        for entry in &mut entries {
            add_digests(entry, text(&tree_key(&entry.key))?)?;
        }
        let header = Self { revision: whole_number(text("pccl.revision")?)?, entries };
        if !is_ordered || hex(header.check()?) != text("pccl.check")? {
            return Err("the header does not have the digest that it names".into());
        }
        Ok(header)
    }
}

fn order(entry: &Entry) -> (std::cmp::Reverse<usize>, &str) {
    (std::cmp::Reverse(entry.data_type.size_bytes()), &entry.key)
}

fn tree_key(key: &str) -> String {
    format!("pccl.tree.{key}")
}

/// Whether this is a name that a tensor cannot have in a file.
pub(super) fn is_reserved(key: &str) -> bool {
    key == METADATA
}

/// The names of types in safetensors, which has one for each of ours.
fn type_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Uint8 => "U8",
        DataType::Int8 => "I8",
        DataType::Uint16 => "U16",
        DataType::Int16 => "I16",
        DataType::Uint32 => "U32",
        DataType::Int32 => "I32",
        DataType::Uint64 => "U64",
        DataType::Int64 => "I64",
        DataType::Float16 => "F16",
        DataType::BFloat16 => "BF16",
        DataType::Float32 => "F32",
        DataType::Float64 => "F64",
    }
}

fn texts(value: Json) -> Result<BTreeMap<String, String>, String> {
    let Json::Object(fields) = value else { return Err("its metadata is no object".into()) };
    let text = |(key, value)| match value {
        Json::Text(text) => Ok((key, text)),
        _ => Err(format!("{key:?} in its metadata is no text")),
    };
    fields.into_iter().map(text).collect()
}

fn numbers(value: &Json) -> Option<Vec<u64>> {
    let Json::List(items) = value else { return None };
    items.iter().map(|item| if let Json::Number(number) = item { Some(*number) } else { None }).collect()
}

/// The statement of the header about one tensor: where its bytes begin and end, and the rest.
fn tensor(key: String, value: Json) -> Result<(u64, u64, Entry), String> {
    let wrong = |what: &str| format!("tensor {key:?} {what}");
    let Json::Object(fields) = value else { return Err(wrong("is no object")) };
    let mut fields: BTreeMap<String, Json> = fields.into_iter().collect();
    let mut field = |name: &str| fields.remove(name).ok_or(wrong(&format!("has no {name}")));
    let Json::Text(name) = field("dtype")? else { return Err(wrong("has a dtype that is no text")) };
    let data_type = DataType::ALL.into_iter().find(|data_type| type_name(*data_type) == name);
    let data_type = data_type.ok_or(wrong(&format!("is of the unknown type {name:?}")))?;
    let shape = numbers(&field("shape")?).ok_or(wrong("has a shape that is no list of numbers"))?;
    let offsets = numbers(&field("data_offsets")?).ok_or(wrong("has offsets that are no numbers"))?;
    let [begin, end] = offsets[..] else { return Err(wrong("does not have two offsets")) };
    let count = shape.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
    let bytes = count.and_then(|count| count.checked_mul(data_type.size_bytes() as u64));
    if !fields.is_empty() || bytes.is_none() || end.checked_sub(begin) != bytes {
        return Err(wrong(&format!("has bytes {begin} to {end}, which do not fit its shape {shape:?}")));
    }
    if !Key::is_valid(&key) {
        return Err(format!("the key {key:?}, which no tensor can have"));
    }
    Ok((begin, end, Entry { key, data_type, shape, may_differ: false, pieces: Vec::new() }))
}

/// Reads flag and digests of a tensor: those of its pieces have to give that of the whole.
fn add_digests(entry: &mut Entry, text: &str) -> Result<(), String> {
    let mut words = text.split(' ');
    let wrong = |what: &str| format!("tensor {:?} {what}", entry.key);
    let may_differ = match words.next() {
        Some(EQUAL) => false,
        Some(MAY_DIFFER) => true,
        _ => return Err(wrong("has an unknown flag")),
    };
    let digests: Option<Vec<Digest128>> = words.map(from_hex).collect();
    let mut digests = digests.ok_or(wrong("has a digest that is none"))?.into_iter();
    let root = digests.next().ok_or(wrong("has no digest"))?;
    let pieces: Vec<Digest128> = digests.collect();
    if pccl_hash::root_from_level1(&pieces, entry.bytes()).ok() != Some(root) {
        return Err(wrong("has digests that do not belong together"));
    }
    (entry.may_differ, entry.pieces) = (may_differ, pieces);
    Ok(())
}

fn whole_number(text: &str) -> Result<u64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_plain);
    number.ok_or_else(|| format!("{text:?} is no revision"))
}

fn hex(digest: Digest128) -> String {
    digest.as_bytes().iter().fold(String::with_capacity(32), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Small letters only, so that there is one text for each digest.
fn from_hex(text: &str) -> Option<Digest128> {
    let is_plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let value = u128::from_str_radix(text, 16).ok().filter(|_| is_plain)?;
    Some(Digest128(value.to_be_bytes()))
}
