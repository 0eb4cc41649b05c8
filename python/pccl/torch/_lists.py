"""Several tensors in one call, as for a process with several devices: what torch's backends for one device still take."""

from typing import Any, Callable, Dict, List, Sequence

import torch

from .._enums import ReduceOp
from ._errors import Unsupported

_TOGETHER: Dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum, "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}


def alike(tensors: Any, what: str) -> List[torch.Tensor]:
    """The tensors of one call: at least one, all of the same type and shape."""
    several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if not several:
        raise Unsupported(f"{what}: there has to be at least one tensor")
    if any(tensor.dtype != several[0].dtype or tensor.shape != several[0].shape for tensor in several):
        raise Unsupported(f"{what}: the tensors of one call have the same type and shape")
    return several


def reduced_here(tensors: Sequence[torch.Tensor], operation: Any, what: str) -> torch.Tensor:
    """What this process gives to a reduce over all tensors of all members."""
    name = ReduceOp._foreign_name(operation) or str(operation)
    if name not in _TOGETHER:
        raise Unsupported(f"{what}: no ReduceOp.{name} of several tensors in one call: {', '.join(_TOGETHER)}")
    total = tensors[0].detach().clone()
    for tensor in tensors[1:]:
        total = _TOGETHER[name](total, tensor.detach())
    return total
