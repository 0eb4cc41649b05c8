"""``PCCL_CHECK_RETRY=1``: makes each step twice from the same state, to find what a failed try would leave behind."""

import ctypes
import os
import zlib
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional

from ._entries import Entry
from ._enums import DeviceType
from ._names import referred
from ._rollback import Rollback, parts_of
from ._state import SharedState

if TYPE_CHECKING:
    from ._communicator import Communicator

#: How many names an error has at most.
_NAMES = 8


class NotRepeatable(RuntimeError):
    """A step that ends otherwise when it is made again from the same state. Only with ``PCCL_CHECK_RETRY=1``."""


class Repeat:
    """Makes the steps of one ``run`` twice."""

    def __init__(self, communicator: "Communicator", state: SharedState, rollback: Rollback,
                 functions: Iterable[Callable[..., Any]]):
        self._communicator, self._state, self._rollback = communicator, state, rollback
        self._functions = list(functions)
        self._early: List[str] = []

    def make(self, attempt: Callable[[], None], again: Callable[[], None]) -> None:
        """Both tries, from what the rollback has noted. Failures of communication pass through."""
        ring, before, variables = self._communicator.ring(), self._contents(), self._variables()
        self._early = []
        self._communicator._before_launch = lambda: self._look(before)
        try:
            attempt()
        finally:
            self._communicator._before_launch = None
        if self._early:
            raise NotRepeatable(f"the step changes {_listed(self._early)} before its last reduce. If that fails, the "
                                "step is made again from what it has changed: change the shared state after the "
                                "last reduce")
        first = {**self._contents(), **self._rollback.gradients()}
        self._rollback.undo(was_whole=True)
        self._put_back(before)
        kept = _changed(variables, self._variables())
        self._rollback.begin()
        again()
        second = {**self._contents(), **self._rollback.gradients()}
        apart = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        # Other members have other gradients.
        if apart and self._communicator.ring() == ring:
            hint = f". The first try has changed {_listed(kept)}, which nobody puts back" if kept else ""
            raise NotRepeatable(f"the step was made twice from the same state, and {_listed(apart)} differ{hint}. What "
                                "a step changes belongs in the shared state, in `restore=`, or behind the last reduce")

    def _contents(self) -> Dict[str, bytes]:
        return {entry.name: _bytes_of(entry) for entry in self._state._capture().entries}

    def _put_back(self, before: Dict[str, bytes]) -> None:
        for entry in self._state._capture().entries:
            content = before.get(entry.name)
            if content is not None and content != _bytes_of(entry):
                _write(entry, content)

    def _look(self, before: Dict[str, bytes]) -> None:
        """Before a collective: what the step has changed so far, but for what is put back anyhow."""
        spared = self._rollback.spared_pointers()
        for entry in self._state._capture().entries:
            if entry.put_back is None and entry.pointer not in spared and entry.name not in self._early \
                    and before.get(entry.name) != _bytes_of(entry):
                self._early.append(entry.name)

    def _variables(self) -> Dict[str, Any]:
        shared = {id(part) for part in parts_of(self._state._source)}
        return {name: _digest(value, 3) for function in self._functions for name, value in referred(function).items()
                if id(value) not in shared}


def _bytes_of(entry: Entry) -> bytes:
    if entry.device_type is DeviceType.CPU:
        return ctypes.string_at(entry.pointer, entry.place[1])
    if not hasattr(entry.owner, "cpu"):
        # Arrays of other libraries on a device are not looked at.
        return b""
    return _raw(entry.owner)


def _raw(tensor: Any) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())


def _write(entry: Entry, content: bytes) -> None:
    if entry.device_type is DeviceType.CPU:
        ctypes.memmove(entry.pointer, content, len(content))
    else:
        on_host = entry.owner.cpu()
        ctypes.memmove(on_host.data_ptr(), content, len(content))
        entry.owner.copy_(on_host)
    if entry.finish is not None:
        entry.finish()


def _digest(value: Any, depth: int) -> Any:
    """The comparable content of a variable; ``None`` of a kind that is not looked into."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if hasattr(value, "data_ptr") and hasattr(value, "detach"):
        return f"contents {zlib.crc32(_raw(value)):08x}"
    if hasattr(value, "__array_interface__") and hasattr(value, "tobytes"):
        return f"contents {zlib.crc32(value.tobytes()):08x}"
    if depth == 0:
        return None
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not hasattr(value, "named_modules"):
        return _digest(value.state_dict(), depth)
    if isinstance(value, dict):
        return {str(key): _digest(one, depth - 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_digest(one, depth - 1) for one in value]
    if hasattr(value, "__next__"):
        return _Position()
    return None


class _Position:
    """Of an iterator, which nobody can look at: never the same."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _changed(before: Dict[str, Any], after: Dict[str, Any]) -> List[str]:
    return [_with_values(name, before.get(name), now) for name, now in after.items() if before.get(name) != now]


def _with_values(name: str, before: Any, after: Any) -> str:
    if isinstance(after, _Position):
        return f"{name} (an iterator, perhaps)"
    if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) < 60:
        return f"{name} ({before}, then {after})"
    return name


def _listed(names: List[str]) -> str:
    shown = ", ".join(names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES} more"


def repeat_of(communicator: "Communicator", state: SharedState, rollback: Rollback,
              functions: Iterable[Callable[..., Any]]) -> Optional[Repeat]:
    """If the environment asks for it."""
    if os.environ.get("PCCL_CHECK_RETRY", "0") in ("", "0"):
        return None
    return Repeat(communicator, state, rollback, functions)
