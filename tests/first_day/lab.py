"""Machines on one machine: network namespaces behind a router, and programs that run on them."""

import os
import re
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
# Another build of it: PCCL_MASTER_PROGRAM.
MASTER_PROGRAM = os.environ.get("PCCL_MASTER_PROGRAM", os.path.join(TARGET, "release", "pccl-master"))
PEER_PROGRAM = os.path.join(TARGET, "release", "examples", "train_digits")

MASTER_PORT, STATE_PORT, P2P_PORT = 48148, 48149, 48150
# How long a mistake may take to be found out, and healthy peers to go on. Far longer than it should take on any
# machine.
PATIENCE_S = 90


def run(*command, check=True):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {result.stdout.strip()}")
    return result.stdout


def run_quietly(*command):
    try:
        return run(*command)
    except RuntimeError as error:
        return f"command failed: {error}"


class Lab:
    """A router, a machine for the master (0) and machines for the peers (1 to 3)."""

    def __init__(self, number):
        # Labs are namespaces of their own, so all of them have the same addresses.
        self.prefix = f"pfd{os.getpid() % 10000}x{number}"
        self.hosts = range(4)
        self.router = f"{self.prefix}r"
        run("ip", "netns", "add", self.router)
        self.in_router("sysctl", "-qw", "net.ipv4.ip_forward=1")
        for host in self.hosts:
            self.add_host(host)

    def add_host(self, host):
        space = self.space(host)
        run("ip", "netns", "add", space)
        run("ip", "-n", self.router, "link", "add", f"r{host}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "-n", self.router, "addr", "add", f"10.88.{host}.254/24", "dev", f"r{host}")
        run("ip", "-n", self.router, "link", "set", f"r{host}", "up")
        run("ip", "-n", space, "addr", "add", f"{address(host)}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", space, "route", "add", "default", "via", f"10.88.{host}.254")

    def space(self, host):
        return f"{self.prefix}h{host}"

    def in_router(self, *command):
        return run("ip", "netns", "exec", self.router, *command)

    def firewall(self, *rules):
        """Rules of the router for packets that it passes on."""
        self.in_router("nft", "add table ip walk")
        self.in_router("nft", "add chain ip walk forward { type filter hook forward priority 0 ; }")
        for rule in rules:
            self.in_router("nft", f"add rule ip walk forward {rule}")

    def forget(self, after_s, counts_questions):
        """The router forgets connections that were not used for some time, and drops what comes on them after that.
        What has no bytes in it, as the questions that the system asks on an idle connection, counts or does not."""
        if counts_questions:
            timeouts = [f"net.netfilter.nf_conntrack_tcp_timeout_{state}={after_s}"
                        for state in ("established", "unacknowledged")]
            self.in_router("sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_loose=0", *timeouts)
            self.firewall("ct state invalid drop", "ct state new tcp flags & (syn | ack) != syn drop")
            return
        there, back = "ip saddr . tcp sport . ip daddr . tcp dport", "ip daddr . tcp dport . ip saddr . tcp sport"
        used = f"update @known {{ {there} }} update @known {{ {back} }}"
        self.in_router("nft", "add table ip walk")
        self.in_router("nft", "add set ip walk known { type ipv4_addr . inet_service . ipv4_addr . inet_service ; "
                       f"flags dynamic, timeout ; timeout {after_s}s ; }}")
        self.firewall(f"tcp flags & (syn | ack) == syn {used} accept", f"{there} != @known drop",
                      f"ip length > 60 {used}")

    def hide(self, host):
        """The machine has no address that others can reach: it goes out behind the address of the router."""
        self.in_router("nft", "add table ip walk")
        self.in_router("nft", "add chain ip walk out { type nat hook postrouting priority 100 ; }")
        self.in_router("nft", f"add rule ip walk out ip saddr {address(host)} masquerade")
        self.firewall(f"ip daddr {address(host)} ct state new drop")

    def drop_large_packets(self, host):
        """No packet above 1280 bytes passes to or from the machine, and nobody is told: ICMP is filtered."""
        self.in_router("ip", "link", "set", f"r{host}", "mtu", "1280")
        self.in_router("nft", "add table ip walk")
        self.in_router("nft", "add chain ip walk output { type filter hook output priority 0 ; }")
        self.in_router("nft", "add rule ip walk output ip protocol icmp drop")

    def close(self):
        for space in [self.router, *map(self.space, self.hosts)]:
            pids = run("ip", "netns", "pids", space, check=False).split()
            if pids:
                run("kill", "-9", *pids, check=False)
            run("ip", "netns", "del", space, check=False)


def address(host):
    return f"10.88.{host}.1"


class Program:
    """A program on a machine, and all that it has printed."""

    def __init__(self, lab, host, name, *command, environment=None, stderr=subprocess.STDOUT):
        self.name = name
        self.output = tempfile.TemporaryFile(mode="w+")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PCCL_", "RUST_LOG"))}
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", lab.space(host), *command], stdin=subprocess.DEVNULL, stdout=self.output,
            stderr=stderr, env={**inherited, **(environment or {})})

    def lines(self):
        self.output.seek(0)
        return self.output.read().splitlines()

    def steps(self):
        """The worlds in which this peer has made its steps, in order."""
        found = (re.match(r"digits: kind=step .*\bworld=(\d+)", line) for line in self.lines())
        return [int(match.group(1)) for match in found if match]

    def said(self):
        """What a person would read: all but the reports of steps."""
        return [line for line in self.lines() if not line.startswith("digits: kind=step ")]
