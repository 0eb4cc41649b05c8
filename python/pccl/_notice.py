"""Notices that this machine is about to be taken away."""

import os
import signal
import subprocess
import threading
import time
from typing import Any, Dict, Iterable, Optional

from ._arguments import limit_ms, milliseconds, words
from ._calls import SLICE_S
from ._log import warn

#: How long a run of a command may take.
_RUN_S = 10.0


class Notice:
    """Whether this peer is to leave soon, and who says so: one of ``signals``, the first run of ``command`` that ends
    with the status 0, or the program itself (``give``).

    A context manager: until its end, or ``close``, it handles the signals, which do nothing else meanwhile; then the
    handlers that were there before are back, unless somebody has put others in their place. As everywhere in Python,
    handlers are installed and put back by the main thread only, which also runs them: between two of its instructions,
    and while it waits in a call of this package.

    ``command`` is a line for the shell, and is run again ``every`` number of seconds after it has ended. A run of more
    than 10 s is killed, with all that it has started.
    """

    def __init__(self, signals: Iterable[int] = (), *, command: Optional[str] = None, every: float = 5.0):
        self._by: Optional[str] = None
        self._closed = threading.Event()
        self._old: Dict[int, Any] = {}
        self._watch: Optional[threading.Thread] = None
        self._handler = self._on_signal
        pause_s = milliseconds(every, "every") / 1000
        if command is not None:
            words(command, "command")
        try:
            for number in signals:
                self._handle(signal.Signals(number))
        except BaseException:
            self.close()
            raise
        if command is not None:
            self._watch = threading.Thread(target=self._run, args=(command, pause_s), daemon=True, name="pccl-notice")
            self._watch.start()

    def is_given(self) -> bool:
        """Whether it was given."""
        return self._by is not None

    @property
    def given_by(self) -> Optional[str]:
        """Who has given it, in words."""
        return self._by

    def give(self, by: str) -> None:
        """Gives it, on behalf of the program: ``by`` says for whom. Only the first time counts."""
        # Handlers come here: no lock, which the thread that they interrupt may have.
        if self._by is None:
            self._by = by

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until it is given, for as many seconds at most; whether it is."""
        limit, began = limit_ms(timeout), time.monotonic()
        while not self.is_given():
            left_s = limit / 1000 - (time.monotonic() - began)
            if left_s <= 0 or self._closed.wait(min(SLICE_S, left_s)):
                break
        return self.is_given()

    def close(self) -> None:
        """Puts the handlers back, and ends the command."""
        self._closed.set()
        old, self._old = self._old, {}
        for number, handler in old.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, handler)
        if self._watch is not None:
            self._watch.join()

    def _handle(self, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        if before is None:
            raise ValueError(f"{number.name} has a handler that Python did not install, and could not put back")
        if number not in self._old:
            signal.signal(number, self._handler)
            self._old[number] = before

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.give(f"signal {number}")

    def _run(self, command: str, pause_s: float) -> None:
        while not self._closed.is_set() and not self.is_given():
            try:
                if self._run_once(command):
                    self.give(f"command {command!r}")
                    return
            except OSError as error:
                warn(f"cannot run {command!r}: {error}")
            self._closed.wait(pause_s)

    def _run_once(self, command: str) -> bool:
        # In a group of its own, so that what it has started ends with it.
        with subprocess.Popen(command, shell=True, start_new_session=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            ends = time.monotonic() + _RUN_S
            while time.monotonic() < ends and not self._closed.is_set():
                try:
                    return process.wait(SLICE_S) == 0
                except subprocess.TimeoutExpired:
                    pass
            # It has not been waited for, so its group is still its own.
            os.killpg(process.pid, signal.SIGKILL)
        return False

    def __enter__(self) -> "Notice":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def wait_out(notice: Notice, within_s: float, still: Any) -> bool:
    """Waits until the notice was given and ``within_s`` seconds have passed; whether that came before the notice was
    closed, and before ``still()`` was false."""
    while not notice.is_given():
        if notice._closed.wait(SLICE_S) or not still():
            return False
    return not notice._closed.wait(within_s)
