"""The thread of a process group that ends operations whose futures somebody has."""

import queue
import threading
from typing import List, Optional, Set

from ._errors import CollectiveError
from ._work import CollectiveWork

#: How long the thread waits for one operation before it looks at the others.
_SLICE_S = 0.005


class Completion:
    """Operations in flight of one group. The thread starts with the first future and ends with the group."""

    def __init__(self, name: str) -> None:
        self._name, self._guard = name, threading.Lock()
        self._queue: "queue.SimpleQueue[Optional[CollectiveWork]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._flying: Set[CollectiveWork] = set()
        #: The last failure of communication since the last ``forget``.
        self.last_error: Optional[CollectiveError] = None

    def launched(self, work: CollectiveWork) -> None:
        """Notes an operation that has begun."""
        with self._guard:
            self._flying.add(work)

    def take(self, work: CollectiveWork) -> None:
        """Has the thread wait for an operation."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"{self._name} futures", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def ended(self, work: CollectiveWork, error: Optional[CollectiveError]) -> None:
        """Notes the end of an operation."""
        with self._guard:
            self._flying.discard(work)
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
        for work in flying:
            work.abort()
        for work in flying:
            work.end(0.0)

    def stop(self) -> None:
        """Ends the thread, when it has come to it."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(5.0)

    def _run(self) -> None:
        pending: List[CollectiveWork] = []
        while True:
            # None of them holds up the others: what is over in the meantime is ended, too.
            try:
                while True:
                    work = self._queue.get(block=not pending)
                    if work is None:
                        return
                    pending.append(work)
                    if self._queue.empty():
                        break
            except queue.Empty:
                pass
            pending = [work for place, work in enumerate(pending) if not work.advance(0.0 if place else _SLICE_S)]
