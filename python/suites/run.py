"""Runs the tests of torch and torchft over Gloo and over PCCL, and prints where they differ.

    python python/suites/run.py                    # DistributedTest, three ranks; some five minutes
    python python/suites/run.py --ranks 2 3 4 --out results.json
    python python/suites/run.py --suite torchft
    python python/suites/run.py --sources DIR      # all suites that torch's sources have; an hour or more
    python python/suites/run.py --sources DIR --suite zero join
    python python/suites/run.py --only test_all_gather_coalesced_simple

Needs an installed ``pccl`` and ``torch``; torch's tests import ``expecttest``, and torchft's are in its package.
Torch's package has ``DistributedTest`` only: ``DIR`` is a directory with the sources of torch, which has
``test/distributed``, such as a clone of the tag of the installed version, or what ``apt-get source pytorch`` unpacks.
Ends with status 1 if a test that passes over Gloo does not pass over PCCL, neither at once nor alone, unless the reason
is known.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from files_test import SUITES as FILES

TRANSPORTS = ("gloo", "pccl")
#: The program that runs a suite over one transport.
SUITES = {"DistributedTest": "distributed_test.py", "torchft": "torchft_test.py",
          **dict.fromkeys(FILES, "files_test.py")}
_DEVICE = "calls a method of Gloo's class, which makes a network device of Gloo"
_WRAPPER = "is about torch's debugging wrapper, which wraps backends in C++ only"
#: Tests that pass over Gloo only, and why.
KNOWN = {
    "test_c10d_gloo.CommTest.test_broadcast_coalesced_gloo_cpu": _DEVICE,
    "test_c10d_gloo.DistributedDataParallelTest.test_gloo_backend_cpu_module": _DEVICE,
    "test_c10d_gloo.DistributedDataParallelTest.test_gloo_backend_cpu_module_grad_is_view": _DEVICE,
    **{f"{name}.test_init_process_group_for_all_backends": "asks for the name `gloo`" for name in (
        "test_c10d_gloo.GlooProcessGroupWithDispatchedCollectivesTests",
        "test_c10d_common.ProcessGroupWithDispatchedCollectivesTests")},
    "test_c10d_gloo.GlooProcessGroupWithDispatchedCollectivesTests.test_all_to_all_single":
        "a tensor that is not contiguous has to be refused; PCCL takes it",
    "test_c10d_gloo.ProcessGroupGlooTest.test_allgather_checks":
        "tensors of different sizes in one list have to be refused; PCCL takes them",
    "test_c10d_gloo.ProcessGroupGlooTest.test_allgather_coalesced_checks":
        "tensors of different sizes in one list have to be refused; PCCL takes them",
    "test_c10d_gloo.ProcessGroupGlooTest.test_allreduce_coalesced_checks":
        "tensors of different types in one list have to be refused; PCCL takes them",
    **{f"test_pg_wrapper.ProcessGroupGlooWrapperTest.{name}": _WRAPPER for name in (
        "test_collective_hang", "test_collective_shape_mismatch_debug_mode",
        "test_collective_shape_mismatch_debug_mode_off", "test_collectives_op_mismatch",
        "test_collectives_op_mismatch_debug_mode")},
    "test_ddp_logging_data_cpu": "asks for the name `gloo` and the number of Gloo's threads",
    # Its number is its place in a set.
    "NormalGlooMultiPgTest.test_collective_with_resiliency_0_send_recv":
        "a third member that leaves ends what two others are doing: who is in a group with fixed ranks is one decision",
    "PGTransportTest.test_pg_transport_gloo":
        "its last send has no receiver and ends after its limit of 10 s, which is that of the test; "
        "Gloo's connection is broken by the limit before",
}
#: Longest time for one suite over one transport.
PATIENCE_S = 3600


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[3], help="numbers of processes")
    parser.add_argument("--suite", choices=SUITES, nargs="+", help="whose tests")
    parser.add_argument("--sources", type=Path, metavar="DIR", help="the sources of torch, for suites out of its files")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEST", help="only tests of these names")
    parser.add_argument("--out", type=Path, help="a file for all outcomes, as JSON")
    chosen = parser.parse_args()
    if chosen.sources:
        os.environ["PCCL_TORCH_SOURCES"] = str(chosen.sources)
    suites = chosen.suite or (list(FILES) if chosen.sources else ["DistributedTest"])
    if not chosen.sources and any(suite in FILES for suite in suites):
        parser.error("this suite is not in torch's package: --sources DIR")
    rows, everything = [], {}
    # Only this suite takes a number; the others have numbers of their own.
    for suite, ranks in [(suite, ranks) for suite in suites for ranks in chosen.ranks if suite == "DistributedTest"
                         or ranks == chosen.ranks[0]]:
        label = ranks if suite == "DistributedTest" else "-"
        outcomes = {transport: run(suite, transport, ranks, chosen.only) for transport in TRANSPORTS}
        retry(suite, ranks, outcomes)
        everything[f"{suite} {label}"] = outcomes
        rows.append(compared(suite, label, outcomes))
    names = {test.split(".")[-1] for outcomes in everything.values() for test in outcomes["gloo"]}
    if missing := set(chosen.only) - names:
        parser.error(f"{', '.join(suites)}: no test is called {', '.join(sorted(missing))}")
    if chosen.out:
        chosen.out.write_text(json.dumps(everything, indent=1) + "\n")
    print("\n| Suite | Ranks | Passed over Gloo | Of these over PCCL | Skipped over both | Differences |")
    print("|---|---|---|---|---|---|")
    for row, _ in rows:
        print(row)
    sys.exit(any(worse for _, worse in rows))


def run(suite, transport, ranks, only):
    """The outcomes of one run, by the name of the test."""
    program = str(Path(__file__).with_name(SUITES[suite]))
    command = [sys.executable, program, transport, suite if suite in FILES else str(ranks), *only]
    outcomes = {}
    # Some names have numbers in the order of a set.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    streams = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environment, **streams) as process:
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            outcome = json.loads(line)
            outcomes[outcome["test"]] = outcome
            if outcome["outcome"] != "skipped":
                print(f"{transport} {suite} {outcome['outcome']:8}{outcome['s']:6.1f} s  {outcome['test']}", flush=True)
        if process.wait(PATIENCE_S) != 0:
            raise SystemExit(f"the suite over {transport} ended with status {process.returncode}")
    return outcomes


def retry(suite, ranks, outcomes):
    """Runs once more over PCCL what has passed over Gloo only, without a known reason. Tests have limits of a second,
    and threads that race with each other; on a busy machine either transport fails one now and then."""
    theirs, ours = (outcomes[transport] for transport in TRANSPORTS)
    names = [name for name in theirs if theirs[name]["outcome"] == "passed" and name not in KNOWN
             and ours.get(name, {}).get("outcome") != "passed"]
    if not names:
        return
    print(f"once more: {', '.join(names)}", flush=True)
    second = run(suite, "pccl", ranks, [name.split(".")[-1] for name in names])
    for name in names:
        if second.get(name, {}).get("outcome") == "passed":
            print(f"FLAKY {name}\n{ours.get(name, {}).get('why', '')}", flush=True)
            ours[name] = {**second[name], "is_flaky": True}


def compared(suite, ranks, outcomes):
    """A row of the table, and whether PCCL is worse."""
    theirs, ours = (outcomes[transport] for transport in TRANSPORTS)
    for name in theirs:
        ours.setdefault(name, {"outcome": "missing", "why": "the run over PCCL says nothing of it"})
    passed = [name for name in theirs if theirs[name]["outcome"] == "passed"]
    other = [name for name in passed if ours[name]["outcome"] != "passed"]
    worse = [name for name in other if name not in KNOWN]
    better = [name for name in theirs if theirs[name]["outcome"] == "failed" and ours[name]["outcome"] == "passed"]
    for name in worse:
        print(f"\n--- {name}\n{ours[name]['why']}")
    both = Counter(name for each in (theirs, ours) for name in each if each[name]["outcome"] == "skipped")
    reasons = {}
    for name in other:
        reasons.setdefault(KNOWN.get(name, ours[name]["outcome"]), []).append(f"`{name}`")
    if better:
        reasons["only PCCL passes"] = [f"`{name}`" for name in better]
    if flaky := [name for name in passed if ours[name].get("is_flaky")]:
        reasons["passed the second time over PCCL"] = [f"`{name}`" for name in flaky]
    differences = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    row = (f"| `{suite}` | {ranks} | {len(passed)} | {len(passed) - len(other)} | "
           f"{sum(count == 2 for count in both.values())} | {'; '.join(differences) or 'none'} |")
    return row, bool(worse)


if __name__ == "__main__":
    main()
