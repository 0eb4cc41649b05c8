"""Loads the shared object that lies beside this file."""

import sys
from pathlib import Path

from cffi import FFI

from ._cdecls import CDECLS

_TARGETS = [("linux", "libpccl.so"), ("darwin", "libpccl.dylib"), ("win32", "pccl.dll")]

ffi = FFI()


def load_native_module():
    name = next(name for prefix, name in _TARGETS if sys.platform.startswith(prefix))
    path = Path(__file__).parent / name
    assert path.exists(), f"{path} is missing"
    ffi.cdef(CDECLS)
    return ffi.dlopen(str(path))
