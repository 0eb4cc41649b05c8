"""Masters, and peers in processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import pccl

# A shell without job control starts what it puts into the background with this signal ignored, and children inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)

PATIENCE_S = 120
PROLOGUE = """
import sys, numpy, pccl
from pccl import *
address, peers, index = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def join():
    comm = Communicator(address, first_ports=(0, 0))
    comm.connect()
    comm.wait_for_world(peers)
    return comm
def say(what):
    print(what, flush=True)
def go():
    assert sys.stdin.readline(), "nobody is there any more"
"""


@pytest.fixture
def master():
    with pccl.MasterNode("127.0.0.1:0") as node:
        yield f"127.0.0.1:{node.port}"


class Peer:
    """A Python process that runs a piece of a program."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([sys.executable, "-c", PROLOGUE + textwrap.dedent(program),
                                         *map(str, arguments)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "PYTHONUNBUFFERED": "1"})
        # A thread that waits for a line of it then reads the end of the stream.
        self.watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        self.watchdog.daemon = True
        self.watchdog.start()

    def expect(self, what):
        line = self.process.stdout.readline().strip()
        assert line.startswith(what), f"{line!r} instead of {what!r}"
        return line

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self):
        assert self.process.wait(PATIENCE_S) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start():
    """Starts peers; none outlives its test."""
    started = []

    def start(program, *arguments):
        started.append(Peer(program, *arguments))
        return started[-1]

    yield start
    for peer in started:
        peer.watchdog.cancel()
        if peer.process.poll() is None:
            peer.kill()
        peer.process.stdin.close()
        peer.process.stdout.close()


@pytest.fixture
def fleet(master, start):
    """Runs a program in as many peers, and waits for their good end."""

    def run(count, program):
        peers = [start(program, master, count, index) for index in range(count)]
        for peer in peers:
            peer.finish()

    return run
