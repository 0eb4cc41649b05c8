"""Every call of c10d gives what it gives over Gloo, to the bit. No two dimensions of a call have the same size, so that
nothing fits at a wrong place. The members are threads, of both groups the same."""

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no Gloo", allow_module_level=True)

from torch_ranks import ranks_of_a_master  # noqa: E402

SIZE = 3


@pytest.fixture(scope="module")
def ranks():
    with ranks_of_a_master(SIZE) as made:
        yield made


@pytest.fixture(scope="module")
def gloo(ranks):
    """By rank."""
    store = dist.HashStore()

    def made(rank):
        group = dist.ProcessGroup(store, rank, SIZE)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO,
                                dist.ProcessGroupGloo(store, rank, SIZE, timedelta(seconds=60)))
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        return group

    return list(ranks._pool.map(made, range(SIZE)))


def numbered(rank, *shape, dtype=torch.float32):
    """A tensor whose elements are all different, and different from those of other ranks."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) + 1000 * rank).reshape(shape).to(dtype)


def options(kind, **fields):
    made = getattr(dist, kind)()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def gathered(rank, group):
    into = [torch.zeros(5, 2) for _ in range(SIZE)]
    group.allgather([into], [numbered(rank, 5, 2)]).wait()
    return into


def gathered_coalesced(rank, group):
    """Two tensors from three ranks: the list is one of ranks."""
    into = [[torch.zeros(5, 2), torch.zeros(7)] for _ in range(SIZE)]
    group.allgather_coalesced(into, [numbered(rank, 5, 2), numbered(rank, 7)]).wait()
    return [tensor for one in into for tensor in one]


def gathered_coalesced_as_many_as_ranks(rank, group):
    into = [[torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, 2)] for _ in range(SIZE)]
    group.allgather_coalesced(into, [numbered(rank, 4, 2) + 100 * n for n in range(3)]).wait()
    return [tensor for one in into for tensor in one]


def gathered_as_one(rank, group):
    flat = torch.zeros(5 * SIZE, 2)
    group._allgather_base(flat, numbered(rank, 5, 2)).wait()
    return [flat]


def gathered_as_one_coalesced(rank, group):
    flats = [torch.zeros(5 * SIZE, 2), torch.zeros(7 * SIZE)]
    group.allgather_into_tensor_coalesced(flats, [numbered(rank, 5, 2), numbered(rank, 7)]).wait()
    return flats


def gathered_at_one(rank, group):
    into = [torch.zeros(5, 2) for _ in range(SIZE)]
    group.gather([into] if rank == 2 else [], [numbered(rank, 5, 2)], options("GatherOptions", rootRank=2)).wait()
    return into


def scattered(rank, group):
    into = torch.zeros(5, 2)
    given = [[numbered(n, 5, 2) for n in range(SIZE)]] if rank == 1 else []
    group.scatter([into], given, options("ScatterOptions", rootRank=1)).wait()
    return [into]


def reduce_scattered(rank, group):
    into = torch.zeros(5, 2)
    group.reduce_scatter([into], [[numbered(rank, 5, 2) + n for n in range(SIZE)]]).wait()
    return [into]


def reduce_scattered_of_other_sizes(rank, group):
    into = torch.zeros(rank + 2, dtype=torch.float64)
    group.reduce_scatter([into], [[numbered(rank, n + 2, dtype=torch.float64) for n in range(SIZE)]]).wait()
    return [into]


def reduce_scattered_as_one(rank, group):
    into = torch.zeros(5, 2)
    group._reduce_scatter_base(into, numbered(rank, 5 * SIZE, 2)).wait()
    return [into]


def reduce_scattered_as_one_coalesced(rank, group):
    into = [torch.zeros(5, 2), torch.zeros(7)]
    group.reduce_scatter_tensor_coalesced(into, [numbered(rank, 5 * SIZE, 2), numbered(rank, 7 * SIZE)]).wait()
    return into


def reduced(rank, group):
    tensors = [numbered(rank, 5, 2), numbered(rank, 7), numbered(rank, 4, 3)]
    group.allreduce([tensors[0]], options("AllreduceOptions", reduceOp=dist.ReduceOp.MAX)).wait()
    group.allreduce_coalesced(tensors[1:], options("AllreduceCoalescedOptions", reduceOp=dist.ReduceOp.SUM)).wait()
    at_one = numbered(rank, 5, 2)
    group.reduce([at_one], options("ReduceOptions", rootRank=2)).wait()
    return [*tensors, at_one] if rank == 2 else tensors


def broadcast(rank, group):
    tensor = numbered(rank, 5, 2)
    group.broadcast([tensor], options("BroadcastOptions", rootRank=2)).wait()
    return [tensor]


def exchanged(rank, group):
    alike, uneven = torch.zeros(2 * SIZE, 5), torch.zeros(9, 5)
    group.alltoall_base(alike, numbered(rank, 2 * SIZE, 5), [], []).wait()
    # Rank s gives r + s + 1 rows to rank r.
    given, taken = ([rank + other + 1 for other in range(SIZE)] for _ in range(2))
    uneven = torch.zeros(sum(taken), 5)
    group.alltoall_base(uneven, numbered(rank, sum(given), 5), taken, given).wait()
    return [alike, uneven]


def sent(rank, group):
    into = torch.zeros(5, 2)
    left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
    works = [group.send([numbered(rank, 5, 2)], right, 4), group.recv([into], left, 4)]
    for work in works:
        work.wait()
    return [into]


def several_at_once(rank, group):
    """As of processes with two devices."""
    summed = [numbered(rank, 5, 2), 100 + numbered(rank, 5, 2)]
    group.allreduce(summed).wait()
    highest = [numbered(rank, 7), -numbered(rank, 7)]
    group.allreduce(highest, options("AllreduceOptions", reduceOp=dist.ReduceOp.MAX)).wait()
    sent = [numbered(rank, 5, 2), 100 + numbered(rank, 5, 2)]
    group.broadcast(sent, options("BroadcastOptions", rootRank=2, rootTensor=1)).wait()
    into = [[torch.zeros(5) for _ in range(2 * SIZE)] for _ in range(2)]
    group.allgather(into, [numbered(rank, 5), 100 + numbered(rank, 5)]).wait()
    return [*summed, *highest, *sent, *into[0], *into[1]]


def sparse(rank, group):
    """As many elements as the rank says, some of them at the same place, and some without any."""
    indices = torch.tensor([[n % 4, n + 1] for n in range(rank)], dtype=torch.int64).reshape(rank, 2).t()
    tensor = torch.sparse_coo_tensor(indices, numbered(rank, rank, 3), (5, 4, 3), check_invariants=True)
    nothing = torch.sparse_coo_tensor((7, 2))
    group.allreduce([tensor]).wait()
    group.allreduce([nothing]).wait()
    return [tensor.to_dense(), nothing.to_dense()]


def sent_to_whoever_takes(rank, group):
    into, source = torch.zeros(5, 2), -1
    if rank == 1:
        work = group.recv_anysource([into], 3)
        work.wait()
        source = work._source_rank()
    elif rank == 2:
        group.send([numbered(rank, 5, 2)], 1, 3).wait()
    return [into, torch.tensor(source)]


CALLS = [gathered, gathered_coalesced, gathered_coalesced_as_many_as_ranks, gathered_as_one, gathered_as_one_coalesced,
         gathered_at_one, scattered, reduce_scattered, reduce_scattered_of_other_sizes, reduce_scattered_as_one,
         reduce_scattered_as_one_coalesced, reduced, broadcast, exchanged, sent, several_at_once, sparse,
         sent_to_whoever_takes]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_gives_what_it_gives_over_gloo(ranks, gloo, call):
    wanted = ranks.check(lambda _, rank: call(rank, gloo[rank]))
    for rank, (ours, theirs) in enumerate(zip(ranks.check(lambda group, rank: call(rank, group)), wanted)):
        assert [tensor.tolist() for tensor in ours] == [tensor.tolist() for tensor in theirs], rank
