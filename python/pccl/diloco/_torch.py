"""A member of a run whose parameters are those of a model of PyTorch."""

import ctypes
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from .._communicator import Communicator
from .._arguments import limit_ms
from .._samples import Samples
from ._member import Handle, Shared, settings_of

#: A piece of a fragment: the parameter, where it begins in it, where in the flat vector, and how long it is.
Piece = Tuple["torch.nn.Parameter", int, int, int]


def _local(parameter: Any) -> "torch.Tensor":
    """What this process holds of it: all, or the own shard under FSDP2."""
    data = parameter.detach()
    return data.to_local() if hasattr(data, "to_local") else data


def _ordered(named: Sequence[Tuple[str, Any]], fragments: Union[int, Callable[[str], int]]) \
        -> Tuple[List[Any], Union[int, List[int]]]:
    """The parameters in the order of the flat vector, and how it is cut."""
    if isinstance(fragments, int):
        return [parameter for _, parameter in named], fragments
    of: Dict[int, List[Any]] = {}
    for name, parameter in named:
        of.setdefault(int(fragments(name)), []).append(parameter)
    numbers = sorted(of)
    if numbers != list(range(len(numbers))):
        raise ValueError(f"fragments gives the numbers {numbers}, which are not 0 to {len(numbers) - 1}")
    lengths = [sum(_local(parameter).numel() for parameter in of[number]) for number in numbers]
    return [parameter for number in numbers for parameter in of[number]], lengths


class DiLoCo(Shared):
    """A member of a run::

        run = pccl.diloco.DiLoCo("master:48148", model, inner=optimizer, every=100, fragments=4, overlap=5,
                                 compress="int4", quorum=0.75)
        with run:
            while run.step_index < steps:
                loss = train_one_batch(model, optimizer)  # forward, backward, optimizer.step()
                run.step(tokens=batch_tokens)

    A context manager: at its end the model has the outer parameters, the same bits for all, and the member leaves. The
    state of the inner optimiser is its own. Buffers, such as the means of a BatchNorm, are not averaged.
    """

    def __init__(self, master: Union[str, Communicator], model: "torch.nn.Module", *, inner: Any = None,
                 every: int = 100, fragments: Union[int, Callable[[str], int]] = 1, overlap: int = 0,
                 alpha: Optional[float] = None, outer: str = "nesterov", compress: str = "none", quorum: float = 1.0,
                 grace: Union[str, float] = "auto", min_world: int = 2, resume: Optional[str] = None,
                 samples: Optional[Samples] = None, audit: Optional[str] = None, **options: Any):
        """Joins the run, waits until there are ``min_world`` members, and puts the outer parameters into the model.

        - ``master``: its address, with ``options`` as for ``Communicator``; or a communicator that nobody else uses.
        - ``model``: its parameters that require a gradient take part, on whatever device and of whatever type of
          floats. Under FSDP2 each process has its shard: ``peer_group`` is the number of the shard then.
        - ``inner``: the optimiser that trains it, to check that it trains these parameters.
        - ``fragments``: a number, or a function from the name of a parameter to the number of its fragment.
        - ``samples``: the run counts them, see ``pccl.Samples``.
        - the others: docs/diloco.md. All members give the same.
        """
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if not named:
            raise ValueError("the model has no parameter that requires a gradient")
        known = {id(parameter) for _, parameter in named}
        strangers = sum(id(it) not in known for group in getattr(inner, "param_groups", ()) for it in group["params"])
        if strangers:
            raise ValueError(f"{strangers} parameters of the inner optimiser are not those of the model that train")
        ordered, cut = _ordered(named, fragments)
        count = sum(_local(parameter).numel() for parameter in ordered)
        lengths = cut if isinstance(cut, list) else \
            [(at + 1) * count // cut - at * count // cut for at in range(cut)] if 0 < cut <= count else [count]
        on_device = any(_local(parameter).is_cuda for parameter in ordered)
        self._flat = torch.empty(count, dtype=torch.float32, pin_memory=on_device)
        self._bounds = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
        self._pieces = _pieces(ordered, self._bounds)
        settings = settings_of(every, cut, overlap, alpha, outer, compress, quorum, grace, min_world, resume,
                               samples, audit)
        self._run = Handle(master, settings, options)
        for fragment in range(len(lengths)):
            self._gather(fragment)
        self._run.wait("join", "pcclDilocoJoin", self._address(0), count)
        self._scatter_all()
        self._joined(samples)

    def step(self, tokens: Optional[float] = None, *, samples: Optional[int] = None) -> None:
        """An inner step has been made, on as many tokens (default: ``samples``, or 1): as ``Member.step``."""
        super().step(tokens, samples=samples)

    def _step(self, weight: float) -> None:
        self._run.steps(weight, self._contribute, self._land)

    def finish(self, timeout: Optional[float] = None) -> None:
        self._run.wait("finish", "pcclDilocoFinish", self._address(0), self._flat.numel(), limit_ms(timeout))
        self._scatter_all()

    def load_outer(self) -> None:
        """Puts the outer parameters into the model, and drops what its inner steps have added."""
        self._run.load_outer(self._address(0), self._flat.numel())
        self._scatter_all()

    def _address(self, at: int) -> Any:
        return ctypes.cast(self._flat.data_ptr() + 4 * at, ctypes.POINTER(ctypes.c_float))

    def _length(self, fragment: int) -> int:
        return self._bounds[fragment + 1] - self._bounds[fragment]

    def _contribute(self, fragment: int) -> None:
        self._gather(fragment)
        self._run.contribute(fragment, self._address(self._bounds[fragment]), self._length(fragment))

    def _land(self, fragment: int) -> None:
        self._gather(fragment)
        self._run.land(fragment, self._address(self._bounds[fragment]), self._length(fragment))
        self._scatter(fragment)

    @torch.no_grad()
    def _gather(self, fragment: int) -> None:
        """From the model into the flat vector."""
        for parameter, begin, at, length in self._pieces[fragment]:
            part = _local(parameter).reshape(-1)[begin:begin + length]
            self._flat[at:at + length].copy_(part, non_blocking=True)
        if self._flat.is_pinned():
            torch.cuda.synchronize()

    @torch.no_grad()
    def _scatter(self, fragment: int) -> None:
        """The other way."""
        for parameter, begin, at, length in self._pieces[fragment]:
            local = _local(parameter)
            if local.is_contiguous():
                local.view(-1)[begin:begin + length].copy_(self._flat[at:at + length])
            else:
                whole = local.reshape(-1)
                whole[begin:begin + length].copy_(self._flat[at:at + length])
                local.copy_(whole.view(local.shape))

    def _scatter_all(self) -> None:
        for fragment in range(len(self._pieces)):
            self._scatter(fragment)


def _pieces(ordered: Sequence[Any], bounds: Sequence[int]) -> List[List[Piece]]:
    """The pieces of each fragment: where its bounds cut the parameters."""
    pieces: List[List[Piece]] = [[] for _ in bounds[1:]]
    at = 0
    for parameter in ordered:
        end = at + _local(parameter).numel()
        for fragment, (low, high) in enumerate(zip(bounds, bounds[1:])):
            begin, stop = max(at, low), min(end, high)
            if begin < stop:
                pieces[fragment].append((parameter, begin - at, begin, stop - begin))
        at = end
    return pieces
