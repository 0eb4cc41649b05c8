"""Programs of torch in processes of their own, which a test leads step by step."""

import os
import subprocess
import sys
import textwrap

import pytest

PATIENCE_S = 240
PROLOGUE = """
import sys, datetime, faulthandler, torch, torch.distributed as dist
# A program that hangs says where, and ends: whoever waits for a line of it then reads the end of the stream.
faulthandler.dump_traceback_later(%d, exit=True)
import pccl.torch
torch.set_num_threads(1)
rank, size, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def say(what):
    print(what, flush=True)
def go():
    assert sys.stdin.readline(), "nobody is there any more"
def init(backend="pccl", **settings):
    settings.setdefault("timeout", datetime.timedelta(seconds=120))
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, **settings)
def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
def batch(step, of):
    generator = torch.Generator().manual_seed(1000 * step + of)
    return torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)
""" % PATIENCE_S


@pytest.fixture
def ranks():
    """Starts a program in processes; none outlives its test."""
    started = []

    def start(size, where, program, ranks=None):
        text = PROLOGUE + textwrap.dedent(program)
        peers = [subprocess.Popen([sys.executable, "-c", text, str(rank), str(size), where], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
                 for rank in (range(size) if ranks is None else ranks)]
        started.extend(peers)
        return peers

    yield start
    for peer in started:
        if peer.poll() is None:
            peer.kill()
        peer.wait()
        peer.stdin.close()
        peer.stdout.close()


def line(peer, begin):
    text = peer.stdout.readline().strip()
    assert text.startswith(begin), f"{text!r} instead of {begin!r}"
    return text


def go(peers):
    for peer in peers:
        peer.stdin.write("go\n")
        peer.stdin.flush()


def finish(peers):
    for peer in peers:
        assert peer.wait(PATIENCE_S) == 0
