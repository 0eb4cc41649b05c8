"""What peers compute, as in stress/src/workload.rs: pure functions of the seed."""

import numpy
from pccl import QuantizationAlgorithm, ReduceOp, Schedule

# Wrapping around is what these numbers are for.
numpy.seterr(over="ignore")
MANY_TAG = 100
OTHER_TAG = 11
# The data to the next rank, and from the previous one, in reports. The calls have the first of them.
SEND_TAG, RECV_TAG = 21, 22
# Elements of a MiB.
MIB = (1 << 20) // 8
# Elements that are worked on at once.
BLOCK = 1 << 14
# One peer of this number lends a copy, which stands until the state has changed.
COPIES = 3
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
QUANTISED = [QuantizationAlgorithm.BLOCK_AFFINE_UINT8, QuantizationAlgorithm.MIN_MAX,
             QuantizationAlgorithm.CAST_BFLOAT16,
             QuantizationAlgorithm.NONE]


def mix(z):
    """The end of SplitMix64, for an integer or an array of uint64."""
    if isinstance(z, int):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return z ^ (z >> 31)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


class Rng:
    def __init__(self, *key):
        state = 0x5EED
        for part in key:
            state = mix(((state ^ part) + GOLDEN) & MASK)
        self.state = state

    def next(self):
        self.state = (self.state + GOLDEN) & MASK
        return mix(self.state)

    def between(self, low, high):
        return low + self.next() % (high - low + 1)

    def many(self, count):
        steps = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(GOLDEN)
        bits = mix(steps + numpy.uint64(self.state))
        self.state = (self.state + count * GOLDEN) & MASK
        return bits


def floats(bits):
    fraction = 1.0 + (bits >> numpy.uint64(40)).astype(numpy.float64) / (1 << 24)
    magnitude = numpy.ldexp(fraction, (bits & numpy.uint64(15)).astype(numpy.int64) - 8)
    return numpy.where(bits & numpy.uint64(16) == 0, magnitude, -magnitude)


def random_buffer(dtype, count, rng):
    bits = rng.many(count)
    if dtype == numpy.int64:
        return bits.view(numpy.int64)
    if dtype == numpy.uint8:
        return (bits >> numpy.uint64(7)).astype(numpy.uint8)
    if dtype == numpy.float16:
        return floats(bits).astype(numpy.float32).astype(numpy.float16)
    return floats(bits).astype(dtype)


def checksum(buffers):
    """Each element is mixed with its position, and all are added; the length comes before the elements."""
    total, position = 0, 1

    def add(bits):
        nonlocal total, position
        places = numpy.arange(position, position + bits.size, dtype=numpy.uint64) * numpy.uint64(GOLDEN)
        total += int(mix(bits + places).sum(dtype=numpy.uint64))
        position += bits.size

    for buffer in buffers:
        add(numpy.array([buffer.size], numpy.uint64))
        # As much at once as a cache holds.
        for begin in range(0, buffer.size, BLOCK):
            add(buffer[begin:begin + BLOCK].view(f"uint{8 * buffer.itemsize}").astype(numpy.uint64))
    return total & MASK


def change_some(ballast, noise):
    """An eighth of the MiBs, chosen by ``noise``."""
    for number in range(ballast.size // MIB):
        draw = mix((noise ^ mix(number)) & MASK)
        if draw % 8 == 0:
            ballast[number * MIB:(number + 1) * MIB:1000].view(numpy.uint64)[:] += numpy.uint64(draw)


class Job:
    def __init__(self, step, tag, in_place, parts, collective="all_reduce"):
        """A part is (type, reduction, count, algorithm)."""
        self.tag, self.in_place, self.parts, self.collective = tag, in_place, parts, collective
        # The rank whose turn it is to be root, and the count that each has.
        self.turn = step + tag
        self.split = collective.startswith(("all_gather", "reduce_scatter", "all_to_all", "gather"))
        self.depends_on_ring = self.split or collective in ("broadcast", "reduce")
        self.is_between_two = collective in ("send", "recv")
        # Of these each peer has another result.
        self.is_same_for_all = not collective.startswith(("reduce", "all_to_all", "gather")) and not self.is_between_two
        if collective == "all_reduce":
            self.schedule = Schedule.PAIRWISE if (step // 4 + tag) % 2 == 0 else Schedule.AUTOMATIC
        elif self.is_between_two:
            self.schedule = Schedule.AUTOMATIC
        else:
            self.schedule = (Schedule.PAIRWISE, Schedule.RING, Schedule.AUTOMATIC)[(step // 4 + tag) % 3]

    def counts(self, ranks):
        """Elements of each rank, of a tensor that is divided."""
        count = self.parts[0][2]
        if not self.collective.endswith("_counts"):
            return [count] * ranks
        return [(count * ((rank + self.turn) % 3) + 1) // 2 for rank in range(ranks)]

    def sizes(self, count, rank, ranks):
        """Elements that go in, and that come out into another buffer; None in place."""
        if not self.split:
            return count, None if self.in_place else count
        counts = self.counts(ranks)
        if self.collective == "all_to_all":
            return sum(counts), sum(counts)
        if self.collective == "gather":
            return counts[rank], sum(counts) if rank == self.turn % ranks else 0
        both = counts[rank], sum(counts)
        return both if self.collective.startswith("all_gather") else both[::-1]


class Workload:
    def __init__(self, seed, elements):
        self.seed, self.elements = seed, elements

    def size(self, rng, share):
        most = max(self.elements // share, 1)
        if rng.next() % 8 == 0:
            return min(rng.between(1, min(most, 9)), most)
        return min(rng.between(most // 2 + 1, most), most)

    def concurrent_jobs(self, step):
        rng = Rng(self.seed, 1, step)
        integer_op = (ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN)[step % 4]
        even = step % 2 == 0
        plan = [(1, True, numpy.float32, ReduceOp.SUM, 1), (2, False, numpy.float64, ReduceOp.AVG, 2),
                (3, True, numpy.int64, integer_op, 4), (4, False, numpy.uint8, integer_op, 4),
                (5, True, numpy.float16, ReduceOp.AVG if even else ReduceOp.SUM, 8),
                (6, step % 4 == 0, numpy.float32, ReduceOp.SUM if even else ReduceOp.AVG, 1)]
        none = QuantizationAlgorithm.NONE
        return [Job(step, tag, in_place, [(dtype, op, self.size(rng, share),
                                           QUANTISED[step % 3] if tag == 6 else none)])
                for tag, in_place, dtype, op, share in plan]

    def many_job(self, step):
        rng = Rng(self.seed, 2, step, MANY_TAG)
        plan = [(numpy.float32, ReduceOp.AVG, 2), (numpy.int64, ReduceOp.SUM, 8), (numpy.float64, ReduceOp.MIN, 8)]
        parts = [(dtype, op, self.size(rng, share), QuantizationAlgorithm.NONE) for dtype, op, share in plan]
        parts[0] = (*parts[0][:3], QUANTISED[(step + MANY_TAG) % 4])
        return Job(step, MANY_TAG, (step + MANY_TAG) % 3 == 0, parts)


    def other_jobs(self, step):
        """The collectives beside all-reduces, of which each step has every other one."""
        rng, turn, none = Rng(self.seed, 8, step), step // 2, QuantizationAlgorithm.NONE
        op = ReduceOp.AVG if turn % 2 == 0 else ReduceOp.SUM
        weighted = (numpy.float32, numpy.float64, numpy.float32, numpy.float16, numpy.float32)[turn % 5]
        plan = [("broadcast", numpy.float32, 4), ("all_gather", numpy.float16, 16),
                ("all_gather_counts", numpy.float32, 16), ("reduce", numpy.float32, 4),
                ("reduce_scatter", numpy.float64, 16), ("reduce_scatter_counts", numpy.float32, 16),
                ("weighted_average", weighted, 4), ("all_to_all", numpy.int64, 16), ("gather", numpy.uint8, 16),
                ("barrier", numpy.uint8, 16)]
        jobs = []
        for tag, (collective, dtype, share) in enumerate(plan, OTHER_TAG):
            coding = QUANTISED[(turn + tag) % 4] if dtype is numpy.float32 else none
            part = (dtype, op, self.size(rng, share), coding)
            jobs.append(Job(step, tag, True, [] if collective == "barrier" else [part], collective))
        return [job for job in jobs if job.turn % 2 == 0]

    def pair_jobs(self, step):
        """What goes around the ring of the beginning of a step, each between two."""
        dtype = (numpy.float32, numpy.uint8, numpy.float16, numpy.float64, numpy.int64)[step % 5]
        part = (dtype, ReduceOp.SUM, self.size(Rng(self.seed, 9, step), 8), QuantizationAlgorithm.NONE)
        return [Job(step, tag, True, [part], collective)
                for tag, collective in ((SEND_TAG, "send"), (RECV_TAG, "recv"))]
