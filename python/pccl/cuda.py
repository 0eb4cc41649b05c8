"""Whether tensors may be in the memory of a GPU, and who waits for results there."""

import ctypes

from ._devices import results_on_stream
from ._library import library, structs

__all__ = ["device_count", "is_available", "results_on_stream"]


def is_available() -> bool:
    """Whether the library was built with CUDA and a driver loads. ``device_count`` says how many GPUs it finds."""
    info = structs.BuildInfo()
    library.pcclGetBuildInfo(info)
    return bool(info.has_cuda_support)


def device_count() -> int:
    """How many GPUs this process can use; 0 where there is no driver."""
    count = ctypes.c_uint32()
    library.pcclGetDeviceCount(ctypes.byref(count))
    return count.value
