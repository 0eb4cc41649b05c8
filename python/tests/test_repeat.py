"""Steps that are made again: what a failed try leaves behind, and the check that finds it."""

import pytest

import pccl

numpy = pytest.importorskip("numpy")


@pytest.fixture
def alone(master):
    with pccl.Communicator(master, first_ports=(0, 0), world_of_one=True) as comm:
        yield comm


def lost():
    """A failure after which the step is made again."""
    return pccl.Aborted(pccl.Result.RANK_CONNECTION_LOST, "all_reduce", "made up", pccl.Remedy.RETRY)


def test_what_a_failed_try_has_changed_is_put_back(alone):
    import random

    weights, extra = numpy.zeros(3), {"seen": 0, "rate": 1.0}
    counters, own = {"calls": 0, "list": [1]}, numpy.random.default_rng(1)
    state = pccl.SharedState.of(weights=weights, extra=extra)
    random.seed(3), numpy.random.seed(4)
    drawn, tries = [], []

    def step():
        tries.append(state.revision)
        extra["seen"] += 1
        extra["rate"] *= 0.5
        counters["calls"] += 1
        counters["list"].append(2)
        drawn.append((random.random(), numpy.random.rand(), own.random()))
        if len(tries) % 2:
            raise lost()
        weights[:] += 1

    alone.run(step, state=state, steps=3, min_world=1, restore=[counters])
    assert tries == [0, 0, 1, 1, 2, 2] and weights.tolist() == [3, 3, 3]
    assert extra == {"seen": 3, "rate": 0.125} and counters == {"calls": 3, "list": [1, 2, 2, 2]}
    assert drawn[::2] == drawn[1::2] and len(set(drawn)) == 3


def test_what_cannot_be_restored_is_refused(alone):
    state = pccl.SharedState.of(weights=numpy.zeros(3))
    with pytest.raises(TypeError, match="a int cannot be restored"):
        alone.run(print, state=state, steps=1, restore=[1])


def run(comm, step, state, **settings):
    comm.run(step, state=state, steps=4, min_world=1, **settings)


def test_the_check_makes_each_step_twice_and_keeps_one(alone, monkeypatch):
    monkeypatch.setenv("PCCL_CHECK_RETRY", "1")
    weights, extra, tries = numpy.zeros(3), {"seen": 0}, []
    state = pccl.SharedState.of(weights=weights, extra=extra)

    def step():
        tries.append(state.revision)
        change = numpy.random.rand(3)
        extra["seen"] += 1
        alone.all_reduce(change)
        weights[:] += change

    numpy.random.seed(1)
    run(alone, step, state)
    assert tries == [0, 0, 1, 1, 2, 2, 3, 3] and extra["seen"] == 4
    numpy.random.seed(1)
    assert (weights == sum(numpy.random.rand(3) for _ in range(4))).all()


def test_the_check_names_what_differs_and_what_was_not_put_back(alone, monkeypatch):
    monkeypatch.setenv("PCCL_CHECK_RETRY", "1")
    weights, steady = numpy.zeros(3), numpy.ones(3)
    micro, batches = 0, iter(range(100))

    def counts():
        nonlocal micro
        micro += 1
        alone.barrier()
        weights[:] += micro

    with pytest.raises(pccl.NotRepeatable, match=r"and weights differ\. .* changed micro \(0, then 1\), which nobody"):
        run(alone, counts, pccl.SharedState.of(weights=weights, steady=steady))

    def iterates():
        alone.barrier()
        weights[:] += next(batches)

    with pytest.raises(pccl.NotRepeatable, match=r"changed batches \(an iterator, perhaps\)"):
        run(alone, iterates, pccl.SharedState.of(weights=weights, steady=steady))

    def early():
        weights[:] += 1
        alone.all_reduce(numpy.ones(3))

    with pytest.raises(pccl.NotRepeatable, match="the step changes weights before its last reduce"):
        run(alone, early, pccl.SharedState.of(weights=weights, steady=steady))


def test_the_check_makes_compute_twice_as_well(alone, monkeypatch):
    monkeypatch.setenv("PCCL_CHECK_RETRY", "1")
    weights, calls = numpy.zeros(3), []
    state = pccl.SharedState.of(weights=weights)

    def compute():
        calls.append(1)
        return 1 - weights

    def step(change):
        alone.all_reduce(change)
        weights[:] += change / 2

    run(alone, step, state, compute=compute)
    assert len(calls) == 8 and weights.tolist() == [1 - 0.5 ** 4] * 3
    unlike = iter([1.0, 2.0])
    with pytest.raises(pccl.NotRepeatable, match="weights differ"):
        alone.run(step, state=state, steps=5, min_world=1, compute=lambda: numpy.full(3, next(unlike)))
