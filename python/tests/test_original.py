"""A package as the original's, with this library in the place of theirs."""

import os
import shutil
import socket
import subprocess
import sys
import textwrap

import pytest

import pccl

pytest.importorskip("numpy")
pytest.importorskip("cffi", reason="the package of the original loads its library with cffi")

PATIENCE_S = 120
MASTER = """
import sys, pccl
master = pccl.MasterNode(listen_address=sys.argv[1])
master.run()
print("listening", flush=True)
# The end of the script waits for the master.
"""
PEER = """
import ctypes, sys, time, numpy, pccl
from pccl import Attribute, Communicator, PCCLError, Result, SharedState

try:
    ctypes.CDLL("libcuda.so.1")
    has_driver = True
except OSError:
    has_driver = False
assert pccl.HAS_CUDA == has_driver and len(Result) == 13 and not hasattr(pccl, "World")
address, steps, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
weights, momentum = numpy.zeros(1000, numpy.float32), numpy.zeros(1000, numpy.float32)
state = SharedState(weights=weights, momentum=momentum)
communicator = Communicator(address, 0)
for _ in range(100):
    try:
        communicator.connect()
        break
    except PCCLError as error:
        assert error.result == Result.MASTER_CONNECTION_FAILED, error
        time.sleep(0.1)
iteration = 0
while state.revision < steps:
    iteration += 1
    if iteration > 1 and communicator.are_peers_pending():
        communicator.update_topology()
    world = communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
    if world < 2 or (state.revision >= steps // 2 and world < wanted):
        time.sleep(0.01)
        continue
    try:
        communicator.sync_shared_state(state)
    except PCCLError as error:
        assert error.result == Result.INVALID_USAGE, error
        continue
    gradient, average = weights - numpy.float32(3), numpy.empty_like(weights)
    quantised = state.revision % 2 == 1
    while communicator.get_attribute(Attribute.LOCAL_WORLD_SIZE) > 1:
        try:
            handle = communicator.all_reduce_async(gradient, average, op=pccl.C.pcclAvg, quantised=quantised)
        except PCCLError as error:
            assert error.result == Result.TOO_FEW_PEERS, error
            continue
        ok, status, info = handle.wait()
        if ok:
            assert info.local_world_size > 1 and info.tx_bytes > 0
            break
        assert status == Result.RANK_CONNECTION_LOST.value, status
    else:
        continue
    momentum[:] = momentum * numpy.float32(0.5) + average
    weights -= momentum * numpy.float32(0.1)
    state.push_revision()
    print(f"step {state.revision} world {world}", flush=True)
print(f"end {weights[0]:.9g} {weights.tobytes() == weights[:1].tobytes() * 1000}", flush=True)
"""


@pytest.fixture
def run(tmp_path):
    """Starts programs that import the package of the original."""
    package = tmp_path / "pccl"
    shutil.copytree(os.path.join(os.path.dirname(__file__), "original"), package)
    headers = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "abi", "original")
    for header in ("ccoip_inet.h", "pccl.h"):
        shutil.copy(os.path.join(headers, header), package)
    name = next(name for name in os.listdir(pccl.pccl_dir()) if name in ("libpccl.so", "libpccl.dylib"))
    shutil.copy(os.path.join(pccl.pccl_dir(), name), package)
    started = []

    def start(program, *arguments):
        started.append(subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
                                        text=True,
                                        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def follow(process, beginning, ending=""):
    for line in process.stdout:
        if line.startswith(beginning) and line.rstrip().endswith(ending):
            return line.strip()
    raise AssertionError(f"it ended before it said {beginning!r}")


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_programs_of_the_original_train_through_a_kill_and_a_rejoin(run):
    address = free_address()
    peers = [run(PEER, address, 40, 3) for _ in range(2)]
    master = run(MASTER, address)
    follow(master, "listening")
    follow(peers[0], "step 3 ")
    peers.append(run(PEER, address, 40, 3))
    victim = peers.pop(1)
    follow(victim, "step", "world 3")
    victim.kill()
    follow(peers[0], "step 20 ")
    peers.append(run(PEER, address, 40, 3))
    ends = {follow(peer, "end") for peer in peers}
    assert len(ends) == 1 and ends.pop().endswith("True")
    for peer in peers:
        assert peer.wait(PATIENCE_S) == 0
    assert master.poll() is None


def test_a_master_ends_when_it_is_interrupted(run):
    program = """
        import sys, pccl
        master = pccl.MasterNode(listen_address=sys.argv[1])
        master.run()
        peer = pccl.Communicator(sys.argv[1])
        peer.connect()
        assert peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) == 1
        try:
            peer.optimize_topology()
        except pccl.PCCLError as error:
            assert error.result == pccl.Result.INVALID_USAGE
        del peer
        master.interrupt()
        master.interrupt()
        del master
        print("end", flush=True)
        """
    process = run(program, free_address())
    follow(process, "end")
    assert process.wait(PATIENCE_S) == 0
