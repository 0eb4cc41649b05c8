"""Several tensors in one call, as for a process with several devices: what torch's backends for one device still take."""

from typing import Any, Callable, Dict, List, Sequence

import torch

from .._enums import ReduceOp
from ._errors import Unsupported
from ._tensors import Host

_TOGETHER: Dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum, "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}


def reduced_here(tensors: Sequence[torch.Tensor], operation: Any, what: str) -> torch.Tensor:
    """What this process gives to a reduce over all tensors of all members."""
    name = ReduceOp._foreign_name(operation) or str(operation)
    if name not in _TOGETHER:
        raise Unsupported(f"{what}: no ReduceOp.{name} of several tensors in one call: {', '.join(_TOGETHER)}")
    total = tensors[0].detach().clone()
    for tensor in tensors[1:]:
        total = _TOGETHER[name](total, tensor.detach())
    return total


def separate(hosts: List[Host]) -> List[Host]:
    """The memories of one call, each its own: one that lies in another is copied, as when a list has a tensor twice."""
    places = sorted(range(len(hosts)), key=lambda place: hosts[place].flat.data_ptr())
    end, apart = 0, list(hosts)
    for place in places:
        flat = hosts[place].flat
        if flat.data_ptr() < end and flat.numel():
            apart[place] = _copied(hosts[place])
        end = max(end, flat.data_ptr() + flat.numel() * flat.element_size())
    return apart


def _copied(its: Host) -> Host:
    copy = its.flat.clone()

    def put_back() -> None:
        its.flat.copy_(copy)
        its.put_back()

    return Host(copy, put_back)
