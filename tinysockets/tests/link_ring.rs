//! A ring all-reduce in miniature over real links: sums of `u32`, in place, every node in this process.

use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use crate::link_support::*;
use proptest::prelude::*;
use tinysockets::link::{
    FrameHeader, Gate, InLink, Landing, Lent, LinkFault, OpKey, OutLink, Outgoing, Place, Transfer, Violation,
};

/// Small and odd, so that there are many frames and the last of a chunk is short.
const FRAME_ELEMENTS: usize = 5_000;

/// The shape of a sum: an operation's size, and the number of nodes that take part.
#[derive(Debug, Clone, Copy)]
struct Shape {
    nodes: usize,
    elements: usize,
}

impl Shape {
    /// Elements of chunk `chunk`, as a range of bytes.
    fn chunk(self, chunk: usize) -> std::ops::Range<usize> {
        let at = |chunk: usize| chunk * self.elements / self.nodes * 4;
        at(chunk)..at(chunk + 1)
    }

    /// Stages `0..gather` reduce, `gather..stages` gather.
    fn gather(self) -> u32 {
        self.nodes as u32 - 1
    }

    fn stages(self) -> u32 {
        2 * self.gather()
    }

    /// The chunk that arrives at `node` in `stage`.
    fn arriving(self, node: usize, stage: u32) -> usize {
        (node + 2 * self.nodes - 1 - stage as usize % self.nodes) % self.nodes
    }

    fn frames(self, op: OpKey, stage: u32, chunk: usize) -> Vec<FrameHeader> {
        let bytes = self.chunk(chunk);
        let step = FRAME_ELEMENTS * 4;
        bytes
            .clone()
            .step_by(step)
            .map(|offset| {
                let len = step.min(bytes.end - offset) as u32;
                FrameHeader { op, part: 0, stage, offset: offset as u64, len, flags: 0, checksum: 0 }
            })
            .collect()
    }
}

#[derive(Default)]
struct Progress {
    admitted: HashSet<(u32, u64)>,
    arrived: usize,
    pushed: usize,
    released: HashSet<(u32, u64)>,
    released_again: usize,
    failures: usize,
    corrupt: usize,
}

/// One node's side of one operation.
struct RingOp {
    op: OpKey,
    node: usize,
    shape: Shape,
    gate: Arc<Gate>,
    lent: Lent,
    memory: *mut [u32],
    /// For frames to be forwarded, which need an owned handle.
    me: Weak<Self>,
    out: OnceLock<Weak<OutLink>>,
    progress: Watched<Progress>,
    /// Closes the gate, from within a callback, when it has counted down to zero.
    abort_in: AtomicUsize,
}

// SAFETY: the memory is reached through `lent` while the gate is open, and otherwise after it drained.
unsafe impl Send for RingOp {}
// SAFETY: as above; the plan never lets two frames touch the same bytes at a time.
unsafe impl Sync for RingOp {}

impl RingOp {
    fn new(op: OpKey, node: usize, shape: Shape, abort_in: usize) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let values: Box<[u32]> = (0..shape.elements).map(|at| contribution(op, node, at)).collect();
        let memory = Box::into_raw(values);
        // SAFETY: the memory is freed in `drop`, after the gate was drained.
        let lent = unsafe { Lent::new(memory.cast(), memory.len() * 4, true, Arc::clone(&gate)) };
        let (out, progress) = (OnceLock::new(), Watched::default());
        let abort_in = AtomicUsize::new(abort_in);
        Arc::new_cyclic(|me| {
            let me = Weak::clone(me);
            Self { op, node, shape, gate, lent, memory, me, out, progress, abort_in }
        })
    }

    /// Sends this node's own chunk.
    fn push_first(self: &Arc<Self>, out: &OutLink) {
        let frames = self.shape.frames(self.op, 0, self.node);
        self.progress.change(|progress| progress.pushed += frames.len());
        let outgoing = |header| Outgoing { transfer: Arc::<Self>::clone(self), header };
        out.push_all(frames.into_iter().map(outgoing));
    }

    fn expected_arrivals(&self) -> usize {
        let frames = |stage| self.shape.frames(self.op, stage, self.shape.arriving(self.node, stage)).len();
        (0..self.shape.stages()).map(frames).sum()
    }

    /// Waits until everything has arrived and been sent, and returns the result.
    #[track_caller]
    fn finish(&self) -> &[u32] {
        let expected = self.expected_arrivals();
        self.progress.wait_until("the operation was complete", |progress| {
            let complete = progress.arrived == expected && progress.released.len() == progress.pushed;
            (complete || progress.failures + progress.corrupt > 0).then_some(())
        });
        self.progress.look(|progress| {
            assert_eq!((progress.failures, progress.corrupt, progress.released_again), (0, 0, 0));
        });
        self.memory()
    }

    fn memory(&self) -> &[u32] {
        self.gate.close();
        assert!(self.gate.wait_drained(Some(Instant::now() + PATIENCE)), "a pass was never given back");
        // SAFETY: drained.
        unsafe { &*self.memory }
    }

    fn scribble(&self, value: u32) {
        self.memory();
        // SAFETY: drained, and the caller has no reference from `memory` left.
        unsafe { (*self.memory).fill(value) };
    }

    fn count_down_to_abort(&self) {
        if self.abort_in.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.gate.close();
            // For whoever waits for this.
            self.progress.change(|_| ());
        }
    }
}

impl Drop for RingOp {
    fn drop(&mut self) {
        self.memory();
        // SAFETY: from `Box::into_raw`, nobody refers to it any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

fn contribution(op: OpKey, node: usize, at: usize) -> u32 {
    (at as u32 ^ op.tag as u32).wrapping_mul(0x9E37_79B9).rotate_left(node as u32 * 7 + 1)
}

fn expected_sum(op: OpKey, shape: Shape) -> Vec<u32> {
    let sum = |at| (0..shape.nodes).fold(0u32, |sum, node| sum.wrapping_add(contribution(op, node, at)));
    (0..shape.elements).map(sum).collect()
}

impl Transfer for RingOp {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        self.count_down_to_abort();
        let chunk = self.shape.arriving(self.node, header.stage);
        let plan = self.shape.frames(self.op, header.stage, chunk);
        let is_planned = plan.iter().any(|frame| frame.offset == header.offset && frame.len == header.len);
        let is_new = self.progress.change(|progress| progress.admitted.insert((header.stage, header.offset)));
        if !is_planned || !is_new {
            return Err(Violation { text: format!("planned {is_planned}, new {is_new}") });
        }
        Ok(if header.stage < self.shape.gather() { Landing::Fold } else { Landing::Direct })
    }

    fn fold(&self, header: &FrameHeader, done: usize, payload: &[u8]) -> bool {
        self.count_down_to_abort();
        let start = header.offset as usize + done;
        let add = |place: &mut [u8]| {
            for (sum, term) in place.chunks_exact_mut(4).zip(payload.chunks_exact(4)) {
                let [mine, theirs] =
                    [&*sum, term].map(|bytes| u32::from_ne_bytes(bytes.try_into().expect("chunks of four")));
                sum.copy_from_slice(&mine.wrapping_add(theirs).to_ne_bytes());
            }
        };
        self.lent.update(start..start + payload.len(), add).is_some()
    }

    fn granule_bytes(&self, _header: &FrameHeader) -> usize {
        4
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let start = header.offset as usize;
        Place { memory: &self.lent, range: start + done..start + header.len as usize }
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let start = header.offset as usize;
        Place { memory: &self.lent, range: start + done..start + header.len as usize }
    }

    fn arrived(&self, header: &FrameHeader) {
        self.count_down_to_abort();
        let stage = header.stage + 1;
        let forwarded = stage < self.shape.stages();
        self.progress.change(|progress| {
            progress.pushed += usize::from(forwarded);
            progress.arrived += 1;
        });
        if let (Some(out), true) = (self.out.get().and_then(Weak::upgrade), forwarded) {
            let transfer = self.me.upgrade().expect("its own link holds it during the call");
            out.push(Outgoing { transfer, header: FrameHeader { stage, ..*header } });
        }
    }

    fn corrupt(&self, _header: &FrameHeader, _peer: u128, _generation: u64) {
        self.progress.change(|progress| progress.corrupt += 1);
    }

    fn released(&self, header: &FrameHeader) {
        let key = (header.stage, header.offset);
        self.progress.change(|progress| {
            let is_new = progress.released.insert(key);
            progress.released_again += usize::from(!is_new);
        });
    }

    fn link_failed(&self, _fault: &LinkFault) {
        self.progress.change(|progress| progress.failures += 1);
    }
}

struct Node {
    out: Arc<OutLink>,
    into: Arc<InLink>,
    book: Arc<Book>,
    events: [Arc<Events>; 2],
}

/// A ring of `nodes`, each joined to the next by `connections`.
fn ring(nodes: usize, connections: usize, with_checksum: bool, way: Way) -> Vec<Node> {
    let (outs, mut ins): (Vec<_>, Vec<_>) = (0..nodes).map(|_| conn_pairs(connections, way)).unzip();
    ins.rotate_right(1);
    let node = |(out, into)| {
        let book = Arc::new(Book::default());
        let (out, out_events) = start_out(out, with_checksum);
        let (into, in_events) = start_in(into, &book);
        Node { out, into, book, events: [out_events, in_events] }
    };
    outs.into_iter().zip(ins).map(node).collect()
}

/// Announces an operation at every node, and then starts it. `abort_in` counts down at node 0 only.
fn start(nodes: &[Node], op: OpKey, elements: usize, abort_in: usize) -> Vec<Arc<RingOp>> {
    let shape = Shape { nodes: nodes.len(), elements };
    let ops: Vec<_> = (0..nodes.len())
        .map(|node| RingOp::new(op, node, shape, if node == 0 { abort_in } else { 0 }))
        .collect();
    for (ring_op, node) in ops.iter().zip(nodes) {
        ring_op.out.set(Arc::downgrade(&node.out)).expect("set once");
        node.book.announce(op, Arc::<RingOp>::clone(ring_op));
    }
    for (ring_op, node) in ops.iter().zip(nodes) {
        ring_op.push_first(&node.out);
    }
    ops
}

fn assert_sound(nodes: &[Node]) {
    for node in nodes {
        for events in &node.events {
            events.faults.look(|faults| assert!(faults.is_empty(), "{faults:?}"));
        }
    }
}

fn close(nodes: &[Node]) {
    for node in nodes {
        node.out.close();
        node.into.close();
    }
}

#[test]
fn every_node_gets_the_exact_sum() {
    for (nodes, connections) in [(2, 1), (2, 4), (3, 1), (3, 4)] {
        let ways = Way::ALL.into_iter().flat_map(|way| [(false, way), (true, way)]);
        for (with_checksum, way) in ways {
            let ring = ring(nodes, connections, with_checksum, way);
            for (tag, elements) in [(1, 1), (2, 2), (3, 7_001), (4, 300_000)] {
                let ops = start(&ring, op(tag), elements, 0);
                let expected = expected_sum(op(tag), ops[0].shape);
                for ring_op in &ops {
                    assert!(
                        ring_op.finish() == expected,
                        "{nodes} nodes, {connections} connections, tag {tag}"
                    );
                }
            }
            assert_sound(&ring);
            close(&ring);
        }
    }
}

#[test]
fn many_operations_share_the_links() {
    Way::ALL.into_iter().for_each(many_operations);
}

fn many_operations(way: Way) {
    let ring = ring(3, 2, false, way);
    let running: Vec<_> = (0..24).map(|tag| start(&ring, op(tag), 20_000 + tag as usize * 777, 0)).collect();
    for ops in &running {
        let expected = expected_sum(ops[0].op, ops[0].shape);
        for ring_op in ops {
            assert!(ring_op.finish() == expected, "tag {}", ring_op.op.tag);
        }
    }
    assert_sound(&ring);
    close(&ring);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// One operation is aborted at one node at any moment: in the middle of a frame, of a fold, of a send. The node's
    /// memory is its own at once, while its neighbours go on sending; other operations on the same links are not
    /// harmed, whether they run at the time or begin afterwards.
    #[test]
    fn an_abort_frees_the_memory_and_harms_no_other_operation(
        nodes in 2usize..4,
        connections in prop::sample::select(vec![1usize, 4]),
        abort_in in 1usize..200,
        with_checksum: bool,
        way in prop::sample::select(&Way::ALL[..]),
    ) {
        let ring = ring(nodes, connections, with_checksum, way);
        let doomed = start(&ring, op(1), 400_000, abort_in);
        let steady = start(&ring, op(2), 200_000, 0);
        let victim = &doomed[0];
        // The gate closes by itself at the chosen callback, unless the operation ends before that.
        let expected_arrivals = victim.expected_arrivals();
        victim.progress.wait_until("the abort came, or the end", |progress| {
            (victim.gate.is_closed() || progress.arrived == expected_arrivals || progress.arrived > abort_in)
                .then_some(())
        });
        victim.scribble(0xDEAD_BEEF);
        ring[0].book.retire(op(1));

        let later = start(&ring, op(3), 100_000, 0);
        for ops in [&steady, &later] {
            let expected = expected_sum(ops[0].op, ops[0].shape);
            for ring_op in ops {
                prop_assert!(ring_op.finish() == expected, "tag {}", ring_op.op.tag);
            }
        }
        prop_assert!(victim.memory().iter().all(|&value| value == 0xDEAD_BEEF), "touched after the drain");
        assert_sound(&ring);
        // Every frame of the victim that was pushed has been, or will be, released, though nobody waits for it.
        close(&ring);
        victim.progress.look(|progress| {
            assert_eq!((progress.released.len(), progress.released_again), (progress.pushed, 0));
        });
        prop_assert!(victim.memory().iter().all(|&value| value == 0xDEAD_BEEF), "touched after the drain");
    }
}
