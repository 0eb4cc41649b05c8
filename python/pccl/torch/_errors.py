"""What operations of a process group fail with."""

from typing import Callable, Optional, Tuple

from torch.distributed import DistBackendError

from .._enums import Remedy
from .._errors import GroupBroken, PCCLError, TimedOut

#: How the library begins to tell of a limit of the caller.
_LIMIT = "timed out: "

class CollectiveError(DistBackendError):
    """An operation of a process group that failed, with the verdict that PCCL gave all members.

    ``__cause__`` is the ``pccl.PCCLError``. Tensors that the operation was given to change are as before, but for what
    was received.
    """

    def __init__(self, message: str, error: Optional[PCCLError] = None, verdict: Optional[str] = None):
        super().__init__(message)
        self._verdict = verdict
        #: The error of PCCL; ``None`` if the process group itself refuses the call.
        self.error = error
        self.__cause__ = error

    @property
    def cause(self) -> str:
        """One word of those in docs/errors.md, such as ``GroupBroken``, ``TimedOut``, ``MasterLost``."""
        return "" if self.error is None else self.error.cause

    @property
    def culprits(self) -> Tuple[bytes, ...]:
        """The peers that the verdict names."""
        return () if self.error is None else self.error.culprits

    @property
    def verdict(self) -> Optional[str]:
        """Why the operation failed on all members, if it did."""
        return self._verdict if self.error is None or self._verdict is not None else self.error.verdict

    @property
    def remedy(self) -> Remedy:
        """What to do about it; ``Remedy.FORM_GROUP`` stands for ``reconfigure``, or for a new process group."""
        return Remedy.NONE if self.error is None else self.error.remedy

    @property
    def retryable(self) -> bool:
        """Whether the same call may simply be made again, by all members."""
        return self.error is not None and self.error.retryable

    @property
    def is_timeout(self) -> bool:
        """Whether a limit has passed."""
        return isinstance(self.error, TimedOut)

    @property
    def is_member_lost(self) -> bool:
        """Whether a member of the group is gone."""
        return isinstance(self.error, GroupBroken)


def failed(what: str, error: PCCLError, named: Callable[[str], str] = str,
           waited_s: Optional[float] = None) -> CollectiveError:
    """The failure of ``what`` that ``error`` of PCCL caused. ``named`` has the names of members in the words of torch. A
    limit that has passed after ``waited_s``, and a member that is gone, are said in the words of Gloo, which programs
    look for."""
    text = named(error.message or str(error))
    if isinstance(error, TimedOut) and waited_s is not None:
        text = f"Timed out waiting {1000 * waited_s:.0f}ms: {text[len(_LIMIT):] if text.startswith(_LIMIT) else text}"
    elif isinstance(error, GroupBroken):
        text = f"Connection closed by peer: {text}"
    return CollectiveError(f"{what}: {text}", error, None if error.verdict is None else named(error.verdict))


class Unsupported(CollectiveError, NotImplementedError):
    """What this backend cannot do with these arguments."""
