"""A master in this process."""

import atexit
import ctypes
import dis
import sys
import time
import weakref
from ctypes import byref
from types import CodeType, FrameType
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._arguments import NO_TIMEOUT, U32, integer, limit_ms, milliseconds, words
from ._enums import Result
from ._errors import PCCLError
from ._library import library
from ._log import attach

#: How often a wait for the end of a master lets Python look at its signals.
_PAUSE_S = 0.05
#: Masters that run.
_running: "weakref.WeakSet[MasterNode]" = weakref.WeakSet()
#: Masters whose owner was a function that has returned.
_left_behind: "List[MasterNode]" = []


class MasterNode:
    """A master that will listen on ``listen_address``. As a context manager it runs inside, and ends with it.

    A script that starts one, or calls a function that does and returns, and comes to its last line stays until the
    master ends, which it does when somebody interrupts it. A program that fails, or calls ``sys.exit``, does not wait.
    """

    def __init__(self, listen_address: str = "0.0.0.0:48148", *, min_world_size: Optional[int] = None,
                 peer_timeout: Optional[float] = None, straggler_timeout: Optional[float] = None,
                 edge_timeout: Optional[float] = None, run_key: Optional[str] = None,
                 wire: Optional[str] = None, trusted_seeders: Sequence[str] = (),
                 journal: Optional[str] = None, accept_standbys: bool = False,
                 standby_of: Optional[str] = None, advertised_host: Optional[str] = None,
                 run_name: Optional[str] = None, masters: Optional[str] = None, me: Optional[str] = None):
        """A master that does not run yet.

        - ``listen_address``: ``host:port``; port 0 takes a free one, see ``port``.
        - ``min_world_size``: reduces and syncs need as many peers; default 1.
        - ``peer_timeout``: a peer that is silent for as many seconds is dropped; default 10.
        - ``straggler_timeout``: a peer is dropped whose program alone makes all others wait for a call for as many
          seconds; default never. It has to be longer than the longest step of the slowest peer.
        - ``edge_timeout``: a connection between two peers on which bytes wait and none has moved for as many seconds is
          built anew; default 4.
        - ``run_key``: the key of the run, as ``pccl-master --new-key`` prints it: who does not have it is turned away,
          and everything that travels is encrypted; default: that of the environment variable ``PCCL_RUN_KEY``. Without
          one a master that other machines reach lets everybody in, and says so in the log.
        - ``run_name``: with a key, the name of the run, which tells runs with the same key apart; default: that of the
          environment variable ``PCCL_RUN_NAME``.
        - ``wire``: with a key, how tensors and shared state travel: ``"encrypt"``, which is the default,
          ``"integrity"`` (readable, and not to be changed), or ``"off"`` (on private wires).
        - ``trusted_seeders``: with a key, names of the only peers that give shared state to others; default: all do.
        - ``journal``: a directory; a master that is started with it after this one has died goes on in its place, and no
          call of a peer fails. Default: none.
        - ``accept_standbys``: other masters may stand by for this one; they are told all secrets of the run.
        - ``standby_of``: stands by for the master at one of these places, ``"h1:48148,h2:48148"``, takes over its
          settings with the run, and goes on in its place when it is lost. Default: this master begins a run.
        - ``masters``: all masters of the run, ``"h1,h2,h3:48148"``, the same for each of them, in place of
          ``standby_of``: each stands by for the one that acts, and the first begins a run if there is none.
        - ``me``: which entry of ``masters`` is this one; default: it finds out by connecting to them.
        - ``advertised_host``: host under which others reach a master that stands by; default: the address from which
          the acting one sees it come.
        """
        self._handle = ctypes.c_void_p()
        self._main: Optional[FrameType] = None
        self._call_of_owner: Optional[_Place] = None
        address = words(listen_address, "listen_address")
        settings: Dict[str, bytes] = {}
        if min_world_size is not None:
            settings["min_world_size"] = b"%d" % integer(min_world_size, "min_world_size", 1, U32)
        for what, seconds in (("peer_timeout", peer_timeout), ("edge_timeout", edge_timeout)):
            if seconds is not None:
                settings[what] = b"%dms" % milliseconds(seconds, what, least_s=0.001)
        limit = limit_ms(straggler_timeout, "straggler_timeout")
        if limit != NO_TIMEOUT:
            settings["straggler_timeout"] = b"%dms" % limit
        texts = {"run_key": run_key, "run_name": run_name, "wire": wire, "journal": journal, "standby_of": standby_of,
                 "masters": masters, "me": me, "advertised_host": advertised_host}
        settings.update((what, words(value, what)) for what, value in texts.items() if value is not None)
        if accept_standbys:
            settings["accept_standbys"] = b"true"
        if isinstance(trusted_seeders, (str, bytes)):
            raise TypeError("trusted_seeders are a sequence of names")
        if trusted_seeders:
            settings["trusted_seeders"] = b",".join(words(name, "trusted_seeders") for name in trusted_seeders)
        attach()
        code = library.pcclCreateMasterByName(address, byref(self._handle))
        if code == Result.INVALID_ARGUMENT.value:
            raise ValueError(PCCLError.of(code, "MasterNode").message)
        PCCLError.check(code, "MasterNode")
        for name, value in settings.items():
            self._call("MasterNode", "pcclMasterSetOption", name.encode(), value)

    def _call(self, call: str, name: str, *arguments: Any) -> None:
        PCCLError.check(getattr(library, name)(self._handle, *arguments), call)

    def run(self) -> None:
        """Starts it and returns."""
        self._run_embedded()
        self._main, self._call_of_owner = _main_frame(), _place(sys._getframe(1).f_back)
        _running.add(self)

    def _run_embedded(self) -> None:
        """Starts it for an owner that ends it itself: no script waits for it at its last line."""
        self._call("MasterNode.run", "pcclRunMaster")

    @property
    def port(self) -> int:
        """The port that it listens on, once it runs."""
        port = ctypes.c_uint16()
        self._call("MasterNode.port", "pcclMasterGetPort", byref(port))
        return port.value

    def interrupt(self) -> None:
        """Asks it to end; one that stands by goes on in its place."""
        self._call("MasterNode.interrupt", "pcclInterruptMaster")

    def end_run(self) -> None:
        """Asks it to end, and the run with it, although others stand by."""
        self._call("MasterNode.end_run", "pcclMasterEndRun")

    def wait(self) -> None:
        """Waits until it has ended, which it does when somebody interrupts it."""
        ended = ctypes.c_bool()
        while True:
            self._call("MasterNode.wait", "pcclMasterHasEnded", byref(ended))
            if ended.value:
                return
            time.sleep(_PAUSE_S)

    def destroy(self) -> None:
        """Ends it at once."""
        handle, self._handle, self._main = self._handle, ctypes.c_void_p(), None
        _running.discard(self)
        _left_behind[:] = [other for other in _left_behind if other is not self]
        if handle:
            library.pcclDestroyMaster(handle)

    def __enter__(self) -> "MasterNode":
        if self not in _running:
            self.run()
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    def __del__(self) -> None:
        if not getattr(self, "_handle", None):
            return
        # The locals of a function go while its caller is still at the call, unless an exception has ended it.
        if self._main is not None and _place(sys._getframe(1)) == self._call_of_owner:
            _left_behind.append(self)
        else:
            self.destroy()


#: A piece of code, and where in it.
_Place = Tuple[CodeType, int]


def _place(frame: Optional[FrameType]) -> Optional[_Place]:
    return None if frame is None else (frame.f_code, frame.f_lasti)


def _main_frame() -> Optional[FrameType]:
    """The frame of the script, if it is the one that calls."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return frame
        frame = frame.f_back
    return None


def _came_to_its_end(frame: FrameType) -> bool:
    """Whether the last that a frame did was to return. An exception, such as that of ``sys.exit``, leaves it
    elsewhere."""
    return 0 <= frame.f_lasti and dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


@atexit.register
def _wait_for_masters() -> None:
    """A script that does nothing but run a master is one until it is interrupted."""
    for master in [*_running, *_left_behind]:
        try:
            if master._main is not None and _came_to_its_end(master._main):
                master.wait()
        except KeyboardInterrupt:
            pass
        finally:
            master.destroy()
