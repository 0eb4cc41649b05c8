"""Reduces in flight."""

import ctypes
import threading
import time
from ctypes import byref
from typing import TYPE_CHECKING, Any, Optional, Tuple

from ._arguments import NO_TIMEOUT, limit_ms
from ._buffers import Buffer
from ._calls import GRACE_S
from ._descriptors import ReduceInfo
from ._errors import PCCLError
from ._library import library, structs

if TYPE_CHECKING:
    from ._communicator import Communicator

#: How often a wait for a reduce lets Python look at its signals.
_SLICE_MS = 50


def finish(kept: Any, succeeded: bool) -> None:
    """Ends the use of all buffers that an operation keeps."""
    if isinstance(kept, Buffer):
        kept.finish(succeeded)
    elif isinstance(kept, (tuple, list)):
        for one in kept:
            finish(one, succeeded)


class AsyncReduceHandle:
    """A reduce in flight. It, and its buffers, live until it is over, whether anybody waits for it or not.

    ``result()`` raises if it failed; look at it, or a reduce that failed goes unnoticed.
    """

    def __init__(self, communicator: "Communicator", call: str, op: Any, keep: Any):
        self._communicator, self._call, self._op, self._keep = communicator, call, op, keep
        self._result: Optional[Tuple[bool, int, ReduceInfo]] = None
        #: The error, after a ``wait`` that was not successful.
        self.error: Optional[PCCLError] = None

    @property
    def tag(self) -> int:
        """What names it among the reduces in flight, the same on all peers."""
        return int(self._op.tag)

    def result(self, timeout: Optional[float] = None) -> ReduceInfo:
        """Waits for the end, and returns what the reduce reports, or raises what it failed with.

        After ``timeout`` seconds (default: that of the communicator) the reduce is given up for all peers, and this one
        raises ``TimedOut``.
        """
        _, _, info = self.wait(timeout)
        if self.error is not None:
            raise self.error
        return info

    def wait(self, timeout: Optional[float] = None) -> Tuple[bool, int, ReduceInfo]:
        """As ``result``, but returns whether it succeeded, the number of its ``Result``, and what it reports."""
        timeout_ms = self._communicator._call_limit_ms if timeout is None else limit_ms(timeout)
        if self._result is None:
            self._wait(timeout_ms)
        assert self._result is not None
        return self._result

    def done(self) -> bool:
        """Whether ``wait`` would return at once."""
        return self._result is not None or self._is_over(0)

    def abort(self) -> None:
        """Gives the reduce up, for all peers, unless its outcome is decided."""
        if self._result is None:
            PCCLError.check(library.pcclAbortAsyncReduce(byref(self._op)), "AsyncReduceHandle.abort")

    def _is_over(self, timeout_ms: int) -> bool:
        done = ctypes.c_bool()
        PCCLError.check(library.pcclWaitAsyncReduce(byref(self._op), timeout_ms, byref(done)), self._call)
        return done.value

    def _wait(self, timeout_ms: int) -> None:
        """Waits in slices, between which Python runs its handlers of signals."""
        began = time.monotonic()
        left: float = timeout_ms
        try:
            while left > 0 and not self._is_over(int(min(left, _SLICE_MS))):
                if timeout_ms != NO_TIMEOUT:
                    left = timeout_ms - 1000 * (time.monotonic() - began)
        except PCCLError:
            # Awaiting it says the same, or that it is over.
            pass
        except BaseException:
            self._interrupted()
            raise
        self._await(gives_up=left <= 0)

    def _interrupted(self) -> None:
        done = ctypes.c_bool()
        library.pcclAbortAsyncReduce(byref(self._op))
        library.pcclWaitAsyncReduce(byref(self._op), int(GRACE_S * 1000), byref(done))
        if done.value:
            self._await()
        else:
            # The master does not answer in time. Closing ends it in any case; its buffers live until then.
            threading.Thread(target=self._abandon, daemon=True, name="end a reduce").start()

    def _abandon(self) -> None:
        library.pcclClose(self._communicator._handle)
        self._await()

    def _await(self, gives_up: bool = False) -> None:
        info = structs.ReduceInfo()
        limit = 0 if gives_up else NO_TIMEOUT
        code = library.pcclAwaitAsyncReduceFor(byref(self._op), limit, byref(info))
        if code != 0:
            self.error = PCCLError.of(code, self._call)
        try:
            finish(self._keep, code == 0)
        except PCCLError as error:
            # The others have the result; the device of this peer has not.
            self.error, code = error, error.result.value
        self._result = (code == 0, code, ReduceInfo.from_c(info))
        self._keep = None
        self._communicator._is_over(self)
