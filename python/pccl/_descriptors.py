"""What is reduced or synchronised, and what came of it."""

from dataclasses import dataclass, field
from typing import Any, List, Optional, Sequence

from ._buffers import Buffer, buffer_of
from ._enums import DataType, DeviceType, DistributionHint, QuantizationAlgorithm, ReduceOp, Schedule
from ._errors import InvalidBuffer
from ._library import structs


@dataclass(frozen=True)
class ReduceInfo:
    """What a reduce reports."""

    local_world_size: int
    tx_bytes: int
    rx_bytes: int
    #: How the data travelled; ``AUTOMATIC`` if it did not.
    schedule: Schedule = Schedule.AUTOMATIC

    @classmethod
    def from_c(cls, info: Any) -> "ReduceInfo":
        return cls(info.local_world_size, info.tx_bytes, info.rx_bytes, Schedule(info.schedule))

    @property
    def world_size(self) -> int:
        """Peers that took part."""
        return self.local_world_size


@dataclass(frozen=True)
class SharedStateSyncInfo:
    """What a sync reports: 0 bytes received prove that this peer had the state before."""

    tx_bytes: int
    rx_bytes: int


@dataclass(frozen=True)
class World:
    """The run as it was when the last call that agrees with others was answered."""

    global_size: int
    group_size: int
    groups: int
    largest_group: int
    min_world_size: int
    rank: int


@dataclass(frozen=True)
class ReduceOperandDescriptor:
    datatype: DataType
    distribution_hint: DistributionHint = DistributionHint.NONE

    def to_c(self):
        return structs.OperandDescriptor(self.datatype.value, self.distribution_hint.value)


@dataclass(frozen=True)
class QuantizationOptions:
    quantized_datatype: DataType = DataType.UINT8
    algorithm: QuantizationAlgorithm = QuantizationAlgorithm.MIN_MAX

    def to_c(self):
        return structs.QuantizationOptions(self.quantized_datatype.value, self.algorithm.value)


@dataclass(frozen=True)
class ReduceDescriptor:
    count: int
    op: ReduceOp
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions

    def to_c(self):
        return structs.ReduceDescriptor(self.count, self.op.value, self.tag, self.operand_descriptor.to_c(),
                                        self.quantization_options.to_c())


@dataclass(frozen=True)
class ReduceOpDescriptor:
    """One buffer of several. Keeps what it was made of alive."""

    send_ptr: int
    recv_ptr: int
    reduce_descriptor: ReduceDescriptor
    owner: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def from_buffers(cls, send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> "ReduceOpDescriptor":
        """From tensors, arrays or anything else that has memory."""
        given, taken = pair(send, recv, reduce_descriptor.operand_descriptor)
        if given.count != reduce_descriptor.count:
            raise InvalidBuffer(f"{given.count} elements, but the descriptor has {reduce_descriptor.count}")
        return cls(given.pointer, taken.pointer, reduce_descriptor, (given, taken))

    from_torch = from_buffers
    from_numpy = from_buffers

    def to_c(self):
        return structs.ReduceOpDescriptor(self.send_ptr, self.recv_ptr, self.reduce_descriptor.to_c())


def pair(send: Any, recv: Any, operand: Optional[ReduceOperandDescriptor]):
    """The memory of both buffers of a reduce, which have to fit."""
    given, taken = buffer_of(send, writable=False), buffer_of(recv, writable=True)
    if given.count != taken.count:
        raise InvalidBuffer(f"{given.count} elements to send, {taken.count} to receive")
    if given.dtype is not taken.dtype:
        raise InvalidBuffer(f"{given.dtype.name} to send, {taken.dtype.name} to receive")
    if operand is not None and operand.datatype.itemsize != given.dtype.itemsize:
        raise InvalidBuffer(f"elements of {given.dtype.name} are not elements of {operand.datatype.name}")
    return given, taken


def describe(buffer: Buffer, op: ReduceOp, tag: int, operand: Optional[ReduceOperandDescriptor],
             quantization: Optional[QuantizationOptions]) -> ReduceDescriptor:
    """The descriptor of a reduce, with what was left out."""
    operand = operand or ReduceOperandDescriptor(buffer.dtype)
    quantization = quantization or QuantizationOptions(operand.datatype, QuantizationAlgorithm.NONE)
    return ReduceDescriptor(buffer.count, op, tag, operand, quantization)


class TensorInfo:
    """A tensor of the shared state. Keeps what it was made of alive."""

    def __init__(self, name: str, data_ptr: int, *, numel: int, dtype: DataType, device_type: DeviceType,
                 allow_content_inequality: bool = False):
        self.name, self.data_ptr, self.numel, self.dtype = name, data_ptr, numel, dtype
        self.device_type, self.allow_content_inequality = device_type, allow_content_inequality
        self._name, self._owner = name.encode(), None

    @classmethod
    def from_buffer(cls, source: Any, name: str, *, allow_content_inequality: bool = False) -> "TensorInfo":
        """From a tensor, an array, or anything else that has writable memory."""
        if not name:
            raise ValueError("a tensor of the shared state needs a name")
        buffer = buffer_of(source, writable=True, device=None)
        on_gpu = getattr(getattr(source, "device", None), "type", "cpu") == "cuda"
        info = cls(name, buffer.pointer, numel=buffer.count, dtype=buffer.dtype,
                   device_type=DeviceType.CUDA if on_gpu else DeviceType.CPU,
                   allow_content_inequality=allow_content_inequality)
        info._owner = buffer
        return info

    from_torch = from_buffer
    from_numpy = from_buffer

    def to_c(self):
        return structs.TensorInfo(self._name, self.data_ptr, self.numel, self.dtype.value, self.device_type.value,
                                  self.allow_content_inequality)


class SharedState:
    """Tensors that all peers of a group hold alike, and their revision."""

    def __init__(self, tensor_infos: Sequence[TensorInfo]):
        if not tensor_infos:
            raise ValueError("a shared state has at least one tensor")
        self._infos: List[TensorInfo] = list(tensor_infos)
        self._c_infos = (structs.TensorInfo * len(self._infos))(*[info.to_c() for info in self._infos])
        self._state = structs.SharedState(0, len(self._infos), self._c_infos)

    @property
    def revision(self) -> int:
        return self._state.revision

    @revision.setter
    def revision(self, revision: int) -> None:
        self._state.revision = revision

    def push_revision(self) -> None:
        """After a change of the state, before the next sync."""
        self._state.revision += 1

    def to_c(self):
        return self._state
