"""What a person sees while pip builds the package."""

import os
import pty
import re
import stat
import sys

import pytest

pytest.importorskip("setuptools", minversion="77")
SETUP = os.path.join(os.path.dirname(__file__), "..", "setup.py")
#: Stands in for cargo: takes half a second, and names two files.
CARGO = """#!/bin/sh
echo "$@" >"$(dirname "$0")/arguments"
sleep 0.5
echo '{"filenames": ["HERE/libpccl.so", "HERE/pccl-master"]}'
"""


def installed(directory, **environment):
    """Builds the package into a directory, as pip does: with its output in files, on a terminal. Returns what stands on
    the terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(os.path.dirname(os.path.abspath(SETUP)))
        output = os.open(f"{directory}/output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(environment, PATH=f"{directory}:{os.environ['PATH']}", PCCL_STILL_S="0.1")
        os.environ.pop("PCCL_PREBUILT", None)
        os.execv(sys.executable, [sys.executable, SETUP, "-q", "egg_info", "-e", directory, "build_py", "-d",
                                  f"{directory}/built"])
    said = b""
    while True:
        try:
            read = os.read(terminal, 4096)
        except OSError:
            # The end of what has the terminal.
            read = b""
        if not read:
            break
        said += read
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    with open(f"{directory}/output") as output:
        assert status == 0, output.read()
    return said.decode()


def test_whoever_waits_for_the_build_is_told(tmp_path):
    for name in ("libpccl.so", "pccl-master"):
        (tmp_path / name).write_bytes(bytes(64))
    cargo = tmp_path / "cargo"
    cargo.write_text(CARGO.replace("HERE", str(tmp_path)))
    cargo.chmod(cargo.stat().st_mode | stat.S_IXUSR)
    said = installed(str(tmp_path))
    for line in ("building libpccl and pccl-master with cargo: minutes, once", "cargo still builds, 0 s so far",
                 r"built after \d s"):
        assert re.search(f"pccl: {line}", said), said
    assert (tmp_path / "built" / "pccl" / "libpccl.so").exists()
    assert "aws-lc" not in (tmp_path / "arguments").read_text()
    installed(str(tmp_path), PCCL_AWS_LC="1")
    assert "--features pccl-capi/aws-lc,pccl-master/aws-lc" in (tmp_path / "arguments").read_text()
