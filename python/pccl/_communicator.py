"""A peer of a run."""

import ctypes
import json
import threading
import time
from ctypes import byref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union, overload
from uuid import UUID

from ._arguments import NO_TIMEOUT, U16, U32, U64, flag, integer, limit_ms, milliseconds, words
from ._calls import blocking, text
from ._collectives import Collectives
from ._moves import Moves
from ._descriptors import (
    Ahead,
    Optimized,
    QuantizationOptions,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    World,
    describe,
    pair,
    pairs_of,
)
from ._devices import on_device
from ._enums import Attribute, ReduceOp, Result, Schedule
from ._errors import ConnectFailed, PCCLError
from ._library import library, structs
from ._log import attach
from ._reduces import AsyncReduceHandle
from ._sharing import Progress, Sharing
from ._state import SharedState
from ._training import Training

#: Tags that count up by themselves begin again behind as many; no more than 1,024 reduces are in flight at a time.
_TAGS = 4096
_I32 = (1 << 31) - 1


class Communicator(Training, Collectives, Moves, Sharing):
    """A peer of the run whose master is at ``address``: ``host:port``, ``1.2.3.4:port`` or ``[::1]:port``, or the one of
    several that acts: ``h1:48148,h2:48148``.

    A context manager: at its end the peer leaves the run. All peers make the same calls in the same order. Every call
    raises a ``PCCLError`` if it fails, and has ``timeout`` in seconds: then it gives up, for all peers where that is
    possible, and raises ``TimedOut``. ``None`` stands for the ``call_timeout`` of the communicator, ``math.inf`` for no
    limit.
    """

    def __init__(self, address: str, peer_group: int = 0, p2p_connection_pool_size: int = 0, *,
                 name: Optional[str] = None, site: Optional[str] = None, advertised_host: Optional[str] = None,
                 bind_address: Optional[str] = None,
                 first_ports: Optional[Tuple[int, int]] = None, strict_ports: bool = False,
                 connect_timeout: Optional[float] = None, master_timeout: Optional[float] = None,
                 dial_timeout: Optional[float] = None, master_grace: Optional[float] = None,
                 call_timeout: Optional[float] = None,
                 frame_checksums: Optional[bool] = None, schedule: Union[Schedule, str] = Schedule.AUTOMATIC,
                 formed_groups: bool = False, world_of_one: bool = False, state_memory: Optional[int] = None,
                 state_spill_dir: Optional[str] = None, upload_share_pct: Optional[int] = None,
                 run_key: Optional[str] = None, refuse_non_finite: bool = False, outbound_only: Optional[bool] = None,
                 run_name: Optional[str] = None):
        """A peer that is not connected yet.

        - ``peer_group``: reduces and syncs run among the peers of a group.
        - ``p2p_connection_pool_size``: connections to the next peer of the ring, up to 64; 0 or 1 lets the library
          choose.
        - ``name``: what this peer is called in status, logs and verdicts; default ``hostname:pid``.
        - ``site``: what the site of this peer is called: peers with the same name are near each other, and far from
          others. Large reduces may then go in two levels (``Schedule.SITES``). Default: sites are found by what is
          measured.
        - ``advertised_host``: name or address under which others reach this peer; default: the address that the master
          sees.
        - ``bind_address``: address that the listeners of this peer bind to, in digits; default: all.
        - ``first_ports``: first ports that the listeners try, for tensors and for shared state; default 48150 and
          48149. 0 takes any free one.
        - ``strict_ports``: a first port that is taken makes ``connect`` fail, instead of a warning and another port.
        - ``outbound_only``: whether nobody can dial this peer, because it is behind NAT or a firewall: then it dials all
          of its connections itself. Default: the environment variable ``PCCL_OUTBOUND_ONLY``; if that is not set, the
          master tries the ports of this peer.
        - ``connect_timeout``: for as many seconds ``connect`` tries to reach the master; default 60.
        - ``master_timeout``: after as many seconds of silence the master counts as lost; default 30.
        - ``dial_timeout``: seconds for connecting to another peer; default 3.
        - ``master_grace``: for as many seconds this peer looks for its master again when the connection to it was cut,
          while calls wait; default 10, or 60 if the master keeps a journal. 0: ``MasterLost`` at once.
        - ``call_timeout``: limit of all calls that wait for other peers, in seconds; default none. It has to be longer
          than the longest step of the slowest peer.
        - ``frame_checksums``: whether data carry checksums on their way; ``None``: unless both ends are on one host.
        - ``schedule``: see the property.
        - ``formed_groups``: the members of the group are given by ``form_group``; nobody is let in.
        - ``world_of_one``: reduces succeed while this peer is the only member of its group, with its own contribution
          as the result, instead of raising ``TooFewPeers``.
        - ``state_memory``: bytes of memory that a sync may take beside the tensors; default 256 MiB.
        - ``run_key``: the key of the run, as ``pccl-master --new-key`` prints it: only who has it takes part, and
          everything that travels is encrypted; default: that of the address (``pccl://host:port#key``) or of the
          environment variable ``PCCL_RUN_KEY``.
        - ``run_name``: the name of the run, as its master has it, which tells runs with the same key apart; default:
          that of the address (``pccl://host:port/name``) or of the environment variable ``PCCL_RUN_NAME``.
        - ``state_spill_dir``: where what it replaces goes beyond that; default: the directory for temporary files.
        - ``upload_share_pct``: how many percent of its uplink this peer gives to newcomers that fetch the state that it
          lends, 1 to 100; default 50.
        - ``refuse_non_finite``: reduces raise ``NotFinite`` on all peers if a contribution holds NaN or an infinity;
          nothing is changed then. All peers of a group have to choose alike.
        """
        self._handle = ctypes.c_void_p()
        self._schedule = Schedule.AUTOMATIC
        self._in_flight: Dict[int, AsyncReduceHandle] = {}
        self._replicas: List[Any] = []
        self._before_launch: Optional[Callable[[], None]] = None
        self._next_tag = 0
        #: How often tags have begun again.
        self._tag_rounds = 0
        self._call_limit_ms = limit_ms(call_timeout, "call_timeout")
        encoded = words(address, "address")
        settings = _texts(name=name, site=site, advertised_host=advertised_host, bind_address=bind_address,
                          run_key=run_key, run_name=run_name, state_spill_dir=state_spill_dir)
        settings.update(_ports(first_ports))
        settings.update(_times(connect_timeout=connect_timeout, master_timeout=master_timeout,
                               dial_timeout=dial_timeout, master_grace=master_grace))
        flags = {"strict_ports": strict_ports, "formed_groups": formed_groups, "world_of_one": world_of_one,
                 "refuse_non_finite": refuse_non_finite}
        settings.update((what, b"true") for what, value in flags.items() if flag(value, what))
        if outbound_only is not None:
            settings["outbound_only"] = b"true" if flag(outbound_only, "outbound_only") else b"false"
        if frame_checksums is not None:
            settings["frame_checksums"] = b"always" if flag(frame_checksums, "frame_checksums") else b"never"
        if state_memory is not None:
            settings["state_memory"] = b"%d" % integer(state_memory, "state_memory", 0, U64)
        if upload_share_pct is not None:
            settings["upload_share_pct"] = b"%d" % integer(upload_share_pct, "upload_share_pct", 1, 100)
        chosen = Schedule.of(schedule)
        attach()
        group, pool = (integer(peer_group, "peer_group", 0, U32),
                       integer(p2p_connection_pool_size, "p2p_connection_pool_size", 0, 64))
        code = library.pcclCreateCommunicatorByName(encoded, group, pool, byref(self._handle))
        if code == Result.INVALID_ARGUMENT.value:
            raise ValueError(PCCLError.of(code, "Communicator").message)
        PCCLError.check(code, "Communicator")
        for what, value in settings.items():
            self._call("Communicator", "pcclSetOption", what.encode(), value)
        if self._call_limit_ms != NO_TIMEOUT:
            self._call("Communicator", "pcclSetCallTimeout", self._call_limit_ms)
        if chosen is not Schedule.AUTOMATIC:
            self.schedule = chosen

    def _call(self, call: str, name: str, *arguments: Any) -> None:
        """A function of the library that does not wait."""
        PCCLError.check(getattr(library, name)(self._handle, *arguments), call)

    def _blocking(self, call: str, name: str, *arguments: Any, timeout: Optional[float] = None,
                  keep: Any = None) -> None:
        """A function of the library that waits. On Ctrl-C the connection is closed, which ends it."""
        handle = self._handle
        limit = None if timeout is None else limit_ms(timeout)
        blocking(f"Communicator.{call}", name, handle, *arguments, on_interrupt=lambda: library.pcclClose(handle),
                 limit_ms=limit, keep=(self, keep))

    @property
    def schedule(self) -> Schedule:
        """How the data of reduces travels that begin from now on; all peers have to choose the same for the same
        reduce.

        ``Schedule.SITES``: in two levels over sites, of which each byte leaves a site once; the order of adding is
        fixed, but not that of the ring. ``Schedule.PAIRWISE`` in groups of 3 to 8: between all pairs of peers at once,
        and what is quantised comes out more accurate than around the ring, but depends a little on which peer owns
        what, and so on measured rates. Which schedule a reduce took says ``ReduceInfo.schedule``.
        """
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        chosen = Schedule.of(schedule)
        self._call("Communicator.schedule", "pcclSetSchedule", chosen.value)
        self._schedule = chosen

    # ---- Membership

    @overload
    def connect(self, n_attempts: int = 1, *, timeout: Optional[float] = None) -> None: ...

    @overload
    def connect(self, n_attempts: int = 1, *, state: SharedState, progress: Optional[Progress] = None,
                timeout: Optional[float] = None) -> Ahead: ...

    def connect(self, n_attempts: int = 1, *, state: Optional[SharedState] = None, progress: Optional[Progress] = None,
                timeout: Optional[float] = None) -> Optional[Ahead]:
        """Joins the run. Tries to reach the master for ``connect_timeout``, also if nobody listens yet, and returns
        when the others have let this peer in. With ``n_attempts`` it does so as often, if the master was not there.

        With ``state`` this peer fetches the state of its group into it while it waits to be let in, from members that
        lend it (``lend``). As long as they lend, it is let in when it holds what they committed last, so that the sync
        that follows moves little or nothing; where nobody lends, as ever. Returns what was fetched. ``progress`` is
        called as in ``sync_shared_state``. **Until a sync has succeeded the content of the state is unspecified**, also
        if this fails: some pieces are of one state and some of another one. No sync commits such a mixture.
        """
        attempts = integer(n_attempts, "n_attempts", 1, _I32)
        if state is None and progress is not None:
            raise TypeError("progress is that of a state: give state, too")
        for attempt in range(attempts):
            try:
                ahead = None
                if state is None:
                    self._blocking("connect", "pcclConnect", timeout=timeout)
                else:
                    ahead = self._connect_with_state(state, progress, timeout)
                self._begin_tags()
                return ahead
            except ConnectFailed:
                if attempt + 1 == attempts:
                    raise
            time.sleep(1)
        return None

    def form_group(self, uuid: Union[int, UUID], members: Sequence[Union[str, bytes]],
                   timeout: Optional[float] = None) -> World:
        """Forms a group of ``members``: the place in the list is the rank. A ``str`` is a name, ``bytes`` are a
        ``peer_id``.

        All members call it with the same ``uuid`` and list, and it returns when they are connected. Nobody joins
        between two formings, and when a member is lost every call raises ``GroupBroken``, until the group is formed
        again. A ``uuid`` is used once, also by a try that fails. Without any ``timeout`` the limit is a minute; who has
        not called by then is named to all who have. Needs ``formed_groups``.
        """
        number = integer(uuid.int if isinstance(uuid, UUID) else uuid, "uuid", 0, (1 << 128) - 1)
        if isinstance(members, (str, bytes)):
            raise TypeError("members are a sequence of names and identities")
        listed = [_member(member) for member in members]
        array = (structs.Member * len(listed))(*listed)
        self._blocking("form_group", "pcclFormGroup", number >> 64, number & U64, array, len(listed), timeout=timeout,
                       keep=(listed, array))
        self._begin_tags()
        return self.world()

    def update_topology(self, timeout: Optional[float] = None) -> None:
        """Lets in those who wait. All peers have to call it. ``PendingAsyncOps`` while reduces are in flight."""
        self._blocking("update_topology", "pcclUpdateTopology", timeout=timeout)
        self._begin_tags()

    def are_peers_pending(self, timeout: Optional[float] = None) -> bool:
        """Whether somebody waits to be let in. All peers have to call it, and all get the same answer."""
        pending = ctypes.c_bool()
        self._blocking("are_peers_pending", "pcclArePeersPending", ctypes.byref(pending), timeout=timeout, keep=pending)
        return pending.value

    def optimize_topology(self, timeout: Optional[float] = None) -> Optimized:
        """Measures the ways between the peers and chooses the best ring. All peers have to call it; there have to be
        two."""
        info = structs.Optimized()
        self._blocking("optimize_topology", "pcclOptimizeTopologyInfo", ctypes.byref(info), timeout=timeout, keep=info)
        self._begin_tags()
        return Optimized.from_c(info)

    def wait_for_world(self, peers: int, timeout: Optional[float] = None) -> World:
        """Waits until the run has at least ``peers`` peers, letting in whoever comes. Without ``timeout`` for ever."""
        count, timeout_ms = integer(peers, "peers", 1, U32), limit_ms(timeout)
        self._blocking("wait_for_world", "pcclWaitForWorld", count, timeout_ms)
        self._begin_tags()
        return self.world()

    def close(self) -> None:
        """Leaves the run at once. The communicator may connect again."""
        self._blocking("close", "pcclClose")

    def close_within(self, timeout: float) -> None:
        """Leaves the run when the calls of other threads and the reduces in flight are over, or the time is."""
        self._blocking("close_within", "pcclCloseWithin", milliseconds(timeout, "timeout"))

    def drain(self, timeout: Optional[float] = None) -> bool:
        """Waits until the reduces in flight are over, however they end; whether they are, after ``timeout`` seconds. It
        ends none of them. What became of each says its handle."""
        timeout_ms, began = limit_ms(timeout), time.monotonic()
        for handle in list(self._in_flight.values()):
            try:
                while not handle._is_over(20):
                    if timeout_ms != NO_TIMEOUT and 1000 * (time.monotonic() - began) >= timeout_ms:
                        return False
            except PCCLError:
                # Waiting for it says the same, or that it is over.
                pass
            handle.wait()
        return True

    # ---- Known facts

    def get_attribute(self, attribute: Union[Attribute, str]) -> int:
        """A size, as of the last call that agreed with others."""
        value = ctypes.c_int()
        self._call("Communicator.get_attribute", "pcclGetAttribute", Attribute.of(attribute).value, byref(value))
        return value.value

    def world(self) -> World:
        """Sizes and the own rank, as of the last call that agreed with others; also when the connection has ended since
        (``is_connected``)."""
        world = structs.World()
        self._call("Communicator.world", "pcclGetWorld", byref(world))
        return World(*(getattr(world, name) for name in World.__dataclass_fields__))

    def ring(self) -> List[bytes]:
        """The peers of the own group in the order in which data flows; the index is the rank."""
        count, capacity = ctypes.c_size_t(), 0
        while True:
            ring = ctypes.create_string_buffer(max(16 * capacity, 1))
            self._call("Communicator.ring", "pcclGetRing", ring, capacity, byref(count))
            if count.value <= capacity:
                return [ring.raw[16 * rank:16 * rank + 16] for rank in range(count.value)]
            capacity = count.value

    @property
    def name(self) -> str:
        """What this peer is called."""
        return text("Communicator.name", "pcclGetName", self._handle)

    @property
    def peer_id(self) -> bytes:
        """The identity of this peer, as in ``ring()``; a new one after each ``connect``."""
        identity = ctypes.create_string_buffer(16)
        self._call("Communicator.peer_id", "pcclGetPeerId", identity)
        return identity.raw

    def status(self) -> Dict[str, Any]:
        """The run as the master sees it: who is in, what each peer does, what waits for whom and since when."""
        status: Dict[str, Any] = json.loads(text("Communicator.status", "pcclGetStatus", self._handle, True))
        return status

    def report(self, **figures: float) -> None:
        """Reports numbers of the training, as in ``comm.report(step=step, loss=loss)``: ``status`` has the newest of
        each name, soon after. At most 16 names. It waits for nothing."""
        for name, value in figures.items():
            self._call("Communicator.report", "pcclReport", name.encode(), ctypes.c_double(value))

    def doctor(self) -> Dict[str, Any]:
        """Whether this machine could take part in the run: ``passed``, and ``findings`` with what to do about each.
        Joins nothing. Best before ``connect``; ``python -m pccl.doctor HOST:PORT`` prints it as a table."""
        self._call("Communicator.doctor", "pcclDoctor", byref(ctypes.c_bool()))
        report: Dict[str, Any] = json.loads(text("Communicator.doctor", "pcclGetDoctorReport", self._handle, True))
        return report

    @property
    def last_verdict(self) -> Optional[str]:
        """Why the last operation failed on all peers, if one has."""
        return text("Communicator.last_verdict", "pcclGetLastVerdict", self._handle) or None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the master."""
        connected = ctypes.c_bool()
        self._call("Communicator.is_connected", "pcclIsConnected", byref(connected))
        return connected.value

    def dump_flight(self, directory: str) -> str:
        """Writes what the flight recorder holds into a new file in ``directory``, and returns its path. ``pccl-master
        explain DIR`` reads the files of several peers together."""
        return text("Communicator.dump_flight", "pcclDumpFlight", self._handle, words(str(directory), "directory"))

    # ---- Data

    def all_reduce(self, send: Any, recv: Any = None, *, op: Union[ReduceOp, str] = ReduceOp.SUM,
                   tag: Optional[int] = None, operand_descriptor: Optional[ReduceOperandDescriptor] = None,
                   quantization_options: Optional[QuantizationOptions] = None,
                   timeout: Optional[float] = None) -> ReduceInfo:
        """Reduces ``send`` over all peers of the group into ``recv``, or into ``send`` itself if there is no ``recv``.
        All peers give as many elements of the same type. Their shapes are not compared: 2 x 3 beside 3 x 2 is reduced
        element by element, in the order of the memory.

        - ``op``: a ``ReduceOp`` or its name: ``op="avg"``. The default is the sum. The average of integers is rounded
          towards zero.
        - ``tag``: names the reduce among those in flight, the same on all peers. Without one tags count up by
          themselves, and begin again with each sync and each call that lets peers in.
        - ``operand_descriptor``: the type of the elements, where it is not that of the buffer.
        - ``quantization_options``: floats travel in fewer bits.
        """
        limit_ms(timeout)
        return self._launch("all_reduce", send, recv, op, tag, operand_descriptor, quantization_options).result(timeout)

    def all_reduce_async(self, send: Any, recv: Any = None, *, op: Union[ReduceOp, str] = ReduceOp.SUM,
                         tag: Optional[int] = None, operand_descriptor: Optional[ReduceOperandDescriptor] = None,
                         quantization_options: Optional[QuantizationOptions] = None) -> AsyncReduceHandle:
        """Begins a reduce, with the arguments of ``all_reduce``. The buffers are kept alive until it is over; leave
        them alone until ``result()`` of what this returns has returned."""
        return self._launch("all_reduce_async", send, recv, op, tag, operand_descriptor, quantization_options)

    def _launch(self, call: str, send: Any, recv: Any, op: Union[ReduceOp, str], tag: Optional[int],
                operand: Optional[ReduceOperandDescriptor],
                quantization: Optional[QuantizationOptions]) -> AsyncReduceHandle:
        (given, taken), place = pair(send, recv, operand)
        descriptor = describe(given, op, 0, operand, quantization).to_c()
        # Taken when the rest is right: one that is used up here alone is missed by the others.
        descriptor.tag = self._tag(tag)
        c_op = structs.AsyncReduceOp()
        call = f"Communicator.{call}"
        with on_device(place):
            code = library.pcclAllReduceAsync(given.pointer, taken.pointer, byref(descriptor), self._handle, byref(c_op))
        PCCLError.check(code, call)
        return self._launched(AsyncReduceHandle(self, call, c_op, (given, taken)))

    def all_reduce_many(self, sends: Sequence[Any], recvs: Optional[Sequence[Any]] = None, *,
                        op: Union[ReduceOp, str] = ReduceOp.SUM, tag: Optional[int] = None,
                        quantization_options: Optional[QuantizationOptions] = None,
                        timeout: Optional[float] = None) -> ReduceInfo:
        """Reduces several buffers as one operation: all of them are reduced, or none. Arguments as those of
        ``all_reduce``, with sequences of buffers, of any types: ``comm.all_reduce_many([p.grad for p in
        model.parameters()], op="avg")``."""
        limit_ms(timeout)
        return self._launch_many("all_reduce_many", sends, recvs, op, tag, quantization_options).result(timeout)

    def all_reduce_many_async(self, sends: Sequence[Any], recvs: Optional[Sequence[Any]] = None, *,
                              op: Union[ReduceOp, str] = ReduceOp.SUM, tag: Optional[int] = None,
                              quantization_options: Optional[QuantizationOptions] = None
                              ) -> AsyncReduceHandle:
        """Begins a reduce of several buffers as one operation, with the arguments of ``all_reduce_many``."""
        return self._launch_many("all_reduce_many_async", sends, recvs, op, tag, quantization_options)

    def _launch_many(self, call: str, sends: Sequence[Any], recvs: Optional[Sequence[Any]], op: Union[ReduceOp, str],
                     tag: Optional[int], quantization: Optional[QuantizationOptions]) -> AsyncReduceHandle:
        sends = list(sends)
        takers: List[Any] = [None] * len(sends) if recvs is None else list(recvs)
        if not sends or len(takers) != len(sends):
            raise ValueError(f"{len(sends)} buffers to send, {len(takers)} to receive; there has to be at least one")
        pairs, place = pairs_of(sends, takers, None)
        ReduceOp.of(op)
        number = self._tag(tag)
        described = [describe(given, op, number, None, quantization) for given, _ in pairs]
        parts = [ReduceOpDescriptor(given.pointer, taken.pointer, one).to_c()
                 for (given, taken), one in zip(pairs, described)]
        array, c_op = (structs.ReduceOpDescriptor * len(parts))(*parts), structs.AsyncReduceOp()
        call = f"Communicator.{call}"
        with on_device(place):
            PCCLError.check(library.pcclAllReduceManyAsync(array, len(parts), self._handle, byref(c_op)), call)
        return self._launched(AsyncReduceHandle(self, call, c_op, (pairs, array)))

    def all_reduce_multiple_with_retry(self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4,
                                       timeout: Optional[float] = None) -> ReduceInfo:
        """Reduces several buffers as one operation, again and again until it succeeds or no other peer is left.

        The tags of ``descriptors`` must differ, and none may be in flight. ``max_in_flight`` bounds nothing.
        """
        most = integer(max_in_flight, "max_in_flight", 1, _I32)
        array = (structs.ReduceOpDescriptor * len(descriptors))(*[one.to_c() for one in descriptors])
        info = structs.ReduceInfo()
        handle = self._handle
        limit = None if timeout is None else limit_ms(timeout)
        blocking("Communicator.all_reduce_multiple_with_retry", "pcclAllReduceMultipleWithRetry", array,
                 len(descriptors), handle, byref(info), most, on_interrupt=lambda: library.pcclClose(handle),
                 limit_ms=limit, keep=(self, descriptors, array, info))
        return ReduceInfo.from_c(info)

    # ---- Reduces in flight

    def _begin_tags(self) -> None:
        """After a call that all peers make together, and after which nothing is in flight: newcomers count alike from
        here."""
        self._next_tag = 0
        self._tag_rounds += 1

    def _tag(self, tag: Optional[int]) -> int:
        if self._before_launch is not None:
            self._before_launch()
        if tag is not None:
            return integer(tag, "tag", 0, U64)
        number, self._next_tag = self._next_tag, (self._next_tag + 1) % _TAGS
        return number

    def _launched(self, handle: AsyncReduceHandle) -> AsyncReduceHandle:
        self._in_flight[handle.tag] = handle
        return handle

    def _is_over(self, handle: AsyncReduceHandle) -> None:
        if self._in_flight.get(handle.tag) is handle:
            del self._in_flight[handle.tag]

    # ---- The end

    def destroy(self) -> None:
        """Leaves the run and ends everything in flight; no call is possible afterwards."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            library.pcclDestroyCommunicator(handle)
            self._in_flight.clear()

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    def __del__(self) -> None:
        if not getattr(self, "_handle", None):
            return
        if threading.get_ident() in {thread.ident for thread in threading.enumerate()}:
            self.destroy()
        else:
            # A thread of the library, which has called into Python, cannot wait for the library.
            handle, in_flight, self._handle = self._handle, self._in_flight, ctypes.c_void_p()
            threading.Thread(target=_destroy, args=(handle, in_flight), name="destroy a communicator").start()


def _member(member: Union[str, bytes]) -> "structs.Member":
    if isinstance(member, bytes):
        if len(member) != 16:
            raise ValueError(f"an identity has 16 bytes, not {len(member)}")
        return structs.Member(None, (ctypes.c_uint8 * 16)(*member))
    return structs.Member(words(member, "a member"))


def _destroy(handle: ctypes.c_void_p, _keep: Any) -> None:
    library.pcclDestroyCommunicator(handle)


def _texts(*, bind_address: Optional[str], **texts: Optional[str]) -> Dict[str, bytes]:
    """Settings that are texts, of those that were given."""
    given = {what: words(value, what) for what, value in texts.items() if value is not None}
    if bind_address is not None:
        given["bind"] = words(bind_address, "bind_address")
    return given


def _ports(first_ports: Optional[Tuple[int, int]]) -> Dict[str, bytes]:
    if first_ports is None:
        return {}
    if not isinstance(first_ports, (tuple, list)) or len(first_ports) != 2:
        raise TypeError("first_ports are two ports: for tensors and for shared state")
    ports = (b"%d" % integer(port, "a port of first_ports", 0, U16) for port in first_ports)
    return dict(zip(("first_p2p_port", "first_state_port"), ports))


def _times(**times: Optional[float]) -> Dict[str, bytes]:
    """Settings that are times in seconds, of those that were given. Without a grace the master is lost at once."""
    least_s = {"master_grace": 0.0}
    return {what: b"%dms" % milliseconds(seconds, what, least_s=least_s.get(what, 0.001))
            for what, seconds in times.items() if seconds is not None}
