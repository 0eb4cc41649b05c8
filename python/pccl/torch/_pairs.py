"""The calls of c10d that are transfers between two members, or parts for each."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple, Union

import torch

from ._arguments import fits, inner, one_for_each, only_at_root, root_of, same_types, single
from ._all_to_all import MOST_DIRECT, AllToAll
from ._arrivals import Arrivals
from ._collectives import _apart, _limit
from ._errors import CollectiveError, Unsupported
from ._lanes import Call
from ._tags import OWN
from ._tensors import as_bytes, host, parts
from ._work import CollectiveWork, Finish, Part

_Tensors = Sequence[torch.Tensor]


class PairCalls(AllToAll):
    """``send``, ``recv``, and the collectives that consist of them."""

    #: What torch calls, also on the object that stands for the backend.
    CALLS = ("send", "recv", "recv_anysource", "gather", "gather_single", "gather_into_tensor", "scatter", "alltoall",
             "all_to_all_single", "alltoall_base")

    if TYPE_CHECKING:
        arrivals: Arrivals

        def rank(self) -> int: ...
        def size(self) -> int: ...
        def launch(self, what: str, calls: Sequence[Union[Call, Part]] = (), outputs: _Tensors = (),
                   finish: Sequence[Finish] = (), timeout: Optional[timedelta] = None,
                   source: Callable[[], int] = lambda: -1) -> CollectiveWork: ...

    def send(self, tensors: _Tensors, dst: int, tag: int = 0) -> CollectiveWork:
        """Gives a tensor to another member. Those with one tag arrive in their order."""
        its = host(single(tensors, "send"))
        return self.launch("send", [_give(its.flat, dst, tag)])

    def recv(self, tensors: _Tensors, src: int, tag: int = 0) -> CollectiveWork:
        """Takes a tensor from another member."""
        tensor = single(tensors, "recv")
        into = host(tensor, given=False)
        return self.launch("recv", [_take(into.flat, src, tag)], [tensor], [into.put_back], source=lambda: src)

    def recv_anysource(self, tensors: _Tensors, tag: int = 0) -> CollectiveWork:
        """Takes a tensor from the member that sends first, whose rank is the ``source_rank`` of the work."""
        tensor = single(tensors, "recv")
        into = host(tensor, given=False)
        arrival = self.arrivals.expect(tag, lambda rank: _take(into.flat, rank, tag))
        return self.launch("recv", [arrival], [tensor], [into.put_back], source=lambda: arrival.source)

    def gather(self, outputs: Any, inputs: _Tensors, opts: Any = None, root: int = 0, **named: Any) -> CollectiveWork:
        """The root gets the tensors of all, in a list by rank."""
        target, given = root_of("gather", opts, root, self.size()), single(inputs, "gather", "input tensor list")
        into: List[torch.Tensor] = []
        if self.rank() == target:
            into = inner(outputs, "gather", "output list")
            one_for_each("gather", "output", into, self.size())
            same_types("gather", into, given)
            fits("gather", target, into[target], given)
        else:
            only_at_root("gather", "output", outputs)
        return self._gathered("gather", into, given, target, _limit(opts, named))

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, root: int = 0,
                      **named: Any) -> CollectiveWork:
        """The root gets the tensors of all, as one tensor."""
        target = root_of("gather_single", opts, root, self.size())
        into: List[torch.Tensor] = []
        if self.rank() == target:
            if output.numel() != input.numel() * self.size():
                raise CollectiveError(f"gather_single: {output.numel()} elements to receive, {input.numel()} from each")
            if not output.is_contiguous():
                raise Unsupported("gather_single: the output is not contiguous")
            into = [part.view(input.shape) for part in output.view(-1).split(input.numel())]
        return self._gathered("gather_single", into, input, target, _limit(opts, named))

    gather_into_tensor = gather_single

    def _gathered(self, what: str, into: List[torch.Tensor], given: torch.Tensor, target: int,
                  timeout: Optional[timedelta]) -> CollectiveWork:
        return self._exchange(what, [(target, given)], list(enumerate(into)), timeout)

    def scatter(self, outputs: _Tensors, inputs: Any, opts: Any = None, root: int = 0, **named: Any) -> CollectiveWork:
        """Each gets its tensor of the root's list."""
        source, output = root_of("scatter", opts, root, self.size()), single(outputs, "scatter", "output tensor list")
        given: List[torch.Tensor] = []
        if self.rank() == source:
            given = inner(inputs, "scatter", "input list")
            one_for_each("scatter", "input", given, self.size())
            same_types("scatter", given, output)
            fits("scatter", source, given[source], output)
        else:
            only_at_root("scatter", "input", inputs)
        return self._exchange("scatter", list(enumerate(given)), [(source, output)], _limit(opts, named))

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None, **named: Any) -> CollectiveWork:
        """Each gives each a tensor."""
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise CollectiveError(f"alltoall: {len(inputs)} and {len(outputs)} tensors for {self.size()} members")
        if self.size() > MOST_DIRECT:
            return self._exchange("alltoall", list(enumerate(inputs)), list(enumerate(outputs)), _limit(opts, named))
        flats, places = [as_bytes(host(each).flat) for each in inputs], [host(each, given=False) for each in outputs]
        given, taken = ([each.numel() * each.element_size() for each in tensors] for tensors in (inputs, outputs))
        into = torch.empty(sum(taken), dtype=torch.uint8)

        def finish() -> None:
            for part, place in zip(into.split(taken), places):
                as_bytes(place.flat).copy_(part)
                place.put_back()

        return self._given_parts("alltoall", outputs, torch.cat(flats), given, taken, into, [finish],
                                 _limit(opts, named))

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, output_sizes: Sequence[int] = (),
                          input_sizes: Sequence[int] = (), opts: Any = None, **named: Any) -> CollectiveWork:
        """Each gives each a part of its tensor along the first dimension."""
        what, limit = "all_to_all_single", _limit(opts, named)
        its, into = _apart(input, output), host(output, given=False)
        rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in (input, output)]
        given = parts(its.flat, list(input_sizes), rows[0], self.size(), what)
        taken = parts(into.flat, list(output_sizes), rows[1], self.size(), what)
        if self.size() > MOST_DIRECT:
            return self._exchange(what, list(enumerate(given)), list(enumerate(taken)), limit, [output],
                                  [into.put_back])
        if not len(input_sizes) and not len(output_sizes):
            return self._equal_parts(what, output, its, into, limit)
        counts = [[part.numel() * part.element_size() for part in each] for each in (given, taken)]
        return self._given_parts(what, [output], as_bytes(its.flat), counts[0], counts[1], as_bytes(into.flat),
                                 [into.put_back], limit)

    alltoall_base = all_to_all_single

    def _exchange(self, what: str, give: Sequence[Tuple[int, torch.Tensor]], take: Sequence[Tuple[int, torch.Tensor]],
                  timeout: Optional[timedelta], outputs: Optional[_Tensors] = None,
                  finish: Sequence[Finish] = ()) -> CollectiveWork:
        """Transfers to and from several members at once. What a member gives itself is copied."""
        me = self.rank()
        sources = [(rank, host(tensor).flat) for rank, tensor in give]
        targets = [(rank, host(tensor, given=False)) for rank, tensor in take]
        own = [flat for rank, flat in sources if rank == me]
        for rank, into in targets:
            if rank == me:
                into.flat.copy_(own[0])

        calls = [_take(into.flat, rank, OWN) for rank, into in targets if rank != me]
        calls += [_give(flat, rank, OWN) for rank, flat in sources if rank != me]
        done = [into.put_back for _, into in targets]
        shown = [tensor for _, tensor in take] if outputs is None else outputs
        return self.launch(what, calls, shown, [*done, *finish], timeout)


def _give(flat: torch.Tensor, rank: int, tag: int) -> Call:
    return Call(lambda comm, number: comm.send_async(as_bytes(flat), rank, tag=number), ("to", rank), tag)


def _take(flat: torch.Tensor, rank: int, tag: int) -> Call:
    return Call(lambda comm, number: comm.recv_async(as_bytes(flat), rank, tag=number), ("from", rank), tag)
