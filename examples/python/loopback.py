"""Runs an example on one machine: a master and three peers, one of which is killed and replaced."""

import hashlib
import subprocess
import sys

import pccl


def say(text):
    print(text, flush=True)


def end(weights, accuracy):
    """The last line of a peer, which stays until it is told to go: the others may need it for their last step."""
    say(f"end {hashlib.sha256(weights.tobytes()).hexdigest()[:16]} accuracy {accuracy:.3f}")
    sys.stdin.readline()


def go_on(comm, error, peers=2):
    """What a training loop does about an error before it begins its step again."""
    print(f"again: {error}", file=sys.stderr)
    if error.remedy is pccl.Remedy.WAIT_FOR_PEERS:
        comm.wait_for_world(peers)
    elif error.remedy is pccl.Remedy.RECONNECT:
        comm.connect()
    elif not error.retryable:
        raise error


def run(script, *arguments):
    """Exits with 0 only if all peers end with the same weights, and have learned something."""
    with pccl.MasterNode("127.0.0.1:0") as master:
        command = [sys.executable, script, *arguments, "--peer", f"127.0.0.1:{master.port}"]

        def start():
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        peers = [start() for _ in range(3)]
        try:
            for one in peers:
                follow(one, "in")
            follow(peers[0], "step 10 ")
            peers.pop().kill()
            peers.append(start())
            ends = [follow(one, "end") for one in peers]
            print("\n".join(ends))
            for one in peers:
                one.stdin.close()
            if any(one.wait() for one in peers) or len(set(ends)) != 1 or float(ends[0].split()[-1]) < 0.9:
                raise SystemExit("the peers have not learned the same")
        finally:
            for one in peers:
                one.kill()


def follow(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return line.strip()
    raise SystemExit(f"a peer ended before it said {beginning!r}")
