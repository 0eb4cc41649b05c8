"""Training with whoever is there: no list of members, no rank that must not die."""

import functools
import os
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Iterator, Optional

import torch
import torch.distributed as dist

from .._communicator import Communicator
from .._state import SharedState
from ._create import Options
from ._errors import CollectiveError
from ._group import PCCLProcessGroup
from ._replica import data_parallel


def elastic(address: str, timeout: Optional[timedelta] = None, **settings: Any) -> "Elastic":
    """Makes the default process group of all who train at the master at ``address``; they come and go.

    Operations go on with who is there: rank and size are those of the moment, a newcomer is let in between two steps,
    and when a member dies the operation fails on all others and the step is made again. ``timeout`` is the limit of
    operations; ``settings`` are those of ``pccl.Communicator``.
    """
    settings.setdefault("first_ports", (0, 0))
    communicator = Communicator(address, **settings)
    communicator.connect()
    with _unrecorded():
        dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout,
                                pg_options=Options(elastic=communicator))
    group = dist.distributed_c10d._get_default_group()
    assert isinstance(group, PCCLProcessGroup)
    return Elastic(communicator, group)


@contextmanager
def _unrecorded() -> Iterator[None]:
    """The flight recorder of torch knows groups by the ranks that they begin with, and warns of this one, whose members
    change. PCCL has a recorder of its own."""
    name = "TORCH_FR_BUFFER_SIZE"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class Elastic:
    """What ``elastic`` returns. A context manager: at its end this process leaves the run."""

    def __init__(self, communicator: Communicator, group: PCCLProcessGroup):
        #: Its calls are those of every PCCL program.
        self.communicator = communicator
        #: The default process group.
        self.group = group

    def data_parallel(self, module: torch.nn.Module, **settings: Any) -> torch.nn.parallel.DistributedDataParallel:
        """``data_parallel`` over this group."""
        replica = data_parallel(module, self.group, **settings)
        self.communicator._replicas.append(replica)
        return replica

    def run(self, step: Callable[..., Any], *, state: SharedState, **settings: Any) -> None:
        """``Communicator.run`` for a step that calls torch: it syncs ``state``, calls ``step``, lets in who waits, and
        makes the step again when a member was lost, from the gradients, buffers, scalers and random numbers that the
        first try began with. A step may change parameters at its end only, as ``optimizer.step()`` after ``backward()``
        does."""

        @functools.wraps(step)
        def translated(*computed: Any) -> None:
            self.group.forget_errors()
            try:
                step(*computed)
            except Exception as error:
                self.group.drain()
                for replica in self.communicator._replicas:
                    replica.begin_again()
                # Errors that have come through the C++ of torch are but text; the group knows what they were.
                known = error if isinstance(error, CollectiveError) else self.group.last_error
                if not isinstance(error, RuntimeError) or known is None or known.error is None:
                    raise
                raise known.error from error

        self.communicator.run(translated, state=state, **settings)

    def close(self) -> None:
        """Leaves the run."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> "Elastic":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
