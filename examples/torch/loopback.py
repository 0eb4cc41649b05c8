"""Three replicas on this machine, one kill, one join: the same training by DDP, by DiLoCo, and by DDP under torchft.

    python examples/torch/loopback.py                       # all that is installed
    python examples/torch/loopback.py ddp --plot curves.svg

Prints a line for each way, and writes the curves of the loss into one plot.
"""

import argparse
import contextlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import threading

import pccl

HERE = pathlib.Path(__file__).resolve().parent
#: Of the ways that outlive a kill.
COLOURS = {"ddp": "#1f77b4", "diloco": "#2ca02c", "torchft": "#d62728", "torchft-gloo": "#7f7f7f"}


class Replica:
    """A process that trains, and what it has reported."""

    def __init__(self, way, name, arguments, seen):
        self.name, self.lines = name, []
        self.process = subprocess.Popen([sys.executable, str(HERE / "train.py"), way, "--name", name, *arguments],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        self.reader = threading.Thread(target=self.read, args=(seen,), daemon=True)
        self.reader.start()

    def read(self, seen):
        for line in self.process.stdout:
            self.lines.append(json.loads(line))
            seen(self)

    def join(self):
        """Has one that waits take part."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


class Lighthouse:
    """torchft's, in a process of its own, because it talks."""

    def __init__(self, heartbeat_ms=1000):
        # The others wait for a live peer that does not ask; a peer that is silent for this long is dropped.
        program = ("import sys; from torchft.coordination import LighthouseServer; server = LighthouseServer("
                   f"bind='127.0.0.1:0', min_replicas=2, join_timeout_ms=10000, heartbeat_timeout_ms={heartbeat_ms}); "
                   "print('at', server.address(), flush=True); sys.stdin.read()")
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.address = next(line.split()[1] for line in self.process.stdout if line.startswith("at "))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def end(self):
        self.process.kill()
        self.process.wait()


def train(way, steps, patience_s):
    """Trains until the end; replica 1 is killed after a third, and replica 3 joins after the half."""
    replicas, killed, joined, over = [], threading.Event(), threading.Event(), threading.Event()

    def seen(replica):
        line = replica.lines[-1]
        if line["step"] >= steps // 3 and line["members"] == 3:
            killed.set()
        if killed.is_set() and line["step"] >= steps // 2:
            joined.set()
        if line["step"] >= steps - 1:
            over.set()

    with pccl.MasterNode("127.0.0.1:0") as node, contextlib.ExitStack() as stack:
        arguments = ["--master", f"127.0.0.1:{node.port}", "--steps", str(steps), "--late", "3"]
        if way.startswith("torchft"):
            lighthouse = Lighthouse()
            stack.callback(lighthouse.end)
            arguments += ["--lighthouse", lighthouse.address]

        for index in range(4):
            # The fourth is a spare: it has imported torch when it is needed.
            replicas.append(Replica(way, f"replica-{index}", arguments + ["--wait"] * (index == 3), seen))
            stack.callback(replicas[-1].end)
        for event, act in ((killed, replicas[1].process.kill), (joined, replicas[3].join)):
            if not event.wait(patience_s):
                raise SystemExit(f"{way}: no progress for {patience_s} s")
            act()
        if not over.wait(patience_s):
            raise SystemExit(f"{way}: not at its end after {patience_s} s")
        if not way.startswith("torchft"):
            # All come to the end together. Under torchft who joins late finds nobody.
            for replica in (replicas[0], *replicas[2:]):
                replica.process.wait(patience_s)
    return replicas


def gap(replicas):
    """Seconds from the last step with three to the first of a survivor without the victim."""
    lines = replicas[0].lines
    first = next(index for index, line in enumerate(lines) if index and line["members"] < lines[index - 1]["members"])
    return lines[first]["at"] - lines[first - 1]["at"]


def plot(curves, path):
    """One picture with all curves, as SVG."""
    width, height, edge = 720, 400, 40
    most = max(line["step"] for lines in curves.values() for line in lines) or 1
    highest = max(line["loss"] for lines in curves.values() for line in lines)
    parts = []
    for number, (way, lines) in enumerate(curves.items()):
        points = " ".join(f"{edge + line['step'] / most * (width - 2 * edge):.1f},"
                          f"{height - edge - line['loss'] / highest * (height - 2 * edge):.1f}" for line in lines)
        parts.append(f'<polyline fill="none" stroke="{COLOURS[way]}" points="{points}"/>'
                     f'<text x="{width - 140}" y="{edge + 18 * number}" fill="{COLOURS[way]}">{way}</text>')
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
                    f'<rect width="100%" height="100%" fill="white"/>'
                    f'<text x="{edge}" y="20">loss by step, 0 to {highest:.1f}, {most} steps</text>{"".join(parts)}</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", help=f"of {', '.join(COLOURS)}")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--plot", type=pathlib.Path, default=pathlib.Path("curves.svg"))
    parser.add_argument("--patience", type=float, default=180.0)
    args = parser.parse_args()
    ways = args.ways or ["ddp", "diloco", *(["torchft"] if importlib.util.find_spec("torchft") else [])]
    curves = {}
    for way in ways:
        replicas = train(way, args.steps, args.patience)
        lines = [line for line in replicas[0].lines if line["loss"] == line["loss"]]
        curves[way] = lines
        sizes = [line["members"] for line in lines]
        if not (3 in sizes and 2 in sizes and len(replicas[3].lines)):
            raise SystemExit(f"{way}: the kill or the join did not happen: {sorted(set(sizes))}")
        print(f"{way:13} loss {lines[0]['loss']:.2f} -> {lines[-1]['loss']:.2f}, {len(lines)} reports, first step without "
              f"the victim after {gap(replicas):.2f} s, the newcomer made {len(replicas[3].lines)}", flush=True)
        if lines[-1]["loss"] > 0.85 * lines[0]["loss"]:
            raise SystemExit(f"{way}: it has not learnt")
    plot(curves, args.plot)
    print(f"curves in {args.plot}")


if __name__ == "__main__":
    main()
