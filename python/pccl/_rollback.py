"""Values that a step may change beside the shared state: put back before a failed step is made again."""

import copy
import importlib
import random
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set

from ._names import referred
from ._state import SharedState, TensorInfo

#: Puts something back.
Undo = Callable[[], None]
#: Notes how something is, and returns what puts it back.
Keep = Callable[[], Undo]


class Rollback:
    """Notes before each try of a step what the try may change, and puts it back if the try fails: the gradients and
    buffers of modules, the numbers of the state, scalers of gradients, random generators, and what a program names.

    Modules, optimisers and scalers are found in ``state``, among ``replicas``, and by the names in ``functions``.
    """

    def __init__(self, state: SharedState, replicas: Iterable[Any], restore: Iterable[Any],
                 functions: Iterable[Callable[..., Any]]):
        named = list(restore)
        found = [value for function in functions for value in referred(function).values()]
        #: Of what is part of the state, and of what is not.
        self._of_state: List[Keep] = [lambda: _numbers_of(state)]
        self._keeps: List[Keep] = [_random_state]
        self._undo_state: List[Undo] = []
        self._undo: List[Undo] = []
        self._trained: Any = None
        self._end: List[Undo] = []
        if "torch" in sys.modules:
            torch_rollback: Any = importlib.import_module("._torch_rollback", __package__)
            self._trained = trained = torch_rollback.Trained([*parts_of(state._source), *replicas], found)
            self._of_state.append(trained.keep_state)
            self._keeps.append(trained.keep)
            self._end.append(trained.close)
        self._keeps += [keep for keep in map(_generator, found) if keep is not None]
        self._keeps += [_keep_of(one) for one in named]

    def begin(self) -> None:
        """Before a try."""
        self._undo_state = [keep() for keep in self._of_state]
        self._undo = [keep() for keep in self._keeps]

    def succeeded(self) -> None:
        """The try counts."""
        self._undo_state, self._undo = [], []

    def undo(self, *, is_state_new: bool = False, was_whole: bool = False) -> None:
        """After a try that does not count, when nothing is in flight any more. If a sync has brought another state,
        that is left alone. A try that was whole has changed parameters, which is an error otherwise."""
        if self._trained is not None and self._undo_state and not is_state_new and not was_whole:
            self._trained.refuse_changed()
        undos = self._undo if is_state_new else [*self._undo_state, *self._undo]
        self.succeeded()
        for undo in undos:
            undo()

    def gradients(self) -> Dict[str, bytes]:
        """The present gradients."""
        return self._trained.contents() if self._trained is not None else {}

    def spared_pointers(self) -> Set[int]:
        """Where the tensors of the state are that are put back, such as buffers."""
        return self._trained.buffer_pointers() if self._trained is not None else set()

    def close(self) -> None:
        """Lets go of the modules."""
        for end in self._end:
            end()


def parts_of(source: Any) -> Iterator[Any]:
    """The objects that a shared state was made of, one by one."""
    if isinstance(source, TensorInfo):
        yield source._source
    elif isinstance(source, dict):
        for value in source.values():
            yield from parts_of(value)
    elif isinstance(source, (list, tuple)):
        for value in source:
            yield from parts_of(value)
    else:
        yield source


def _numbers_of(state: SharedState) -> Undo:
    """As the sync has left them."""
    numbers = state._numbers

    def undo() -> None:
        for put_back in numbers:
            put_back()

    return undo


def _random_state() -> Undo:
    """The generators that a program uses without naming them."""
    own = random.getstate()
    undos: List[Undo] = [lambda: random.setstate(own)]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        undos.append(_bound(numpy.random.set_state, numpy.random.get_state()))
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        undos.append(_bound(torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_initialized():
            undos.append(_bound(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))

    def undo() -> None:
        for one in undos:
            one()

    return undo


def _bound(put: Callable[[Any], Any], value: Any) -> Undo:
    return lambda: put(value)


def _generator(value: Any) -> Optional[Keep]:
    """Of a random generator that the program has a name for."""
    if isinstance(value, random.Random):
        return lambda: _bound(value.setstate, value.getstate())
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return lambda: _bound(value.set_state, value.get_state())
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return lambda: _bound(lambda before: setattr(value.bit_generator, "state", before), value.bit_generator.state)
    if torch is not None and isinstance(value, torch.Generator):
        return lambda: _bound(value.set_state, value.get_state())
    return None


def _keep_of(one: Any) -> Keep:
    """Of what a program names in ``restore``."""
    generator = _generator(one)
    if generator is not None:
        return generator
    if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
        return lambda: _bound(one.load_state_dict, copy.deepcopy(one.state_dict()))
    if isinstance(one, dict):
        return lambda: _bound(lambda before: _refill(one, before), copy.deepcopy(one))
    if isinstance(one, list):
        return lambda: _bound(lambda before: one.__setitem__(slice(None), before), copy.deepcopy(one))
    if hasattr(one, "copy") and hasattr(one, "__setitem__"):
        return lambda: _bound(lambda before: one.__setitem__(Ellipsis, before), one.copy())
    raise TypeError(f"a {type(one).__name__} cannot be restored: restore takes what has state_dict and "
                    "load_state_dict, random generators, dicts, lists and arrays")


def _refill(mapping: Dict[Any, Any], before: Dict[Any, Any]) -> None:
    mapping.clear()
    mapping.update(before)
