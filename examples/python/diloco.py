"""DiLoCo on handwritten digits, on one machine: a master and three peers, one of which is killed and replaced. With
torch if it is installed, otherwise with numpy.

    python examples/python/diloco.py   all of it; exits with 0 only if all peers end with the same weights
    python examples/python/diloco.py --async   the same, and outer steps travel while the next local steps compute
    python examples/python/diloco.py [--async] --peer ADDR  one peer of the run at ADDR

Each peer takes local steps on its own data; the average of how far the peers have moved is the gradient of an outer
Nesterov step. The outer state is shared: whoever joins fetches it while the others take local steps.

Asynchronous peers are one step behind: the local steps begin from outer weights that lack the change that is on its
way. A newcomer has no part in that change. So before it is let in, those who are there wait for the change and take the
outer step (drain); then they let it in (update); then all sync twice: the first sync hands over the outer state, the
second one proves that nothing differs any more. Only then the next change goes on its way.
"""

import argparse
import sys

import digits
import loopback
import numpy
import pccl

OUTER_STEPS, LOCAL_STEPS = 60, 10
LOCAL_RATE = numpy.float32(0.1)
# Rate and momentum of the outer step. Changes that come late must not be followed as far.
IN_TIME, ONE_STEP_BEHIND = (numpy.float32(0.7), numpy.float32(0.6)), (numpy.float32(0.5), numpy.float32(0.2))


class Outer:
    """The shared state: the outer weights, their momentum, and how many steps they have seen."""

    def __init__(self, rate, momentum):
        self.rate, self.decay = rate, momentum
        self.weights, self.momentum = digits.initial_weights(), numpy.zeros(digits.SIZE, numpy.float32)
        self._steps = pccl.Box(0)
        self.state = pccl.SharedState.of(weights=self.weights, momentum=self.momentum, steps=self._steps)

    @property
    def steps(self):
        return self._steps.value

    def step(self, comm, change, loss):
        self.momentum[:] = self.decay * self.momentum + change
        self.weights -= self.rate * (change + self.decay * self.momentum)
        self._steps.value += 1
        loopback.step(comm, self.steps, loss)


def local_change(weights, sampler):
    """How far local steps move away from the outer weights, and the loss of the last one."""
    local, loss = weights.copy(), 0.0
    for _ in range(LOCAL_STEPS):
        gradient, loss = digits.gradient(local, *sampler.batch())
        local -= LOCAL_RATE * gradient
    return weights - local, loss


def synchronous(comm, outer, sampler):
    def compute():
        return local_change(outer.weights, sampler)

    def step(computed):
        # A peer that has just come with the outer state has not moved yet, and has next to no weight.
        nothing = numpy.zeros(digits.SIZE, numpy.float32), 0.0
        (change, loss), weight = (nothing, sys.float_info.min) if computed is None else (computed, 1)
        comm.weighted_average(change, weight)
        outer.step(comm, change, loss)

    def peers():
        # The first ones begin together, and the replacement has its part, however long it takes to start.
        return 2 if 0 < outer.steps < OUTER_STEPS // 2 else 3

    comm.run(step, compute=compute, state=outer.state, steps=OUTER_STEPS, min_world=peers)


class Flight:
    """A change on its way."""

    def __init__(self, comm, change, loss):
        self.comm, self.change, self.loss = comm, change, loss
        self.handle = self.launch()

    def launch(self):
        return self.comm.all_reduce_async(self.change, op="avg")

    def land(self, outer):
        """Waits for the average and takes the outer step."""
        while True:
            try:
                self.handle.result()
                break
            except pccl.PCCLError as error:
                if not error.retryable:
                    raise
                # The change is as it was before: all who are left send theirs again.
                self.handle = self.launch()
        outer.step(self.comm, self.change, self.loss)


def asynchronous(comm, outer, sampler):
    comm.connect()
    comm.wait_for_world(3)
    flight, joined, synced = None, True, 0
    while outer.steps < OUTER_STEPS:
        try:
            if joined:
                # The revision counts the syncs of a changed state, however many steps there are between two of them.
                if outer.steps != synced:
                    outer.state.push_revision()
                comm.sync_shared_state(outer.state)
                synced = outer.steps
                if comm.sync_shared_state(outer.state).rx_bytes > 0:
                    raise SystemExit("the state is not what the first sync made it")
                joined = False
            # From weights that lack the change on its way.
            change, loss = local_change(outer.weights, sampler)
            if flight:
                flight.land(outer)
            flight = Flight(comm, change, loss)
            halfway = outer.steps == OUTER_STEPS // 2
            if halfway or comm.are_peers_pending():
                flight.land(outer)
                flight, joined = None, True
                if halfway:
                    # So that the replacement has its part, however long it takes to start.
                    comm.wait_for_world(3)
                else:
                    comm.update_topology()
        except pccl.PCCLError as error:
            # The reduction in flight is lost for all; those who are left begin again with the state, as newcomers do.
            flight, joined = None, True
            comm.recover(error)
    if flight:
        flight.handle.wait()


def peer(address, late):
    training, test = digits.load()
    outer = Outer(*(ONE_STEP_BEHIND if late else IN_TIME))
    with pccl.Communicator(address, first_ports=(0, 0)) as comm:
        (asynchronous if late else synchronous)(comm, outer, digits.Sampler(training))
        loopback.end(outer.weights, digits.accuracy(outer.weights, test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", metavar="ADDR")
    parser.add_argument("--async", action="store_true", dest="asynchronous")
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments.peer, arguments.asynchronous)
    else:
        loopback.run(__file__, *(["--async"] if arguments.asynchronous else []), show=5)
