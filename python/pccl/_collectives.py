"""Collectives beside all-reduce."""

import math
from ctypes import byref, c_bool, c_size_t
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union

from ._arguments import U32, U64, integer, limit_ms
from ._buffers import Buffer, buffers_of
from ._calls import GRACE_S, blocking
from ._descriptors import (
    Clip,
    QuantizationOptions,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Segment,
    describe,
    pair,
    pairs_of,
)
from ._devices import on_device
from ._enums import ReduceOp
from ._errors import InvalidBuffer, PCCLError
from ._library import library, structs
from ._reduces import AsyncReduceHandle, finish

_I64 = (1 << 63) - 1


class Collectives:
    """The calls that move tensors, beside all-reduce. All peers of the group make the same call with the same
    arguments.

    Each has a twin that begins it and returns a handle: ``broadcast_async``. The arguments that all of them have:

    - ``tag``: names the call among those in flight, as in ``all_reduce``.
    - ``quantization_options``: floats travel in fewer bits.
    - ``timeout``: as everywhere. Handles have it in ``result()``.

    A root is a rank: an index of ``ring()``. If root or sizes do not fit the members that the group has when the call
    begins, all peers raise ``Aborted`` with the cause ``WorldChanged``: look at ``world()``, and call again.
    """

    if TYPE_CHECKING:
        _handle: Any

        def ring(self) -> List[bytes]: ...

        def _tag(self, tag: Optional[int]) -> int: ...

        def _launched(self, handle: AsyncReduceHandle) -> AsyncReduceHandle: ...

    def broadcast(self, data: Any, root: int = 0, *, tag: Optional[int] = None,
                  quantization_options: Optional[QuantizationOptions] = None,
                  timeout: Optional[float] = None) -> ReduceInfo:
        """Replaces ``data`` by what it is at ``root``."""
        limit_ms(timeout)
        return self._rooted("broadcast", data, root, None, tag, quantization_options).result(timeout)

    def broadcast_async(self, data: Any, root: int = 0, *, tag: Optional[int] = None,
                        quantization_options: Optional[QuantizationOptions] = None) -> AsyncReduceHandle:
        """Begins a ``broadcast``."""
        return self._rooted("broadcast", data, root, None, tag, quantization_options)

    def reduce(self, data: Any, root: int = 0, *, op: Union[ReduceOp, str] = ReduceOp.SUM, tag: Optional[int] = None,
               quantization_options: Optional[QuantizationOptions] = None,
               timeout: Optional[float] = None) -> ReduceInfo:
        """Reduces ``data`` over all peers. At ``root`` it becomes the result, at the others it stays as it is."""
        limit_ms(timeout)
        return self._rooted("reduce", data, root, op, tag, quantization_options).result(timeout)

    def reduce_async(self, data: Any, root: int = 0, *, op: Union[ReduceOp, str] = ReduceOp.SUM,
                     tag: Optional[int] = None,
                     quantization_options: Optional[QuantizationOptions] = None) -> AsyncReduceHandle:
        """Begins a ``reduce``."""
        return self._rooted("reduce", data, root, op, tag, quantization_options)

    def all_gather(self, send: Any, recv: Any, *, counts: Optional[Sequence[int]] = None, tag: Optional[int] = None,
                   quantization_options: Optional[QuantizationOptions] = None,
                   timeout: Optional[float] = None) -> ReduceInfo:
        """Puts what all peers send into ``recv``, in the order of the ranks: as many elements of each, or as many as
        ``counts`` says, by rank."""
        limit_ms(timeout)
        return self._parts("all_gather", send, recv, None, counts, tag, quantization_options).result(timeout)

    def all_gather_async(self, send: Any, recv: Any, *, counts: Optional[Sequence[int]] = None,
                         tag: Optional[int] = None,
                         quantization_options: Optional[QuantizationOptions] = None) -> AsyncReduceHandle:
        """Begins an ``all_gather``."""
        return self._parts("all_gather", send, recv, None, counts, tag, quantization_options)

    def reduce_scatter(self, send: Any, recv: Any, *, op: Union[ReduceOp, str] = ReduceOp.SUM,
                       counts: Optional[Sequence[int]] = None, tag: Optional[int] = None,
                       quantization_options: Optional[QuantizationOptions] = None,
                       timeout: Optional[float] = None) -> ReduceInfo:
        """Reduces ``send`` over all peers. Each gets its part of the result in ``recv``, in the order of the ranks:
        equal parts, or as many elements for each rank as ``counts`` says."""
        limit_ms(timeout)
        return self._parts("reduce_scatter", send, recv, op, counts, tag, quantization_options).result(timeout)

    def reduce_scatter_async(self, send: Any, recv: Any, *, op: Union[ReduceOp, str] = ReduceOp.SUM,
                             counts: Optional[Sequence[int]] = None, tag: Optional[int] = None,
                             quantization_options: Optional[QuantizationOptions] = None) -> AsyncReduceHandle:
        """Begins a ``reduce_scatter``."""
        return self._parts("reduce_scatter", send, recv, op, counts, tag, quantization_options)

    def weighted_average(self, data: Any, weight: float, *, tag: Optional[int] = None,
                         quantization_options: Optional[QuantizationOptions] = None,
                         timeout: Optional[float] = None) -> ReduceInfo:
        """Replaces ``data``, floats, by the average over all peers, each with its own weight, such as the number of
        its samples: a finite number, at least 0."""
        limit_ms(timeout)
        return self._weighted(data, weight, tag, quantization_options).result(timeout)

    def weighted_average_async(self, data: Any, weight: float, *, tag: Optional[int] = None,
                               quantization_options: Optional[QuantizationOptions] = None) -> AsyncReduceHandle:
        """Begins a ``weighted_average``."""
        return self._weighted(data, weight, tag, quantization_options)

    def all_reduce_in_segments(self, send: Any, recv: Any = None, *, segment_bytes: int,
                               op: Union[ReduceOp, str] = ReduceOp.SUM, tag: Optional[int] = None,
                               operand_descriptor: Optional[ReduceOperandDescriptor] = None,
                               quantization_options: Optional[QuantizationOptions] = None,
                               timeout: Optional[float] = None) -> List[Segment]:
        """An ``all_reduce`` of a large tensor, segment by segment. What is done stays done when a peer dies; what was
        open is done again among those who are left, within the call. So each segment has contributors of its own, by
        whose number an average is divided: their number is in what this returns.

        A segment has ``segment_bytes``; all peers give the same number. Two to four seconds of transfer are a good
        size. It has no twin.

        After an error, ``done`` of the error has the segments that hold their results; in place, everything else is
        as before. The same call again would reduce them twice.
        """
        limit, step = (None if timeout is None else limit_ms(timeout)), integer(segment_bytes, "segment_bytes", 1, _I64)
        (given, taken), place = pair(send, recv, operand_descriptor)
        described = describe(given, op, 0, operand_descriptor, quantization_options)
        name = self._tag(tag)
        descriptor, done = described.to_c(), c_size_t()
        descriptor.tag = name
        elements = max(1, step // described.operand_descriptor.datatype.itemsize)
        segments = (structs.Segment * max(1, -(-given.count // elements)))()

        def told() -> List[Segment]:
            known = segments[:min(done.value, len(segments))]
            return [Segment(it.first, it.count, it.contributors, it.rank) for it in known]

        try:
            # A call that Ctrl-C leaves behind uses the buffers until it is over.
            blocking("Communicator.all_reduce_in_segments", "pcclAllReduceInSegments", given.pointer, taken.pointer,
                     byref(descriptor), self._handle, step, None, segments, len(segments), byref(done),
                     on_interrupt=lambda: self._end(name), limit_ms=limit, place=place,
                     keep=(self, given, taken, descriptor, segments, done))
        except PCCLError as error:
            error.done = told()
            finish((given, taken), bool(error.done))
            raise
        finish((given, taken), True)
        return told()

    def clip_to_median(self, data: Any, factor: float, *, tag: Optional[int] = None,
                       operand_descriptor: Optional[ReduceOperandDescriptor] = None,
                       timeout: Optional[float] = None) -> Clip:
        """Before an average: bounds the Euclidean norm of ``data``, floats, by ``factor`` times the median of the norms
        of all peers. What is beyond that is multiplied by the one number that takes it there, what is not keeps every
        byte. ``data`` may be a list of buffers, which have one norm together.

        All peers give the same ``factor``, a finite number above 0, such as 3: otherwise all raise ``InvalidArgument``.
        All raise ``NotFinite`` if an element of anybody is NaN or an infinity. After an error ``data`` is as before. It
        has no twin: what is contributed depends on its answer. It is against peers that are faulty, not against those
        that lie about their norm.
        """
        limit, number = (None if timeout is None else limit_ms(timeout)), float(factor)
        if not math.isfinite(number) or number <= 0:
            raise ValueError(f"a factor of {factor}")
        sources = data if isinstance(data, (list, tuple)) else [data]
        if not sources:
            raise ValueError("there has to be at least one buffer")
        pairs, place = pairs_of(sources, [None] * len(sources), operand_descriptor)
        buffers = [given for given, _ in pairs]
        name = self._tag(tag)
        described = [describe(one, ReduceOp.SUM, name, operand_descriptor, None) for one in buffers]
        parts = [ReduceOpDescriptor(one.pointer, one.pointer, it).to_c() for one, it in zip(buffers, described)]
        array, clip = (structs.ReduceOpDescriptor * len(parts))(*parts), structs.Clip()
        norms = (structs.PeerNorm * len(self.ring()))()
        try:
            # A call that Ctrl-C leaves behind uses the buffers until it is over.
            blocking("Communicator.clip_to_median", "pcclClipToMedian", array, len(parts), number, self._handle,
                     byref(clip), norms, len(norms), on_interrupt=lambda: self._end(name), limit_ms=limit,
                     place=place, keep=(self, buffers, array, clip, norms))
        except PCCLError:
            finish(buffers, False)
            raise
        finish(buffers, clip.scale < 1)
        return Clip.from_c(clip, norms)

    def _end(self, tag: int) -> None:
        """Gives a collective up that another thread is in, or, if that takes too long, the connection."""
        c_op, done = structs.AsyncReduceOp(self._handle, tag), c_bool()
        if library.pcclAbortAsyncReduce(byref(c_op)) == 0:
            code = library.pcclWaitAsyncReduce(byref(c_op), int(GRACE_S * 1000), byref(done))
            if code != 0 or done.value:
                return
        library.pcclClose(self._handle)

    def barrier(self, *, tag: Optional[int] = None, timeout: Optional[float] = None) -> ReduceInfo:
        """Returns when all peers of the group have called it."""
        limit_ms(timeout)
        return self.barrier_async(tag=tag).result(timeout)

    def barrier_async(self, *, tag: Optional[int] = None) -> AsyncReduceHandle:
        """Begins a ``barrier``."""
        number, c_op = self._tag(tag), structs.AsyncReduceOp()
        code = library.pcclBarrierAsync(number, self._handle, byref(c_op))
        return self._begun("barrier", code, c_op, None)

    def send(self, data: Any, dst: int, *, tag: int = 0, timeout: Optional[float] = None) -> ReduceInfo:
        """Gives ``data`` to the peer with rank ``dst``, which calls ``recv`` with the same tag. Nobody else takes part
        or is waited for. The tag counts among what goes from this peer to that one."""
        limit_ms(timeout)
        return self.send_async(data, dst, tag=tag).result(timeout)

    def send_async(self, data: Any, dst: int, *, tag: int = 0) -> AsyncReduceHandle:
        """Begins a ``send``."""
        return self._between("send", library.pcclSendAsync, (data, False), dst, tag)

    def recv(self, data: Any, src: int, *, tag: int = 0, timeout: Optional[float] = None) -> ReduceInfo:
        """Puts what the peer with rank ``src`` gives by ``send`` into ``data``. After a failure the content of ``data``
        is undefined."""
        limit_ms(timeout)
        return self.recv_async(data, src, tag=tag).result(timeout)

    def recv_async(self, data: Any, src: int, *, tag: int = 0) -> AsyncReduceHandle:
        """Begins a ``recv``."""
        return self._between("recv", library.pcclRecvAsync, (data, True), src, tag)

    def _between(self, call: str, begin: Any, wanted: Tuple[Any, bool], other: int, tag: int) -> AsyncReduceHandle:
        # The counter of tags is for what all peers call.
        rank, number = integer(other, "rank", 0, U32), integer(tag, "tag", 0, U64)
        (buffer,), place = buffers_of(wanted)
        descriptor, c_op = describe(buffer, ReduceOp.SUM, number, None, None).to_c(), structs.AsyncReduceOp()
        with on_device(place):
            code = begin(buffer.pointer, rank, byref(descriptor), self._handle, byref(c_op))
        return self._begun(call, code, c_op, buffer)

    def _rooted(self, call: str, data: Any, root: int, op: Optional[Union[ReduceOp, str]], tag: Optional[int],
                quantization: Optional[QuantizationOptions]) -> AsyncReduceHandle:
        (buffer,), place = buffers_of((data, True))
        rank = integer(root, "root", 0, U32)
        descriptor, c_op = self._described(buffer, op, tag, quantization), structs.AsyncReduceOp()
        begin = library.pcclBroadcastAsync if op is None else library.pcclReduceAsync
        with on_device(place):
            code = begin(buffer.pointer, rank, byref(descriptor), self._handle, byref(c_op))
        return self._begun(call, code, c_op, buffer)

    def _weighted(self, data: Any, weight: float, tag: Optional[int],
                  quantization: Optional[QuantizationOptions]) -> AsyncReduceHandle:
        (buffer,), place = buffers_of((data, True))
        number = float(weight)
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"a weight of {weight}")
        descriptor, c_op = self._described(buffer, None, tag, quantization), structs.AsyncReduceOp()
        with on_device(place):
            code = library.pcclWeightedAverageAsync(buffer.pointer, number, byref(descriptor), self._handle,
                                                    byref(c_op))
        return self._begun("weighted_average", code, c_op, buffer)

    def _parts(self, call: str, send: Any, recv: Any, op: Optional[Union[ReduceOp, str]],
               counts: Optional[Sequence[int]], tag: Optional[int],
               quantization: Optional[QuantizationOptions]) -> AsyncReduceHandle:
        (given, taken), place = buffers_of((send, False), (recv, True))
        if given.dtype is not taken.dtype:
            raise InvalidBuffer(f"{given.dtype.name} to send, {taken.dtype.name} to receive")
        by_rank = None if counts is None else [integer(count, "a count", 0, _I64) for count in counts]
        descriptor, c_op = self._described(given, op, tag, quantization), structs.AsyncReduceOp()
        end = (byref(descriptor), self._handle, byref(c_op))
        front: Tuple[Any, ...] = (given.pointer, taken.pointer, taken.count)
        if by_rank is None:
            begin = library.pcclAllGatherAsync if op is None else library.pcclReduceScatterAsync
        else:
            begin = library.pcclAllGatherVAsync if op is None else library.pcclReduceScatterVAsync
            front = (*front, (c_size_t * len(by_rank))(*by_rank), len(by_rank))
        with on_device(place):
            code = begin(*front, *end)
        return self._begun(call, code, c_op, (given, taken))

    def _described(self, buffer: Buffer, op: Optional[Union[ReduceOp, str]], tag: Optional[int],
                   quantization: Optional[QuantizationOptions]) -> Any:
        reduction = ReduceOp.SUM if op is None else op
        descriptor = describe(buffer, reduction, 0, None, quantization).to_c()
        # Taken when the rest is right.
        descriptor.tag = self._tag(tag)
        return descriptor

    def _begun(self, call: str, code: int, c_op: Any, keep: Any) -> AsyncReduceHandle:
        name = f"Communicator.{call}"
        PCCLError.check(code, name)
        return self._launched(AsyncReduceHandle(self, name, c_op, keep))  # type: ignore[arg-type]
