"""One run of torchft's own tests over one transport; prints a line of JSON for each test.

The tests are those of the installed torchft, all that make its ``ProcessGroupGloo``. Over PCCL that class makes a group
of PCCL instead, with fixed ranks and a master of its own for each quorum; nothing else of torchft is changed. Left out
are tests of its groups in processes of their own (``Baby``), which would be Gloo's both times. The tests of its native
path register the backend of Gloo by themselves and run over that.
"""

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path

from outcome import report

MODULES = ("process_group_test", "reconfigure_test", "manager_integ_test", "local_sgd_integ_test", "ddp_test",
           "lighthouse_test", "parameter_server_test", "checkpointing.pg_transport_test")
#: One test, whatever it waits for.
LIMIT_S = 300


def main() -> None:
    transport, wanted = sys.argv[1], sys.argv[3:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scratch = Path(tempfile.mkdtemp())
    import torchft.process_group

    if transport == "pccl":
        torchft.process_group.ProcessGroupGloo._create_pg = create_pg
    for module in MODULES:
        for test in tests_of(importlib.import_module(f"torchft.{module}")):
            if "baby" not in test.id().lower() and (not wanted or test._testMethodName in wanted):
                alone(test, scratch)


def create_pg(group, store, rank, size):
    """A group of PCCL, where torchft makes one of Gloo."""
    from pccl.torch._create import create

    return create(types.SimpleNamespace(
        store=store, group_rank=rank, group_size=size, timeout=group._timeout, enable_reconfigure=False,
        global_ranks_in_group=list(range(size)), group_id=f"torchft {group._uuid}"), None)


def tests_of(module):
    """All tests of a module, each a case of its own."""
    remaining = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while remaining:
        each = remaining.pop(0)
        if isinstance(each, unittest.TestCase):
            yield each
        else:
            remaining[:0] = list(each)


def alone(test, scratch):
    """Runs a test in a process of its own, since threads and groups of one that failed may go on."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(test, scratch))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    if process.exitcode != 0:
        why = f"the process ended with {process.exitcode}, limit {LIMIT_S} s"
        print("\n" + json.dumps({"test": name_of(test), "outcome": "failed", "why": why, "s": 0.0}), flush=True)


def name_of(test):
    """Two classes may have tests of the same name."""
    return ".".join(test.id().split(".")[-2:])


def run(test, scratch):
    # A suite of one, which prepares the class.
    report(name_of(test), unittest.TestSuite([test]), scratch)
    # Without the interpreter's end: threads of a test may wait for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
