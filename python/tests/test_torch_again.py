"""A step that is made again: what the try before has left behind counts for nothing."""

import os
import subprocess
import sys

import pytest
from torch_programs import finish, go, line, ranks  # noqa: F401

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

#: A layer of 64 MiB, in whose reduce the victim dies as soon as it has received something. It sends slowly, so that the
#: others cannot be ready by then.
KILLED = """
    import os, signal, socket
    SO_MAX_PACING_RATE = 47
    def send_slowly():
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                with socket.socket(fileno=os.dup(fd)) as own:
                    own.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8 << 20)
            except OSError:
                pass  # No socket.
    run = pccl.torch.elastic(where)
    reduced = []
    class Dies(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()
        @staticmethod
        def backward(context, grad):
            if rank == 1 and state.revision == 3:
                assert tries == 4
                while bool((reduced[-1][::4096] == 1).all()):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            return grad
    allreduce = run.group.allreduce
    def recording(tensors, opts):
        if tensors[0].numel() == 1 << 24:
            reduced[:] = tensors
        return allreduce(tensors, opts)
    run.group.allreduce = recording
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # Each is as large as a bucket.
            self.first = torch.nn.Parameter(torch.zeros(1 << 18))
            self.second = torch.nn.Parameter(torch.zeros(1 << 24))
        def forward(self):
            return Dies.apply(self.first).sum() + self.second.sum()
    net = Net()
    ddp, optimizer = run.data_parallel(net, bucket_cap_mb=1), torch.optim.SGD(net.parameters(), lr=1.0)
    state = pccl.SharedState.of(net, optimizer)
    tries = 0
    def step():
        global tries
        tries += 1
        if rank == 1 and state.revision == 3:
            send_slowly()
        ddp().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.run(step, state=state, steps=6, min_world=lambda: size if state.revision == 0 else 2)
    w = {net.first.min().item(), net.first.max().item(), net.second.min().item(), net.second.max().item()}
    say(f"after {state.revision} steps and {tries} tries w is {w}")
    run.close()
    """


def test_a_step_that_is_made_again_begins_from_clean_gradients(ranks, master):  # noqa: F811
    peers = ranks(3, master, KILLED)
    rest = [peers[0], peers[2]]
    for peer in rest:
        assert line(peer, "after") == "after 6 steps and 7 tries w is {-6.0}"
    finish(rest)


#: The number of transfers from a rank is the rank, so that a rank which is that of another member has had others before.
#: Who begins as rank 1 dies within its second step, when the others have begun theirs; the last step needs three again.
SENDING = """
    import os, signal
    run = pccl.torch.elastic(where)
    weight = torch.zeros(1)
    state, tries = pccl.SharedState.of(model={"weight": weight}), 0
    def step():
        global tries
        tries += 1
        me, members = dist.get_rank(), dist.get_world_size()
        if IS_FIRST and tries == 2:
            say(f"rank {me}")
            if me == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        total = torch.zeros(1)
        if me == 0:
            for source in range(1, members):
                for number in range(source):
                    taken = torch.zeros(1)
                    dist.recv(taken, source)
                    assert taken.item() == 10 * source + number, (taken, source, number)
                    total += taken
        for number in range(me):
            dist.send(torch.tensor([10.0 * me + number]), 0)
        gathered = [None] * members if me == 0 else None
        dist.gather_object(me, gathered)
        assert gathered in (None, list(range(members))), gathered
        dist.broadcast(total, 0)
        weight.add_(total)
    run.run(step, state=state, steps=4, min_world=lambda: size if state.revision in (0, 3) else 2)
    say(f"weight {weight.item()}")
    run.close()
    """


def test_transfers_after_a_kill_and_a_join(ranks, master):  # noqa: F811
    peers = ranks(3, master, SENDING.replace("IS_FIRST", "True"))
    begun = {line(peer, "rank"): peer for peer in peers}
    begun["rank 1"].wait()
    rest = [begun["rank 0"], begun["rank 2"], *ranks(3, master, SENDING.replace("IS_FIRST", "False"), [3])]
    ends = {line(peer, "weight") for peer in rest}
    assert len(ends) == 1, ends
    finish(rest)


def tried(trained, net, zero, counts=True):
    """One try of a step; what undoes it is called if it does not count."""
    undo = trained.keep()
    zero()
    net(torch.ones(2, 3)).sum().backward()
    if not counts:
        undo()


@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_that_are_dropped_in_some_steps_and_set_to_zero_in_others(by_hand):
    """A step that set them to zero in place after one that had dropped them could not be made again."""
    from pccl._torch_rollback import Trained

    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters())
    trained = Trained([net, optimizer], [])

    def in_place():
        if by_hand:
            for parameter in net.parameters():
                parameter.grad.zero_()
        else:
            optimizer.zero_grad(set_to_none=False)

    tried(trained, net, lambda: None)
    for turn in range(3):
        if turn or by_hand:
            # A loss that nobody announces has to be seen once.
            tried(trained, net, in_place)
        tried(trained, net, optimizer.zero_grad)
        there = [parameter.grad for parameter in net.parameters()]
        before = [gradient.clone() for gradient in there]
        for zero in (in_place, optimizer.zero_grad, lambda: None):
            tried(trained, net, zero, counts=False)
            for parameter, gradient, content in zip(net.parameters(), there, before):
                assert parameter.grad is gradient and torch.equal(gradient, content)
    trained.close()
    assert "zero_grad" not in vars(optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert all((parameter.grad == 0).all() for parameter in net.parameters())


#: Of each storm. ``PCCL_STORM_STEPS=1000`` makes them long.
STEPS = int(os.environ.get("PCCL_STORM_STEPS", "12"))


@pytest.mark.parametrize("zero, least", [("last", 3), ("first", 2)])
def test_a_storm_ends_with_the_parameters_of_an_undisturbed_run(master, zero, least):
    """Kills inside of backward passes, gradient accumulation, a GradScaler, ``zero_grad`` at either end of the step."""
    program = os.path.join(os.path.dirname(__file__), "elastic_storm.py")
    storm = subprocess.run([sys.executable, program, master, str(STEPS), "1", zero, str(least)], stdout=subprocess.PIPE,
                           text=True, timeout=240 + 5 * STEPS, env={**os.environ, "PYTHONHASHSEED": "0"})
    assert storm.returncode == 0
    *ends, alone, killed = storm.stdout.splitlines()
    assert len(ends) >= 2 and set(ends) == {alone.partition(" ")[2]}, storm.stdout
    assert int(killed.partition(" ")[2]) > 0
