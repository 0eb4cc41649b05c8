//! A length field that lies costs its receiver nothing: decoding never holds much more memory than there is input.

mod arbitrary;

use arbitrary::Packets;
use pccl_protocol::{C2m, M2c, P2p, limits};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};
use tinysockets::wire::FRAME_HEADER_BYTES;

thread_local! {
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread holds.
struct Counting;

// SAFETY: every call is handed to the system's allocator unchanged. The counters are plain cells of the thread, without
// a destructor and initialised at compile time, so counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE_BYTES.get().wrapping_add(layout.size());
        LIVE_BYTES.set(live);
        PEAK_BYTES.set(PEAK_BYTES.get().max(live));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that `body` held at once beyond what was held before.
fn peak_bytes_of(body: impl FnOnce()) -> usize {
    LIVE_BYTES.set(0);
    PEAK_BYTES.set(0);
    body();
    PEAK_BYTES.get()
}

/// Decoded items take up to twice the bytes of their encoding (a string's pointer and capacity), a growing list up to
/// three times its content (old and new memory while it is copied), and the smallest list has room for four items.
fn allowed_bytes(input: usize) -> usize {
    2048 + 8 * input
}

fn lying_lengths<P: Packets>() {
    let mut runner = TestRunner::deterministic();
    let lies: Vec<u32> = [
        u32::MAX as usize,
        i32::MAX as usize,
        limits::MAX_STATE_ENTRIES,
        limits::MAX_STATE_ENTRIES + 1,
        limits::MAX_PEERS,
        limits::MAX_TEXT_BYTES,
        limits::MAX_HOST_BYTES,
        limits::MAX_KEY_BYTES,
        2,
    ]
    .map(|lie| u32::try_from(lie).unwrap())
    .to_vec();
    for variant in P::variants() {
        for _ in 0..8 {
            let packet = variant.new_tree(&mut runner).unwrap().current();
            let body = packet.frame().split_off(FRAME_HEADER_BYTES);
            for at in 0..body.len().saturating_sub(3).min(400) {
                for lie in &lies {
                    let mut altered = body.clone();
                    altered[at..at + 4].copy_from_slice(&lie.to_be_bytes());
                    let peak = peak_bytes_of(|| drop(P::parse(packet.kind_of(), &altered)));
                    let allowed = allowed_bytes(altered.len());
                    assert!(
                        peak <= allowed,
                        "{} bytes of kind {} with {lie} at {at} made the decoder hold {peak} bytes, {allowed} allowed",
                        altered.len(),
                        packet.kind_of()
                    );
                }
            }
        }
    }
}

#[test]
fn the_allocator_counts() {
    let peak = peak_bytes_of(|| drop(std::hint::black_box(vec![1u8; 5000])));
    assert!((5000..6000).contains(&peak), "{peak}");
}

#[test]
fn length_fields_that_lie_allocate_nothing() {
    lying_lengths::<C2m>();
    lying_lengths::<M2c>();
    lying_lengths::<P2p>();
}
