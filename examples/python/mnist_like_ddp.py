"""Data-parallel training on handwritten digits, on one machine: a master and three peers, one of which is killed and
replaced. With torch if it is installed, otherwise with numpy.

    python examples/python/mnist_like_ddp.py   all of it; exits with 0 only if all peers end with the same weights
    python examples/python/mnist_like_ddp.py --peer ADDR  one peer of the run at ADDR

Each peer computes the gradient of its own batch, all take the step of the average. The weights are shared: whoever
joins fetches them while the others compute, and whoever has lost its connection comes back the same way.
"""

import argparse
import sys

import digits
import loopback
import numpy
import pccl

STEPS, RATE, MOMENTUM = 300, numpy.float32(0.1), numpy.float32(0.9)


def peer(address):
    training, test = digits.load()
    weights, momentum = digits.initial_weights(), numpy.zeros(digits.SIZE, numpy.float32)
    state = pccl.SharedState.of(weights=weights, momentum=momentum)
    sampler = digits.Sampler(training)

    def compute():
        return digits.gradient(weights, *sampler.batch())

    def step(computed):
        # A peer that has just come with the weights has no gradient yet, and next to no weight.
        nothing = numpy.zeros(digits.SIZE, numpy.float32), 0.0
        (gradient, loss), weight = (nothing, sys.float_info.min) if computed is None else (computed, 1)
        comm.weighted_average(gradient, weight)
        # The same arithmetic on the same numbers: the weights stay the same on all peers.
        momentum[:] = MOMENTUM * momentum + gradient
        weights[:] -= RATE * momentum
        loopback.step(comm.get_attribute("global_world_size"), state.revision, loss)

    def peers():
        # The first ones begin together, and the replacement has its part, however long it takes to start.
        return 2 if 0 < state.revision < STEPS // 2 else 3

    with pccl.Communicator(address, first_ports=(0, 0)) as comm:
        comm.run(step, compute=compute, state=state, steps=STEPS, min_world=peers)
        loopback.end(weights, digits.accuracy(weights, test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", metavar="ADDR")
    arguments = parser.parse_args()
    peer(arguments.peer) if arguments.peer else loopback.run(__file__)
