"""Parts of torch that torch's own tests try on GPUs only: FSDP2, hooks of DDP, functional collectives, checkpoints. Two
processes do the same over Gloo and over PCCL, with the same results to the bit: with two, the order of adding does not
matter."""

import importlib.util

import pytest
from ports import free_port
from torch_programs import finish, ranks  # noqa: F401

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="this torch has no torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

BOTH = """
    init("gloo")
    groups = [dist.group.WORLD, dist.new_group(backend="pccl")]
    assert dist.get_backend(groups[1]) == "pccl"
    def alike(results):
        assert len(results) == 2 and len(results[0]) == len(results[1]) > 0
        for one, other in zip(*results):
            assert one.dtype == other.dtype and torch.equal(one, other), (one, other)
    """
END = """
    dist.barrier()
    dist.destroy_process_group()
    """


def both(ranks, program):
    finish(ranks(2, f"tcp://127.0.0.1:{free_port()}", BOTH + program + END))


def test_hooks_of_ddp(ranks):
    both(ranks, """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    def trained(group, hook, state):
        ddp = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001, process_group=group)
        ddp.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(step, rank)
            torch.nn.functional.mse_loss(ddp(x), y).backward()
            optimizer.step()
        return [parameter.detach() for parameter in ddp.parameters()]
    def power(group):
        return powerSGD_hook.PowerSGDState(group, 2, start_powerSGD_iter=2, min_compression_rate=0.5)
    results = [[], []]
    for group, own in zip(groups, results):
        own += trained(group, default_hooks.bf16_compress_hook, group)
        own += trained(group, default_hooks.fp16_compress_hook, group)
        own += trained(group, powerSGD_hook.powerSGD_hook, power(group))
        own += trained(group, default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook), power(group))
    alike(results)
    assert len({own.sum().item() for own in results[1][::4]}) == 4
    """)


@pytest.mark.skipif(importlib.util.find_spec("torch.distributed.fsdp") is None, reason="this torch has no FSDP2")
def test_fully_sharded(ranks):
    both(ranks, """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.device_mesh import DeviceMesh
    for policy in ({}, {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}):
        results = []
        for group in groups:
            net, mesh = model(), DeviceMesh.from_group(group, "cpu")
            for layer in (net[0], net[2], net):
                fully_shard(layer, mesh=mesh, **policy)
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
            for step in range(4):
                optimizer.zero_grad()
                x, y = batch(step, rank)
                torch.nn.functional.mse_loss(net(x).float(), y).backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                optimizer.step()
            results.append([parameter.full_tensor().detach() for parameter in net.parameters()])
        alike(results)
        assert not torch.equal(results[0][0], next(model().parameters()))
    """)


def test_functional_collectives(ranks):
    both(ranks, """
    import torch.distributed._functional_collectives as functional
    results = []
    for group in groups:
        given = torch.arange(12.0).view(4, 3) * (rank + 1)
        got = [functional.all_reduce(given, "sum", group), functional.all_reduce(given, "max", group),
               functional.broadcast(given, 1, group), functional.all_gather_tensor(given, 1, group),
               functional.reduce_scatter_tensor(given, "sum", 0, group),
               functional.all_to_all_single(given, [1, 1] if rank else [3, 3], [3, 1], group),
               *functional.all_reduce_coalesced([given, given + 1], "sum", group),
               *functional.all_gather_into_tensor_coalesced([given, given[:2]], group),
               *functional.reduce_scatter_tensor_coalesced([given, given[:2] + 1], "sum", [0, 0], group)]
        # Gradients go through the same calls.
        leaf = torch.ones(4, 3, requires_grad=True)
        functional.all_gather_tensor_autograd(leaf * given, 0, group).square().sum().backward()
        results.append([each.clone() for each in got] + [leaf.grad])
    alike(results)
    assert results[1][0].tolist() == (torch.arange(12.0).view(4, 3) * 3).tolist()
    """)


def test_a_checkpoint_that_is_written_meanwhile(ranks, tmp_path):
    both(ranks, f"""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor
    whole, results = torch.arange(20.0).view(10, 2), []
    for number, group in enumerate(groups):
        mesh = DeviceMesh.from_group(group, "cpu")
        state = {{"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "own": torch.full((2,), 7.0), "step": 3}}
        where = {str(tmp_path)!r} + f"/{{number}}"
        checkpoint.async_save(state, checkpoint_id=where, process_group=group).result()
        # Nobody reads before all have written.
        dist.barrier()
        fresh = {{"sharded": distribute_tensor(torch.zeros(10, 2), mesh, [Shard(1)]), "own": torch.zeros(2), "step": 0}}
        checkpoint.load(fresh, checkpoint_id=where, process_group=group)
        results.append([fresh["sharded"].full_tensor(), fresh["own"], torch.tensor(fresh["step"])])
    alike(results)
    assert torch.equal(results[1][0], whole) and results[1][1].tolist() == [7, 7] and int(results[1][2]) == 3
    """)
