"""The tags of the operations of one process group."""

from collections import defaultdict
from typing import Any, DefaultDict, Tuple

from ._lanes import ALL, Lane

#: Operations that may be in flight together are counted modulo this, which is more than there can be.
_ROUND = 1 << 12
#: Bits of a tag of torch.
_TAG_BITS = 32
#: Where the tags of transfers begin that no caller has asked for.
OWN = 1 << 62
#: Where the tags of collectives of groups begin that share a communicator.
_BESIDE = 1 << 60
#: Groups that can share a communicator, one after the other.
SPACES = 1 << 16


class Tags:
    """The tags of one group. Groups over the same members share a communicator; each has a space of tags of its own, so
    that the calls of one of them are counted by all of its members alike, whatever the other groups do meanwhile."""

    def __init__(self, communicator: Any, space: int = 0):
        """Space 0 is that of the calls which are made of the communicator itself."""
        self._communicator, self.space = communicator, space
        self._round = communicator._tag_rounds
        self._counts: DefaultDict[Tuple[Lane, int], int] = defaultdict(int)

    def _counted(self) -> DefaultDict[Tuple[Lane, int], int]:
        """How many operations each lane has had since the last call that all members made together. A transfer that
        failed may have begun at one end only, and a rank may be that of another member now: from such a call on both
        ends count from zero again."""
        if self._round != self._communicator._tag_rounds:
            self._round = self._communicator._tag_rounds
            self._counts.clear()
        return self._counts

    def take(self, lane: Lane, tag: int) -> int:
        """The tag of the next operation in this lane: for a transfer that of torch, and how many with it there were."""
        if lane == ALL and self.space == 0:
            return self._communicator._tag(None)
        number = self.next(lane, tag)
        self._counted()[lane, tag] += 1
        return number

    def next(self, lane: Lane, tag: int) -> int:
        """The tag that ``take`` returns next, of all but collectives in space 0."""
        count = self._counted()[lane, tag] % _ROUND
        if lane == ALL:
            return _BESIDE + self.space * _ROUND + count
        own, tag = (OWN, tag - OWN) if tag >= OWN else (0, tag)
        return own + ((self.space << _TAG_BITS) + tag) * _ROUND + count
