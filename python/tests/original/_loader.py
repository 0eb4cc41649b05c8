"""Loads the shared object that lies beside this file, by the declarations of the original's headers, which do as well."""

import re
import sys
from pathlib import Path

from cffi import FFI

_TARGETS = [("linux", "libpccl.so"), ("darwin", "libpccl.dylib"), ("win32", "pccl.dll")]

_HEADERS = ["ccoip_inet.h", "pccl.h"]

ffi = FFI()


def declarations(header):
    """What cffi can read of it: without the part for C++, and without a preprocessor."""
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", header.read_text(), flags=re.DOTALL)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def load_native_module():
    name = next(name for prefix, name in _TARGETS if sys.platform.startswith(prefix))
    path = Path(__file__).parent / name
    assert path.exists(), f"{path} is missing"
    for header in _HEADERS:
        ffi.cdef(declarations(path.with_name(header)))
    return ffi.dlopen(str(path))
