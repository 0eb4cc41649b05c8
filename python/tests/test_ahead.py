"""Newcomers that fetch the state from peers that lend it, before they are let in."""

import array
import re

import pytest

import pccl
from pccl import Communicator, InvalidUsage, SharedState

numpy = pytest.importorskip("numpy")

#: Whoever runs a newcomer hears when the state is there, before it is let in.
TELL = """
import logging

class Tell(logging.Handler):
    def emit(self, record):
        if "before it is let in" in record.getMessage():
            say("fetched")

logging.getLogger("pccl").addHandler(Tell())
logging.getLogger("pccl").setLevel(logging.INFO)
"""

#: Two peers that train and lend, and a third one that comes while they do. Loops as users write them.
BY_HAND = """
weights = numpy.zeros(700_000, numpy.float32) if index == 2 else numpy.full(700_000, 0.5, numpy.float32)
# A tensor that is not contiguous is lent and fetched as a copy.
turned = numpy.full((30, 20), 0.0 if index == 2 else 2.0).T
step = Box(0 if index == 2 else 41)
state = SharedState.of(weights=weights, turned=turned, step=step, revision=0 if index == 2 else 5)
size = weights.nbytes + turned.nbytes + 16
comm = Communicator(address, first_ports=(0, 0), upload_share_pct=100)
if index == 2:
    seen = []
    ahead = comm.connect(state=state, progress=seen.append, timeout=120)
    assert ahead == Ahead(5, size) and state.revision == 5, ahead
    assert seen[-1].done_bytes == size and (weights == 0.5).all() and (turned == 2).all() and step.value == 41
    info = comm.sync_shared_state(state)
    assert info == SharedStateSyncInfo(0, 0, True), info
    change, weight = numpy.zeros(3, numpy.float32), 0
else:
    assert comm.connect(timeout=120) is None
    comm.wait_for_world(2)
    assert not comm.sync_shared_state(state).came_ahead
    with comm.lend(state):
        say("lent")
        go()
        while not comm.are_peers_pending():
            pass
        change, weight = numpy.full(3, 1.5, numpy.float32), 1
    comm.update_topology()
    info = comm.sync_shared_state(state, unchanged=True)
    assert info == SharedStateSyncInfo(0, 0), info
comm.weighted_average(change, weight)
assert (change == 1.5).all()
# Changed state is hashed, and state that is said to be unchanged is not.
step.value += 1
state.push_revision()
info = comm.sync_shared_state(state, unchanged={"weights": 5, "turned": 5})
assert info == SharedStateSyncInfo(0, 0) and state.revision == 6, info
say("done")
go()
"""

#: The loop of the library. The newcomer gets nothing to do in its first step.
BY_RUN = """
weights = numpy.zeros(100_000, numpy.float32)
state = SharedState.of(weights=weights)
comm = Communicator(address, first_ports=(0, 0))
given = []

def compute():
    before = weights.copy()
    if state.revision == 3 and index < 2:
        say("lent")
        go()
        while not comm.are_peers_pending():
            pass
    assert (weights == before).all()
    return numpy.ones(3, numpy.float32)

def step(computed):
    given.append((state.revision, computed is not None))
    change = numpy.zeros(3, numpy.float32) if computed is None else computed
    comm.weighted_average(change, 0 if computed is None else 1)
    weights[:] += change[0]

comm.run(step, state=state, steps=8, min_world=2, compute=compute)
first = 3 if index == 2 else 0
assert given == [(revision, index < 2 or revision > first) for revision in range(first, 8)], given
say(f"end {state.revision} {weights[0]} {weights[-1]}")
go()
"""


def until(peer, wanted):
    """Reads lines of a peer until one matches."""
    while True:
        line = peer.process.stdout.readline()
        assert line, f"it ended before {wanted!r}"
        if re.search(wanted, line):
            return line


@pytest.mark.parametrize("program", [BY_HAND, BY_RUN], ids=["by hand", "by run"])
def test_a_newcomer_joins_without_a_stop(master, start, program):
    peers = [start(program, master, 2, index) for index in range(2)]
    # A newcomer that finds nobody who lends is let in as ever.
    for peer in peers:
        peer.expect("lent")
    peers.append(start(TELL + program, master, 2, 2))
    until(peers[2], "^fetched$")
    for peer in peers[:2]:
        peer.go()
    ends = {until(peer, "^end " if program is BY_RUN else "^done").strip() for peer in peers}
    assert ends == ({"end 8 8.0 8.0"} if program is BY_RUN else {"done"})
    for peer in peers:
        peer.go()
    for peer in peers:
        peer.finish()


@pytest.fixture
def alone(master):
    with Communicator(master, first_ports=(0, 0)) as comm:
        comm.connect()
        yield comm


def test_what_may_be_lent_and_what_ends_a_loan(alone):
    weights = numpy.zeros(10)
    state = SharedState.of(weights=weights)
    with pytest.raises(InvalidUsage, match="no sync yet"):
        alone.lend(state)
    with pytest.raises(InvalidUsage, match="no sync yet"):
        alone.lend_snapshot(state)
    alone.sync_shared_state(state)
    with alone.lend(state) as loan:
        with pytest.raises(InvalidUsage, match="another loan"):
            alone.lend(state)
        # A sync ends it, and then it is not this loan that the end of the ``with`` ends.
        alone.sync_shared_state(state)
        second = alone.lend(state, unchanged=True)
        loan.end()
    with pytest.raises(InvalidUsage, match="another loan"):
        alone.lend(state)
    second.end()
    second.end()
    weights[3] = 1
    for lend in (alone.lend, alone.lend_snapshot):
        with pytest.raises(InvalidUsage, match="weights has changed"):
            lend(state)
    state.push_revision()
    alone.sync_shared_state(state)
    with pytest.raises(ZeroDivisionError):
        with alone.lend(state):
            raise ZeroDivisionError
    # A loan that nobody holds has ended.
    alone.lend(state)
    alone.lend(state).end()
    alone.lend_snapshot(state, unchanged=True)
    weights[3] = 2
    alone.end_snapshot()
    alone.end_snapshot()
    with pytest.raises(InvalidUsage, match="weights has changed"):
        alone.lend_snapshot(state)


def test_the_end_of_the_communicator_ends_its_loan(master):
    state = SharedState.of(weights=numpy.zeros(10))
    with Communicator(master, first_ports=(0, 0)) as comm:
        assert comm.connect(state=state) == pccl.Ahead(None, 0)
        comm.sync_shared_state(state)
        loan = comm.lend(state)
        comm.close()
        with pytest.raises(pccl.NotConnected):
            comm.lend(state)
        comm.connect()
        comm.sync_shared_state(state)
        loan = comm.lend(state)
    loan.end()


def test_arguments_are_looked_at_before_anything_is_done():
    state = SharedState.of(weights=array.array("f", [1]))
    lost = pccl.MasterLost(pccl.Result.INVALID_USAGE, "x")
    no_states, no_flags = [None, [], {"x": array.array("f", [1])}, "state"], [None, 1, "yes"]
    with Communicator("127.0.0.1:1", connect_timeout=0.1) as comm:
        calls = [
            (comm.lend, no_states),
            (comm.lend_snapshot, no_states),
            (lambda value: comm.connect(state=value), no_states[1:]),
            (lambda value: comm.recover(lost, state=value), no_states[1:]),
            (lambda value: comm.lend(state, unchanged=value), no_flags),
            (lambda value: comm.lend_snapshot(state, unchanged=value), no_flags),
            (lambda value: comm.sync_shared_state(state, unchanged=value), no_flags),
            (lambda value: comm.sync_shared_state(state, unchanged={value: 1}), [None, 1, b"weights"]),
            (lambda value: comm.sync_shared_state(state, unchanged={"weights": value}), [None, True, 1.0, "1"]),
            (lambda value: comm.connect(state=state, progress=value), [1, "print"]),
            (lambda value: comm.connect(progress=value), [print]),
            (lambda value: comm.run(print, state=state, steps=1, compute=value), [1, "print"]),
        ]
        for number, (call, values) in enumerate(calls):
            for value in values:
                with pytest.raises(TypeError):
                    call(value)
                    raise RuntimeError(f"call {number} has taken {value!r}")
        for wrong in (-1, 1 << 64):
            with pytest.raises(ValueError):
                comm.sync_shared_state(state, unchanged={"weights": wrong})
        with pytest.raises(ValueError):
            comm.connect(state=state, timeout=-1)
        with pytest.raises(pccl.ConnectFailed):
            comm.connect(state=state)
        for call in (comm.lend, comm.lend_snapshot):
            with pytest.raises(pccl.NotConnected):
                call(state)
