"""A master in this process."""

import ctypes
import time
from ctypes import byref
from typing import Any, Optional

from ._enums import Result
from ._errors import PCCLError
from ._library import library

#: How often a wait for the end of a master lets Python look at its signals.
_PAUSE_S = 0.05


class MasterNode:
    """A master that will listen on ``listen_address``. As a context manager it runs inside, and ends with it."""

    def __init__(self, listen_address: str = "0.0.0.0:48148", *, min_world_size: Optional[int] = None,
                 peer_timeout: Optional[float] = None):
        self._handle = ctypes.c_void_p()
        self._runs = False
        code = library.pcclCreateMasterByName(listen_address.encode(), byref(self._handle))
        if code == Result.INVALID_ARGUMENT.value:
            raise ValueError(PCCLError.of(code, "pcclCreateMaster").message)
        PCCLError.check(code, "pcclCreateMaster")
        if min_world_size is not None:
            self._call("pcclMasterSetMinWorldSize", min_world_size)
        if peer_timeout is not None:
            self._call("pcclMasterSetPeerTimeout", int(peer_timeout * 1000))

    def _call(self, name: str, *arguments: Any) -> None:
        PCCLError.check(getattr(library, name)(self._handle, *arguments), name)

    def run(self) -> None:
        """Starts it and returns."""
        self._call("pcclRunMaster")
        self._runs = True

    @property
    def port(self) -> int:
        """The port that it listens on, once it runs."""
        port = ctypes.c_uint16()
        self._call("pcclMasterGetPort", byref(port))
        return port.value

    def interrupt(self) -> None:
        """Asks it to end."""
        self._call("pcclInterruptMaster")

    def wait(self) -> None:
        """Waits until it has ended, which it does when somebody interrupts it."""
        ended = ctypes.c_bool()
        while True:
            self._call("pcclMasterHasEnded", byref(ended))
            if ended.value:
                return
            time.sleep(_PAUSE_S)

    def destroy(self) -> None:
        """Ends it at once."""
        handle, self._handle, self._runs = self._handle, ctypes.c_void_p(), False
        if handle:
            library.pcclDestroyMaster(handle)

    def __enter__(self) -> "MasterNode":
        if not self._runs:
            self.run()
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    def __del__(self):
        # A program that does nothing but run a master is one until it is interrupted.
        if getattr(self, "_handle", None):
            try:
                if self._runs:
                    self.wait()
            finally:
                self.destroy()
