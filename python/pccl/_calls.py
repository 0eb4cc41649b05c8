"""Blocking calls that Ctrl-C interrupts."""

import ctypes
import threading
from typing import Any, Callable, Optional

from ._devices import Place, on_device
from ._errors import PCCLError
from ._library import library

#: How long an interrupted call may take to end before it is left behind.
GRACE_S = 0.1
#: How often a wait looks for signals.
SLICE_S = 0.05
#: What C takes for "the limit that the communicator has".
DEFAULT_LIMIT = (1 << 64) - 2


def blocking(call: str, name: str, *arguments: Any, on_interrupt: Callable[[], Any], limit_ms: Optional[int] = None,
             keep: Any = None, place: Optional[Place] = None) -> None:
    """Calls the function ``name`` of the library for ``call``. In the main thread, which alone hears of signals,
    another thread makes it.

    When an exception interrupts the wait, ``on_interrupt`` is to end the call; ``keep`` lives until it has ended.
    ``limit_ms`` is for this call only. With a ``place`` buffers are on a device.
    """
    function = getattr(library, name)

    def make() -> Optional[PCCLError]:
        if limit_ms is not None:
            library.pcclSetThreadCallTimeout(limit_ms)
        try:
            with on_device(place):
                code = function(*arguments)
            return None if code == 0 else PCCLError.of(code, call)
        finally:
            if limit_ms is not None:
                library.pcclSetThreadCallTimeout(DEFAULT_LIMIT)

    if threading.current_thread() is not threading.main_thread():
        error = make()
    else:
        error = _in_another_thread(call, make, on_interrupt, keep)
    if error is not None:
        raise error


def _in_another_thread(call: str, make: Callable[[], Optional[PCCLError]], on_interrupt: Callable[[], Any],
                       keep: Any) -> Optional[PCCLError]:
    error: Optional[PCCLError] = None
    failure: Optional[BaseException] = None
    done = threading.Event()

    def run(_keep: Any) -> None:
        nonlocal error, failure
        try:
            error = make()
        except BaseException as other:  # such as arguments of a wrong type
            failure = other
        finally:
            done.set()

    threading.Thread(target=run, args=(keep,), daemon=True, name=call).start()
    try:
        # In slices: a signal may have been delivered to another thread, which does not wake this one.
        while not done.wait(SLICE_S):
            pass
    except BaseException:
        threading.Thread(target=on_interrupt, daemon=True, name=f"end {call}").start()
        done.wait(GRACE_S)
        raise
    if failure is not None:
        raise failure
    return error


def text(call: str, name: str, handle: Any, *arguments: Any) -> str:
    """The text that a function of the library writes into a buffer."""
    capacity = 4096
    while True:
        buffer, length = ctypes.create_string_buffer(capacity), ctypes.c_size_t()
        PCCLError.check(getattr(library, name)(handle, *arguments, buffer, capacity, ctypes.byref(length)), call)
        if length.value < capacity:
            return buffer.value.decode(errors="replace")
        capacity = length.value + 1024
