"""What an operation of a process group returns."""

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Protocol, Sequence

import torch
from torch.distributed import Work

from ._errors import CollectiveError
from ._lanes import Operation

if TYPE_CHECKING:
    from ._completion import Completion

#: How often a wait lets Python run its handlers of signals.
_SLICE_S = 0.05
Finish = Callable[[], None]


def seconds(limit: Optional[timedelta]) -> Optional[float]:
    """A limit in seconds; ``None`` where torch means that none was given, by nothing, zero or less."""
    if limit is None or limit <= timedelta(0):
        return None
    return limit.total_seconds()


class Part(Protocol):
    """What a work waits for."""

    @property
    def has_begun(self) -> bool:
        """Whether it is in no queue any more."""

    def over(self, limit_s: float) -> bool:
        """Whether it is over within ``limit_s``, for good or bad."""

    def end(self, limit_s: float) -> Optional[BaseException]:
        """Waits for its end, after ``limit_s`` gives it up, and says what it failed with."""

    def abort(self) -> None:
        """Gives it up, for all members, unless its outcome is decided."""


class CollectiveWork(Work):
    """An operation in flight: what it consists of, and what is to be done when all of that has succeeded.

    The first thread that waits ends it; the thread of the group does if none waits or one wants a future.
    """

    def __init__(self, what: str, parts: Sequence[Part], outputs: Sequence[torch.Tensor],
                 finish: Sequence[Finish], limit_s: float, completion: "Completion",
                 source: Callable[[], int] = lambda: -1):
        super().__init__()
        self._what, self._parts, self._outputs, self._source = what, list(parts), list(outputs), source
        for part in self._parts:
            if isinstance(part, Operation) and not part.has_begun:
                part.work = self
        #: Whether all members make this call; a ``send`` is answered by one of them, and maybe late.
        self.is_collective = what not in ("send", "recv") and all(
            part.is_collective for part in parts if isinstance(part, CollectiveWork))
        #: What the future brings if it is not the tensors.
        self.value: Any = None
        self._finish: List[Finish] = list(finish)
        self._deadline = time.monotonic() + limit_s
        self._completion = completion
        self._driver, self._over = threading.Lock(), threading.Event()
        self._error: Optional[BaseException] = None
        self._future: Optional[torch.futures.Future[Any]] = None
        self._wakes: Optional[torch.futures.Future[Any]] = None
        self._guard = threading.Lock()

    # ---- Questions of callers

    def is_completed(self) -> bool:
        """Whether it is over, for good or bad. Never waits."""
        if not self._over.is_set() and self.over(0.0):
            # Over, so this does not wait.
            self._drive(1.0)
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether it is over and has succeeded."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """What it failed with; a ``CollectiveError`` if the communication did."""
        return self._error if self.is_completed() else None

    def result(self) -> List[torch.Tensor]:
        """The tensors that it has filled."""
        return self._outputs

    def source_rank(self) -> int:
        """The rank that a ``recv`` got its tensor from."""
        return self._source()

    _source_rank = source_rank

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end; raises what it failed with. After ``timeout``, or that of the group, counted from the
        beginning, it is given up for all members."""
        own = seconds(timeout)
        deadline = self._deadline if own is None else time.monotonic() + own
        # The thread of the group looks at this one.
        self._deadline = max(self._deadline, deadline)
        while not self._over.is_set():
            if self._future is None:
                self._drive(deadline - time.monotonic())
            elif not self._over.wait(min(_SLICE_S, max(deadline - time.monotonic(), 0.0))):
                if time.monotonic() >= deadline:
                    # The thread that waits for it takes this limit.
                    self._deadline = min(self._deadline, deadline)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """As ``wait``: results are in place when it returns."""
        self.wait()

    def block_current_stream(self) -> None:
        """As ``wait``: it blocks the caller, and so all that the caller puts into its stream afterwards."""
        self.wait()

    def get_future(self) -> "torch.futures.Future[Any]":
        """A future with the tensors as its value, or the error."""
        with self._guard:
            if self._future is None:
                self._wakes = torch.futures.Future()
                # An exception in a callback is what C++ sees as an error; ``set_exception`` would be a value to it.
                self._future = self._wakes.then(self._outcome)
                if self._over.is_set():
                    self._wakes.set_result(None)
                else:
                    # The first callback: who has waited finds the future done, and what it calls may wait as well.
                    self._future.add_done_callback(lambda _: self._over.set())
                    self._completion.hurry()
            return self._future

    def abort(self) -> None:
        """Gives it up, for all members, unless its outcome is decided."""
        for part in self._parts:
            part.abort()

    # ---- How it comes to its end

    def leaves_queue(self) -> None:
        """One of its operations has left its queue."""
        self._completion.leaves_queue(self)

    @property
    def has_begun(self) -> bool:
        """As of a part: whether none of its parts is in a queue."""
        return all(part.has_begun for part in self._parts)

    @property
    def has_future(self) -> bool:
        """Whether somebody wants its future."""
        return self._future is not None

    def advance(self) -> None:
        """Ends it if all parts or its time are over, and nobody else is about to do that."""
        left = self._deadline - time.monotonic()
        if left <= 0 or self.over(0.0):
            self._drive(max(left, 0.0), blocking=False)

    def over(self, limit_s: float) -> bool:
        """As of a part: whether all parts are over within ``limit_s``."""
        return self._over.is_set() or all(part.over(limit_s) for part in self._parts)

    def end(self, limit_s: float) -> Optional[BaseException]:
        """As of a part."""
        self._drive(limit_s)
        return self._error

    def _outcome(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._outputs if self.value is None else self.value

    def _drive(self, limit_s: float, blocking: bool = True) -> None:
        """Waits for all parts for up to ``limit_s``, and gives up what is not over then. Without ``blocking`` it leaves
        that to another thread which does it already."""
        until = time.monotonic() + limit_s
        if not self._driver.acquire(blocking):
            return
        try:
            if self._over.is_set():
                return
            error: Optional[BaseException] = None
            for part in self._parts:
                other = part.end(until - time.monotonic())
                if other is not None and error is None:
                    error = other
                    self.abort()
            self._end(error)
        finally:
            self._driver.release()

    def _end(self, error: Optional[BaseException]) -> None:
        if error is None:
            try:
                for step in self._finish:
                    step()
            except Exception as other:
                error = other
        self._error = error
        self._finish = []
        self._completion.ended(self, error if isinstance(error, CollectiveError) else None)
        with self._guard:
            wakes = self._wakes
            if wakes is None:
                self._over.set()
        if wakes is not None:
            wakes.set_result(None)

