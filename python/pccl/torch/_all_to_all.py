"""The all-to-all of c10d, by that of PCCL: each part goes straight to its member, and all have one outcome."""

from datetime import timedelta
from typing import TYPE_CHECKING, List, Optional, Sequence, Union

import torch

from ._chain import Follow
from ._errors import CollectiveError
from ._lanes import Call
from ._tensors import Host, as_bytes
from ._work import CollectiveWork, Finish, Part

#: In groups of up to this many all members are connected with each other. In larger ones parts would go around the ring.
MOST_DIRECT = 8


class AllToAll:
    """The ways in which members give each other parts."""

    if TYPE_CHECKING:
        def rank(self) -> int: ...
        def size(self) -> int: ...
        def launch(self, what: str, calls: Sequence[Union[Call, Follow, Part]] = (),
                   outputs: Sequence[torch.Tensor] = (), finish: Sequence[Finish] = (),
                   timeout: Optional[timedelta] = None) -> CollectiveWork: ...

    def _equal_parts(self, what: str, output: torch.Tensor, its: Host, into: Host,
                     timeout: Optional[timedelta]) -> CollectiveWork:
        """All members call it with as many elements."""
        if its.flat.numel() != into.flat.numel():
            raise CollectiveError(f"{what}: {its.flat.numel()} elements to send, {into.flat.numel()} to receive, in "
                                  f"equal parts for {self.size()} members")
        call = Call(lambda comm, tag: comm.all_to_all_async(as_bytes(its.flat), as_bytes(into.flat), tag=tag))
        return self.launch(what, [call], [output], [into.put_back], timeout)

    def _given_parts(self, what: str, outputs: Sequence[torch.Tensor], sent: torch.Tensor, given: List[int],
                     taken: List[int], into: torch.Tensor, finish: Sequence[Finish],
                     timeout: Optional[timedelta]) -> CollectiveWork:
        """Members know how many bytes they give and take themselves: ``sent`` and ``into`` are bytes, by rank."""
        parts = _Parts(what, given, taken)

        def move() -> Call:
            counts = parts.of_all()
            return Call(lambda comm, tag: comm.all_to_all_async(sent, into, counts=counts, tag=tag))

        return self.launch(what, [Follow(parts.exchange(), move)], outputs, finish, timeout)


class _Parts:
    """How many bytes each member gives each."""

    def __init__(self, what: str, given: List[int], taken: List[int]):
        self._what, self._size = what, len(given)
        self._own = torch.tensor([*given, *taken], dtype=torch.int64)
        self._all = torch.empty(len(given) * len(self._own), dtype=torch.int64)

    def exchange(self) -> Call:
        """The operation that brings the numbers of all."""
        return Call(lambda comm, tag: comm.all_gather_async(self._own, self._all, tag=tag))

    def of_all(self) -> List[List[int]]:
        """What each gives each; all raise if a member takes more or less than that."""
        rows = self._all.view(self._size, 2, self._size).tolist()
        for source, (given, _) in enumerate(rows):
            for target, count in enumerate(given):
                taken = rows[target][1][source]
                if count != taken:
                    raise CollectiveError(f"{self._what}: rank {source} gives rank {target} {count} bytes, and rank "
                                          f"{target} takes {taken} of it")
        return [given for given, _ in rows]
