"""The sum of sparse tensors: the number of elements of each member first, then all indices and values."""

from typing import Any, List, Sequence

import torch

from .._enums import ReduceOp
from ._errors import CollectiveError, Unsupported
from ._lanes import Call
from ._tensors import as_bytes

_INDEX_BYTES = 8


class SparseSum:
    """One ``allreduce`` of tensors in the layout COO, in place: all become the sum of all."""

    def __init__(self, tensors: Sequence[torch.Tensor], operation: Any, size: int):
        name = ReduceOp._foreign_name(operation) or str(operation)
        if name != "SUM":
            raise Unsupported("allreduce: unsupported reduction operation: "
                              f"the backend pccl has no ReduceOp.{name} for sparse tensors: SUM")
        if any(tensor.device.type != "cpu" for tensor in tensors):
            raise Unsupported(f"the backend pccl reduces sparse tensors on cpu, not on {tensors[0].device}")
        total = tensors[0].detach()
        for tensor in tensors[1:]:
            total = total + tensor.detach()
        self._tensors, self._tensor, self._size, its = tensors, tensors[0], size, total.coalesce()
        self._indices, self._values = its.indices().contiguous(), its.values().contiguous()
        self._own = torch.tensor([self._indices.shape[1], its.sparse_dim(), *its.shape])
        self._shapes = torch.empty(size * len(self._own), dtype=self._own.dtype)
        self._received = torch.empty(0, dtype=torch.uint8)
        self._counts: List[int] = []

    def shapes(self) -> Call:
        """The first operation: who has how many elements, and that all have the same shape."""
        return Call(lambda comm, tag: comm.all_gather_async(self._own, self._shapes, tag=tag))

    def elements(self) -> Call:
        """The second operation: all elements."""
        rows = self._shapes.view(self._size, -1)
        for rank, row in enumerate(rows.tolist()):
            if row[1:] != self._own.tolist()[1:]:
                raise CollectiveError(f"allreduce: sparse tensors of other shapes: {row[2:]} with {row[1]} sparse "
                                      f"dimensions at rank {rank}, {self._own.tolist()[2:]} with {int(self._own[1])} here")
        dense = torch.Size(self._tensor.shape[int(self._own[1]):]).numel()
        #: Bytes of the index and of the value of one element.
        self._each = _INDEX_BYTES * int(self._own[1]), dense * self._values.element_size()
        self._counts = [count * sum(self._each) for count in rows[:, 0].tolist()]
        own = torch.cat([as_bytes(self._indices.view(-1)), as_bytes(self._values.reshape(-1))])
        self._received = torch.empty(sum(self._counts), dtype=torch.uint8)
        counts = None if len(set(self._counts)) == 1 else self._counts
        return Call(lambda comm, tag: comm.all_gather_async(own, self._received, counts=counts, tag=tag))

    def finish(self) -> None:
        """Puts the sum of what has come into the tensor: in the order of the ranks, and so the same everywhere."""
        indices, values = [], []
        for part in self._received.split(self._counts):
            count = part.numel() // sum(self._each) if sum(self._each) else 0
            first, second = part.split([count * self._each[0], count * self._each[1]])
            indices.append(first.clone().view(torch.int64).view(int(self._own[1]), count))
            values.append(second.clone().view(self._values.dtype).view(count, *self._values.shape[1:]))
        total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), self._tensor.shape,
                                        check_invariants=True)
        with torch.no_grad():
            for tensor in self._tensors:
                tensor.copy_(total.coalesce())
