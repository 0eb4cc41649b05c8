"""Runs a program of somebody else over Gloo and over PCCL, and compares its losses.

    python python/programs/run.py nanogpt --sources DIR          # two replicas on this machine
    python python/programs/run.py nanogpt --sources DIR --kill   # the same, with a kill and a replacement
    python python/programs/run.py all --sources DIR --diff       # shows all that is changed

Under DIR lies a clone of each repository by its name, such as ``DIR/nanoGPT``. Needs an installed ``pccl``, ``torch``,
and what the program imports. Ends with status 1 if the losses differ, or a run does not come to its end.
"""

import argparse
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from programs import PROGRAMS

TRANSPORTS = ("gloo", "pccl")
#: Longest time for one run.
PATIENCE_S = 1200


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=[*PROGRAMS, "all"])
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="where the repositories are")
    parser.add_argument("--replicas", type=int, default=2, help="number of processes")
    parser.add_argument("--kill", action="store_true", help="a kill and a replacement, over both transports")
    parser.add_argument("--victim", type=int, default=1, metavar="RANK", help="who is killed")
    parser.add_argument("--diff", action="store_true", help="print what is changed in the programs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the copies and all output stay")
    chosen = parser.parse_args()
    # The processes of a run end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = list(PROGRAMS) if chosen.program == "all" else [chosen.program]
    for name in names:
        place = chosen.sources / PROGRAMS[name].source.rpartition("/")[2]
        if not (place / PROGRAMS[name].script).exists():
            sys.exit(f"{place / PROGRAMS[name].script} is missing: "
                     f"git clone https://github.com/{PROGRAMS[name].source} {place}")
    with tempfile.TemporaryDirectory() as scratch:
        fine = [compare(name, chosen, (chosen.keep or Path(scratch)).resolve()) for name in names]
    sys.exit(not all(fine))


def compare(name, chosen, scratch):
    """One program over both transports; whether all came out as it should."""
    program, outcomes = PROGRAMS[name], {}
    for transport in TRANSPORTS:
        for kill in (False, True) if chosen.kill else (False,):
            folder = scratch / f"{name}-{transport}{'-kill' if kill else ''}"
            copy(program, chosen, folder, transport)
            if chosen.diff and not kill:
                show(program, chosen, folder, scratch / f"{name}-gloo")
            outcomes[transport, kill] = run(program, chosen, folder, transport, kill)
            print(f"{name} over {transport}: {outcomes[transport, kill]}", flush=True)
    ends = [outcome.is_over for outcome in outcomes.values()]
    theirs, ours = outcomes["gloo", False].losses, outcomes["pccl", False].losses
    print(f"{name}: {difference(theirs, ours)}")
    same = theirs == ours
    if chosen.kill and program.way != "replicas":
        theirs, ours = outcomes["gloo", True].losses, outcomes["pccl", True].losses
        print(f"{name} after a kill: {difference(theirs, ours)}")
        same = same and theirs == ours
        print(f"{name} over pccl, after a kill beside undisturbed: {difference(outcomes['pccl', False].losses, ours)}")
    return all(ends) and same and bool(ours)


def difference(theirs, ours):
    """How two sets of losses differ, as a sentence."""
    other = [key for key in theirs if ours.get(key) != theirs[key]] + [key for key in ours if key not in theirs]
    if not other:
        return f"all {len(ours)} values are the same"
    return (f"{len(other)} of {len({*theirs, *ours})} values differ, first {other[0]}: "
            f"{str(theirs.get(other[0]))[:40]} and {str(ours.get(other[0]))[:40]}")


def copy(program, chosen, folder, transport):
    """A copy of the program with its data, changed for this machine and the transport."""
    shutil.rmtree(folder, ignore_errors=True)
    place, script = chosen.sources / program.source.rpartition("/")[2], Path(program.script)
    # Single programs of large repositories need only what lies beside them.
    shutil.copytree(place / script.parent, folder / script.parent,
                    ignore=shutil.ignore_patterns(".git", "*.png", "*.gif", "media", "docs", "src", "torchft"))
    program.prepare(folder)
    for name, old, new in [*program.machine, *(program.pccl if transport == "pccl" else [])]:
        path = folder / script.parent / name
        text = path.read_text()
        if old not in text:
            sys.exit(f"{path.name} of {program.source} has no {old!r} any more")
        path.write_text(text.replace(old, new))


def show(program, chosen, folder, over_gloo):
    """Prints what was changed: for this machine, and for PCCL."""
    script = Path(program.script)
    before = over_gloo if folder != over_gloo else chosen.sources / program.source.rpartition("/")[2]
    for name in sorted({name for name, _, _ in [*program.machine, *program.pccl]}):
        lines = [(place / script.parent / name).read_text().splitlines() for place in (before, folder)]
        print("\n".join(difflib.unified_diff(*lines, f"{before.name}/{name}", f"{folder.name}/{name}", "", "", 0, "")))


class Outcome:
    """The outcome of a run: whether it came to its end, its losses, and how it recovered."""

    def __init__(self, is_over, losses, seconds, recovery):
        self.is_over, self.losses, self.seconds, self.recovery = is_over, losses, seconds, recovery

    def __str__(self):
        last = list(self.losses.items())[-1:]
        shown = ", ".join(f"{key}: {value}" for key, value in last)[:60]
        end = "to its end" if self.is_over else "NOT to its end"
        return (f"{end} in {self.seconds:.1f} s, {len(self.losses)} values, last {shown or 'none'}"
                + (f"; {self.recovery}" if self.recovery else ""))


def run(program, chosen, folder, transport, kill):
    """One run from start to end."""
    began = time.monotonic()
    job = Job(program, chosen, folder / Path(program.script).parent, transport, 1 if kill else chosen.replicas)
    try:
        job.start()
        recovery = ""
        if kill:
            recovery = job.disturb()
        is_over = job.wait(kill)
        if not is_over:
            print("\n".join(line for _, _, line in job.lines[-40:]))
    finally:
        job.close()
    losses = program.results(job.folder) if program.results and is_over else job.losses()
    return Outcome(is_over, losses, time.monotonic() - began, recovery)


class Job:
    """The processes of a run, and what they print."""

    def __init__(self, program, chosen, folder, transport, least):
        self.program, self.chosen, self.folder, self.transport = program, chosen, folder, transport
        self.processes, self.readers, self.lines, self.news = [], [], [], threading.Condition()
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
                            "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if transport == "gloo" and program.way == "restart":
            # Else torchrun 2.15 hands the processes that it starts again a store with the addresses of the dead, which
            # Gloo dials.
            self.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.services = []
        if program.way == "replicas":
            self.serve(least)

    def serve(self, least):
        """The lighthouse of torchft, and the master of PCCL. The losses are the same each time if the replicas begin
        together, so ``least`` of them are waited for."""
        os.environ.setdefault("RUST_LOG", "warn")
        import pccl
        from torchft.coordination import LighthouseServer

        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=least, join_timeout_ms=20000, quorum_tick_ms=50,
                                      heartbeat_timeout_ms=2000)
        port = lighthouse.address().rpartition(":")[2]
        master = pccl.MasterNode("127.0.0.1:0")
        master._run_embedded()
        self.services = [lighthouse.shutdown, master.destroy]
        self.environment.update(TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}", PCCL=f"127.0.0.1:{master.port}",
                                NUM_REPLICA_GROUPS=str(self.chosen.replicas))

    def start(self, more=""):
        """All processes; those of torchft have a torchrun each."""
        apart = self.program.way == "replicas"
        restarts = "0" if self.program.way == "resume" else "2"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", restarts,
                   "--nproc-per-node", "1" if apart else str(self.chosen.replicas), Path(self.program.script).name,
                   *self.program.arguments.format(backend=self.transport).split(), *more.split()]
        for number in range(self.chosen.replicas if apart else 1):
            process = subprocess.Popen(
                command, cwd=self.folder, env={**self.environment, "REPLICA_GROUP_ID": str(number)}, text=True,
                errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
            self.processes.append(process)
            reader = threading.Thread(target=self.read, args=(process, number), daemon=True)
            reader.start()
            self.readers.append(reader)

    def read(self, process, number):
        with (self.folder / f"output-{number}").open("a") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                with self.news:
                    self.lines.append((time.monotonic(), number, line.rstrip()))
                    self.news.notify_all()

    def disturb(self):
        """Kills the victim when its line comes; returns what happened then."""
        victim, replicas = self.chosen.victim, self.program.way == "replicas"
        seen, _, _ = self.until(0, lambda number, line: re.search(self.program.kill_at, line))
        torchrun, rank = (self.processes[victim], 0) if replicas else (self.processes[0], victim)
        process = worker(torchrun, rank)
        os.kill(process, signal.SIGKILL)
        killed = time.monotonic()
        if self.program.way == "resume":
            torchrun.wait(PATIENCE_S)
            ended = time.monotonic() - killed
            seen = len(self.lines)
            self.start(self.program.resume)
            _, when, _ = self.until(seen, self.is_progress)
            return (f"all ended {ended:.1f} s after the kill, first step of the second command after "
                    f"{when - killed:.1f} s")
        if not replicas:
            worker(torchrun, rank, process)
            _, when, _ = self.until(len(self.lines), self.is_progress)
            return f"first step of the restarted processes {when - killed:.1f} s after the kill"
        past, seen = self.step(self.lines[seen - 1][2]), len(self.lines)
        _, others, _ = self.until(seen, lambda number, line: number != victim and self.step(line) > past)
        _, again, line = self.until(seen, lambda number, line: number == victim and self.step(line) > past)
        return (f"the others are beyond step {past} {others - killed:.1f} s after the kill, the replacement "
                f"{again - killed:.1f} s after it, with {line!r}")

    def step(self, line):
        """The number of a step of torchft in a line, or none."""
        found = re.search(self.program.losses, line)
        return int(found[1]) if found else -1

    def is_progress(self, number, line):
        """Whether a step was made."""
        return re.search(self.program.progress or self.program.losses, line)

    def until(self, begin, matches):
        """The first line from ``begin`` on that is looked for: the place behind it, when it came, and its text."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with self.news:
                for place in range(begin, len(self.lines)):
                    when, number, line = self.lines[place]
                    if matches(number, line):
                        return place + 1, when, line
                begin = len(self.lines)
                if not any(reader.is_alive() for reader in self.readers) or time.monotonic() > deadline:
                    self.fail("a line does not come")
                self.news.wait(1)

    def fail(self, what):
        """Ends this program with the last that the run has said."""
        sys.exit("\n".join([*(line for _, _, line in self.lines[-40:]), f"{self.program.script}: {what}"]))

    def wait(self, disturbed):
        """Whether all ended as they should; without the first command, if there was a second. Replicas would go on for
        ever, and are ended when all have made enough steps, or the replacement has made one with the others' state."""
        if self.program.way == "replicas":
            for replica in range(self.chosen.replicas if not disturbed else 0):
                self.until(0, lambda number, line: number == replica and self.step(line) > self.program.last)
            return True
        ends = [process.wait(PATIENCE_S) for process in self.processes]
        for reader in self.readers:
            reader.join(PATIENCE_S)
        return not any(ends[1:] if self.program.way == "resume" and len(ends) > 1 else ends)

    def losses(self):
        """The last value of each key."""
        found = {}
        for _, number, line in self.lines:
            # Two processes may write into one line.
            for match in re.finditer(self.program.losses, line):
                *key, value = match.groups()
                if self.program.way == "replicas" and int(key[0]) > self.program.last:
                    continue
                found[" ".join([f"replica {number} step"] * (self.program.way == "replicas") + key)] = value
        return dict(sorted(found.items(), key=lambda item: [int(part) if part.isdigit() else part
                                                           for part in item[0].split()]))

    def close(self):
        """Ends what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        for service in self.services:
            service()


def worker(torchrun, rank, other_than=None):
    """The process of that rank under a torchrun, as soon as there is one."""
    deadline = time.monotonic() + PATIENCE_S
    while torchrun.poll() is None and time.monotonic() < deadline:
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                environment = (status.parent / "environ").read_bytes().split(b"\0") if parent == torchrun.pid else []
            except OSError:
                continue
            if f"LOCAL_RANK={rank}".encode() in environment and int(status.parent.name) != other_than:
                return int(status.parent.name)
        time.sleep(0.02)
    sys.exit(f"torchrun has no process of rank {rank}")


if __name__ == "__main__":
    main()
