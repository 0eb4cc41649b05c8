"""States in files: safetensors with the hash tree and the revision in the metadata (docs/state-files.md)."""

import ctypes
import os
import threading
from ctypes import byref, c_uint64
from typing import Any, Mapping, Optional, Union

from ._arguments import flag
from ._entries import Entry
from ._errors import PCCLError
from ._library import library, structs
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
    return _save(path, _capture(state, revision), flag(keep_previous, "keep_previous"))


class Saving:
    """A state that another thread saves. If the process ends before, what the file held before is still there."""

    def __init__(self, path: Path, captured: Captured, keep_previous: bool):
        self._written, self._error = 0, None  # type: int, Optional[BaseException]
        self._thread = threading.Thread(target=self._run, args=(path, captured, keep_previous), daemon=True)
        self._thread.start()

    def _run(self, path: Path, captured: Captured, keep_previous: bool) -> None:
        try:
            self._written = _save(path, captured, keep_previous)
        except BaseException as error:
            self._error = error

    @property
    def is_over(self) -> bool:
        """Whether ``wait`` returns at once."""
        return not self._thread.is_alive()

    def wait(self) -> int:
        """Waits until the state is saved, and returns what ``save_state`` returns, or raises what it raises."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._written


def save_state_while(path: Path, state: State, *, revision: int = 0, keep_previous: bool = False) -> Saving:
    """As ``save_state``, but copies the state and has another thread save the copy, so that the training goes on."""
    captured = _capture(state, revision)
    entries = []
    for entry in captured.entries:
        pointer, length = entry.place
        copied = (ctypes.c_char * max(length, 1))()
        ctypes.memmove(copied, pointer, length)
        copy = Entry(entry.name, ctypes.addressof(copied), entry.count, entry.dtype, copied)
        copy.shape = entry.shape
        copy.allow_content_inequality = entry.allow_content_inequality
        entries.append(copy)
    return Saving(path, Captured(captured.c.revision, entries), flag(keep_previous, "keep_previous"))


def _save(path: Path, captured: Captured, keep_previous: bool) -> int:
    written, shapes, lengths = c_uint64(), [], []
    for entry in captured.entries:
        if entry.shape is not None:
            lengths.append((c_uint64 * len(entry.shape))(*entry.shape))
            shapes.append(structs.TensorShape(entry.name.encode(), len(entry.shape), lengths[-1]))
    array = (structs.TensorShape * len(shapes))(*shapes)
    options = structs.SaveOptions(keep_previous, len(shapes), array)
    code = library.pcclSaveSharedState(byref(captured.c), os.fsencode(path), byref(options), byref(written))
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
