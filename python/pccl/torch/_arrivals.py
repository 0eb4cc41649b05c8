"""``recv`` from whoever sends. Both ends of a transfer of PCCL name each other, so it waits until somebody has called
``send`` to this process, which the master knows and tells, and then takes that."""

import re
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from .._enums import Result
from .._errors import PCCLError, TimedOut
from ._errors import CollectiveError
from ._lanes import Call, Operation
from ._members import Members

if TYPE_CHECKING:
    from ._group import PCCLProcessGroup

#: What the status of the master says of a ``send`` that the other end has not answered.
_OFFER = re.compile(r"send-recv tag (\d+) from ([0-9a-f]{8}) to ([0-9a-f]{8}) .* waits to begin for ")
#: How soon the master is asked again, at first and later on.
_SOON_S, _LATER_S = 0.002, 0.05


class Arrival:
    """A part of a work: the transfer from the first that sends with a tag."""

    has_begun = True

    def __init__(self, arrivals: "Arrivals", tag: int, take: Callable[[int], Call]):
        """``take`` makes the call that takes it from a rank."""
        self._arrivals, self.tag, self.take = arrivals, tag, take
        self._began = time.monotonic()
        #: The operation, when somebody has been found.
        self.operation: Optional[Operation] = None
        #: The rank of who that is.
        self.source = -1
        self.error: Optional[BaseException] = None

    def over(self, limit_s: float) -> bool:
        """As of a part."""
        until = time.monotonic() + limit_s
        while self.operation is None and self.error is None:
            wait_s = self._arrivals.look()
            left = until - time.monotonic()
            if self.operation is None and self.error is None:
                if left <= 0:
                    return False
                time.sleep(min(wait_s, left))
        return self.operation is None or self.operation.over(until - time.monotonic())

    def end(self, limit_s: float) -> Optional[BaseException]:
        """As of a part."""
        until = time.monotonic() + limit_s
        if not self.over(limit_s) and self._arrivals.forget(self):
            waited_s = time.monotonic() - self._began
            error = TimedOut(Result.INVALID_USAGE, "recv", f"nobody has sent with tag {self.tag}", cause="TimedOut")
            self.error = self._arrivals.members.explained("recv", error, waited_s)
        return self.error if self.operation is None else self.operation.end(until - time.monotonic())

    def abort(self) -> None:
        """As of a part."""
        if self._arrivals.forget(self):
            self.error = CollectiveError("recv: given up before anybody has sent")
        elif self.operation is not None:
            self.operation.abort()


class Arrivals:
    """All such transfers of one group, in the order of the calls."""

    def __init__(self, group: "PCCLProcessGroup", members: Members):
        # A group that nobody has any more goes at once, and not when Python looks for circles.
        self._of_group, self.members, self._guard = weakref.ref(group), members, threading.Lock()
        self._waiting: List[Arrival] = []
        self._due, self._pause_s = 0.0, _SOON_S

    @property
    def _group(self) -> "PCCLProcessGroup":
        group = self._of_group()
        if group is None:
            raise CollectiveError("recv: the process group is gone")
        return group

    def expect(self, tag: int, take: Callable[[int], Call]) -> Arrival:
        """One more."""
        arrival = Arrival(self, tag, take)
        with self._guard:
            self._waiting.append(arrival)
            self._due, self._pause_s = 0.0, _SOON_S
        return arrival

    def forget(self, arrival: Arrival) -> bool:
        """Whether it was still waiting."""
        with self._guard:
            if arrival not in self._waiting:
                return False
            self._waiting.remove(arrival)
            return True

    def look(self) -> float:
        """Asks the master who sends, if it is time to, and says when it will be again."""
        with self._guard:
            left = self._due - time.monotonic()
            if left > 0 or not self._waiting:
                return max(left, _SOON_S)
            try:
                waits = self.members.communicator.status()["waits"]
                self._match([found for wait in waits if (found := _OFFER.match(wait["text"]))])
            except PCCLError as error:
                for arrival in self._waiting:
                    arrival.error = self.members.explained("recv", error, time.monotonic() - arrival._began)
                self._waiting = []
            self._pause_s = min(1.5 * self._pause_s, _LATER_S)
            self._due = time.monotonic() + self._pause_s
            return self._pause_s

    def _match(self, offers: List[Any]) -> None:
        ranks = self.members.ranks()
        own = self.members.communicator.peer_id.hex()[:8]
        for arrival in list(self._waiting):
            for found in offers:
                rank = ranks.get(found[2])
                if found[3] != own or rank is None:
                    continue
                try:
                    operation = self._group.take_if_next(int(found[1]), arrival.take(rank))
                except Exception as error:
                    operation, arrival.error = None, error
                if operation is None and arrival.error is None:
                    continue
                self._waiting.remove(arrival)
                arrival.source, arrival.operation = rank, operation
                self._pause_s = _SOON_S
                break
