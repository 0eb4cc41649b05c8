"""States in files."""

import numpy as np
import pytest

import pccl
from pccl import Box, SharedState, StateFileError


def test_a_shared_state_comes_back_with_its_revision(tmp_path):
    path = tmp_path / "state.safetensors"
    weights, step = np.arange(1000, dtype=np.float32), Box(7)
    state = SharedState({"weights": weights, "step": step}, revision=12)
    assert pccl.save_state(path, state) == path.stat().st_size
    weights[:] = 0
    step.value = 0
    state.revision = 0
    assert pccl.load_state(path, state) == 12
    assert state.revision == 12 and step.value == 7 and weights[999] == 999


def test_any_mapping_can_be_saved_and_loaded(tmp_path):
    path = tmp_path / "state.safetensors"
    held = {"a": np.ones((2, 3), dtype=np.float64), "b": {"c": np.array([1, 2], dtype=np.int16)}}
    pccl.save_state(path, held, revision=3)
    fresh = {"a": np.zeros((2, 3)), "b": {"c": np.zeros(2, dtype=np.int16)}}
    assert pccl.load_state(path, fresh) == 3
    assert (fresh["a"] == 1).all() and fresh["b"]["c"].tolist() == [1, 2]


def test_a_state_dict_of_torch_can_be_saved_and_loaded(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "state.safetensors"
    one, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    pccl.save_state(path, one.state_dict(), revision=3)
    assert pccl.load_state(path, other.state_dict()) == 3
    assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)


def test_the_package_safetensors_reads_it(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "state.safetensors"
    pccl.save_state(path, {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.uint8),
                           "c": np.array(2.5), "d": np.zeros((4, 0, 2), dtype=np.int64)}, revision=1)
    read = numpy.load_file(path)
    assert read["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and read["b"].tolist() == [0, 1, 2]
    assert read["c"].shape == () and read["c"] == 2.5 and read["d"].shape == (4, 0, 2)


def test_what_is_saved_beside_the_training_is_what_was_there(tmp_path):
    path = tmp_path / "state.safetensors"
    weights, step = np.arange(3_000_000, dtype=np.float32), Box(7)
    state = SharedState({"weights": weights, "step": step, "none": np.zeros(0)}, revision=2)
    saving = pccl.save_state_while(path, state)
    weights[:] = 0
    step.value = 8
    assert saving.wait() == path.stat().st_size and saving.is_over
    assert pccl.load_state(path, state) == 2 and weights[-1] == 2_999_999 and step.value == 7
    with pytest.raises(pccl.System):
        pccl.save_state_while(tmp_path / "nothing" / "there", state).wait()


def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path):
    path = tmp_path / "state.safetensors"
    pccl.save_state(path, {"a": np.ones(3), "b": np.ones(2)})
    mine = {"a": np.zeros(3), "b": np.zeros(5)}
    with pytest.raises(StateFileError, match="'?\"b\"") as caught:
        pccl.load_state(path, mine)
    assert "5 elements" in str(caught.value) and (mine["a"] == 0).all()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateFileError, match="bytes 0 to 16"):
        pccl.load_state(path, {"a": np.zeros(3), "b": np.zeros(2)})
    with pytest.raises(pccl.System):
        pccl.load_state(tmp_path / "nothing", mine)
    with pytest.raises(TypeError):
        pccl.save_state(path, [np.ones(3)])
