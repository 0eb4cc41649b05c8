"""One run of tests in torch's sources over one transport; prints a line of JSON for each test.

Torch's package has none of these files. ``PCCL_TORCH_SOURCES`` names the directory of the sources, or
``test/distributed`` in it; the table below says which files make up a suite. Taken are the tests of classes whose ranks
are processes, and of a few that make groups in their own process; where ranks are threads, torch has a transport of its
own. Ranks are forked and not spawned, which saves an import of torch for each. ``run.py`` starts this and compares.
"""

import atexit
import importlib.util
import os
import sys
import tempfile
import unittest
from pathlib import Path

from outcome import alone, report_loss, tests_of

#: The files of each suite. A directory stands for all that is below it.
SUITES = {
    "c10d_gloo": ["test_c10d_gloo.py", "test_c10d_spawn_gloo.py"],
    "c10d_common": ["test_c10d_common.py", "test_pg_wrapper.py"],
    "device_mesh": ["test_device_mesh.py"],
    "functional_collectives": ["test_functional_api.py", "test_c10d_functional_native.py"],
    "dtensor": ["_tensor", "tensor"],
    "fsdp2": ["_composable/fsdp", "_composable/test_composability"],
    "dcp": ["checkpoint", "_composable/test_checkpoint.py"],
    "object_collectives": ["test_c10d_object_collectives.py", "test_collective_utils.py"],
    "replicate": ["_composable/test_replicate.py", "_composable/test_replicate_with_compiler.py"],
    "zero": ["optim/test_zero_redundancy_optimizer.py"],
    "comm_hooks": ["algorithms/ddp_comm_hooks", "algorithms/quantization"],
    "join": ["algorithms/test_join.py"],
}
#: Classes whose tests make groups, though their ranks are not processes.
IN_PROCESS = ("ReducerTest", "TimeoutTest", "RendezvousEnvTest")


def main() -> None:
    transport, suite, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    os.environ.update(BACKEND="gloo", WORLD_SIZE="4")
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "600")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    directory = directory_of(os.environ["PCCL_TORCH_SOURCES"])
    sys.path.insert(0, str(directory))
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    MultiProcessTestCase._spawn_processes = start
    if transport == "pccl":
        import stand_in

        stand_in.stand_for_gloo()
    scratch = Path(tempfile.mkdtemp())
    for file in files_of(directory, suite):
        module = load(directory, file)
        for test in tests_of(module) if module else []:
            kind = type(test)
            is_here = kind.__module__ == module.__name__
            if is_here and (issubclass(kind, MultiProcessTestCase) or kind.__name__ in IN_PROCESS):
                if not wanted or test._testMethodName in wanted:
                    alone(test, f"{file.stem}.{kind.__name__}.{test._testMethodName}", scratch)


def directory_of(given):
    """Where the tests of torch's distributed part are."""
    below = Path(given) / "test" / "distributed"
    return (below if below.is_dir() else Path(given)).resolve()


def files_of(directory, suite):
    """The files with tests, in an order that is always the same."""
    for name in SUITES[suite]:
        place = directory / name
        yield from [place] if place.is_file() else sorted(place.rglob("test_*.py"))


def load(directory, file):
    """The module in a file, or nothing: a file of another version may ask for what the installed torch has not."""
    name = str(file.relative_to(directory).with_suffix("")).replace(os.sep, "_")
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        report_loss(file.stem, "skipped", f"the file cannot be loaded: {type(error).__name__}: {error}")
        return None
    # Torch's own way to split the tests of a file, which refuses those of another file than the running one.
    vars(module).pop("load_tests", None)
    return module


def start(test):
    """Starts the ranks of a test, if it has any: some have one for each GPU."""
    if int(test.world_size) < 1:
        raise unittest.SkipTest("it has a rank for each accelerator, and there is none")
    test._start_processes(rank_process())


def rank_process():
    """The class of a forked rank which ends as a spawned one does: by its own handlers of the interpreter's end."""
    import torch

    class Rank(torch.multiprocessing.get_context("fork").Process):
        def run(self):
            atexit._clear()
            try:
                super().run()
            finally:
                atexit._run_exitfuncs()

    return Rank


if __name__ == "__main__":
    main()
