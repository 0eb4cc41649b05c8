"""Groups that have all members of the default group: they use its communicator, instead of one of their own."""

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from ._lanes import Lanes
from ._tags import SPACES

if TYPE_CHECKING:
    from ._group import PCCLProcessGroup

#: Groups that share one communicator at a time: each may have one operation in flight, whatever the others do.
_MOST = 64


class Default:
    """The default group of this process, as long as it is there and its ranks are fixed."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._group: "Callable[[], Optional[PCCLProcessGroup]]" = lambda: None
        self._start = ""
        # Never the same again: a group that is over here may still have operations in flight elsewhere.
        self._spaces = itertools.count(1)

    def note(self, group: "PCCLProcessGroup", start: str) -> None:
        """Remembers it, and the name of its start."""
        with self._guard:
            self._group, self._start = weakref.ref(group), start

    @property
    def start(self) -> Optional[str]:
        """A name for keys that only its members have."""
        with self._guard:
            group, start = self._group(), self._start
        return None if group is None or group.is_over else start

    def shared(self, given: Any, needs_own: bool, key: str) -> Optional[Tuple[Lanes, int]]:
        """What a new group uses of the default one, and its space of tags there. Rank 0 decides for all, by the store;
        it does not share if this group needs connections of its own."""
        group = self._group()
        if group is None or group.is_over or list(given.global_ranks_in_group) != list(range(group.size())):
            return None
        if given.group_rank == 0:
            given.store.set(key, str(0 if needs_own else self._space(group)))
        space = int(bytes(given.store.get(key)))
        return None if space == 0 else (group.lanes, space)

    def _space(self, group: "PCCLProcessGroup") -> int:
        if group.last_error is not None or len(group.lanes.members.users) >= _MOST:
            return 0
        space = next(self._spaces)
        return space if space < SPACES else 0


default = Default()
