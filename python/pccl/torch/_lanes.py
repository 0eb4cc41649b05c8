"""Operations of PCCL in flight, and the queues of those for which there is no room yet.

A communicator has a limit for what is in flight; torch has none. Operations beyond it wait, in the order of the calls:
the collectives of a group in one lane, and its transfers to and from each other member in lanes of their own, so that no
full lane holds up what it waits for itself.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Optional, Sequence, Tuple

from .._enums import Result
from .._errors import PCCLError, TimedOut
from .._reduces import AsyncReduceHandle
from ._errors import CollectiveError

if TYPE_CHECKING:
    from ._members import Members

#: ``("all", 0)``, or the direction and the other member of a transfer.
Lane = Tuple[str, int]
ALL: Lane = ("all", 0)
#: Operations that one communicator has in flight, of the 1,024 that it may have; those of the program's own calls and of
#: its segments are among them.
_MOST = 896
#: Of these, how many are for the only one of a lane: groups that share a communicator do not hold each other up.
_FIRSTS = 128
_MOST_COLLECTIVES = 256


@dataclass(frozen=True)
class Call:
    """One operation of PCCL that a call of torch consists of."""

    #: Begins it; gets the communicator and the tag.
    begin: Callable[[Any, int], AsyncReduceHandle]
    lane: Lane = ALL
    #: The tag of a transfer, as torch has it.
    tag: int = 0


class Operation:
    """An operation of PCCL: in a queue, in flight, or over."""

    def __init__(self, what: str, call: Call, tag: int, lanes: "Lanes", space: int):
        """``space`` is that of the tags of its group."""
        self._call, self._what, self._tag, self._lanes = call, what, tag, lanes
        self.lane = (space, call.lane)
        self._began = time.monotonic()
        self._handle: Optional[AsyncReduceHandle] = None
        self._error: Optional[Exception] = None
        #: The work of torch that it is a part of.
        self.work: Any = None
        # Made when it is queued; without it, it has begun.
        self.queued: Optional[threading.Event] = None
        self.has_room = False

    @property
    def first(self) -> "Operation":
        """The operation of a work that begins first."""
        return self

    @property
    def has_begun(self) -> bool:
        """Whether it is in no queue any more."""
        return self.queued is None or self.queued.is_set()

    def enter(self, first: bool = False) -> None:
        """Begins it, or queues it; see ``Lanes.enter``."""
        self._lanes.enter([self], first)

    def start(self, communicator: Any) -> None:
        """Begins it. An error is that of the operation."""
        try:
            self._handle = self._call.begin(communicator, self._tag)
        except PCCLError as error:
            self._error = self._explained(error)
        except Exception as error:
            self._error = error

    def refuse(self, error: Exception) -> None:
        """It does not begin."""
        self._error = error

    @property
    def refused(self) -> Optional[Exception]:
        """Why it could not begin."""
        return self._error if self._handle is None else None

    def over(self, limit_s: float) -> bool:
        """As of a part."""
        if self.queued is not None and not self.queued.wait(max(limit_s, 0.0)):
            return False
        if self._handle is None or self._handle._result is not None:
            return True
        try:
            return self._handle._is_over(int(max(limit_s, 0.0) * 1000))
        except PCCLError:
            # Awaiting it says the same.
            return True

    def end(self, limit_s: float) -> Optional[BaseException]:
        """As of a part."""
        until = time.monotonic() + limit_s
        if self.queued is not None and not self.queued.wait(max(limit_s, 0.0)):
            text = "no room among the operations in flight, which have to end first"
            error = TimedOut(Result.INVALID_USAGE, self._what, text, cause="TimedOut")
            self._lanes.drop(self, self._explained(error))
        if self._handle is None:
            return self._error
        try:
            self._handle.wait(max(until - time.monotonic(), 0.0))
        finally:
            if self._handle._result is not None:
                self._lanes.leave(self)
        failure = self._handle.error
        return None if failure is None else self._explained(failure)

    def abort(self) -> None:
        """As of a part."""
        self._lanes.drop(self, CollectiveError(f"{self._what}: given up before there was room for it"))
        if self._handle is None:
            return
        try:
            self._handle.abort()
        except PCCLError:
            # It is over.
            pass

    def _explained(self, error: PCCLError) -> CollectiveError:
        return self._lanes.members.explained(self._what, error, time.monotonic() - self._began)


class Lanes:
    """The operations that one communicator has in flight, and those that wait for these to end."""

    def __init__(self, members: "Members"):
        self.members = members
        self._guard = threading.RLock()
        self._flying: Dict[Tuple[int, Lane], int] = {}
        self._waiting: Dict[Tuple[int, Lane], Deque[Operation]] = {}

    @property
    def is_full(self) -> bool:
        """Whether something waits for room."""
        return bool(self._waiting)

    def enter(self, operations: Sequence[Operation], first: bool = False) -> None:
        """Begins what there is room for, and queues the rest: behind what waits, or with ``first`` before it. Raises
        the error of one that could not begin, and gives up the others."""
        with self._guard:
            for place, operation in enumerate(operations):
                lane = operation.lane
                if lane not in self._waiting and self._has_room(lane):
                    self._start(operation)
                    if operation.refused is not None:
                        for other in operations[:place]:
                            other.abort()
                            other.end(0.0)
                        raise operation.refused
                    continue
                operation.queued = threading.Event()
                queue = self._waiting.setdefault(lane, deque())
                (queue.appendleft if first else queue.append)(operation)

    def leave(self, operation: Operation) -> None:
        """An operation is over: others may begin."""
        with self._guard:
            if not operation.has_room:
                return
            self._release(operation)
            for lane in [operation.lane, *self._waiting]:
                while lane in self._waiting and self._has_room(lane):
                    following = self._waiting[lane][0]
                    self._start(following)
                    self._out_of_queue(following)

    def drop(self, operation: Operation, error: CollectiveError) -> None:
        """Takes an operation out of its queue, if it is in one, with this error. Its tag is left out: others that wait
        for it do so until their own limit."""
        with self._guard:
            if operation in self._waiting.get(operation.lane, ()):
                operation.refuse(error)
                self._out_of_queue(operation)

    def _out_of_queue(self, operation: Operation) -> None:
        queue = self._waiting[operation.lane]
        queue.remove(operation)
        if not queue:
            del self._waiting[operation.lane]
        assert operation.queued is not None
        operation.queued.set()
        work, operation.work = operation.work, None
        if work is not None:
            work.leaves_queue()

    def _has_room(self, lane: Tuple[int, Lane]) -> bool:
        most = _MOST_COLLECTIVES
        if lane[1] != ALL:
            most = max(1, (_MOST - _FIRSTS - _MOST_COLLECTIVES) // max(1, 2 * (self.members.size - 1)))
        here, everywhere = self._flying.get(lane, 0), sum(self._flying.values())
        return here < most and everywhere < (_MOST - _FIRSTS if here else _MOST)

    def _start(self, operation: Operation) -> None:
        self._flying[operation.lane] = self._flying.get(operation.lane, 0) + 1
        operation.has_room = True
        operation.start(self.members.communicator)
        if operation.refused is not None:
            self._release(operation)

    def _release(self, operation: Operation) -> None:
        operation.has_room = False
        self._flying[operation.lane] -= 1
        if not self._flying[operation.lane]:
            # Groups come and go.
            del self._flying[operation.lane]
