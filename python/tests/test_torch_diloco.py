"""Low-communication training of models of PyTorch."""

import importlib.util
import os
import re
import subprocess
import sys
import threading

import pccl
import pytest

torch = pytest.importorskip("torch")

from pccl.diloco import DiLoCo  # noqa: E402

PORTS = {"first_ports": (0, 0)}
#: For processes that share the cores of one machine.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def network(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def train(address, seed, steps, ends, dtype=torch.float32, **settings):
    model = network(seed, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(100 + seed)
    with DiLoCo(address, model, inner=optimizer, **settings, **PORTS) as run:
        while run.step_index < steps:
            inputs = torch.randn(32, 8, generator=generator)
            loss = (model(inputs.to(dtype)) - inputs.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(tokens=32)
    ends[seed] = (model, float(loss.detach()))


@pytest.mark.parametrize("settings", [
    {"every": 20, "fragments": 4, "overlap": 2, "compress": "int4"},
    {"every": 10, "fragments": lambda name: int(name.startswith("2")), "compress": "int8", "quorum": 0.5},
    {"every": 10, "compress": "bf16", "dtype": torch.bfloat16},
])
def test_models_end_alike_and_have_learnt(settings):
    ends = {}
    with pccl.MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        threads = [threading.Thread(target=train, args=(address, seed, 400, ends), kwargs=settings)
                   for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (first, loss), (second, _) = ends[0], ends[1]
    for own, other in zip(first.parameters(), second.parameters()):
        assert own.dtype == other.dtype and torch.equal(own, other)
    # Without training it is about 8.
    assert loss < 3


def test_the_loop_of_the_page_trains(monkeypatch):
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "diloco.md")
    with open(page) as lines:
        loop = re.search(r"```python\n(.*?)```", lines.read(), re.S).group(1)
    with pccl.MasterNode("127.0.0.1:0") as master:
        loop = loop.replace("master:48148", f"127.0.0.1:{master.port}")
        loop = loop.replace("quorum=0.75", "quorum=0.75, first_ports=(0, 0)")
        models = {}

        def run(seed):
            model = network(seed)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

            def train_one_batch(model, optimizer):
                inputs = torch.randn(16, 8)
                loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss

            exec(loop, {"model": model, "optimizer": optimizer, "steps": 100, "batch_tokens": 16,
                        "train_one_batch": train_one_batch})
            models[seed] = model

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for own, other in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(own, other)


def test_the_program_of_the_readme_trains_on_three_machines(tmp_path):
    readme = os.path.join(os.path.dirname(__file__), "..", "..", "README.md")
    program = re.search(r"```python\n(import sys, torch.*?)```", open(readme).read(), re.S).group(1)
    # So short a training would be over before the last of them has loaded torch.
    program = program.replace('"quorum"', '"min_world": 3, "quorum"')
    with pccl.MasterNode("127.0.0.1:0") as master:
        members = []
        for place in map(str, range(3)):
            (tmp_path / place).mkdir()
            members.append(subprocess.Popen([sys.executable, "-c", program, f"127.0.0.1:{master.port}"],
                                            cwd=tmp_path / place, env=ONE_THREAD))
        try:
            assert [member.wait(300) for member in members] == [0, 0, 0]
        finally:
            for member in members:
                member.kill()
    first, *others = (torch.load(tmp_path / place / "model.pt") for place in ("0", "1", "2"))
    assert all(torch.equal(value, other[name]) for other in others for name, value in first.items())
    inputs = torch.randn(1000, 8)
    hidden = torch.tanh(inputs @ first["0.weight"].T + first["0.bias"])
    assert (hidden @ first["2.weight"].T + first["2.bias"] - inputs.sum(1, keepdim=True)).pow(2).mean() < 1


def test_an_optimiser_of_another_model_is_refused():
    model, other = network(0), network(1)
    with pytest.raises(ValueError, match="not those of the model"):
        DiLoCo("127.0.0.1:1", model, inner=torch.optim.SGD(other.parameters(), lr=0.1))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter"):
        DiLoCo("127.0.0.1:1", model)
    with pytest.raises(ValueError, match="not 0 to 1"):
        DiLoCo("127.0.0.1:1", other, fragments=lambda name: 3 * int(name.startswith("2")))


def together(member):
    """Two members on threads, which end alike."""
    models, errors = {}, []

    def run(address, seed):
        try:
            models[seed] = member(address, network(seed))
        except BaseException as error:
            errors.append(error)

    with pccl.MasterNode("127.0.0.1:0") as master:
        threads = [threading.Thread(target=run, args=(f"127.0.0.1:{master.port}", seed)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors, errors
    for own, other in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(own, other)


class Squares(torch.utils.data.Dataset):
    """Samples that know their numbers."""

    def __len__(self):
        return 900

    def __getitem__(self, at):
        return at, torch.full((8,), at / 900)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gets_each_sample_once_an_epoch_over_all_members(workers):
    seen, audits = [], []
    joined = threading.Barrier(2)

    def member(address, model):
        samples = pccl.Samples(900, seed=3, epochs=2, batch=16, ahead=2 * workers)
        loader = torch.utils.data.DataLoader(Squares(), batch_sampler=samples, num_workers=workers)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with DiLoCo(address, model, inner=optimizer, every=6, overlap=2, samples=samples, **PORTS) as run:
            joined.wait(60)
            while not samples.done:
                for numbers, inputs in loader:
                    optimizer.zero_grad()
                    model(inputs).mean().backward()
                    optimizer.step()
                    run.step(samples=len(numbers))
                    seen.extend(numbers.tolist())
            audits.append([samples.counted(number) for number in range(run.stats().rounds)])
        return model

    together(member)
    assert audits[0] == audits[1]
    # Nobody died, so what was trained on is what was counted.
    for counted in (seen, [at for step in audits[0] for at in step]):
        assert sorted(counted) == sorted(list(range(900)) * 2)


def blocks_of_the_page(word):
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "diloco.md")) as lines:
        return [block for block in re.findall(r"```python\n(.*?)```", lines.read(), re.S) if word in block]


def test_the_callback_of_the_page_trains_with_lightning():
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    [block] = blocks_of_the_page("import lightning")
    names = {}
    exec(block, names)

    class Module(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def training_step(self, batch, number):
            return (self.model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def member(address, model):
        rounds = names["Rounds"](address, 40, every=10, first_ports=(0, 0))
        trainer = lightning.Trainer(callbacks=[rounds], max_epochs=-1, accelerator="cpu", devices=1, logger=False,
                                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Module(model), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16))
        assert trainer.global_step >= 40
        return model

    together(member)


def test_the_loop_of_the_page_trains_with_accelerate():
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    [block] = blocks_of_the_page("import accelerate")

    def member(address, model):
        inputs = torch.randn(64, 8)
        data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
        code = block.replace("master:48148", address).replace("every=100", "every=10, first_ports=(0, 0)")
        exec(code, {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "steps": 40,
                    "loader": torch.utils.data.DataLoader(data, batch_size=16),
                    "loss_of": torch.nn.functional.mse_loss})
        return model

    together(member)


SHARD = """
import sys
import torch
from torch.distributed.fsdp import fully_shard
from pccl.diloco import DiLoCo

address, node, rank, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(node)
model = torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(10 * node + rank)
with DiLoCo(address, model, inner=optimizer, every=10, fragments=2, overlap=2, compress="int8", peer_group=rank,
            first_ports=(0, 0)) as run:
    while run.step_index < 300:
        inputs = torch.randn(32, 8, generator=generator)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(tokens=32)
shard = b"".join(it.detach().to_local().numpy().tobytes() for it in model.parameters())
print(rank, shard.hex(), f"{float(loss):.3f}", flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.skipif(importlib.util.find_spec("torch.distributed.fsdp") is None, reason="this torch has no FSDP2")
def test_each_shard_of_fsdp2_meets_the_same_shard_of_the_other_nodes(tmp_path):
    with pccl.MasterNode("127.0.0.1:0") as master:
        processes = [subprocess.Popen(
            [sys.executable, "-c", SHARD, f"127.0.0.1:{master.port}", str(node), str(rank), str(tmp_path / str(node))],
            stdout=subprocess.PIPE, text=True, env=ONE_THREAD) for node in range(2) for rank in range(2)]
        try:
            ends = [process.communicate(timeout=300)[0].split() for process in processes]
        finally:
            for process in processes:
                process.kill()
    shards = {(at // 2, int(rank)): shard for at, (rank, shard, _) in enumerate(ends)}
    assert shards[0, 0] == shards[1, 0] and shards[0, 1] == shards[1, 1]
    # A shard is a part of the 401 parameters.
    assert shards[0, 0] != shards[0, 1] and all(len(shard) // 8 < 401 for shard in shards.values())
    assert all(float(loss) < 3 for *_, loss in ends)
