"""One training loop over several ways to keep the replicas together. Each has the same signature: it trains ``model``
until ``args.steps`` steps are made, and calls ``report(step, members, loss)`` after each."""

import time
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
    """DiLoCo over PCCL: every ``args.inner`` steps the members average how far each has come, while they train on.
    Newcomers fetch the outer parameters and go on where the run is."""
    import pccl.diloco

    with pccl.diloco.DiLoCo(args.master, model, inner=optimizer, every=args.inner, fragments=2, overlap=1,
                            compress="int8", min_world=args.least, name=args.name) as run:
        while run.step_index < args.steps:
            step = run.step_index
            while (step == 0 or step >= 2 * args.steps // 3) and run.stats().members < args.late:
                # So that somebody who joins is not too late.
                time.sleep(0.05)
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            run.step()
            report(step, run.stats().members, loss.item())


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
