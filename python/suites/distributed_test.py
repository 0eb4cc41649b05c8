"""One run of torch's own ``DistributedTest`` over one transport; prints a line of JSON for each test.

The suite is that of the installed torch. It asks for the backend ``gloo`` by name, and several of its tests do something
only for that name, so over PCCL the name stands for the backend ``pccl``. ``run.py`` starts this and compares.
"""

import os
import sys
import tempfile
import unittest
from pathlib import Path

from outcome import report
from stand_in import stand_for_gloo


def main() -> None:
    transport, ranks, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    scratch = tempfile.mkdtemp()
    os.environ.update(BACKEND="gloo", WORLD_SIZE=ranks, INIT_METHOD=f"file://{scratch}/init", TEMP_DIR=scratch)
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
    # Threads of three processes that wait for each other in turns take minutes on few cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from torch.testing._internal.distributed import distributed_test

    if transport == "pccl":
        stand_for_gloo()
        # Events of torch's profiler with the name of Gloo, which Gloo writes itself.
        distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()
    suite = suite_of(distributed_test)
    names = unittest.defaultTestLoader.getTestCaseNames(suite)
    for name in [name for name in names if not wanted or name in wanted]:
        report(name, suite(name), Path(scratch))


def suite_of(module):
    """The class of the suite, as torch's ``test_distributed_spawn.py`` makes it, but with ranks that are forked: three
    imports of torch for each of hundreds of tests would be most of the time."""
    import torch

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


if __name__ == "__main__":
    main()
