"""What programs that run over Gloo count on, as torch's own tests of Gloo find it. The members are threads."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch_programs import finish, line  # noqa: E402
from torch_programs import ranks as programs  # noqa: E402, F401
from torch_ranks import ranks_of_a_master  # noqa: E402

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
