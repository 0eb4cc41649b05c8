"""One run of torchft's own tests over one transport; prints a line of JSON for each test.

The tests are those of the installed torchft, all that make its ``ProcessGroupGloo``. Over PCCL that class makes a group
of PCCL instead, with fixed ranks and a master of its own for each quorum; nothing else of torchft is changed. Left out
are tests of its groups in processes of their own (``Baby``), which would be Gloo's both times. The tests of its native
path register the backend of Gloo by themselves and run over that. Its replicas are threads of one process, and each
makes the default group if there is none yet; they do so in turn here, since two at once fail in torch.
"""

import functools
import importlib
import os
import sys
import tempfile
import threading
import types
from pathlib import Path

from outcome import alone, tests_of

MODULES = ("process_group_test", "reconfigure_test", "manager_integ_test", "local_sgd_integ_test", "ddp_test",
           "lighthouse_test", "parameter_server_test", "checkpointing.pg_transport_test")


def main() -> None:
    transport, wanted = sys.argv[1], sys.argv[3:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scratch = Path(tempfile.mkdtemp())
    import torchft.process_group
    from torchft._test.diloco_trainer import DiLoCoTrainer

    DiLoCoTrainer.setup_distributed = in_turn(DiLoCoTrainer.setup_distributed)
    if transport == "pccl":
        torchft.process_group.ProcessGroupGloo._create_pg = create_pg
    for module in MODULES:
        for test in tests_of(importlib.import_module(f"torchft.{module}")):
            if "baby" not in test.id().lower() and (not wanted or test._testMethodName in wanted):
                alone(test, name_of(test), scratch)


def create_pg(group, store, rank, size):
    """A group of PCCL, where torchft makes one of Gloo. The processes of a replica are threads here: each has groups of
    its own name, since a process counts those of one name."""
    from pccl.torch._create import create

    return create(types.SimpleNamespace(
        store=store, group_rank=rank, group_size=size, timeout=group._timeout, enable_reconfigure=False,
        global_ranks_in_group=list(range(size)), group_id=f"torchft {group._uuid} {group._group_rank}"), None)


def in_turn(function):
    """The function, with one call at a time."""
    guard = threading.Lock()

    @functools.wraps(function)
    def call(*arguments):
        with guard:
            return function(*arguments)

    return call


def name_of(test):
    """Two classes may have tests of the same name."""
    return ".".join(test.id().split(".")[-2:])


if __name__ == "__main__":
    main()
