"""Builds libpccl and pccl-master with cargo and puts them, with the headers, into the package: one wheel for every
Python 3."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
#: The Rust workspace: beside this package in a source distribution, around it in the repository.
ROOT = HERE / "source" if (HERE / "source").is_dir() else HERE.parent
#: A directory with libpccl.so and pccl-master that were built for another platform: see packaging/wheels.
PREBUILT = os.environ.get("PCCL_PREBUILT")
#: Seconds between two lines that say that it still builds.
STILL_S = float(os.environ.get("PCCL_STILL_S", "30"))
#: ``e_machine`` of ELF files, as wheels name it.
MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}


def version():
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^version = "([^"]+)"', text, re.M).group(1)


def tell(what):
    """Tells whoever waits. pip keeps the output of a build to itself, so it also goes to the terminal, if there is one."""
    print(f"pccl: {what}", file=sys.stderr, flush=True)
    try:
        with open("/dev/tty", "w") as terminal:
            terminal.write(f"\r\npccl: {what}\r\n")
    except OSError:
        pass


def build():
    """The shared library and the program that cargo has built."""
    if PREBUILT:
        return Path(PREBUILT) / "libpccl.so", Path(PREBUILT) / "pccl-master"
    if shutil.which("cargo") is None:
        raise SystemExit("error: PCCL is written in Rust and is built by cargo, which is not in PATH: install a Rust toolchain "
                         "(https://rustup.rs), or a wheel that was built elsewhere (pip wheel ./python)")
    command = ["cargo", "build", "--release", "-p", "pccl-capi", "-p", "pccl-master", "--message-format",
               "json-render-diagnostics"]
    if os.environ.get("PCCL_AWS_LC") == "1":
        command += ["--features", "pccl-capi/aws-lc,pccl-master/aws-lc"]
    tell("building libpccl and pccl-master with cargo: minutes, once (pip install -v shows each step)")
    began = time.monotonic()
    cargo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    while True:
        try:
            output, _ = cargo.communicate(timeout=STILL_S)
            break
        except subprocess.TimeoutExpired:
            tell(f"cargo still builds, {time.monotonic() - began:.0f} s so far")
    if cargo.returncode != 0:
        raise SystemExit(f"error: cargo could not build PCCL (status {cargo.returncode}); see what it says above")
    tell(f"built after {time.monotonic() - began:.0f} s")
    library = program = None
    for line in output.decode().splitlines():
        for name in json.loads(line).get("filenames") or []:
            if Path(name).name in ("libpccl.so", "libpccl.dylib"):
                library = Path(name)
            elif Path(name).name == "pccl-master":
                program = Path(name)
    if library is None or program is None:
        raise SystemExit("error: cargo names no shared library, or no pccl-master")
    return library, program


def put(file, directory):
    """Copies a file, without what only debuggers need."""
    directory.mkdir(parents=True, exist_ok=True)
    copy = shutil.copy(file, directory)
    if PREBUILT:
        return
    if shutil.which("strip") and sys.platform.startswith("linux"):
        subprocess.run(["strip", "--strip-debug", copy], check=False)


class BuildWithLibrary(build_py):
    def run(self):
        library, program = build()
        super().run()
        package = Path(self.build_lib) / "pccl"
        include = package / "include"
        include.mkdir(parents=True, exist_ok=True)
        for header in sorted((ROOT / "include").glob("*.h")):
            shutil.copy(header, include)
        put(library, package)
        put(program, package / "bin")


class AnyPython(bdist_wheel):
    """The library uses nothing of Python: only the platform counts."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        platform = super().get_tag()[2]
        package = Path(self.bdist_dir or "") / "pccl"
        files = [file for file in (package / "libpccl.so", package / "bin" / "pccl-master") if file.exists()]
        if platform.startswith("linux_") and files:
            # The newest version of glibc that the library or the program names.
            versions = [int(version) for file in files for version in re.findall(rb"GLIBC_2\.(\d+)", file.read_bytes())]
            newest = max(versions, default=17)
            machine = MACHINES.get(int.from_bytes(files[0].read_bytes()[18:20], "little"), os.uname().machine)
            platform = f"manylinux_2_{max(newest, 17)}_{machine}"
        return "py3", "none", platform


class WithSources(sdist):
    """The Rust sources go along, so that cargo can build them where no wheel fits."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
        for name in listed.split("\0"):
            if name and not name.startswith(("python/", ".ci/")) and (ROOT / name).is_file():
                target = Path(base_dir) / "source" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=version(),
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython, "sdist": WithSources},
)
