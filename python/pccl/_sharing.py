"""What a communicator does with the shared state."""

import ctypes
from ctypes import byref
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Union

from ._arguments import U64, flag, integer, words
from ._calls import text
from ._descriptors import Ahead, SharedStateSyncInfo, StateDiff, SyncProgress, TensorDiff
from ._enums import SharedStateSyncStrategy
from ._errors import PCCLError
from ._library import library, structs
from ._state import Captured, SharedState

#: What is called while a state is fetched.
Progress = Callable[[SyncProgress], Any]
#: Tensors that have not changed, each since a revision; ``True`` stands for all of them since the last sync.
Unchanged = Union[bool, Mapping[str, int]]


class Loan:
    """A state that is lent to newcomers until the end of the ``with``, or until ``end()``.

    Until then the state is only read: neither its tensors nor its numbers are changed, and no tensor gets other memory.
    """

    def __init__(self, communicator: Any, state: SharedState, captured: Captured, number: int):
        self._communicator, self._number = communicator, number
        # Other threads of the library read this memory.
        self._kept: Any = (state, captured)

    def end(self) -> None:
        """Ends the loan, unless something else has: nobody reads the state any more when this returns."""
        handle, kept, self._kept = self._communicator._handle, self._kept, None
        if kept is not None and handle:
            library.pcclReclaimSharedState(handle, self._number)

    def __enter__(self) -> "Loan":
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def __del__(self) -> None:
        # Without a ``with`` the memory must not go before the readers do.
        if getattr(self, "_kept", None) is not None:
            self.end()


class Sharing:
    """The calls that have to do with the shared state."""

    if TYPE_CHECKING:
        _handle: Any

        def _call(self, call: str, name: str, *arguments: Any) -> None: ...

        def _blocking(self, call: str, name: str, *arguments: Any, timeout: Optional[float] = None,
                      keep: Any = None) -> None: ...

        def _begin_tags(self) -> None: ...

    def sync_shared_state(self, shared_state: SharedState,
                          strategy: Union[SharedStateSyncStrategy, str] = SharedStateSyncStrategy.ENFORCE_POPULAR,
                          timeout: Optional[float] = None, progress: Optional[Progress] = None, *,
                          unchanged: Unchanged = False) -> SharedStateSyncInfo:
        """Makes tensors, numbers and revision the same on all peers of the group. After a failure they are as before.

        ``progress`` is called about once per second while this peer fetches what differs, and at the end; in another
        thread than this one if this is the main thread.

        ``unchanged`` is the program's word that tensors are as they were when a sync of this communicator committed a
        revision: a mapping of their names (``SharedState.names``) to revisions, or ``True`` for all tensors since the
        last sync. These are not hashed. After a wrong word the states of the peers differ, and nobody notices.
        """
        tell = _listener(progress)
        _check_state(shared_state)
        chosen = SharedStateSyncStrategy.of(strategy)
        captured, info = shared_state._capture(), structs.SyncInfo()
        told = _unchanged(unchanged, captured)
        options = structs.SyncOptions(chosen.value, len(told), told, tell, None)
        self._blocking("sync_shared_state", "pcclSyncSharedState", byref(captured.c), byref(options), byref(info),
                       timeout=timeout, keep=(shared_state, captured, info, tell, told, options))
        if info.rx_bytes > 0:
            captured.finish()
        shared_state.revision = captured.c.revision
        shared_state._numbers = [entry.put_back for entry in captured.entries if entry.put_back is not None]
        self._begin_tags()
        return SharedStateSyncInfo(info.tx_bytes, info.rx_bytes, info.came_ahead)

    def _connect_with_state(self, state: SharedState, progress: Optional[Progress],
                            timeout: Optional[float]) -> Ahead:
        tell = _listener(progress)
        _check_state(state)
        captured, ahead = state._capture(), structs.Ahead()
        # The limit is that of the thread which makes the call.
        self._blocking("connect", "pcclConnectWithState", byref(captured.c), _DEFAULT_TIMEOUT, tell, None, byref(ahead),
                       timeout=timeout, keep=(state, captured, ahead, tell))
        return _came(state, captured, ahead)

    def _recover_with_state(self, remedy: int, peers: int, state: SharedState) -> None:
        captured, ahead = state._capture(), structs.Ahead()
        self._blocking("recover", "pcclRecoverWithState", remedy, peers, byref(captured.c), byref(ahead),
                       keep=(state, captured, ahead))
        _came(state, captured, ahead)

    def lend(self, shared_state: SharedState, *, unchanged: bool = False) -> Loan:
        """Lends the state to newcomers, which fetch it before they are let in: ``with comm.lend(state): compute()``.

        It has to be what the last sync committed, otherwise ``InvalidUsage``; with ``unchanged`` the program gives its
        word for that, and nothing is hashed. There is one loan at a time.

        Inside of the ``with`` the state may be read, but **not changed**: no tensor, no number, and no tensor gets other
        memory. The end of the ``with`` ends the loan; so does any sync, ``connect``, ``recover``, ``close`` or
        ``destroy`` of the communicator, after which the state may be changed whether the ``with`` is over or not.
        A connection that is lost meanwhile is told by the next call.
        """
        _check_state(shared_state)
        captured, number = shared_state._capture(), ctypes.c_uint64()
        self._call("Communicator.lend", "pcclLendSharedState", byref(captured.c), flag(unchanged, "unchanged"),
                   byref(number))
        return Loan(self, shared_state, captured, number.value)

    def lend_snapshot(self, shared_state: SharedState, *, unchanged: bool = False) -> None:
        """Copies the state and lends the copy to newcomers, so that the state may be changed at once.

        The copy takes as much memory as the state until ``end_snapshot`` or the end of the communicator; a later call
        copies only the MiBs that have changed. The loan ends with the next sync that commits something else, and goes
        on after one that commits the same again. Otherwise as ``lend``.
        """
        _check_state(shared_state)
        captured = shared_state._capture()
        self._call("Communicator.lend_snapshot", "pcclLendSharedStateSnapshot", byref(captured.c),
                   flag(unchanged, "unchanged"))

    def end_snapshot(self) -> None:
        """Ends the loan of ``lend_snapshot``, and frees the copy."""
        self._call("Communicator.end_snapshot", "pcclEndSharedStateSnapshot")

    def diff_shared_state(self, shared_state: SharedState, timeout: Optional[float] = None) -> StateDiff:
        """Finds out where the peers of the group differ, and changes nothing: ``if diff := comm.diff_shared_state(state):
        print(diff)``. All of them call it, with the same tensors; the revision does not matter, and what may differ is
        left out. All get the same answer. A guard beside any training loop, also beside collectives of another
        library."""
        _check_state(shared_state)
        captured, count = shared_state._capture(), ctypes.c_size_t()
        found = (structs.TensorDiff * max(captured.c.count, 1))()
        self._blocking("diff_shared_state", "pcclDiffSharedState", byref(captured.c), found, captured.c.count,
                       byref(count), timeout=timeout, keep=(shared_state, captured, found, count))
        names = [captured.c.infos[one.tensor].name.decode() for one in found[:count.value]]
        tensors = [
            TensorDiff(name, one.first_element if one.is_located else None, one.begin, one.end, one.contents,
                       self._peers_apart(index, one.peers_apart), one.is_apart)
            for index, (name, one) in enumerate(zip(names, found))
        ]
        return StateDiff(tensors, text("Communicator.diff_shared_state", "pcclGetStateDiffText", self._handle))

    def _peers_apart(self, index: int, count: int) -> List[bytes]:
        peers, there = ctypes.create_string_buffer(16 * max(count, 1)), ctypes.c_size_t()
        self._call("Communicator.diff_shared_state", "pcclGetStateDiffPeers", index, peers, count, byref(there))
        return [peers.raw[16 * at:16 * at + 16] for at in range(min(count, there.value))]

    def offer_resume(self, shared_state: SharedState) -> None:
        """Before ``connect``: this peer holds the state, for instance from a file, and the run can go on from it.

        Fresh peers wait for it, and the first sync of this peer has to bring exactly this state.
        """
        _check_state(shared_state)
        captured = shared_state._capture()
        PCCLError.check(library.pcclOfferResume(self._handle, byref(captured.c)), "Communicator.offer_resume")


#: What C takes for "as the communicator has it".
_DEFAULT_TIMEOUT = (1 << 64) - 2


def _check_state(state: Any) -> None:
    if not isinstance(state, SharedState):
        raise TypeError(f"shared_state is a SharedState, not a {type(state).__name__}")


def _listener(progress: Optional[Progress]) -> Any:
    if progress is None:
        return structs.SyncProgressCallback(0)
    if not callable(progress):
        raise TypeError(f"progress is a function, not a {type(progress).__name__}")
    names = [field[0] for field in structs.SyncProgress._fields_]

    def tell(seen: Any, _: Any) -> None:
        progress(SyncProgress(*(getattr(seen.contents, name) for name in names)))

    return structs.SyncProgressCallback(tell)


def _unchanged(unchanged: Unchanged, captured: Captured) -> Any:
    """The word of the program for C."""
    if isinstance(unchanged, Mapping):
        pairs = [
            structs.Unchanged(words(name, "a name in unchanged"), integer(since, "a revision in unchanged", 0, U64))
            for name, since in unchanged.items()
        ]
    elif flag(unchanged, "unchanged"):
        pairs = [structs.Unchanged(words(entry.name, "name"), captured.c.revision) for entry in captured.entries]
    else:
        pairs = []
    return (structs.Unchanged * len(pairs))(*pairs)


def _came(state: SharedState, captured: Captured, c_ahead: Any) -> Ahead:
    """What was fetched, and is in its place if it is a whole state: else it is of no use outside of memory."""
    ahead = Ahead.from_c(c_ahead)
    if ahead.revision is not None:
        captured.finish()
        state.revision = captured.c.revision
    return ahead
