"""Collectives that only move: gather, scatter, all-to-all."""

from ctypes import byref, c_size_t
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

from ._arguments import U32, integer, limit_ms
from ._buffers import buffers_of
from ._calls import blocking
from ._descriptors import ReduceInfo, describe
from ._devices import on_device
from ._enums import ReduceOp
from ._errors import InvalidBuffer
from ._library import library, structs
from ._reduces import AsyncReduceHandle

_I64 = (1 << 63) - 1


class Moves:
    """The calls that fold nothing: each part of a buffer goes to one peer. Nothing is quantised."""

    if TYPE_CHECKING:
        _handle: Any

        def _tag(self, tag: Optional[int]) -> int: ...

        def _end(self, tag: int) -> None: ...

        def _begun(self, call: str, code: int, c_op: Any, keep: Any) -> AsyncReduceHandle: ...

    def gather(self, send: Any, recv: Any = None, root: int = 0, *, counts: Optional[Sequence[int]] = None,
               tag: Optional[int] = None, timeout: Optional[float] = None) -> ReduceInfo:
        """Puts what all peers send into ``recv`` of ``root``, in the order of the ranks: as many elements of each, or
        as many as ``counts`` says, by rank. The others need no ``recv``."""
        limit_ms(timeout)
        return self.gather_async(send, recv, root, counts=counts, tag=tag).result(timeout)

    def gather_async(self, send: Any, recv: Any = None, root: int = 0, *, counts: Optional[Sequence[int]] = None,
                     tag: Optional[int] = None) -> AsyncReduceHandle:
        """Begins a ``gather``."""
        plain, by_counts = library.pcclGatherAsync, library.pcclGatherVAsync
        return self._of_root("gather", (plain, by_counts), (send, False), (recv, True), root, counts, tag)

    def scatter(self, send: Any, recv: Any, root: int = 0, *, counts: Optional[Sequence[int]] = None,
                tag: Optional[int] = None, timeout: Optional[float] = None) -> ReduceInfo:
        """Puts a part of what ``root`` sends into ``recv`` of each peer, in the order of the ranks: equal parts, or as
        many elements for each rank as ``counts`` says. The others give ``None`` for ``send``."""
        limit_ms(timeout)
        return self.scatter_async(send, recv, root, counts=counts, tag=tag).result(timeout)

    def scatter_async(self, send: Any, recv: Any, root: int = 0, *, counts: Optional[Sequence[int]] = None,
                      tag: Optional[int] = None) -> AsyncReduceHandle:
        """Begins a ``scatter``."""
        plain, by_counts = library.pcclScatterAsync, library.pcclScatterVAsync
        return self._of_root("scatter", (plain, by_counts), (recv, True), (send, False), root, counts, tag)

    def all_to_all(self, send: Any, recv: Any, *, counts: Optional[Sequence[Sequence[int]]] = None,
                   tag: Optional[int] = None, timeout: Optional[float] = None) -> ReduceInfo:
        """Gives each peer a part of ``send``, and puts what all of them give this one into ``recv``, both in the order
        of the ranks: equal parts, or as many elements from each rank to each as ``counts`` says. Its rows are what the
        ranks send, and all peers give the same: ``exchange_counts`` returns them."""
        limit_ms(timeout)
        return self.all_to_all_async(send, recv, counts=counts, tag=tag).result(timeout)

    def all_to_all_async(self, send: Any, recv: Any, *, counts: Optional[Sequence[Sequence[int]]] = None,
                         tag: Optional[int] = None) -> AsyncReduceHandle:
        """Begins an ``all_to_all``."""
        (given, taken), place = buffers_of((send, False), (recv, True))
        if given.dtype is not taken.dtype:
            raise InvalidBuffer(f"{given.dtype.name} to send, {taken.dtype.name} to receive")
        front: Tuple[Any, ...] = (given.pointer, taken.pointer)
        if counts is None:
            if given.count != taken.count:
                raise InvalidBuffer(f"{given.count} elements to send, {taken.count} to receive")
            begin = library.pcclAllToAllAsync
        else:
            ranks = len(counts)
            if any(len(row) != ranks for row in counts):
                raise ValueError(f"counts are not {ranks} rows of {ranks}")
            flat = _numbers([count for row in counts for count in row])
            begin, front = library.pcclAllToAllVAsync, (*front, taken.count, flat, ranks)
        descriptor, c_op = describe(given, ReduceOp.SUM, self._tag(tag), None, None).to_c(), structs.AsyncReduceOp()
        with on_device(place):
            code = begin(*front, byref(descriptor), self._handle, byref(c_op))
        return self._begun("all_to_all", code, c_op, (given, taken))

    def exchange_counts(self, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: Optional[int] = None,
                        timeout: Optional[float] = None) -> List[List[int]]:
        """For peers that know their own numbers only, before an ``all_to_all``: this one sends each rank that many
        elements, and gets that many of each. Returns the ``counts`` for the call. All peers raise ``InvalidArgument``
        if a rank expects more or less than another one sends it; the text names both."""
        limit = None if timeout is None else limit_ms(timeout)
        ranks = len(send_counts)
        if len(recv_counts) != ranks:
            raise ValueError(f"{ranks} counts to send, {len(recv_counts)} to receive")
        given, taken, found = _numbers(send_counts), _numbers(recv_counts), (c_size_t * max(1, ranks * ranks))()
        name = self._tag(tag)
        blocking("Communicator.exchange_counts", "pcclExchangeCounts", given, taken, ranks, found, name, self._handle,
                 on_interrupt=lambda: self._end(name), limit_ms=limit, keep=(self, given, taken, found))
        return [list(found[rank * ranks:(rank + 1) * ranks]) for rank in range(ranks)]

    def _of_root(self, call: str, begins: Tuple[Any, Any], own: Tuple[Any, bool], whole: Tuple[Any, bool], root: int,
                 counts: Optional[Sequence[int]], tag: Optional[int]) -> AsyncReduceHandle:
        """A call in which each has a part, and the root, which alone needs it, the whole."""
        wanted = [own] if whole[0] is None else [own, whole]
        (part, *rest), place = buffers_of(*wanted)
        rank = integer(root, "root", 0, U32)
        all_of_it = rest[0] if rest else None
        if all_of_it is not None and all_of_it.dtype is not part.dtype:
            raise InvalidBuffer(f"{part.dtype.name} of each, {all_of_it.dtype.name} at the root")
        pointer, count = (None, 0) if all_of_it is None else (all_of_it.pointer, all_of_it.count)
        front: Tuple[Any, ...]
        if call == "gather":
            front = (part.pointer, pointer, count, rank)
        else:
            front = (pointer, count, part.pointer, rank)
        begin = begins[0]
        if counts is not None:
            begin, front = begins[1], (*front, _numbers(counts), len(counts))
        descriptor, c_op = describe(part, ReduceOp.SUM, self._tag(tag), None, None).to_c(), structs.AsyncReduceOp()
        with on_device(place):
            code = begin(*front, byref(descriptor), self._handle, byref(c_op))
        return self._begun(call, code, c_op, (part, all_of_it))


def _numbers(counts: Sequence[int]) -> Any:
    numbers = [integer(count, "a count", 0, _I64) for count in counts]
    return (c_size_t * max(1, len(numbers)))(*numbers)
