"""The collectives of the backend for torch.distributed, against what they mean. The members are threads."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch_ranks import ranks_of_a_master  # noqa: E402

from pccl.torch import CollectiveError, Unsupported  # noqa: E402

SIZE = 3
OPS = dist.ReduceOp


@pytest.fixture(scope="module")
def ranks():
    with ranks_of_a_master(SIZE) as made:
        yield made


def all_reduced(ranks, tensors, op):
    """What an all-reduce of ``tensors``, by rank, makes of copies of them."""
    def reduce(group, rank):
        opts = dist.AllreduceOptions()
        opts.reduceOp = op
        tensor = tensors[rank].clone()
        group.allreduce([tensor], opts).wait()
        return tensor

    return ranks.check(reduce)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
                                   torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64],
                         ids=str)
def test_reduces_of_every_type(ranks, dtype):
    given = [torch.tensor([rank + 1, 2, 3 - rank]).to(dtype) for rank in range(SIZE)]
    wanted = {OPS.SUM: [6, 6, 6], OPS.PRODUCT: [6, 8, 6], OPS.MAX: [3, 2, 3], OPS.MIN: [1, 2, 1], OPS.AVG: [2, 2, 2]}
    for op, numbers in wanted.items():
        for got in all_reduced(ranks, given, op):
            assert got.dtype == dtype and got.to(torch.int64).tolist() == numbers, op


def test_reduces_of_bool_and_complex(ranks):
    given = [torch.tensor([rank == 0, False, True]) for rank in range(SIZE)]
    for op in (OPS.MAX, OPS.BOR, OPS.SUM):
        assert all(got.tolist() == [True, False, True] for got in all_reduced(ranks, given, op))
    for op in (OPS.MIN, OPS.BAND, OPS.PRODUCT):
        assert all(got.tolist() == [False, False, True] for got in all_reduced(ranks, given, op))
    given = [torch.tensor([complex(rank, 1), 2j]) for rank in range(SIZE)]
    assert all(got.tolist() == [3 + 3j, 6j] for got in all_reduced(ranks, given, OPS.SUM))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64], ids=str)
def test_reduces_of_bits(ranks, dtype):
    given = [torch.tensor([0b1100 + rank, 7, 0]).to(dtype) for rank in range(SIZE)]
    for op, wanted in ((OPS.BAND, [12, 7, 0]), (OPS.BOR, [15, 7, 0]), (OPS.BXOR, [12 ^ 13 ^ 14, 7, 0])):
        for got in all_reduced(ranks, given, op):
            assert got.dtype == dtype and got.to(torch.int64).tolist() == wanted, op

    def at_one(group, rank):
        opts = dist.ReduceOptions()
        opts.reduceOp, opts.rootRank = OPS.BOR, 1
        tensor = given[rank].clone()
        group.reduce([tensor], opts).wait()
        return tensor.to(torch.int64).tolist()

    assert ranks.check(at_one) == [[12, 7, 0], [15, 7, 0], [14, 7, 0]]


def test_what_cannot_be_reduced_is_refused_before_anybody_waits(ranks):
    for tensor, op in ((torch.ones(3), OPS.BAND), (torch.tensor([1j]), OPS.MAX), (torch.ones(2, dtype=torch.bool), OPS.AVG),
                       (torch.ones(2).to(torch.float8_e4m3fn), OPS.SUM), (torch.ones(2, 2).to_sparse(), OPS.MAX),
                       (torch.ones(2, device="meta"), OPS.SUM)):
        for error in ranks.run(lambda group, rank: group.allreduce([tensor], op).wait()):
            assert isinstance(error, Unsupported) and "the backend pccl" in str(error)


@pytest.mark.parametrize("layout", [lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[0, 0]],
                         ids=["contiguous", "transposed", "strided", "scalar"])
def test_layouts(ranks, layout):
    def call(group, rank):
        whole = torch.full((4, 6), rank + 1.0)
        group.allreduce([layout(whole)]).wait()
        got = torch.full((4, 6), float(rank))
        group.broadcast([layout(got)], dist.BroadcastOptions(), root=0).wait()
        return whole, got

    for rank, (whole, got) in enumerate(ranks.check(call)):
        wanted, other = torch.full((4, 6), rank + 1.0), torch.full((4, 6), float(rank))
        layout(wanted).fill_(6)
        layout(other).fill_(0)
        assert torch.equal(whole, wanted) and torch.equal(got, other)


def test_gathers_and_scatters(ranks):
    def call(group, rank):
        into, flat = [torch.zeros(2, 2) for _ in range(SIZE)], torch.zeros(2 * SIZE, 2)
        group.allgather([into], [torch.full((2, 2), float(rank))]).wait()
        group.all_gather_single(flat, torch.full((2, 2), float(rank))).wait()
        assert torch.equal(torch.cat(into), flat) and flat[::2, 0].tolist() == [0, 1, 2]
        # The own part may lie in the output.
        flat = torch.zeros(SIZE)
        flat[rank] = rank + 1
        group.all_gather_single(flat, flat[rank:rank + 1]).wait()
        assert flat.tolist() == [1, 2, 3]
        ragged = [torch.zeros(n + 1, dtype=torch.float8_e5m2) for n in range(SIZE)]
        group.allgather([ragged], [torch.full((rank + 1,), float(rank)).to(torch.float8_e5m2)]).wait()
        assert [part.float().tolist() for part in ragged] == [[0], [1, 1], [2, 2, 2]]
        part, other = torch.zeros(2), torch.zeros(2)
        group.reduce_scatter([part], [[torch.full((2,), float(n + rank)) for n in range(SIZE)]]).wait()
        group.reduce_scatter_single(other, torch.arange(2.0 * SIZE)).wait()
        assert part.tolist() == [3 * rank + 3] * 2 and other.tolist() == [6 * rank, 6 * rank + 3]
        root, scattered = dist.GatherOptions(), torch.zeros(2)
        root.rootRank = 1
        lists = [into] if rank == 1 else []
        group.gather(lists, [torch.full((2, 2), 10.0 + rank)], root).wait()
        assert rank != 1 or [int(t[0, 0]) for t in into] == [10, 11, 12]
        root = dist.ScatterOptions()
        root.rootRank = 2
        group.scatter([scattered], [[torch.full((2,), 5.0 + n) for n in range(SIZE)]] if rank == 2 else [], root).wait()
        assert scattered.tolist() == [5 + rank] * 2
        reduced = torch.ones(3) * rank
        root = dist.ReduceOptions()
        root.rootRank = 2
        group.reduce([reduced], root).wait()
        assert reduced.tolist() == ([3] * 3 if rank == 2 else [rank] * 3)
        return True

    assert ranks.check(call) == [True] * SIZE


def test_each_gives_each(ranks):
    def call(group, rank):
        flat = torch.zeros(SIZE, 2)
        group.all_to_all_single(flat, torch.arange(2.0 * SIZE).view(SIZE, 2) + 10 * rank, [], []).wait()
        assert flat[:, 0].tolist() == [2 * rank, 10 + 2 * rank, 20 + 2 * rank]
        # Rank r gives r + 1 rows to each.
        rows = torch.zeros(6)
        group.all_to_all_single(rows, torch.full(((rank + 1) * SIZE,), float(rank)), [1, 2, 3], [rank + 1] * SIZE).wait()
        assert rows.tolist() == [0, 1, 1, 2, 2, 2]
        into = [torch.zeros(2) for _ in range(SIZE)]
        group.alltoall(into, [torch.full((2,), 10.0 * rank + n) for n in range(SIZE)]).wait()
        assert [int(t[0]) for t in into] == [rank, 10 + rank, 20 + rank]
        return True

    assert ranks.check(call) == [True] * SIZE
    def expects_more(group, rank):
        taken = [2, 1, 1] if rank == 1 else [1, 1, 1]
        group.all_to_all_single(torch.zeros(sum(taken)), torch.zeros(3), taken, [1, 1, 1]).wait()

    for error in ranks.run(expects_more):
        assert isinstance(error, CollectiveError) and "rank 0 gives rank 1 4 bytes" in str(error), error
    for error in ranks.run(lambda group, rank: group.all_to_all_single(torch.zeros(4), torch.zeros(4), [], [])):
        assert isinstance(error, Unsupported) and "4 rows" in str(error)
    for error in ranks.run(lambda group, rank: group.allgather([[torch.zeros(1)]], [torch.zeros(1)])):
        assert isinstance(error, CollectiveError) and "1 tensors for 3 members" in str(error)


def test_transfers_with_one_tag_arrive_in_their_order(ranks):
    def call(group, rank):
        if rank == 0:
            works = [group.send([torch.full((2,), float(n))], 1, 7) for n in range(20)]
        elif rank == 1:
            into = [torch.zeros(2) for _ in range(20)]
            works = [group.recv([tensor], 0, 7) for tensor in into]
        else:
            return True
        for work in works:
            work.wait()
        return rank == 0 or [int(tensor[0]) for tensor in into] == list(range(20))

    assert ranks.check(call) == [True] * SIZE


def test_whoever_sends_first_is_taken(ranks):
    """And those with one tag in their order; a sender that the next call names is not lost to the one before it."""
    def call(group, rank):
        if rank != 1:
            works = [group.send([torch.full((2,), 10.0 * rank + n)], 1, 7) for n in range(3)]
            group.send([torch.full((2,), 50.0)], 1, 8).wait()
        else:
            into = [torch.zeros(2) for _ in range(4)]
            # Two at once, of which nobody waits for the first; nobody sends with the third's tag before the end.
            last = group.recv_anysource([into[0]], 9)
            works = [group.recv_anysource([tensor], 7) for tensor in into[1:3]]
            for work in reversed(works):
                work.wait()
            got = [(work._source_rank(), int(tensor[0])) for work, tensor in zip(works, into[1:])]
            for _ in range(4):
                work = group.recv_anysource([into[3]], 7)
                work.wait()
                got.append((work._source_rank(), int(into[3][0])))
            for source in (0, 2):
                assert [number for rank, number in got if rank == source] == [10 * source + n for n in range(3)], got
            works = [group.recv([into[3]], 2, 8), group.recv_anysource([into[2]], 8)]
            for work in works:
                work.wait()
            assert works[1]._source_rank() == 0 and not last.is_completed()
            works = [last]
        group.barrier().wait()
        if rank == 0:
            group.send([torch.ones(2)], 1, 9).wait()
        for work in works:
            work.wait()
        return rank != 1 or (into[0].tolist(), last._source_rank()) == ([1, 1], 0)

    assert ranks.check(call) == [True] * SIZE


def test_a_future_that_waits_holds_up_no_other(ranks):
    """The transfer is answered only after the all-reduce whose future comes behind that of the transfer."""
    def call(group, rank):
        got = torch.zeros(2)
        if rank == 0:
            first = group.recv([got], 1, 3).get_future()
        second = group.allreduce([torch.ones(2)]).get_future()
        assert second.wait()[0].tolist() == [SIZE] * 2
        if rank == 1:
            group.send([torch.ones(2)], 0, 3).wait()
        if rank == 0:
            first.wait()
            assert got.tolist() == [1, 1]
        return True

    assert ranks.check(call) == [True] * SIZE


def test_several_in_flight_together_and_as_one(ranks):
    def call(group, rank):
        many = [torch.full((1000,), float(n)) for n in range(16)]
        works = [group.allreduce([tensor]) for tensor in many]
        futures = [work.get_future() for work in works[::2]]
        for future, tensor in zip(futures, many[::2]):
            assert future.wait()[0] is tensor
        for work in reversed(works):
            work.wait()
        assert [int(tensor[0]) for tensor in many] == [3 * n for n in range(16)]
        together = [torch.ones(3), torch.ones(2, dtype=torch.int32)]
        group.allreduce_coalesced(together).wait()
        assert together[0].tolist() == [3] * 3 and together[1].tolist() == [3] * 2
        outs = [torch.zeros(SIZE), torch.zeros(2 * SIZE)]
        work = group.all_gather_single_coalesced(outs, [torch.full((1,), 1.0 * rank), torch.full((2,), 1.0 * rank)])
        future = work.get_future()
        assert work.wait() and work.is_success() and future.done() and work.result() == outs
        assert outs[0].tolist() == [0, 1, 2] and outs[1].tolist() == [0, 0, 1, 1, 2, 2]
        group.start_coalescing(None)
        a, b = torch.ones(1), torch.ones(1) * rank
        group.allreduce([a])
        group.allreduce([b])
        group.end_coalescing(None).wait()
        group.barrier().wait()
        group.monitored_barrier()
        return (a.item(), b.item())

    assert ranks.check(call) == [(3, 3)] * SIZE
