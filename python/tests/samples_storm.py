"""A run that counts samples, in which members are killed again and again: each sample of each epoch is counted once.

    python python/tests/samples_storm.py --kind lockstep --kills 200
    python python/tests/samples_storm.py --kind diloco --kills 200
    python python/tests/samples_storm.py --kind elastic --kills 20 --every 4  # with PyTorch

Each member writes, for each step that it sees counted, which samples they were. At the end all that is known of a step
is the same, and the sum is each sample as often as there are epochs. The state tells the same in another way: it has a
counter for each sample, which the steps change.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy
import pccl
import pccl.diloco

BATCH, SEED = 4, 11


def samples_of(length, epochs):
    return pccl.Samples(length, seed=SEED, epochs=epochs, batch=BATCH, members=16)


class Log:
    """What this member saw counted, a line for each step, written before the next one."""

    def __init__(self, path, samples):
        self.file, self.samples, self.next, self.open = open(path, "a"), samples, 0, []

    def write(self, steps):
        self.open += range(self.next, steps)
        unknown = []
        for step in self.open:
            try:
                self.file.write(json.dumps([step, self.samples.counted(step)]) + "\n")
            except KeyError:
                # One of before this member came, or a round whose sync is under way.
                unknown.append(step)
        self.file.flush()
        self.next, self.open = max(self.next, steps), [step for step in unknown if step > steps - 5]


def lockstep(address, length, epochs, path):
    samples, seen = samples_of(length, epochs), numpy.zeros(length, numpy.float64)
    log = Log(path, samples)
    with pccl.Communicator(address, first_ports=(0, 0), world_of_one=True) as comm:
        def step():
            change = numpy.zeros(length, numpy.float64)
            for at in samples.take(comm):
                change[at] += 1
            time.sleep(random.random() * 0.004)
            samples.all_reduce(comm, [change])
            seen[:] += change
            samples.commit()
            log.write(samples.steps)

        state = pccl.SharedState.of(seen=seen, samples=samples)
        comm.run(step, state=state, more=lambda: not samples.done, min_world=1)
    return seen


def diloco(address, length, epochs, path):
    samples, weights = samples_of(length, epochs), numpy.zeros(length, numpy.float32)
    log = Log(path, samples)
    with pccl.diloco.Member(address, weights, every=6, outer="average", quorum=0.6, min_world=1, samples=samples,
                            first_ports=(0, 0)) as run:
        while not samples.done:
            for taken in samples:
                for at in taken:
                    weights[at] += 1
                time.sleep(random.random() * 0.004)
                run.step(samples=len(taken))
                log.write(run.stats().rounds)
        log.write(run.stats().rounds)
        # The sum of the weights of all contributions: one for each sample of each.
        weight = run.stats().weight
    assert weight == length * epochs, f"contributions of {weight} samples, not {length * epochs}"
    return None


def elastic(address, length, epochs, path):
    import pccl.torch
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    samples, seen = samples_of(length, epochs), torch.zeros(length, dtype=torch.float64)
    log, model = Log(path, samples), torch.nn.Linear(1, 1)
    with pccl.torch.elastic(address) as run:
        ddp, optimizer = run.data_parallel(model), torch.optim.SGD(model.parameters(), lr=0.001)

        def step():
            taken, change = samples.take(run.communicator), torch.zeros(length, dtype=torch.float64)
            for at in taken:
                change[at] += 1
            time.sleep(random.random() * 0.004)
            count = samples.all_reduce(run.communicator, [])
            optimizer.zero_grad()
            loss = ddp(torch.tensor([[at / length] for at in taken] or [[0.0]])).pow(2).sum()
            # DDP averages over the members: this makes it a mean over all samples.
            (loss * (torch.distributed.get_world_size() / max(count, 1) if taken else 0)).backward()
            torch.distributed.all_reduce(change)
            optimizer.step()
            seen.add_(change)
            samples.commit()
            log.write(samples.steps)

        state = pccl.SharedState.of(model=model, seen=seen, samples=samples)
        run.run(step, state=state, more=lambda: not samples.done, min_world=2)
    return seen.numpy()


def audit(folder, length, epochs):
    """Returns what is wrong, and how many steps were seen."""
    steps = {}
    for name in os.listdir(folder):
        for line in open(os.path.join(folder, name)):
            # The last line of a member that was killed may be cut.
            if line.endswith("\n"):
                step, counted = json.loads(line)
                if steps.setdefault(step, counted) != counted:
                    return f"members differ about step {step}", len(steps)
    times = numpy.zeros(length, int)
    for counted in steps.values():
        numpy.add.at(times, counted, 1)
    wrong = numpy.flatnonzero(times != epochs)
    return (f"{len(wrong)} samples are not counted {epochs} times, such as {wrong[:5]}" if len(wrong) else ""), len(steps)


def storm(kind, kills, members, length, epochs, every_s, limit_s):
    """Kills members and begins others until the run is over. Returns kills made."""
    with tempfile.TemporaryDirectory() as folder, pccl.MasterNode("127.0.0.1:0") as master:
        started, made = 0, 0

        def start():
            nonlocal started
            started += 1
            return subprocess.Popen([sys.executable, __file__, "--member", f"127.0.0.1:{master.port}", "--kind", kind,
                                     "--samples", str(length), "--epochs", str(epochs), "--log", os.path.join(folder, str(started))])

        alive = [start() for _ in range(members)]
        deadline, last, over = time.monotonic() + limit_s, time.monotonic(), False
        while alive:
            assert time.monotonic() < deadline, f"not over after {limit_s} s, with {made} kills"
            for member in [member for member in alive if member.poll() is not None]:
                assert member.returncode == 0, f"a member ended with {member.returncode}"
                alive.remove(member)
                over = True
            if not over and made < kills and time.monotonic() - last > every_s:
                # One always stays: what nobody is left to tell of is counted, but not in a log.
                victim = random.choice(alive[1:])
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                alive[alive.index(victim)] = start()
                made, last = made + 1, time.monotonic()
            time.sleep(0.01)
        wrong, steps = audit(folder, length, epochs)
        assert not wrong, wrong
        print(f"{kind}: {made} kills, {steps} steps, {length} samples {epochs} times each", flush=True)
        return made


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["lockstep", "diloco", "elastic"], default="lockstep")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two kills")
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--member")
    parser.add_argument("--log")
    arguments = parser.parse_args()
    if arguments.member is None:
        storm(arguments.kind, arguments.kills, arguments.members, arguments.samples, arguments.epochs, arguments.every,
              arguments.limit)
        return
    member = {"lockstep": lockstep, "diloco": diloco, "elastic": elastic}[arguments.kind]
    end = member(arguments.member, arguments.samples, arguments.epochs, arguments.log)
    assert end is None or (end == arguments.epochs).all(), "the state has not learned from each sample as often"


if __name__ == "__main__":
    main()
