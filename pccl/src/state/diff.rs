//! Where the states of peers differ: the pure part. Every peer computes the same from what all have gathered.

use crate::Error;
use pccl_hash::Digest128;
use pccl_protocol::PeerId;
use pccl_quant::DataType;
use std::{collections::BTreeMap, fmt, ops::Range};

/// Data below one digest of the second level of the comparison.
pub(crate) const LEAF_BYTES: usize = 4096;
/// Bytes of a digest in what travels.
pub(crate) const DIGEST_BYTES: usize = 16;

/// The result of [`Communicator::diff_shared_state`](crate::Communicator::diff_shared_state).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StateDiff {
    /// The tensors that are not the same on all peers, in the order of their keys.
    pub tensors: Vec<TensorDiff>,
    /// How many tensors were compared.
    pub compared: usize,
}

/// A tensor that is not the same on all peers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorDiff {
    /// Its key.
    pub key: String,
    /// Its type.
    pub data_type: DataType,
    /// Its number of elements.
    pub count: u64,
    /// Those with the same content together, the most frequent content first; of contents that are equally frequent,
    /// the one of the lowest rank first. Peers are in the order of their ranks.
    pub camps: Vec<Camp>,
    /// Elements that may differ, in pieces of at most 1 MiB of data that differ somewhere; neighbours are joined. Empty
    /// for all but the first 64 tensors.
    pub ranges: Vec<Range<u64>>,
    /// The first element that differs. None for all but the first 64 tensors.
    pub first: Option<Divergence>,
}

/// Peers with the same content of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Camp {
    /// The state hash of the content.
    pub digest: String,
    /// The peers that have it.
    pub peers: Vec<PeerId>,
}

/// One element that is not the same on all peers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// Its index in the tensor.
    pub element: u64,
    /// Its values, in the order of the ranks. Bits count: two values that differ may look the same if they are not
    /// numbers.
    pub values: Vec<(PeerId, String)>,
}

impl StateDiff {
    /// Whether all peers hold the same.
    pub fn is_same(&self) -> bool {
        self.tensors.is_empty()
    }
}

impl TensorDiff {
    /// The peers whose content is not the most frequent one.
    pub fn apart(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.camps.iter().skip(1).flat_map(|camp| camp.peers.iter().copied())
    }
}

impl fmt::Display for StateDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_same() {
            return write!(f, "{} tensors are the same on all peers", self.compared);
        }
        write!(f, "{} of {} tensors differ", self.tensors.len(), self.compared)?;
        self.tensors.iter().try_for_each(|tensor| write!(f, "\n{tensor}"))
    }
}

impl fmt::Display for TensorDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, data_type, count, camps, ranges, first } = self;
        let camps: Vec<String> = camps.iter().map(|camp| listed(&camp.peers)).collect();
        write!(f, "\"{key}\" ({count} x {data_type:?}): {}", camps.join(" against "))?;
        if let Some(Divergence { element, values }) = first {
            let values: Vec<String> = values.iter().map(|(peer, value)| format!("{peer} {value}")).collect();
            write!(f, "; first at element {element}: {}", values.join(", "))?;
        }
        if let (Some(begin), Some(end)) = (ranges.first(), ranges.last()) {
            let pieces = ranges.len();
            write!(f, "; in {pieces} ranges between elements {} and {}", begin.start, end.end)?;
        }
        Ok(())
    }
}

fn listed(peers: &[PeerId]) -> String {
    peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// The bytes that each peer gave to one step of the comparison, by rank.
pub(crate) type Rows = [(PeerId, Vec<u8>)];

/// Refuses rows of other lengths than this peer has: the peers would not talk about the same.
pub(crate) fn check_rows(rows: &Rows, bytes: usize) -> Result<(), Error> {
    match rows.iter().find(|(_, row)| row.len() != bytes) {
        Some((peer, row)) => {
            let text = format!("{peer} compares {} bytes where this peer has {bytes}", row.len());
            Err(Error::InvalidArgument(text))
        }
        None => Ok(()),
    }
}

/// Those with the same bytes together, see [`TensorDiff::camps`].
fn camps_of(rows: &Rows, part: Range<usize>) -> Vec<(&[u8], Vec<PeerId>)> {
    let mut camps: Vec<(&[u8], Vec<PeerId>)> = Vec::new();
    for (peer, row) in rows {
        let bytes = &row[part.clone()];
        match camps.iter_mut().find(|(other, _)| *other == bytes) {
            Some((_, peers)) => peers.push(*peer),
            None => camps.push((bytes, vec![*peer])),
        }
    }
    // Stable: of equally many the first.
    camps.sort_by_key(|(_, peers)| std::cmp::Reverse(peers.len()));
    camps
}

/// The camps of one digest in rows of digests; `None` if all have the same.
pub(crate) fn camps(rows: &Rows, index: usize) -> Option<Vec<Camp>> {
    let camps = camps_of(rows, index * DIGEST_BYTES..(index + 1) * DIGEST_BYTES);
    let camp = |(bytes, peers): (&[u8], Vec<PeerId>)| {
        let digest =
            <[u8; DIGEST_BYTES]>::try_from(bytes).map(|it| Digest128::from_u128(u128::from_le_bytes(it)));
        Camp { digest: digest.map_or(String::new(), |it| it.to_string()), peers }
    };
    (camps.len() > 1).then(|| camps.into_iter().map(camp).collect())
}

/// Which of the digests in these places are not the same in all rows.
pub(crate) fn differing(rows: &Rows, digests: Range<usize>) -> Vec<usize> {
    let Some((_, first)) = rows.first() else { return Vec::new() };
    let at = |index: usize| index * DIGEST_BYTES..(index + 1) * DIGEST_BYTES;
    digests.filter(|index| rows.iter().any(|(_, row)| row[at(*index)] != first[at(*index)])).collect()
}

/// Digests as they travel.
pub(crate) fn bytes_of(digests: &[Digest128]) -> Vec<u8> {
    digests.iter().flat_map(|digest| digest.to_u128().to_le_bytes()).collect()
}

/// The elements of pieces of this length, neighbours joined.
pub(crate) fn ranges(
    pieces: &[usize],
    piece_bytes: usize,
    (count, data_type): (u64, DataType),
) -> Vec<Range<u64>> {
    let elements = (piece_bytes / data_type.size_bytes()) as u64;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for piece in pieces {
        let begin = *piece as u64 * elements;
        let end = (begin + elements).min(count);
        match ranges.last_mut().filter(|range| range.end == begin) {
            Some(range) => range.end = end,
            None => ranges.push(begin..end),
        }
    }
    ranges
}

/// The first element of these bytes of all rows that differs; `begin` is the index of the first one there.
pub(crate) fn first_divergence(
    rows: &Rows,
    part: Range<usize>,
    begin: u64,
    data_type: DataType,
) -> Option<Divergence> {
    let (size, (_, first)) = (data_type.size_bytes(), rows.first()?);
    let mut elements = part.step_by(size).map(|at| at..at + size);
    let (index, at) = elements
        .by_ref()
        .enumerate()
        .find(|(_, at)| rows.iter().any(|(_, row)| row[at.clone()] != first[at.clone()]))?;
    let values = rows.iter().map(|(peer, row)| (*peer, value_text(data_type, &row[at.clone()]))).collect();
    Some(Divergence { element: begin + index as u64, values })
}

/// An element in words; with its bits if it is no number.
fn value_text(data_type: DataType, bytes: &[u8]) -> String {
    macro_rules! text {
        ($ty:ty) => {
            bytes.try_into().map_or(String::new(), |bytes| <$ty>::from_ne_bytes(bytes).to_string())
        };
    }
    let text = match data_type {
        DataType::Uint8 => text!(u8),
        DataType::Int8 => text!(i8),
        DataType::Int16 => text!(i16),
        DataType::Uint16 => text!(u16),
        DataType::Uint32 => text!(u32),
        DataType::Int32 => text!(i32),
        DataType::Uint64 => text!(u64),
        DataType::Int64 => text!(i64),
        DataType::Float16 => text!(half::f16),
        DataType::BFloat16 => text!(half::bf16),
        DataType::Float32 => text!(f32),
        DataType::Float64 => text!(f64),
    };
    if text != "NaN" {
        return text;
    }
    let bits: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
    format!("NaN (0x{bits})")
}

/// One tensor of a state as it is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) key: String,
    pub(crate) text: String,
}

/// The bytes that tell which tensors a peer has.
pub(crate) fn encode_declared(all: &[Declared]) -> Vec<u8> {
    all.iter().flat_map(|Declared { key, text }| format!("{key}\0{text}\0").into_bytes()).collect()
}

fn decode_declared(row: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(row);
    let mut parts = text.split('\0').map(str::to_owned);
    let mut declared = BTreeMap::new();
    // A row that is shorter than others is filled up with zeros.
    while let (Some(key), Some(text)) = (parts.next().filter(|key| !key.is_empty()), parts.next()) {
        declared.insert(key, text);
    }
    declared
}

/// The first tensor that is not declared alike, in words.
pub(crate) fn declared_apart(rows: &Rows) -> Option<String> {
    let all: Vec<(PeerId, BTreeMap<String, String>)> =
        rows.iter().map(|(peer, row)| (*peer, decode_declared(row))).collect();
    let keys: std::collections::BTreeSet<&String> =
        all.iter().flat_map(|(_, declared)| declared.keys()).collect();
    keys.into_iter().find_map(|key| {
        let mut camps: BTreeMap<Option<&String>, Vec<PeerId>> = BTreeMap::new();
        for (peer, declared) in &all {
            camps.entry(declared.get(key)).or_default().push(*peer);
        }
        let camp = |(text, peers): (&Option<&String>, &Vec<PeerId>)| {
            format!("{} at {}", text.map_or("missing", String::as_str), listed(peers))
        };
        (camps.len() > 1)
            .then(|| format!("\"{key}\": {}", camps.iter().map(camp).collect::<Vec<_>>().join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u128) -> PeerId {
        PeerId(number << 96)
    }

    fn rows(all: &[&[u8]]) -> Vec<(PeerId, Vec<u8>)> {
        all.iter().zip(1..).map(|(row, number)| (peer(number), row.to_vec())).collect()
    }

    #[test]
    fn the_most_frequent_content_comes_first() {
        let digests = |values: &[u128]| {
            bytes_of(&values.iter().map(|it| Digest128::from_u128(*it)).collect::<Vec<_>>())
        };
        let rows = rows(&[&digests(&[1, 7]), &digests(&[2, 7]), &digests(&[2, 7]), &digests(&[3, 7])]);
        let found = camps(&rows, 0).expect("differs");
        let peers: Vec<Vec<PeerId>> = found.into_iter().map(|camp| camp.peers).collect();
        assert_eq!(peers, [vec![peer(2), peer(3)], vec![peer(1)], vec![peer(4)]]);
        assert_eq!(camps(&rows, 1), None);
        assert_eq!(differing(&rows, 0..2), [0]);
        assert_eq!(differing(&rows, 1..2), Vec::<usize>::new());
    }

    #[test]
    fn neighbouring_pieces_are_one_range_and_the_last_may_be_short() {
        let of = |pieces: &[usize]| ranges(pieces, 1024, (600, DataType::Float32));
        assert_eq!(of(&[0, 1]), vec![Range { start: 0, end: 512 }]);
        assert_eq!(of(&[0, 2]), [0..256, 512..600]);
        assert_eq!(of(&[]), Vec::<Range<u64>>::new());
    }

    #[test]
    fn the_first_element_is_found_by_its_bits() {
        let bytes = |values: &[f32]| values.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<u8>>();
        let all = rows(&[&bytes(&[1.0, 0.0, 2.0]), &bytes(&[1.0, -0.0, 3.0])]);
        let found = first_divergence(&all, 0..12, 100, DataType::Float32).expect("differs");
        assert_eq!(found.element, 101);
        assert_eq!(found.values, [(peer(1), "0".to_owned()), (peer(2), "-0".to_owned())]);
        assert_eq!(first_divergence(&all, 0..4, 0, DataType::Float32), None);
        let text = value_text(DataType::Float32, &f32::from_bits(0x7fc0_0001).to_ne_bytes());
        assert_eq!(text, "NaN (0x7fc00001)");
    }

    #[test]
    fn every_type_has_a_text() {
        for data_type in DataType::ALL {
            assert_eq!(value_text(data_type, &vec![0; data_type.size_bytes()]), "0", "{data_type:?}");
        }
    }

    #[test]
    fn tensors_that_are_declared_otherwise_are_named() {
        let declared = |key: &str, text: &str| Declared { key: key.into(), text: text.into() };
        let one = encode_declared(&[declared("a", "Float32[3]"), declared("b", "Int64[1]")]);
        let other = encode_declared(&[declared("a", "Float32[3]"), declared("b", "Int64[2]")]);
        let fewer = encode_declared(&[declared("a", "Float32[3]")]);
        assert_eq!(declared_apart(&rows(&[&one, &one])), None);
        let filled_up = [&one[..], &[0; 9]].concat();
        assert_eq!(declared_apart(&rows(&[&one, &filled_up])), None);
        let text = declared_apart(&rows(&[&one, &other, &fewer])).expect("differ");
        assert_eq!(text, "\"b\": missing at 00000003, Int64[1] at 00000001, Int64[2] at 00000002");
    }

    #[test]
    fn a_report_reads_like_a_sentence() {
        let tensor = TensorDiff {
            key: "weights".into(),
            data_type: DataType::Float32,
            count: 600,
            camps: vec![
                Camp { digest: "1".into(), peers: vec![peer(1), peer(3)] },
                Camp { digest: "2".into(), peers: vec![peer(2)] },
            ],
            ranges: vec![0..256, 512..600],
            first: Some(Divergence {
                element: 17,
                values: vec![(peer(1), "1".into()), (peer(2), "2".into())],
            }),
        };
        assert_eq!(tensor.apart().collect::<Vec<_>>(), [peer(2)]);
        let diff = StateDiff { tensors: vec![tensor], compared: 3 };
        assert_eq!(
            diff.to_string(),
            "1 of 3 tensors differ\n\"weights\" (600 x Float32): 00000001 00000003 against 00000002; first at element \
             17: 00000001 1, 00000002 2; in 2 ranges between elements 0 and 600"
        );
        assert_eq!(
            StateDiff { tensors: vec![], compared: 3 }.to_string(),
            "3 tensors are the same on all peers"
        );
    }
}
