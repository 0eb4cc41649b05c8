"""A sampler whose position is part of the shared state of a run."""

import array
import ctypes
import weakref
from collections import OrderedDict
from ctypes import byref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ._arguments import integer
from ._errors import PCCLError
from ._library import library

if TYPE_CHECKING:
    from ._communicator import Communicator

_U64 = (1 << 64) - 1
#: Steps whose samples are kept for an audit.
_KEPT = 1000


class Samples:
    """Which samples a step is made on: each sample of each epoch is in exactly one step that has succeeded, whoever
    dies, joins, or makes a step again. docs/samples.md.

    In lock step, as in ``comm.run``, the position is a part of the shared state::

        samples = pccl.Samples(len(dataset), seed=7, epochs=5, batch=32)
        state = pccl.SharedState.of(weights=weights, samples=samples)

        def step():
            taken = samples.take(comm)
            gradient = gradient_of([dataset[at] for at in taken], weights)  # a sum over the samples
            count = samples.all_reduce(comm, [gradient])
            weights[:] -= rate / max(count, 1) * gradient
            samples.commit()

        comm.run(step, state=state, more=lambda: not samples.done)

    With ``pccl.diloco`` the library holds it: ``DiLoCo(..., samples=samples)``. It is then an iterator of batches, and
    the ``batch_sampler`` of a ``DataLoader``::

        loader = torch.utils.data.DataLoader(dataset, batch_sampler=samples)
        while not samples.done:
            for inputs, targets in loader:
                train_one_batch(inputs, targets)
                run.step(samples=len(inputs))
    """

    def __init__(self, length: int, seed: Optional[int] = 0, *, epochs: int = 1, batch: int = 32, members: int = 64,
                 ahead: int = 0):
        """``length`` samples, ``epochs`` times, in an order by ``seed``; ``None`` leaves them in theirs. A member takes
        up to ``batch`` of them at a time; there are never more than ``members``. All members give the same.

        ``ahead``: batches that a loader takes ahead, such as ``num_workers * prefetch_factor``; with ``pccl.diloco``.
        """
        self.length, self.epochs = integer(length, "length", 1, _U64), integer(epochs, "epochs", 1, _U64)
        self.seed = None if seed is None else integer(seed, "seed", 0, _U64)
        self.batch = integer(batch, "batch", 1, 1 << 24)
        self._members, self._ahead = integer(members, "members", 1, 1 << 16), integer(ahead, "ahead", 0, 1 << 32)
        self._handle = ctypes.c_void_p()
        c_seed = None if self.seed is None else byref(ctypes.c_uint64(self.seed))
        self._call("Samples", library.pcclSamplesCreate, self.length, c_seed, self.epochs, self.batch, self._members,
                   byref(self._handle))
        #: The position: unsigned numbers of 64 bits.
        self.words = array.array("Q", bytes(8 * library.pcclSamplesWordsFor(self._members)))
        self._call("Samples", library.pcclSamplesGetWords, self._handle, self._c_words(), len(self.words))
        self._taken = self._used = 0
        self._counted: "OrderedDict[int, array.array[int]]" = OrderedDict()
        #: The member of a DiLoCo run that it belongs to.
        self._member: Any = None
        self._is_over = False

    def take(self, comm: "Communicator") -> List[int]:
        """In lock step: the samples of this member for the step that begins, as numbers below ``length``. At most
        ``batch``, and none when others have the last ones."""
        self._alone("take")
        taken, count = (ctypes.c_uint64 * self.batch)(), ctypes.c_uint64()
        self._call("Samples.take", library.pcclSamplesTake, self._handle, self._c_words(), len(self.words),
                   comm.world().rank, taken, self.batch, byref(count))
        self._taken = count.value
        return list(taken[:count.value])

    def all_reduce(self, comm: "Communicator", tensors: Sequence[Any], *, used: Optional[int] = None,
                   tag: Optional[int] = None, timeout: Optional[float] = None) -> int:
        """In lock step: replaces ``tensors`` by their sums over all members, as one operation with the samples that
        they are made of. Returns of how many samples the sums are; it may be 0.

        Give sums over the own samples, not means, and zeros where ``take`` gave none. ``used``: how many of the samples
        are in them, the first ones; default all. It raises what ``all_reduce_many`` raises. One that failed counts
        nothing.
        """
        self._alone("all_reduce")
        counts, count = array.array("Q", bytes(16 * self._members)), ctypes.c_uint64()
        c_counts = (ctypes.c_uint64 * len(counts)).from_buffer(counts)
        used = self._taken if used is None else integer(used, "used", 0, _U64)
        self._call("Samples.all_reduce", library.pcclSamplesGetCounts, self._handle, self._c_words(), len(self.words),
                   used, c_counts, len(counts), byref(count))
        comm.all_reduce_many([counts, *tensors], op="sum", tag=tag, timeout=timeout)
        self._call("Samples.all_reduce", library.pcclSamplesSettle, self._handle, self._c_words(), len(self.words),
                   c_counts, len(counts), byref(count))
        self._used = count.value
        return count.value

    def commit(self) -> None:
        """In lock step: the step has succeeded, and its samples are counted. Call it where the step changes the other
        parts of the state."""
        self._alone("commit")
        step = self.steps
        counted, count = (ctypes.c_uint64 * self._used)(), ctypes.c_uint64()
        self._call("Samples.commit", library.pcclSamplesCommit, self._handle, self._c_words(), len(self.words), counted,
                   self._used, byref(count))
        self._taken = self._used = 0
        if self.steps != step:
            self._counted[step] = array.array("Q", counted[:count.value])
            while len(self._counted) > _KEPT:
                self._counted.popitem(last=False)

    @property
    def steps(self) -> int:
        """In lock step: how many steps of the run have counted."""
        return self._progress()[0]

    @property
    def done(self) -> bool:
        """Whether each sample of each epoch is counted."""
        if self._member is not None:
            self._is_over = self._is_over or self._run().samples()[1]
            return self._is_over
        _, counted, total = self._progress()
        return counted == total

    def counted(self, step: int) -> List[int]:
        """The samples that a step has counted, of all members, for an audit: ``step`` is a number from 0, in lock step
        of ``steps``, with ``pccl.diloco`` that of a round. ``KeyError`` for one that this member was not in, or that is
        a thousand ago."""
        if self._member is None:
            return list(self._counted[step])
        try:
            return list(self._run().counted_samples(step))
        except ValueError:
            raise KeyError(step) from None

    def __iter__(self) -> Iterator[List[int]]:
        """With ``pccl.diloco``: batches, until all samples are counted. While others still have the last ones, it takes
        part without samples. It ends early if it has to wait for steps on batches that a loader holds: begin again
        until ``done``."""
        if self._member is None:
            raise TypeError("batches come from a run: pccl.diloco.DiLoCo(..., samples=samples); in lock step, take(comm)")
        while True:
            taken = self._run().take_samples(self.batch)
            if taken:
                yield taken
                continue
            outstanding, are_over = self._run().samples()
            if outstanding or are_over:
                return
            self._member().step(0, samples=0)

    def state_dict(self) -> Dict[str, Any]:
        """What is shared."""
        return {"words": self.words}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from there."""
        if state["words"] is not self.words:
            self.words[:] = array.array("Q", list(state["words"]))

    def _settings(self, steps: int) -> List[Tuple[str, Any]]:
        """As DiLoCo's settings, for a member that makes as many steps between two rounds."""
        held = (2 * steps + self._ahead) * self.batch
        settings: List[Tuple[str, Any]] = [("samples", self.length), ("samples_epochs", self.epochs),
                                           ("samples_held", held), ("samples_members", self._members)]
        return settings + ([] if self.seed is None else [("samples_seed", self.seed)])

    def _of_member(self, member: Any) -> None:
        self._member = weakref.ref(member)

    def _run(self) -> Any:
        member = self._member()
        if member is None:
            raise ValueError("the member of the run is gone")
        return member._run

    def _alone(self, call: str) -> None:
        if self._member is not None:
            raise TypeError(f"Samples.{call} is for steps in lock step; this one belongs to a run of pccl.diloco")

    def _progress(self) -> Tuple[int, int, int]:
        numbers = [ctypes.c_uint64() for _ in range(3)]
        self._call("Samples", library.pcclSamplesGetProgress, self._handle, self._c_words(), len(self.words),
                   *[byref(number) for number in numbers])
        steps, counted, total = (number.value for number in numbers)
        return steps, counted, total

    def _c_words(self) -> Any:
        return (ctypes.c_uint64 * len(self.words)).from_buffer(self.words)

    @staticmethod
    def _call(name: str, function: Any, *arguments: Any) -> None:
        PCCLError.check(function(*arguments), name)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), ctypes.c_void_p()
        if handle:
            library.pcclSamplesDestroy(handle)
