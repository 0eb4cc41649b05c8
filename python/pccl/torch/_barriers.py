"""Barriers of c10d. Their errors have the words of Gloo, which programs look for."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

from ._errors import CollectiveError
from ._lanes import Call
from ._members import Members
from ._work import CollectiveWork, Part


class Barriers:
    """Calls in which all members wait for each other."""

    #: What torch calls, also on the object that stands for the backend.
    CALLS = ("barrier", "monitored_barrier")

    if TYPE_CHECKING:
        _members: Members
        _limit: timedelta

        def rank(self) -> int: ...
        def collectives_in_flight(self) -> List[CollectiveWork]: ...
        def launch(self, what: str, calls: Sequence[Union[Call, Part]] = (), *,
                   timeout: Optional[timedelta] = None) -> CollectiveWork: ...

    def barrier(self, opts: Any = None, **named: Any) -> CollectiveWork:
        """Over when all members have called it and the earlier collectives of this process are over: programs take the
        results of those without a ``wait`` of their own. It fails if one of them does."""
        limit = named.get("timeout") or getattr(opts, "timeout", None)
        call = Call(lambda comm, tag: comm.barrier_async(tag=tag))
        return self.launch("barrier", [*self.collectives_in_flight(), call], timeout=limit)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names, at rank 0, the first member that has not come, or all with ``wait_all_ranks``.
        The verdict behind that names all in any case, on all members."""
        limit = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
        if limit is None or limit < timedelta(0):
            limit = self._limit
        work = self.launch("monitored_barrier", [Call(lambda comm, tag: comm.barrier_async(tag=tag))])
        error = work.end(limit.total_seconds())
        if error is None:
            return
        if not isinstance(error, CollectiveError) or error.error is None:
            raise error
        text = f"{self._not_passed(error, limit, wait_all_ranks)}\nOriginal exception: {error}"
        raise CollectiveError(text, error.error, error.verdict) from error.error

    def _not_passed(self, error: CollectiveError, limit: timedelta, wait_all_ranks: bool) -> str:
        rank, limit_ms = self.rank(), round(limit.total_seconds() * 1000)
        if rank != 0:
            return (f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                    "from rank 0. Please check rank 0 logs for faulty rank.")
        if limit_ms == 0:
            return f"Rank 0 timed out in monitoredBarrier after {limit_ms} ms."
        missing: List[int] = [other for other in self._members.ranks_of(error.culprits) if other != 0]
        if not missing:
            return "[Rank 0]: monitoredBarrier failed"
        ranks = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
        return f"[Rank 0]: {ranks} failed to pass monitoredBarrier in {limit_ms} ms"
