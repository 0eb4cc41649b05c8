"""Lightning over PCCL: as a backend of its own strategies, and as ``strategy="pccl"`` with a kill and a join."""

import re

import pytest
from ports import free_port
from torch_programs import finish, line, ranks  # noqa: F401

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("lightning", reason="Lightning is not installed")

PROLOGUE = """
    import os
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel
    settings = dict(accelerator="cpu", max_epochs=-1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, limit_val_batches=2)
    def total(model):
        return " ".join(parameter.detach().numpy().tobytes().hex() for parameter in model.parameters())
    """

#: Two survivors go on from step 10, and wait at step 20 for a third.
ELASTIC = PROLOGUE + """
    import pccl.lightning
    class Model(BoringModel):
        def training_step(self, batch, number):
            if self.trainer.global_step == 10 and rank == 1:
                say("doomed")
                go()
            return super().training_step(batch, number)
        def on_train_batch_end(self, outputs, batch, number):
            if self.trainer.global_step in (15, 30):
                say(f"step {self.trainer.global_step} of {dist.get_world_size()}")
    lightning.seed_everything(rank)
    strategy = pccl.lightning.PCCLStrategy(
        where, min_world=lambda: 2 if 10 <= strategy.lightning_module.trainer.global_step < 20 else 3)
    trainer, model = lightning.Trainer(strategy=strategy, max_steps=30, **settings), Model()
    trainer.fit(model)
    say(f"end {trainer.global_step} {total(model)}")
    """

FIXED = PROLOGUE + """
    backend, port = where.split(":")
    os.environ.update(WORLD_SIZE=str(size), NODE_RANK=str(rank), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=port)
    from lightning.pytorch.strategies import DDPStrategy
    lightning.seed_everything(1)
    trainer, model = lightning.Trainer(strategy=DDPStrategy(process_group_backend=backend), devices=1, num_nodes=size,
                                       max_steps=5, **settings), BoringModel()
    trainer.fit(model)
    assert dist.get_backend() == backend
    say(f"end {total(model)}")
    """

NAMED = PROLOGUE + """
    import pccl.lightning
    os.environ["PCCL_MASTER"] = where
    trainer, model = lightning.Trainer(strategy="pccl", max_steps=3, **settings), BoringModel()
    trainer.fit(model)
    say(f"end {total(model)}")
    """


def test_the_strategy_goes_on_over_a_kill_and_a_join(ranks, master):  # noqa: F811
    peers = ranks(3, master, ELASTIC)
    line(peers[1], "doomed")
    peers[1].kill()
    rest = [peers[0], peers[2]]
    for peer in rest:
        line(peer, "step 15 of 2")
    rest += ranks(3, master, ELASTIC.replace("rank == 1", "False"), [1])
    for peer in rest:
        line(peer, "step 30 of 3")
    ends = {line(peer, "end 30") for peer in rest}
    assert len(ends) == 1, ends
    finish(rest)


def test_the_name_of_the_strategy_is_known_after_the_import(ranks, master):  # noqa: F811
    peers = ranks(2, master, NAMED)
    assert len({line(peer, "end") for peer in peers}) == 1
    finish(peers)


def test_ddp_of_lightning_is_the_same_over_gloo_and_pccl(ranks):  # noqa: F811
    """Of two, whose order of adding does not matter."""
    ends = set()
    for backend in ("gloo", "pccl"):
        peers = ranks(2, f"{backend}:{free_port()}", FIXED)
        ends |= {line(peer, "end") for peer in peers}
        finish(peers)
    assert len(ends) == 1 and re.match("end [0-9a-f]+ [0-9a-f]+$", ends.pop())
