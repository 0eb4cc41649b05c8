"""The examples run as their own first lines say."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "python")


def test_diloco_survives_a_kill():
    output = subprocess.run([sys.executable, os.path.join(EXAMPLES, "diloco.py")], capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, timeout=300)
    assert output.returncode == 0, output.stderr
    assert len(set(output.stdout.splitlines())) == 1 and output.stdout.count("end ") == 3, output.stdout
