"""Who is in a process group: one connection to the master, and the formings that give the ranks."""

import hashlib
import os
import re
import socket
import threading
from typing import Any, Dict, List, Match, Sequence
from uuid import uuid4
from weakref import WeakSet

from .._communicator import Communicator
from .._errors import ConnectFailed, PCCLError
from ._errors import CollectiveError, failed

_PREFIX = "pccl"
#: How the library names a peer: what its identity begins with, and where that stands in full, its name and address.
_PEER = re.compile(r"(?:peer )?\b([0-9a-f]{8})\b(?: \((?:rank-\d+@)?([^(),]*)(?:, [^()]*)?\))?")
#: How many bytes of the name of a host are in that of a member.
_HOST_BYTES = 40
#: The tag of the barrier of those who leave, which no call of torch has.
_PARTING = 1 << 61


class Members:
    """The membership of one process group. Between two formings it is fixed, and a member that is gone is an error that
    names it; a group that is not formed has the members that the run has."""

    def __init__(self, address: str, communicator: Communicator, rank: int, size: int, is_formed: bool):
        """``rank`` and ``size`` are those until the first forming."""
        self._address, self._is_formed = address, is_formed
        self._guard = threading.Lock()
        self._used: List[int] = []
        self._rank, self._size = rank, size
        self._ranks: Dict[str, int] = {}
        self.communicator = communicator
        #: The groups that have these members by this communicator.
        self.users: "WeakSet[Any]" = WeakSet()

    @property
    def rank(self) -> int:
        """The own rank."""
        return self._rank if self._is_formed else self.communicator.world().rank

    @property
    def size(self) -> int:
        """The number of members."""
        return self._size if self._is_formed else max(self.communicator.world().group_size, 1)

    def ranks(self) -> Dict[str, int]:
        """The members by what their identities begin with."""
        if self._is_formed:
            return self._ranks
        return {member.hex()[:8]: rank for rank, member in enumerate(self.communicator.ring())}

    def ranks_of(self, identities: Sequence[bytes]) -> List[int]:
        """The ranks of these members, in their order."""
        ranks = self.ranks()
        return sorted(ranks[identity.hex()[:8]] for identity in identities if identity.hex()[:8] in ranks)

    def explained(self, what: str, error: PCCLError, waited_s: float) -> CollectiveError:
        """An error of PCCL in the words of torch."""
        return failed(what, error, self.named, waited_s)

    def named(self, text: str) -> str:
        """A sentence of the library with the ranks of the members: ``rank 2 (host:pid)``."""
        return _PEER.sub(self._named, text)

    def _named(self, found: "Match[str]") -> str:
        rank, name = self._ranks.get(found[1]), found[2]
        if rank is None:
            return found[0]
        return f"rank {rank} ({name})" if name else f"rank {rank}"

    def _formed(self, world: Any, members: Sequence[bytes]) -> None:
        self._rank, self._size = world.rank, world.group_size
        self._ranks = {member.hex()[:8]: rank for rank, member in enumerate(members)}

    def form_through(self, store: Any, rank: int, size: int, start: str, timeout_s: float) -> None:
        """Forms the group of all ranks, who find each other by way of the store."""
        store.set(f"pccl/peer/{start}/{rank}", self.communicator.peer_id.hex())
        if rank == 0:
            store.set(f"pccl/uuid/{start}", uuid4().hex)
        members = [bytes.fromhex(bytes(store.get(f"pccl/peer/{start}/{other}")).decode()) for other in range(size)]
        uuid = int(bytes(store.get(f"pccl/uuid/{start}")).decode(), 16)
        try:
            world = self.communicator.form_group(uuid, members, timeout=timeout_s)
        except PCCLError as error:
            raise failed("init_process_group", error) from error
        self._formed(world, members)

    def handle(self) -> str:
        """What others need to form a group with this process: where the master is, who this is, and its name."""
        self._need_formed("get_reconfigure_handle")
        if not self.communicator.is_connected:
            try:
                self.communicator.connect()
            except PCCLError as error:
                raise failed("get_reconfigure_handle", error) from error
        where = hashlib.sha256(self._address.encode()).hexdigest()[:16]
        return f"{_PREFIX}:{where}:{self.communicator.peer_id.hex()}:{self.communicator.name}"

    def reconfigure(self, uuid: int, handles: Sequence[str], timeout_s: float) -> None:
        """Forms the group of those whose handles these are."""
        self._need_formed("reconfigure")
        with self._guard:
            if uuid in self._used:
                raise CollectiveError(f"reconfigure: uuid {uuid} was already used; each try takes a fresh one")
            self._used = [*self._used[-65535:], uuid]
        # A set has no order that all members see alike.
        ordered = list(handles) if isinstance(handles, (list, tuple)) else sorted(handles)
        members = [_identity(handle) for handle in ordered]
        # Other groups of the run may take the same uuid; none has the same members.
        digest = hashlib.sha256(f"{uuid}\n".encode() + b"".join(members)).digest()
        names = {member.hex()[:8]: handle.split(":", 3)[3] for member, handle in zip(members, ordered)}
        try:
            world = self.communicator.form_group(int.from_bytes(digest[:16], "big"), members, timeout=timeout_s)
        except ConnectFailed as error:
            raise failed("reconfigure", error) from error
        except PCCLError as error:
            gone = [names.get(culprit.hex()[:8], "") for culprit in error.culprits]
            named = f" ({', '.join(name for name in gone if name)})" if any(gone) else ""
            raise CollectiveError(f"reconfigure with uuid {uuid}{named}: {error.message or error}", error) from error
        self._formed(world, members)

    def _need_formed(self, call: str) -> None:
        if not self._is_formed:
            raise CollectiveError(f"{call}: an elastic group goes on with who is there, and is not formed of handles")

    def part(self, limit_s: float) -> None:
        """Waits until all members want to leave, or for ``limit_s``. Of what the others call it disturbs nothing."""
        if not self._is_formed or self._size < 2:
            return
        try:
            self.communicator.barrier(tag=_PARTING, timeout=limit_s)
        except PCCLError:
            # Somebody is gone already, or goes on; that is no business of who leaves.
            pass

    def leave(self) -> None:
        """Leaves the run and ends everything in flight."""
        self.communicator.destroy()


def member_name(rank: int) -> str:
    """What a member with a fixed rank is called in logs: the library's own sentences have it as well."""
    host = re.sub(r"[^0-9A-Za-z.-]", "-", socket.gethostname())[:_HOST_BYTES]
    return f"rank-{rank}@{host}:{os.getpid()}"


def _identity(handle: str) -> bytes:
    fields = handle.split(":", 3)
    try:
        if len(fields) != 4 or fields[0] != _PREFIX or len(fields[2]) != 32:
            raise ValueError(handle)
        return bytes.fromhex(fields[2])
    except ValueError:
        raise CollectiveError(f"reconfigure: {handle!r} is no handle of the backend pccl") from None
