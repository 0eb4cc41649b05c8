"""Keys for one start of a group, in a store that may have those of an earlier one."""

import time
from datetime import timedelta
from typing import Any, List
from uuid import uuid4

from ._errors import CollectiveError

_PAUSE_S = 0.02
#: How long a start that may be over is waited for before the store is asked for a newer one.
_LOOK = timedelta(seconds=1)


def fresh(attempt: int) -> str:
    """A name for a start that no other start has."""
    return f"{attempt}/{uuid4().hex}"


def announce(store: Any, attempt: int, start: str) -> None:
    """Makes ``start`` the newest one in the store."""
    store.set(_newest_key(attempt), start)


def newest(store: Any, attempt: int) -> str:
    """The name that rank 0 has announced last, maybe before this process was started."""
    return bytes(store.get(_newest_key(attempt))).decode()


def _newest_key(attempt: int) -> str:
    return f"pccl/start/{attempt}"


def meet(store: Any, rank: int, size: int, attempt: int, limit_s: float) -> str:
    """The name of this start in keys, the same for all ranks, and for them alone.

    The store of torchrun outlives the processes that it starts again, and has all that those before have written. So
    rank 0 makes a name for the start, and confirms it to each process that it has seen there.
    """
    deadline = time.monotonic() + limit_s
    if size < 2:
        return str(attempt)
    if rank == 0:
        name = fresh(attempt)
        announce(store, attempt, name)
        present = [bytes(store.get(f"pccl/here/{name}/{other}")) for other in range(1, size)]
        store.set(f"pccl/present/{name}", b" ".join(present))
        return name
    own = uuid4().hex.encode()
    while time.monotonic() < deadline:
        name = newest(store, attempt)
        store.set(f"pccl/here/{name}/{rank}", own)
        if own in _confirmed(store, f"pccl/present/{name}"):
            return name
        time.sleep(_PAUSE_S)
    raise CollectiveError(f"init_process_group: rank 0 has not confirmed this process within {limit_s:.0f} s")


def _confirmed(store: Any, key: str) -> List[bytes]:
    """The processes that rank 0 has seen. Those of a start that is over are not of this one."""
    try:
        store.wait([key], _LOOK)
        return bytes(store.get(key)).split()
    except RuntimeError:
        # A store that is gone says so again when it is asked for the start.
        return []
