"""A storm of DiLoCo members: processes that are killed and replaced, or stopped for a while, and masters that are killed
while another one stands by. Ends with 0 only if all who reach the end have the same bits, and if each round, computed
again from the contributions, gives the bits that all members held.

    python python/tests/diloco_storm.py --minutes 4 --seed 11
"""

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MEMBERS, ELEMENTS = 4, 8_000
#: Steps between two rounds, and rounds between the end of the storm and that of the run.
SPAN, REST = 5, 200
END = "end"
#: No member is spared for longer.
CALM_S = 3.0


def member(addresses, seed, step_s, compress, audit):
    import numpy
    import pccl.diloco

    def is_over():
        """The storm says at which step all end, when it is over."""
        try:
            with open(os.path.join(os.path.dirname(audit), END)) as file:
                return run.step_index >= int(file.read())
        except FileNotFoundError:
            return False

    weights, noise = numpy.zeros(ELEMENTS, numpy.float32), numpy.random.default_rng(seed)
    with pccl.diloco.Member(addresses, weights, every=SPAN * 4, fragments=4, overlap=2, compress=compress, quorum=0.6,
                            audit=audit, first_ports=(0, 0)) as run:
        while not is_over():
            time.sleep(step_s)
            weights += 0.05 * (1 - weights) + 0.01 * noise.standard_normal(ELEMENTS, dtype=numpy.float32)
            # What a step counts for differs.
            run.step(seed % 3 + 1)
        # The others may have ended already.
        run.finish(30)
        stats = run.stats()
    print(f"end {hashlib.sha256(weights.tobytes()).hexdigest()[:16]} mean {weights.mean():.2f} rounds {stats.rounds} "
          f"repeated {stats.repeated}", flush=True)


class Storm:
    def __init__(self, args):
        self.directory = args.keep or tempfile.mkdtemp()
        self.args, self.chance, self.count = args, random.Random(args.seed), 0
        self.addresses = [f"127.0.0.1:{port}" for port in args.ports]
        self.masters = [self.master(at) for at in range(len(self.addresses))]
        self.members = [self.start() for _ in range(MEMBERS)]

    def master(self, at):
        command = [sys.executable, "-m", "pccl.master", "--listen", self.addresses[at], "--peer-timeout", "5s"]
        if len(self.addresses) > 1:
            command += ["--accept-standbys", "--masters", ",".join(self.addresses)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start(self):
        self.count += 1
        step_s = self.chance.choice([0.005, 0.005, 0.03])
        command = [sys.executable, __file__, "--member", ",".join(self.addresses), f"--seed={self.count}",
                   f"--step-s={step_s}", f"--compress={self.args.compress}",
                   f"--audit={self.directory}/{self.count}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def strike(self):
        at, kind = self.chance.randrange(MEMBERS), self.chance.random()
        if kind < 0.15 and len(self.masters) > 1:
            which = self.chance.randrange(len(self.masters))
            self.masters[which].kill()
            self.masters[which].wait()
            self.masters[which] = self.master(which)
            print(f"master {which} was killed and started again", flush=True)
        elif kind < 0.6:
            self.members[at].kill()
            self.members[at].communicate()
            self.members[at] = self.start()
            print(f"member {at} was killed and replaced", flush=True)
        else:
            time_s = self.chance.choice([0.3, 1.0, 3.0])
            self.members[at].send_signal(signal.SIGSTOP)
            time.sleep(time_s)
            self.members[at].send_signal(signal.SIGCONT)
            print(f"member {at} was stopped for {time_s} s", flush=True)

    def run(self):
        until = time.monotonic() + 60 * self.args.minutes
        while time.monotonic() < until and all(it.poll() is None for it in self.members):
            time.sleep(self.chance.uniform(1, CALM_S))
            self.strike()
        self.end()
        ends = [it.communicate(timeout=300)[0].strip() for it in self.members]
        print("\n".join(ends))
        if any(it.returncode for it in self.members) or len({" ".join(end.split()[:6]) for end in ends}) != 1:
            raise SystemExit("the members have not ended alike")
        if not all(end.startswith("end") and "mean 1.0" in end for end in ends):
            raise SystemExit("the members have learnt nothing")
        self.audit()

    def end(self):
        """All end at the same step, which none has made yet."""
        rounds = 0
        for name in os.listdir(self.directory):
            with open(os.path.join(self.directory, name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 2**20))
                rounds = max([rounds, *map(int, re.findall(rb"made (\d+) ", file.read()))])
        path = os.path.join(self.directory, END)
        with open(path + "~", "w") as file:
            file.write(str(SPAN * (rounds + REST)))
        os.rename(path + "~", path)

    def audit(self):
        from pccl.diloco import audit

        names = [name for name in os.listdir(self.directory) if name != END]
        try:
            run = audit.check([os.path.join(self.directory, name) for name in names])
        except audit.Finding as finding:
            raise SystemExit(f"audit: {finding}") from None
        print(f"{run.rounds - run.first} rounds of {len(names)} processes computed again: the same bits")

    def stop(self):
        for process in [*self.members, *self.masters]:
            process.kill()
        if not self.args.keep:
            shutil.rmtree(self.directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ports", type=int, nargs="+", default=[48411, 48412], help="of the masters: one or two")
    parser.add_argument("--compress", default="int4")
    parser.add_argument("--keep", metavar="DIRECTORY", help="for the audit files; empty")
    parser.add_argument("--audit", help=argparse.SUPPRESS)
    parser.add_argument("--member", help=argparse.SUPPRESS)
    parser.add_argument("--step-s", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.member:
        return member(args.member, args.seed, args.step_s, args.compress, args.audit)
    if os.getpgid(0) != os.getpid():
        os.setpgrp()
    storm = Storm(args)
    try:
        storm.run()
    finally:
        storm.stop()


if __name__ == "__main__":
    main()
