"""A peer of the stress harness that uses the Python package: trains as stress/src/peer does, follows the remedy of
every failure, and reports each event in one line. The arguments are those of any peer of the harness."""

import ctypes
import os
import signal
import sys
import threading
import time

import numpy
import pccl
from pccl import (Attribute, Communicator, DataType, PCCLError, QuantizationAlgorithm, QuantizationOptions,
                  ReduceDescriptor,
                  ReduceOp, ReduceOpDescriptor, ReduceOperandDescriptor, Remedy, Schedule, SharedState, TensorInfo)

# Wrapping around is what these numbers are for.
numpy.seterr(over="ignore")
ORPHANED = 3
MANY_TAG = 100
OTHER_TAG = 11
# What goes to the next rank, and comes from the previous one, in reports. The calls have the first of them.
SEND_TAG, RECV_TAG = 19, 20
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
QUANTISED = [QuantizationAlgorithm.BLOCK_AFFINE_UINT8, QuantizationAlgorithm.MIN_MAX,
             QuantizationAlgorithm.CAST_BFLOAT16,
             QuantizationAlgorithm.NONE]


class Leave(Exception):
    """It was asked to."""


class Out(Exception):
    """The connection to the run is over; it connects again."""


class Alone(Exception):
    """All others of the group are gone."""


# ---- What is computed: as in stress/src/workload.rs -----------------------------------------------------------------


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
    for buffer in buffers:
        bits = buffer.view(f"uint{8 * buffer.itemsize}").astype(numpy.uint64)
        bits = numpy.concatenate((numpy.array([buffer.size], numpy.uint64), bits))
        places = numpy.arange(position, position + bits.size, dtype=numpy.uint64) * numpy.uint64(GOLDEN)
        total += int(mix(bits + places).sum(dtype=numpy.uint64))
        position += bits.size
    return total & MASK


class Job:
    def __init__(self, step, tag, in_place, parts, collective="all_reduce"):
        """A part is (type, reduction, count, algorithm)."""
        self.tag, self.in_place, self.parts, self.collective = tag, in_place, parts, collective
        # Whose turn it is to be root, and to have which count.
        self.turn = step + tag
        self.split = collective.startswith(("all_gather", "reduce_scatter"))
        self.depends_on_ring = self.split or collective in ("broadcast", "reduce")
        self.is_between_two = collective in ("send", "recv")
        # Of these each peer has another result.
        self.is_same_for_all = not collective.startswith("reduce") and not self.is_between_two
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
                ("weighted_average", weighted, 4), ("barrier", numpy.uint8, 16)]
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


class Task:
    """A collective with its buffers."""

    def __init__(self, workload, me, step, job, ring):
        self.workload, self.me, self.at_step, self.job, self.result_hash = workload, me, step, job, None
        self.given_up = False
        # The place that it was prepared for.
        self.rank, self.ranks = ring.index(me), len(ring)
        high, low = int.from_bytes(me[:8], "big"), int.from_bytes(me[8:], "big")
        self.weight = Rng(workload.seed, 7, high, low, step, job.tag).between(1, 4096) / 16
        self.data, self.results = [], []
        for index, part in enumerate(job.parts):
            sent, received = job.sizes(part[2], self.rank, self.ranks)
            rng = Rng(workload.seed, 3, high, low, step, job.tag, index)
            self.data.append(random_buffer(part[0], sent, rng))
            if received is not None:
                # The own input is no right result of two or more peers, so one that was never written is noticed.
                self.results.append(numpy.resize(self.data[-1] if sent else numpy.zeros(1, part[0]), received))
        self.out_of_place = bool(self.results)
        self.results = self.results or self.data
        self.input_hash, self.empty_hash = checksum(self.data), checksum(self.results)

    def fitting(self, ring):
        """The same, or another one if it depends on the ring and that is another one."""
        if not self.job.depends_on_ring or (self.rank, self.ranks) == (ring.index(self.me), len(ring)):
            return self
        return Task(self.workload, self.me, self.at_step, self.job, ring)

    def is_intact(self):
        """Whether what is sent, or worked on in place, is as before; and of a reduce-scatter the result, too. What was to
        be received is undefined."""
        if self.job.collective == "recv":
            return True
        keeps_results = self.job.collective.startswith("reduce_scatter")
        return self.has_kept_input() and (not keeps_results or checksum(self.results) == self.empty_hash)

    def is_done(self):
        return self.result_hash is not None or self.given_up

    def has_kept_input(self):
        return checksum(self.data) == self.input_hash

    def launch(self, comm):
        """Begins the collective."""
        job, common = self.job, {"tag": self.job.tag}
        comm.schedule = job.schedule
        if job.collective == "barrier":
            return comm.barrier_async(**common)
        data, result, op, root = self.data[0], self.results[0], job.parts[0][1], job.turn % self.ranks
        common["quantization_options"] = self.quantisation(0)
        if job.collective == "all_reduce":
            return comm.all_reduce_async(data, result, op=op, **common)
        if job.collective == "send":
            return comm.send_async(data, (self.rank + 1) % self.ranks, tag=SEND_TAG)
        if job.collective == "recv":
            return comm.recv_async(data, (self.rank - 1) % self.ranks, tag=SEND_TAG)
        if job.collective == "broadcast":
            return comm.broadcast_async(data, root, **common)
        if job.collective == "reduce":
            return comm.reduce_async(data, root, op=op, **common)
        if job.collective == "weighted_average":
            return comm.weighted_average_async(data, self.weight, **common)
        if job.collective.endswith("_counts"):
            common["counts"] = job.counts(self.ranks)
        if job.collective.startswith("all_gather"):
            return comm.all_gather_async(data, result, **common)
        return comm.reduce_scatter_async(data, result, op=op, **common)

    def quantisation(self, part):
        return QuantizationOptions(DataType.UINT8, self.job.parts[part][3])


# ---- Reports --------------------------------------------------------------------------------------------------------


def report(text):
    line = f"@stress {time.monotonic_ns() // 1000} {text}\n"
    try:
        os.write(1, line.encode())
    except OSError:
        os._exit(ORPHANED)


def ids(ring):
    return ",".join(one.hex() for one in ring) or "-"


def one_line(error):
    return error.message.replace("\n", " ")


class Peer:
    def __init__(self, arguments):
        value = lambda name, default="0": arguments.get(name, default)
        number = lambda name: int(value(name))
        self.workload = Workload(number("--seed"), number("--elements"))
        self.step_ms, self.groups, self.optimize_every = (number(f"--{n}")
                                                          for n in ("step-ms", "groups", "optimize-every"))
        index = number("--index")
        self.pace = Rng(self.workload.seed, 6, index)
        shown = arguments.get("--shown")
        self.comm = Communicator(value("--master"), number("--group"), index % 3,
                                 bind_address=value("--bind", "127.0.0.1"),
                                 first_ports=(number("--data-port"), number("--state-port")), advertised_host=shown,
                                 # Bits are flipped on the way.
                                 frame_checksums=True if shown else None,
                                 # The neighbour may be stopped: reaching it takes longer than the master needs to drop
                                 # it.
                                 dial_timeout=number("--peer-timeout-ms") / 1000 + 2)
        initial = Rng(self.workload.seed, 4)
        self.weights = random_buffer(numpy.float32, self.workload.elements, initial)
        self.momentum = random_buffer(numpy.float64, self.workload.elements // 4 + 1, initial)
        self.state = SharedState([TensorInfo.from_numpy(self.weights, "weights"),
                                  TensorInfo.from_numpy(self.momentum, "momentum")])
        self.asked_to_leave, self.loss_reported, self.pending, self.me = False, False, None, bytes(16)

    def listen(self):
        for line in sys.stdin:
            if line == "leave\n":
                self.asked_to_leave = True
        os._exit(ORPHANED)

    def run(self):
        threading.Thread(target=self.listen, daemon=True).start()
        while True:
            try:
                self.join()
                self.train()
            except Out:
                continue
            except Leave:
                self.comm.close()
                return report("left")

    def lost(self, error):
        """For a failure that is neither to be retried nor to be waited out."""
        if error.remedy is not Remedy.RECONNECT:
            raise error
        if not self.loss_reported:
            report(f"lost {error.cause} {one_line(error)}")
        self.loss_reported = True
        return Out()

    def call(self, function, *arguments):
        try:
            return function(*arguments)
        except PCCLError as error:
            raise self.lost(error) from None

    # ---- Membership

    def join(self):
        while True:
            if self.asked_to_leave:
                raise Leave
            self.loss_reported = False
            try:
                self.comm.connect(n_attempts=1)
                break
            except PCCLError as error:
                self.lost(error)
                time.sleep(0.1)
        self.me = self.comm.ring()[self.comm.world().rank]
        self.pending = None
        report(f"joined {self.me.hex()}")

    def admit(self):
        """Lets in those who wait."""
        pending = self.call(self.comm.are_peers_pending) if self.pending is None else self.pending
        self.pending = None
        if pending:
            self.call(self.comm.update_topology)

    def gather(self):
        """Waits until there is another peer in the group."""
        while self.comm.get_attribute(Attribute.LOCAL_WORLD_SIZE) < 2:
            if self.asked_to_leave:
                raise Leave
            if self.groups > 1:
                self.admit()
                time.sleep(0.01)
                continue
            self.pending = None
            try:
                self.comm.wait_for_world(2, timeout=0.5)
            except PCCLError as error:
                if error.remedy is not Remedy.WAIT_FOR_PEERS:
                    raise self.lost(error) from None

    def train(self):
        self.gather()
        # Whoever has just been let in goes on with the sync, as those do who let it in.
        let_in = True
        while True:
            if self.asked_to_leave:
                raise Leave
            if not let_in:
                self.admit()
            self.sync()
            self.optimize()
            time.sleep(self.pace.between(self.step_ms * 500, self.step_ms * 1000) / 1e6)
            try:
                self.step()
                let_in = False
            except Alone:
                self.gather()
                let_in = True

    # ---- A step

    def state_hash(self):
        return checksum([self.weights, self.momentum])

    def failed(self, call, intact, error):
        word = error.cause
        # The library's word for a drop is the reason for it, which is reported with the loss.
        if error.remedy is Remedy.RECONNECT and word not in ("MasterLost", "OutcomeUnknown", "NotConnected",
                                                             "ConnectFailed"):
            word = "Kicked"
        report(f"failed {call} {self.state.revision} {int(intact)} {word} {ids(error.culprits)} {one_line(error)}")

    def sync(self):
        while True:
            before = self.state_hash()
            try:
                info = self.comm.sync_shared_state(self.state)
                return report(f"synced {self.state.revision} {self.state_hash():016x} {info.rx_bytes}")
            except PCCLError as error:
                self.failed("sync", self.state_hash() == before, error)
                if error.remedy is Remedy.WAIT_FOR_PEERS:
                    self.gather()
                elif not error.retryable:
                    raise self.lost(error) from None

    def optimize(self):
        """A committed sync has told all peers of the run the same revision, so all decide alike."""
        every, before = self.optimize_every, self.comm.ring()
        if self.groups > 1 or every == 0 or self.state.revision % every != 1 % every or len(before) < 2:
            return
        began = time.monotonic()
        self.call(self.comm.optimize_topology)
        report(f"optimized {int(self.comm.ring() != before)} {int(1000 * (time.monotonic() - began))}")

    def step(self):
        workload, step = self.workload, self.state.revision
        ring, jobs = self.comm.ring(), workload.concurrent_jobs(step) + workload.other_jobs(step)
        # All members know the same ring now, and so who is whose neighbour.
        jobs += workload.pair_jobs(step) if len(ring) > 1 else []
        tasks = [Task(workload, self.me, step, job, ring) for job in jobs]
        ask = step % 2 == 0
        while not all(task.is_done() for task in tasks):
            ring = self.comm.ring()
            tasks = [task if task.is_done() else task.fitting(ring) for task in tasks]
            self.round([task for task in tasks if not task.is_done()], ask)
            ask = False
        tasks.append(Task(workload, self.me, step, workload.many_job(step), ring))
        self.reduce_many(tasks[-1])
        self.update(tasks)

    def round(self, tasks, ask):
        """Runs the tasks at the same time; all are reported, and the end of the connection counts before loneliness."""
        before, launched, ends = self.comm.ring(), [], []

        def conclude(task, error, info):
            try:
                self.conclude(task, before, error, info)
            except (Alone, Out) as end:
                ends.append(end)

        for task in tasks:
            try:
                launched.append((task, task.launch(self.comm)))
            except PCCLError as error:
                conclude(task, error, None)
        if ask:
            try:
                self.pending = self.comm.are_peers_pending()
            except PCCLError as error:
                ends.append(self.lost(error))
        for task, handle in launched:
            ok, _, info = handle.wait()
            conclude(task, None if ok else handle.error, info)
        if ends:
            raise next((end for end in ends if isinstance(end, Out)), ends[0])

    def reduce_many(self, task):
        """One operation with many tensors; the library tries again by itself."""
        while not task.is_done():
            before = self.comm.ring()
            descriptors = [
                ReduceOpDescriptor.from_numpy(send, recv, ReduceDescriptor(
                    send.size, op, task.job.tag + part, ReduceOperandDescriptor(DataType.from_numpy_dtype(send.dtype)),
                    task.quantisation(part)))
                for part, (send, recv, (_, op, _, _)) in enumerate(zip(task.data, task.results, task.job.parts))]
            try:
                self.comm.schedule = task.job.schedule
                info = self.comm.all_reduce_multiple_with_retry(descriptors, max_in_flight=8)
                self.conclude(task, before, None, info)
            except PCCLError as error:
                self.conclude(task, before, error, None)

    def conclude(self, task, before, error, info):
        """Reports the result of a call; raises what else there is to do."""
        if error is None:
            if task.out_of_place and not task.has_kept_input():
                raise RuntimeError("a success changed the send buffer")
            task.result_hash = checksum(task.results)
            way = "pairwise" if info.schedule is Schedule.PAIRWISE else "other"
            return self.completed("completed", task, info.local_world_size, way, task.result_hash, before)
        # With an unknown outcome the buffer holds the result; the supervisor is told which.
        unknown = error.cause == "OutcomeUnknown"
        self.failed(task.job.tag, unknown or task.is_intact(), error)
        if unknown:
            self.completed("unresolved", task, len(before), "-", checksum(task.results), before)
        if error.remedy is Remedy.WAIT_FOR_PEERS:
            raise Alone
        if not error.retryable:
            raise self.lost(error)
        # Who it is for may be gone; both fail alike, and neither makes it again.
        task.given_up = task.job.is_between_two

    def completed(self, word, task, world, way, hash, before):
        after = self.comm.ring()
        after = "=" if after == before else ids(after)
        # The package tells no rank.
        report(f"{word} {self.state.revision} {task.job.tag} {world} - {way} {hash:016x} {ids(before)} {after}")

    def update(self, tasks):
        """Element-wise and deterministic: equal results keep equal states equal."""
        noise = 0
        for task in tasks:
            noise ^= task.result_hash if task.job.is_same_for_all else 0
        slopes = numpy.resize(tasks[-1].results[0], self.weights.size)
        self.weights[:] = self.weights * numpy.float32(0.9) + slopes
        turned = [((noise << turn | noise >> (64 - turn)) & MASK) >> 32 for turn in range(64)]
        self.momentum[:] = self.momentum * 0.5 + numpy.resize(numpy.array(turned, numpy.float64), self.momentum.size)
        self.state.push_revision()


def main():
    # Also when this process is stopped, it does not outlive its supervisor.
    if ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() == 1:
        sys.exit(ORPHANED)
    names = iter(sys.argv[1:])
    try:
        Peer(dict(zip(names, names))).run()
    except Exception as error:
        report("fatal " + repr(error).replace("\n", " "))
        raise


if __name__ == "__main__":
    main()
