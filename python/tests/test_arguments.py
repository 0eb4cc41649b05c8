"""Values that are of no use, from other packages or out of range, at every enum, number and text of the package."""

import array
import enum
import math

import pytest

import pccl
from pccl import (Attribute, Communicator, DataType, DeviceType, DistributionHint, MasterNode, QuantizationAlgorithm,
                  QuantizationOptions, ReduceDescriptor, ReduceOp, ReduceOpDescriptor, ReduceOperandDescriptor,
                  Schedule, SharedState,
                  SharedStateSyncStrategy, TensorInfo)


class Foreign(enum.Enum):
    """As the ``ReduceOp`` of torch, whose numbers mean something else."""

    SUM = 0
    MIN = 3
    MAX = 4


class ForeignInt(enum.IntEnum):
    MAX = 4


WRONG_ENUMS = [
    Foreign.MAX, ForeignInt.MAX, 0, 3, 1.0, True, b"sum", object(), pccl.Result.SUCCESS, pccl.Remedy.RETRY]
WRONG_NAMES = ["", "no such name", "0", "sum max"]
#: Neither is an integer, whatever it can be turned into.
NO_INTEGERS = [True, False, 1.0, "1", b"1", 1j, [1], object(), Foreign.MAX, math.nan, math.inf]
NO_SECONDS = [True, "1", b"1", 1j, [1.0], object(), Foreign.MAX]
BAD_SECONDS = [math.nan, -1, -0.001, -math.inf, 1e300]
NO_TEXTS = [1, b"text", object(), ["text"]]

FLOATS = array.array("f", [1, 2, 3])
NONE = QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE)
FLOAT = ReduceOperandDescriptor(DataType.FLOAT)


@pytest.fixture(scope="module")
def comm():
    """Arguments are looked at before anything else, so it need not be connected."""
    with Communicator("127.0.0.1:1", connect_timeout=0.1) as comm:
        yield comm


@pytest.fixture(scope="module")
def state():
    return SharedState([TensorInfo.from_buffer(array.array("f", [1]), "x")])


def refused(call, values, error):
    for value in values:
        with pytest.raises(error):
            call(value)
            raise RuntimeError(f"{value!r} was taken")


def test_every_enum(comm, state):
    calls = {
        "op": lambda value: comm.all_reduce(FLOATS, op=value),
        "op of async": lambda value: comm.all_reduce_async(FLOATS, op=value),
        "op of many": lambda value: comm.all_reduce_many([FLOATS], op=value),
        "op of many async": lambda value: comm.all_reduce_many_async([FLOATS], op=value),
        "op of a descriptor": lambda value: ReduceDescriptor(3, value, 0, FLOAT, NONE),
        "attribute": comm.get_attribute,
        "strategy": lambda value: comm.sync_shared_state(state, value),
        "strategy of run": lambda value: comm.run(print, state=state, steps=1, strategy=value),
        "schedule": lambda value: setattr(comm, "schedule", value),
        "schedule of a communicator": lambda value: Communicator("127.0.0.1:1", schedule=value),
        "data type": ReduceOperandDescriptor,
        "hint": lambda value: ReduceOperandDescriptor(DataType.FLOAT, value),
        "quantised type": QuantizationOptions,
        "algorithm": lambda value: QuantizationOptions(DataType.UINT8, value),
        "type of a tensor": lambda value: TensorInfo("x", 0, numel=0, dtype=value, device_type=DeviceType.CPU),
        "device": lambda value: TensorInfo("x", 0, numel=0, dtype=DataType.FLOAT, device_type=value),
    }
    for what, call in calls.items():
        refused(call, WRONG_ENUMS, TypeError)
        refused(call, WRONG_NAMES, ValueError)
    assert comm.schedule is Schedule.AUTOMATIC
    # A member of another enum of the package is as foreign as any.
    refused(lambda value: comm.all_reduce(FLOATS, op=value), [Schedule.RING, DataType.INT16,
                                                              Attribute.GLOBAL_WORLD_SIZE], TypeError)


def test_names_of_members():
    for kind in (ReduceOp, Attribute, SharedStateSyncStrategy, Schedule, DeviceType, DistributionHint,
                 QuantizationAlgorithm,
                 DataType):
        for member in kind:
            for value in (member, member.name, member.name.lower(), f" {member.name.title()} "):
                assert kind.of(value) is member
    assert [ReduceOp.of(name) for name in ("mean", "average", "product", "maximum", "minimum")] == [
        ReduceOp.AVG, ReduceOp.AVG, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN]
    assert DataType.of("float32") is DataType.FLOAT and DataType.of("float64") is DataType.DOUBLE
    assert SharedStateSyncStrategy.of("send-only") is SharedStateSyncStrategy.SEND_ONLY
    numpy = pytest.importorskip("numpy")
    assert DataType.of(numpy.dtype("int16")) is DataType.INT16
    refused(DataType.of, [numpy.dtype("bool"), numpy.dtype(">f4"), numpy.dtype("complex64")], TypeError)


def test_every_integer(comm, state):
    """With the values that are too small or too large."""
    calls = {
        "peer_group": (lambda value: Communicator("127.0.0.1:1", value), [-1, 1 << 32]),
        "pool size": (lambda value: Communicator("127.0.0.1:1", 0, value), [-1, 65, 1 << 32]),
        "upload share": (lambda value: Communicator("127.0.0.1:1", upload_share_pct=value), [-1, 0, 101, 306]),
        "first port": (lambda value: Communicator("127.0.0.1:1", first_ports=(value, 0)), [-1, 65536, 70000]),
        "second port": (lambda value: Communicator("127.0.0.1:1", first_ports=(0, value)), [-1, 65536, 70000]),
        "attempts": (lambda value: comm.connect(n_attempts=value), [0, -1, 1 << 31]),
        "peers": (comm.wait_for_world, [0, -1, 1 << 32]),
        "min_world of run": (lambda value: comm.run(print, state=state, steps=1, min_world=value), [0, -1, 1 << 32]),
        "steps of run": (lambda value: comm.run(print, state=state, steps=value), [-1, 1 << 64]),
        "min_world of recover": (lambda value: comm.recover(pccl.MasterLost(pccl.Result.INVALID_USAGE, "x"),
                                                            min_world=value),
                                 [0, -1, 1 << 32]),
        "tag": (lambda value: comm.all_reduce(FLOATS, op="sum", tag=value), [-1, 1 << 64]),
        "tag of async": (lambda value: comm.all_reduce_async(FLOATS, op="sum", tag=value), [-1, 1 << 64]),
        "tag of many": (lambda value: comm.all_reduce_many([FLOATS], op="sum", tag=value), [-1, 1 << 64]),
        "tag of many async": (lambda value: comm.all_reduce_many_async([FLOATS], op="sum", tag=value), [-1, 1 << 64]),
        "tag of a descriptor": (lambda value: ReduceDescriptor(3, ReduceOp.SUM, value, FLOAT, NONE), [-1, 1 << 64]),
        "count": (lambda value: ReduceDescriptor(value, ReduceOp.SUM, 0, FLOAT, NONE), [-1, 1 << 64]),
        "send_ptr": (lambda value: ReduceOpDescriptor(value, 0, ReduceDescriptor(3, ReduceOp.SUM, 0, FLOAT, NONE)),
                     [-1, 1 << 64]),
        "recv_ptr": (lambda value: ReduceOpDescriptor(0, value, ReduceDescriptor(3, ReduceOp.SUM, 0, FLOAT, NONE)),
                     [-1, 1 << 64]),
        "max_in_flight": (lambda value: comm.all_reduce_multiple_with_retry([], max_in_flight=value), [0, -1, 1 << 31]),
        "data_ptr": (lambda value: TensorInfo("x", value, numel=0, dtype=DataType.FLOAT, device_type=DeviceType.CPU),
                     [-1, 1 << 64]),
        "numel": (lambda value: TensorInfo("x", 0, numel=value, dtype=DataType.FLOAT, device_type=DeviceType.CPU),
                  [-1, 1 << 64]),
        "revision": (lambda value: setattr(state, "revision", value), [-1, 1 << 64]),
        "revision of a new state": (lambda value: SharedState.of(revision=value, x=FLOATS), [-1, 1 << 64]),
        "min_world_size": (lambda value: MasterNode("127.0.0.1:0", min_world_size=value), [0, -1, 1 << 32]),
    }
    for what, (call, outside) in calls.items():
        refused(call, NO_INTEGERS, TypeError)
        refused(call, outside, ValueError)
    assert state.revision == 0
    for ports in (1, "12", (1,), (1, 2, 3), {1, 2}):
        with pytest.raises(TypeError):
            Communicator("127.0.0.1:1", first_ports=ports)
    numpy = pytest.importorskip("numpy")
    refused(lambda value: setattr(state, "revision", value), [numpy.bool_(True), numpy.float32(1), numpy.array([1, 2])],
            TypeError)
    state.revision = numpy.uint8(0)


def test_every_time(comm, state):
    calls = {
        "connect_timeout": (lambda value: Communicator("127.0.0.1:1", connect_timeout=value), [0, math.inf]),
        "master_timeout": (lambda value: Communicator("127.0.0.1:1", master_timeout=value), [0, math.inf]),
        "dial_timeout": (lambda value: Communicator("127.0.0.1:1", dial_timeout=value), [0, math.inf]),
        "master_grace": (lambda value: Communicator("127.0.0.1:1", master_grace=value), [math.inf]),
        "call_timeout": (lambda value: Communicator("127.0.0.1:1", call_timeout=value), []),
        "wait_for_world": (lambda value: comm.wait_for_world(2, timeout=value), []),
        "update_topology": (lambda value: comm.update_topology(timeout=value), []),
        "are_peers_pending": (lambda value: comm.are_peers_pending(timeout=value), []),
        "optimize_topology": (lambda value: comm.optimize_topology(timeout=value), []),
        "sync_shared_state": (lambda value: comm.sync_shared_state(state, timeout=value), []),
        "all_reduce": (lambda value: comm.all_reduce(FLOATS, op="sum", timeout=value), []),
        "all_reduce_many": (lambda value: comm.all_reduce_many([FLOATS], op="sum", timeout=value), []),
        "with_retry": (lambda value: comm.all_reduce_multiple_with_retry([], timeout=value), []),
        "close_within": (lambda value: comm.close_within(value), [math.inf]),
        "drain": (lambda value: comm.drain(value), []),
        "peer_timeout": (lambda value: MasterNode("127.0.0.1:0", peer_timeout=value), [0, math.inf]),
        "straggler_timeout": (lambda value: MasterNode("127.0.0.1:0", straggler_timeout=value), []),
        "edge_timeout": (lambda value: MasterNode("127.0.0.1:0", edge_timeout=value), [0, math.inf]),
    }
    for what, (call, outside) in calls.items():
        refused(call, NO_SECONDS, TypeError)
        refused(call, BAD_SECONDS + outside, ValueError)


def test_every_flag_and_text(comm):
    buffer = array.array("f", [1])
    for call in (lambda value: Communicator("127.0.0.1:1", frame_checksums=value),
                 lambda value: Communicator("127.0.0.1:1", strict_ports=value),
                 lambda value: TensorInfo.from_buffer(buffer, "x", allow_content_inequality=value)):
        refused(call, ["always", 1, 0, 1.0, "False"], TypeError)
    for call in (Communicator, MasterNode,
                 lambda value: Communicator("127.0.0.1:1", name=value),
                 lambda value: Communicator("127.0.0.1:1", advertised_host=value),
                 lambda value: Communicator("127.0.0.1:1", bind_address=value),
                 lambda value: TensorInfo.from_buffer(buffer, value)):
        refused(call, NO_TEXTS, TypeError)
        refused(call, ["with a \0 in it", "half a character \ud800"], ValueError)
    refused(lambda value: Communicator("127.0.0.1:1", name=value), ["", "two words", "x" * 65], ValueError)
    refused(lambda value: Communicator("127.0.0.1:1", bind_address=value), ["localhost", ""], ValueError)


def test_what_is_no_state_no_error_and_no_descriptor(comm, state):
    refused(comm.sync_shared_state, [None, [], {"x": FLOATS}, FLOATS], TypeError)
    refused(lambda value: comm.run(print, state=value, steps=1), [None, [], {"x": FLOATS}], TypeError)
    refused(lambda value: comm.run(value, state=state, steps=1), [None, 1, "step"], TypeError)
    refused(comm.recover, [None, ValueError(), "MasterLost"], TypeError)
    refused(lambda value: ReduceDescriptor(3, ReduceOp.SUM, 0, value, NONE), [None, DataType.FLOAT], TypeError)
    refused(lambda value: ReduceDescriptor(3, ReduceOp.SUM, 0, FLOAT, value), [None, "min_max"], TypeError)
    with pytest.raises(TypeError):
        comm.run(print, state=state)
    with pytest.raises(TypeError):
        comm.run(print, state=state, steps=1, more=lambda: True)
    for sends, recvs in (([], None), ([FLOATS], []), ([FLOATS], [FLOATS, FLOATS])):
        with pytest.raises(ValueError):
            comm.all_reduce_many(sends, recvs, op="sum")
