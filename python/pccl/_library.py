"""The shared library beside this file."""

import ctypes
import os
import sys

from . import _declarations as structs


def _load() -> ctypes.CDLL:
    name = {"darwin": "libpccl.dylib", "win32": "pccl.dll"}.get(sys.platform, "libpccl.so")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if not os.path.exists(path):
        raise ImportError(f"{path} is missing: install the package, which builds it")
    loaded = ctypes.CDLL(path)
    for function, (result, arguments) in structs.FUNCTIONS.items():
        getattr(loaded, function).restype = result
        getattr(loaded, function).argtypes = arguments
    return loaded


library = _load()
library.pcclInit()
