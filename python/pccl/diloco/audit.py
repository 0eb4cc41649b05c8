"""Computes all rounds of a run again, from what its members wrote with ``audit=FILE``: docs/diloco.md.

    python -m pccl.diloco.audit FILE…

Ends with 0 if every member held the bits that follow from the contributions. It shares no code with the library: the
codecs, the error memories and the outer step are written here once more, in numpy.
"""

import sys
from collections import defaultdict
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy

from ._codecs import mean_of, piece_of, said_of

F32 = numpy.float32
Array = Any
#: The ring and the weights of a try: all its members have the same.
Key = Tuple[Tuple[str, ...], Tuple[float, ...]]


class Finding(Exception):
    """A round that is not what follows from the contributions, or that cannot be computed again."""


class Record(NamedTuple):
    words: List[str]
    values: Array


class Process:
    """One file: a process, with the errors that it keeps."""

    def __init__(self, path: str):
        self.path = path
        with open(path, "rb") as file:
            head, _, rest = file.read().partition(b"\n\n")
        lines = head.decode(errors="replace").splitlines()
        if not lines or lines[0] != "pccl-diloco-audit 1":
            raise Finding(f"{path} is no audit file of this version")
        self.settings = dict(line.split(" ", 1) for line in lines[1:])
        self.records = list(records_of(rest))
        elements = sum(self.lengths())
        self.source_errors, self.owner_errors = (numpy.zeros(elements, F32) for _ in range(2))

    def lengths(self) -> List[int]:
        return [int(length) for length in self.settings["fragments"].split(",")]


def records_of(data: bytes) -> Iterator[Record]:
    """All whole ones: a process may have been killed while it wrote the last."""
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        words = data[at:end].decode(errors="replace").split(" ")
        at = end + 1 + 4 * int(words[-1])
        if at <= len(data):
            yield Record(words, numpy.frombuffer(data, "<f4", int(words[-1]), end + 1))


class Run:
    """The outer state, as it follows from the contributions."""

    def __init__(self, processes: Sequence[Process]):
        self.processes = processes
        settings = processes[0].settings
        for process in processes:
            if process.settings != settings:
                raise Finding(f"{process.path} has other settings than {processes[0].path}: not of one run")
        self.compression, self.outer = settings["compression"], settings["outer"].split(" ")
        #: For each round and try, what each rank contributed; and how the tries ended.
        self.tries: Dict[int, Dict[Key, Dict[int, Tuple[Process, Array]]]] = defaultdict(lambda: defaultdict(dict))
        self.made: Dict[int, Dict[Key, Process]] = defaultdict(dict)
        self.ranges: Dict[int, slice] = {}
        self.held: Dict[int, List[Tuple[Process, slice, Array]]] = defaultdict(list)
        for process in processes:
            self._index(process)
        if not self.held:
            raise Finding("no file has an outer state to begin with")
        self.rounds = self.first = min(self.held)
        elements = sum(processes[0].lengths())
        wholes = (values for _, at, values in self.held[self.first] if at.stop - at.start == elements)
        begin = next(wholes, None)
        if begin is None:
            raise Finding("no file has the whole outer state to begin with")
        self.parameters, self.momentum = (part.copy() for part in begin.reshape(2, -1))

    def _index(self, process: Process) -> None:
        last = None
        for words, values in process.records:
            number = int(words[1])
            at = slice(int(words[2]), int(words[3]))
            if words[0] == "try":
                last = number, (tuple(words[5].split(",")), tuple(map(float, words[6].split(","))))
                self.tries[number][last[1]][int(words[4])] = process, values
                self.ranges[number] = at
                continue
            self.held[number].append((process, at, values))
            if words[0] == "made":
                if last is None or last[0] != number - 1:
                    raise Finding(f"{process.path} has made round {number - 1} without a try")
                self.made[number - 1][last[1]] = process

    def check_held(self) -> None:
        """What members held after this many rounds."""
        for process, at, values in self.held.pop(self.rounds, []):
            for name, own, theirs in zip(("parameter", "momentum"), (self.parameters, self.momentum),
                                         values.reshape(2, -1)):
                differ = numpy.flatnonzero(own[at].view("u4") != theirs.view("u4"))
                if differ.size:
                    first = differ[0]
                    raise Finding(f"after round {self.rounds - 1}: {name} {at.start + first} is {theirs[first]!r} in "
                                  f"{process.path} and {own[at][first]!r} computed again, and {differ.size - 1} more")

    def advance(self) -> bool:
        """One more round; False after the last."""
        number = self.rounds
        if not self.made[number]:
            if any(rounds > number for rounds in self.held):
                raise Finding(f"round {number} was made by members that have left no file")
            return False
        if len(self.made[number]) > 1:
            raise Finding(f"round {number} was made in two ways, by "
                          + " and ".join(process.path for process in self.made[number].values()))
        (ring, weights), = self.made[number]
        parts = self.tries[number].pop((ring, weights))
        missing = [peer for rank, peer in enumerate(ring) if rank not in parts]
        if missing:
            raise Finding(f"round {number} was made with {', '.join(missing)}, of which there is no file")
        self.tries.pop(number)
        at = self.ranges.pop(number)
        if sum(weights) > 0:
            mean = self.mean(at, weights, [parts[rank] for rank in range(len(ring))])
            if numpy.isfinite(mean).all():
                self.step(at, mean)
        self.rounds += 1
        return True

    def mean(self, at: slice, weights: Sequence[float], parts: Sequence[Tuple[Process, Array]]) -> Array:
        elements, ranks, piece = at.stop - at.start, len(parts), piece_of(self.compression)
        pieces, keeps_errors = -(-elements // piece), self.compression != "none"
        cuts = [min(pieces * rank // ranks * piece, elements) for rank in range(ranks + 1)]
        total, sums = 0.0, numpy.zeros(elements)
        for weight in weights:
            total += weight
        for rank, (weight, (process, values)) in enumerate(zip(weights, parts)):
            if weight <= 0:
                continue
            own = slice(cuts[rank], cuts[rank + 1])
            rest = values.astype(F32)
            if keeps_errors:
                rest += process.source_errors[at]
                foreign = F32(total / weight) * process.owner_errors[at]
                foreign[own] = 0
                rest[:own.start] += foreign[:own.start]
                rest[own.stop:] += foreign[own.stop:]
            said = numpy.concatenate([said_of(self.compression, rest[begin:end])
                                      for begin, end in zip(cuts, cuts[1:])])
            sums += weight * said.astype(float)
            if keeps_errors:
                process.source_errors[at] = lost(rest, said)
        mean, means = (sums / total).astype(F32), mean_of(self.compression, sum(weight > 0 for weight in weights))
        for rank, (weight, (process, _)) in enumerate(zip(weights, parts)):
            own, whole = slice(cuts[rank], cuts[rank + 1]), slice(at.start + cuts[rank], at.start + cuts[rank + 1])
            value = mean[own] + process.owner_errors[whole]
            mean[own] = said_of(means, value)
            if keeps_errors:
                if weight > 0:
                    process.owner_errors[at] = 0
                process.owner_errors[whole] = lost(value, mean[own])
        return mean

    def step(self, at: slice, mean: Array) -> None:
        if self.outer[0] == "average":
            self.parameters[at] -= mean
        elif self.outer[0] == "nesterov":
            rate, momentum = map(F32, self.outer[1:])
            self.momentum[at] = momentum * self.momentum[at] + mean
            self.parameters[at] -= rate * (mean + momentum * self.momentum[at])
        else:
            raise Finding(f"an outer step of the program's own, {' '.join(self.outer)}, is not known here")


def lost(value: Array, said: Array) -> Array:
    rest = value - said
    return numpy.where(numpy.isfinite(rest), rest, F32(0))


def check(paths: Sequence[str]) -> Run:
    """All rounds of the files; raises :class:`Finding`."""
    try:
        run = Run([Process(path) for path in paths])
    except (IndexError, KeyError, ValueError) as error:
        raise Finding(f"a file is damaged: {error!r}") from None
    run.check_held()
    while run.advance():
        run.check_held()
    return run


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print((__doc__ or "").strip())
        raise SystemExit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    try:
        run = check(sys.argv[1:])
    except (Finding, OSError) as finding:
        raise SystemExit(f"audit: {finding}") from None
    print(f"rounds {run.first} to {run.rounds - 1} of {len(run.processes)} processes: computed again, the same bits")


if __name__ == "__main__":
    main()
