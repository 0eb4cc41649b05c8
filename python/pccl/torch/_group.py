"""The process group, and the backend object that stands for it where torch asks for one."""

import atexit
import sys
import threading
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from .._errors import PCCLError
from ._arrivals import Arrivals
from ._barriers import Barriers
from ._chain import Chain, Follow
from ._collectives import Collectives
from ._completion import Completion
from ._errors import CollectiveError
from ._lanes import ALL, Call, Lanes, Operation
from ._master import Embedded, found
from ._members import Members
from ._pairs import PairCalls
from ._tags import Tags
from ._work import CollectiveWork, Finish, Part, seconds

_DEVICES = ("cpu", "cuda")
#: How long who leaves waits for the others to leave, too.
_PARTING_S = 5.0


class PCCLProcessGroup(PairCalls, Collectives, Barriers, dist.ProcessGroup):  # type: ignore[misc]
    """A process group over PCCL. ``init_process_group("pccl", ...)`` and ``new_group`` make it."""

    def __init__(self, store: Any, lanes: Lanes, timeout: timedelta, can_reconfigure: bool = False,
                 master: Optional[Embedded] = None, space: int = 0):
        members = lanes.members
        super().__init__(store, members.rank, members.size)
        self._members, self._master, self._can_reconfigure = members, master, can_reconfigure
        self._limit, self._tags = timeout, Tags(members.communicator, space)
        members.users.add(self)
        self._launching = threading.Lock()
        # Nothing here refers back to the group: one that is only dropped leaves at once.
        self._completion = Completion("pccl", lanes)
        self.arrivals = Arrivals(self, members)
        self._sequence, self._is_aborted, self._is_over, self._is_default = 0, False, False, False
        self._coalesced: Optional[List[CollectiveWork]] = None
        self._object = _BackendObject(self, members.rank, members.size)
        for device in _DEVICES:
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._object)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._at_exit = _weakly(self)
        # Behind the master, if there is one here: what is registered last comes first.
        atexit.register(self._at_exit)

    # ---- Its identity

    @property
    def communicator(self) -> Any:
        """The ``pccl.Communicator`` behind it."""
        return self._members.communicator

    def getRank(self) -> int:
        """The own rank: another one after each ``reconfigure``."""
        return self._members.rank

    def getSize(self) -> int:
        """The number of members: another one after each ``reconfigure``."""
        return self._members.size

    rank, size = getRank, getSize

    def getBackendName(self) -> str:
        """``pccl``."""
        return "pccl"

    _get_backend_name = getBackendName

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    @property
    def lanes(self) -> Lanes:
        """What is in flight on its communicator."""
        return self._completion.lanes

    @property
    def is_over(self) -> bool:
        """Whether it was shut down."""
        return self._is_over

    # ---- Operations

    def launch(self, what: str, calls: Sequence[Union[Call, Follow, Part]] = (),
               outputs: Sequence[torch.Tensor] = (), finish: Sequence[Finish] = (),
               timeout: Optional[timedelta] = None,
               source: Callable[[], int] = lambda: -1) -> CollectiveWork:
        """Begins the operations of one call. The limit of torch is counted from here."""
        limit = seconds(timeout) or seconds(self._limit) or float(10 * 365 * 86400)
        with self._launching:
            self._check(what)
            parts = [self._part(what, call) for call in calls]
            self.lanes.enter([part.first for part in parts if isinstance(part, (Operation, Chain))])
            self._sequence += 1
            work = CollectiveWork(what, parts, outputs, finish, limit, self._completion, source)
            self._completion.launched(work)
            if self._coalesced is not None:
                self._coalesced.append(work)
        return work

    def collectives_in_flight(self) -> List[CollectiveWork]:
        """What all members have called and is not over here, in the order of the calls."""
        return self._completion.collectives()

    def _part(self, what: str, call: Union[Call, Follow, Part]) -> Part:
        if isinstance(call, Call):
            return self._operation(what, call)
        if not isinstance(call, Follow):
            return call
        first, tag = self._operation(what, call.first), self._tags.take(ALL, 0)
        lanes, space = self.lanes, self._tags.space
        return Chain(first, lambda: Operation(what, call.second(), tag, lanes, space))

    def _operation(self, what: str, call: Call) -> Operation:
        """The operation of a call, with the tag that it has among all calls of this process."""
        tag = self._tags.take(call.lane, call.tag)
        return Operation(what, call, tag, self.lanes, self._tags.space)

    def take_if_next(self, number: int, call: Call) -> Optional[Operation]:
        """Begins a transfer to this process, if ``number`` is what its tag would be."""
        with self._launching:
            if self._tags.next(call.lane, call.tag) != number:
                return None
            operation = self._operation("recv", call)
            operation.enter()
            return operation

    def _check(self, what: str) -> None:
        if self._is_over:
            raise CollectiveError(f"{what}: the process group was shut down")
        if self._is_aborted:
            raise CollectiveError(f"{what}: the process group was aborted"
                                  + (", reconfigure it" if self._can_reconfigure else ""))

    def start_coalescing(self, device: Any = None) -> None:
        """What is called until ``end_coalescing`` becomes one work."""
        self._coalesced = []

    def end_coalescing(self, device: Any = None) -> CollectiveWork:
        """One work for all calls since ``start_coalescing``."""
        works, self._coalesced = self._coalesced or [], None
        outputs = [tensor for work in works for tensor in work.result()]
        return self.launch("coalesced", works, outputs)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # ---- Reconfigure

    @property
    def supports_reconfigure(self) -> bool:
        """Whether it was made with ``enable_reconfigure``."""
        return self._can_reconfigure

    def get_reconfigure_handle(self) -> str:
        """What the others need to form a group with this process. Fetch it anew for each ``reconfigure``."""
        return self._members.handle()

    def reconfigure(self, opts: Any) -> CollectiveWork:
        """Forms the group anew of those whose handles are given; the place in the list is the rank."""
        if not self._can_reconfigure:
            raise CollectiveError("reconfigure: the process group was made without enable_reconfigure=True")
        limit = seconds(getattr(opts, "timeout", None)) or seconds(self._limit) or 60.0
        with self._launching:
            self._completion.abort()
            self._members.reconfigure(opts.uuid, opts.handles, limit)
            self._completion.forget()
            self._is_aborted, self._coalesced = False, None
        return self.launch("reconfigure")

    # ---- Limits and the end

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of operations that begin from now on."""
        self._limit = timeout

    _set_default_timeout = set_timeout

    @property
    def options(self) -> Any:
        """What torch's backends show of how they were made: the limit of operations that begin now."""
        return dist.distributed_c10d.C10DBackend.Options("pccl", self._limit)

    def get_error(self) -> Any:
        """What ended the group, as an ``ErrorType`` of torch."""
        kinds = torch._C._distributed_c10d.ErrorType
        error = self._completion.last_error
        if error is None:
            return kinds.SUCCESS
        return kinds.TIMEOUT if error.is_timeout else kinds.COMM_ERROR

    @property
    def last_error(self) -> Optional[CollectiveError]:
        """The last failure of communication since ``forget_errors`` or ``reconfigure``."""
        return self._completion.last_error

    def forget_errors(self) -> None:
        """Nothing has failed so far."""
        self._completion.forget()

    def drain(self) -> None:
        """Gives up all that is in flight; the group stays as it is."""
        self._completion.abort()

    def abort(self) -> None:
        """Gives up all that is in flight. A group that can be reconfigured comes back by that; others are over."""
        self._is_aborted = True
        self.drain()
        self.forget_errors()

    def shutdown(self) -> None:
        """Leaves the run, together with the other members if they do so within five seconds: who leaves breaks the group,
        and with it what two others are doing. Of groups that share a communicator only the last one leaves. The process
        that has started the master ends it when all have left."""
        with self._launching:
            if self._is_over:
                return
            self._is_over = True
        atexit.unregister(self._at_exit)
        self._members.users.discard(self)
        is_last = not self._members.users
        if is_last and not self._is_aborted and self._completion.last_error is None:
            self._members.part(_PARTING_S)
        self._completion.abort()
        self._completion.stop()
        if is_last:
            self._members.leave()
        if self._is_default:
            found.note(None)
        if self._master is not None:
            self._master.stop()

    def end_of_program(self) -> None:
        """The interpreter ends, and nobody has called ``shutdown``. What the others still do is not cut off, unless
        this process ends with an exception, or the others form the group anew without it."""
        if self._can_reconfigure or getattr(sys, "last_value", None) is not None:
            self._is_aborted = True
        self.shutdown()

    def __del__(self) -> None:
        # The constructor may have failed.
        if hasattr(self, "_at_exit"):
            atexit.unregister(self._at_exit)
        if hasattr(self, "_completion"):
            self._completion.release()


def _weakly(group: PCCLProcessGroup) -> Callable[[], None]:
    """What ends the group with the program, without keeping it until then."""
    kept = weakref.ref(group)

    def end() -> None:
        living = kept()
        if living is not None:
            living.end_of_program()

    return end


class _BackendObject(dist.distributed_c10d.C10DBackend):  # type: ignore[misc, name-defined]
    """Stands for the group where torch asks for a backend. All it does is asking the group."""

    def __init__(self, group: PCCLProcessGroup, rank: int, size: int):
        super().__init__(rank, size)
        self._of_group = weakref.ref(group)

    @property
    def _group(self) -> PCCLProcessGroup:
        group = self._of_group()
        if group is None:
            raise CollectiveError("the process group of this backend is gone")
        return group

    def rank(self) -> int:
        return self._group.rank()

    def size(self) -> int:
        return self._group.size()

    def name(self) -> str:
        return "pccl"

    getBackendName = name

    @property
    def supports_reconfigure(self) -> bool:
        return self._group.supports_reconfigure

    @property
    def options(self) -> Any:
        return self._group.options

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True


def _forward(name: str) -> Callable[..., Any]:
    def call(self: _BackendObject, *arguments: Any, **named: Any) -> Any:
        return getattr(self._group, name)(*arguments, **named)

    call.__name__ = name
    return call


for _name in ("get_reconfigure_handle", "reconfigure", "set_timeout", "_set_default_timeout", "get_error", "abort",
              "shutdown", "start_coalescing", "end_coalescing", "_start_coalescing", "_end_coalescing",
              "_get_sequence_number_for_group", *Collectives.CALLS, *Barriers.CALLS, *PairCalls.CALLS):
    setattr(_BackendObject, _name, _forward(_name))
