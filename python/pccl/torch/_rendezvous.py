"""How the processes of a job find each other through a master: ``init_method="pccl://host:48148"``."""

import hashlib
import os
import time
from datetime import timedelta
from typing import Any, Dict, Iterator, List, Tuple
from urllib.parse import parse_qsl, urlsplit

from torch.distributed import HashStore, TCPStore

from .._communicator import Communicator
from .._errors import NotConnected, PCCLError, TimedOut
from ._errors import failed
from ._master import found

#: Bytes for the address of the store that rank 0 serves.
_ROOM = 256


def rendezvous(url: str, timeout: timedelta = timedelta(minutes=5), **_: Any) -> Iterator[Tuple[Any, int, int]]:
    """The store, the rank and the number of processes. Without a number, or with 1, it is this process alone, which
    ``reconfigure`` then puts together with others."""
    parts = urlsplit(url)
    given: Dict[str, str] = dict(parse_qsl(parts.query))
    address = f"pccl://{parts.netloc}#{parts.fragment}" if parts.fragment else parts.netloc
    size = int(given.get("world_size", os.environ.get("WORLD_SIZE", -1)))
    rank = int(given.get("rank", os.environ.get("RANK", -1)))
    # A torchrun for each replica says 1, too.
    if size < 1 or (size, rank) == (1, 0):
        found.note(address)
        yield HashStore(), 0, 1
        return
    if not 0 <= rank < size:
        raise ValueError(f"pccl://: rank {rank} of {size} processes: give rank and world_size, or set RANK and WORLD_SIZE")
    deadline = time.monotonic() + timeout.total_seconds()
    with Communicator(address, name=_name(rank), formed_groups=True, first_ports=(0, 0)) as comm:
        try:
            comm.connect(timeout=timeout.total_seconds())
            _meet(comm, size, deadline)
            host = next(peer["host"] for peer in comm.status()["peers"] if peer["peer"] == comm.peer_id.hex())
            store = _store_of(comm, rank, size, host, timeout)
        except PCCLError as error:
            raise failed(f"rendezvous at {parts.netloc}", error) from error
    found.note(address)
    yield store, rank, size


def _name(rank: int) -> str:
    return f"torch-rank-{rank}"


def _meet(comm: Communicator, size: int, deadline: float) -> None:
    """Forms the group of all ranks. They have nothing in common yet but their number, so they count their tries."""
    names: List[Any] = [_name(rank) for rank in range(size)]
    attempt = 0
    while True:
        uuid = int.from_bytes(hashlib.sha256(f"pccl.torch {size} {attempt}".encode()).digest()[:16], "big")
        try:
            comm.form_group(uuid, names, timeout=max(deadline - time.monotonic(), 0.001))
            return
        except (TimedOut, NotConnected):
            raise
        except PCCLError:
            # Somebody has used that number in an earlier try, or was lost in this one.
            if time.monotonic() >= deadline:
                raise
            attempt += 1


def _store_of(comm: Communicator, rank: int, size: int, host: str, timeout: timedelta) -> Any:
    """The store that rank 0 serves."""
    text = bytearray(_ROOM)
    store = None
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        shown = f"{host} {store.port}".encode()
        text[:len(shown)] = shown
    comm.broadcast(text, 0, timeout=timeout.total_seconds())
    if store is None:
        where, port = text.rstrip(b"\0").decode().split(" ")
        store = TCPStore(where, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
    # Rank 0 leaves when the others have the address.
    comm.barrier(timeout=timeout.total_seconds())
    return store
