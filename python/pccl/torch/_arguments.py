"""What a call is refused for, in the words of Gloo, which programs look for."""

from typing import Any, List, Sequence

import torch

from ._errors import CollectiveError, Unsupported


def root_of(what: str, opts: Any, root: int, size: int) -> int:
    """The rank that the options name, or ``root``."""
    rank = int(getattr(opts, "rootRank", root))
    if not 0 <= rank < size:
        raise CollectiveError(f"{what}: invalid root rank: {rank}, of {size} members")
    return rank


def root_tensor_of(what: str, opts: Any, count: int) -> int:
    """The place of the tensor that is given, of ``count``."""
    place = int(getattr(opts, "rootTensor", 0))
    if not 0 <= place < count:
        raise CollectiveError(f"{what}: invalid root tensor: {place}, of {count} tensors")
    return place


def alike(tensors: Any, what: str, which: str = "tensor list") -> List[torch.Tensor]:
    """The tensors of one call: at least one, all of the same layout, type and shape."""
    several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if not several:
        raise Unsupported(f"{what}: requires non-empty {which}")
    for place, tensor in enumerate(several):
        if tensor.layout != several[0].layout:
            raise Unsupported(f"{what}: invalid tensor layout at index {place} ({tensor.layout}, the first has "
                              f"{several[0].layout})")
        same_types(what, [tensor], several[0], place)
        if tensor.shape != several[0].shape:
            raise _other_size(what, place, tensor, several[0])
    return several


def same_types(what: str, tensors: Sequence[torch.Tensor], wanted: torch.Tensor, first: int = 0) -> None:
    """The tensors of a list, which are those from ``first``, have the type that they have to have."""
    for place, tensor in enumerate(tensors, first):
        if tensor.dtype != wanted.dtype:
            raise Unsupported(f"{what}: invalid tensor type at index {place} (expected {wanted.dtype}, got "
                              f"{tensor.dtype})")


def fits(what: str, place: int, tensor: torch.Tensor, wanted: torch.Tensor) -> None:
    """The tensor of a list for what this process gives itself has the type and the number of elements of that."""
    same_types(what, [tensor], wanted, place)
    if tensor.numel() != wanted.numel():
        raise _other_size(what, place, tensor, wanted)


def _other_size(what: str, place: int, tensor: torch.Tensor, wanted: torch.Tensor) -> Unsupported:
    return Unsupported(f"{what}: invalid tensor size at index {place} (expected {list(wanted.shape)}, got "
                       f"{list(tensor.shape)})")


def single(tensors: Any, what: str, which: str = "tensor list") -> Any:
    """The only one of a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise Unsupported(f"{what}: requires a single-element {which}, not one of {len(tensors)}")
    return tensors[0]


def inner(lists: Any, what: str, which: str = "list") -> List[torch.Tensor]:
    """The list for this process: torch wraps it into another one."""
    return list(lists) if lists and isinstance(lists[0], torch.Tensor) else list(single(lists, what, which))


def only_at_root(what: str, which: str, lists: Sequence[Any]) -> None:
    """Nobody but the root gives, or gets, a list."""
    if len(lists):
        raise CollectiveError(f"{what}: requires empty {which} on non-root")


def one_for_each(what: str, which: str, tensors: Sequence[torch.Tensor], size: int) -> None:
    """A list has a tensor for each member."""
    if len(tensors) != size:
        raise CollectiveError(f"{what}: Incorrect {which} list size {len(tensors)}. {which.capitalize()} list size "
                              f"should be {size}, same as size of the process group.")
