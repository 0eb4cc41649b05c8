//! Elements as 16-bit floats: no blocks, no metadata. NaN stays NaN, of which there is one, and infinity infinity.

use super::{
    block::Sink,
    work::{Source, Work},
};

/// Encodes to floats of type `T`. Elements of f64 are rounded to f32 first.
#[inline(always)]
pub(super) fn encode<S: Source, T: Source<Work = f32>>(data: &[u8], encoded: &mut [u8]) {
    for (element, out) in S::elements(data).iter().zip(T::elements_mut(encoded)) {
        *out = T::narrow(S::load(*element).widen().as_f32()).store();
    }
}

#[inline(always)]
pub(super) fn decode<S: Source, T: Source<Work = f32>, K: Sink>(encoded: &[u8], data: &mut [u8]) {
    for (element, code) in S::elements_mut(data).iter_mut().zip(T::elements(encoded)) {
        *element = K::put::<S>(*element, S::Work::of_f32(T::load(*code).widen()));
    }
}
