"""Two operations one after the other in one work: the second depends on what the first has brought."""

import threading
import time
from dataclasses import dataclass
from typing import Callable, Optional

from ._lanes import Call, Operation


@dataclass(frozen=True)
class Follow:
    """Two calls, both of which all members make."""

    first: Call
    #: What the second is, when the first has succeeded. What it raises is the error of the work.
    second: Callable[[], Call]


class Chain:
    """A part of a work. The tag of the second operation is taken with that of the first, so that all members count
    alike; whoever finds the first over begins the second."""

    has_begun = True

    def __init__(self, first: Operation, make: Callable[[], Operation]):
        """``make`` makes the second operation."""
        self.first, self._make = first, make
        self._guard = threading.Lock()
        self._second: Optional[Operation] = None
        self._error: Optional[BaseException] = None

    def over(self, limit_s: float) -> bool:
        """As of a part."""
        until = time.monotonic() + limit_s
        if not self.first.over(limit_s):
            return False
        # Without the guard, somebody else is about to begin the second.
        if self._second is None and self._guard.acquire(blocking=False):
            try:
                self._go_on(1.0)
            finally:
                self._guard.release()
        if self._error is not None:
            return True
        return self._second is not None and self._second.over(until - time.monotonic())

    def end(self, limit_s: float) -> Optional[BaseException]:
        """As of a part."""
        until = time.monotonic() + limit_s
        with self._guard:
            self._go_on(limit_s)
        return self._error if self._second is None else self._second.end(until - time.monotonic())

    def abort(self) -> None:
        """As of a part."""
        self.first.abort()
        if self._second is not None:
            self._second.abort()

    def _go_on(self, limit_s: float) -> None:
        if self._second is not None or self._error is not None:
            return
        self._error = self.first.end(limit_s)
        if self._error is not None:
            return
        try:
            second = self._make()
            # Before what was called later: otherwise two members could wait for each other's queues.
            second.enter(first=True)
            self._second = second
        except Exception as error:
            self._error = error
