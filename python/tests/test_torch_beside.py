"""Groups over the same members as the default group: they share its connections, and nothing else."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not hasattr(pytest.importorskip("torch.distributed"), "_reconfigure"):
    pytest.skip("this torch has no reconfigure", allow_module_level=True)

from torch_programs import finish, ranks  # noqa: E402, F401

PROGRAM = """
    import gc, os
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))
    init()
    dist.barrier()
    everybody, right, left = list(range(size)), (rank + 1) % size, (rank - 1) % size
    def total(group):
        tensor = torch.full((1000,), rank + 1.0)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [sum(range(size + 1))] * 1000, tensor
"""


@pytest.fixture(autouse=True)
def without_recorder(monkeypatch):
    """That of torch takes 30 ms for each group of a backend from elsewhere."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")


@pytest.fixture
def where(tmp_path):
    return f"file://{tmp_path}/store"


def test_their_operations_do_not_meet(ranks, where):  # noqa: F811
    """Each rank calls the groups in another order, also while one has more in flight than there is room for."""
    finish(ranks(3, where, PROGRAM + """
    before = descriptors()
    a, b = dist.new_group(everybody), dist.new_group(everybody)
    assert descriptors() == before, (before, descriptors())
    assert dist.get_group_rank(a, rank) == rank and a.communicator is dist.group.WORLD.communicator
    tensors = [torch.full((3,), float(rank + place)) for place in range(3)]
    works = [None] * 3
    for place in ((0, 1, 2), (2, 0, 1), (1, 2, 0))[rank]:
        works[place] = dist.all_reduce(tensors[place], group=(dist.group.WORLD, a, b)[place], async_op=True)
    for work in works:
        work.wait()
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 3, [6.0] * 3, [9.0] * 3]
    # Transfers with one tag of torch, in each group.
    first, second = ((a, b), (b, a))[rank % 2]
    got = {group: torch.zeros(2) for group in (a, b)}
    works = [dist.isend(torch.full((2,), 10.0 * rank + (group is a)), right, group, 7) for group in (first, second)]
    works += [dist.irecv(got[group], left, group, 7) for group in (second, first)]
    for work in works:
        work.wait()
    assert got[a].tolist() == [10.0 * left + 1] * 2 and got[b].tolist() == [10.0 * left] * 2, got
    # Rank 0 has called 600 operations of one group before it comes to the other, the others the other way about.
    many = [torch.ones(2) for _ in range(600)]
    works = []
    if rank == 0:
        works = [dist.all_reduce(tensor, group=a, async_op=True) for tensor in many]
    total(b)
    dist.send(torch.ones(1), right, b) if rank == 0 else dist.recv(torch.zeros(1), left, b)
    dist.recv(torch.zeros(1), left, b) if rank == 0 else dist.send(torch.ones(1), right, b)
    works = works or [dist.all_reduce(tensor, group=a, async_op=True) for tensor in many]
    for work in works:
        work.wait()
    assert all(tensor.tolist() == [size] * 2 for tensor in many)
    dist.destroy_process_group()
    """))


def test_one_that_is_over_leaves_the_others_alone(ranks, where):  # noqa: F811
    finish(ranks(2, where, PROGRAM + """
    a, b = dist.new_group(everybody), dist.new_group(everybody)
    if rank == 0:
        # Only here, and while the other member goes on.
        dist.destroy_process_group(a)
    for group in (b, dist.group.WORLD):
        total(group)
    if rank == 1:
        a.set_timeout(datetime.timedelta(milliseconds=300))
        try:
            dist.all_reduce(torch.ones(2), group=a)
            raise SystemExit("rank 0 has left this group")
        except RuntimeError as error:
            assert "Timed out" in str(error) and "rank 0" in str(error), error
    total(b)
    # One of the same name later is another one.
    c = dist.new_group(everybody)
    total(c)
    dist.destroy_process_group()
    """))


def test_hundreds_leave_nothing_behind(ranks, where):  # noqa: F811
    finish(ranks(2, where, PROGRAM + """
    before = descriptors()
    for number in range(100):
        group = dist.new_group(everybody)
        total(group)
        dist.destroy_process_group(group)
        del group
        assert descriptors() <= before, (number, before, descriptors())
    # Beyond a number of them that are there at once they have connections of their own.
    kept = [dist.new_group(everybody) for _ in range(70)]
    assert len({id(group.communicator) for group in kept}) > 1
    for group in kept:
        total(group)
    dist.destroy_process_group()
    """))


def test_one_with_settings_of_its_own_has_its_own_connections(ranks, where):  # noqa: F811
    finish(ranks(2, where, PROGRAM + """
    own = dist.new_group(everybody, pg_options=pccl.torch.Options(communicator={"p2p_connection_pool_size": 2}))
    assert own.communicator is not dist.group.WORLD.communicator
    total(own)
    dist.destroy_process_group()
    """))
