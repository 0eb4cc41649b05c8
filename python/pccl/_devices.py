"""Memory on devices: where it is, and what stands for it in collectives."""

import contextlib
import contextvars
import ctypes
import sys
from typing import Any, Iterator, NamedTuple, Optional, Tuple

from ._enums import DataType
from ._errors import InvalidBuffer, PCCLError
from ._library import library

_DLPACK_CUDA = 2
#: The default stream of a device, as DLPack and ``__cuda_array_interface__`` call it.
_DEFAULT_STREAM = 1
_DLPACK_KINDS = {0: "INT", 1: "UINT"}
_DLPACK_FLOATS = {(2, 16): DataType.FLOAT16, (2, 32): DataType.FLOAT, (2, 64): DataType.DOUBLE,
                  (4, 16): DataType.BFLOAT16}
_CODES = {"f2": DataType.FLOAT16, "f4": DataType.FLOAT, "f8": DataType.DOUBLE}


_on_stream: "contextvars.ContextVar[bool]" = contextvars.ContextVar("pccl_results_on_stream", default=False)


@contextlib.contextmanager
def results_on_stream() -> Iterator[None]:
    """Within it calls that take arrays on a device do not wait until a result is there: the stream of the array does.

    This holds for calls that begin within it, also for those that return a handle. It changes what "done" says: when
    a call returns, or a handle says that its operation is over, what is queued on the stream of the array from then on
    (torch's current stream when the call began, or the stream that an array names) comes after the result. Until then
    keep the array, and let no other stream use it that does not wait for this one. If the call fails nothing is under
    way. An error of the device that comes later is told by the stream, and by later calls with arrays on the device.
    """
    token = _on_stream.set(True)
    try:
        yield
    finally:
        _on_stream.reset(token)


def results_are_on_stream() -> bool:
    """Whether a call that begins now leaves it to a stream to wait for its result."""
    return _on_stream.get()


class Place(NamedTuple):
    """Where the buffers of a call are: on a device, after what is queued on a stream; ``some`` of them only, if the
    others are on the host."""

    stream: int
    some: bool


@contextlib.contextmanager
def on_device(place: Optional[Place]) -> Iterator[None]:
    """Within it the buffers of collectives that this thread begins are there; on the host, if there is no place."""
    if place is None:
        yield
        return
    if place.some:
        PCCLError.check(library.pcclSetThreadByAddress(place.stream), "naming a stream")
    else:
        PCCLError.check(library.pcclSetThreadDevice(True, place.stream), "naming a stream")
    try:
        yield
    finally:
        library.pcclSetThreadDevice(False, None)


class DeviceArray:
    """Elements on a device: their address, number and type, and the stream on which they are made."""

    def __init__(self, pointer: int, count: int, dtype: DataType, stream: int, shape: Tuple[int, ...], owner: Any):
        self.pointer, self.count, self.dtype, self.stream = pointer, count, dtype, stream
        self.shape, self.owner = shape, owner

    def settle(self) -> None:
        """Waits until what is queued on its stream is over: a shared state knows the default stream only, and a reduce
        knows one stream."""
        if self.stream > _DEFAULT_STREAM:
            # To stage an element waits for the stream, and changes nothing.
            first = DeviceArray(self.pointer, min(self.count, 1), self.dtype, self.stream, (), self.owner)
            Staged(first).finish(False)


class Staged:
    """Memory of the host that stands for an array on a device until ``finish``."""

    def __init__(self, array: DeviceArray):
        self._staged = ctypes.c_void_p()
        host = ctypes.c_void_p()
        code = library.pcclStage(array.pointer, array.count * array.dtype.itemsize, array.stream, True,
                                 ctypes.byref(self._staged), ctypes.byref(host))
        PCCLError.check(code, "staging a tensor on a device")
        self.array, self.pointer = array, host.value or 0
        self._on_stream = results_are_on_stream()

    def finish(self, writes: bool) -> None:
        """Puts the content back on the device, if it ``writes``, and frees the memory. Once; later calls do nothing."""
        staged, self._staged = self._staged, ctypes.c_void_p()
        if staged and writes and self._on_stream:
            PCCLError.check(library.pcclUnstageOnStream(staged), "writing a tensor on a device")
        elif staged:
            PCCLError.check(library.pcclUnstage(staged, writes), "writing a tensor on a device")

    def __del__(self) -> None:
        if getattr(self, "_staged", None):
            library.pcclUnstage(self._staged, False)


def is_on_device(tensor: Any) -> bool:
    """Whether a tensor of torch is in the memory of a GPU of CUDA."""
    return bool(tensor.device.type == "cuda")


def of_tensor(tensor: Any) -> DeviceArray:
    """A dense tensor of torch on a device, on torch's current stream. Types that cannot be reduced are bytes."""
    stream = sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    try:
        dtype, count = DataType.from_torch_dtype(tensor.dtype), tensor.numel()
    except ValueError:
        dtype, count = DataType.UINT8, tensor.numel() * tensor.element_size()
    return DeviceArray(tensor.data_ptr(), count, dtype, stream, tuple(tensor.shape), tensor)


def of_object(source: Any, writable: bool) -> Optional[DeviceArray]:
    """What ``__cuda_array_interface__`` or DLPack says is on a device; ``None`` for anything else."""
    interface = getattr(source, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(source, interface, writable)
    if hasattr(source, "__dlpack_device__") and int(source.__dlpack_device__()[0]) == _DLPACK_CUDA:
        return _of_dlpack(source)
    return None


def _of_interface(source: Any, interface: Any, writable: bool) -> DeviceArray:
    shape, code = tuple(interface["shape"]), str(interface["typestr"])
    pointer, read_only = interface["data"]
    if writable and read_only:
        raise InvalidBuffer("the array on the device is read-only")
    itemsize = int(code[2:])
    _check_dense(shape, interface.get("strides"), itemsize)
    if code[1] in "iu":
        dtype = DataType[f"{'U' if code[1] == 'u' else ''}INT{8 * itemsize}"]
    elif code[1:] in _CODES:
        dtype = _CODES[code[1:]]
    else:
        raise InvalidBuffer(f"elements of type {code!r} on a device cannot be used")
    return DeviceArray(int(pointer or 0), _product(shape), dtype, interface.get("stream") or 0, shape, source)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _of_dlpack(source: Any) -> DeviceArray:
    # Not consumed: it frees what it holds when it goes, with the array.
    capsule = source.__dlpack__(stream=_DEFAULT_STREAM)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    tensor = _DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    itemsize = tensor.bits // 8
    strides = tuple(itemsize * stride for stride in tensor.strides[: tensor.ndim]) if tensor.strides else None
    _check_dense(shape, strides, itemsize)
    dtype = _DLPACK_FLOATS.get((tensor.code, tensor.bits))
    if dtype is None and tensor.code in _DLPACK_KINDS:
        dtype = DataType[f"{_DLPACK_KINDS[tensor.code]}{tensor.bits}"]
    if dtype is None or tensor.lanes != 1:
        raise InvalidBuffer(f"elements of type ({tensor.code}, {tensor.bits}, {tensor.lanes}) of DLPack cannot be used")
    pointer = (tensor.data or 0) + tensor.byte_offset
    return DeviceArray(pointer, _product(shape), dtype, _DEFAULT_STREAM, shape, (source, capsule))


def _product(shape: Tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _check_dense(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], itemsize: int) -> None:
    if strides is None or _product(shape) == 0:
        return
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            raise InvalidBuffer("the array on the device is not contiguous: use a copy")
        expected *= length
