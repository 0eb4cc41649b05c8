"""How much of what machines compute alone remains when they train together over slow lines, with one that is five times
slower, and with kills: DiLoCo with a quorum, the same in lock step, and the DiLoCo of torchft over Gloo.

    sudo python python/benches/diloco_far.py --wanlab WANLAB --seconds 200 --kill-every 20 [--torchft PYTHON]

PYTHON is one that has torchft. Each member has a host of its own (network namespaces of ``wanlab``), and the master
one. An inner step is a sleep, so that a machine with few cores can stand for many; exchanges, kills and starts are
real.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

FAST_S, SLOW_S = 0.05, 0.25
PORT = 48148
#: Seconds after the end.
PATIENCE_S = 40


def member(args):
    """One member: takes steps until the end, and says what it has seen of the run."""
    import numpy
    import pccl.diloco

    weights = numpy.zeros(args.params, numpy.float32)
    run = pccl.diloco.Member(f"10.77.{args.members}.1:{PORT}", weights, every=args.every, fragments=args.fragments,
                             overlap=args.overlap, compress=args.compress, quorum=args.quorum)
    while time.time() < args.until:
        time.sleep(args.step_s)
        weights += 0.01
        run.step()
    stats = run.stats()
    print(f"end {stats.weight} {stats.rounds} {stats.waited_seconds / max(1, stats.rounds_here):.3f} "
          f"{stats.exchange_seconds / max(1, stats.rounds_here):.3f} "
          f"{stats.sent_bytes / max(1, stats.rounds_here):.0f}", flush=True)
    # Without a word to the others: they end now as well.
    os._exit(0)


def on_host(args, host, *command, python=sys.executable):
    return [args.wanlab, "exec", str(host), "--", python, *command]


class Pccl:
    """Members of this library."""

    def __init__(self, args):
        self.args, self.name = args, f"quorum {args.quorum}"

    def control(self):
        return on_host(self.args, self.args.members, "-m", "pccl.master", "--listen", f"0.0.0.0:{PORT}", "--insecure")

    def member(self, host, settings):
        more = [f"--{name}={getattr(self.args, name)}" for name in ("members", "compress", "quorum")]
        return on_host(self.args, host, __file__, "--member", *settings, *more)

    @staticmethod
    def result(lines):
        """What the members say of the run at its end: steps that counted, rounds, and more in words."""
        ends = [line.split()[1:] for line in lines if line.startswith("end ")]
        weight, rounds, waited, exchange, sent = (max(float(end[at]) for end in ends) for at in range(5))
        return weight, rounds, (f"; per round {exchange:.2f} s of exchange, {waited:.2f} s waited at most, "
                                f"{sent / 1e3:.0f} kB sent")


class Torchft:
    """Members of torchft, whose control is the lighthouse."""

    name = "torchft"
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "diloco_far_torchft.py")

    def __init__(self, args):
        self.args, self.address = args, f"10.77.{args.members}.1:{PORT}"

    def control(self):
        return on_host(self.args, self.args.members, self.program, f"--serve=0.0.0.0:{PORT}", python=self.args.torchft)

    def member(self, host, settings):
        return on_host(self.args, host, self.program, f"--lighthouse=http://{self.address}", f"--host=10.77.{host}.1",
                       "--interface=tun0", "--timeout=20", *settings, python=self.args.torchft)

    @staticmethod
    def result(lines):
        ends = [list(map(float, line.split())) for line in lines if line[:1].isdigit() and len(line.split()) == 2]
        return max(end[0] for end in ends), max(end[1] for end in ends), ""


def start(args, way, host, until):
    step_s = SLOW_S if host == args.members - 1 else FAST_S
    settings = [f"--step-s={step_s}", f"--until={until}",
                *(f"--{name}={getattr(args, name)}" for name in ("params", "every", "fragments", "overlap"))]
    return subprocess.Popen(way.member(host, settings), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def kill(host):
    """All processes of a host."""
    pids = subprocess.run(["ip", "netns", "pids", f"wan{host}"], capture_output=True, text=True, check=True).stdout
    for pid in pids.split():
        os.kill(int(pid), signal.SIGKILL)


def training(args):
    """Runs within a lab."""
    way = Torchft(args) if args.torchft else Pccl(args)
    control = subprocess.Popen(way.control(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun, kills, chance = time.time(), 0, random.Random(args.seed)
    until = begun + args.seconds
    members = {host: start(args, way, host, until) for host in range(args.members)}
    while args.kill_every and (kills + 1) * args.kill_every < args.seconds - 10:
        time.sleep(max(0, begun + (kills + 1) * args.kill_every - time.time()))
        host = chance.choice(list(members))
        kill(host)
        members[host] = start(args, way, host, until)
        kills += 1
    weight, rounds, more = way.result([line for it in members.values() for line in outputs(it, until)])
    control.kill()
    alone = args.seconds * ((args.members - 1) / FAST_S + 1 / SLOW_S)
    print(f"{way.name:<12} {kills} kills, {rounds:.0f} rounds: {weight:.0f} of {alone:.0f} steps counted, "
          f"{weight / alone:.2f}{more}", flush=True)


def outputs(process, until):
    """The lines of a member, which may wait for others that have ended."""
    try:
        return process.communicate(timeout=until + PATIENCE_S - time.time())[0].splitlines()
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0].splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wanlab", default="wanlab", help="the program that makes labs")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--kill-every", type=float, default=20, help="seconds; 0 kills nobody")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=100)
    parser.add_argument("--delay-ms", type=float, default=20, help="one way")
    parser.add_argument("--params", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--overlap", type=int, default=15)
    parser.add_argument("--compress", default="int4")
    parser.add_argument("--quorum", type=float, nargs="+", default=[0.75, 1.0])
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--torchft", metavar="PYTHON", help="the same with torchft, by this interpreter")
    for hidden in ("--step-s", "--until"):
        parser.add_argument(hidden, type=float, help=argparse.SUPPRESS)
    for hidden in ("--member", "--inside"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.member or args.inside:
        (args.quorum,) = args.quorum
        return member(args) if args.member else training(args)
    with tempfile.TemporaryDirectory() as directory:
        lab = os.path.join(directory, "lab.toml")
        with open(lab, "w") as file:
            file.write(f"hosts = {args.members + 1}\n[default]\ndelay_ms = {args.delay_ms}\nrate_mbit = {args.mbit}\n")
        names = ("wanlab", "seconds", "kill_every", "members", "params", "every", "fragments", "overlap", "compress",
                 "seed")
        settings = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in names]
        ways = [[f"--quorum={quorum}"] for quorum in args.quorum]
        ways += [["--quorum=1", f"--torchft={args.torchft}"]] if args.torchft else []
        for way in ways:
            command = [args.wanlab, "up", lab, "--", sys.executable, __file__, "--inside", *settings, *way]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
