"""Lines of the library, and of this package, go to ``logging.getLogger("pccl")`` by a queue and a thread of the
library: nobody waits for handlers, which may do anything."""

import atexit
import logging
import os
import threading
from typing import Any

from ._library import library, structs

LOGGER = logging.getLogger("pccl")
#: Below DEBUG, as the library has one level more.
TRACE = 5
_LEVELS = {
    structs.pcclLogError: logging.ERROR,
    structs.pcclLogWarn: logging.WARNING,
    structs.pcclLogInfo: logging.INFO,
    structs.pcclLogDebug: logging.DEBUG,
    structs.pcclLogTrace: TRACE,
}
_ENVIRONMENT = ("PCCL_LOG_LEVEL", "RUST_LOG")
_attached = False
#: How long the end of Python waits for handlers that do not return, after the library has waited for as long.
_SHUTDOWN_S = 2.0


def attach() -> None:
    """Hands lines of the library over that the logger is interested in now; called for each communicator and master
    that is made. Where the environment sets the log of the library, lines go to standard error, as they do in other
    languages."""
    global _attached
    if any(os.environ.get(name) is not None for name in _ENVIRONMENT):
        return
    _attached = True
    library.pcclSetLogCallback(_wanted(), _take, None)


def warn(text: str) -> None:
    """Logs a warning of this package."""
    _write(2, text)


def info(text: str) -> None:
    """Logs what is no news to whoever has read the warnings."""
    _write(3, text)


def _write(level: int, text: str) -> None:
    if not _attached:
        attach()
    library.pcclWriteLog(level, text.replace("\0", " ").encode(errors="replace"))


def _wanted() -> int:
    effective = LOGGER.getEffectiveLevel()
    return max((number for number, level in _LEVELS.items() if level >= effective), default=0)


def _receive(level: int, origin: bytes, line: bytes, _user: Any) -> None:
    LOGGER.log(_LEVELS.get(level, logging.ERROR), "%s", line.decode(errors="replace"),
               extra={"origin": origin.decode(errors="replace")})


_take = structs.LogCallback(_receive)


# After the wait for masters at the end of a script, which was imported later.
@atexit.register
def _detach() -> None:
    """Before Python ends: no thread of the library may call into it then."""
    if _attached and library.pcclSetLogCallback(-1, structs.LogCallback(), None) != 0:
        # A handler stands in a write, with its lock held, for which the end of ``logging`` would wait for ever.
        atexit.unregister(logging.shutdown)
        shutdown = threading.Thread(target=logging.shutdown, daemon=True)
        try:
            shutdown.start()
        except RuntimeError:
            # Too late for threads.
            return
        shutdown.join(_SHUTDOWN_S)
