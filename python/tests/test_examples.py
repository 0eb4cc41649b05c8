"""The examples run as their own first lines say."""

import importlib.util
import os
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
    output = subprocess.run([sys.executable, os.path.join(EXAMPLES, program), *arguments], capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, timeout=300, env={**os.environ, **environment})
    assert output.returncode == 0, output.stderr
    assert len(set(output.stdout.splitlines())) == 1 and output.stdout.count("end ") == 3, output.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_with_numpy(program):
    train(*program, PCCL_EXAMPLE_WITHOUT_TORCH="1")


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_with_torch(program):
    train(*program)
