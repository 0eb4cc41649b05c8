"""Builds libpccl with cargo and puts it, with its headers, into the package: one wheel for every Python 3."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent.parent


def version():
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^version = "([^"]+)"', text, re.M).group(1)


def build_library():
    """The shared library that cargo has built."""
    command = ["cargo", "build", "--release", "-p", "pccl-capi", "--message-format", "json-render-diagnostics"]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    for line in output.decode().splitlines():
        for name in json.loads(line).get("filenames") or []:
            if Path(name).name in ("libpccl.so", "libpccl.dylib"):
                return Path(name)
    raise SystemExit("cargo names no shared library")


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        package = Path(self.build_lib) / "pccl"
        include = package / "include"
        include.mkdir(parents=True, exist_ok=True)
        for header in sorted((ROOT / "include").glob("*.h")):
            shutil.copy(header, include)
        library = Path(shutil.copy(build_library(), package))
        if shutil.which("strip") and sys.platform.startswith("linux"):
            subprocess.run(["strip", "--strip-debug", str(library)], check=False)


class AnyPython(bdist_wheel):
    """The library uses nothing of Python: only the platform counts."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        platform = super().get_tag()[2]
        library = Path(self.bdist_dir or "") / "pccl" / "libpccl.so"
        if platform.startswith("linux_") and library.exists():
            # The newest version of glibc that the library names.
            versions = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
            newest = max(map(int, versions), default=17)
            platform = f"manylinux_2_{max(newest, 17)}_{os.uname().machine}"
        return "py3", "none", platform


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython},
)
