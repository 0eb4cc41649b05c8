"""One training loop over several ways to keep the replicas together. Each has the same signature: it trains ``model``
until ``args.steps`` steps are made, and calls ``report(step, members, loss)`` after each."""

import copy
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=60)


def ddp(args, model, optimizer, loss_of, report):
    """DistributedDataParallel over PCCL: the members come and go, the loop of PCCL makes failed steps again."""
    import pccl
    import pccl.torch

    with pccl.torch.elastic(args.master, LIMIT, name=args.name) as run:
        replica = run.data_parallel(model)
        state = pccl.SharedState.of(model=model, optimizer=optimizer)

        def step():
            optimizer.zero_grad()
            loss = loss_of(replica, state.revision)
            loss.backward()
            optimizer.step()
            report(state.revision, dist.get_world_size(), loss.item())

        run.run(step, state=state, steps=args.steps, min_world=_needed(args, state, args.steps))


def diloco(args, model, optimizer, loss_of, report):
    """DiLoCo over PCCL: ``args.inner`` steps alone, then the average of how far each has come, with momentum. Newcomers
    fetch the state while the others compute."""
    import pccl
    import pccl.torch

    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    state = pccl.SharedState.of(model=model, outer=outer)
    losses = []

    def compute():
        alone = copy.deepcopy(model)
        inner = torch.optim.AdamW(alone.parameters(), lr=optimizer.param_groups[0]["lr"])
        for turn in range(args.inner):
            inner.zero_grad()
            loss = loss_of(alone, state.revision * args.inner + turn)
            loss.backward()
            inner.step()
            losses.append(loss.item())
        return [before.detach() - after.detach() for before, after in zip(model.parameters(), alone.parameters())]

    with pccl.torch.elastic(args.master, LIMIT, name=args.name) as run:
        def step(moved):
            # A peer that has just come has computed nothing, and counts next to nothing.
            weight = 1.0 if moved is not None else 1e-30
            moved = moved or [torch.zeros_like(parameter) for parameter in model.parameters()]
            # In one piece: a change of the gradients in place would be averaged twice if the step is made again.
            flat = torch.cat([part.reshape(-1) for part in moved])
            run.communicator.weighted_average(flat, weight)
            parts = flat.split([parameter.numel() for parameter in model.parameters()])
            for parameter, part in zip(model.parameters(), parts):
                parameter.grad = part.view_as(parameter)
            outer.step()
            report((state.revision + 1) * args.inner - 1, dist.get_world_size(), losses[-1] if losses else float("nan"))

        steps = args.steps // args.inner
        run.run(step, state=state, compute=compute, steps=steps, min_world=_needed(args, state, steps))


def _needed(args, state, steps):
    """How many members the next step needs: in the last third as many as at the beginning, so that somebody who joins
    is not too late. All decide alike, by what is in the state."""
    return lambda: args.late if state.revision == 0 or state.revision >= 2 * steps // 3 else args.least


def torchft(args, model, optimizer, loss_of, report):
    """torchft's Manager, which decides who is in, over PCCL, which moves the gradients."""
    dist.init_process_group("pccl", init_method=f"pccl://{args.master}", timeout=LIMIT, enable_reconfigure=True)
    _managed(args, dist.group.WORLD, model, optimizer, loss_of, report)
    dist.destroy_process_group()


def torchft_gloo(args, model, optimizer, loss_of, report):
    """torchft with the transport that it brings along."""
    import torchft as ft

    _managed(args, ft.ProcessGroupGloo(timeout=timedelta(seconds=args.gloo_timeout)), model, optimizer, loss_of, report)


def torchft_none(args, model, optimizer, loss_of, report):
    """torchft over a group that moves nothing, so that the replicas differ: for measuring what torchft itself costs."""
    from torchft.process_group import ProcessGroupDummy

    _managed(args, ProcessGroupDummy(0, 1), model, optimizer, loss_of, report)


def _managed(args, group, model, optimizer, loss_of, report):
    import torchft as ft

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = dist.TCPStore(args.host, 0, is_master=True, wait_for_workers=False)
    manager = ft.Manager(pg=group, min_replica_size=args.least, load_state_dict=load, rank=0, world_size=1,
                         state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                         replica_id=args.name, store_addr=args.host, store_port=store.port, hostname=args.host,
                         lighthouse_addr=args.lighthouse, timeout=timedelta(seconds=args.gloo_timeout))
    try:
        replica, managed = ft.DistributedDataParallel(manager, model), ft.Optimizer(manager, optimizer)
        while manager.current_step() < args.steps:
            step = manager.current_step()
            managed.zero_grad()
            loss = loss_of(replica, step)
            loss.backward()
            managed.step()
            if manager.current_step() > step:
                report(step, manager.num_participants(), loss.item())
    finally:
        manager.shutdown(wait=False)


def fixed(args, model, optimizer, loss_of, report):
    """DistributedDataParallel over fixed ranks, by PCCL or by Gloo. Nobody may die."""
    rank = int(args.name.rpartition("-")[2])
    dist.init_process_group(args.way.partition("-")[2], init_method=f"tcp://{args.store}", rank=rank,
                            world_size=args.late, timeout=LIMIT)
    replica = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = loss_of(replica, step)
        loss.backward()
        optimizer.step()
        report(step, args.late, loss.item())
    dist.destroy_process_group()


WAYS = {"ddp": ddp, "diloco": diloco, "torchft": torchft, "torchft-gloo": torchft_gloo, "torchft-none": torchft_none,
        "fixed-pccl": fixed, "fixed-gloo": fixed}
