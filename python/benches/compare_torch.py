"""The same loop over several transports, side by side: what a step costs, and what a SIGKILL costs.

    python python/benches/compare_torch.py                                      # some minutes
    python python/benches/compare_torch.py --ways ddp torchft torchft-gloo --mib 4 64 --seeds 5 --json out.json

Three processes on this machine average gradients of so many MiB in each step (``examples/torch/ways.py``); nothing else
is computed. After a third of the steps one is killed, but where ranks are fixed. The ways take turns, one run of each
after the other, so that all see the same machine. Times are those of replica 0, from report to report.

- ``ddp``: ``pccl.torch.elastic``, whose step also compares the state of all.
- ``fixed-pccl``, ``fixed-gloo``: DDP with fixed ranks; nobody is killed.
- ``torchft``, ``torchft-gloo``: torchft's Manager over PCCL, and over its own transport.
"""

import argparse
import contextlib
import json
import pathlib
import platform
import socket
import statistics
import sys
import threading
from importlib.metadata import PackageNotFoundError, version

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "torch"))

from loopback import Lighthouse, Replica  # noqa: E402

import pccl  # noqa: E402


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(way, mib, steps, patience_s, heartbeat_ms):
    """One run: the times of steps before and after the kill, and of the first step without the victim."""
    begun, over = threading.Event(), threading.Event()
    replicas = []

    def seen(replica):
        if replica is replicas[0]:
            if replica.lines[-1]["step"] >= steps // 3 and replica.lines[-1]["members"] == 3:
                begun.set()
            if replica.lines[-1]["step"] >= steps - 1:
                over.set()

    with pccl.MasterNode("127.0.0.1:0") as node, contextlib.ExitStack() as stack:
        arguments = ["--master", f"127.0.0.1:{node.port}", "--steps", str(steps), "--mib", str(mib)]
        if way.startswith("fixed"):
            arguments += ["--store", f"127.0.0.1:{free_port()}", "--late", "3"]
        if way.startswith("torchft"):
            lighthouse = Lighthouse(heartbeat_ms)
            stack.callback(lighthouse.end)
            arguments += ["--lighthouse", lighthouse.address]
        for index in range(3):
            replicas.append(Replica(way, f"replica-{index}", arguments, seen))
            stack.callback(replicas[-1].end)
        if not begun.wait(patience_s):
            return {"error": f"no three members after {patience_s} s"}
        if not way.startswith("fixed"):
            replicas[1].process.kill()
        if not over.wait(patience_s):
            return {"error": f"not at its end after {patience_s} s", "lines": len(replicas[0].lines)}
        lines = list(replicas[0].lines)
    times = [(after["at"] - before["at"], before["members"], after["members"]) for before, after in zip(lines, lines[1:])]
    before = [time for time, was, now in times if was == now == 3]
    after = [time for time, was, now in times if was == now == 2]
    lost = [time for time, was, now in times if was == 3 and now == 2]
    return {"before_ms": 1000 * statistics.median(before), "after_ms": 1000 * statistics.median(after) if after else None,
            "first_s": lost[0] if lost else None, "steps_missing": steps - len(lines)}


def installed(name):
    with contextlib.suppress(PackageNotFoundError):
        return version(name)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=["fixed-pccl", "fixed-gloo", "ddp", "torchft", "torchft-gloo"])
    parser.add_argument("--mib", nargs="+", type=int, default=[4])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--patience", type=float, default=120.0)
    parser.add_argument("--heartbeat-ms", type=int, default=1000, help="after which torchft's lighthouse drops a replica")
    parser.add_argument("--json", type=pathlib.Path, help="every run goes into this file")
    args = parser.parse_args()
    ways = [way for way in args.ways if not way.startswith("torchft") or installed("torchft-nightly")]
    for way in set(args.ways) - set(ways):
        print(f"left out, torchft-nightly is not installed: {way}")
    runs = []
    for mib in args.mib:
        for seed in range(args.seeds):
            for way in ways:
                runs.append({"way": way, "mib": mib, "seed": seed,
                             **measure(way, mib, args.steps, args.patience, args.heartbeat_ms)})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    about = {name: installed(name) for name in ("torch", "torchft-nightly", "pccl-rs")}
    about.update(python=platform.python_version(), machine=platform.machine(), pccl=pccl.__version__)
    if args.json:
        args.json.write_text(json.dumps({"about": about, "arguments": vars(args), "runs": runs}, indent=1, default=str))
    print(f"{about}\n\n| way | MiB | step before, ms | step after, ms | first step without the victim, s: median, worst | "
          "failed runs |\n|---|---|---|---|---|---|")
    for mib in args.mib:
        for way in ways:
            its = [run for run in runs if (run["way"], run["mib"]) == (way, mib)]
            good = [run for run in its if "error" not in run]
            print(f"| {way} | {mib} | {shown(good, 'before_ms', '.1f')} | {shown(good, 'after_ms', '.1f')} | "
                  f"{shown(good, 'first_s', '.2f')}, {shown(good, 'first_s', '.2f', max)} | {len(its) - len(good)} |")


def shown(runs, name, form, of=statistics.median):
    values = [run[name] for run in runs if run.get(name) is not None]
    return format(of(values), form) if values else "-"


if __name__ == "__main__":
    main()
