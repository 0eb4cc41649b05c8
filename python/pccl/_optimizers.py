"""The state of optimisers of torch, which comes into being with their first step."""

import copy
import importlib
import weakref
from typing import Any, Dict, List, Set

#: Parameters that have no state although their optimiser has made a step, by optimiser.
_WITHOUT: "weakref.WeakKeyDictionary[Any, Set[int]]" = weakref.WeakKeyDictionary()
#: Says how an optimiser computes, not what: peers may differ in it.
IMPLEMENTATION = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")


def materialise_optimizer(optimizer: Any) -> None:
    """Gives an optimiser of torch the state that it otherwise makes in its first step, as it is before that step. What
    is there already stays as it is. ``SharedState.of`` does this by itself.

    Another optimiser of the same class makes a step with gradients of zero on parameters of zero, and its state is
    taken over, with the counts of steps and what depends on them set back.
    """
    without = _WITHOUT.setdefault(optimizer, set())
    groups: List[Dict[str, Any]] = []
    copies: List[Any] = []
    for group in optimizer.param_groups:
        missing = [one for one in group["params"]
                   if one.requires_grad and id(one) not in without and _is_empty(optimizer.state.get(one))]
        if missing:
            twins = [_zeros_like(one) for one in missing]
            copies += zip(missing, twins, [group] * len(missing))
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            groups.append({**copy.deepcopy(options), "params": twins})
    if not groups:
        return
    if type(optimizer).__name__ == "LBFGS":
        raise TypeError("the state of LBFGS grows with its steps, and cannot be part of a shared state")
    try:
        scratch = type(optimizer)(groups)
        scratch.step()
    except Exception as error:
        raise TypeError(f"the state of {type(optimizer).__name__} cannot be made before its first step ({error}): let "
                        "all peers make a step with gradients of zero before the first sync") from error
    for parameter, twin, group in copies:
        state = scratch.state.get(twin)
        if _is_empty(state):
            without.add(id(parameter))
        else:
            _set_back(state, group)
            optimizer.state[parameter] = state


def _is_empty(state: Any) -> bool:
    return not state or all(value is None for value in state.values())


def _zeros_like(parameter: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    twin = torch.zeros_like(parameter.detach()).requires_grad_()
    twin.grad = torch.zeros_like(twin)
    return twin


def _set_back(state: Dict[str, Any], group: Dict[str, Any]) -> None:
    """All the rest of a state does not change in a step without gradients."""
    for name, value in (("step", 0), ("mu_product", 1), ("mu", 1), ("eta", group.get("lr"))):
        if name in state:
            if hasattr(state[name], "fill_"):
                state[name].fill_(value)
            else:
                state[name] = type(state[name])(value)
