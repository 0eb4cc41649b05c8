"""The examples run as their own first lines say."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "python")
PROGRAMS = [("mnist_like_ddp.py",), ("diloco.py",), ("diloco.py", "--async")]
# Found without being loaded, which takes long.
HAS_TORCH = importlib.util.find_spec("torch") is not None


def train(program, *arguments, **environment):
    """Survives a kill, lets a newcomer in, and ends with the same weights on all peers."""
    output = subprocess.run([sys.executable, os.path.join(EXAMPLES, program), *arguments], capture_output=True,
                            text=True,
                            stdin=subprocess.DEVNULL, timeout=300, env={**os.environ, **environment})
    assert output.returncode == 0, output.stderr
    lines = output.stdout.splitlines()
    ends = [line.partition(": ")[2] for line in lines if ": end " in line]
    assert len(ends) == 3 and len(set(ends)) == 1, output.stdout
    # How it went, for whoever watches.
    assert re.search(r"^step +\d+  3 peers  loss \d", output.stdout, re.M), output.stdout
    assert any("was killed" in line for line in lines) and any("was started" in line for line in lines), output.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_with_numpy(program):
    train(*program, PCCL_EXAMPLE_WITHOUT_TORCH="1")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_plot_of_the_loss(tmp_path):
    train("diloco.py", "--plot", str(tmp_path / "loss.svg"), PCCL_EXAMPLE_WITHOUT_TORCH="1")
    plot = (tmp_path / "loss.svg").read_text()
    assert all(f"<!-- peer {text} -->" in plot for text in ("1", "2", "3 killed", "4 started", "4 joined")), plot[:2000]


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("program", [*PROGRAMS, ("torch_module.py",)], ids=" ".join)
def test_with_torch(program):
    train(*program)
