//! The computation of codecs, said a second time: one element at a time, as slow as it pleases, without any code in
//! common with them. Tests compare bytes with those of this module.

use half::{bf16, f16};

use pccl_quant::{
    DataType,
    quantise::{NoiseKey, Rounding, Scheme},
};

/// The two ways in which numbers are calculated: in f32, rounded after each operation, or in f64.
#[derive(Clone, Copy)]
struct Arithmetic {
    is_f64: bool,
}

impl Arithmetic {
    fn of(data_type: DataType) -> Self {
        Self { is_f64: data_type == DataType::Float64 }
    }

    /// An f64 operation on two f32, rounded to f32, is the f32 operation: f64 has more than twice the digits.
    fn rounded(self, value: f64) -> f64 {
        if self.is_f64 { value } else { f64::from(value as f32) }
    }

    fn least_normal(self) -> f64 {
        if self.is_f64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) }
    }

    fn bytes(self, value: f64) -> Vec<u8> {
        match (self.is_f64, value.is_nan()) {
            (true, true) => 0x7FF8_0000_0000_0000_u64.to_le_bytes().to_vec(),
            (true, false) => value.to_le_bytes().to_vec(),
            (false, true) => 0x7FC0_0000_u32.to_le_bytes().to_vec(),
            (false, false) => (value as f32).to_le_bytes().to_vec(),
        }
    }

    fn number(self, bytes: &[u8]) -> f64 {
        if self.is_f64 {
            f64_at(bytes)
        } else {
            f64::from(f32::from_le_bytes(bytes.try_into().expect("4 bytes")))
        }
    }

    /// Up to a number whose bits are a multiple of `unit`, or, if what `reach` makes of it is infinite, the one before.
    fn coarse(self, value: f64, unit: u32, reach: impl Fn(f64) -> f64) -> f64 {
        let value = value.max(self.least_normal());
        let bits = |up: bool| {
            if self.is_f64 {
                let units = value.to_bits().div_ceil(u64::from(unit)) - u64::from(!up);
                f64::from_bits(units * u64::from(unit))
            } else {
                let units = (value as f32).to_bits().div_ceil(unit) - u32::from(!up);
                f64::from(f32::from_bits(units * unit))
            }
        };
        if self.rounded(reach(bits(true))).is_finite() { bits(true) } else { bits(false) }
    }
}

fn f64_at(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

fn element(data_type: DataType, bytes: &[u8]) -> f64 {
    match data_type {
        DataType::Float16 => f16::from_le_bytes(bytes.try_into().expect("2 bytes")).to_f64(),
        DataType::BFloat16 => bf16::from_le_bytes(bytes.try_into().expect("2 bytes")).to_f64(),
        DataType::Float32 => f64::from(f32::from_le_bytes(bytes.try_into().expect("4 bytes"))),
        _ => f64_at(bytes),
    }
}

/// A number of the working type as an element.
fn element_bytes(data_type: DataType, value: f64) -> Vec<u8> {
    match data_type {
        DataType::Float16 if value.is_nan() => 0x7E00_u16.to_le_bytes().to_vec(),
        DataType::Float16 => f16::from_f32(value as f32).to_le_bytes().to_vec(),
        DataType::BFloat16 if value.is_nan() => 0x7FC0_u16.to_le_bytes().to_vec(),
        DataType::BFloat16 => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        _ => Arithmetic::of(data_type).bytes(value),
    }
}

fn greatest_element(data_type: DataType) -> f64 {
    match data_type {
        DataType::Float16 => f16::MAX.to_f64(),
        DataType::BFloat16 => bf16::MAX.to_f64(),
        DataType::Float32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

/// The random 15-bit number of an element.
fn noise(seed: u64, operation: u64, rank: u32, index: u64) -> u32 {
    let mix = |value: u64| {
        let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let stream = mix(mix(mix(seed ^ 0x7063_636C_7175_616E) ^ operation) ^ u64::from(rank));
    let key = mix(stream.wrapping_add((index / 64).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let within = (index % 32) as u32;
    let mut x = (key as u32).wrapping_add(within.wrapping_mul(0x9E37_79B9));
    x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
    x = (x ^ (x >> 15) ^ (key >> 32) as u32).wrapping_mul(0x846C_A68B);
    x ^= x >> 16;
    if index % 64 < 32 { x / 0x2_0000 } else { x % 0x8000 }
}

/// The seeds that decide how a number between two codes is rounded.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// See [`NoiseKey::new`].
    pub seed: u64,
    /// See there.
    pub operation: u64,
    /// See there.
    pub rank: u32,
}

impl Seeds {
    /// The rounding of a codec that rounds in the same way.
    #[must_use]
    pub fn rounding(self) -> Rounding {
        Rounding::Stochastic(NoiseKey::new(self.seed, self.operation, self.rank))
    }
}

/// Where a number lies between codes 0 and `greatest`, as one of them.
fn block_code(position: f64, greatest: f64, noise: Option<u32>) -> u8 {
    match noise {
        None => position.round_ties_even() as u8,
        Some(noise) => {
            let fixed = (position.clamp(0.0, greatest) * 32_768.0).round_ties_even();
            ((fixed + f64::from(noise)) / 32_768.0).floor() as u8
        }
    }
}

/// The encoded form of `data`.
///
/// # Panics
/// If the data is not whole floats.
#[must_use]
pub fn encode(
    scheme: Scheme,
    data_type: DataType,
    data: &[u8],
    seeds: Option<Seeds>,
    first_element: u64,
) -> Vec<u8> {
    let elements: Vec<f64> =
        data.chunks_exact(data_type.size_bytes()).map(|bytes| element(data_type, bytes)).collect();
    let noise_at =
        |index: usize| seeds.map(|s| noise(s.seed, s.operation, s.rank, first_element + index as u64));
    let block = match scheme {
        Scheme::BlockAffineU8(block)
        | Scheme::BlockSymmetricI8(block)
        | Scheme::BlockAffineU4(block)
        | Scheme::BlockE4m3(block)
        | Scheme::BlockE5m2(block) => block.elements(),
        Scheme::CastBf16 => {
            return elements
                .iter()
                .flat_map(|x| element_bytes(DataType::BFloat16, f64::from(*x as f32)))
                .collect();
        }
        Scheme::CastF16 => {
            return elements
                .iter()
                .flat_map(|x| element_bytes(DataType::Float16, f64::from(*x as f32)))
                .collect();
        }
        Scheme::MinMax(codes) | Scheme::ZeroPointScale(codes) => {
            return encode_chunk(scheme, data_type, codes, &elements, noise_at);
        }
    };
    let mut out = Vec::new();
    for (number, elements) in elements.chunks(block).enumerate() {
        let noise_at = |index: usize| noise_at(number * block + index);
        encode_block(scheme, data_type, elements, noise_at, &mut out);
    }
    out
}

fn encode_block(
    scheme: Scheme,
    data_type: DataType,
    elements: &[f64],
    noise_at: impl Fn(usize) -> Option<u32>,
    out: &mut Vec<u8>,
) {
    let a = Arithmetic::of(data_type);
    let min = elements.iter().copied().fold(f64::INFINITY, f64::min);
    let max = elements.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let absolute = max.max(-min);
    let is_finite = elements.iter().all(|x| x.is_finite());
    let affine = |greatest: f64, out: &mut Vec<u8>| -> Vec<u8> {
        let half = greatest / 2.0;
        if !is_finite || min == max {
            let number = if is_finite { min + 0.0 } else { f64::NAN };
            out.extend(a.bytes(if is_finite { 0.0 } else { f64::NAN }));
            out.extend(a.bytes(number));
            return vec![0; elements.len()];
        }
        let middle = a.rounded(a.rounded(min / 2.0) + a.rounded(max / 2.0));
        let radius = a.rounded(max - middle).max(a.rounded(middle - min));
        let furthest = |scale: f64| {
            let reach = a.rounded(half * scale);
            a.rounded(middle + reach).abs().max(a.rounded(middle - reach).abs())
        };
        let scale = a.coarse(a.rounded(radius / half), if greatest == 15.0 { 16 } else { 256 }, furthest);
        let inverse = a.rounded(1.0 / scale);
        out.extend(a.bytes(scale));
        out.extend(a.bytes(middle));
        let position = |x: f64| a.rounded(a.rounded(a.rounded(x - middle) * inverse) + half);
        let code = |(index, x): (usize, &f64)| block_code(position(*x), greatest, noise_at(index));
        elements.iter().enumerate().map(code).collect()
    };
    match scheme {
        Scheme::BlockAffineU8(_) => {
            let codes = affine(255.0, out);
            out.extend(codes);
        }
        Scheme::BlockAffineU4(_) => {
            let codes = affine(15.0, out);
            out.extend(codes.chunks(2).map(|pair| pair[0] + 16 * pair.get(1).unwrap_or(&0)));
        }
        Scheme::BlockSymmetricI8(_) => {
            if !is_finite || min == max {
                out.extend(a.bytes(if is_finite { min + 0.0 } else { f64::NAN }));
                out.extend(elements.iter().map(|_| 1));
                return;
            }
            let scale = a.coarse(a.rounded(absolute / 127.0), 256, |scale| 127.0 * scale);
            let inverse = a.rounded(1.0 / scale);
            out.extend(a.bytes(scale));
            out.extend(elements.iter().enumerate().map(|(index, x)| match noise_at(index) {
                None => a.rounded(x * inverse).round_ties_even() as i8 as u8,
                noise => {
                    let position = a.rounded(a.rounded(x * inverse) + 127.0);
                    (i16::from(block_code(position, 254.0, noise)) - 127) as i8 as u8
                }
            }));
        }
        _ => encode_fp8(scheme, data_type, elements, is_finite, out),
    }
}

/// The numbers that 8 bits stand for, by the definition of the format.
fn fp8_value(scheme: Scheme, code: u8) -> f64 {
    let mantissa_bits = if matches!(scheme, Scheme::BlockE4m3(_)) { 3 } else { 2 };
    let bias = if mantissa_bits == 3 { 7 } else { 15 };
    let exponent = i32::from(code & 0x7F) >> mantissa_bits;
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let value = match (mantissa_bits, exponent) {
        (3, 15) if code & 7 == 7 => f64::NAN,
        (2, 31) if mantissa == 0.0 => f64::INFINITY,
        (2, 31) => f64::NAN,
        (_, 0) => mantissa * 2_f64.powi(1 - bias),
        _ => (1.0 + mantissa) * 2_f64.powi(exponent - bias),
    };
    sign * value
}

fn encode_fp8(scheme: Scheme, data_type: DataType, elements: &[f64], is_finite: bool, out: &mut Vec<u8>) {
    let a = Arithmetic::of(data_type);
    let absolute = elements.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    let one = (0..128).find(|code| fp8_value(scheme, *code) == 1.0).expect("there is a code for 1");
    if !is_finite || elements.iter().all(|x| *x == elements[0]) {
        out.extend(a.bytes(if is_finite { elements[0] + 0.0 } else { f64::NAN }));
        out.extend(elements.iter().map(|_| one));
        return;
    }
    let numbers: Vec<(u8, f64)> =
        (0..128).map(|code| (code, fp8_value(scheme, code))).filter(|(_, value)| value.is_finite()).collect();
    let greatest = numbers.last().expect("there are numbers").1;
    // The least power of two with which it fits, not below the least normal number.
    let mut scale = a.least_normal();
    while absolute / scale > greatest {
        scale *= 2.0;
    }
    // Of two equally near codes the even one, as the code's last bit is the mantissa's.
    let nearest = |value: f64, numbers: &[(u8, f64)]| -> u8 {
        let distance = |number: f64| (number - value).abs();
        let by_distance = |one: &&(u8, f64), other: &&(u8, f64)| {
            distance(one.1).total_cmp(&distance(other.1)).then((one.0 % 2).cmp(&(other.0 % 2)))
        };
        numbers.iter().min_by(by_distance).expect("there are numbers").0
    };
    let fitting: Vec<(u8, f64)> = numbers
        .iter()
        .copied()
        .filter(|(_, value)| {
            let value = value * scale;
            value <= greatest_element(data_type) || value < absolute
        })
        .collect();
    out.extend(a.bytes(scale));
    out.extend(elements.iter().map(|x| {
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        nearest(f64::from((x.abs() / scale) as f32), &fitting) | sign
    }));
}

fn encode_chunk(
    scheme: Scheme,
    data_type: DataType,
    codes: DataType,
    elements: &[f64],
    noise_at: impl Fn(usize) -> Option<u32>,
) -> Vec<u8> {
    if elements.is_empty() {
        return Vec::new();
    }
    let size = codes.size_bytes();
    let greatest = 2_f64.powi(8 * size as i32) - f64::from(u8::from(size < 8));
    let signed = matches!(codes, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64);
    let meta = |values: [f64; 3]| {
        values.iter().flat_map(|value| Arithmetic { is_f64: true }.bytes(*value)).collect()
    };
    let min = elements.iter().copied().fold(f64::INFINITY, f64::min);
    let max = elements.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut out: Vec<u8>;
    if !elements.iter().all(|x| x.is_finite()) || min == max {
        out = if min == max && elements.iter().all(|x| x.is_finite()) {
            meta([0.0, min + 0.0, 0.0])
        } else {
            meta([f64::NAN; 3])
        };
        out.resize(24 + elements.len() * size, 0);
        return out;
    }
    let [scale, middle, zero] = match scheme {
        Scheme::MinMax(_) => min_max(min, max, greatest),
        _ => zero_point(data_type, elements, min, max, greatest),
    };
    out = meta([scale, middle, zero]);
    let inverse = 1.0 / scale;
    for (index, x) in elements.iter().enumerate() {
        let shift = noise_at(index).map_or(0.0, |noise| (f64::from(noise) + 0.5) / 32_768.0 - 0.5);
        let position = ((x - middle) * inverse + zero + shift).clamp(0.0, greatest).round_ties_even();
        let code = (position as u64) ^ if signed { 1 << (8 * size - 1) } else { 0 };
        out.extend(&code.to_le_bytes()[..size]);
    }
    out
}

fn min_max(min: f64, max: f64, greatest: f64) -> [f64; 3] {
    let middle = min / 2.0 + max / 2.0;
    let mut scale = ((max / 2.0 - min / 2.0) / (greatest / 2.0)).max(f64::MIN_POSITIVE);
    while (middle.abs() + greatest / 2.0 * scale).is_infinite() {
        scale = scale.next_down();
    }
    [scale, middle, greatest / 2.0]
}

fn zero_point(data_type: DataType, elements: &[f64], min: f64, max: f64, greatest: f64) -> [f64; 3] {
    let near = min / 2.0 + max / 2.0;
    let (mut sums, mut squares) = ([0.0; 17], [0.0; 17]);
    // Sixteen sums in turn, then those of what is left over, one after the other.
    let whole = elements.len() / 16 * 16;
    for (index, x) in elements[..whole].iter().enumerate() {
        sums[index % 16] += x - near;
        squares[index % 16] += (x - near) * (x - near);
    }
    let total = |lanes: &[f64; 17], rest: &dyn Fn(f64) -> f64| {
        let sum = lanes[..16].iter().fold(0.0, |sum, lane| sum + lane);
        elements[whole..].iter().fold(sum, |sum, x| sum + rest(x - near))
    };
    let (sum, square) = (total(&sums, &|away| away), total(&squares, &|away| away * away));
    let count = elements.len() as f64;
    let deviation = ((square - sum * sum / count) / (count - 1.0)).sqrt();
    let (mean, scale) = (near + sum / count, 12.0 * deviation / greatest);
    let limit = greatest_element(data_type);
    let usable = scale >= f64::MIN_POSITIVE && scale.is_finite() && mean.is_finite();
    if !usable || max + scale > limit || min - scale < -limit {
        return min_max(min, max, greatest);
    }
    let half = ((greatest + 1.0) / 2.0).floor();
    let zero = half - (mean / scale).round_ties_even();
    if zero >= 0.0 && zero <= greatest { [scale, 0.0, zero] } else { [scale, mean, half] }
}

/// The numbers of an encoded form, of the working type.
fn values(scheme: Scheme, data_type: DataType, encoded: &[u8], elements: usize) -> Vec<f64> {
    let a = Arithmetic::of(data_type);
    let size = if a.is_f64 { 8 } else { 4 };
    let mut rest = encoded;
    let mut take = |bytes: usize| {
        let (taken, left) = rest.split_at(bytes);
        rest = left;
        taken
    };
    let block = match scheme {
        Scheme::CastBf16 => {
            return encoded.chunks(2).map(|bytes| element(DataType::BFloat16, bytes)).collect();
        }
        Scheme::CastF16 => return encoded.chunks(2).map(|bytes| element(DataType::Float16, bytes)).collect(),
        Scheme::MinMax(codes) | Scheme::ZeroPointScale(codes) => {
            return chunk_values(data_type, codes, encoded, elements);
        }
        Scheme::BlockAffineU8(block)
        | Scheme::BlockSymmetricI8(block)
        | Scheme::BlockAffineU4(block)
        | Scheme::BlockE4m3(block)
        | Scheme::BlockE5m2(block) => block.elements(),
    };
    let mut out = Vec::new();
    while out.len() < elements {
        let count = block.min(elements - out.len());
        let scale = a.number(take(size));
        let affine = |middle: f64, code: u8, half: f64| {
            a.rounded(middle + a.rounded((f64::from(code) - half) * scale))
        };
        let values: Vec<f64> = match scheme {
            Scheme::BlockAffineU8(_) => {
                let middle = a.number(take(size));
                let poison = if middle.is_finite() { 0.0 } else { f64::NAN };
                take(count).iter().map(|code| affine(middle, *code, 127.5) + poison).collect()
            }
            Scheme::BlockAffineU4(_) => {
                let middle = a.number(take(size));
                let poison = if middle.is_finite() { 0.0 } else { f64::NAN };
                let bytes = take(count.div_ceil(2));
                let code = |index: usize| bytes[index / 2] >> (4 * (index % 2)) & 15;
                (0..count).map(|index| affine(middle, code(index), 7.5) + poison).collect()
            }
            Scheme::BlockSymmetricI8(_) => {
                take(count).iter().map(|code| a.rounded(f64::from(*code as i8) * scale)).collect()
            }
            _ => take(count).iter().map(|code| a.rounded(fp8_value(scheme, *code) * scale)).collect(),
        };
        out.extend(values.iter().map(|value| if scale.is_finite() { *value } else { f64::NAN }));
    }
    out
}

fn chunk_values(data_type: DataType, codes: DataType, encoded: &[u8], elements: usize) -> Vec<f64> {
    if elements == 0 {
        return Vec::new();
    }
    let [scale, middle, zero] = [0, 8, 16].map(|at| f64_at(&encoded[at..at + 8]));
    let size = codes.size_bytes();
    let signed = matches!(codes, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64);
    let value = |code: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(code);
        let code = u64::from_le_bytes(bytes) ^ if signed { 1 << (8 * size - 1) } else { 0 };
        let value = middle + (code as f64 - zero) * scale;
        let usable = scale.is_finite() && middle.is_finite() && zero.is_finite();
        if usable { Arithmetic::of(data_type).rounded(value) } else { f64::NAN }
    };
    encoded[24..].chunks(size).map(value).collect()
}

/// The content of `data` after decoding: the decoded elements, or, with `add`, the sums with them.
///
/// # Panics
/// If the lengths do not belong together.
#[must_use]
pub fn decode(scheme: Scheme, data_type: DataType, encoded: &[u8], data: &[u8], add: bool) -> Vec<u8> {
    let size = data_type.size_bytes();
    let values = values(scheme, data_type, encoded, data.len() / size);
    let sum = |(value, own): (f64, &[u8])| {
        let own = element(data_type, own);
        element_bytes(data_type, if add { Arithmetic::of(data_type).rounded(own + value) } else { value })
    };
    values.into_iter().zip(data.chunks_exact(size)).flat_map(sum).collect()
}
