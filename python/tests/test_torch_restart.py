"""Processes that are started again, with a store that outlives them, as that of torchrun does."""

import os
import subprocess
import sys
import textwrap

import pytest
from torch_programs import PATIENCE_S, finish, go, line, ranks  # noqa: F401

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

TOTAL = """
    host, port = where.split(":")
    store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    say("begins")
    dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=120))
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for group in [None, *pairs]:
        if dist.get_rank(group) >= 0:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == dist.get_world_size(group)
    say("together")
    go()
    """


def test_a_start_takes_nothing_from_the_one_before(ranks):  # noqa: F811
    """The address of a master that was killed with its rank 0 stood in the store, and the others dialled it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = f"127.0.0.1:{store.port}"
    for again in range(3):
        # The others come before rank 0, and find what the killed have written.
        rest = ranks(3, where, TOTAL, [2, 1])
        for peer in rest:
            line(peer, "begins")
        peers = [*ranks(3, where, TOTAL, [0]), *rest]
        line(peers[0], "begins")
        for peer in peers:
            line(peer, "together")
        for peer in peers if again < 2 else []:
            peer.kill()
    go(peers)
    finish(peers)


FORMED = """
    host, port = where.split(":")
    store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    say("begins")
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=limit, enable_reconfigure=True)
    say("handle " + dist._get_reconfigure_handle())
    dist._reconfigure(1, sys.stdin.readline().split(), timeout=limit).wait()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size and dist.get_rank() == rank
    say("together")
    go()
    """


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure")
def test_a_start_of_a_group_that_is_reconfigured_takes_nothing_from_the_one_before(ranks):  # noqa: F811
    """Rank 0 of such a group waits for nobody, and so has confirmed nothing to the others."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = f"127.0.0.1:{store.port}"
    for again in range(2):
        rest = ranks(3, where, FORMED, [2, 1])
        for peer in rest:
            line(peer, "begins")
        peers = [*ranks(3, where, FORMED, [0]), *reversed(rest)]
        line(peers[0], "begins")
        handles = " ".join(line(peer, "handle").split(" ")[1] for peer in peers)
        for peer in peers:
            peer.stdin.write(handles + "\n")
            peer.stdin.flush()
        for peer in peers:
            line(peer, "together")
        for peer in peers if again == 0 else []:
            peer.kill()
    go(peers)
    finish(peers)


@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_starts_a_job_again(tmp_path, victim):
    program = tmp_path / "job.py"
    program.write_text(textwrap.dedent(f"""
        import os, signal, torch, torch.distributed as dist
        dist.init_process_group("pccl")
        for step in range(4):
            tensor = torch.ones(1000)
            dist.all_reduce(tensor)
            assert tensor[0] == 2
            if step == 2 and dist.get_rank() == {victim} and os.environ["TORCHELASTIC_RESTART_COUNT"] < "2":
                os.kill(os.getpid(), signal.SIGKILL)
        # One write: both ranks have this pipe.
        text = f"rank {{dist.get_rank()}} after {{os.environ['TORCHELASTIC_RESTART_COUNT']}} restarts\\n"
        os.write(1, text.encode())
        dist.destroy_process_group()
        """))
    started_again(program)


def started_again(program):
    """Runs a job of two under torchrun; it is started twice again, and both say so at their end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "--max-restarts", "2", str(program)]
    job = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S,
                         env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert job.returncode == 0, job.stderr[-4000:]
    assert sorted(job.stdout.split("\n")) == ["", "rank 0 after 2 restarts", "rank 1 after 2 restarts"], job.stdout


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure")
def test_torchrun_starts_a_job_again_whose_group_is_reconfigured(tmp_path):
    """Rank 1 found the master of the start before in the store, which died with its rank 0, and dialled it."""
    program = tmp_path / "job.py"
    program.write_text(textwrap.dedent(f"""
        import datetime, os, signal, torch, torch.distributed as dist
        dist.init_process_group("pccl", enable_reconfigure=True, timeout=datetime.timedelta(seconds={PATIENCE_S}))
        restarts, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        store = dist.PrefixStore("handles of " + restarts, dist.distributed_c10d._get_default_store())
        store.set(rank, dist._get_reconfigure_handle())
        handles = [store.get(other).decode() for other in "01"]
        dist._reconfigure(1, handles, timeout=datetime.timedelta(seconds={PATIENCE_S})).wait()
        for step in range(2):
            tensor = torch.ones(1000)
            dist.all_reduce(tensor)
            assert tensor[0] == 2
            if step == 0 and dist.get_rank() == 0 and restarts < "2":
                os.kill(os.getpid(), signal.SIGKILL)
        # One write: both ranks have this pipe.
        os.write(1, f"rank {{dist.get_rank()}} after {{restarts}} restarts\\n".encode())
        dist.destroy_process_group()
        """))
    started_again(program)


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch has no reconfigure")
def test_replicas_with_a_torchrun_each_are_put_together(ranks, master):  # noqa: F811
    """As those of torchft, each of which is told that it is the only process."""
    program = """
        import os
        os.environ.update(WORLD_SIZE="1", RANK="0")
        dist.init_process_group("pccl", init_method=f"pccl://{where}", enable_reconfigure=True)
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        say("handle " + dist._get_reconfigure_handle())
        handles = sys.stdin.readline().split(" ")
        dist._reconfigure(1, [handle.strip() for handle in handles], timeout=datetime.timedelta(seconds=120)).wait()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 3
        say("together")
        go()
        """
    peers = ranks(3, master, program)
    handles = [line(peer, "handle").split(" ")[1] for peer in peers]
    for peer in peers:
        peer.stdin.write(" ".join(handles) + "\n")
        peer.stdin.flush()
    for peer in peers:
        line(peer, "together")
    go(peers)
    finish(peers)
