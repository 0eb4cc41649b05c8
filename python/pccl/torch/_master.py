"""Where the master of a process group is: given, or started beside rank 0."""

import atexit
import ipaddress
import os
import secrets
import socket
import threading
import time
from typing import Any, Callable, List, Optional, Tuple

from .._communicator import Communicator
from .._errors import PCCLError
from .._master_node import MasterNode
from ._errors import CollectiveError
from ._members import Members
from ._start import newest

#: Names the master for all process groups of this process: ``host:port`` or ``pccl://host:port#key``.
ENVIRONMENT = "PCCL_MASTER"
#: How long the process that runs the master stays for members that have not left.
_LINGER_S = 10.0
_PAUSE_S = 0.02
#: How long a master that may be dead is dialled before the store is asked for a newer one: at first, and later on.
_LOOK_S, _LONGEST_LOOK_S, _LEAST_S = 1.0, 16.0, 0.001


class Embedded:
    """A master in this process, for a group whose store says where it is."""

    def __init__(self, host: str) -> None:
        local = _is_local(host)
        given = os.environ.get("PCCL_RUN_KEY")
        # A process that reads the store takes part; no other does.
        key = None if local or given else secrets.token_hex(32)
        self._node = MasterNode("127.0.0.1:0" if local else "0.0.0.0:0", run_key=key)
        self._node._run_embedded()
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._node.port}" if key is None else f"pccl://{shown}:{self._node.port}#{key}"
        self._guard, self._over = threading.Lock(), False
        self._all_arrived: Callable[[], bool] = lambda: True
        self._latest = time.monotonic()
        atexit.register(self.stop)

    def expect(self, all_arrived: Callable[[], bool], limit_s: float) -> None:
        """Who has not come yet is waited for, too, before the master ends: for up to ``limit_s`` from now."""
        self._all_arrived, self._latest = all_arrived, time.monotonic() + limit_s

    def stop(self) -> None:
        """Ends the master when all members have come and left, or ten seconds after the last that it waits for."""
        with self._guard:
            if self._over:
                return
            self._over = True
        atexit.unregister(self.stop)
        self._wait_for_the_others()
        self._node.destroy()

    def _wait_for_the_others(self) -> None:
        try:
            while time.monotonic() < self._latest and not self._all_arrived():
                time.sleep(_PAUSE_S)
        except RuntimeError:
            # The store is gone, and with it whoever would look for the master there.
            pass
        deadline = time.monotonic() + _LINGER_S
        try:
            with Communicator(self.address, formed_groups=True, first_ports=(0, 0), name="watches-the-master",
                              connect_timeout=1.0) as watcher:
                watcher.connect()
                while len(watcher.status()["peers"]) > 1 and time.monotonic() < deadline:
                    time.sleep(_PAUSE_S)
        except PCCLError:
            # Somebody has ended it already.
            pass


class Found:
    """The master that the groups of this process use, from the creation of its first group to the end of that."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._address: Optional[str] = None

    def note(self, address: Optional[str]) -> None:
        """Remembers where it is."""
        with self._guard:
            self._address = address

    @property
    def address(self) -> Optional[str]:
        """Where it is, if that is known."""
        with self._guard:
            return self._address or os.environ.get(ENVIRONMENT) or None


found = Found()


def through_store(store: Any, rank: int, start: str) -> Tuple[str, Optional[Embedded]]:
    """The address of the master that rank 0 starts, by way of the store."""
    if rank != 0:
        return _address(store, start), None
    master = Embedded(own_host(store))
    store.set(_address_key(start), master.address)
    return master.address, master


def follow(store: Any, attempt: int, connect: Callable[..., Members], limit_s: float) -> Tuple[str, str, Members]:
    """Connects to the master of the newest start: the name of that start, the address and the connection.

    Rank 0 waits for nobody, and so confirms no start. A store that outlives its processes holds the start of the dead
    ones until rank 0 has announced its own. Their master died with their rank 0: this process asks the store again
    where nobody answers. The number of restarts that torchrun gives does not tell them apart: each of its agents counts
    its own.
    """
    deadline, look_s = time.monotonic() + limit_s, _LOOK_S
    while True:
        start = newest(store, attempt)
        address = _address(store, start)
        left_s = max(deadline - time.monotonic(), _LEAST_S)
        try:
            # A connection of its own, since this limit would count for each later one as well.
            connect(address, left_s, connect_timeout=min(look_s, left_s)).leave()
            if newest(store, attempt) == start:
                return start, address, connect(address, left_s)
        except CollectiveError:
            if time.monotonic() >= deadline:
                raise
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
            time.sleep(_PAUSE_S)


def _address(store: Any, start: str) -> str:
    return bytes(store.get(_address_key(start))).decode()


def _address_key(start: str) -> str:
    return f"pccl/master/{start}"


def arrive(store: Any, size: int, start: str, master: Optional[Embedded], limit_s: float) -> None:
    """Says in the store that this process is connected; the one with the master waits for all to say so."""
    key = f"pccl/arrived/{start}"
    store.add(key, 1)
    if master is not None:
        master.expect(lambda: int(store.add(key, 0)) >= size, limit_s)


def own_host(store: Any) -> str:
    """The address under which the others reach this process: that of the interface towards the host of the store."""
    for host, port in _hosts_of(store):
        try:
            kind, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                # Sends nothing: it only asks which way packets would take.
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def _hosts_of(store: Any) -> List[Tuple[str, int]]:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    # A store in a file or in this process is for one machine.
    return [(store.host, store.port)] if hasattr(store, "host") else []


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
