"""What is reduced, and what came of calls."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, List, Optional, Sequence, Tuple, Union

from ._arguments import U64, integer
from ._buffers import Buffer, buffers_of
from ._devices import Place
from ._enums import DataType, DistributionHint, QuantizationAlgorithm, ReduceOp, Schedule
from ._errors import InvalidBuffer
from ._library import structs


@dataclass(frozen=True)
class ReduceInfo:
    """What a reduce reports."""

    #: Peers that took part.
    local_world_size: int
    #: Bytes that this peer sent and received.
    tx_bytes: int
    rx_bytes: int
    #: How the data travelled; ``AUTOMATIC`` if it did not.
    schedule: Schedule = Schedule.AUTOMATIC

    @classmethod
    def from_c(cls, info: Any) -> "ReduceInfo":
        """From the structure of C."""
        return cls(info.local_world_size, info.tx_bytes, info.rx_bytes, Schedule(info.schedule))

    @property
    def world_size(self) -> int:
        """Peers that took part."""
        return self.local_world_size


@dataclass(frozen=True)
class Segment:
    """A part of a tensor that was reduced as one."""

    #: Its first element in the tensor.
    first: int
    #: How many elements it has.
    count: int
    #: How many peers have contributed; an average is divided by that.
    contributors: int
    #: Own rank among them.
    rank: int

    @property
    def elements(self) -> range:
        """Its elements."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class PeerNorm:
    """What one peer was about to contribute."""

    #: The peer, as in ``Communicator.ring()``.
    peer: bytes
    #: Its Euclidean norm, as it says itself.
    norm: float
    #: What its elements are multiplied by: less than 1 if it is clipped.
    scale: float


@dataclass(frozen=True)
class Clip:
    """What ``clip_to_median`` has found."""

    #: Euclidean norm of what this peer is to contribute, before the clip.
    norm: float
    #: What its elements were multiplied by: less than 1 if it was clipped; at 1 no byte was touched.
    scale: float
    #: Of the norms of all peers; of an even number of them the lesser of the two in the middle.
    median: float
    #: All peers, by rank.
    peers: List[PeerNorm]

    @property
    def outliers(self) -> List[PeerNorm]:
        """Those that were clipped."""
        return [one for one in self.peers if one.scale < 1]

    @classmethod
    def from_c(cls, clip: Any, norms: Any) -> "Clip":
        """From the structures of C."""
        known = norms[:min(clip.peers, len(norms))]
        return cls(clip.norm, clip.scale, clip.median, [PeerNorm(bytes(it.peer), it.norm, it.scale) for it in known])


@dataclass(frozen=True)
class SharedStateSyncInfo:
    """What a sync reports: 0 bytes received prove that this peer had the state before."""

    tx_bytes: int
    rx_bytes: int
    #: This peer has come with the state that its group lent (``Communicator.connect`` with ``state``). The others have
    #: computed in the meantime, so it had better not compute first. True in its first sync only.
    came_ahead: bool = False


@dataclass(frozen=True)
class Ahead:
    """What a newcomer had fetched when it was let in."""

    #: The revision that it holds, all of it and verified.
    revision: Optional[int]
    #: Bytes that it has fetched.
    rx_bytes: int

    @classmethod
    def from_c(cls, ahead: Any) -> "Ahead":
        """From the structure of C."""
        return cls(ahead.revision if ahead.has_revision else None, ahead.rx_bytes)


@dataclass(frozen=True)
class SyncProgress:
    """How far a sync is that fetches what differs."""

    #: Bytes that have arrived, are verified and in their places.
    done_bytes: int
    #: Bytes that differ, as far as that is known: it grows while digests are compared.
    total_bytes: int
    #: Over the last seconds.
    bytes_per_s: int
    #: Peers that give at the moment.
    sources: int


@dataclass(frozen=True)
class TensorDiff:
    """A tensor that is not the same on all peers."""

    #: Its name.
    name: str
    #: The first element that is not the same everywhere; ``None`` for all but the first 64 tensors.
    first_element: Optional[int]
    #: All that differs lies in ``range(begin, end)``.
    begin: int
    end: int
    #: Different contents that there are.
    contents: int
    #: Peers whose content is not the most frequent one, as ``Communicator.ring`` has them, and whether this is one.
    peers_apart: List[bytes]
    is_apart: bool


@dataclass(frozen=True)
class StateDiff:
    """Where the peers of a group differ. It is true if they do."""

    tensors: List[TensorDiff]
    #: All of it in words, with the first values that differ.
    text: str

    def __bool__(self) -> bool:
        return bool(self.tensors)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class World:
    """The run as it was when the last call that agrees with others was answered."""

    #: Peers of the run, and of the own group.
    global_size: int
    group_size: int
    #: Groups that have peers, and the size of the largest.
    groups: int
    largest_group: int
    #: Below this size of the run reduces and syncs raise ``TooFewPeers``.
    min_world_size: int
    #: Own place in the ring of the group.
    rank: int


@dataclass(frozen=True)
class Optimized:
    """What ``optimize_topology`` came to; the same on all peers of a group."""

    #: Peers of the group.
    group_size: int
    #: The ring is another one than before.
    changed: bool
    #: No ring is better, by what was measured.
    proven: bool
    #: How large reduces go whose callers leave it open.
    schedule: Schedule
    #: The slowest edge of the ring, as two identities of ``Communicator.ring()``, and its rate; ``None`` if it is not
    #: known.
    slowest_edge: Optional[Tuple[bytes, bytes]]
    slowest_mbit_s: Optional[float]
    #: No ring has a faster slowest edge than this; ``None`` if no ring was planned.
    bound_mbit_s: Optional[float]
    #: How many per cent faster than around the ring reduces are predicted to be by pairwise exchange.
    pairwise_gain_pct: Optional[int]
    #: Edges that could not be measured. No ring uses them.
    unmeasured_edges: int
    #: Why no ring was planned, or who stands in the way of one.
    note: str

    @classmethod
    def from_c(cls, info: Any) -> "Optimized":
        """From the structure of C."""
        known = bool(info.has_slowest)
        return cls(
            info.group_size, bool(info.changed), bool(info.proven), Schedule(info.schedule),
            (bytes(info.slowest_from), bytes(info.slowest_to)) if known else None,
            info.slowest_mbit_s if known else None, info.bound_mbit_s or None,
            info.pairwise_gain_pct if info.has_pairwise_gain else None, info.unmeasured_edges,
            info.note.decode(errors="replace"))


@dataclass(frozen=True)
class ReduceOperandDescriptor:
    """The type of the elements, where it is not that of the buffer: ``uint16`` of numpy that holds bfloat16."""

    datatype: DataType
    #: Changes nothing.
    distribution_hint: DistributionHint = DistributionHint.NONE

    def __post_init__(self) -> None:
        object.__setattr__(self, "datatype", DataType.of(self.datatype))
        object.__setattr__(self, "distribution_hint", DistributionHint.of(self.distribution_hint))

    def to_c(self) -> Any:
        """As the structure of C."""
        return structs.ReduceOperandDescriptor(self.datatype.value, self.distribution_hint.value)


@dataclass(frozen=True)
class QuantizationOptions:
    """Sums and averages of floats may travel in fewer bits; the results are still the same on all peers."""

    #: The type that travels; only for ``MIN_MAX`` and ``ZERO_POINT_SCALE``.
    quantized_datatype: DataType = DataType.UINT8
    algorithm: QuantizationAlgorithm = QuantizationAlgorithm.MIN_MAX

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantized_datatype", DataType.of(self.quantized_datatype))
        object.__setattr__(self, "algorithm", QuantizationAlgorithm.of(self.algorithm))

    def to_c(self) -> Any:
        """As the structure of C."""
        return structs.QuantizationOptions(self.quantized_datatype.value, self.algorithm.value)


@dataclass(frozen=True)
class ReduceDescriptor:
    """One reduce, without its buffers."""

    #: Elements.
    count: int
    op: ReduceOp
    #: Names the reduce among those in flight.
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", integer(self.count, "count", 0, U64))
        object.__setattr__(self, "op", ReduceOp.of(self.op))
        object.__setattr__(self, "tag", integer(self.tag, "tag", 0, U64))
        _instance(self.operand_descriptor, ReduceOperandDescriptor, "operand_descriptor")
        _instance(self.quantization_options, QuantizationOptions, "quantization_options")

    def to_c(self) -> Any:
        """As the structure of C."""
        return structs.ReduceDescriptor(self.count, self.op.value, self.tag, self.operand_descriptor.to_c(),
                                        self.quantization_options.to_c())


@dataclass(frozen=True)
class ReduceOpDescriptor:
    """One buffer of several. Keeps what it was made of alive."""

    send_ptr: int
    recv_ptr: int
    reduce_descriptor: ReduceDescriptor
    owner: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("send_ptr", "recv_ptr"):
            object.__setattr__(self, name, integer(getattr(self, name), name, 0, U64))
        _instance(self.reduce_descriptor, ReduceDescriptor, "reduce_descriptor")

    @classmethod
    def from_buffers(cls, send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> "ReduceOpDescriptor":
        """From tensors, arrays or anything else that has memory."""
        _instance(reduce_descriptor, ReduceDescriptor, "reduce_descriptor")
        (given, taken), place = pair(send, recv, reduce_descriptor.operand_descriptor)
        if place is not None or given.staged is not None or taken.staged is not None:
            raise InvalidBuffer("buffers on devices are not for descriptors: use all_reduce_many")
        if given.count != reduce_descriptor.count:
            raise InvalidBuffer(f"{given.count} elements, but the descriptor has {reduce_descriptor.count}")
        return cls(given.pointer, taken.pointer, reduce_descriptor, (given, taken))

    from_torch = from_buffers
    from_numpy = from_buffers

    def to_c(self) -> Any:
        """As the structure of C."""
        return structs.ReduceOpDescriptor(self.send_ptr, self.recv_ptr, self.reduce_descriptor.to_c())


def _instance(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {kind.__name__}, not a {type(value).__name__}")


def pair(send: Any, recv: Any,
         operand: Optional[ReduceOperandDescriptor]) -> Tuple[Tuple[Buffer, Buffer], Optional[Place]]:
    """The memory of both buffers of a reduce, which have to fit, and their place, if they are used on a device. Without
    ``recv`` the result takes the place of ``send``."""
    pairs, place = pairs_of([send], [recv], operand)
    return pairs[0], place


def pairs_of(sends: Sequence[Any], recvs: Sequence[Any], operand: Optional[ReduceOperandDescriptor]
             ) -> Tuple[List[Tuple[Buffer, Buffer]], Optional[Place]]:
    """The same of several reduces that are one operation."""
    wanted: List[Tuple[Any, bool]] = []
    together: List[Tuple[int, int]] = []
    for send, recv in zip(sends, recvs):
        if recv is not None:
            together.append((len(wanted), len(wanted) + 1))
        wanted += [(send, True)] if recv is None else [(send, False), (recv, True)]
    buffers, place = buffers_of(*wanted, pairs=together)
    pairs, rest = [], iter(buffers)
    for recv in recvs:
        given = next(rest)
        taken = given if recv is None else next(rest)
        _check_fit(given, taken, operand)
        pairs.append((given, taken))
    return pairs, place


def _check_fit(given: Buffer, taken: Buffer, operand: Optional[ReduceOperandDescriptor]) -> None:
    if given.count != taken.count:
        raise InvalidBuffer(f"{given.count} elements to send, {taken.count} to receive")
    if given.dtype is not taken.dtype:
        raise InvalidBuffer(f"{given.dtype.name} to send, {taken.dtype.name} to receive")
    if operand is not None:
        _instance(operand, ReduceOperandDescriptor, "operand_descriptor")
        if operand.datatype.itemsize != given.dtype.itemsize:
            raise InvalidBuffer(f"elements of {given.dtype.name} are not elements of {operand.datatype.name}")


def describe(buffer: Buffer, op: Union[ReduceOp, str], tag: int,
             operand: Optional[ReduceOperandDescriptor],
             quantization: Optional[QuantizationOptions]) -> ReduceDescriptor:
    """The descriptor of a reduce, with what was left out."""
    operand = operand or _plain(buffer.dtype)[0]
    if quantization is None:
        quantization = _plain(operand.datatype)[1]
    return ReduceDescriptor(buffer.count, ReduceOp.of(op), tag, operand, quantization)


@lru_cache(maxsize=None)
def _plain(datatype: DataType) -> Tuple[ReduceOperandDescriptor, QuantizationOptions]:
    """Elements of a type that travel as they are."""
    return ReduceOperandDescriptor(datatype), QuantizationOptions(datatype, QuantizationAlgorithm.NONE)
