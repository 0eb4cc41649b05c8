"""The thread of a process group that ends operations for which nobody waits, and those whose futures somebody has."""

import threading
from typing import Dict, List, Optional, Set

from ._errors import CollectiveError
from ._lanes import Lanes
from ._work import CollectiveWork

#: How long the thread waits for one operation before it looks at the others.
_SLICE_S = 0.005
#: How long the thread leaves an operation to whoever has begun it, who in most programs waits for it soon.
_GRACE_S = 0.02
#: After as long without an operation the thread ends; the next operation starts another one.
_IDLE_S = 1.0


class Completion:
    """Operations in flight of one group."""

    def __init__(self, name: str, lanes: Lanes) -> None:
        self._name, self.lanes = name, lanes
        self._guard = threading.Condition()
        # All works, and those of them that are in no queue, of which there are never many.
        self._flying: Dict[CollectiveWork, None] = {}
        self._begun: Dict[CollectiveWork, None] = {}
        self._thread: Optional[threading.Thread] = None
        self._is_idle, self._is_over, self._is_released = False, False, False
        #: The last failure of communication since the last ``forget``.
        self.last_error: Optional[CollectiveError] = None

    def launched(self, work: CollectiveWork) -> None:
        """Notes an operation that has begun."""
        with self._guard:
            self._flying[work] = None
            if work.has_begun:
                self._begun[work] = None
            if not self._is_over and (self._thread is None or self._is_called_back()):
                self._start()
            elif self._is_idle:
                self._guard.notify()

    def collectives(self) -> List[CollectiveWork]:
        """The collectives in flight, in the order of the calls."""
        with self._guard:
            return [work for work in self._flying if work.is_collective]

    def hurry(self) -> None:
        """Somebody wants a future: the thread waits for that from now on."""
        with self._guard:
            if self._is_called_back() and not self._is_over:
                self._start()
            self._guard.notify()

    def _is_called_back(self) -> bool:
        """Whether this is what the thread calls when a future is done. It may wait for what it has just begun, as the
        hook PowerSGD of torch does, and so the thread is not the one to end that."""
        return self._thread is threading.current_thread()

    def _start(self) -> None:
        """Another thread takes over from the one there is, if there is one."""
        self._thread = threading.Thread(target=self._run, name=f"{self._name} works", daemon=True)
        self._thread.start()

    def ended(self, work: CollectiveWork, error: Optional[CollectiveError]) -> None:
        """Notes the end of an operation."""
        with self._guard:
            self._flying.pop(work, None)
            self._begun.pop(work, None)
            if error is not None:
                self.last_error = error

    def forget(self) -> None:
        """Nothing has failed so far."""
        with self._guard:
            self.last_error = None

    def abort(self) -> None:
        """Gives up all that is in flight, and waits for its end, which the giving up brings."""
        with self._guard:
            flying = list(self._flying)
        # The last first: otherwise those in queues would begin.
        for work in reversed(flying):
            work.abort()
        for work in flying:
            work.end(0.0)

    def stop(self) -> None:
        """Ends the thread, when it has come to it."""
        with self._guard:
            self._is_over = True
            thread, self._thread = self._thread, None
            self._guard.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def release(self) -> None:
        """Ends the thread as soon as nothing is in flight: nothing more will be."""
        with self._guard:
            self._is_released = True
            self._guard.notify()

    def leaves_queue(self, work: CollectiveWork) -> None:
        """An operation of the work has left its queue."""
        with self._guard:
            if work in self._flying and work.has_begun:
                self._begun[work] = None

    def _run(self) -> None:
        known: Set[CollectiveWork] = set()
        while True:
            begun = self._next()
            if begun is None:
                return
            hurried = begun if self.lanes.is_full else [work for work in begun if work.has_future]
            if hurried:
                hurried[0].over(_SLICE_S)
            else:
                with self._guard:
                    self._guard.wait(_GRACE_S)
            for work in begun:
                if work in known or work.has_future or self.lanes.is_full:
                    work.advance()
            known = set(begun)

    def _next(self) -> Optional[List[CollectiveWork]]:
        """What is in flight, as soon as something is; ``None`` if that takes too long."""
        with self._guard:
            if self._thread is not threading.current_thread():
                return None
            if not self._flying and not self._is_over and not self._is_released:
                self._is_idle = True
                self._guard.wait(_IDLE_S)
                self._is_idle = False
            if self._is_over or not self._flying:
                self._thread = None
                return None
            return list(self._begun)
