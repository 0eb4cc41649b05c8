"""What calls fail with."""

import ctypes
from typing import Optional, Tuple

from ._enums import Remedy, Result
from ._library import library


class PCCLError(Exception):
    """A call that failed. Buffers of a reduce that failed hold what they held before, but for ``cause`` OutcomeUnknown."""

    def __init__(self, result: Result, func_name: str, message: str = "", remedy: Remedy = Remedy.NONE,
                 verdict: Optional[str] = None, cause: str = "", culprits: Tuple[bytes, ...] = ()):
        super().__init__(f"{func_name} failed: {result.name}" + (f": {message}" if message else ""))
        self.result = result
        self.func_name = func_name
        #: What happened, in words.
        self.message = message
        #: What to do about it.
        self.remedy = remedy
        #: Why the operation failed on all peers, if it did.
        self.verdict = verdict
        #: One word of those in docs/errors.md, such as PeerDied or MasterLost.
        self.cause = cause
        #: The peers that the verdict names, as in ``Communicator.ring()``.
        self.culprits = culprits

    @property
    def retryable(self) -> bool:
        """Whether the same call may simply be made again."""
        return self.remedy is Remedy.RETRY

    @staticmethod
    def check(code: int, func_name: str) -> None:
        """Raises unless ``code`` means success. Only in the thread that made the call."""
        if code != 0:
            raise PCCLError.of(code, func_name)

    @staticmethod
    def of(code: int, func_name: str) -> "PCCLError":
        """The error of a call that this thread has just made."""
        message = library.pcclGetLastError().decode(errors="replace")
        remedy = Remedy(library.pcclGetLastRemedy())
        verdict = message if " failed: " in message or remedy is Remedy.RETRY else None
        cause = library.pcclGetLastCause().decode()
        return PCCLError(Result(code), func_name, message, remedy, verdict, cause, _culprits())


def _culprits() -> Tuple[bytes, ...]:
    capacity, count = 64, ctypes.c_size_t()
    peers = ctypes.create_string_buffer(16 * capacity)
    if library.pcclGetLastCulprits(peers, capacity, ctypes.byref(count)) != 0:
        return ()
    return tuple(peers.raw[16 * index:16 * index + 16] for index in range(min(count.value, capacity)))


class InvalidBuffer(ValueError, AssertionError):
    """A tensor, array or buffer that cannot be used: not contiguous, not writable, not in main memory, of other sizes."""
