"""What a shared state is made of, as it lies in memory at the moment of a sync."""

import struct
from functools import partial
from typing import Any, Callable, Optional, Tuple

from . import _devices
from ._buffers import array_of_dlpack, check_tensor, dtype_of_format, is_tensor, view_of
from ._enums import DataType, DeviceType
from ._errors import InvalidBuffer

#: Puts a number in the place of another.
Setter = Callable[[Any], None]


class Entry:
    """Memory that takes part in a sync under a name, and what is to be done when it has been written to."""

    def __init__(self, name: str, pointer: int, count: int, dtype: DataType, owner: Any, *,
                 finish: Optional[Callable[[], None]] = None):
        self.name, self.pointer, self.count, self.dtype, self.owner = name, pointer, count, dtype, owner
        #: Carries a copy, or a number, back to where it came from.
        self.finish = finish
        #: Of numbers: sets them to what they were at the end of the sync.
        self.put_back: Optional[Callable[[], None]] = None
        self.allow_content_inequality = False
        self.device_type = DeviceType.CPU
        #: For files, where it is known.
        self.shape: Optional[Tuple[int, ...]] = None

    def on_device(self, array: _devices.DeviceArray) -> "Entry":
        """On a device, where all that is queued before on the array's stream is done."""
        array.settle()
        self.device_type = DeviceType.CUDA
        return self

    def shaped(self, shape: Any) -> "Entry":
        """With the shape of what it was made of, unless its elements are others."""
        lengths = tuple(int(length) for length in shape)
        product = 1
        for length in lengths:
            product *= length
        self.shape = lengths if product == self.count else None
        return self

    @property
    def place(self) -> Tuple[int, int]:
        """Address and bytes."""
        return self.pointer, self.count * self.dtype.itemsize


def number_entry(name: str, value: Any, setter: Setter) -> Entry:
    """A number, as 16 bytes: its type, and its 8 bytes."""
    memory = bytearray(_packed(name, value))
    before = bytes(memory)
    kind = type(value) if type(value).__module__ == "numpy" else None

    def put_back() -> None:
        number = _unpacked(memory)
        setter(number if kind is None else kind(number))

    def finish() -> None:
        if memory != before:
            put_back()

    view = view_of(memory, True)
    entry = Entry(name, view.pointer, len(memory), DataType.UINT8, view, finish=finish)
    entry.put_back = put_back
    return entry


def _packed(name: str, value: Any) -> bytes:
    if type(value).__module__ == "numpy":
        value = value.item()
    try:
        if isinstance(value, bool):
            return struct.pack("<B7xq", 0, value)
        if isinstance(value, int):
            return struct.pack("<B7xq", 1, value)
        if isinstance(value, float):
            return struct.pack("<B7xd", 2, value)
    except struct.error:
        raise ValueError(f"{name} is {value}, but an integer of a shared state has 64 bits") from None
    raise TypeError(f"{name} is a {type(value).__name__}, which is no number of a shared state")


def _unpacked(memory: bytearray) -> Any:
    kind = memory[0]
    number: Any = struct.unpack_from("<d" if kind == 2 else "<q", memory, 8)[0]
    return bool(number) if kind == 0 else number


def memory_entry(name: str, source: Any) -> Entry:
    """A tensor, an array, or anything else that has writable memory. Types that cannot be reduced are bytes here; what
    is not contiguous travels as a copy."""
    if not name:
        raise ValueError("a tensor of the shared state needs a name")
    if is_tensor(source):
        return _of_tensor(name, source)
    array = _devices.of_object(source, True)
    if array is not None:
        entry = Entry(name, array.pointer, array.count, array.dtype, array)
        return entry.on_device(array).shaped(array.shape)
    source = array_of_dlpack(source, True)
    if type(source).__module__ == "numpy" or hasattr(source, "__array_interface__"):
        return _of_array(name, source)
    view = view_of(source, True)
    try:
        dtype = dtype_of_format(view.format, view.itemsize)
    except ValueError:
        return Entry(f"{name} ({view.format})", view.pointer, view.bytes, DataType.UINT8, view)
    return Entry(name, view.pointer, view.bytes // view.itemsize, dtype, view)


def _of_tensor(name: str, tensor: Any) -> Entry:
    check_tensor(tensor)
    plain = tensor.detach()
    finish: Optional[Callable[[], None]] = None
    if not plain.is_contiguous() or plain.is_conj() or plain.is_neg():
        _check_strides(name, plain.shape, plain.stride())
        original = plain
        # A copy has the order of the indices, whatever the order in memory is, here and on other peers.
        plain = original.resolve_conj().resolve_neg().contiguous()

        finish = partial(original.copy_, plain)
    try:
        dtype, size = DataType.from_torch_dtype(plain.dtype), plain.numel()
    except ValueError:
        dtype, size = DataType.UINT8, plain.numel() * plain.element_size()
        name = f"{name} ({str(plain.dtype).rpartition('.')[2]})"
    entry = Entry(name, plain.data_ptr(), size, dtype, plain, finish=finish).shaped(plain.shape)
    return entry.on_device(_devices.of_tensor(plain)) if _devices.is_on_device(plain) else entry


def _of_array(name: str, array: Any) -> Entry:
    import numpy

    if isinstance(array, numpy.generic):
        raise InvalidBuffer(f"{name} is a scalar of numpy, which cannot be written to: use an array, or a Box")
    array = numpy.asarray(array)
    if array.dtype.hasobject:
        raise InvalidBuffer(f"{name} is an array of Python objects, which have no bytes")
    if not array.flags.writeable:
        raise InvalidBuffer(f"{name} is an array that cannot be written to")
    plain = array
    finish: Optional[Callable[[], None]] = None
    if not array.flags.c_contiguous:
        _check_strides(name, array.shape, array.strides)
        plain = numpy.ascontiguousarray(array)

        finish = partial(numpy.copyto, array, plain)
    try:
        dtype, size = DataType.from_numpy_dtype(plain.dtype), plain.size
    except ValueError:
        dtype, size, name = DataType.UINT8, plain.nbytes, f"{name} ({plain.dtype})"
    return Entry(name, plain.ctypes.data, size, dtype, plain, finish=finish).shaped(plain.shape)


def _check_strides(name: str, shape: Any, strides: Any) -> None:
    if any(stride == 0 and size > 1 for size, stride in zip(shape, strides)):
        raise InvalidBuffer(f"{name} has one element in several places, and cannot be written to")
