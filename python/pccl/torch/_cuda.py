"""Tensors on a GPU, which travel by way of pinned main memory.

Not tested: no machine with a GPU was at hand. It is plain staging: the way down is waited for before an operation
begins, the way up is ordered after what the caller's stream does.
"""

import torch


def fetch(tensor: torch.Tensor, given: bool) -> torch.Tensor:
    """Pinned memory of the same shape; with ``given`` it has the content that ``tensor`` has when all that its current
    stream has to do is done."""
    memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    if given:
        memory.copy_(tensor.detach(), non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(tensor.device))
        done.synchronize()
    return memory


def store(memory: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies ``memory`` to a tensor on a GPU. When it returns the content is there, so every stream may use it."""
    with torch.cuda.device(tensor.device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            tensor.detach().copy_(memory, non_blocking=True)
        stream.synchronize()
