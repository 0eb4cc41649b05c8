"""Has torch make groups of PCCL where a test asks for Gloo, by name or by its class."""

import os
import types
from datetime import timedelta

#: Groups that the class has made. A member that drops its own leaves it, which ends it for all: it stays to the end.
_kept = []


def stand_for_gloo():
    """Everywhere in this process, and in those that it forks."""
    import torch.distributed as dist
    from pccl.torch._create import create

    dist.Backend._ensure_backend_registered("gloo")
    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(create, True)
    real = dist.ProcessGroupGloo

    class ProcessGroupGloo:
        """The constructor of Gloo's class, and the settings that tests give to it."""

        create_device, create_default_device = real.create_device, real.create_default_device
        _Options = Options = real._Options

        def __new__(cls, store, rank, size, options=None, timeout=timedelta(minutes=30)):
            limit = getattr(options, "_timeout", options if isinstance(options, timedelta) else timeout)
            _kept.append(create(types.SimpleNamespace(
                store=store, group_rank=rank, group_size=size, timeout=limit, enable_reconfigure=False,
                global_ranks_in_group=list(range(size)), group_id=f"direct {os.getpid()}"), None))
            return _kept[-1]

    dist.ProcessGroupGloo = ProcessGroupGloo
