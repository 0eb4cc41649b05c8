"""Memory of tensors, arrays, and whatever else has some."""

import ctypes
from typing import Any, Optional

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

    def __init__(self, pointer: int, count: int, dtype: DataType, owner: Any):
        self.pointer, self.count, self.dtype, self.owner = pointer, count, dtype, owner


class _View:
    """A view of the buffer protocol, released with this object."""

    def __init__(self, source: Any, writable: bool):
        self._view = _PyBuffer()
        self._held = False
        flags = _C_CONTIGUOUS_WITH_FORMAT | (_WRITABLE if writable else 0)
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(source), ctypes.byref(self._view), flags)
        self._held = True
        self.pointer, self.bytes = self._view.buf or 0, self._view.len
        self.itemsize, self.format = self._view.itemsize, (self._view.format or b"B").decode()

    def __del__(self):
        if self._held:
            self._held = False
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._view))


ctypes.pythonapi.PyObject_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
ctypes.pythonapi.PyBuffer_Release.argtypes = [ctypes.POINTER(_PyBuffer)]
ctypes.pythonapi.PyBuffer_Release.restype = None


def buffer_of(source: Any, *, writable: bool, device: Optional[str] = "cpu") -> Buffer:
    """The memory of a torch tensor, a numpy array, an object with the buffer protocol, or one with DLPack."""
    if hasattr(source, "data_ptr") and hasattr(source, "numel"):
        return _of_torch(source, device)
    if isinstance(source, (int, float, str, list, tuple)):
        raise ValueError(f"a {type(source).__name__} has no memory that could be used")
    if not _has_buffer(source) and hasattr(source, "__dlpack__"):
        import numpy

        array = numpy.from_dlpack(source)
        if writable and not array.flags.writeable:
            raise InvalidBuffer("the memory behind DLPack is read-only")
        return Buffer(array.ctypes.data, array.size, DataType.from_numpy_dtype(array.dtype), (source, array))
    try:
        view = _View(source, writable)
    except TypeError as error:
        raise ValueError(f"a {type(source).__name__} has no memory that could be used: {error}") from None
    except (BufferError, ValueError) as error:
        raise InvalidBuffer(f"this {type(source).__name__} cannot be used: {error}") from None
    dtype = _dtype_of_format(view.format, view.itemsize)
    return Buffer(view.pointer, view.bytes // view.itemsize, dtype, (source, view))


def _has_buffer(source: Any) -> bool:
    try:
        memoryview(source).release()
        return True
    except TypeError:
        return False
    except (BufferError, ValueError):
        return True


def _of_torch(tensor: Any, device: Optional[str]) -> Buffer:
    if type(tensor).__name__ == "DTensor":
        raise ValueError("a DTensor is in several places: use its local tensor")
    if device is not None and tensor.device.type != device:
        raise InvalidBuffer(f"the tensor is on {tensor.device}, not in main memory")
    if not tensor.is_contiguous():
        raise InvalidBuffer("the tensor is not contiguous")
    return Buffer(tensor.data_ptr(), tensor.numel(), DataType.from_torch_dtype(tensor.dtype), tensor)


def _dtype_of_format(code: str, itemsize: int) -> DataType:
    code = code.lstrip("@=<")
    if code in _CODES:
        return _CODES[code]
    if code in ("b", "h", "i", "l", "q", "n"):
        return DataType[f"INT{8 * itemsize}"]
    if code in ("B", "H", "I", "L", "Q", "N", "c"):
        return DataType[f"UINT{8 * itemsize}"]
    raise ValueError(f"elements of format {code!r} cannot be reduced or synchronised")
