"""What calls fail with."""

import ctypes
import re
from typing import Any, Optional, Sequence, Tuple, Type

from ._enums import Remedy, Result
from ._library import library

#: What C says of an object that Python has given back.
_GONE = re.compile("the (.+) is NULL|there is no such (.+), or no longer")


class PCCLError(Exception):
    """A call that failed. Buffers of a reduce that failed hold what they held before, but for ``OutcomeUnknown``.

    Each failure is of one of the subclasses, which docs/errors.md lists.
    """

    def __init__(self, result: Result, func_name: str, message: str = "", remedy: Remedy = Remedy.NONE,
                 verdict: Optional[str] = None, cause: str = "", culprits: Tuple[bytes, ...] = ()):
        super().__init__(f"{func_name} failed: {message or result.name}")
        #: The code that C returned.
        self.result = result
        #: The call that failed, such as ``Communicator.all_reduce``.
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
        #: Of ``all_reduce_in_segments``: the segments that are done all the same, and hold their results.
        self.done: Sequence[Any] = ()

    def __reduce__(self) -> Tuple[Any, ...]:
        fields = (self.result, self.func_name, self.message, self.remedy, self.verdict, self.cause, self.culprits)
        return type(self), fields, self.__dict__

    @property
    def retryable(self) -> bool:
        """Whether the same call may simply be made again."""
        return self.remedy is Remedy.RETRY

    @property
    def _is_logged(self) -> bool:
        """Whether the log of the library has it: verdicts and the end of a connection are written where they arrive."""
        return isinstance(self, (Aborted, Dropped, MasterLost)) and not isinstance(self, OutcomeUnknown)

    @staticmethod
    def check(code: int, func_name: str) -> None:
        """Raises unless ``code`` means success. Only in the thread that made the call."""
        if code != 0:
            raise PCCLError.of(code, func_name)

    @staticmethod
    def of(code: int, func_name: str) -> "PCCLError":
        """The error of a call that this thread has just made."""
        message = library.pcclGetLastError().decode(errors="replace")
        if gone := _GONE.fullmatch(message):
            message = f"this {gone[1] or gone[2]} is closed: its `with` is over, or it was destroyed; make a new one"
        remedy = Remedy(library.pcclGetLastRemedy())
        verdict = message if " failed: " in message or remedy is Remedy.RETRY else None
        cause = library.pcclGetLastCause().decode()
        # Programs of the original know another code where they await a reduce.
        result = Result.TOO_FEW_PEERS if cause == "TooFewPeers" else Result(code)
        return _class_of(cause, remedy)(result, func_name, message, remedy, verdict, cause, _culprits())


class Aborted(PCCLError):
    """The operation failed on every peer, for the one cause in the verdict."""


class PeerLost(Aborted):
    """A peer died, was silent, was dropped, or left: the others are being put into a new ring."""


class GroupBroken(Aborted):
    """The group was formed of given members, and one of them is missing, which the verdict names: form it again."""


class ResumeWaits(Aborted):
    """A peer that waits to be let in offers a newer shared state than the members hold: let it in, then sync again."""


class StateLost(Aborted):
    """The run has committed a newer revision, and nobody who is there holds it: wait for a peer that does."""


class SeederMissing(Aborted):
    """Shared state may come from trusted seeders only, and none of those who are there holds what was elected."""


class NotFinite(Aborted):
    """A contribution holds NaN or an infinity, and all have asked to refuse that; the verdict names who gives it."""


class Mismatch(Aborted):
    """Peers made the same call with different arguments; the verdict names two peers and both values."""


class TooFewPeers(PCCLError):
    """The group has fewer than two peers, or the run fewer than its minimum."""


class TimedOut(PCCLError):
    """The caller's own limit has passed."""


class NotConnected(PCCLError):
    """There was no ``connect`` yet, or the communicator was closed."""


class ConnectFailed(PCCLError):
    """The master cannot be reached, or it refused this peer."""


class Refused(ConnectFailed):
    """The master does not take this peer, however often it tries, or what answers is no master."""


class Dropped(PCCLError):
    """The master dropped this peer; ``cause`` is the reason in one word."""


class MasterLost(PCCLError):
    """The connection to the master broke, or it was silent for too long."""


class OutcomeUnknown(MasterLost):
    """The master was lost after this peer had its result, which is in the buffer; whether the others have it is not
    known."""


class StateFileError(PCCLError):
    """A file holds no state, or a damaged one, or other tensors; the text names the tensor and the bytes."""


class InvalidArgument(PCCLError, ValueError):
    """An argument has no meaning, or buffers overlap."""


class InvalidUsage(PCCLError):
    """The call is not possible now."""


class PendingAsyncOps(InvalidUsage):
    """Reduces are in flight, and the call needs them to be over."""


class System(PCCLError):
    """The operating system refused something."""


class InternalError(PCCLError):
    """A defect of the library."""


class IterationError(PCCLError):
    """A call of a global iteration that failed."""


class Fenced(IterationError):
    """The others went on without this member, or a later life of it was started: reload, then ``catch_up``."""


class NotMember(IterationError):
    """The member has left, or is out and has not caught up."""


class NoQuorum(IterationError):
    """The policy demands more members than there are."""


class StoreUnreachable(IterationError):
    """The store did not answer for ``store_timeout``."""


class StoreLost(IterationError):
    """The store has lost what it held, or holds another run."""


class Cancelled(IterationError):
    """Another thread has ended the call."""


_LOST_PEERS = ("PeerDied", "PeerSilent", "PeerDropped", "PeerLeft")
_ABORTED = ("WorldChanged", "EdgeBroken", "Corruption", "CallerAbort", "CallTimeout", "NoSource", "LocalFault")
_CLASSES = {
    kind.__name__: kind
    for kind in (ResumeWaits, StateLost, SeederMissing, NotFinite, StateFileError, TooFewPeers, TimedOut, NotConnected,
                 ConnectFailed, Refused, MasterLost, OutcomeUnknown, InvalidArgument, InvalidUsage, PendingAsyncOps,
                 System, InternalError, Fenced, NotMember, NoQuorum, StoreUnreachable, StoreLost, Cancelled)
}
CLASSES = (PCCLError, Aborted, PeerLost, GroupBroken, Mismatch, Dropped, IterationError, *_CLASSES.values())
for _kind in CLASSES:
    # As users name them, in tracebacks and in pickles.
    _kind.__module__ = "pccl"


def _class_of(cause: str, remedy: Remedy) -> Type[PCCLError]:
    """The class of a cause. What is no cause of a verdict is the reason of a drop; one word is both."""
    if cause in _CLASSES:
        return _CLASSES[cause]
    if cause in _LOST_PEERS:
        return PeerLost
    if cause == "GroupBroken":
        return GroupBroken
    if cause == "MismatchedCall":
        return Mismatch
    if cause in _ABORTED or (cause == "MasterStopping" and remedy is not Remedy.RECONNECT):
        return Aborted
    return Dropped


def _culprits() -> Tuple[bytes, ...]:
    capacity, count = 64, ctypes.c_size_t()
    peers = ctypes.create_string_buffer(16 * capacity)
    if library.pcclGetLastCulprits(peers, capacity, ctypes.byref(count)) != 0:
        return ()
    return tuple(peers.raw[16 * index:16 * index + 16] for index in range(min(count.value, capacity)))


class InvalidBuffer(ValueError, AssertionError):
    """A tensor, array or buffer that cannot be used: not contiguous, not writable, not in main memory, of other
    sizes."""
