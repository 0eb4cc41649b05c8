"""BAND, BOR and BXOR of integers. PCCL has no such operation: each member gets all tensors and computes for itself."""

from typing import Any, Optional

import torch

from .._enums import ReduceOp
from ._lanes import Call
from ._tensors import as_bytes, host

_TOGETHER = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
#: torch computes with bits of these only.
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Bitwise:
    """The result of one such reduce, in place. Nothing is changed before all have come."""

    def __init__(self, tensor: torch.Tensor, name: str, size: int):
        self._its, self._together = host(tensor), _TOGETHER[name]
        self._received = torch.empty(size * self._its.flat.numel(), dtype=self._its.flat.dtype)

    def call(self) -> Call:
        """The all-gather of all tensors, as bytes."""
        own, into = as_bytes(self._its.flat), as_bytes(self._received)
        return Call(lambda comm, tag: comm.all_gather_async(own, into, tag=tag))

    def finish(self) -> None:
        """Computes, in the order of the ranks."""
        signed = _SIGNED[self._received.element_size()]
        rows = self._received.view(signed).view(-1, self._its.flat.numel()) if self._its.flat.numel() else []
        for place, row in enumerate(rows):
            own = self._its.flat.view(signed)
            own.copy_(row if place == 0 else self._together(own, row))
        self._its.put_back()


def bitwise(tensor: torch.Tensor, operation: Any, size: int) -> Optional[Bitwise]:
    """The reduce, if this is one: bools have BAND and BOR among the operations of PCCL."""
    name = ReduceOp._foreign_name(operation) or str(operation)
    is_whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    if name not in _TOGETHER or not is_whole or (tensor.dtype == torch.bool and name != "BXOR"):
        return None
    return Bitwise(tensor, name, size)
