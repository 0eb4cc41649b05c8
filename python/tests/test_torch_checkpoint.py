"""Distributed checkpoints of torch whose writing is cut short by a kill: it ends with an error at once, and the last
complete checkpoint stays loadable. The survivors write the next one without the victim. Where the members are fixed the
error names it."""

import pytest
from torch_programs import finish, line, ranks  # noqa: F401

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
pytest.importorskip("torch.distributed.checkpoint", reason="this torch has no checkpoints")

#: Each member has a part of its own, and all have the same part besides.
SAVES = """
    import os, threading
    import torch.distributed.checkpoint as checkpoint
    class Writer(checkpoint.FileSystemWriter):
        # The victim has written its part, and has told nobody so, when it is killed.
        def __init__(self, where, is_last):
            super().__init__(where)
            self.is_last = is_last
        def write_data(self, plan, planner):
            written = super().write_data(plan, planner)
            if self.is_last:
                written.wait()
                say("written")
                threading.Event().wait()
            return written
    def place(number):
        return os.path.join(FOLDER, str(number))
    def parts(number, members):
        return {**{f"part {one}": torch.full((64,), number + one / 4) for one in members},
                "shared": torch.full((8,), float(number))}
    def save(number, is_last=False):
        state, writer = parts(number, [dist.get_rank()]), Writer(place(number), is_last)
        if CALL == "async_save":
            checkpoint.async_save(state, storage_writer=writer).result()
        else:
            checkpoint.save(state, storage_writer=writer)
    def check(number, members):
        # Also the part of a member that is gone.
        wanted = parts(number, range(members))
        fresh = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        checkpoint.load(fresh, checkpoint_id=place(number))
        for name, tensor in wanted.items():
            assert torch.equal(fresh[name], tensor), (name, fresh[name])
    def is_complete(number):
        return os.path.exists(os.path.join(place(number), ".metadata"))
    def fails(error, victim):
        # By a verdict, and not by the limit of a day.
        assert error.is_member_lost and not error.is_timeout, error
        assert [one.hex() for one in error.culprits] == [victim], (error.culprits, victim)
        assert not is_complete(2) and "__1_0.distcp" in os.listdir(place(2)), os.listdir(place(2))
    """

RECONFIGURED = SAVES + """
    dist.init_process_group("pccl", init_method=where, enable_reconfigure=True, timeout=datetime.timedelta(days=1))
    def form(uuid):
        say("handle " + dist._get_reconfigure_handle())
        handles = sys.stdin.readline().split()
        dist._reconfigure(uuid, handles, timeout=datetime.timedelta(seconds=LIMIT)).wait()
        return [handle.split(":")[2] for handle in handles]
    identities = form(1)
    save(1)
    try:
        save(2, is_last=rank == 1)
    except pccl.torch.CollectiveError as error:
        assert "rank 1" in str(error), error
        fails(error, identities[1])
    else:
        raise SystemExit("a member is gone")
    say("failed")
    form(2)
    assert dist.get_world_size() == 2
    check(1, 3)
    save(2)
    check(2, 2)
    say("saved")
    dist.destroy_process_group()
    """

ELASTIC = SAVES + """
    run = pccl.torch.elastic(where, timeout=datetime.timedelta(days=1))
    net = model()
    ddp, optimizer = run.data_parallel(net), torch.optim.SGD(net.parameters(), lr=0.1)
    state = pccl.SharedState.of(net, optimizer)
    tries = 0
    def step():
        global tries
        tries += 1
        number = state.revision + 1
        optimizer.zero_grad()
        x, y = batch(state.revision, rank)
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        try:
            save(number, is_last=rank == 1 and number == 2)
        except pccl.torch.CollectiveError as error:
            # The members are those of the moment: a call may only learn that there are fewer.
            assert error.cause in ("PeerDied", "WorldChanged") and number == 2 and not is_complete(2), error
            say("failed")
            raise
        optimizer.step()
    run.run(step, state=state, steps=3, min_world=lambda: size if state.revision == 0 else 2)
    assert tries == 4 and dist.get_world_size() == 2
    check(1, 3)
    check(2, 2)
    check(3, 2)
    say("saved")
    run.close()
    """
LIMIT_S = 120


def started(ranks, where, program, tmp_path, call):
    return ranks(3, where, f"""
    FOLDER, CALL, LIMIT = {str(tmp_path)!r}, {call!r}, {LIMIT_S}
    """ + program)


def form(peers):
    """Gives all of them the handles of all of them."""
    handles = [line(peer, "handle").split(" ")[1] for peer in peers]
    for peer in peers:
        peer.stdin.write(" ".join(handles) + "\n")
        peer.stdin.flush()


def kill(peers):
    """Kills rank 1 when it has written its part; returns the others."""
    line(peers[1], "written")
    peers[1].kill()
    peers[1].wait()
    return [peers[0], peers[2]]


def go_on(rest):
    for peer in rest:
        line(peer, "saved")
    finish(rest)


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure")
@pytest.mark.parametrize("call", ["save", "async_save"])
def test_a_kill_within_a_checkpoint_of_a_group_that_is_reconfigured(ranks, master, tmp_path, call):  # noqa: F811
    peers = started(ranks, f"pccl://{master}", RECONFIGURED, tmp_path, call)
    form(peers)
    rest = kill(peers)
    for peer in rest:
        line(peer, "failed")
    form(rest)
    go_on(rest)


@pytest.mark.parametrize("call", ["save", "async_save"])
def test_a_kill_within_a_checkpoint_of_an_elastic_group(ranks, master, tmp_path, call):  # noqa: F811
    peers = started(ranks, master, ELASTIC, tmp_path, call)
    rest = kill(peers)
    for peer in rest:
        line(peer, "failed")
    go_on(rest)
