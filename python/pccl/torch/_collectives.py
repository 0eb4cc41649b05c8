"""The collectives of c10d, by those of PCCL."""

from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

import torch

from ._arguments import alike, fits, inner, root_of, root_tensor_of, same_types, single
from ._bitwise import bitwise
from ._chain import Follow
from ._errors import CollectiveError, Unsupported
from ._lanes import Call
from ._lists import reduced_here, separate
from ._sparse import SparseSum
from ._tensors import Host, as_bytes, collected, host, reducible
from ._work import CollectiveWork, Finish, Part

_Tensors = Sequence[torch.Tensor]


class Collectives:
    """Calls of a process group that all members make. The options are those of torch, and so are the names."""

    #: What torch calls, also on the object that stands for the backend.
    CALLS = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced",
             "all_gather_single", "_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced",
             "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced",
             "reduce_scatter_tensor_coalesced")

    if TYPE_CHECKING:
        def rank(self) -> int: ...
        def size(self) -> int: ...
        def launch(self, what: str, calls: Sequence[Union[Call, Follow, Part]] = (), outputs: _Tensors = (),
                   finish: Sequence[Finish] = (), timeout: Optional[timedelta] = None) -> CollectiveWork: ...

    def allreduce(self, tensors: _Tensors, opts: Any = None, **named: Any) -> CollectiveWork:
        """Reduces a tensor over all members, in place. Several are reduced with each other, too, and all are the result;
        the sum of a sparse one is sparse."""
        several, operation = alike(tensors, "allreduce"), _operation(opts, named)
        if several[0].layout == torch.sparse_coo:
            total = SparseSum(several, operation, self.size())
            call = Follow(total.shapes(), total.elements)
            return self.launch("allreduce", [call], several, [total.finish], _limit(opts, named))
        if len(several) == 1:
            return self._all_reduced("allreduce", several, operation, _limit(opts, named))
        together = reduced_here(several, operation, "allreduce")
        return self._all_reduced("allreduce", [together], operation, _limit(opts, named), several)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None, **named: Any) -> CollectiveWork:
        """Reduces several tensors as one operation: all of them, or none."""
        return self._all_reduced("allreduce_coalesced", list(tensors), _operation(opts, named), _limit(opts, named))

    def _all_reduced(self, what: str, tensors: List[torch.Tensor], operation: Any, timeout: Optional[timedelta],
                     copies: _Tensors = ()) -> CollectiveWork:
        """``copies`` get the result of the first tensor."""
        if not tensors:
            return self.launch(what, timeout=timeout)
        bits = bitwise(tensors[0], operation, self.size()) if len(tensors) == 1 else None
        if bits is not None:
            finish = [bits.finish] + [_copy(tensors[0], copy) for copy in copies]
            return self.launch(what, [bits.call()], copies or tensors, finish, timeout)
        hosts = separate([host(tensor) for tensor in tensors])
        pairs = [reducible(it.flat, operation) for it in hosts]
        flats, op = [flat for flat, _ in pairs], pairs[0][1]
        if any(other is not op for _, other in pairs):
            raise Unsupported(f"{what}: tensors of bool are not reduced together with others")

        def begin(comm: Any, tag: int) -> Any:
            if len(flats) == 1:
                return comm.all_reduce_async(flats[0], op=op, tag=tag)
            return comm.all_reduce_many_async(flats, op=op, tag=tag)

        finish = [it.put_back for it in hosts] + [_copy(tensors[0], copy) for copy in copies]
        return self.launch(what, [Call(begin)], copies or tensors, finish, timeout)

    def broadcast(self, tensors: _Tensors, opts: Any = None, root: int = 0, **named: Any) -> CollectiveWork:
        """All get the tensor of the root; if there are several, all of them."""
        source = root_of("broadcast", opts, root, self.size())
        place = root_tensor_of("broadcast", opts, len(tensors))
        several = alike(tensors, "broadcast")
        tensor = several[place]
        its = host(tensor)
        finish = [its.put_back] if self.rank() != source else []
        finish += [_copy(tensor, other) for other in several if other is not tensor]
        call = Call(lambda comm, tag: comm.broadcast_async(as_bytes(its.flat), source, tag=tag))
        return self.launch("broadcast", [call], several, finish, _limit(opts, named))

    def reduce(self, tensors: _Tensors, opts: Any = None, root: int = 0, **named: Any) -> CollectiveWork:
        """Reduces a tensor over all members; the root has the result, the others what they had."""
        target = root_of("reduce", opts, root, self.size())
        tensor = single(tensors, "reduce")
        root_tensor_of("reduce", opts, 1)
        operation = _operation(opts, named)
        bits = bitwise(tensor, operation, self.size())
        if bits is not None:
            return self.launch("reduce", [bits.call()], [tensor], [bits.finish] if self.rank() == target else [],
                               _limit(opts, named))
        its = host(tensor)
        flat, op = reducible(its.flat, operation)
        finish = [its.put_back] if self.rank() == target else []
        call = Call(lambda comm, tag: comm.reduce_async(flat, target, op=op, tag=tag))
        return self.launch("reduce", [call], [tensor], finish, _limit(opts, named))

    # ---- Gathering

    def allgather(self, outputs: Any, inputs: _Tensors, opts: Any = None, **named: Any) -> CollectiveWork:
        """All get the tensors of all, in a list by rank. They may differ in size, if all members give the same list.
        Of several inputs, each list has all of all: the first member's first."""
        if not len(inputs):
            raise Unsupported("allgather: requires non-empty input tensor list")
        count, wanted = len(inputs), list(outputs)
        if wanted and isinstance(wanted[0], torch.Tensor):
            wanted = [wanted]
        if len(wanted) != count:
            raise CollectiveError(f"allgather: requires input/output tensor lists to have the same length, not {count} "
                                  f"and {len(wanted)}")
        if any(len(each) != self.size() * count for each in wanted):
            counts = " and ".join(str(len(each)) for each in wanted)
            raise CollectiveError(f"allgather: invalid output tensor list: {counts} tensors for {self.size()} members "
                                  f"with {count} each")
        given = alike(inputs, "allgather")
        same_types("allgather", list(chain(*wanted)), given[0])
        lists = [list(wanted[0][rank * count:(rank + 1) * count]) for rank in range(self.size())]
        copies = [_copy(first, other) for another in wanted[1:] for first, other in zip(wanted[0], another)]
        value = wanted if count > 1 else None
        return self._gathered_lists("allgather", lists, given, _limit(opts, named), copies, value)

    def allgather_coalesced(self, outputs: Any, inputs: _Tensors, opts: Any = None, **named: Any) -> CollectiveWork:
        """All get the lists of all: ``outputs`` has a list for each rank, with a tensor for each of the inputs."""
        lists, given = [list(each) for each in outputs], list(inputs)
        if len(lists) != self.size() or any(len(each) != len(given) for each in lists):
            raise CollectiveError(f"allgather_coalesced: lists of {[len(each) for each in lists]} tensors to receive, "
                                  f"{len(given)} tensors from each of {self.size()} members")
        return self._gathered_lists("allgather_coalesced", lists, given, _limit(opts, named))

    def _gathered_lists(self, what: str, lists: List[List[torch.Tensor]], given: List[torch.Tensor],
                        timeout: Optional[timedelta], then: Sequence[Finish] = (),
                        value: Optional[Sequence[_Tensors]] = None) -> CollectiveWork:
        """One operation: each member gives its tensors one behind the other; ``lists`` says by rank where they go."""
        for tensor, place in zip(given, lists[self.rank()]):
            fits(what, self.rank(), place, tensor)
        sizes = [[each.numel() * each.element_size() for each in one_rank] for one_rank in lists]
        counts, hosts = [sum(one_rank) for one_rank in sizes], [host(each, given=False) for each in chain(*lists)]
        flats = [as_bytes(host(tensor).flat) for tensor in given]
        its = flats[0] if len(flats) == 1 else torch.cat(flats or [torch.empty(0, dtype=torch.uint8)])
        into = torch.empty(sum(counts), dtype=torch.uint8)

        by_rank = None if len(set(counts)) == 1 else counts
        call = Call(lambda comm, tag: comm.all_gather_async(its, into, counts=by_rank, tag=tag))

        def finish() -> None:
            for part, each in zip(into.split(list(chain(*sizes))), hosts):
                as_bytes(each.flat).copy_(part)
                each.put_back()

        work = self.launch(what, [call], list(chain(*lists)), [finish, *then], timeout)
        work.value = value
        return work

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None,
                          **named: Any) -> CollectiveWork:
        """All get the tensors of all, as one tensor."""
        if output.numel() != input.numel() * self.size() or output.dtype != input.dtype:
            raise CollectiveError(f"all_gather_single: {output.numel()} elements of {output.dtype} to receive, "
                                  f"{input.numel()} of {input.dtype} from each of {self.size()} members")
        # The own part may lie in the output.
        its, into = _apart(input, output), host(output, given=False)
        call = Call(lambda comm, tag: comm.all_gather_async(as_bytes(its.flat), as_bytes(into.flat), tag=tag))
        return self.launch("all_gather_single", [call], [output], [into.put_back], _limit(opts, named))

    def all_gather_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None,
                                    **named: Any) -> CollectiveWork:
        """An ``all_gather_single`` for each pair of tensors."""
        works = [self.all_gather_single(output, input, opts, **named) for output, input in zip(outputs, inputs)]
        return self._together("all_gather_single_coalesced", works, _limit(opts, named))

    # ---- Scattering

    def reduce_scatter(self, outputs: _Tensors, inputs: Any, opts: Any = None, **named: Any) -> CollectiveWork:
        """Reduces a list of tensors over all members; each gets the one of its rank. They may differ in size."""
        output, given = single(outputs, "reduce_scatter"), inner(inputs, "reduce_scatter")
        if len(given) != self.size():
            raise CollectiveError(f"reduce_scatter: {len(given)} tensors for {self.size()} members")
        return self._scattered("reduce_scatter", output, collected(given, "reduce_scatter"), _operation(opts, named),
                               _limit(opts, named), [each.numel() for each in given])

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None,
                              **named: Any) -> CollectiveWork:
        """Reduces a tensor over all members; each gets its part."""
        return self._scattered("reduce_scatter_single", output, _apart(input, output).flat, _operation(opts, named),
                               _limit(opts, named))

    def reduce_scatter_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None,
                                        **named: Any) -> CollectiveWork:
        """A ``reduce_scatter_single`` for each pair of tensors."""
        works = [self.reduce_scatter_single(output, input, opts, **named) for output, input in zip(outputs, inputs)]
        return self._together("reduce_scatter_single_coalesced", works, _limit(opts, named))

    def _scattered(self, what: str, output: torch.Tensor, given: torch.Tensor, operation: Any,
                   timeout: Optional[timedelta], sizes: Sequence[int] = ()) -> CollectiveWork:
        """``sizes``: elements of each part, by rank, if they differ."""
        sizes = list(sizes) or [output.numel()] * self.size()
        if given.numel() != sum(sizes) or output.numel() != sizes[self.rank()] or given.dtype != output.dtype:
            raise CollectiveError(f"{what}: {given.numel()} elements of {given.dtype} to reduce, parts of "
                                  f"{output.numel()} of {output.dtype} for {self.size()} members")
        into = host(output, given=False)
        sent, op = reducible(given, operation)
        taken, _ = reducible(into.flat, operation)
        # The reduced tensor may have more elements than the tensor, such as two for a complex number.
        each = sent.numel() // given.numel() if given.numel() else 1
        counts = None if len(set(sizes)) == 1 else [size * each for size in sizes]
        call = Call(lambda comm, tag: comm.reduce_scatter_async(sent, taken, op=op, counts=counts, tag=tag))
        return self.launch(what, [call], [output], [into.put_back], timeout)

    def _together(self, what: str, works: Sequence[CollectiveWork], timeout: Optional[timedelta]) -> CollectiveWork:
        outputs = [tensor for work in works for tensor in work.result()]
        return self.launch(what, works, outputs, timeout=timeout)

    # Names that older versions of torch call.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _copy(source: torch.Tensor, target: torch.Tensor) -> Finish:
    def copy() -> None:
        target.detach().copy_(source)

    return copy


def _operation(opts: Any, named: Any) -> Any:
    if opts is None:
        return named.get("op", torch.distributed.ReduceOp.SUM)
    # ``allreduce(tensor, op)`` of torch has the operation in the place of the options.
    return getattr(opts, "reduceOp", opts)


def _limit(opts: Any, named: Any) -> Optional[timedelta]:
    limit: Optional[timedelta] = named.get("timeout") or getattr(opts, "timeout", None)
    return limit


def _apart(input: torch.Tensor, output: torch.Tensor) -> Host:
    """The memory of ``input``, a copy if it is a part of that of ``output``."""
    its = host(input)
    same = input.device.type == "cpu" and (input.untyped_storage().data_ptr() == output.untyped_storage().data_ptr())
    return Host(its.flat.clone(), its.put_back) if same else its

