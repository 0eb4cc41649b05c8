"""The shared state: what it is built from, what it sees of later changes, and what comes back after a sync."""

import array
import ctypes

import pytest

from pccl import Box, InvalidBuffer, SharedState, TensorInfo

numpy = pytest.importorskip("numpy")


def bytes_of(state):
    """What the peers compare, by name."""
    return {entry.name: ctypes.string_at(entry.pointer, entry.count * entry.dtype.itemsize)
            for entry in state._capture().entries}


class Holder:
    """As a scheduler of torch: says its state, and takes it back."""

    def __init__(self, steps):
        self.steps, self.rates, self.name = steps, [0.1, 0.2], "linear"

    def state_dict(self):
        return {"steps": self.steps, "rates": list(self.rates), "name": self.name, "function": None}

    def load_state_dict(self, state):
        self.steps, self.rates = state["steps"], state["rates"]


def test_changes_after_it_was_built_are_seen():
    tensors = {"a": numpy.zeros(3, numpy.float32), "n": {"b": numpy.zeros(2)}, "step": 0}
    box, holder = Box(1.5), Holder(7)
    state = SharedState.of(tensors=tensors, box=box, holder=holder, now=lambda: tensors["a"] * 1)
    before = bytes_of(state)
    assert set(before) == {"tensors.a", "tensors.n.b", "tensors.step", "box", "holder.steps", "holder.rates.0",
                           "holder.rates.1", "now"}
    # As a checkpoint does: other arrays in the same places.
    tensors["a"], tensors["n"]["b"], tensors["step"], box.value, holder.steps = (
        numpy.ones(3, numpy.float32), numpy.ones(2), 5, 2.5, 8)
    after = bytes_of(state)
    assert after["tensors.a"] == numpy.ones(3,
                                            numpy.float32).tobytes() and after["tensors.n.b"] == numpy.ones(2).tobytes()
    assert {name for name in after if after[name] == before[name]} == {"holder.rates.0", "holder.rates.1"}


def test_what_has_no_place_to_come_back_to_is_refused():
    for wrong in ({"x": None}, {"x": "text"}, {"x": 1j}, {"x": b"bytes"}, {"x": object()},
                  {"x": numpy.array([object()])},
                  {"x": lambda: 5}, {"x": numpy.broadcast_to(numpy.zeros(1), 3)}, [5], ["x"], 5, None, "x", {}, [],
                  {"x": 1 << 70},
                  {"x": TensorInfo.from_buffer(bytearray(1), "y")}, {"a.b": Box(), "a": {"b": Box()}}, {"x\0": Box()}):
        with pytest.raises((TypeError, ValueError)):
            SharedState(wrong)
    frozen = numpy.zeros(3)
    frozen.flags.writeable = False
    for wrong in (frozen, bytes(4), numpy.float32(1), memoryview(array.array("f", [1, 2, 3]))[::2]):
        with pytest.raises(InvalidBuffer):
            TensorInfo.from_buffer(wrong, "x")
    # A mapping that is made anew for each sync has nowhere to put a number.
    with pytest.raises(TypeError, match="Box"):
        SharedState(lambda: {"step": 1})


def test_everything_travels(fleet):
    fleet(2, """
        import array
        comm = join()
        first = index == 0
        class Holder:
            steps, rates, loaded = (7 if first else 1), ([0.5, 0.25] if first else [0.0, 0.0]), 0
            def state_dict(self):
                return {"steps": self.steps, "rates": list(self.rates), "name": "linear"}
            def load_state_dict(self, state):
                self.steps, self.rates, self.loaded = state["steps"], state["rates"], self.loaded + 1
        wanted = {
            "bool": numpy.array([True, False, True]), "complex": numpy.array([1 + 2j, 3j]), "time": numpy.array(["2026-01-01"], "M8[s]"),
            "foreign": numpy.arange(3, dtype=">i4"), "turned": numpy.arange(12.0).reshape(3, 4).T, "part": numpy.arange(20.0)[::3],
            "half": numpy.ones(3, numpy.float16), "record": numpy.array([(1, 2.0)], [("a", "i1"), ("b", "f4")]), "none": numpy.zeros(0),
        }
        # A tensor that is not contiguous here may be so on the other peer.
        mine = wanted if first else {name: numpy.zeros(a.shape, a.dtype) for name, a in wanted.items()}
        numbers = {"step": 3, "rate": 0.1, "done": True, "many": [1, 2], "pair": (5, 6.5), "numpy": numpy.int32(9)} if first else {
            "step": 0, "rate": 1, "done": False, "many": [0, 0], "pair": (0, 0), "numpy": numpy.int32(0)}
        box, holder, memory = Box(1 << 40 if first else 0), Holder(), array.array("q", [4 if first else 0])
        state = SharedState.of(arrays=mine, numbers=numbers, box=box, holder=holder, memory=memory, revision=1 if first else 0)
        assert state.names() == SharedState.of(arrays=wanted, numbers=numbers, box=box, holder=holder, memory=memory).names()
        comm.sync_shared_state(state)
        assert state.revision == 1
        for name, array in wanted.items():
            assert mine[name].tobytes() == array.tobytes() and (mine[name] == array).all(), name
        assert numbers == {"step": 3, "rate": 0.1, "done": True, "many": [1, 2], "pair": (5, 6.5), "numpy": 9}, numbers
        assert [type(value) for value in numbers.values()] == [int, float, bool, list, tuple, numpy.int32]
        assert box.value == 1 << 40 and memory[0] == 4
        assert (holder.steps, holder.rates, holder.loaded) == (7, [0.5, 0.25], 0 if first else 1)
        state.push_revision()
        assert comm.sync_shared_state(state).rx_bytes == 0 and holder.loaded == (0 if first else 1)
        """)


def test_a_tensor_that_moved_is_synchronised_where_it_is(fleet):
    """A state that was restored after the shared state was built: the sync said success, and the peers differed."""
    fleet(2, """
        comm = join()
        momentum = {"buffer": numpy.zeros(1000, numpy.float32)}
        state = SharedState.of(momentum=momentum)
        comm.sync_shared_state(state)
        # As load_state_dict of an optimiser does.
        momentum["buffer"] = numpy.full(1000, 100.0 + index, numpy.float32)
        state.push_revision()
        comm.sync_shared_state(state)
        data = momentum["buffer"].copy()
        comm.all_reduce(data, op="max")
        assert (momentum["buffer"] == data).all() and data[0] in (100, 101), (momentum["buffer"][0], data[0])
        """)
