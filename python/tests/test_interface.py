"""One process: arguments, buffers, errors, and what happens without other peers."""

import array
import ctypes
import inspect
import os
import signal
import subprocess
import sys
import threading

import pytest

import pccl
from pccl import Attribute, Communicator, DataType, MasterNode, PCCLError, ReduceOp, Remedy, Result, Schedule, SharedState, TensorInfo


@pytest.fixture
def alone(master):
    with Communicator(master, first_ports=(0, 0)) as comm:
        comm.connect()
        yield comm


def test_the_package_says_what_it_is():
    assert pccl.__version__.count(".") == 2
    assert pccl.cuda.is_available() or pccl.cuda.device_count() == 0
    assert os.path.exists(os.path.join(pccl.get_include(), "pccl.h"))
    assert any(name.startswith("libpccl") for name in os.listdir(pccl.pccl_dir()))
    assert DataType.INT16.value == 2 and len(Result) == 13 and len(DataType) == 12
    assert [one.itemsize for one in DataType] == [1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8]


def test_addresses():
    for good in ("127.0.0.1:48148", "localhost:1", "[::1]:48148"):
        Communicator(good).destroy()
    for bad in ("127.0.0.1", "::1:5:", "", "host:port"):
        with pytest.raises(ValueError):
            Communicator(bad)
    with pytest.raises(PCCLError):
        MasterNode("nowhere").run()


@pytest.mark.parametrize("address", ["http://localhost:48148", "tcp://localhost:48148", "tcp://[::1]:48148"])
def test_an_address_is_no_url(address):
    with pytest.raises(ValueError, match="give host and port alone, without the part up to `://`"):
        Communicator(address)


def test_what_is_closed_says_so(master):
    data = array.array("f", [1, 2, 3])
    with Communicator(master, first_ports=(0, 0), world_of_one=True) as comm:
        comm.connect()
        handle = comm.all_reduce_async(data)
    state, closed = SharedState.of(x=data), "this communicator is closed: its `with` is over"
    calls = (comm.world, comm.connect, comm.close, comm.barrier, handle.result, lambda: comm.name,
             lambda: comm.all_reduce(data), lambda: comm.sync_shared_state(state),
             lambda: comm.run(print, state=state, steps=1))
    for call in calls:
        with pytest.raises(pccl.InvalidArgument, match=closed):
            call()
    with MasterNode("127.0.0.1:0") as node:
        pass
    with pytest.raises(pccl.InvalidArgument, match="this master is closed"):
        node.port
    with pccl.Store("127.0.0.1:0") as store:
        pass
    with pytest.raises(pccl.InvalidArgument, match="this store is closed"):
        store.port


def test_reduces_are_sums_unless_told_otherwise():
    reduces = {name: inspect.signature(call) for name, call in inspect.getmembers(Communicator, callable)
               if not name.startswith("_")}
    ops = {name: found.parameters["op"].default for name, found in reduces.items() if "op" in found.parameters}
    assert len(ops) == 9 and set(ops.values()) == {ReduceOp.SUM}, ops


def test_schedules_are_chosen_at_any_time(alone):
    assert alone.schedule is Schedule.AUTOMATIC
    alone.schedule = Schedule.PAIRWISE
    assert alone.schedule is Schedule.PAIRWISE
    for small in (Schedule.ALL_GATHER, Schedule.DIRECT, Schedule.REDUCE_BROADCAST):
        with pytest.raises(pccl.InvalidArgument) as caught:
            alone.schedule = small
        assert caught.value.result is Result.INVALID_ARGUMENT and "cannot be chosen" in caught.value.message
    assert alone.schedule is Schedule.PAIRWISE
    with Communicator("127.0.0.1:1", schedule=Schedule.RING) as comm:
        assert comm.schedule is Schedule.RING


def test_a_site_has_a_name_as_a_peer_has():
    Communicator("127.0.0.1:1", site="eu-west/1").destroy()
    for bad in ("", "two words", "a,b", "x" * 65):
        with pytest.raises(pccl.InvalidArgument) as caught:
            Communicator("127.0.0.1:1", site=bad)
        assert "argument: site " in caught.value.message and "64 bytes" in caught.value.message, caught.value
    with pytest.raises(TypeError, match="site"):
        Communicator("127.0.0.1:1", site=7)


def test_errors_say_what_to_do(alone):
    data = array.array("f", [1, 2, 3])
    with pytest.raises(pccl.TooFewPeers) as caught:
        alone.all_reduce(data, data, op=ReduceOp.SUM)
    assert caught.value.result is Result.TOO_FEW_PEERS and caught.value.remedy is Remedy.WAIT_FOR_PEERS
    assert "group" in caught.value.message and not caught.value.retryable
    with pytest.raises(pccl.TimedOut) as caught:
        alone.wait_for_world(2, timeout=0.01)
    assert caught.value.result is Result.TOO_FEW_PEERS
    with pytest.raises(pccl.InvalidUsage) as caught:
        alone.optimize_topology()
    assert caught.value.result is Result.INVALID_USAGE
    assert alone.get_attribute(Attribute.GLOBAL_WORLD_SIZE) == 1
    with Communicator("127.0.0.1:1", connect_timeout=0.2) as stranger:
        with pytest.raises(pccl.ConnectFailed) as caught:
            stranger.connect(n_attempts=2)
        assert caught.value.result is Result.MASTER_CONNECTION_FAILED and caught.value.remedy is Remedy.RECONNECT
        with pytest.raises(pccl.NotConnected) as caught:
            stranger.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
        assert caught.value.remedy is Remedy.RECONNECT


def test_buffers_that_do_not_fit(alone):
    def reduce(send, recv):
        alone.all_reduce(send, recv, op=ReduceOp.SUM)

    floats = array.array("f", [1, 2, 3])
    for send, recv in ((floats, array.array("f", [1])), (floats, array.array("i", [1, 2, 3])), (floats, bytes(12)),
                       (memoryview(floats)[::2], memoryview(floats)[::2])):
        with pytest.raises(AssertionError):
            reduce(send, recv)
    for nothing in ([1.0], 5, "text", object()):
        with pytest.raises(ValueError):
            reduce(nothing, floats)
    with pytest.raises(ValueError):
        SharedState([])
    with pytest.raises(ValueError):
        TensorInfo.from_buffer(bytes(4), "read-only")


def test_any_memory_can_be_shared(alone):
    owned = bytearray(b"abcd")
    state = SharedState([TensorInfo.from_buffer(owned, "bytes"),
                         TensorInfo.from_buffer((ctypes.c_double * 3)(), "doubles"),
                         TensorInfo.from_buffer(array.array("q", [1, 2]), "integers")])
    state.revision = 9
    alone.sync_shared_state(state)
    assert state.revision == 9
    # Memory that is in use cannot be moved away.
    with pytest.raises(BufferError):
        owned.extend(b"e" * 100)


def test_ctrl_c_interrupts_a_blocking_call(master, start):
    peer = start("""
        import signal, threading, time
        for call in ("connect", "wait", "update", "reduce"):
            comm = Communicator(address, first_ports=(0, 0))
            if call != "connect":
                comm.connect()
            if call in ("update", "reduce"):
                comm.wait_for_world(2)
            threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
            data = numpy.ones(10, numpy.float32)
            began = time.monotonic()
            try:
                if call == "connect":
                    comm.connect()
                elif call == "wait":
                    comm.wait_for_world(9)
                elif call == "update":
                    comm.update_topology()
                else:
                    comm.all_reduce(data, data, op=ReduceOp.SUM)
                raise SystemExit(f"{call} was not interrupted")
            except KeyboardInterrupt:
                say(f"{call} {time.monotonic() - began:.3f}")
            assert (data == 1).all()
            if call == "update":
                # The connection has ended; what was known last is still known.
                assert not comm.is_connected and comm.world().global_size == 2
                try:
                    comm.update_topology()
                    raise SystemExit("it is connected")
                except NotConnected:
                    pass
            comm.destroy()
            go()
        """, master, 2, 0)
    # A member that lets nobody in: connect waits.
    member = Communicator(master, first_ports=(0, 0))
    member.connect()
    for call in ("connect", "wait", "update", "reduce"):
        helper = None
        if call != "connect":
            helper = threading.Thread(target=lambda: member.wait_for_world(2))
            helper.start()
        taken = float(peer.expect(call).split()[1])
        if helper:
            helper.join()
        # Half a second more than the claim: the machine may be busy.
        assert 0.2 < taken < 0.3 + 0.2 + 0.5, taken
        peer.go()
    peer.finish()
    member.destroy()


def test_the_master_program_ends_by_a_signal():
    # The program of cargo, under the arguments that the package had before, too.
    for number, argument in ((signal.SIGTERM, "--listen-address"), (signal.SIGINT, "--listen")):
        program = subprocess.Popen([sys.executable, "-m", "pccl.master", argument, "127.0.0.1:0", "--min-world-size",
                                    "1",
                                    "--peer-timeout", "9.5"], stdout=subprocess.PIPE, text=True)
        port = int(program.stdout.readline().rsplit(":", 1)[1])
        asked = subprocess.run([sys.executable, "-m", "pccl.master", "status", f"127.0.0.1:{port}"], timeout=60,
                               stdout=subprocess.PIPE, text=True)
        assert asked.returncode == 0 and "0 peers" in asked.stdout, asked.stdout
        asked = subprocess.run([sys.executable, "-m", "pccl.doctor", f"127.0.0.1:{port}", "--p2p-port", "0",
                                "--state-port", "0"], timeout=60, stdout=subprocess.PIPE, text=True)
        assert asked.returncode == 0 and "nothing failed" in asked.stdout, asked.stdout
        with Communicator(f"127.0.0.1:{port}", first_ports=(0, 0)) as comm:
            report = comm.doctor()
            assert report["passed"] and report["findings"][0]["subject"] == "master", report
            comm.connect()
        program.send_signal(number)
        assert program.wait(60) == 0
        program.stdout.close()


def test_without_cargo_a_build_says_so_in_one_sentence(tmp_path):
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip("this setuptools is older than the package wants")
    source = os.path.join(os.path.dirname(__file__), "..")
    built = subprocess.run([sys.executable, "-W", "error::DeprecationWarning", "setup.py", "-q", "build_py",
                            "--build-lib",
                            str(tmp_path)], cwd=source, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True,
                            text=True)
    assert built.returncode != 0 and not os.listdir(tmp_path)
    assert built.stderr.strip().startswith("error: PCCL is written in Rust") and len(built.stderr.splitlines()) == 1, built.stderr
