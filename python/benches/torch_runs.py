"""One run of ``compare_torch.py``: three replicas, one fault, and, where somebody is gone, one that takes its place."""

import contextlib
import os
import signal
import statistics
import threading
import time

from torch_places import REPLICAS, lighthouse, master
from torch_replica import Replica

MEMBERS, VICTIM, SPARE = 3, 1, 3
STOPPED_S = 20.0
#: By the name of a column: the way of ``ways.py``, the limit of operations under torchft in seconds, and of its
#: lighthouse the time for stragglers and that without a heartbeat in milliseconds.
COLUMNS = {
    "ddp": ("ddp", 10, None),
    "torchft": ("torchft", 10, (10_000, 1000)),
    "torchft-gloo": ("torchft-gloo", 10, (10_000, 1000)),
    "torchft-none": ("torchft-none", 10, (10_000, 1000)),
    # The default of torchft.
    "torchft-gloo-default": ("torchft-gloo", 60, (60_000, 5000)),
    "fixed-pccl": ("fixed-pccl", 60, None),
    "fixed-gloo": ("fixed-gloo", 60, None),
}


class Run:
    """The replicas of one run and what they have reported."""

    def __init__(self, place, column, mib, patience_s, times=None):
        """``times`` stands for those of the lighthouse that the column has."""
        self.place, self.patience_s, self.is_fixed = place, patience_s, column.startswith("fixed")
        self._changed, self._stack = threading.Condition(), contextlib.ExitStack()
        self.way, limit_s, own = COLUMNS[column]
        self._arguments = ["--master", master(place, self._stack), "--steps", str(10**9), "--mib", str(mib),
                           "--gloo-timeout", str(limit_s), "--late", str(MEMBERS), "--troubles"]
        if own is not None:
            self._arguments += ["--lighthouse", lighthouse(place, self._stack, *(times or own))]
        if self.is_fixed:
            self._arguments += ["--store", f"{place.host(0)}:{place.port(0)}"]
        self.replicas = []

    def __enter__(self):
        # The spare has imported torch when it is needed.
        for index in range(MEMBERS if self.is_fixed else REPLICAS):
            arguments = [*self._arguments, "--host", self.place.host(index)] + ["--wait"] * (index == SPARE)
            replica = Replica(self.place, index, [self.way, "--name", f"replica-{index}", *arguments], self._seen)
            self._stack.callback(replica.end)
            self.replicas.append(replica)
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _seen(self):
        with self._changed:
            self._changed.notify_all()

    def wait(self, what, condition):
        """Waits until ``condition()`` gives something, and returns that."""
        with self._changed:
            deadline = time.monotonic() + self.patience_s
            while not (found := condition()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(what)
                # A process that ends without a word is seen as well.
                self._changed.wait(min(left, 0.5))
        return found

    def steps(self, index, since=0.0):
        """What a replica has reported since then: ``step``, ``members``, ``at``, ``attempts``."""
        return [line for line in list(self.replicas[index].lines) if "step" in line and line["at"] >= since]

    def troubles(self, index, since):
        """What has failed at a replica since then, in its own words."""
        return [line["trouble"] for line in list(self.replicas[index].lines)
                if "trouble" in line and line["at"] >= since]

    def is_over(self, index):
        """Whether a replica has ended."""
        return not self.replicas[index].process.is_alive()

    def signal(self, number):
        """Sends a signal to all that take part."""
        for replica in self.replicas[:MEMBERS]:
            os.kill(replica.process.pid, number)

    def names(self, text):
        """The replicas that a text names: by name, by the number of the process, or by an address of their own."""
        found = set()
        for index, replica in enumerate(self.replicas[:MEMBERS]):
            marks = [f"replica-{index}", f":{replica.process.pid}"]
            if self.place.can_cut:
                marks.append(self.place.host(index))
            if any(mark in text for mark in marks):
                found.add(index)
        return found


def measure(place, column, mib, fault, before, after, patience_s):
    """One run: what a step costs before and after a fault, what the fault costs, and until a replacement counts."""
    result = {}
    try:
        with Run(place, column, mib, patience_s) as run:
            _until_fault(run, result, before)
            if fault != "none":
                _fault(run, result, fault, after)
    except TimeoutError as error:
        result["error"] = f"not within {patience_s:g} s: {error}"
    if fault == "cut":
        place.heal()
    return result


def _until_fault(run, result, count):
    def together():
        lines = run.steps(0)
        return len(lines) > count and all(line["members"] == MEMBERS for line in lines[-count - 1:]) and lines

    lines = run.wait(f"{count} steps of {MEMBERS}", together)
    result["before_ms"] = round(1000 * statistics.median(_intervals(lines[-count - 1:])), 2)


def _fault(run, result, fault, count):
    victim = run.replicas[VICTIM]
    since = time.time()
    survivors = [0, 2]
    if fault == "kill":
        victim.process.kill()
    elif fault == "stop":
        os.kill(victim.process.pid, signal.SIGSTOP)
        threading.Timer(STOPPED_S, victim.go_on).start()
    elif fault == "leave":
        victim.say("leave")
    else:
        run.place.cut(0, VICTIM)
        survivors = [0, 1, 2]

    def goes_on():
        if run.is_fixed and all(run.is_over(index) for index in survivors):
            return [None]
        for index in survivors:
            lines = run.steps(index, since)
            if sum(line["members"] < MEMBERS for line in lines) > count:
                return [index]
            # Nobody was dropped: a pause, or nothing at all.
            calm = time.time() - since > (2 * STOPPED_S if fault == "stop" else STOPPED_S)
            if fault in ("stop", "cut") and calm and len(lines) > count and lines[-1]["at"] > time.time() - 5:
                return [index]
        return None

    try:
        witness = run.wait(f"{count} steps after the fault", goes_on)[0]
    finally:
        _culprits(run, result, fault, survivors, since)
    if witness is None:
        result["ended_s"] = round(max(run.replicas[index].lines[-1]["at"] for index in survivors) - since, 2)
        return
    _afterwards(run, result, witness, since)
    dropped = any(line["members"] < MEMBERS for line in run.steps(witness, since))
    result["dropped"] = dropped
    if dropped and not run.is_fixed:
        _replacement(run, result, fault, witness, since)


def _afterwards(run, result, witness, since):
    lines = run.steps(witness)
    start = max(index for index, line in enumerate(lines) if line["at"] < since or index == 0)
    later = lines[start:]
    gaps = _intervals(later)
    # Where somebody was dropped the first step without it; otherwise the one that took longest.
    without = [index for index, line in enumerate(later[1:]) if line["members"] < MEMBERS]
    first = without[0] if without else max(range(len(gaps)), key=gaps.__getitem__)
    result["first_s"] = round(later[first + 1]["at"] - since, 3)
    result["after_ms"] = round(1000 * statistics.median(gaps[first + 1:] or gaps), 2)
    result["lost"] = later[-1]["attempts"] - later[0]["attempts"] - (later[-1]["step"] - later[0]["step"])


def _culprits(run, result, fault, survivors, since):
    said = {index: run.troubles(index, since) for index in survivors}
    result["said"] = {index: texts[0][:200] for index, texts in said.items() if texts}
    # A fault between two operations may fail nothing.
    if fault in ("kill", "stop") and any(said.values()):
        result["named"] = all(any(run.names(text) == {VICTIM} for text in texts) for texts in said.values())


def _replacement(run, result, fault, witness, since):
    if fault in ("kill", "leave"):
        run.replicas[SPARE].say("")
        asked = time.time()
    elif fault == "stop":
        # The one that was stopped comes back by itself.
        asked = since + STOPPED_S
    else:
        run.place.heal()
        asked = time.time()
    line = run.wait("a replacement", lambda: next(
        (line for line in run.steps(witness, asked) if line["members"] >= MEMBERS), None))
    result["replaced_s"] = round(line["at"] - asked, 3)


def _intervals(lines):
    return [after["at"] - before["at"] for before, after in zip(lines, lines[1:])]


def interleaved(place, columns, mib, slice_s, turns, patience_s):
    """The times of steps of several columns whose replicas are all there at once, of which only those of one column run
    at a time, for ``slice_s`` seconds in turn: so all see the same machine within seconds. By column, for each turn the
    median in milliseconds."""
    with contextlib.ExitStack() as stack:
        # A stopped process is not to be dropped.
        runs = {column: stack.enter_context(Run(place, column, mib, patience_s, (60_000, 60_000)))
                for column in columns}
        for run in runs.values():
            run.wait(f"steps of {MEMBERS}", lambda run=run: len(run.steps(0)) > 20 and all(
                line["members"] == MEMBERS for line in run.steps(0)[-20:]))
            run.signal(signal.SIGSTOP)
        medians = {column: [] for column in columns}
        for _ in range(turns):
            for column, run in runs.items():
                since = time.time()
                run.signal(signal.SIGCONT)
                time.sleep(slice_s)
                run.signal(signal.SIGSTOP)
                # The first step was stopped in its middle.
                gaps = _intervals([line for line in run.steps(0, since) if line["members"] == MEMBERS][1:])
                medians[column].append(round(1000 * statistics.median(gaps), 2) if gaps else None)
        return medians
