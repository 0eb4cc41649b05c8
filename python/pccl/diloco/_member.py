"""A member of a run, whose parameters are one flat vector of numpy, or fragments that somebody else gathers."""

import ctypes
from ctypes import byref
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from .._arguments import limit_ms
from .._calls import blocking, text
from .._communicator import Communicator
from .._enums import Result
from .._errors import PCCLError
from .._library import library, structs
from .._samples import Samples

if TYPE_CHECKING:
    import numpy


class Stats(NamedTuple):
    """Sums over rounds."""

    #: Rounds of the run, also those before this member came.
    rounds: int
    #: The sum of all weights of the run, such as tokens.
    weight: float
    #: Rounds that this member was in.
    rounds_here: int
    #: Of those, with a contribution of its own.
    contributed: int
    #: Of those, without: its library stood in.
    stood_in: int
    #: Begun again after a failure.
    repeated: int
    #: Bytes sent to others.
    sent_bytes: int
    #: The same without compression.
    plain_bytes: int
    #: Seconds of all exchanges.
    exchange_seconds: float
    #: Of those, seconds that the caller waited: the rest was hidden behind its inner steps.
    waited_seconds: float
    #: Members of the run.
    members: int


def settings_of(every: int, fragments: Union[int, Sequence[int]], overlap: int, alpha: Optional[float], outer: str,
                compress: str, quorum: float, grace: Union[str, float], min_world: int,
                resume: Optional[str], samples: Optional[Samples], audit: Optional[str]) -> List[Any]:
    """Names and values as C takes them."""
    lengths = [] if isinstance(fragments, int) else [int(length) for length in fragments]
    given = [("every", every), ("overlap", overlap), ("outer", outer), ("compression", compress), ("quorum", quorum),
             ("grace", grace), ("min_world", min_world),
             ("fragment_lengths", ",".join(map(str, lengths))) if lengths else ("fragments", fragments)]
    optional = [("alpha", alpha), ("resume", resume), ("audit", audit)]
    if samples is not None:
        if not isinstance(samples, Samples):
            raise TypeError(f"samples are a pccl.Samples, not a {type(samples).__name__}")
        cut = len(lengths) or max(1, int(fragments))  # type: ignore[arg-type]
        given += samples._settings(int(every) // cut + int(overlap))
    return [(name, str(value)) for name, value in given + [it for it in optional if it[1] is not None]]


class Handle:
    """The calls of C, for parameters at addresses."""

    def __init__(self, master: Union[str, Communicator], settings: List[Any], options: Any):
        if not isinstance(master, (str, Communicator)):
            raise TypeError(f"master is an address or a Communicator, not a {type(master).__name__}")
        self.comm = Communicator(master, **options) if isinstance(master, str) else master
        if options and not isinstance(master, str):
            raise TypeError(f"{', '.join(options)}: settings of the communicator that was given")
        self._handle = ctypes.c_void_p()
        self.check(library.pcclDilocoCreate(self.comm._handle, byref(self._handle)))
        try:
            for name, value in settings:
                self.check(library.pcclDilocoSet(self._handle, name.encode(), value.encode()))
        except ValueError:
            self.close()
            raise

    @staticmethod
    def check(code: int) -> None:
        if code == Result.INVALID_ARGUMENT.value:
            raise ValueError(PCCLError.of(code, "DiLoCo").message)
        PCCLError.check(code, "DiLoCo")

    def wait(self, call: str, name: str, *arguments: Any) -> None:
        """A call that waits for others; Ctrl-C ends it, and the member is out of the run then."""
        try:
            blocking(call, name, self._handle, *arguments, on_interrupt=lambda: library.pcclClose(self.comm._handle))
        except PCCLError as error:
            if error.result == Result.INVALID_ARGUMENT:
                raise ValueError(error.message) from None
            raise

    def take_samples(self, most: int) -> List[int]:
        taken, count = (ctypes.c_uint64 * most)(), ctypes.c_uint64()
        self.check(library.pcclDilocoTakeSamples(self._handle, taken, most, byref(count)))
        return list(taken[:count.value])

    def samples(self) -> Tuple[int, bool]:
        """How many are taken and in no step yet, and whether all are counted."""
        outstanding, are_over = ctypes.c_uint64(), ctypes.c_bool()
        self.check(library.pcclDilocoGetSamples(self._handle, byref(outstanding), byref(are_over)))
        return outstanding.value, are_over.value

    def counted_samples(self, number: int) -> List[int]:
        count, capacity = ctypes.c_uint64(), 0
        while True:
            samples = (ctypes.c_uint64 * capacity)()
            self.check(library.pcclDilocoGetCountedSamples(self._handle, number, samples, capacity, byref(count)))
            if count.value <= capacity:
                return list(samples[:count.value])
            capacity = count.value

    def count(self, samples: Optional[int]) -> None:
        if samples is not None:
            self.check(library.pcclDilocoCountSamples(self._handle, samples))

    def steps(self, weight: float, contribute: Callable[[int], None], land: Callable[[int], None]) -> None:
        """Counts an inner step, and has done what is to be done before the next one."""
        self.check(library.pcclDilocoCount(self._handle, ctypes.c_double(weight)))
        action, fragment = ctypes.c_int(), ctypes.c_uint64()
        refused = None
        while True:
            self.wait("step", "pcclDilocoNext", byref(action), byref(fragment))
            if action.value == structs.pcclDilocoNothing:
                break
            if action.value == structs.pcclDilocoTakeOver:
                land(fragment.value)
                continue
            try:
                contribute(fragment.value)
            except ValueError as error:  # not finite: the others go on without it, and this member with theirs
                refused = error
        if refused is not None:
            raise refused

    def contribute(self, fragment: int, address: Any, count: int) -> None:
        self.check(library.pcclDilocoContribute(self._handle, fragment, address, count))

    def land(self, fragment: int, address: Any, count: int) -> None:
        self.check(library.pcclDilocoLand(self._handle, fragment, address, count))

    def load_outer(self, address: Any, count: int) -> None:
        self.check(library.pcclDilocoLoadOuter(self._handle, address, count))

    @property
    def step_index(self) -> int:
        index = ctypes.c_uint64()
        self.check(library.pcclDilocoGetStepIndex(self._handle, byref(index)))
        return index.value

    def stats(self) -> Stats:
        stats = structs.DilocoStats()
        self.check(library.pcclDilocoGetStats(self._handle, byref(stats)))
        return Stats(*(getattr(stats, name) for name in Stats._fields))

    def reports(self) -> List[str]:
        lines = []
        while True:
            line = text("reports", "pcclDilocoTakeReport", self._handle)
            if not line:
                return lines
            lines.append(line)

    def save(self, path: Any) -> None:
        self.check(library.pcclDilocoSave(self._handle, str(path).encode()))

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            library.pcclDilocoDestroy(handle)


class Shared:
    """What all members have in common, whatever their parameters are."""

    _run: Handle
    _samples: Optional[Samples] = None

    def step(self, weight: Optional[float] = None, *, samples: Optional[int] = None) -> None:
        """An inner step has been made, which stands for ``weight``, such as its tokens (default: ``samples``, or 1).
        Waits only for the result of an own contribution that was handed in ``overlap`` steps ago.

        ``samples``: how many samples it was made on, where the run counts them.

        A contribution that is not finite raises ``ValueError``: the others go on without it, and so may the caller,
        with the outer parameters of that fragment.
        """
        if (samples is None) != (self._samples is None):
            raise ValueError("give step(samples=) how many samples it was made on" if samples is None else
                             "the run counts no samples: give the member a pccl.Samples")
        self._run.count(samples)
        self._step(float(weight if weight is not None else 1 if samples is None else samples))

    def _step(self, weight: float) -> None:
        raise NotImplementedError

    def _joined(self, samples: Optional[Samples]) -> None:
        self._samples = samples
        if samples is not None:
            samples._of_member(self)

    @property
    def step_index(self) -> int:
        """How far the run is, in inner steps of a member that misses none: ``every / fragments`` for each round, and
        the own steps since the last one. Newcomers come in where the run is."""
        return self._run.step_index

    def stats(self) -> Stats:
        """Sums over all rounds so far."""
        return self._run.stats()

    def reports(self) -> List[str]:
        """One line for each round since the last call: fragment, contributors with their weights, bytes, times, and
        for whom a library stood in."""
        return self._run.reports()

    def report(self, **figures: float) -> None:
        """Reports numbers of the training, such as ``loss=loss``, as ``Communicator.report`` does. Those of the rounds
        are reported without it: ``diloco.rounds`` and 6 more."""
        self._run.comm.report(**figures)

    def save(self, path: Any) -> None:
        """Saves the outer state in one file; ``resume=path`` goes on from it."""
        self._run.save(path)

    def close(self) -> None:
        """Leaves the run at once."""
        run = getattr(self, "_run", None)
        if run is not None:
            run.close()

    def finish(self, timeout: Optional[float] = None) -> None:
        """Waits until the last contribution is part of a round, ``timeout`` seconds at most, puts the outer parameters
        into the own ones, and leaves the run."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def __del__(self) -> None:
        self.close()


class Member(Shared):
    """A member of a run with a flat vector of parameters::

        with pccl.diloco.Member("master:48148", weights, every=100, compress="int4") as run:
            while run.step_index < steps:
                train_one_batch(weights)  # changes weights in place
                run.step(batch_tokens)

    A context manager: at its end ``weights`` hold the outer parameters, the same bits for all, and the member leaves.
    """

    def __init__(self, master: Union[str, Communicator], weights: "numpy.ndarray[Any, Any]", *, every: int = 100,
                 fragments: Union[int, Sequence[int]] = 1, overlap: int = 0, alpha: Optional[float] = None,
                 outer: str = "nesterov", compress: str = "none", quorum: float = 1.0,
                 grace: Union[str, float] = "auto", min_world: int = 2, resume: Optional[str] = None,
                 samples: Optional[Samples] = None, audit: Optional[str] = None, **options: Any):
        """Joins the run, waits until there are ``min_world`` members, and puts the outer parameters into ``weights``.

        - ``master``: its address, with ``options`` as for ``Communicator``; or a communicator that nobody else uses.
        - ``weights``: float32, contiguous, writable.
        - ``samples``: the run counts them, see ``pccl.Samples``.
        - the others: docs/diloco.md. ``fragments`` is a number, or the lengths of all. All members give the same.
        """
        import numpy

        if not isinstance(weights, numpy.ndarray) or weights.dtype != numpy.float32:
            raise TypeError("weights are a numpy array of float32")
        if not (weights.flags.c_contiguous and weights.flags.writeable):
            raise ValueError("weights are contiguous and writable")
        settings = settings_of(every, fragments, overlap, alpha, outer, compress, quorum, grace, min_world, resume,
                               samples, audit)
        self._run = Handle(master, settings, options)
        self._weights = weights
        self._address = weights.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._run.wait("join", "pcclDilocoJoin", self._address, weights.size)
        self._joined(samples)

    def _step(self, weight: float) -> None:
        # One call for all fragments: the library has the vector.
        self._run.wait("step", "pcclDilocoStep", self._address, self._weights.size, ctypes.c_double(weight))

    def finish(self, timeout: Optional[float] = None) -> None:
        self._run.wait("finish", "pcclDilocoFinish", self._address, self._weights.size, limit_ms(timeout))
