"""DiLoCo on one machine: a master and three peers, one of which is killed and replaced. With numpy.

    python examples/python/diloco.py              all of it; exits with 0 only if all peers end with the same weights
    python examples/python/diloco.py --peer ADDR  one peer of the run at ADDR

Each peer takes local steps on its own data; the average of how far the peers have moved is the gradient of an outer
Nesterov step. The outer state is shared: whoever joins gets it from the others.
"""

import argparse
import hashlib
import subprocess
import sys

import numpy
import pccl
from pccl import Attribute, PCCLError, ReduceOp, Remedy

OUTER_STEPS, LOCAL_STEPS, FEATURES, CLASSES = 60, 10, 16, 4
OUTER_RATE, MOMENTUM, LOCAL_RATE = numpy.float32(0.7), numpy.float32(0.6), numpy.float32(0.2)
CENTRES = numpy.random.default_rng(0).normal(size=(CLASSES, FEATURES)).astype(numpy.float32)


def batch(random):
    labels = random.integers(CLASSES, size=64)
    noise = random.normal(scale=0.7, size=(64, FEATURES)).astype(numpy.float32)
    return CENTRES[labels] + noise, labels


def train_locally(weights, random):
    weights = weights.copy()
    for _ in range(LOCAL_STEPS):
        points, labels = batch(random)
        scores = points @ weights
        likely = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        likely[numpy.arange(len(labels)), labels] -= 1
        weights -= LOCAL_RATE * (points.T @ likely) / numpy.float32(len(labels))
    return weights


def outer_step(comm, state, weights, momentum, random):
    comm.sync_shared_state(state)
    change = weights - train_locally(weights, random)
    comm.all_reduce(change, change, op=ReduceOp.AVG)
    momentum[:] = MOMENTUM * momentum + change
    weights -= OUTER_RATE * (change + MOMENTUM * momentum)
    state.push_revision()
    # At the end of a step: a newcomer begins with the sync, and so do the others after this.
    if comm.are_peers_pending():
        comm.update_topology()


def peer(address):
    weights = numpy.zeros((FEATURES, CLASSES), numpy.float32)
    momentum = numpy.zeros_like(weights)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(weights, "weights"),
                              pccl.TensorInfo.from_numpy(momentum, "momentum")])
    random = numpy.random.default_rng()
    with pccl.Communicator(address, first_ports=(0, 0)) as comm:
        comm.connect()
        # A replacement is let in between two steps of the others, which are enough without it.
        comm.wait_for_world(2)
        print("in", flush=True)
        while state.revision < OUTER_STEPS:
            try:
                if state.revision == OUTER_STEPS // 2:
                    # So that the replacement has its part, however long it takes to start.
                    comm.wait_for_world(3)
                outer_step(comm, state, weights, momentum, random)
                size = comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
                print(f"step {state.revision} peers {size}", flush=True)
            except PCCLError as error:
                print(f"again: {error}", file=sys.stderr)
                if error.remedy is Remedy.WAIT_FOR_PEERS:
                    comm.wait_for_world(2)
                elif error.remedy is Remedy.RECONNECT:
                    comm.connect()
                elif not error.retryable:
                    raise
        points, labels = batch(numpy.random.default_rng(1))
        accuracy = ((points @ weights).argmax(axis=1) == labels).mean()
        print(f"end {hashlib.sha256(weights.tobytes()).hexdigest()[:16]} accuracy {accuracy:.3f}", flush=True)
        sys.stdin.readline()


def start(address):
    return subprocess.Popen([sys.executable, __file__, "--peer", address], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


def follow(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return line.strip()
    raise SystemExit(f"a peer ended before it said {beginning!r}")


def everything():
    with pccl.MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        peers = [start(address) for _ in range(3)]
        try:
            for one in peers:
                follow(one, "in")
            follow(peers[0], "step 10 ")
            peers.pop().kill()
            peers.append(start(address))
            ends = [follow(one, "end") for one in peers]
            print("\n".join(ends))
            for one in peers:
                one.stdin.close()
            if any(one.wait() for one in peers) or len(set(ends)) != 1 or float(ends[0].split()[-1]) < 0.9:
                raise SystemExit("the peers have not learned the same")
        finally:
            for one in peers:
                one.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", metavar="ADDR")
    arguments = parser.parse_args()
    peer(arguments.peer) if arguments.peer else everything()
