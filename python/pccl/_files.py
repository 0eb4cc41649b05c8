"""States in files: safetensors with the hash tree and the revision in the metadata (docs/state-files.md)."""

import os
from ctypes import byref, c_uint64
from typing import Any, Mapping, Union

from ._arguments import flag
from ._errors import PCCLError
from ._library import library
from ._state import Captured, SharedState, capture_mapping

Path = Union[str, "os.PathLike[str]"]
State = Union[SharedState, Mapping[str, Any]]


def save_state(path: Path, state: State, *, revision: int = 0, keep_previous: bool = False) -> int:
    """Writes a state to a file that the package ``safetensors`` reads, whole or not at all, and returns the number of
    bytes that were written.

    ``state`` is a ``SharedState``, whose revision counts, or any mapping of names to tensors or arrays, such as a
    ``state_dict``, with ``revision``. With ``keep_previous`` what the file held before stays as ``PATH.previous``, and
    only what differs from that is written by the next save.
    """
    captured, written = _capture(state, revision), c_uint64()
    keep_previous = flag(keep_previous, "keep_previous")
    code = library.pcclSaveSharedState(byref(captured.c), os.fsencode(path), keep_previous, byref(written))
    PCCLError.check(code, "save_state")
    return written.value


def load_state(path: Path, state: State) -> int:
    """Reads such a file into the tensors and arrays of a state, and returns its revision, which a ``SharedState``
    takes.

    Everything is verified before the first tensor changes. ``StateFileError`` names the tensor and the bytes that are
    wrong, or the tensor that does not fit. Before ``connect``, ``Communicator.offer_resume`` lets the run go on from
    what was loaded.
    """
    captured = _capture(state, 0)
    PCCLError.check(library.pcclLoadSharedState(byref(captured.c), os.fsencode(path)), "load_state")
    captured.finish()
    if isinstance(state, SharedState):
        state.revision = captured.c.revision
    return int(captured.c.revision)


def _capture(state: State, revision: int) -> Captured:
    return state._capture() if isinstance(state, SharedState) else capture_mapping(state, revision)
