"""The loop of a training."""

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Union

from ._arguments import U32, integer, milliseconds
from ._descriptors import SharedStateSyncInfo, World
from ._enums import Remedy, SharedStateSyncStrategy
from ._errors import NotConnected, PCCLError
from ._log import info, warn
from ._notice import Notice, wait_out
from ._reduces import AsyncReduceHandle
from ._repeat import Repeat, repeat_of
from ._rollback import Rollback
from ._sharing import Loan, Progress, Unchanged
from ._state import SharedState

#: Longest pause between two steps that fail, one after the other.
_LONGEST_PAUSE_S = 2.0


class Training:
    """What a communicator does to keep a training going, over calls that it has."""

    _in_flight: Dict[int, AsyncReduceHandle]
    #: Modules around those of a state, such as DDP, whose gradients a failed step leaves behind, too.
    _replicas: List[Any]

    if TYPE_CHECKING:
        @property
        def is_connected(self) -> bool: ...

        def close(self) -> None: ...
        def world(self) -> World: ...
        def wait_for_world(self, peers: int, timeout: Optional[float] = None) -> World: ...
        def are_peers_pending(self, timeout: Optional[float] = None) -> bool: ...
        def update_topology(self, timeout: Optional[float] = None) -> None: ...
        def sync_shared_state(self, shared_state: SharedState, strategy: Union[SharedStateSyncStrategy, str] = ...,
                              timeout: Optional[float] = None, progress: Optional[Progress] = None, *,
                              unchanged: Unchanged = ...) -> SharedStateSyncInfo: ...
        def lend(self, shared_state: SharedState, *, unchanged: bool = ...) -> Loan: ...
        def _recover_with_state(self, remedy: int, peers: int, state: SharedState) -> None: ...
        def _blocking(self, call: str, name: str, *arguments: Any, timeout: Optional[float] = None,
                      keep: Any = None) -> None: ...
        def _begin_tags(self) -> None: ...

    def run(self, step: Callable[..., Any], *, state: SharedState, steps: Optional[int] = None,
            more: Optional[Callable[[], bool]] = None, min_world: Union[int, Callable[[], int]] = 2,
            strategy: Union[SharedStateSyncStrategy, str] = SharedStateSyncStrategy.ENFORCE_POPULAR,
            compute: Optional[Callable[[], Any]] = None, restore: Iterable[Any] = ()) -> None:
        """Trains: connects, waits for peers, makes steps, and makes good what fails: a peer that dies, a master that is
        started again. Peers may be started before their master.

        Each turn waits until there are ``min_world`` peers, syncs ``state``, calls ``step()``, raises the revision, and
        lets in who waits. It ends when the revision has come to ``steps``, or when ``more()``, which is asked before
        each turn, returns False; give one of the two. All peers have to decide alike, so decide by what is in the
        state.

        A ``step`` computes, reduces, and changes the state at its end, when all its reduces have succeeded: if one of
        them fails, the whole turn is made again, from the sync on. ``min_world`` may also be a function, which is asked
        before each turn, for a training that wants more peers in its beginning, say. Reduces that are then in flight
        are given up.

        Before a step is made again, what the failed try has changed beside the arrays and tensors of the state is put
        back: gradients and buffers of modules in the state, its numbers, each ``GradScaler`` and random generator that
        ``step`` or ``compute`` names, and the generators of random, numpy and torch. **Whatever else a try changes is
        the program's to put back**; ``restore`` takes what has ``state_dict`` and ``load_state_dict``, such as an
        optimiser or sampler outside of the state, and dicts, lists, arrays and generators, which are copied before each
        try. With ``PCCL_CHECK_RETRY=1`` in the environment of all peers each step is made twice, and what differs is
        the error ``NotRepeatable``.

        With ``compute``, which all peers have or none, newcomers join without a stop. ``compute()`` does what takes long
        and returns it; it only reads the state, which is lent meanwhile: newcomers fetch it. Then whoever holds it is
        let in, and ``step(computed)`` reduces and changes the state. A peer that has just come that way has computed
        nothing, and nobody waits for it: its first ``step`` gets ``None`` and has to reduce with the weight 0, as in
        ``comm.weighted_average(gradient, 0 if computed is None else 1)``.

        Exceptions other than ``PCCLError``, and those whose remedy is to give up, are raised; so is ``ConnectFailed``
        when the master was not reached for ``connect_timeout``.
        """
        if not callable(step):
            raise TypeError(f"step is a function, not a {type(step).__name__}")
        if compute is not None and not callable(compute):
            raise TypeError(f"compute is a function, not a {type(compute).__name__}")
        if not isinstance(state, SharedState):
            raise TypeError(f"state is a SharedState, not a {type(state).__name__}")
        if (steps is None) == (more is None):
            raise TypeError("give steps or more, one of the two")
        chosen = SharedStateSyncStrategy.of(strategy)
        if not callable(min_world):
            integer(min_world, "min_world", 1, U32)
        goes_on = more if more is not None else _until(state, integer(steps, "steps", 0, (1 << 64) - 1))
        fetched = None if compute is None else state
        functions = [step] if compute is None else [step, compute]
        rollback = Rollback(state, self._replicas, restore, functions)
        repeat = repeat_of(self, state, rollback, functions)  # type: ignore[arg-type]
        try:
            self._train(_Loop(step, compute, state, chosen, goes_on, rollback, repeat), min_world, fetched)
        finally:
            rollback.close()

    def _train(self, loop: "_Loop", min_world: Union[int, Callable[[], int]], fetched: Optional[SharedState]) -> None:
        failures = 0
        error: Optional[PCCLError] = None
        while loop.goes_on():
            peers = integer(min_world() if callable(min_world) else min_world, "min_world", 1, U32)
            # Outside of the try: recover tries again by itself, for as long as that is of use.
            try:
                if error is not None:
                    self.recover(error, min_world=peers, state=fetched)
                elif not self.is_connected:
                    self._recover(Remedy.RECONNECT, peers, fetched)
            except NotConnected:
                # Closed while it waited for others, by a notice say, after which there is no other step.
                if loop.goes_on():
                    raise
                return
            error = None
            try:
                self._wait_for(peers)
                if loop.compute is None:
                    self._turn(loop)
                else:
                    self._lent_turn(loop, loop.compute)
                failures = 0
            except PCCLError as failed:
                # An operation in flight would be put back over this, when it is given up.
                self._give_up()
                loop.rollback.undo()
                if failed.remedy in (Remedy.GIVE_UP, Remedy.FORM_GROUP, Remedy.NONE):
                    raise
                if failed._is_logged:
                    info(f"the step is made again, after {failed.cause}")
                else:
                    warn(f"a step failed: {failed}")
                error, failures = failed, failures + 1
                if failures > 1:
                    # The first failure has taken its time; a row of them must not keep the machine busy.
                    time.sleep(min(0.1 * 2 ** min(failures - 2, 10), _LONGEST_PAUSE_S))

    def close_on(self, notice: Notice, within: float) -> None:
        """Sees to it that this peer has left ``within`` some seconds after the notice was given: what is in flight
        then is cut off, as by ``close``. It is the net under a loop that asks ``notice.is_given()`` between its steps
        and calls ``close_within``, and that may be blocked for longer. A peer that has left before is left alone; so is
        one whose notice was closed."""
        if not isinstance(notice, Notice):
            raise TypeError(f"notice is a Notice, not a {type(notice).__name__}")
        seconds = milliseconds(within, "within") / 1000
        threading.Thread(target=_leave, args=(weakref.ref(self), notice, seconds), daemon=True,
                         name="pccl-leave").start()

    def _wait_for(self, peers: int) -> None:
        world = self.world()
        wanted = max(peers, world.min_world_size)
        if world.global_size < wanted:
            self.wait_for_world(wanted)

    def _turn(self, loop: "_Loop") -> None:
        self.sync_shared_state(loop.state, loop.strategy)
        # The state of the others may be that of the end.
        if not loop.goes_on():
            return
        loop.rollback.begin()
        loop.make(loop.step, loop.step)
        # At the end of a step: a newcomer begins with the sync, and so do the others after this. Nobody is let in at
        # the end.
        if loop.goes_on() and self.are_peers_pending():
            self.update_topology()

    def _lent_turn(self, loop: "_Loop", compute: Callable[[], Any]) -> None:
        computed, work = False, None
        came = self.sync_shared_state(loop.state, loop.strategy).came_ahead
        loop.rollback.begin()
        while loop.goes_on():
            if not computed and not came:
                with self.lend(loop.state, unchanged=True):
                    work = compute()
                computed = True
            # Before the state changes, so that a newcomer holds it. Each sync is followed by this question, also that
            # of a newcomer, so that all make the same calls.
            if not self.are_peers_pending():
                loop.make(lambda: loop.step(work), lambda: loop.step(compute() if computed else None))
                return
            self.update_topology()
            if self.sync_shared_state(loop.state, loop.strategy).rx_bytes > 0:
                # The others have another state: what was computed is of no use.
                computed, came, work = False, False, None
                loop.rollback.undo(is_state_new=True)
                loop.rollback.begin()

    def recover(self, error: PCCLError, *, min_world: int = 2, state: Optional[SharedState] = None) -> None:
        """Does what ``error`` asks for, so that the step in which it happened can be made again, from its sync on:
        nothing, a wait until there are ``min_world`` peers, or ``connect`` and a wait for peers. If that fails, what
        that failure asks for is done, for up to ``connect_timeout``. Reduces that are in flight are given up before.
        Raises ``error`` if nothing can be done about it. For loops of one's own; ``run`` holds the usual one. With
        ``state`` it connects as ``connect(state=state)`` does.
        """
        peers = integer(min_world, "min_world", 1, U32)
        if not isinstance(error, PCCLError):
            raise TypeError(f"error is a PCCLError, not a {type(error).__name__}")
        if state is not None and not isinstance(state, SharedState):
            raise TypeError(f"state is a SharedState, not a {type(state).__name__}")
        if error.remedy in (Remedy.GIVE_UP, Remedy.FORM_GROUP, Remedy.NONE):
            raise error
        self._recover(error.remedy, peers, state)

    def _give_up(self) -> None:
        """Ends what is in flight, which puts back what it has written over."""
        for handle in list(self._in_flight.values()):
            try:
                handle.abort()
            except PCCLError:
                # It is over, and so is the connection that it belonged to.
                pass
            handle.wait(float("inf"))

    def _recover(self, remedy: Remedy, peers: int, state: Optional[SharedState]) -> None:
        self._give_up()
        if state is None:
            self._blocking("recover", "pcclRecover", remedy.value, peers)
        else:
            self._recover_with_state(remedy.value, peers, state)
        if remedy is not Remedy.RETRY:
            self._begin_tags()


class _Loop:
    """What ``run`` was called with."""

    def __init__(self, step: Callable[..., Any], compute: Optional[Callable[[], Any]], state: SharedState,
                 strategy: SharedStateSyncStrategy, goes_on: Callable[[], bool], rollback: Rollback,
                 repeat: Optional[Repeat]):
        self.step, self.compute, self.state, self.strategy = step, compute, state, strategy
        self.goes_on, self.rollback, self.repeat = goes_on, rollback, repeat

    def make(self, attempt: Callable[[], None], again: Callable[[], None]) -> None:
        """The step, after which the state is that of the next revision."""
        if self.repeat is None:
            attempt()
        else:
            self.repeat.make(attempt, again)
        self.rollback.succeeded()
        self.state.push_revision()


def _leave(training: "weakref.ref[Training]", notice: Notice, within_s: float) -> None:
    if not wait_out(notice, within_s, lambda: training() is not None):
        return
    left = training()
    try:
        if left is not None and left.is_connected:
            warn(f"{within_s:g} s after the notice this peer has not left by itself: what is in flight is cut off")
            left.close()
    except PCCLError:
        # It was destroyed meanwhile, which is as good.
        pass


def _until(state: SharedState, steps: int) -> Callable[[], bool]:
    return lambda: state.revision < steps
