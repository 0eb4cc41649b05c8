"""A peer of a run."""

import ctypes
import json
import threading
import time
from ctypes import byref
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._calls import GRACE_S, blocking, text
from ._descriptors import (
    QuantizationOptions,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncInfo,
    World,
    describe,
    pair,
)
from ._enums import Attribute, ReduceOp, Result, Schedule, SharedStateSyncStrategy
from ._errors import PCCLError
from ._library import library, structs

#: How often a wait for a reduce lets Python look at its signals.
_SLICE_MS = 50
_NO_TIMEOUT = (1 << 64) - 1


class AsyncReduceHandle:
    """A reduce in flight. It, and its buffers, live until it is over, whether anybody waits for it or not."""

    def __init__(self, communicator: "Communicator", op: Any, keep: Any):
        self._communicator, self._op, self._keep = communicator, op, keep
        self._result: Optional[Tuple[bool, int, ReduceInfo]] = None
        #: The error, after a ``wait`` that was not successful.
        self.error: Optional[PCCLError] = None

    def done(self) -> bool:
        """Whether ``wait`` would return at once."""
        if self._result is not None:
            return True
        done = ctypes.c_bool()
        PCCLError.check(library.pcclTestAsyncReduce(byref(self._op), byref(done)), "pcclTestAsyncReduce")
        return done.value

    def abort(self) -> None:
        """Gives the reduce up, for all peers, unless it is complete here."""
        if self._result is None:
            PCCLError.check(library.pcclAbortAsyncReduce(byref(self._op)), "pcclAbortAsyncReduce")

    def wait(self) -> Tuple[bool, int, ReduceInfo]:
        """Waits for the end: whether it succeeded, the number of its result, and what it reports."""
        if self._result is None:
            self._communicator._wait_for(self)
        return self._result

    def _await(self) -> None:
        info = structs.ReduceInfo()
        code = library.pcclAwaitAsyncReduce(byref(self._op), byref(info))
        if code != 0:
            self.error = PCCLError.of(code, "pcclAwaitAsyncReduce")
        self._result = (code == 0, code, ReduceInfo.from_c(info))
        self._keep = None
        self._communicator._in_flight.pop(self._op.tag, None)


class Communicator:
    """A peer of the run whose master is at ``address``: ``host:port``, ``1.2.3.4:port`` or ``[::1]:port``.

    A context manager: at its end the peer leaves the run.
    """

    def __init__(self, address: str, peer_group: int = 0, p2p_connection_pool_size: int = 0, *,
                 advertised_host: Optional[str] = None, bind_address: Optional[str] = None,
                 first_ports: Optional[Tuple[int, int]] = None, connect_timeout: Optional[float] = None,
                 master_timeout: Optional[float] = None, dial_timeout: Optional[float] = None,
                 frame_checksums: Optional[bool] = None, schedule: Schedule = Schedule.AUTOMATIC):
        self._handle = ctypes.c_void_p()
        self._schedule = Schedule.AUTOMATIC
        self._in_flight: Dict[int, AsyncReduceHandle] = {}
        code = library.pcclCreateCommunicatorByName(address.encode(), peer_group, p2p_connection_pool_size,
                                                    byref(self._handle))
        if code == Result.INVALID_ARGUMENT.value:
            raise ValueError(PCCLError.of(code, "pcclCreateCommunicator").message)
        PCCLError.check(code, "pcclCreateCommunicator")
        if advertised_host is not None:
            self._set("pcclSetAdvertisedHost", advertised_host.encode())
        if bind_address is not None:
            self._set("pcclSetBindAddress", bind_address.encode())
        if first_ports is not None:
            self._set("pcclSetFirstPorts", *first_ports)
        if frame_checksums is not None:
            self._set("pcclSetFrameChecksums", 1 if frame_checksums else 2)
        for number, timeout in enumerate((connect_timeout, master_timeout, dial_timeout)):
            if timeout is not None:
                self._set("pcclSetTimeout", number, int(timeout * 1000))
        if schedule is not Schedule.AUTOMATIC:
            self.schedule = schedule

    def _set(self, name: str, *arguments: Any) -> None:
        PCCLError.check(getattr(library, name)(self._handle, *arguments), name)

    @property
    def schedule(self) -> Schedule:
        """How the data of reduces travels that begin from now on; all peers have to choose the same for the same reduce.

        ``Schedule.PAIRWISE`` in groups of 3 to 8: between all pairs of peers at once, and what is quantised comes out more
        accurate than around the ring, but depends a little on which peer owns what, and so on measured rates. Which
        schedule a reduce took says ``ReduceInfo.schedule``.
        """
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._set("pcclSetSchedule", Schedule(schedule).value)
        self._schedule = Schedule(schedule)

    def _blocking(self, name: str, *arguments: Any, keep: Any = None) -> None:
        handle = self._handle
        blocking(name, handle, *arguments, on_interrupt=lambda: library.pcclClose(handle), keep=(self, keep))

    def connect(self, n_attempts: int = 5) -> None:
        """Joins the run; tries again every second. Returns when the others have let this peer in."""
        for attempt in range(max(n_attempts, 1)):
            try:
                return self._blocking("pcclConnect")
            except PCCLError as error:
                if error.result is not Result.MASTER_CONNECTION_FAILED or attempt + 1 >= n_attempts:
                    raise
            time.sleep(1)

    def get_attribute(self, attribute: Attribute) -> int:
        """A size, as of the last call that agreed with others."""
        value = ctypes.c_int()
        PCCLError.check(library.pcclGetAttribute(self._handle, attribute.value, byref(value)), "pcclGetAttribute")
        return value.value

    def update_topology(self) -> None:
        """Lets in those who wait. All peers have to call it."""
        self._blocking("pcclUpdateTopology")

    def are_peers_pending(self) -> bool:
        """Whether somebody waits to be let in. All peers have to call it, and all get the same answer."""
        pending = ctypes.c_bool()
        self._blocking("pcclArePeersPending", ctypes.byref(pending), keep=pending)
        return pending.value

    def optimize_topology(self) -> None:
        """Chooses a better ring. All peers have to call it."""
        self._blocking("pcclOptimizeTopology")

    def wait_for_world(self, peers: int, timeout: Optional[float] = None) -> World:
        """Waits until the run has at least this many peers, letting in whoever comes."""
        timeout_ms = _NO_TIMEOUT if timeout is None else max(int(timeout * 1000), 0)
        self._blocking("pcclWaitForWorld", peers, timeout_ms)
        return self.world()

    def world(self) -> World:
        """Sizes and the own rank, as of the last call that agreed with others."""
        world = structs.World()
        PCCLError.check(library.pcclGetWorld(self._handle, byref(world)), "pcclGetWorld")
        return World(*(getattr(world, name) for name, _ in structs.World._fields_))

    def ring(self) -> List[bytes]:
        """The peers of the own group in the order in which data flows; the index is the rank."""
        count = ctypes.c_size_t()
        capacity = 0
        while True:
            ring = ctypes.create_string_buffer(max(16 * capacity, 1))
            PCCLError.check(library.pcclGetRing(self._handle, ring, capacity, byref(count)), "pcclGetRing")
            if count.value <= capacity:
                return [ring.raw[16 * rank:16 * rank + 16] for rank in range(count.value)]
            capacity = count.value

    def status(self) -> Dict[str, Any]:
        """The run as the master sees it: who is in, what each peer does, what waits for whom and since when."""
        return json.loads(text("pcclGetStatus", self._handle, True))

    @property
    def last_verdict(self) -> Optional[str]:
        """Why the last operation failed on all peers, if one has."""
        return text("pcclGetLastVerdict", self._handle) or None

    @property
    def is_connected(self) -> bool:
        connected = ctypes.c_bool()
        PCCLError.check(library.pcclIsConnected(self._handle, byref(connected)), "pcclIsConnected")
        return connected.value

    def sync_shared_state(self, shared_state: SharedState,
                          strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR
                          ) -> SharedStateSyncInfo:
        """Makes tensors and revision the same on all peers of the group."""
        info = structs.SyncInfo()
        self._blocking("pcclSynchronizeSharedState", byref(shared_state.to_c()), strategy.value, byref(info),
                       keep=(shared_state, info))
        return SharedStateSyncInfo(info.tx_bytes, info.rx_bytes)

    def all_reduce(self, send: Any, recv: Any, *, op: ReduceOp, tag: int = 0,
                   operand_descriptor: Optional[ReduceOperandDescriptor] = None,
                   quantization_options: Optional[QuantizationOptions] = None) -> ReduceInfo:
        """Reduces ``send`` over all peers of the group into ``recv``; the two may be the same."""
        handle = self.all_reduce_async(send, recv, op=op, tag=tag, operand_descriptor=operand_descriptor,
                                       quantization_options=quantization_options)
        succeeded, _, info = handle.wait()
        if not succeeded:
            raise handle.error
        return info

    def all_reduce_async(self, send: Any, recv: Any, *, op: ReduceOp, tag: int = 0,
                         operand_descriptor: Optional[ReduceOperandDescriptor] = None,
                         quantization_options: Optional[QuantizationOptions] = None) -> AsyncReduceHandle:
        """Begins a reduce. The buffers are kept alive until it is over."""
        given, taken = pair(send, recv, operand_descriptor)
        descriptor = describe(given, op, tag, operand_descriptor, quantization_options).to_c()
        c_op = structs.AsyncReduceOp()
        code = library.pcclAllReduceAsync(given.pointer, taken.pointer, byref(descriptor), self._handle, byref(c_op))
        PCCLError.check(code, "pcclAllReduceAsync")
        handle = AsyncReduceHandle(self, c_op, (given, taken))
        self._in_flight[tag] = handle
        return handle

    def all_reduce_multiple_with_retry(self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
                                       ) -> ReduceInfo:
        """Reduces several buffers as one operation, again and again until it succeeds or no other peer is left."""
        array = (structs.ReduceOpDescriptor * len(descriptors))(*[one.to_c() for one in descriptors])
        info = structs.ReduceInfo()
        name, handle = "pcclAllReduceMultipleWithRetry", self._handle
        blocking(name, array, len(descriptors), handle, byref(info), max_in_flight,
                 on_interrupt=lambda: library.pcclClose(handle), keep=(self, descriptors, array, info))
        return ReduceInfo.from_c(info)

    def _wait_for(self, reduce: AsyncReduceHandle) -> None:
        """Waits in slices, between which Python runs its handlers of signals."""
        done = ctypes.c_bool()
        try:
            while not done.value:
                code = library.pcclWaitAsyncReduce(byref(reduce._op), _SLICE_MS, byref(done))
                if code != 0:
                    break
        except BaseException:
            library.pcclAbortAsyncReduce(byref(reduce._op))
            library.pcclWaitAsyncReduce(byref(reduce._op), int(GRACE_S * 1000), byref(done))
            if done.value:
                reduce._await()
            else:
                # The master does not answer in time. Closing ends it in any case; its buffers live until then.
                threading.Thread(target=self._abandon, args=(reduce,), daemon=True, name="end a reduce").start()
            raise
        reduce._await()

    def _abandon(self, reduce: AsyncReduceHandle) -> None:
        library.pcclClose(self._handle)
        reduce._await()

    def close(self) -> None:
        """Leaves the run at once. The communicator may connect again."""
        self._blocking("pcclClose")

    def close_within(self, timeout: float) -> None:
        """Leaves the run when the calls of other threads are over, or the time is."""
        self._blocking("pcclCloseWithin", max(int(timeout * 1000), 0))

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

    def __del__(self):
        if getattr(self, "_handle", None):
            self.destroy()
