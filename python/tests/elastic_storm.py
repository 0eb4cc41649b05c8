"""A storm of ``elastic``: peers that die inside of ``backward`` and come again, while others train.

One process imports torch once and forks all others. ``python elastic_storm.py HOST:PORT STEPS SEED ZERO LEAST`` prints
the parameters that peers end with, and those of one process that nobody disturbs. All peers compute the same gradients,
of whole numbers, so that averages are exact however many take part; in which step and where in it a peer dies is drawn.
Steps are made with at least ``LEAST`` peers: with 2 two of them never die, and the third one or its successors may miss
the end; with 3 only one is safe, and a step is made again when a successor has come.
"""

import os
import random
import signal
import sys

import torch
import torch.distributed as dist

import pccl
import pccl.torch

PEERS, MICRO = 3, 3
LR = 1 / 1024


class Dies(torch.autograd.Function):
    """Passes gradients on; calls a function in the backward pass, when the layers behind it have theirs."""

    @staticmethod
    def forward(context, x, call):
        context.call = call
        return x.clone()

    @staticmethod
    def backward(context, grad):
        context.call()
        return grad, None


class Net(torch.nn.Module):
    """Three layers, each larger than a bucket, and statistics that change in each forward pass."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.zeros(600) for _ in range(3))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, call):
        self.seen += 1
        # The gradients are x, 2 x and 4 x. The last layer has its first.
        return sum((Dies.apply(layer, call) * x * 2 ** index).sum() for index, layer in enumerate(self.layers))


class Training:
    """Model and step, alike for peers and for the undisturbed process."""

    def __init__(self, wrap, zero_first, steps):
        self.net = Net()
        self.ddp, self.zero_first = wrap(self.net), zero_first
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=0.5)
        # The scale is doubled a hundred times at most: a sum over three peers overflows before that of one does.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=max(5, steps // 100))
        self.state = pccl.SharedState.of(self.net, self.optimizer, scaler=self.scaler, extra={"steps": 0})
        self.extra = self.state._source["extra"]
        self.call = lambda: None

    def step(self):
        if self.zero_first:
            self.optimizer.zero_grad(set_to_none=self.state.revision % 2 == 0)
        for micro in range(MICRO):
            x = torch.full((600,), float(1 + (self.state.revision + micro) % 3))
            if micro < MICRO - 1 and self.ddp is not self.net:
                with self.ddp.no_sync():
                    self.scaler.scale(self.ddp(x, self.call)).backward()
            else:
                self.scaler.scale(self.ddp(x, self.call)).backward()
        self.scaler.unscale_(self.optimizer)
        self.agree()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.extra["steps"] += 1
        if not self.zero_first:
            self.optimizer.zero_grad()

    def agree(self):
        """A reduce between ``unscale_`` and the end, as of a norm. Some die here."""
        self.call()
        if self.ddp is not self.net:
            dist.all_reduce(torch.ones(1))

    def end(self):
        """All that has to be the same, to the bit."""
        content = [one.detach().numpy().tobytes() for one in (*self.net.parameters(), *self.net.buffers())]
        content += [state["momentum_buffer"].numpy().tobytes() for state in self.optimizer.state.values()]
        return repr((hash(tuple(content)), self.scaler.get_scale(), self.extra, self.net.layers[0][0].item(),
                     self.net.seen.item()))


def peer(address, steps, zero_first, deaths, least):
    """Trains, and dies where ``deaths`` says: a mapping of steps to the number of a call in them. ``least`` gets the
    revision."""
    run = pccl.torch.elastic(address)
    training = Training(lambda net: run.data_parallel(net, bucket_cap_mb=0.001), zero_first, steps)
    calls = [-1, 0]

    def call():
        revision = training.state.revision
        calls[:] = [revision, calls[1] + 1 if calls[0] == revision else 1]
        if deaths.get(revision) == calls[1]:
            os.kill(os.getpid(), signal.SIGKILL)

    training.call = call
    run.run(training.step, state=training.state, steps=steps, min_world=lambda: least(training.state.revision))
    end = training.end()
    run.close()
    return end


def forked(function):
    """A process that prints what ``function`` returns, or dies."""
    sys.stdout.flush()
    number = os.fork()
    if number == 0:
        code = 1
        try:
            # At once: others write there, too.
            os.write(1, f"{function()}\n".encode())
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return number


def main():
    address, steps, seed, zero, least = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4] == "first", int(sys.argv[5])
    torch.set_num_threads(1)
    drawn = random.Random(seed)
    # Each layer calls in each backward pass, and the reduce at the end does.
    places = PEERS * MICRO + 1

    def born(is_safe, wanted):
        # Nobody dies in the last step: the others may end it, and the successor would wait for them in vain.
        doomed = [] if is_safe else [step for step in range(1, steps - 1) if drawn.random() < 0.3]
        plan = {step: drawn.randint(1, places) for step in doomed}
        return forked(lambda: peer(address, steps, zero, plan, wanted))

    alone = Training(lambda net: net, zero, steps)
    while alone.state.revision < steps:
        alone.step()
        alone.state.push_revision()
    # The first step is made with all.
    living = {born(index < 4 - least, lambda revision: least if revision else PEERS) for index in range(PEERS)}
    killed, ended = 0, 0
    while living and (least == PEERS or ended < 2):
        number, status = os.wait()
        living.remove(number)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            killed += 1
            living.add(born(killed >= steps, lambda _: least))
        elif status:
            for other in living:
                os.kill(other, signal.SIGKILL)
            raise SystemExit("a peer has failed")
        else:
            ended += 1
    for late in living:
        os.kill(late, signal.SIGKILL)
        os.waitpid(late, 0)
    print(f"alone {alone.end()}")
    print(f"killed {killed}")


if __name__ == "__main__":
    main()
