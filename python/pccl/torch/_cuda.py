"""Tensors on a GPU, which travel by way of pinned main memory.

Not tested: no machine with a GPU was at hand. It is plain staging: the way down is waited for before an operation
begins, the way up is ordered after what the caller's stream had to do when the operation began, and waited for.

``pccl.cuda.results_on_stream`` is not for this. It orders a result before what that same stream does next, but callers
of c10d may wait for a work on another stream or thread, and take its future, which knows no stream.
"""

import torch


class Staged:
    """Pinned memory that stands for a tensor on a GPU."""

    def __init__(self, tensor: torch.Tensor, given: bool):
        """With ``given`` the memory has the content that ``tensor`` has when all that its current stream has to do is
        done."""
        self._tensor = tensor.detach()
        #: Of the shape of the tensor.
        self.memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        if given:
            self.memory.copy_(self._tensor, non_blocking=True)
        # Work that was queued before may still use the memory on the device, even if its content does not matter.
        self._before = torch.cuda.Event()
        self._before.record(torch.cuda.current_stream(tensor.device))
        if given:
            self._before.synchronize()

    def put_back(self) -> None:
        """Copies the memory to the tensor. When it returns the content is there, so every stream may use it."""
        with torch.cuda.device(self._tensor.device):
            stream = torch.cuda.Stream()
            stream.wait_event(self._before)
            with torch.cuda.stream(stream):
                self._tensor.copy_(self.memory, non_blocking=True)
            stream.synchronize()
