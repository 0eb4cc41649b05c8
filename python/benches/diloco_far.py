"""How much of what machines compute alone remains when they train together over slow lines, with one that is five times
slower, and with kills: DiLoCo with a quorum, and the same in lock step.

    sudo python python/benches/diloco_far.py --wanlab WANLAB --seconds 200 --kill-every 20

Each member has a host of its own (network namespaces of ``wanlab``), and the master one. An inner step is a sleep, so
that a machine with few cores can stand for many; exchanges, kills and starts are real.
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


def on_host(args, host, *command):
    return [args.wanlab, "exec", str(host), "--", sys.executable, *command]


def start(args, host, until):
    step_s = SLOW_S if host == args.members - 1 else FAST_S
    settings = [f"--{name}={getattr(args, name)}" for name in
                ("members", "params", "every", "fragments", "overlap", "compress", "quorum")]
    command = on_host(args, host, __file__, "--member", f"--step-s={step_s}", f"--until={until}", *settings)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def kill(host):
    """All processes of a host."""
    pids = subprocess.run(["ip", "netns", "pids", f"wan{host}"], capture_output=True, text=True, check=True).stdout
    for pid in pids.split():
        os.kill(int(pid), signal.SIGKILL)


def training(args):
    """Runs within a lab."""
    master = subprocess.Popen(on_host(args, args.members, "-m", "pccl.master", "--listen", f"0.0.0.0:{PORT}",
                                      "--insecure"), stderr=subprocess.DEVNULL)
    begun, kills, chance = time.time(), 0, random.Random(args.seed)
    until = begun + args.seconds
    members = {host: start(args, host, until) for host in range(args.members)}
    while args.kill_every and (kills + 1) * args.kill_every < args.seconds - 10:
        time.sleep(max(0, begun + (kills + 1) * args.kill_every - time.time()))
        host = chance.choice(list(members))
        kill(host)
        members[host] = start(args, host, until)
        kills += 1
    ends = [line.split()[1:] for it in members.values() for line in it.communicate()[0].splitlines()
            if line.startswith("end ")]
    master.kill()
    weight, rounds, waited, exchange, sent = (max(float(end[at]) for end in ends) for at in range(5))
    alone = args.seconds * ((args.members - 1) / FAST_S + 1 / SLOW_S)
    print(f"quorum {args.quorum:<5} {kills} kills, {rounds:.0f} rounds: {weight:.0f} of {alone:.0f} steps counted, "
          f"{weight / alone:.2f}; per round {exchange:.2f} s of exchange, {waited:.2f} s waited at most, "
          f"{sent / 1e3:.0f} kB sent", flush=True)


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
        for quorum in args.quorum:
            again = [word for word in sys.argv[1:] if not word.startswith("--quorum")]
            command = [args.wanlab, "up", lab, "--", sys.executable, __file__, "--inside", *again,
                       f"--wanlab={args.wanlab}", f"--quorum={quorum}"]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
