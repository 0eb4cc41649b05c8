"""Ports for programs that cannot be asked for the one that they have got."""

import contextlib
import random
import socket


def free_port():
    """A port of the loopback at which nobody listens, below the range from which the system gives ports away itself."""
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", random.randrange(20000, 30000)))
            return listener.getsockname()[1]
