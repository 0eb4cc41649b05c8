"""Trainings over the backend for torch.distributed, in processes of their own: DDP, HSDP, kills, Ctrl-C."""

import importlib.util
import os
import re
import signal
import subprocess
import sys

import pytest
from ports import free_port
from torch_programs import PATIENCE_S, finish, go, line, ranks  # noqa: F401

import pccl

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


def test_ddp_equals_one_process_to_the_bit(ranks, master):
    """Of two: the order of adding does not matter then. Sums of gradients that are scaled by a power of two are exact."""
    program = """
        init()
        ddp = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        for step in range(5):
            optimizer.zero_grad()
            x, y = batch(step, rank)
            torch.nn.functional.mse_loss(ddp(x), y).backward()
            optimizer.step()
        # The same, with the gradients of both computed here.
        own = model()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
        for step in range(5):
            grads = []
            for other in range(size):
                x, y = batch(step, other)
                grads.append(torch.autograd.grad(torch.nn.functional.mse_loss(own(x), y), own.parameters()))
            for parameter, *parts in zip(own.parameters(), *grads):
                parameter.grad = sum(part / size for part in parts)
            optimizer.step()
        for mine, theirs in zip(own.parameters(), ddp.parameters()):
            assert torch.equal(mine, theirs), (mine - theirs).abs().max()
        # Objects, subgroups and a mesh.
        everything = [None] * size
        dist.all_gather_object(everything, {"rank": rank})
        assert everything == [{"rank": 0}, {"rank": 1}]
        mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("outer", "inner"))
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=mesh["outer"].get_group())
        assert tensor.tolist() == [2] * 3
        dist.all_reduce(tensor, group=mesh["inner"].get_group())
        alone = [dist.new_group([0]), dist.new_group([1])][rank]
        dist.all_reduce(tensor, group=alone)
        assert tensor.tolist() == [2] * 3 and dist.get_world_size(alone) == 1
        if rank == 0:
            dist.send(tensor * 2, 1)
        else:
            dist.recv(tensor, 0)
            assert tensor.tolist() == [4] * 3
        dist.monitored_barrier()
        dist.destroy_process_group()
        """
    finish(ranks(2, f"pccl://{master}", program))


KILLED = """
    init()
    class Waits(torch.autograd.Function):
        # The gradient of the first layer is not computed before the victim is gone.
        @staticmethod
        def forward(context, x):
            return x.clone()
        @staticmethod
        def backward(context, grad):
            global waiting
            if waiting:
                waiting = False
                say("backward")
                go()
            return grad
    waiting = False
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 3000), torch.nn.Linear(3000, 4)
        def forward(self, x):
            return self.second(Waits.apply(self.first(x)))
    ddp = torch.nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=0.01)
    for step in range(3):
        x, y = batch(step, rank)
        torch.nn.functional.mse_loss(ddp(x), y).backward()
    waiting = True
    try:
        torch.nn.functional.mse_loss(ddp(x), y).backward()
    except RuntimeError as error:
        assert "group broken" in str(error), error
        say("failed " + type(error).__name__)
    else:
        raise SystemExit("a member is gone")
    try:
        dist.barrier()
    except pccl.torch.CollectiveError as error:
        assert error.is_member_lost and error.remedy is pccl.Remedy.FORM_GROUP and error.culprits
    dist.destroy_process_group()
    """


def test_a_kill_in_the_middle_of_a_backward_is_an_error_at_once(ranks, master):
    peers = ranks(3, f"pccl://{master}", KILLED)
    for peer in peers:
        line(peer, "backward")
    peers[1].kill()
    peers[1].wait()
    rest = [peers[0], peers[2]]
    go(rest)
    for peer in rest:
        line(peer, "failed")
    finish(rest)


def test_ctrl_c_ends_a_wait(ranks):
    """The store is that of torch here; rank 0 starts the master."""
    program = """
        init()
        dist.barrier()
        if rank == 1:
            say("idle")
            go()
        else:
            try:
                # The signal may come before the call that follows.
                say("waits")
                dist.all_reduce(torch.ones(3))
            except KeyboardInterrupt:
                say("interrupted")
        """
    peers = ranks(2, f"tcp://127.0.0.1:{free_port()}", program)
    line(peers[0], "waits")
    line(peers[1], "idle")
    peers[0].send_signal(signal.SIGINT)
    line(peers[0], "interrupted")
    go([peers[1]])
    assert peers[1].wait(PATIENCE_S) == 0
    peers[0].wait(PATIENCE_S)


@pytest.mark.skipif(importlib.util.find_spec("torch.distributed.fsdp") is None, reason="this torch has no FSDP2")
def test_hsdp_with_replicas_over_pccl_equals_all_gloo_to_the_bit(ranks):
    """Two replicas of two shards each: with two to add, the order does not matter."""
    program = """
        from torch.distributed.fsdp import fully_shard
        init("gloo")
        losses = []
        for override in ({}, {"replicate": "pccl"}):
            mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"), backend_override=override)
            if override:
                assert dist.get_backend(mesh["replicate"].get_group()) == "pccl"
            net = model()
            fully_shard(net, mesh=mesh)
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
            losses.append([])
            for step in range(4):
                optimizer.zero_grad()
                x, y = batch(step, rank)
                loss = torch.nn.functional.mse_loss(net(x), y)
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        assert losses[0] == losses[1] and len(set(losses[0])) == 4, losses
        dist.barrier()
        dist.destroy_process_group()
        """
    finish(ranks(4, f"tcp://127.0.0.1:{free_port()}", program))


ELASTIC = """
    run = pccl.torch.elastic(where)
    net = model()
    ddp, optimizer = run.data_parallel(net, bucket_cap_mb=0.001), torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    state, extra = None, {"sizes": 0}
    state = pccl.SharedState.of(model=net, optimizer=optimizer, extra=extra)
    def step():
        if state.revision == 5 and rank == 1:
            say("doomed")
            go()
        optimizer.zero_grad()
        x, y = batch(state.revision, rank)
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        extra["sizes"] += dist.get_world_size()
        if state.revision in (2, 9):
            say(f"step {state.revision} of {dist.get_world_size()}")
    # From the tenth step on there have to be three again.
    run.run(step, state=state, steps=20, min_world=lambda: size if state.revision in (0, 12) else 2)
    say(f"end {pccl.SharedState.of(model=net).names()[0]} {sum(p.double().sum().item() for p in net.parameters())!r}"
        f" {extra['sizes']}")
    run.close()
    """


def test_an_elastic_group_goes_on_over_a_kill_and_a_join(ranks, master):
    peers = ranks(3, master, ELASTIC)
    for peer in peers:
        line(peer, "step 2 of 3")
    line(peers[1], "doomed")
    peers[1].kill()
    rest = [peers[0], peers[2]]
    for peer in rest:
        line(peer, "step 9 of 2")
    newcomer = ranks(3, master, ELASTIC.replace("rank == 1", "False"), [1])
    ends = {line(peer, "end") for peer in [*rest, *newcomer]}
    assert len(ends) == 1, ends
    finish([*rest, *newcomer])


def of_document(name):
    with open(os.path.join(os.path.dirname(__file__), "..", "..", name)) as file:
        return next(block for block in re.findall(r"```python\n(.*?)```", file.read(), re.S) if ".elastic(" in block)


def test_the_documented_training_says_how_it_goes(master):
    program = of_document("docs/pytorch/elastic.md")
    assert program == of_document("python/README.md")
    for old, new in (("127.0.0.1:48148", master), ("steps=2000", "steps=200")):
        assert old in program
        program = program.replace(old, new)
    peers = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for _ in range(2)]
    for peer in peers:
        out, err = peer.communicate(timeout=PATIENCE_S)
        assert peer.returncode == 0, err
        for step in (100, 200):
            assert re.search(rf"^step {step}: loss \d+\.\d{{4}}, 2 peers, \d+ steps/s$", out, re.M), out
        assert "waiting for the world: 1 of 2 peers" in err or "registered as peer" in err, err
        assert "FlightRecorder" not in err, err


def test_an_elastic_group_ends_when_its_master_does_not_come_back(ranks):
    program = """
        run = pccl.torch.elastic(where, connect_timeout=1, master_grace=0)
        net = model()
        ddp, optimizer = run.data_parallel(net), torch.optim.SGD(net.parameters(), lr=0.05)
        state = pccl.SharedState.of(net, optimizer)
        def step():
            optimizer.zero_grad()
            x, y = batch(state.revision, rank)
            torch.nn.functional.mse_loss(ddp(x), y).backward()
            optimizer.step()
            if state.revision == 5:
                say("fifth")
        try:
            run.run(step, state=state, more=lambda: True)
        except pccl.ConnectFailed as error:
            say("ended")
        run.close()
        """
    with pccl.MasterNode("127.0.0.1:0") as node:
        peers = ranks(2, f"127.0.0.1:{node.port}", program)
        for peer in peers:
            line(peer, "fifth")
    for peer in peers:
        line(peer, "ended")
    finish(peers)
