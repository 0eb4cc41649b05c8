"""Tensors, operations, modules and optimisers of torch."""

import pytest

import pccl
from pccl import Box, InvalidBuffer, ReduceOp, SharedState, TensorInfo

torch = pytest.importorskip("torch", reason="torch is not installed")

#: Each with what makes its state differ from zeros before the first step.
OPTIMIZERS = {
    "SGD": {"lr": 0.1}, "SGD with momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "SGD with Nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "Adam": {"lr": 0.01},
    "Adam amsgrad": {"amsgrad": True},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1}, "NAdam": {}, "RAdam": {}, "Adamax": {},
    "Adagrad": {"initial_accumulator_value": 0.5},
    "Adadelta": {}, "RMSprop": {"momentum": 0.9, "centered": True}, "Rprop": {"lr": 0.05}, "ASGD": {"lr": 0.1},
}


def optimizer_of(name, module):
    return getattr(torch.optim, name.split()[0])(module.parameters(), **OPTIMIZERS[name])


def test_a_module_and_an_optimiser_need_no_names():
    module = torch.nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    assert SharedState.of(module).names() == SharedState.of(model=module).names()
    assert SharedState.of(module, optimizer).names() == SharedState.of(model=module, optimizer=optimizer).names()
    assert SharedState.of(module, revision=3, step=Box(0)).revision == 3
    for wrong in (lambda: SharedState.of(module, module), lambda: SharedState.of(module, model=module)):
        with pytest.raises(TypeError, match="two parts would be called model"):
            wrong()
    with pytest.raises(TypeError, match="a Tensor needs a name"):
        SharedState.of(torch.zeros(3))


def test_reduces_and_state(fleet):
    fleet(2, """
        import torch
        comm = join()
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8):
            send, recv = torch.full((5, 7), index + 1).to(dtype), torch.zeros(5, 7, dtype=dtype)
            assert comm.all_reduce(send, recv, op=ReduceOp.SUM).local_world_size == 2
            assert (recv == 3).all() and (send == index + 1).all(), dtype
        # Nobody but the library knows of this tensor while it is reduced.
        assert comm.all_reduce_async(torch.ones(50000), torch.zeros(50000), op=ReduceOp.AVG).wait()[0]
        for wrong in (torch.ones(4, 4).t()[1:], torch.ones(4, device="meta"), torch.ones(3).to_sparse()):
            try:
                comm.all_reduce(wrong, wrong, op=ReduceOp.SUM)
                raise SystemExit("not refused")
            except InvalidBuffer:
                pass
        many = [torch.full((3,), float(index)), torch.full((4,), float(index))]
        comm.all_reduce_multiple_with_retry([ReduceOpDescriptor.from_torch(t, t, ReduceDescriptor(
            t.numel(), ReduceOp.MAX, tag, ReduceOperandDescriptor(torch.float32),
            QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE))) for tag, t in enumerate(many)])
        assert all((t == 1).all() for t in many)
        layer = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(7 if index == 0 else 0)
        halves = torch.full((3,), 1.5 if index == 0 else 0, dtype=torch.bfloat16)
        state = SharedState([TensorInfo.from_torch(p, name) for name, p in layer.named_parameters()]
                            + [TensorInfo.from_torch(halves, "halves")])
        state.revision = 1 if index == 0 else 0
        comm.sync_shared_state(state)
        assert all((p == 7).all() for p in layer.parameters()) and (halves == 1.5).all()
        """)


def test_operations_of_torch_count_by_their_names(fleet):
    """``dist.ReduceOp.MAX`` has the number of our minimum, and was taken for it."""
    names = torch.distributed.ReduceOp
    assert [ReduceOp.of(op) for op in (names.SUM, names.AVG, names.PRODUCT, names.MAX, names.MIN,
                                       names(names.MAX))] == [
        ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.MAX]
    for other in (names.BAND, names.BOR, names.BXOR, names.PREMUL_SUM, names):
        with pytest.raises(TypeError):
            ReduceOp.of(other)
    fleet(2, """
        import torch, torch.distributed as dist
        comm = join()
        data = torch.tensor([1.0, 10.0] if index == 0 else [2.0, 9.0])
        comm.all_reduce(data, op=dist.ReduceOp.MAX)
        assert data.tolist() == [2, 10], data
        """)


def test_tensors_of_every_type_and_layout_travel(fleet):
    fleet(2, """
        import torch
        comm = join()
        whole = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
        wanted = {
            "bool": torch.tensor([True, False, True]), "complex": torch.tensor([1 + 2j, 3j]), "conjugate": torch.tensor([1 + 2j]).conj(),
            "fp8": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), "turned": whole[0, 0].t(), "part": torch.arange(20)[::3],
            "last": whole.to(memory_format=torch.channels_last), "scalar": torch.tensor(5), "none": torch.zeros(0),
            "half": torch.tensor([1.5], dtype=torch.bfloat16),
        }
        # The order in memory is another one on the other peer.
        mine = wanted if index == 0 else {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in wanted.items()}
        state = SharedState(mine, revision=1 if index == 0 else 0)
        info = comm.sync_shared_state(state)
        for name, tensor in wanted.items():
            assert mine[name].dtype == tensor.dtype and torch.equal(mine[name].to(torch.complex128), tensor.to(torch.complex128)), name
        state.push_revision()
        assert comm.sync_shared_state(state).rx_bytes == 0
        """)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimiser_is_there_before_its_first_step(name):
    """And training goes on as it would have without that."""
    def train(prepared):
        torch.manual_seed(3)
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, bias=False))
        optimizer = optimizer_of(name, module)
        if prepared:
            before = [parameter.clone() for parameter in module.parameters()]
            names = SharedState.of(optimizer=optimizer).names()
            assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, module.parameters()))
        for step in range(4):
            optimizer.zero_grad()
            module(torch.ones(5, 4) * (step + 1)).square().sum().backward()
            optimizer.step()
            if prepared:
                # Nothing that appears with a step.
                assert SharedState.of(optimizer=optimizer).names() == names
        return [parameter.detach().clone() for parameter in module.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True))), name


def test_what_an_optimiser_has_is_left_alone():
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module.weight.grad = torch.ones(2, 2)
    optimizer.step()
    kept = optimizer.state[module.weight]["exp_avg"]
    pccl.materialise_optimizer(optimizer)
    assert optimizer.state[module.weight]["exp_avg"] is kept and (kept != 0).all()
    assert (optimizer.state[module.bias]["exp_avg"] == 0).all() and optimizer.state[module.bias]["step"] == 0
    with pytest.raises(TypeError, match="LBFGS"):
        SharedState.of(optimizer=torch.optim.LBFGS(module.parameters()))


def test_a_newcomer_gets_module_optimiser_and_scheduler(fleet):
    fleet(2, """
        import torch
        comm = join()
        torch.manual_seed(index)
        module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01 * (index + 1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        extra = {"epoch": 0}
        state = SharedState.of(model=module, optimizer=optimizer, scheduler=scheduler, extra=extra)
        if index == 0:
            for _ in range(5):
                optimizer.zero_grad()
                module(torch.randn(4, 1, 6, 6)).square().sum().backward()
                optimizer.step()
                scheduler.step()
            extra["epoch"], state.revision = 3, 9
        comm.sync_shared_state(state)
        assert state.revision == 9 and extra == {"epoch": 3}
        assert optimizer.param_groups[0]["lr"] == 0.0025 and scheduler.last_epoch == 5, optimizer.param_groups
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999) and module[1].num_batches_tracked == 5
        assert optimizer.state[module[0].weight]["step"] == 5
        # From here both compute alike.
        torch.manual_seed(7)
        optimizer.zero_grad()
        module(torch.randn(4, 1, 6, 6)).square().sum().backward()
        optimizer.step()
        scheduler.step()
        state.push_revision()
        assert comm.sync_shared_state(state).rx_bytes == 0
        """)


def test_a_checkpoint_that_is_loaded_later_is_in_the_state(fleet):
    """The momentum was that of before the checkpoint, the sync said success, and the peers differed: 100 here, 101 there."""
    fleet(2, """
        import copy, torch
        comm = join()
        module = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        state = SharedState.of(model=module, optimizer=optimizer)
        comm.sync_shared_state(state)
        checkpoint = copy.deepcopy(optimizer.state_dict())
        for one in checkpoint["state"].values():
            one["momentum_buffer"].fill_(100 + index)
        optimizer.load_state_dict(checkpoint)
        state.push_revision()
        comm.sync_shared_state(state)
        values = [float(optimizer.state[p]["momentum_buffer"].min()) for p in module.parameters()]
        highest = numpy.array(values)
        comm.all_reduce(highest, op="max")
        assert values == highest.tolist(), (values, highest)
        # Other memory behind the same parameter.
        module.weight.data = torch.full((2, 3), float(index))
        state.push_revision()
        comm.sync_shared_state(state)
        highest = module.weight.detach().clone()
        comm.all_reduce(highest, op="max")
        assert torch.equal(highest, module.weight), module.weight
        # Other types of all parameters.
        module.to(torch.float64)
        with torch.no_grad():
            module.bias.fill_(index)
        state.push_revision()
        comm.sync_shared_state(state)
        highest = module.bias.detach().clone()
        comm.all_reduce(highest, op="max")
        assert highest.dtype == torch.float64 and torch.equal(highest, module.bias), module.bias
        """)


def test_what_cannot_be_seen_again_is_refused():
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    for snapshot in (module.state_dict(), optimizer.state_dict()):
        with pytest.raises(TypeError, match=r"SharedState.of\(model=model"):
            SharedState(snapshot)
        with pytest.raises(TypeError, match=r"SharedState.of\(model=model"):
            SharedState.of(snapshot=snapshot)
    for wrong in (module, optimizer):
        with pytest.raises(TypeError, match=r"SharedState.of"):
            SharedState(wrong)
    with pytest.raises(TypeError, match="Box"):
        SharedState(optimizer.state_dict)
    with pytest.raises(InvalidBuffer):
        SharedState.of(x=torch.zeros(1).expand(3))
    assert SharedState(module.state_dict).names() == ["weight", "bias"]
    # Weights that two layers share are there once.
    tied = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    tied["b"].weight = tied["a"].weight
    assert SharedState.of(model=tied).names() == ["model.a.weight", "model.a.bias", "model.b.bias"]
    assert TensorInfo.from_torch(module.weight, "w").numel == 6 and SharedState.of(step=Box(3)).names() == ["step"]
