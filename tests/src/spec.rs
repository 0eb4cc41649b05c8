//! Tensors as tests and peer processes talk about them, in one word each.

use crate::pattern;
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{Algorithm, Quantisation, Scheme},
};
use pccl_quant_reference as reference;
use std::{fmt, ops::Range, str::FromStr};

fn data_type(name: &str) -> Result<DataType, String> {
    DataType::ALL
        .into_iter()
        .find(|data_type| data_type.name() == name)
        .ok_or_else(|| format!("no type {name}"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn quantisation(text: &str) -> Result<Quantisation, String> {
    let numbers: Vec<u64> = text.split('.').map(number).collect::<Result<_, _>>()?;
    let bad = || format!("no quantisation: {text:?}");
    let (&algorithm, &parameter) = numbers.first().zip(numbers.get(1)).ok_or_else(bad)?;
    let algorithm = Algorithm::from_code(algorithm as u8).ok_or_else(bad)?;
    let quantisation = Quantisation::new(Scheme::of(algorithm, parameter as u16).ok_or_else(bad)?);
    Ok(numbers.get(2).map_or(quantisation, |&seed| quantisation.stochastic(seed)))
}

/// The way by which data travels, as far as the bytes of a result depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way<'a> {
    /// Around the ring, or any other that has its bytes.
    Ring,
    /// Through the owners of pairwise exchange, which what is quantised depends on.
    Pairwise,
    /// Over sites: the number of the site of each rank.
    Sites(&'a [u16]),
}

impl<'a> Way<'a> {
    /// By the name of an algorithm, and the number of the site of each rank.
    #[must_use]
    pub fn of(algorithm: &str, sites: &'a [u16]) -> Self {
        match algorithm {
            "pairwise" => Self::Pairwise,
            "sites" => Self::Sites(sites),
            _ => Self::Ring,
        }
    }
}

/// A tensor to be reduced: `f32:sum:1025:7:in`, or `f32:sum:1025:7:in:3.256` if it is quantised: the numbers of
/// algorithm and parameter, and the seed if it is rounded stochastically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Type of the elements.
    pub data_type: DataType,
    /// The reduction.
    pub op: ReduceOp,
    /// Number of elements.
    pub count: usize,
    /// Seed of the content; each peer mixes its own number in.
    pub seed: u64,
    /// In place, or from one buffer into another.
    pub in_place: bool,
    /// How it is quantised while it travels.
    pub quantisation: Option<Quantisation>,
}

impl Spec {
    /// An f32 sum in place.
    #[must_use]
    pub fn sum(count: usize, seed: u64) -> Self {
        Self {
            data_type: DataType::Float32,
            op: ReduceOp::Sum,
            count,
            seed,
            in_place: true,
            quantisation: None,
        }
    }

    /// The input of peer number `index`.
    #[must_use]
    pub fn input(&self, index: usize) -> Vec<u8> {
        let seed = pattern::mix(self.seed ^ (index as u64 + 1) << 48);
        // One NaN or infinity is enough for its block; for a scheme without blocks, for its chunk.
        let rarity_bits = match self.quantisation.map(|quantisation| quantisation.scheme()) {
            None | Some(Scheme::CastBf16 | Scheme::CastF16) => 0,
            Some(Scheme::MinMax(_) | Scheme::ZeroPointScale(_)) => 16,
            Some(_) => 6,
        };
        pattern::rarely_special(self.data_type, self.count, seed, rarity_bits)
    }

    /// Whether the bytes of a result by this way depend on who owns what, beyond what the ring and sites say.
    #[must_use]
    pub fn depends_on_owners(&self, way: Way<'_>) -> bool {
        self.quantisation.is_some() && matches!(way, Way::Sites(_))
    }

    /// The result, if these peers take part in this order, and data travels by this way; stochastically
    /// rounded, in an operation with tag 0 and this tensor only.
    ///
    /// # Panics
    /// If it [depends on owners](Spec::depends_on_owners).
    #[must_use]
    pub fn result(&self, indices_in_ring_order: &[usize], way: Way<'_>) -> Vec<u8> {
        let inputs: Vec<_> = indices_in_ring_order.iter().map(|&index| self.input(index)).collect();
        let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        self.reduced(&inputs, way, 0)
    }

    /// The same of some of its elements, which are that segment of a call in segments.
    #[must_use]
    pub fn segment(
        &self,
        (segment, elements): (u64, Range<usize>),
        indices_in_ring_order: &[usize],
        way: Way<'_>,
    ) -> Vec<u8> {
        let size = self.data_type.size_bytes();
        let inputs: Vec<_> = indices_in_ring_order.iter().map(|&index| self.input(index)).collect();
        let inputs: Vec<_> =
            inputs.iter().map(|it| &it[elements.start * size..elements.end * size]).collect();
        self.reduced(&inputs, way, segment)
    }

    fn reduced(&self, inputs: &[&[u8]], way: Way<'_>, segment: u64) -> Vec<u8> {
        let Some(how) = self.quantisation else { return plain(self.data_type, self.op, inputs, way) };
        let oracle = match way {
            Way::Ring => reference::quantised_ring_oracle,
            Way::Pairwise => reference::quantised_pairwise_oracle,
            Way::Sites(_) => panic!("it depends on owners"),
        };
        let how = how.seed().map_or(how, |seed| how.stochastic(seed.wrapping_add(segment)));
        oracle(self.data_type, self.op, how, (0, 0), inputs)
    }
}

/// The result of tensors that are not quantised.
fn plain(data_type: DataType, op: ReduceOp, inputs: &[&[u8]], way: Way<'_>) -> Vec<u8> {
    match way {
        Way::Ring | Way::Pairwise => pattern::expected(data_type, op, inputs),
        Way::Sites(sites) => reference::sites_all_reduce_oracle(data_type, op, inputs, sites),
    }
}

/// The result of an operation with these tensors, as [`Spec::result`]. Consecutive tensors of the same type and
/// operator that are not quantised are reduced as one. None for what depends on owners.
#[must_use]
pub fn results(specs: &[Spec], indices_in_ring_order: &[usize], way: Way<'_>) -> Vec<Option<Vec<u8>>> {
    let kind = |spec: &Spec| (spec.data_type, spec.op);
    let is_run =
        |a: &Spec, b: &Spec| kind(a) == kind(b) && a.quantisation.is_none() && b.quantisation.is_none();
    let of_run = |run: &[Spec]| -> Vec<Option<Vec<u8>>> {
        if let [one] = run {
            return vec![(!one.depends_on_owners(way)).then(|| one.result(indices_in_ring_order, way))];
        }
        let input = |index: &usize| run.iter().flat_map(|spec| spec.input(*index)).collect();
        let inputs: Vec<Vec<u8>> = indices_in_ring_order.iter().map(input).collect();
        let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        let mut whole = plain(run[0].data_type, run[0].op, &inputs, way);
        let mut take = |spec: &Spec| Some(whole.drain(..spec.count * spec.data_type.size_bytes()).collect());
        run.iter().map(&mut take).collect()
    };
    specs.chunk_by(is_run).flat_map(of_run).collect()
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.in_place { "in" } else { "out" };
        write!(f, "{}:{}:{}:{}:{place}", self.data_type, self.op, self.count, self.seed)?;
        let Some(quantisation) = self.quantisation else { return Ok(()) };
        let scheme = quantisation.scheme();
        write!(f, ":{}.{}", scheme.algorithm().code(), scheme.parameter())?;
        quantisation.seed().map_or(Ok(()), |seed| write!(f, ".{seed}"))
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split(':').collect();
        let (&[ty, op, count, seed, place] | &[ty, op, count, seed, place, _]) = &fields[..] else {
            return Err(format!("no tensor: {text:?}"));
        };
        let op = ReduceOp::ALL.into_iter().find(|o| o.name() == op).ok_or_else(|| format!("no op {op}"))?;
        Ok(Self {
            data_type: data_type(ty)?,
            op,
            count: number(count)?,
            seed: number(seed)?,
            in_place: place == "in",
            quantisation: fields.get(5).map(|text| quantisation(text)).transpose()?,
        })
    }
}

/// A tensor of a shared state: `weights:f32:1024:7:0:same`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSpec {
    /// Its key, without a colon or comma.
    pub key: String,
    /// Type of the elements.
    pub data_type: DataType,
    /// Number of elements.
    pub count: usize,
    /// Seed of the content.
    pub seed: u64,
    /// Elements by which the tensor is moved from the start of its allocation.
    pub skip: usize,
    /// May differ between peers.
    pub loose: bool,
}

impl StateSpec {
    /// A tensor of f32.
    #[must_use]
    pub fn new(key: &str, count: usize, seed: u64) -> Self {
        Self { key: key.into(), data_type: DataType::Float32, count, seed, skip: 0, loose: false }
    }

    /// The content.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        pattern::bytes(self.data_type, self.count, self.seed)
    }

    /// State hash of the content.
    #[must_use]
    pub fn digest(&self) -> String {
        pattern::digest(&self.content())
    }
}

impl fmt::Display for StateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loose = if self.loose { "loose" } else { "same" };
        let Self { key, data_type, count, seed, skip, .. } = self;
        write!(f, "{key}:{data_type}:{count}:{seed}:{skip}:{loose}")
    }
}

impl FromStr for StateSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split(':').collect();
        let [key, ty, count, seed, skip, loose] = fields[..] else {
            return Err(format!("no state: {text:?}"));
        };
        Ok(Self {
            key: key.into(),
            data_type: data_type(ty)?,
            count: number(count)?,
            seed: number(seed)?,
            skip: number(skip)?,
            loose: loose == "loose",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_there_and_back() {
        let spec = Spec { in_place: false, ..Spec::sum(1025, 7) };
        assert_eq!(spec.to_string(), "f32:sum:1025:7:out");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let state = StateSpec { skip: 3, loose: true, ..StateSpec::new("w", 10, 9) };
        assert_eq!(state.to_string().parse(), Ok(state));
        let quantised = Spec {
            quantisation: Some(Quantisation::new(Scheme::MinMax(DataType::Int8)).stochastic(9)),
            ..spec
        };
        assert_eq!(quantised.to_string(), "f32:sum:1025:7:out:1.1.9");
        assert_eq!(quantised.to_string().parse(), Ok(quantised));
        assert!("f32:sum:1:7:out:3.100".parse::<Spec>().is_err());
        assert!("f32:sum:1:7:out:3.64:1".parse::<Spec>().is_err());
        assert!("f32:sum:x:7:out".parse::<Spec>().is_err());
    }
}
