"""``Trainer(strategy="pccl")`` of Lightning, after ``import pccl.lightning``: docs/pytorch/programs.md."""

import os
from typing import Any, List, Optional

from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn

from ._errors import PCCLError
from ._state import SharedState
from .torch import elastic


class PCCLStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """DDP of all processes that train at the master at ``address``; they come and go. Lightning knows of its own
    process only, so each writes logs and checkpoints, and draws batches by its own seed."""

    def __init__(self, address: Optional[str] = None, min_world: Any = 2, device: Any = "cpu", **settings: Any):
        super().__init__(device, **settings)
        self._address, self._min_world, self._run = address or os.environ["PCCL_MASTER"], min_world, None

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            if trainer.accumulate_grad_batches != 1:
                raise ValueError("strategy pccl: newcomers would not have the gradients that others accumulate")
            self._run = elastic(self._address)
        super().setup(trainer)
        if self._run is not None:
            schedulers = [config.scheduler for config in self.lr_scheduler_configs]
            parts = {f"part{number}": part for number, part in enumerate([*self.optimizers, *schedulers])}
            self._state = SharedState.of(module=self.lightning_module, **parts)

    def _setup_model(self, model: Any) -> Any:
        return model if self._run is None else self._run.data_parallel(model)

    def validation_step(self, *batch: Any, **named: Any) -> Any:
        # On the module itself: others need not validate at the same time.
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*batch, **named)

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **settings: Any) -> Any:
        """One step of all: forward, backward and update, made again without who was lost; then who waits is let in."""
        results: List[Any] = []
        trainer, make = self.lightning_module.trainer, super().optimizer_step
        run, state, limit = self._run, self._state, trainer.max_steps
        run.run(lambda: results.append(make(optimizer, closure, model, **settings)), state=state,
                more=lambda: not results and state.revision != limit, min_world=self._min_world)
        # A newcomer has as many steps behind it as the others.
        step = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
        step.ready = step.completed = max(state.revision - 1, 0)
        try:
            if state.revision != limit and run.communicator.are_peers_pending():
                run.communicator.update_topology()
        except PCCLError as error:
            run.communicator.recover(error, min_world=1)
        return results[-1] if results else None

    def teardown(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None
        super().teardown()


StrategyRegistry.register("pccl", PCCLStrategy)
