"""Memory of tensors, arrays, and whatever else has some."""

import ctypes
from typing import Any, List, Optional, Sequence, Tuple

from . import _devices
from ._enums import DataType
from ._errors import InvalidBuffer

_CODES = {"e": DataType.FLOAT16, "f": DataType.FLOAT, "d": DataType.DOUBLE}


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]


_C_CONTIGUOUS_WITH_FORMAT = 0x0020 | 0x0010 | 0x0008 | 0x0004
_WRITABLE = 0x0001


class Buffer:
    """Address, number and type of elements; keeps the memory alive as long as it lives."""

    #: What has to go back to a device when the operation is over.
    staged: Optional[_devices.Staged] = None

    def __init__(self, pointer: int, count: int, dtype: DataType, owner: Any):
        self.pointer, self.count, self.dtype, self.owner = pointer, count, dtype, owner

    @classmethod
    def of_device(cls, array: _devices.DeviceArray, writable: bool) -> "Buffer":
        """Memory of the host in the place of an array on a device."""
        staged = _devices.Staged(array)
        buffer = cls(staged.pointer, array.count, array.dtype, array)
        buffer.staged, buffer._writable = staged, writable
        return buffer

    _writable = False

    def finish(self, succeeded: bool) -> None:
        """The operation is over: a device gets its result. After one that failed its memory is as it was."""
        if self.staged is not None:
            self.staged.finish(succeeded and self._writable)


class _View:
    """A view of the buffer protocol, released with this object."""

    def __init__(self, source: Any, writable: bool):
        self._held = False
        self._view = _PyBuffer()
        flags = _C_CONTIGUOUS_WITH_FORMAT | (_WRITABLE if writable else 0)
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(source), ctypes.byref(self._view), flags)
        self._held = True
        self.pointer, self.bytes = self._view.buf or 0, self._view.len
        self.itemsize, self.format = self._view.itemsize, (self._view.format or b"B").decode()

    def __del__(self) -> None:
        if self._held:
            self._held = False
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._view))


ctypes.pythonapi.PyObject_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
ctypes.pythonapi.PyBuffer_Release.argtypes = [ctypes.POINTER(_PyBuffer)]
ctypes.pythonapi.PyBuffer_Release.restype = None


def buffer_of(source: Any, *, writable: bool) -> Buffer:
    """The memory of a torch tensor, a numpy array, an object with the buffer protocol, or one with DLPack, for a
    reduce."""
    if is_tensor(source):
        check_tensor(source)
        if not source.is_contiguous():
            raise InvalidBuffer("the tensor is not contiguous: reduce a copy, tensor.contiguous()")
        dtype = DataType.from_torch_dtype(source.dtype)
        if not _devices.is_on_device(source):
            return Buffer(source.data_ptr(), source.numel(), dtype, source)
    array = device_array_of(source, writable=writable)
    if array is not None:
        return Buffer.of_device(array, writable)
    source = array_of_dlpack(source, writable)
    view = view_of(source, writable)
    dtype = dtype_of_format(view.format, view.itemsize)
    return Buffer(view.pointer, view.bytes // view.itemsize, dtype, (source, view))


def buffers_of(*wanted: Tuple[Any, bool], pairs: Sequence[Tuple[int, int]] = ()
               ) -> Tuple[List[Buffer], Optional[_devices.Place]]:
    """The memory of all buffers of a collective, each given with whether it is written, and their place, if any of them
    are on a device and used there. If one of ``pairs`` is here and there, or the stream is to wait for the result,
    those on a device have memory of the host in their place."""
    if not _devices.results_are_on_stream():
        arrays = [device_array_of(source, writable=writable) for source, writable in wanted]
        there = [array for array in arrays if array is not None]
        if there and all((arrays[one] is None) == (arrays[other] is None) for one, other in pairs):
            for other in there[1:]:
                if other.stream != there[0].stream:
                    other.settle()
            buffers = [buffer_of(source, writable=writable) if array is None
                       else Buffer(array.pointer, array.count, array.dtype, array)
                       for array, (source, writable) in zip(arrays, wanted)]
            return buffers, _devices.Place(there[0].stream, len(there) < len(arrays))
    return [buffer_of(source, writable=writable) for source, writable in wanted], None


def device_array_of(source: Any, *, writable: bool) -> Optional[_devices.DeviceArray]:
    """The array that a source is on a device, for a reduce; ``None`` for anything else."""
    if not is_tensor(source):
        return _devices.of_object(source, writable)
    if not _devices.is_on_device(source):
        return None
    check_tensor(source)
    DataType.from_torch_dtype(source.dtype)
    if not source.is_contiguous():
        raise InvalidBuffer("the tensor is not contiguous: reduce a copy, tensor.contiguous()")
    return _devices.of_tensor(source)


def is_tensor(source: Any) -> bool:
    """Whether it is a tensor of torch, without importing torch."""
    return hasattr(source, "data_ptr") and hasattr(source, "numel")


def check_tensor(tensor: Any) -> None:
    """Refuses tensors whose elements are not in main memory, or on a device of CUDA, one after the other."""
    if type(tensor).__name__ == "DTensor":
        raise ValueError("a DTensor is in several places: use its local tensor")
    if tensor.device.type not in ("cpu", "cuda"):
        raise InvalidBuffer(f"the tensor is on {tensor.device}, not in main memory: use a copy, tensor.cpu()")
    if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        raise InvalidBuffer(f"the tensor is {tensor.layout}, not dense: use tensor.to_dense()")
    if getattr(tensor, "is_quantized", False):
        raise InvalidBuffer("the tensor is quantised by torch: use tensor.int_repr()")


def array_of_dlpack(source: Any, writable: bool) -> Any:
    """An array of numpy in the place of what has no memory for Python, but DLPack; anything else as it is."""
    if _has_buffer(source) or not hasattr(source, "__dlpack__"):
        return source
    import numpy

    array = numpy.from_dlpack(source)
    if writable and not array.flags.writeable:
        raise InvalidBuffer("the memory behind DLPack is read-only")
    return array


def view_of(source: Any, writable: bool) -> _View:
    """The memory behind the buffer protocol."""
    if isinstance(source, (int, float, str, list, tuple)):
        raise ValueError(f"a {type(source).__name__} has no memory that could be used")
    try:
        return _View(source, writable)
    except TypeError as error:
        raise ValueError(f"a {type(source).__name__} has no memory that could be used: {error}") from None
    except (BufferError, ValueError) as error:
        raise InvalidBuffer(f"this {type(source).__name__} cannot be used: {error}") from None


def _has_buffer(source: Any) -> bool:
    try:
        memoryview(source).release()
        return True
    except TypeError:
        return False
    except (BufferError, ValueError):
        return True


def dtype_of_format(code: str, itemsize: int) -> DataType:
    """The type of elements with this format of ``struct``; ``ValueError`` if they cannot be reduced."""
    plain = code.lstrip("@=<")
    if plain in _CODES:
        return _CODES[plain]
    if plain in ("b", "h", "i", "l", "q", "n"):
        return DataType[f"INT{8 * itemsize}"]
    if plain in ("B", "H", "I", "L", "Q", "N", "c"):
        return DataType[f"UINT{8 * itemsize}"]
    raise ValueError(f"elements of format {code!r} cannot be reduced")
