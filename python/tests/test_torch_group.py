"""What ends the waits of the backend for torch.distributed: limits, losses, reconfigure. The members are threads."""

import gc
import os
import threading
import weakref
from datetime import timedelta
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not hasattr(dist, "_reconfigure"):
    pytest.skip("this torch has no reconfigure", allow_module_level=True)

from torch_ranks import Ranks, member, reconfiguration  # noqa: E402

from pccl import GroupBroken, Remedy, TimedOut  # noqa: E402
from pccl.torch import CollectiveError  # noqa: E402


@pytest.fixture
def group_of(master):
    made = []

    def make(size, **settings):
        made.append(Ranks(size, master, **settings))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


def total(group, rank):
    tensor = torch.full((5,), group.rank() + 1.0)
    group.allreduce([tensor]).wait()
    return (group.rank(), group.size(), int(tensor[0]))


def test_a_limit_ends_a_wait_and_names_who_has_not_come(group_of):
    ranks = group_of(3, reconfigures=True)
    handles = ranks.handles()
    ranks.check(lambda group, rank: group.reconfigure(reconfiguration(1, handles)).wait())

    def late(group, rank):
        group.set_timeout(timedelta(milliseconds=50))
        tensor = torch.ones(3)
        work = group.allreduce([tensor])
        if rank == 0:
            work.get_future()
        try:
            work.wait()
        finally:
            assert work.is_completed() and not work.is_success() and tensor.tolist() == [1, 1, 1]
            assert work.exception() is not None and group.get_error().name in ("TIMEOUT", "COMM_ERROR")

    for error in ranks.run(late, [0, 1]):
        assert isinstance(error, CollectiveError) and "w2" in str(error), error
    errors = ranks.run(lambda group, rank: total(group, rank), [2])
    assert isinstance(errors[0], CollectiveError)
    # Another limit for one wait only.
    ranks.check(lambda group, rank: group.set_timeout(timedelta(seconds=60)))
    ranks.check(lambda group, rank: group.reconfigure(reconfiguration(2, handles)).wait())

    def impatient(group, rank):
        work = group.allreduce([torch.ones(3)])
        work.wait(timedelta(milliseconds=200))

    error = ranks.run(impatient, [1])[0]
    assert error.is_timeout and isinstance(error.error, TimedOut) and " Timed out waiting 2" in str(error)
    # All of the wait is named, not only the last piece of it.
    assert "gave it up after" in str(error) and "after 0.0 s" not in str(error), error


def test_barriers_say_in_the_words_of_gloo_who_has_not_come(group_of):
    ranks = group_of(3)
    ranks.check(lambda group, rank: group.monitored_barrier(timedelta(seconds=60)))
    ranks.check(lambda group, rank: group.set_timeout(timedelta(milliseconds=300)))
    errors = ranks.run(lambda group, rank: group.barrier().wait(), [0, 2])
    assert all("rank 1 (w1)" in str(error) for error in errors), errors
    assert any(" Timed out waiting 3" in str(error) and error.is_timeout for error in errors), errors

    def monitored(limit, wait_all_ranks=False):
        return lambda group, rank: group.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)

    first, other = ranks.run(monitored(timedelta(milliseconds=300)), [0, 2])
    assert "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 300 ms" in str(first) and isinstance(first, CollectiveError)
    assert str(other).startswith("Rank 2 successfully reached monitoredBarrier, but received errors while waiting for "
                                 "send/recv from rank 0")
    assert "rank 1 (w1)" in str(first) and "rank 1 (w1)" in str(other) and "rank 1 (w1)" in other.verdict
    [error] = ranks.run(monitored(timedelta(milliseconds=100), wait_all_ranks=True), [0])
    assert "Ranks 1, 2 failed to pass monitoredBarrier in 100 ms" in str(error) and error.is_timeout
    [error] = ranks.run(monitored(timedelta(0)), [0])
    assert "Rank 0 timed out in monitoredBarrier after 0 ms" in str(error)


def test_members_have_their_ranks_in_what_the_library_says():
    from pccl.torch._members import Members, member_name

    name = member_name(2)
    assert name.startswith("rank-2@") and name.endswith(f":{os.getpid()}") and len(name) <= 64
    members = Members("", None, 0, 3, is_formed=True)
    members._formed(SimpleNamespace(rank=0, group_size=3), [bytes([n] * 16) for n in range(3)])
    said = ("given up: 02020202 (rank-2@h:7, 10.0.0.3) and 01010101 (waiting for peer 02020202 (rank-2@h:7, 10.0.0.3), in "
            "no call; peer 01010101 (mine, ::1), in send; peer 09090909 (x, y))")
    assert members.named(said) == ("given up: rank 2 (h:7) and rank 1 (waiting for rank 2 (h:7), in no call; "
                                   "rank 1 (mine), in send; peer 09090909 (x, y))")


def test_a_member_that_is_lost_is_named_until_the_group_is_reconfigured(group_of):
    ranks = group_of(3, reconfigures=True)
    handles = ranks.handles()
    ranks.check(lambda group, rank: group.reconfigure(reconfiguration(1, handles)).wait())
    assert ranks.check(total) == [(0, 3, 6), (1, 3, 6), (2, 3, 6)]
    gone = ranks.groups[1].communicator.peer_id
    ranks.groups[1].shutdown()

    def failing(group, rank):
        tensor = torch.ones(3)
        work = group.allreduce([tensor])
        future = work.get_future()
        with pytest.raises(CollectiveError) as raised:
            work.wait()
        # Futures of torch tell only the text.
        with pytest.raises(RuntimeError, match="group broken.*w1"):
            future.wait()
        assert tensor.tolist() == [1, 1, 1]
        return [raised.value]

    for [error] in ranks.check(failing, [0, 2]):
        assert error.is_member_lost and isinstance(error.__cause__, GroupBroken) and "w1" in str(error)
        assert error.remedy is Remedy.FORM_GROUP and error.cause == "GroupBroken" and not error.retryable
        assert gone in error.culprits
    # With the dead one in the list it fails, and says who; each try takes a fresh number.
    for error in ranks.run(lambda group, rank: group.reconfigure(reconfiguration(2, handles)), [0, 2]):
        assert isinstance(error, CollectiveError) and "w1" in str(error)
    for error in ranks.run(lambda group, rank: group.reconfigure(reconfiguration(2, handles)), [0, 2]):
        assert isinstance(error, CollectiveError) and "already used" in str(error)
    rest = [handles[2], handles[0]]
    ranks.check(lambda group, rank: group.reconfigure(reconfiguration(3, rest)).wait(), [0, 2])
    assert ranks.check(total, [0, 2]) == [(1, 2, 3), (0, 2, 3)]


def test_abort_ends_what_is_in_flight_and_reconfigure_comes_back(group_of):
    ranks = group_of(2, reconfigures=True)
    handles = ranks.handles()
    ranks.check(lambda group, rank: group.reconfigure(reconfiguration(1, set(handles))).wait())

    def aborted(group, rank):
        # Nobody else calls it.
        work = group.recv([torch.zeros(3)], 1 - group.rank(), 5)
        waiter = threading.Thread(target=lambda: pytest.raises(CollectiveError, work.wait), daemon=True)
        waiter.start()
        group.abort()
        waiter.join(30)
        assert not waiter.is_alive() and not work.is_success()
        with pytest.raises(CollectiveError, match="aborted, reconfigure it"):
            group.barrier()
        assert group.get_error().name == "SUCCESS"

    ranks.check(aborted)
    ranks.check(lambda group, rank: group.reconfigure(reconfiguration(2, handles)).wait())
    assert ranks.check(total) == [(0, 2, 3), (1, 2, 3)]
    assert isinstance(ranks.run(lambda group, rank: group.reconfigure(reconfiguration(3, ["nonsense"])), [0])[0],
                      CollectiveError)


def test_a_group_that_is_not_made_for_it_is_not_reconfigured(group_of):
    ranks = group_of(2)
    assert not ranks.groups[0].supports_reconfigure
    error = ranks.run(lambda group, rank: group.reconfigure(reconfiguration(1, [])), [0])[0]
    assert isinstance(error, CollectiveError) and "enable_reconfigure" in str(error)
    ranks.check(lambda group, rank: group.shutdown())
    assert all("shut down" in str(error) for error in ranks.run(total))


def test_who_leaves_waits_for_what_others_still_do_with_each_other(group_of):
    """The first left while the other two were in a transfer, which failed with the group."""
    ranks = group_of(3)

    def call(group, rank):
        if rank:
            tensor = torch.full((1 << 18,), float(rank))
            for _ in range(20):
                (group.send([tensor], 2, 0) if rank == 1 else group.recv([tensor], 1, 0)).wait()
            assert tensor[0] == 1
        group.shutdown()

    ranks.check(call)


def test_the_master_beside_rank_0_waits_for_who_has_not_come_yet():
    """Rank 0 was done before rank 1 had connected, and took the master along."""
    store = dist.HashStore()
    first = member(store, "late", 0, 2, reconfigures=True)
    first.reconfigure(reconfiguration(1, [first.get_reconfigure_handle()])).wait()
    leaving = threading.Thread(target=first.shutdown, daemon=True)
    leaving.start()
    second = member(store, "late", 1, 2, reconfigures=True)
    second.reconfigure(reconfiguration(2, [second.get_reconfigure_handle()])).wait()
    assert leaving.is_alive()
    second.shutdown()
    leaving.join(30)
    assert not leaving.is_alive()


def test_a_group_that_is_only_dropped_leaves_at_once(master):
    """As one of Gloo closes its sockets: the others need not wait for their limit, nor for Python's look for circles."""
    store, groups, errors = dist.HashStore(), {}, []

    def use(rank):
        groups[rank] = member(store, "dropped", rank, 3, master, limit=timedelta(minutes=5))
        total(groups[rank], rank)
        dist.ProcessGroup.barrier(groups[rank]).wait()

    def in_all(call):
        threads = [threading.Thread(target=call, args=(rank,)) for rank in sorted(groups) or range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(120)
            assert not each.is_alive()

    def fail(rank):
        with pytest.raises(CollectiveError, match="Connection closed by peer") as raised:
            total(groups[rank], rank)
        errors.append(raised.value)

    gc.disable()
    try:
        in_all(use)
        gone = weakref.ref(groups.pop(2))
        assert gone() is None
        in_all(fail)
    finally:
        gc.enable()
    assert all(error.is_member_lost and "w2" in str(error) for error in errors) and len(errors) == 2
    for group in groups.values():
        group.abort()
        group.shutdown()


def resources():
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_three_two_one_two_three_fifty_times(group_of):
    """Memory, threads and descriptors stay as they are."""
    ranks = group_of(3, reconfigures=True)
    handles, uuid, seen = ranks.handles(), 0, []
    for turn in range(50):
        for size in (3, 2, 1, 2, 3):
            uuid += 1
            ranks.check(lambda group, rank: group.reconfigure(reconfiguration(uuid, handles[:size])).wait(), range(size))
            assert ranks.check(total, range(size)) == [(rank, size, size * (size + 1) // 2) for rank in range(size)]
        if turn in (9, 49):
            seen.append(resources())
    (fds, threads, memory), (fds_later, threads_later, memory_later) = seen
    assert abs(fds_later - fds) <= 4 and abs(threads_later - threads) <= 4, seen
    assert memory_later - memory < 16 << 20, seen
