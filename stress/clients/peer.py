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
from pccl import (Attribute, Communicator, DataType, PCCLError, QuantizationOptions, ReduceDescriptor,
                  ReduceOpDescriptor, ReduceOperandDescriptor, Remedy, Schedule, SharedState, TensorInfo)
from workload import COPIES, MASK, MIB, SEND_TAG, Rng, Workload, change_some, checksum, random_buffer

ORPHANED = 3


class Leave(Exception):
    """It was asked to."""


class Out(Exception):
    """The connection to the run is over; it connects again."""


class Alone(Exception):
    """All others of the group are gone."""


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
        """Whether what is sent, or worked on in place, is as before; and of a reduce-scatter the result, too. What was
        to be received is undefined."""
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
        if job.collective in ("all_to_all", "gather"):
            del common["quantization_options"]
            more = [root] if job.collective == "gather" else []
            return getattr(comm, f"{job.collective}_async")(data, result, *more, **common)
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
        shown, memory = arguments.get("--shown"), arguments.get("--state-memory-mib")
        self.comm = Communicator(value("--master"), number("--group"), index % 3,
                                 bind_address=value("--bind", "127.0.0.1"),
                                 first_ports=(number("--data-port"), number("--state-port")), advertised_host=shown,
                                 # Bits are flipped on the way.
                                 frame_checksums=True if shown else None,
                                 state_memory=int(memory) << 20 if memory else None,
                                 # The neighbour may be stopped: reaching it takes longer than the master needs to drop
                                 # it.
                                 dial_timeout=number("--peer-timeout-ms") / 1000 + 2)
        initial = Rng(self.workload.seed, 4)
        self.weights = random_buffer(numpy.float32, self.workload.elements, initial)
        self.momentum = random_buffer(numpy.float64, self.workload.elements // 4 + 1, initial)
        # Large, if it is there: each step changes some MiBs of it.
        self.ballast = random_buffer(numpy.int64, number("--state-mib") * MIB, initial)
        tensors = {"weights": self.weights, "momentum": self.momentum, "ballast": self.ballast}
        self.state = SharedState([TensorInfo.from_numpy(tensor, name) for name, tensor in tensors.items()
                                  if tensor.size > 0])
        self.lends_copies = index % COPIES == 0
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
                ahead = self.comm.connect(n_attempts=1, state=self.state)
                break
            except PCCLError as error:
                self.lost(error)
                time.sleep(0.1)
        self.me = self.comm.ring()[self.comm.world().rank]
        self.pending = None
        report(f"joined {self.me.hex()}")
        whole = "-" if ahead.revision is None else f"{ahead.revision} {self.state_hash():016x}"
        report(f"ahead {whole} {ahead.rx_bytes}")

    def admit(self):
        """Lets in those who wait; whether there was anybody."""
        pending = self.call(self.comm.are_peers_pending) if self.pending is None else self.pending
        self.pending = None
        if pending:
            self.call(self.comm.update_topology)
        return pending

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
        while True:
            if self.asked_to_leave:
                raise Leave
            # Nobody waits for one that has just come with the state: the others have computed meanwhile.
            if not self.sync(False):
                self.call(self.compute)
            # Before the state changes, so that a newcomer holds it. Each sync is followed by this question.
            while self.admit():
                self.sync(True)
            self.optimize()
            try:
                self.step()
            except Alone:
                self.gather()

    def compute(self):
        """The time that training spends on other things. Newcomers fetch the state meanwhile."""
        pause = self.pace.between(self.step_ms * 500, self.step_ms * 1000) / 1e6
        if self.lends_copies:
            self.comm.lend_snapshot(self.state, unchanged=True)
            time.sleep(pause)
            return
        with self.comm.lend(self.state, unchanged=True):
            time.sleep(pause)

    # ---- A step

    def state_hash(self):
        return checksum([self.weights, self.momentum] + ([self.ballast] if self.ballast.size else []))

    def failed(self, call, intact, error):
        word = error.cause
        # The library's word for a drop is the reason for it, which is reported with the loss.
        if error.remedy is Remedy.RECONNECT and word not in ("MasterLost", "OutcomeUnknown", "NotConnected",
                                                             "ConnectFailed"):
            word = "Kicked"
        report(f"failed {call} {self.state.revision} {int(intact)} {word} {ids(error.culprits)} {one_line(error)}")

    def sync(self, again):
        """Syncs until that succeeds; ``again``: nothing has changed since the last one. Says whether this peer has just
        come with the state."""
        while True:
            before = self.state_hash()
            try:
                info = self.comm.sync_shared_state(self.state, unchanged=again)
                report(f"synced {self.state.revision} {self.state_hash():016x} {info.rx_bytes}")
                return info.came_ahead
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
        # Its receiver may be gone; both fail alike, and neither makes it again.
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
        change_some(self.ballast, noise ^ self.state.revision)
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
