"""DiLoCo on handwritten digits, on one machine: a master and three peers, one of which is killed and replaced. With torch if it is
installed, otherwise with numpy.

    python examples/python/diloco.py                      all of it; exits with 0 only if all peers end with the same weights
    python examples/python/diloco.py --async              the same, and outer steps travel while the next local steps compute
    python examples/python/diloco.py [--async] --peer ADDR  one peer of the run at ADDR

Each peer takes local steps on its own data; the average of how far the peers have moved is the gradient of an outer
Nesterov step. The outer state is shared: whoever joins gets it from the others.

Asynchronous peers are one step behind: the local steps begin from outer weights that lack the change that is on its way. A
newcomer has no part in that change. So before it is let in, those who are there wait for the change and take the outer step
(drain); then they let it in (update); then all sync twice: the first sync hands over the outer state, the second one proves
that nothing differs any more. Only then the next change goes on its way.
"""

import argparse

import digits
import loopback
import numpy
import pccl
from pccl import Attribute, PCCLError, ReduceOp

OUTER_STEPS, LOCAL_STEPS = 60, 10
LOCAL_RATE = numpy.float32(0.1)
# Rate and momentum of the outer step. Changes that come late must not be followed as far.
IN_TIME, ONE_STEP_BEHIND = (numpy.float32(0.7), numpy.float32(0.6)), (numpy.float32(0.5), numpy.float32(0.2))


class Outer:
    """The shared state: the outer weights, their momentum, and how many steps they have seen."""

    def __init__(self, rate, momentum):
        self.rate, self.decay = rate, momentum
        self.weights, self.momentum = digits.initial_weights(), numpy.zeros(digits.SIZE, numpy.float32)
        self._steps = numpy.zeros(1, numpy.uint64)
        self._changed = False
        self._state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, name) for name, array in
                                        (("weights", self.weights), ("momentum", self.momentum), ("steps", self._steps))])

    @property
    def steps(self):
        return int(self._steps[0])

    def step(self, comm, change):
        self.momentum[:] = self.decay * self.momentum + change
        self.weights -= self.rate * (change + self.decay * self.momentum)
        self._steps += numpy.uint64(1)
        self._changed = True
        loopback.say(f"step {self.steps} peers {comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE)}")

    def sync(self, comm):
        # The revision counts the syncs of a changed state, however many steps there are between two of them.
        if self._changed:
            self._state.push_revision()
            self._changed = False
        return comm.sync_shared_state(self._state)


def local_change(weights, sampler):
    """How far local steps move away from the outer weights."""
    local = weights.copy()
    for _ in range(LOCAL_STEPS):
        local -= LOCAL_RATE * digits.gradient(local, *sampler.batch())
    return weights - local


def synchronous(comm, outer, sampler):
    while outer.steps < OUTER_STEPS:
        try:
            if outer.steps == OUTER_STEPS // 2:
                # So that the replacement has its part, however long it takes to start.
                comm.wait_for_world(3)
            outer.sync(comm)
            change = local_change(outer.weights, sampler)
            comm.all_reduce(change, change, op=ReduceOp.AVG)
            outer.step(comm, change)
            # At the end of a step: a newcomer begins with the sync, and so do the others after this.
            if comm.are_peers_pending():
                comm.update_topology()
        except PCCLError as error:
            loopback.go_on(comm, error)


class Flight:
    """A change on its way."""

    def __init__(self, comm, change):
        self.comm, self.change = comm, change
        self.handle = self.launch()

    def launch(self):
        return self.comm.all_reduce_async(self.change, self.change, op=ReduceOp.AVG)

    def land(self, outer):
        """Waits for the average and takes the outer step."""
        while not self.handle.wait()[0]:
            if not self.handle.error.retryable:
                raise self.handle.error
            # The change is as it was before: all who are left send theirs again.
            self.handle = self.launch()
        outer.step(self.comm, self.change)


def asynchronous(comm, outer, sampler):
    flight, joined = None, True
    while outer.steps < OUTER_STEPS:
        try:
            if joined:
                outer.sync(comm)
                if outer.sync(comm).rx_bytes > 0:
                    raise SystemExit("the state is not what the first sync made it")
                joined = False
            # From weights that lack the change on its way.
            change = local_change(outer.weights, sampler)
            if flight:
                flight.land(outer)
            flight = Flight(comm, change)
            halfway = outer.steps == OUTER_STEPS // 2
            if halfway or comm.are_peers_pending():
                flight.land(outer)
                flight, joined = None, True
                if halfway:
                    # So that the replacement has its part, however long it takes to start.
                    comm.wait_for_world(3)
                else:
                    comm.update_topology()
        except PCCLError as error:
            # What was on its way is lost for all; those who are left begin again with the state, as newcomers do.
            flight, joined = None, True
            loopback.go_on(comm, error)
    if flight:
        flight.handle.wait()


def peer(address, late):
    training, test = digits.load()
    outer = Outer(*(ONE_STEP_BEHIND if late else IN_TIME))
    with pccl.Communicator(address, first_ports=(0, 0)) as comm:
        comm.connect()
        # The first ones begin together. A replacement is let in between two steps of the others, and has to wait no more.
        comm.wait_for_world(3)
        loopback.say("in")
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
        loopback.run(__file__, *(["--async"] if arguments.asynchronous else []))
