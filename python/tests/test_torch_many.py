"""Operations in flight beside each other: more than a communicator has room for, and those that nobody waits for. The
members are threads."""

import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch_ranks import Ranks  # noqa: E402

from pccl.torch import CollectiveError  # noqa: E402

SIZE = 3
#: More than the 1,024 that a communicator may have in flight.
MANY = 1100
#: More than it has in flight of collectives, or to one other member.
SOME = 300
PATIENCE_S = 300


@pytest.fixture
def ranks(master):
    made = Ranks(SIZE, master, limit=timedelta(seconds=PATIENCE_S))
    yield made
    made.close()


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_results_come_without_anybody_who_waits(ranks):
    """After 1,024 dropped works the next call was refused, and what is copied at the end never was."""
    def call(group, rank):
        many = [torch.full((3,), float(n + rank)) for n in range(MANY)]
        for tensor in many:
            group.allreduce([tensor])
        turned = torch.full((4, 2), float(rank))
        group.allreduce([turned.t()])
        wait_until(lambda: turned.tolist() == [[3, 3]] * 4)
        wait_until(lambda: all(tensor.tolist() == [3 * n + 3] * 3 for n, tensor in enumerate(many)))
        wait_until(lambda: not group._completion._flying)

    ranks.check(call)


def test_there_is_no_limit_for_what_is_in_flight(ranks):
    def call(group, rank):
        many = [torch.full((3,), float(n + rank)) for n in range(MANY)]
        works = [group.allreduce([tensor]) for tensor in many]
        # The last one is in a queue, and nobody waits for those before it.
        works[-1].wait()
        for work in works:
            assert work.wait()
        return [int(tensor[0]) for tensor in many]

    assert ranks.check(call) == [[3 * n + 3 for n in range(MANY)]] * SIZE


def test_full_lanes_do_not_hold_up_what_they_wait_for(ranks):
    """All sends come first, and what takes them is called behind them; collectives of others are under way, too."""
    def call(group, rank):
        left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
        works = [group.send([torch.full((2,), float(n))], right, 5) for n in range(SOME)]
        reduced = [torch.ones(2) for _ in range(SOME)]
        works += [group.allreduce([tensor]) for tensor in reduced]
        into = [torch.zeros(2) for _ in range(SOME)]
        works += [group.recv([tensor], left, 5) for tensor in into]
        for work in works:
            work.wait()
        assert all(tensor.tolist() == [SIZE] * 2 for tensor in reduced)
        return [int(tensor[0]) for tensor in into]

    assert ranks.check(call) == [list(range(SOME))] * SIZE


def test_what_has_a_limit_ends_in_the_queue_as_well(ranks):
    """The others call nothing: the last has no room, and the oldest fails by its limit."""
    def late(group, rank):
        works = [group.allreduce([torch.ones(2)]) for _ in range(SOME)]
        with pytest.raises(CollectiveError, match="Timed out waiting.*no room") as raised:
            works[-1].wait(timedelta(milliseconds=200))
        assert raised.value.is_timeout
        with pytest.raises(CollectiveError, match="Timed out waiting.*rank 1.*rank 2|Timed out waiting.*rank 2.*rank 1"):
            works[0].wait(timedelta(milliseconds=200))
        group.drain()
        for work in works:
            assert work.is_completed() and not work.is_success() and work.exception() is not None

    ranks.check(late, [0])
