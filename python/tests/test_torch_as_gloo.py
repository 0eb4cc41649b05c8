"""What programs that run over Gloo count on, as torch's own tests of Gloo find it. The members are threads."""

import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch_programs import finish, line  # noqa: E402
from torch_programs import ranks as programs  # noqa: E402, F401
from torch_ranks import ranks_of_a_master  # noqa: E402

from pccl.torch import CollectiveError  # noqa: E402

SIZE = 3


@pytest.fixture(scope="module")
def ranks():
    with ranks_of_a_master(SIZE) as made:
        yield made


def test_a_barrier_waits_for_collectives_that_nobody_waits_for(ranks):
    """But not for a transfer, which the other end may answer after the barrier."""
    def call(group, rank):
        got = torch.zeros(1)
        transfer = group.recv([got], 1, 5) if rank == 0 else None
        for barrier in (lambda: group.barrier().wait(), lambda: group.barrier().get_future().wait()):
            tensors = [torch.full((100, 100), float(n)) for n in range(16)]
            for tensor in tensors:
                group.allreduce([tensor])
            # Its result is put into place only when the operation has ended: it is no contiguous memory.
            rows = torch.full((2, 2), float(rank)).t()[:, 0]
            group.allreduce([rows])
            barrier()
            assert [tensor[0, 0].item() for tensor in tensors] == [3.0 * n for n in range(16)]
            assert rows.tolist() == [3, 3]
        if rank == 1:
            group.send([torch.ones(1)], 0, 5).wait()
        if transfer is not None:
            transfer.wait()
            assert got.item() == 1
        return True

    assert ranks.check(call) == [True] * SIZE


def test_tensors_that_lie_in_each_other_are_reduced_one_by_one(ranks):
    def call(group, rank):
        tensor, rows = torch.full((2,), 1.0 + rank), torch.arange(4.0)
        future = group.allreduce_coalesced([tensor, tensor, rows, rows[1:3]]).get_future()
        assert [each.tolist() for each in future.wait()][:2] == [[6, 6], [6, 6]]
        assert rows.tolist() == [0, 3, 6, 9]
        return True

    assert ranks.check(call) == [True] * SIZE


def test_a_future_of_several_gathered_tensors_has_a_list_for_each(ranks):
    def call(group, rank):
        given = [torch.tensor([10 * rank + n]) for n in range(2)]
        into = [[torch.zeros(1, dtype=torch.int64) for _ in range(2 * SIZE)] for _ in given]
        got = group.allgather(into, given).get_future().wait()
        assert [[each.item() for each in one] for one in got] == [[0, 1, 10, 11, 20, 21]] * 2
        into = [[torch.zeros(1, dtype=torch.int64) for _ in range(SIZE)]]
        assert [each.item() for each in group.allgather(into, given[:1]).get_future().wait()] == [0, 10, 20]
        return True

    assert ranks.check(call) == [True] * SIZE


def test_several_sparse_tensors_are_all_the_sum_of_all(ranks):
    def call(group, rank):
        several = [torch.sparse_coo_tensor([[n, rank]], [1.0, 2.0], (4,), check_invariants=True) for n in (3, 0)]
        group.allreduce(several).wait()
        return [each.to_dense().tolist() for each in several]

    assert ranks.check(call) == [[[7, 4, 4, 3]] * 2] * SIZE


def options(kind, root=0, tensor=0):
    made = kind()
    made.rootRank = root
    if hasattr(made, "rootTensor"):
        made.rootTensor = tensor
    return made


def test_arguments_are_refused_in_the_words_of_gloo(ranks):
    """Before anybody waits, on all members."""
    one, other, longer = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (1,))

    def at(group, *shift):
        return (group.rank() + sum(shift)) % SIZE

    calls = {
        "invalid root rank: -1": lambda group: group.broadcast([one], options(dist.BroadcastOptions, -1)),
        "invalid root rank: 3": lambda group: group.reduce([one], options(dist.ReduceOptions, SIZE)),
        "gather: invalid root rank": lambda group: group.gather([], [one], options(dist.GatherOptions, -1)),
        "scatter: invalid root rank": lambda group: group.scatter([one], [], options(dist.ScatterOptions, SIZE)),
        "broadcast: invalid root tensor: 1": lambda group: group.broadcast([one], options(dist.BroadcastOptions, 0, 1)),
        "reduce: invalid root tensor: 1": lambda group: group.reduce([one], options(dist.ReduceOptions, 0, 1)),
        "requires a single-element tensor list": lambda group: group.reduce([one, one], options(dist.ReduceOptions)),
        "requires non-empty tensor list": lambda group: group.allreduce([]),
        "invalid tensor type at index 1": lambda group: group.allreduce([one, other]),
        "invalid tensor size at index 1": lambda group: group.broadcast([one, longer]),
        "invalid tensor layout at index 1": lambda group: group.allreduce([one, sparse]),
        "unsupported reduction operation": lambda group: group.allreduce([sparse], dist.ReduceOp.MAX),
        "requires non-empty input tensor list": lambda group: group.allgather([], []),
        "lists to have the same length": lambda group: group.allgather([[one] * SIZE] * 2, [one]),
        "invalid output tensor list": lambda group: group.allgather([[one] * 2], [one]),
        "allgather: invalid tensor type": lambda group: group.allgather([[one, other, one]], [one]),
        "single-element input tensor list": lambda group: group.gather([], [one, one], options(dist.GatherOptions)),
        "single-element output list": lambda group: group.gather([], [one], options(dist.GatherOptions, at(group))),
        "Incorrect output list size 2. Output list size should be 3":
            lambda group: group.gather([[one] * 2], [one], options(dist.GatherOptions, at(group))),
        "gather: invalid tensor type":
            lambda group: group.gather([[other] * SIZE], [one], options(dist.GatherOptions, at(group))),
        "gather: invalid tensor size":
            lambda group: group.gather([[longer] * SIZE], [one], options(dist.GatherOptions, at(group))),
        "requires empty output on non-root":
            lambda group: group.gather([[one] * SIZE], [one], options(dist.GatherOptions, at(group, 1))),
        "single-element output tensor list": lambda group: group.scatter([], [], options(dist.ScatterOptions)),
        "single-element input list": lambda group: group.scatter([one], [], options(dist.ScatterOptions, at(group))),
        "Incorrect input list size 4. Input list size should be 3":
            lambda group: group.scatter([one], [[one] * 4], options(dist.ScatterOptions, at(group))),
        "scatter: invalid tensor type":
            lambda group: group.scatter([one], [[other] * SIZE], options(dist.ScatterOptions, at(group))),
        "scatter: invalid tensor size":
            lambda group: group.scatter([one], [[longer] * SIZE], options(dist.ScatterOptions, at(group))),
        "requires empty input on non-root":
            lambda group: group.scatter([one], [[one] * SIZE], options(dist.ScatterOptions, at(group, 1))),
    }
    for words, call in calls.items():
        for error in ranks.run(lambda group, rank: call(group)):
            assert isinstance(error, CollectiveError) and words in str(error), (words, error)


def test_a_group_shows_its_limit(ranks):
    group, before = ranks.groups[0], ranks.groups[0].options._timeout
    group._set_default_timeout(timedelta(seconds=23))
    shown = [group.options._timeout, group._get_backend(torch.device("cpu")).options._timeout]
    group._set_default_timeout(before)
    assert shown == [timedelta(seconds=23)] * 2


def test_what_a_future_calls_may_wait_for_another(ranks):
    """As the hook PowerSGD of torch does. Nobody else ends the works here."""
    def call(group, rank):
        over, got = threading.Event(), []

        def again(future):
            total = future.value()[0]
            for _ in range(2):
                total = group.allreduce([total]).get_future().wait()[0]
            return group.allreduce([total]).get_future().then(lambda last: got.append(last.value()[0].tolist())).wait()

        group.allreduce([torch.ones(2)]).get_future().then(again).add_done_callback(lambda _: over.set())
        assert over.wait(60), "the thread of the group waits for itself"
        return got

    assert ranks.check(call) == [[[SIZE ** 4] * 2]] * SIZE


def test_a_program_that_just_ends_cuts_nobody_off(programs, tmp_path):
    """Rank 2 ends first, and then the one with the master, which does not wait for a group that nobody ends."""
    peers = programs(SIZE, f"file://{tmp_path}/store", """
        import atexit, time
        atexit.register(lambda: say(f"ended {time.monotonic() - began:.1f}"))
        init()
        dist.all_reduce(torch.ones(1))
        until, tensor, other = time.monotonic() + 1, torch.ones(1), 1 - rank
        # Rank 0 says for how long.
        while rank < 2 and tensor.item() > 0:
            tensor.fill_(time.monotonic() < until)
            (dist.send if rank == 0 else dist.recv)(tensor, other)
        began = time.monotonic()
        """)
    for peer in peers:
        # The master waits for ten seconds for members that do not leave.
        assert float(line(peer, "ended ").split()[1]) < 9
    finish(peers)
