"""Values that a failed try of a step leaves behind in modules and scalers of torch."""

import functools
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import torch

Undo = Callable[[], None]


class Trained:
    """The modules and optimisers of a training, and its scalers of gradients.

    Gradients and buffers are put back; parameters are too large to be copied for each step, so that a step which has
    changed them before it failed cannot be made again.
    """

    def __init__(self, parts: Iterable[Any], found: Iterable[Any]):
        modules: List[torch.nn.Module] = []
        views, parts = False, list(parts)
        loose: List[torch.Tensor] = []
        shared: List[Any] = []
        for part in parts:
            if isinstance(part, torch.nn.Module):
                views = views or bool(getattr(part, "gradient_as_bucket_view", False))
                inner = part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part
                if all(inner is not one for one in modules):
                    modules.append(inner)
            elif isinstance(part, torch.optim.Optimizer):
                loose += [parameter for group in part.param_groups for parameter in group["params"]]
            elif isinstance(part, torch.amp.GradScaler):
                shared.append(part)
            elif isinstance(part, torch.Tensor) and part.is_leaf and part.requires_grad:
                loose.append(part)
        self._modules, self._loose, self._shared_scalers = modules, loose, shared
        self._scalers = [one for one in found if isinstance(one, torch.amp.GradScaler)
                         and all(one is not other for other in shared)]
        self._gradients = Gradients(views)
        self._hooks = [module.register_forward_pre_hook(self._gradients.before_forward) for module in modules]
        self._watches = [_watch(one, self._gradients) for one in parts if isinstance(one, torch.optim.Optimizer)]
        self._buffers: Dict[Tuple[int, str], torch.Tensor] = {}
        self._versions: List[Tuple[str, torch.Tensor, int]] = []

    def keep(self) -> Undo:
        """Gradients and scalers, before a try."""
        self._gradients.keep(self._named())
        undo_scalers = _keep_scalers(self._scalers)

        def undo() -> None:
            self._gradients.undo()
            undo_scalers()

        return undo

    def keep_state(self) -> Undo:
        """Keeps buffers and scalers, which are part of the state, before a try."""
        # Looked at anew: layers may have been added, frozen, or replaced.
        self._versions = [(name, parameter, parameter._version) for name, parameter in self._named()]
        undo_scalers = _keep_scalers(self._shared_scalers)
        buffers = [(layer._buffers, name, buffer, self._copy_of((id(layer), name), buffer))
                   for module in self._modules for layer in module.modules()
                   for name, buffer in layer._buffers.items() if buffer is not None]

        def undo() -> None:
            with torch.no_grad():
                for owner, name, buffer, before in buffers:
                    buffer.copy_(before)
                    owner[name] = buffer
            undo_scalers()

        return undo

    def refuse_changed(self) -> None:
        """After a failed try: parameters are not copied, so it must not have changed them."""
        for name, parameter, version in self._versions:
            if parameter._version != version:
                raise RuntimeError(f"the step has changed {name} before a call that failed, so it cannot be made "
                                   "again: change the shared state at the end of the step, after its last reduce")

    def contents(self) -> Dict[str, bytes]:
        """Of the gradients that are there now."""
        return {f"the gradient of {name}": parameter.grad.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
                .tobytes() for name, parameter in self._named() if parameter.grad is not None}

    def buffer_pointers(self) -> Set[int]:
        """Where the buffers are."""
        return {buffer.data_ptr() for module in self._modules for buffer in module.buffers()}

    def close(self) -> None:
        """Lets go of the modules and optimisers."""
        for hook in self._hooks:
            hook.remove()
        for end in self._watches:
            end()

    def _named(self) -> List[Tuple[str, torch.Tensor]]:
        named = [pair for module in self._modules for pair in module.named_parameters()]
        known = {id(parameter) for _, parameter in named}
        return named + [(f"a parameter of shape {tuple(one.shape)}", one) for one in self._loose
                        if id(one) not in known]

    def _copy_of(self, place: Tuple[int, str], buffer: torch.Tensor) -> torch.Tensor:
        """Into the memory of the last copy, if it fits."""
        copy = self._buffers.get(place)
        if copy is None or copy.shape != buffer.shape or copy.dtype != buffer.dtype or copy.device != buffer.device:
            self._buffers[place] = copy = buffer.detach().clone()
        else:
            copy.copy_(buffer.detach())
        return copy


def _watch(optimizer: Any, gradients: "Gradients") -> Undo:
    """Has gradients copied before ``zero_grad`` sets them to zero in place. Returns what ends that."""
    given, zero_grad = vars(optimizer).get("zero_grad"), optimizer.zero_grad

    @functools.wraps(zero_grad)
    def watched(set_to_none: bool = True) -> None:
        if not set_to_none:
            gradients.before_zero()
        zero_grad(set_to_none)

    def end() -> None:
        # Another one may have been put over this one, and is left alone.
        if vars(optimizer).get("zero_grad") is watched:
            del optimizer.zero_grad
            if given is not None:
                optimizer.zero_grad = given

    optimizer.zero_grad = watched
    return end


class Gradient:
    """One gradient that was there before a try."""

    def __init__(self, name: str, parameter: torch.Tensor, gradient: torch.Tensor):
        self.name, self.parameter, self.gradient, self.version = name, parameter, gradient, gradient._version
        self.copy: Optional[torch.Tensor] = None
        #: Whether there was a copy of it when ``zero_grad`` was about to write to it.
        self.is_announced = False

    @property
    def is_written(self) -> bool:
        """As far as torch knows."""
        return self.gradient._version != self.version

    def undo(self) -> None:
        """Puts it back, to where it was."""
        if self.copy is not None:
            with torch.no_grad():
                self.gradient.copy_(self.copy)
        elif self.is_written:
            raise RuntimeError(f"the step has changed the gradient of {self.name} in place before its forward pass, as "
                               "no step before it, and cannot be made again")
        self.parameter.grad = self.gradient


class Gradients:
    """The gradients that are there before a try. Most programs have none then, or drop them before their first forward
    pass, and nothing is copied."""

    def __init__(self, are_views: bool) -> None:
        #: Of the buckets of DDP: one that was dropped is overwritten all the same.
        self._are_views = are_views
        self._without: List[torch.Tensor] = []
        self._there: List[Gradient] = []
        self._is_open = False
        #: Whether copies can wait until the first forward pass, or until ``zero_grad``: a step has shown that it drops
        #: gradients, and none has written to one unseen.
        self._can_wait, self._writes = False, False

    def keep(self, parameters: Iterable[Any]) -> None:
        """Before a try."""
        self._without, self._there, self._is_open = [], [], True
        for name, parameter in parameters:
            if parameter.grad is None:
                self._without.append(parameter)
            else:
                self._there.append(Gradient(name, parameter, parameter.grad))
        if not self._can_wait:
            for one in self._there:
                one.copy = one.gradient.detach().clone()

    def before_zero(self) -> None:
        """Before an optimiser sets gradients to zero in place."""
        for one in self._there if self._is_open else []:
            if one.parameter.grad is not one.gradient or one.is_written:
                continue
            if one.copy is None:
                one.copy = one.gradient.detach().clone()
            one.is_announced = _same(one.gradient, one.copy)

    def before_forward(self, *_: Any) -> None:
        """Before the first forward pass of a try: what is written to in place from here on has to be copied."""
        if torch.compiler.is_compiling() or not self._is_open:
            return
        self._is_open = False
        untouched = True
        for one in self._there:
            if one.is_announced:
                continue
            is_dropped = one.parameter.grad is not one.gradient
            if one.copy is None:
                if (not is_dropped or self._are_views) and not one.is_written:
                    one.copy = one.gradient.detach().clone()
                untouched = untouched and not one.is_written
            elif one.is_written or not _same(one.gradient, one.copy):
                untouched = False
            elif is_dropped and not self._are_views:
                # Nobody writes to it any more: it is its own copy.
                one.copy = None
        self._writes = self._writes or not untouched
        if self._there:
            self._can_wait = not self._writes

    def undo(self) -> None:
        """After a try that does not count."""
        for parameter in self._without:
            parameter.grad = None
        for one in self._there:
            one.undo()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of the same shape hold the same, a NaN being the same as itself."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _keep_scalers(scalers: List[Any]) -> Undo:
    befores = [(scaler, _copied(vars(scaler))) for scaler in scalers]

    def undo() -> None:
        for scaler, before in befores:
            vars(scaler).update(before)

    return undo


def _copied(value: Any) -> Any:
    """A copy of what a scaler holds: tensors, numbers, and dicts of these."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        same = value.copy()  # A defaultdict stays one.
        same.update((key, _copied(one)) for key, one in value.items())
        return same
    return value

