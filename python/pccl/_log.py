"""Lines of the library go to ``logging.getLogger("pccl")``."""

import atexit
import logging
import os
import queue
import threading
from typing import Any, Optional

from ._library import library

LOGGER = logging.getLogger("pccl")
#: Below DEBUG, as the library has one level more.
TRACE = 5
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG, 5: TRACE}
_ENVIRONMENT = ("PCCL_LOG_LEVEL", "RUST_LOG")
_lines: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
_writer: Optional[threading.Thread] = None


def attach() -> None:
    """Hands lines of the library over that the logger is interested in now; called for each communicator and master that is
    made. Where the environment sets the log of the library, lines go to standard error, as they do in other languages."""
    global _writer
    if any(os.environ.get(name) is not None for name in _ENVIRONMENT):
        return
    if _writer is None or not _writer.is_alive():
        if _writer is None:
            atexit.register(_detach)
        _writer = threading.Thread(target=_write, daemon=True, name="pccl log")
        _writer.start()
    library.pcclSetLogCallback(_wanted(), _take, None)


def _wanted() -> int:
    effective = LOGGER.getEffectiveLevel()
    return max((number for number, level in _LEVELS.items() if level >= effective), default=0)


def _receive(level: int, origin: bytes, line: bytes, _user: Any) -> None:
    # The thread that calls may hold locks of the library: handlers, which may do anything, are called by another one.
    _lines.put((level, origin, line))


_take = library.LOG_CALLBACK(_receive)


def _write() -> None:
    while True:
        item = _lines.get()
        if item is None:
            return
        level, origin, line = item
        LOGGER.log(_LEVELS.get(level, logging.ERROR), "%s", line.decode(errors="replace"),
                   extra={"origin": origin.decode(errors="replace")})


def _detach() -> None:
    """Before Python ends: no thread of the library may call into it then."""
    library.pcclSetLogCallback(-1, library.LOG_CALLBACK(), None)
    _lines.put(None)
    if _writer is not None:
        _writer.join(1)
