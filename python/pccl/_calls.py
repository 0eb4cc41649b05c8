"""Blocking calls that Ctrl-C interrupts."""

import ctypes
import threading
from typing import Any, Callable, Optional

from ._errors import PCCLError
from ._library import library

#: How long an interrupted call may take to end before it is left behind.
GRACE_S = 0.1
#: How often a wait looks for signals.
SLICE_S = 0.05


def blocking(name: str, *arguments: Any, on_interrupt: Callable[[], None], keep: Any = None) -> None:
    """Makes a call. In the main thread, which alone hears of signals, another thread makes it.

    When an exception interrupts the wait, ``on_interrupt`` is to end the call; ``keep`` lives until it has ended.
    """
    function = getattr(library, name)
    if threading.current_thread() is not threading.main_thread():
        PCCLError.check(function(*arguments), name)
        return
    error: Optional[PCCLError] = None
    failure: Optional[BaseException] = None
    done = threading.Event()

    def run(_keep: Any) -> None:
        nonlocal error, failure
        try:
            code = function(*arguments)
            error = None if code == 0 else PCCLError.of(code, name)
        except BaseException as other:  # such as arguments of a wrong type
            failure = other
        finally:
            done.set()

    threading.Thread(target=run, args=(keep,), daemon=True, name=name).start()
    try:
        # In slices: a signal may have been delivered to another thread, which does not wake this one.
        while not done.wait(SLICE_S):
            pass
    except BaseException:
        threading.Thread(target=on_interrupt, daemon=True, name=f"end {name}").start()
        done.wait(GRACE_S)
        raise
    if failure is not None:
        raise failure
    if error is not None:
        raise error


def text(name: str, handle: Any, *arguments: Any) -> str:
    """The text that a call writes into a buffer."""
    capacity = 4096
    while True:
        buffer, length = ctypes.create_string_buffer(capacity), ctypes.c_size_t()
        PCCLError.check(getattr(library, name)(handle, *arguments, buffer, capacity, ctypes.byref(length)), name)
        if length.value < capacity:
            return buffer.value.decode(errors="replace")
        capacity = length.value + 1024
