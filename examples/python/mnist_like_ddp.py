"""Data-parallel training on handwritten digits, on one machine: a master and three peers, one of which is killed and replaced.
With torch if it is installed, otherwise with numpy.

    python examples/python/mnist_like_ddp.py              all of it; exits with 0 only if all peers end with the same weights
    python examples/python/mnist_like_ddp.py --peer ADDR  one peer of the run at ADDR

Each peer computes the gradient of its own batch, all take the step of the average. The weights are shared: whoever joins gets
them from the others, and whoever has lost its connection comes back the same way.
"""

import argparse

import digits
import loopback
import numpy
import pccl
from pccl import Attribute, PCCLError, ReduceOp

STEPS, RATE, MOMENTUM = 300, numpy.float32(0.1), numpy.float32(0.9)


def step(comm, state, weights, momentum, sampler):
    comm.sync_shared_state(state)
    gradient = digits.gradient(weights, *sampler.batch())
    comm.all_reduce(gradient, gradient, op=ReduceOp.AVG)
    # The same arithmetic on the same numbers: the weights stay the same on all peers.
    momentum[:] = MOMENTUM * momentum + gradient
    weights -= RATE * momentum
    state.push_revision()
    # At the end of a step: a newcomer begins with the sync, and so do the others after this.
    if comm.are_peers_pending():
        comm.update_topology()


def peer(address):
    training, test = digits.load()
    weights, momentum = digits.initial_weights(), numpy.zeros(digits.SIZE, numpy.float32)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(weights, "weights"),
                              pccl.TensorInfo.from_numpy(momentum, "momentum")])
    sampler = digits.Sampler(training)
    with pccl.Communicator(address, first_ports=(0, 0)) as comm:
        comm.connect()
        # The first ones begin together. A replacement is let in between two steps of the others, and has to wait no more.
        comm.wait_for_world(3)
        loopback.say("in")
        while state.revision < STEPS:
            try:
                if state.revision == STEPS // 2:
                    # So that the replacement has its part, however long it takes to start.
                    comm.wait_for_world(3)
                step(comm, state, weights, momentum, sampler)
                loopback.say(f"step {state.revision} peers {comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE)}")
            except PCCLError as error:
                loopback.go_on(comm, error)
        loopback.end(weights, digits.accuracy(weights, test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", metavar="ADDR")
    arguments = parser.parse_args()
    peer(arguments.peer) if arguments.peer else loopback.run(__file__)
