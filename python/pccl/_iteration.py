"""Agreement on a global iteration through a key-value store, without a master."""

import ctypes
from ctypes import byref
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._arguments import NO_TIMEOUT, U32, U64, flag, integer, limit_ms, milliseconds, optional_words, words
from ._calls import blocking
from ._enums import Result
from ._errors import PCCLError
from ._library import library, structs
from ._log import attach

_POLICIES = {"any_subset": structs.pcclIterationAnySubset, "strict_majority": structs.pcclIterationStrictMajority}
_MAX_PAYLOAD = 4096


class Member(NamedTuple):
    """A member of a decision."""

    #: What the user calls it.
    id: str
    #: Which life of it, from 1.
    life: int
    #: What it said when it arrived or joined.
    payload: bytes
    #: It has come with this decision.
    joined: bool


class Decision(NamedTuple):
    """What all members of an iteration agree on."""

    #: The iteration that begins: one more than that of the decision before.
    iteration: int
    #: In the same order for all.
    members: List[Member]
    #: The place of this member among them; ``None`` for one that is not in it.
    position: Optional[int]


class Store:
    """A store in this process, for ``GlobalIteration`` and for clients of PyTorch's TCPStore.

    A context manager. It serves from the beginning on and ends with this process at the latest: for jobs that have to
    outlive any of their processes run ``pccl-master --store-only``.
    """

    def __init__(self, listen_address: str = "127.0.0.1:0", *, file: Optional[str] = None):
        """- ``listen_address``: ``host:port``; port 0 takes a free one. There is no authentication.
        - ``file``: keeps the store over a restart.
        """
        self._handle = ctypes.c_void_p()
        listen, path = words(listen_address, "listen_address"), optional_words(file, "file")
        attach()
        PCCLError.check(library.pcclIterationServeStore(listen, path, byref(self._handle)), "Store")
        host = listen_address.rpartition(":")[0]
        #: For clients on this machine.
        self.address = f"{'127.0.0.1' if host == '0.0.0.0' else '[::1]' if host == '[::]' else host}:{self.port}"

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port = ctypes.c_uint16()
        PCCLError.check(library.pcclIterationGetStorePort(self._handle, byref(port)), "Store.port")
        return port.value

    def stop(self) -> None:
        """Ends it."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            library.pcclIterationStopStore(handle)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.stop()


class GlobalIteration:
    """A member of a run whose members agree on which iteration they are in, and who is in it.

    A context manager: at its end the member leaves. Calls that wait let other threads of Python run, and Ctrl-C ends
    them; afterwards the member can only leave. One call of a member at a time.
    """

    def __init__(self, store: Union[str, Store, Any], member: Union[str, int], world_size: int, *, run: str = "default",
                 first_iteration: int = 0, policy: str = "any_subset", heartbeat_interval: float = 5.0,
                 inactive_after: float = 30.0, no_progress: float = 60.0, poll_interval: float = 0.2,
                 store_timeout: float = 60.0, join_timeout: Optional[float] = None, mirror: bool = True):
        """A member that has not joined yet.

        - ``store``: ``host:port`` of PyTorch's TCPStore or of ``pccl-master --store-only``, a ``Store``, or a
          ``torch.distributed.TCPStore``, of which the address counts.
        - ``member``: an identity that survives restarts, for instance the rank.
        - ``world_size``: a new run begins when as many members have joined.
        - ``run``: runs with different names do not see each other.
        - ``first_iteration``: number of the first iteration of a new run.
        - ``policy``: who must be there when nobody else comes any more: ``"any_subset"`` or ``"strict_majority"``.
        - ``heartbeat_interval``: a member gives a sign of life as often, in seconds.
        - ``inactive_after``: a member without a sign of life for as many seconds is not waited for.
        - ``no_progress``: without progress for as many seconds nobody is waited for.
        - ``poll_interval``: who waits looks at the store as often, in seconds.
        - ``store_timeout``: the store may be unreachable for as many seconds within one call.
        - ``join_timeout``: seconds that ``join`` and ``catch_up`` may take; ``None``: as long as any member lives.
        - ``mirror``: whether to write keys for humans and old tools, such as ``global_iteration_counter``.
        """
        self._handle = ctypes.c_void_p()
        self._joined = False
        # An embedded store lives as long as its members.
        self._store = store
        address = words(_address(store), "store")
        name = str(integer(member, "member", 0, U64)) if not isinstance(member, str) else member
        if policy not in _POLICIES:
            raise ValueError(f"policy is {policy!r}, but it is one of {', '.join(map(repr, _POLICIES))}")
        times = (("heartbeat_interval", heartbeat_interval), ("inactive_after", inactive_after),
                 ("no_progress", no_progress), ("poll_interval", poll_interval), ("store_timeout", store_timeout))
        settings: List[Tuple[str, Tuple[Any, ...]]] = [
            ("pcclIterationSetPolicy", (_POLICIES[policy],)),
            ("pcclIterationSetFirst", (integer(first_iteration, "first_iteration", 0, U64),)),
            ("pcclIterationSetMirror", (flag(mirror, "mirror"),)),
        ]
        for number, (what, seconds) in enumerate(times):
            settings.append(("pcclIterationSetTime", (number, milliseconds(seconds, what, least_s=0.001))))
        limit = limit_ms(join_timeout, "join_timeout")
        if limit != NO_TIMEOUT:
            settings.append(("pcclIterationSetTime", (5, limit)))
        size = integer(world_size, "world_size", 1, U32)
        attach()
        code = library.pcclIterationCreate(address, words(run, "run"), words(name, "member"), size,
                                           byref(self._handle))
        if code == Result.INVALID_ARGUMENT.value:
            raise ValueError(PCCLError.of(code, "GlobalIteration").message)
        PCCLError.check(code, "GlobalIteration")
        for function, arguments in settings:
            PCCLError.check(getattr(library, function)(self._handle, *arguments), "GlobalIteration")

    def join(self, payload: bytes = b"") -> Decision:
        """Joins the run, and returns the decision that has taken this member in. The payload (at most 4096 bytes) is
        shown to all members."""
        self._take_part("join", "pcclIterationJoin", payload)
        self._joined = True
        return self.decision()

    def advance(self, payload: bytes = b"") -> Decision:
        """Arrives for the next iteration, and returns when it is decided. Raises ``Fenced`` if the others have gone on
        without this member: reload, then ``catch_up``."""
        self._take_part("advance", "pcclIterationAdvance", payload)
        return self.decision()

    def catch_up(self, payload: bytes = b"") -> Decision:
        """Comes back as a new life. What was computed since the last decision must not be used."""
        self._take_part("catch_up", "pcclIterationCatchUp", payload)
        self._joined = True
        return self.decision()

    def leave(self) -> None:
        """Nobody needs to wait for this member any more."""
        self._blocking("leave", "pcclIterationLeave")
        self._joined = False

    def cancel(self) -> None:
        """Ends the calls of other threads, for good; only leaving is possible then."""
        self._call("cancel", "pcclIterationCancel")

    def force_members(self, members: Sequence[Union[str, int]]) -> None:
        """For the next decision that this member proposes, these and no fewer must be there, whatever the policy
        demands."""
        if isinstance(members, (str, bytes)):
            raise TypeError("members is a list of identities, not one text")
        ids = [words(one if isinstance(one, str) else str(integer(one, "a member", 0, U64)), "a member")
               for one in members]
        self._call("force_members", "pcclIterationForceMembers", (ctypes.c_char_p * len(ids))(*ids), len(ids))

    def current(self) -> Optional[int]:
        """The iteration that the store holds now, whoever is in it; ``None`` before the run has begun."""
        begun, info = ctypes.c_bool(), structs.IterationInfo()
        self._blocking("current", "pcclIterationGetCurrent", byref(begun), byref(info))
        return info.iteration if begun.value else None

    def decision(self) -> Decision:
        """The last decision that this member has taken part in. Asks nobody."""
        info = structs.IterationInfo()
        self._call("decision", "pcclIterationGetDecision", byref(info))
        members = [self._member(position) for position in range(info.members)]
        return Decision(info.iteration, members, None if info.position == U32 else info.position)

    def _member(self, position: int) -> Member:
        one, payload = structs.IterationMember(), ctypes.create_string_buffer(_MAX_PAYLOAD)
        self._call("decision", "pcclIterationGetMember", position, byref(one), payload, _MAX_PAYLOAD)
        return Member(one.id.decode(), one.life, payload.raw[:one.payload_bytes], one.joined)

    def destroy(self) -> None:
        """Ends its calls and its signs of life, without leaving: the others notice when it has been silent for long."""
        handle, self._handle, self._joined = self._handle, ctypes.c_void_p(), False
        if handle:
            library.pcclIterationDestroy(handle)

    def _call(self, call: str, name: str, *arguments: Any) -> None:
        PCCLError.check(getattr(library, name)(self._handle, *arguments), f"GlobalIteration.{call}")

    def _blocking(self, call: str, name: str, *arguments: Any) -> None:
        handle = self._handle
        blocking(f"GlobalIteration.{call}", name, handle, *arguments,
                 on_interrupt=lambda: library.pcclIterationCancel(handle), keep=(self, arguments))

    def _take_part(self, call: str, name: str, payload: bytes) -> None:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise TypeError(f"payload is bytes, not a {type(payload).__name__}")
        data = bytes(payload)
        if len(data) > _MAX_PAYLOAD:
            raise ValueError(f"payload has {len(data)} bytes, but at most {_MAX_PAYLOAD} are allowed")
        info = structs.IterationInfo()
        self._blocking(call, name, data, len(data), byref(info))

    def __enter__(self) -> "GlobalIteration":
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            if self._joined:
                self.leave()
        except PCCLError:
            # The others will notice that it is silent.
            pass
        finally:
            self.destroy()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.destroy()


def _address(store: Any) -> str:
    if isinstance(store, str):
        return store
    if isinstance(store, Store):
        return store.address
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if isinstance(host, str) and isinstance(port, int):
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise TypeError(f"store is an address, a Store or a TCPStore of PyTorch, not a {type(store).__name__}")
