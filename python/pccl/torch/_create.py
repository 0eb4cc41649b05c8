"""How ``torch.distributed`` comes by a process group of this backend."""

import functools
import itertools
import threading
from dataclasses import dataclass
from typing import Any, Dict, Optional

import torch.distributed as dist

from .._communicator import Communicator
from .._errors import PCCLError
from ._beside import default
from ._errors import failed
from ._group import PCCLProcessGroup
from ._lanes import Lanes
from ._master import arrive, follow, found, through_store
from ._members import Members, member_name
from ._start import announce, fresh, meet

_counting = threading.Lock()
_counts: Dict[str, "itertools.count[int]"] = {}


@dataclass
class Options:
    """What may be said as ``pg_options``. All of it has defaults."""

    #: Where the master is: ``host:port`` or ``pccl://host:port#key``. Default: that of ``init_method``, of the
    #: environment variable ``PCCL_MASTER``, or one that rank 0 starts.
    master: Optional[str] = None
    #: Arguments of ``pccl.Communicator``, such as ``advertised_host`` or ``first_ports``.
    communicator: Optional[Dict[str, Any]] = None
    #: A connected communicator; the group has the members that the run has. See ``elastic``.
    elastic: Optional[Communicator] = None


def register() -> None:
    """Makes the backend known to torch. The entry point does it; ``import pccl.torch`` as well."""
    if "PCCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("pccl", create, extended_api=True, devices=["cpu", "cuda"])


def create(given: Any, options: Any) -> PCCLProcessGroup:
    """What torch calls for a group with this backend."""
    chosen = options if isinstance(options, Options) else Options()
    rank, size, timeout, store = given.group_rank, given.group_size, given.timeout, given.store
    can_reconfigure = bool(getattr(given, "enable_reconfigure", False))
    is_default = not list(given.global_ranks_in_group)
    if chosen.elastic is not None:
        members = Members("", chosen.elastic, rank, size, is_formed=False)
        return PCCLProcessGroup(store, Lanes(members), timeout)
    attempt = _attempt(f"{given.group_id} {rank}")
    start = _start(given, is_default, can_reconfigure, attempt)
    if not can_reconfigure and not is_default:
        shared = default.shared(given, options is not None, f"pccl/space/{start}")
        if shared is not None:
            return PCCLProcessGroup(store, shared[0], timeout, space=shared[1])
    address, master, limit_s = chosen.master or found.address, None, timeout.total_seconds()
    in_store = address is None
    connect = functools.partial(_connected, chosen, rank, size, None if can_reconfigure else member_name(rank))
    try:
        if address is not None:
            members = connect(address, limit_s)
        elif can_reconfigure and rank != 0:
            start, address, members = follow(store, attempt, connect, limit_s)
        else:
            address, master = through_store(store, rank, start)
            if can_reconfigure:
                announce(store, attempt, start)
            members = connect(address, limit_s)
        if in_store:
            arrive(store, size, start, master, limit_s)
        group = PCCLProcessGroup(store, Lanes(members), timeout, can_reconfigure, master)
        if not can_reconfigure:
            members.form_through(store, rank, size, start, limit_s)
    except BaseException:
        if master is not None:
            master.stop()
        raise
    if is_default:
        found.note(address)
        group._is_default = True
        if not can_reconfigure:
            default.note(group, start)
    return group


def _start(given: Any, is_default: bool, can_reconfigure: bool, attempt: int) -> str:
    """The name of this start in keys. Members of a default group have met already, and a group that can be reconfigured
    waits for nobody."""
    if can_reconfigure:
        return fresh(attempt)
    met = None if is_default else default.start
    if met is not None:
        return f"{met}/{attempt}"
    return meet(given.store, given.group_rank, given.group_size, attempt, given.timeout.total_seconds())


def _connected(options: Options, rank: int, size: int, name: Optional[str], address: str, limit_s: float,
               **more: Any) -> Members:
    settings: Dict[str, Any] = {"first_ports": (0, 0), "name": name, **(options.communicator or {}), **more}
    communicator = Communicator(address, formed_groups=True, **settings)
    try:
        communicator.connect(timeout=limit_s)
    except PCCLError as error:
        communicator.destroy()
        raise failed("init_process_group", error) from error
    return Members(address, communicator, rank, size, is_formed=True)


def _attempt(member: str) -> int:
    """How often this process has made a group of that name and rank: its keys in a store that outlives it have that number."""
    with _counting:
        return next(_counts.setdefault(member, itertools.count()))
