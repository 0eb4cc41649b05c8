//! Copies of what nobody reads soon.

#![allow(unsafe_code)]

/// Below this many bytes a copy is a plain one: the target is at most a small part of a cache.
const LEAST_STREAMED_BYTES: usize = 4 * 1024;

/// `target = source`, for a target that is hardly ever read again, such as a backup: where the processor has stores
/// that go by the caches (x86-64), these are used, which do not read the target's memory first and leave in the
/// caches what is there. Any alignment.
///
/// # Panics
/// If the lengths differ.
pub fn copy_streaming(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "target and source of a copy must be equally long");
    if target.len() < LEAST_STREAMED_BYTES {
        target.copy_from_slice(source);
    } else {
        stream(target, source);
        finish_streaming();
    }
}

/// As [`copy_streaming`], without a limit and without order between its stores and later ones: that comes with
/// [`finish_streaming`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn stream(target: &mut [u8], source: &[u8]) {
    target.copy_from_slice(source);
}

/// Nothing is unordered here.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn finish_streaming() {}

/// As [`copy_streaming`], without a limit and without order between its stores and later ones: that comes with
/// [`finish_streaming`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn stream(target: &mut [u8], source: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    // Whole lines: each leaves the write buffer at once.
    const LINE_BYTES: usize = 64;
    let head = target.as_ptr().align_offset(LINE_BYTES).min(target.len());
    let (target_head, target) = target.split_at_mut(head);
    let (source_head, source) = source.split_at(head);
    target_head.copy_from_slice(source_head);
    let (target_lines, target_tail) = target.as_chunks_mut::<LINE_BYTES>();
    let (source_lines, source_tail) = source.as_chunks::<LINE_BYTES>();
    for (target, source) in target_lines.iter_mut().zip(source_lines) {
        let (target, source) = (target.as_mut_ptr().cast::<__m128i>(), source.as_ptr().cast::<__m128i>());
        // SAFETY: both point to 64 bytes, the target's at a multiple of 64. Every x86-64 has these instructions.
        unsafe {
            let quarters = [0, 1, 2, 3].map(|quarter| _mm_loadu_si128(source.add(quarter)));
            for (quarter, lanes) in quarters.into_iter().enumerate() {
                _mm_stream_si128(target.add(quarter), lanes);
            }
        }
    }
    target_tail.copy_from_slice(source_tail);
}

/// Orders all that was [`stream`]ed before all that this thread writes from now on: without it, who sees a later
/// flag might not see the copy.
#[cfg(target_arch = "x86_64")]
pub(crate) fn finish_streaming() {
    // SAFETY: every x86-64 has it, and it touches no memory of ours.
    unsafe { std::arch::x86_64::_mm_sfence() };
}
