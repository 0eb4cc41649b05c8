"""The same loop over several transports, side by side: what a step costs, and what a fault costs.

    python python/benches/compare_torch.py                                      # some minutes
    python python/benches/compare_torch.py --faults kill stop leave --mib 4 64 --seeds 5 --json out.json
    python python/benches/compare_torch.py --interleave 20 --columns torchft torchft-gloo       # steps only
    sudo python python/benches/compare_torch.py --places lab --wanlab WANLAB --faults kill stop leave cut

Three processes average gradients of some MiB in each step (``examples/torch/ways.py``); nothing else is computed.
Then comes a fault, and, when the others have gone on, a replacement. The columns take turns, one run of each after the
other, so that all see the same machine. Times are those of one survivor, from report to report.

- ``ddp``: ``pccl.torch.elastic``, whose step also compares the state of all.
- ``torchft``: torchft's Manager over PCCL.
- ``torchft-gloo``: over its own transport, with the shorter times of its documents (stragglers 10 s, limits 10 s) and
  1 s without a heartbeat, as ``torchft`` here has them, too. ``torchft-gloo-default``: with its defaults.
- ``torchft-none``: over a group that moves nothing: what torchft, and the step itself, cost.
- ``fixed-pccl``, ``fixed-gloo``: DDP with fixed ranks, which ends with a fault.

With ``--interleave`` there is no fault: the replicas of all columns are there at once, and those of one run for 1.5 s
while the others are stopped, in turn. On a machine that others use as well this compares best; the ratios are to the
last column, turn by turn.

Faults hit one of the three: ``kill`` (SIGKILL), ``stop`` (SIGSTOP for 20 s), ``leave`` (it ends after a step, as its
library wants it to), ``cut`` (nothing goes between two of them any more; in a lab only), ``none``. In a lab each
process has a host of its own (network namespaces of ``wanlab``, root), and each pair of hosts a rate and a delay.
"""

import argparse
import contextlib
import json
import pathlib
import platform
import statistics
import sys
from importlib.metadata import PackageNotFoundError, version

from torch_places import places
from torch_runs import COLUMNS, interleaved, measure

import pccl

SLICE_S = 1.5
FAULTS = ("none", "kill", "stop", "leave", "cut")


def installed(name):
    """The version of a package, if it is there."""
    with contextlib.suppress(PackageNotFoundError):
        return version(name)
    return None


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", nargs="+", default=["fixed-pccl", "fixed-gloo", "ddp", "torchft", "torchft-gloo"],
                        choices=COLUMNS, metavar="COLUMN")
    parser.add_argument("--places", nargs="+", default=["loopback"], choices=["loopback", "lab"])
    parser.add_argument("--faults", nargs="+", default=["kill"], choices=FAULTS)
    parser.add_argument("--mib", nargs="+", type=int, default=[4])
    parser.add_argument("--interleave", type=int, metavar="TURNS", help="the columns in turn, without a fault")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--before", type=int, default=30, help="steps before the fault")
    parser.add_argument("--after", type=int, default=20, help="steps after it, before a replacement comes")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for each part of a run")
    parser.add_argument("--wanlab", default="wanlab", help="the program that makes labs")
    parser.add_argument("--rate-mbit", type=int, default=200, help="of a lab")
    parser.add_argument("--delay-ms", type=int, default=25, help="of a lab, one way")
    parser.add_argument("--json", type=pathlib.Path, help="every run goes into this file")
    args = parser.parse_args()
    if not installed("torchft-nightly"):
        without = [column for column in args.columns if not column.startswith("torchft")]
        if without != args.columns:
            print("without torchft, which is not installed")
        args.columns = without
    return args


def in_turn(place, args):
    """The table of steps of columns that run in turn."""
    print("| place | MiB | column | step, ms | ratio to the last column: median, lowest, highest |\n"
          "|---|---|---|---|---|")
    for mib in args.mib:
        medians = interleaved(place, args.columns, mib, SLICE_S, args.interleave, args.patience)
        last = medians[args.columns[-1]]
        for column, times in medians.items():
            ratios = [time / other for time, other in zip(times, last) if time and other]
            print(f"| {place.name} | {mib} | `{column}` | {statistics.median(time for time in times if time):.1f} | "
                  f"{statistics.median(ratios):.2f}, {min(ratios):.2f}, {max(ratios):.2f} |", flush=True)


def main():
    args = arguments()
    about = {name: installed(name) for name in ("torch", "torchft-nightly", "pccl-rs")}
    about.update(python=platform.python_version(), machine=platform.machine(), pccl=pccl.__version__)
    given = {name: value for name, value in vars(args).items() if name not in ("json", "wanlab")}
    runs = []
    for entered in places(args.places, args.wanlab, args.rate_mbit, args.delay_ms):
        with entered as place:
            if args.interleave:
                in_turn(place, args)
                continue
            cases = [(seed, mib, fault, column) for seed in range(args.seeds) for mib in args.mib
                     for fault in args.faults if fault != "cut" or place.can_cut for column in args.columns]
            for seed, mib, fault, column in cases:
                case = {"place": place.name, "column": column, "mib": mib, "fault": fault, "seed": seed}
                runs.append({**case, **measure(place, column, mib, fault, args.before, args.after, args.patience)})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
                if args.json:
                    lines = ",\n".join(json.dumps(run) for run in runs)
                    head = f'{{"about": {json.dumps(about)},\n"arguments": {json.dumps(given)},\n'
                    args.json.write_text(f'{head}"runs": [\n{lines}\n]}}\n')
    print(about)
    if runs:
        table(runs)


def table(runs):
    """Medians over the runs of each case."""
    print("\n| place | MiB | fault | column | step before, ms | step after, ms | first step without the victim, s: "
          "median, worst | steps lost | all name it | replacement counts after, s | runs, failed |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    for case in dict.fromkeys((run["place"], run["mib"], run["fault"], run["column"]) for run in runs):
        its = [run for run in runs if (run["place"], run["mib"], run["fault"], run["column"]) == case]
        named = [run["named"] for run in its if "named" in run]
        first = f"{shown(its, 'first_s', '.2f')}, {shown(its, 'first_s', '.2f', max)}"
        if any("ended_s" in run for run in its):
            first = f"all ended after {shown(its, 'ended_s', '.2f')}"
        print(f"| {case[0]} | {case[1]} | {case[2]} | `{case[3]}` | {shown(its, 'before_ms', '.1f')} | "
              f"{shown(its, 'after_ms', '.1f')} | {first} | {shown(its, 'lost', '.0f')} | "
              f"{f'{sum(named)} of {len(named)}' if named else '-'} | {shown(its, 'replaced_s', '.2f')} | "
              f"{len(its)}, {sum('error' in run for run in its)} |")


def shown(runs, name, form, of=statistics.median):
    """One number of several runs, as text."""
    values = [run[name] for run in runs if run.get(name) is not None]
    return format(of(values), form) if values else "-"


if __name__ == "__main__":
    main()
