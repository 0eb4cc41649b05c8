"""Tensors of torch as memory that PCCL moves: types, layouts, and copies where those are needed."""

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from .._enums import DataType, ReduceOp
from ._cuda import Staged
from ._errors import Unsupported

#: What is done with a tensor once an operation has succeeded.
Finish = Callable[[], None]

_REDUCIBLE = {member.to_torch_dtype() for member in DataType}
_OF_BOOL = {"SUM": ReduceOp.MAX, "MAX": ReduceOp.MAX, "BOR": ReduceOp.MAX,
            "PRODUCT": ReduceOp.MIN, "MIN": ReduceOp.MIN, "BAND": ReduceOp.MIN}
_PLAIN = {"SUM": ReduceOp.SUM, "AVG": ReduceOp.AVG, "PRODUCT": ReduceOp.PROD, "MAX": ReduceOp.MAX, "MIN": ReduceOp.MIN}


class Host:
    """A tensor in contiguous main memory, and what brings it back to where it came from."""

    def __init__(self, tensor: torch.Tensor, put_back: Finish):
        #: Contiguous, flat, on the CPU.
        self.flat = tensor.reshape(-1)
        #: Copies what was received to the tensor of the caller, if that is another one.
        self.put_back = put_back


def host(tensor: torch.Tensor, *, given: bool = True) -> Host:
    """The memory of ``tensor`` as PCCL can use it; a copy if it is not contiguous or on another device. Without
    ``given`` its content does not matter."""
    check(tensor)
    if tensor.device.type != "cpu":
        staged = Staged(tensor, given)
        return Host(staged.memory, staged.put_back)
    origin = tensor.detach()
    if origin.is_contiguous():
        return Host(origin, _nothing)
    copy = origin.contiguous() if given else torch.empty(origin.shape, dtype=origin.dtype)
    return Host(copy, lambda: _copy(copy, origin))


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def _nothing() -> None:
    pass


def check(tensor: torch.Tensor) -> None:
    """Refuses what has no plain memory."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Unsupported(f"the backend pccl moves dense tensors, not one with layout {tensor.layout}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"the backend pccl moves tensors on cpu and cuda, not on {tensor.device}")


def as_bytes(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of a flat tensor of any type."""
    if flat.is_conj() or flat.is_neg():
        raise Unsupported("a conjugated or negated view cannot be moved: resolve_conj(), resolve_neg()")
    return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)


def reducible(flat: torch.Tensor, operation: Any) -> Tuple[torch.Tensor, ReduceOp]:
    """A view of ``flat`` with elements that PCCL reduces, and the operation on them."""
    name = ReduceOp._foreign_name(operation) or str(operation)
    if flat.dtype == torch.bool:
        return as_bytes(flat), _chosen(_OF_BOOL, name, flat)
    if flat.is_complex():
        if name not in ("SUM", "AVG"):
            raise Unsupported(f"the backend pccl has no ReduceOp.{name} for {flat.dtype}: SUM and AVG")
        return torch.view_as_real(flat).view(-1), _PLAIN[name]
    if flat.dtype not in _REDUCIBLE:
        raise Unsupported(f"the backend pccl does not reduce elements of type {flat.dtype}")
    return flat, _chosen(_PLAIN, name, flat)


def _chosen(known: Any, name: str, flat: torch.Tensor) -> ReduceOp:
    if name not in known:
        raise Unsupported(f"the backend pccl has no ReduceOp.{name} for {flat.dtype}: {', '.join(known)}")
    chosen: ReduceOp = known[name]
    return chosen


def collected(tensors: Sequence[torch.Tensor], what: str) -> torch.Tensor:
    """The content of all tensors of a list, one after the other."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise Unsupported(f"{what}: tensors of one list have the same type")
    return torch.cat([host(tensor).flat for tensor in tensors])


def parts(flat: torch.Tensor, sizes: List[int], rows: int, count: int, what: str) -> List[torch.Tensor]:
    """``flat`` cut into ``count`` parts along its first dimension of ``rows``: equal ones without ``sizes``."""
    if not sizes:
        if rows % count:
            raise Unsupported(f"{what}: {rows} rows do not split into {count} equal parts")
        sizes = [rows // count] * count
    if len(sizes) != count or sum(sizes) != rows:
        raise Unsupported(f"{what}: {len(sizes)} sizes with a sum of {sum(sizes)}, but {count} members and {rows} rows")
    row = flat.numel() // rows if rows else 0
    return list(flat.split([size * row for size in sizes]))
