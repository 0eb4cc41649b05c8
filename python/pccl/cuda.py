"""Whether tensors may be in the memory of a GPU."""

from ._library import library, structs


def is_available() -> bool:
    """Whether the library was built with CUDA."""
    info = structs.BuildInfo()
    library.pcclGetBuildInfo(info)
    return bool(info.has_cuda_support)
