"""``DistributedDataParallel`` for a group whose members change."""

from typing import Any, List, Set, Tuple

import torch
import torch.distributed as dist

#: What the reducers of all versions of torch that can do without the search have.
_NEEDED = ("_push_all_rebuilt_params", "_rebuild_buckets", "_reset_state", "_update_process_group")


def data_parallel(module: torch.nn.Module, group: Any = None,
                  **settings: Any) -> torch.nn.parallel.DistributedDataParallel:
    """``DistributedDataParallel`` for a group whose members change: it makes no collective calls when it is made, has
    the same buckets from the first step on, and averages over the members of the moment. Newcomers have to have the
    parameters of the others before their first step. ``settings`` are those of ``DistributedDataParallel``; a model
    some of whose parameters get no gradient in some steps needs ``find_unused_parameters=True``, as there."""
    if settings.get("static_graph"):
        raise ValueError("static_graph=True makes the first step of a process unlike the others, so nobody could join: "
                         "leave it out")
    chosen = dist.group.WORLD if group is None else group
    if not all(hasattr(dist.Reducer, name) for name in _NEEDED):
        settings.setdefault("find_unused_parameters", True)
    replica = Replica(module, process_group=chosen, init_sync=False, **settings)
    replica.settle_buckets()
    replica.register_comm_hook(chosen, _averaged)
    return replica


class Replica(torch.nn.parallel.DistributedDataParallel):
    """torch builds the buckets of gradients anew after the first step, in the order in which the gradients came, and
    agrees with the others on that. A newcomer makes its first step when the others have made theirs, so here they are
    built once, before any step, in the reverse order of the parameters."""

    def _build_params_for_reducer(self) -> Tuple[List[Any], List[Any]]:
        parameters, are_sparse = super()._build_params_for_reducer()
        return parameters[::-1], are_sparse[::-1]

    def settle_buckets(self) -> None:
        """Makes the buckets what they stay. With ``find_unused_parameters`` torch keeps those that it began with."""
        if self.find_unused_parameters:
            return
        # Each process comes to the same buckets by itself, so nobody is asked.
        self.reducer._update_process_group(_alone({parameter.device for parameter in self.module.parameters()}))
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()
        self.reducer._update_process_group(self.process_group)
        self._has_rebuilt_buckets = True

    def begin_again(self) -> None:
        """After a backward pass that came to no end: torch takes what it has missed for parameters without use."""
        if hasattr(self.reducer, "_reset_state"):
            self.reducer._reset_state()
            self.settle_buckets()


class _Alone(dist.distributed_c10d.C10DBackend):  # type: ignore[misc, name-defined]
    """The backend of a group of this process."""

    def broadcast(self, *_: Any) -> Any:
        """Everybody has it."""
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(None)
        return torch._C._distributed_c10d._create_work_from_future(done)


def _alone(devices: Set[torch.device]) -> dist.ProcessGroup:
    group = dist.ProcessGroup(0, 1)
    for device in devices:
        group._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, _Alone(0, 1))
    return group


def _averaged(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    future: torch.futures.Future[torch.Tensor] = group.allreduce([bucket.buffer()], opts).get_future().then(_first)
    return future


def _first(future: Any) -> torch.Tensor:
    tensor: torch.Tensor = future.value()[0]
    return tensor
