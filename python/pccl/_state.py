"""The shared state: what it is built from, and how it is looked at anew at each sync."""

import sys
from typing import Any, Callable, Iterator, List, Mapping, MutableMapping, Optional, Sequence, Set, Tuple, Union

from ._arguments import U64, flag, integer, words
from ._entries import Entry, Setter, memory_entry, number_entry
from ._enums import DataType, DeviceType
from ._library import structs
from ._optimizers import IMPLEMENTATION, materialise_optimizer


class Box:
    """A number of the shared state, in ``value``: a peer that has another one gets that of the others."""

    def __init__(self, value: Union[int, float, bool] = 0):
        self.value = value

    def __repr__(self) -> str:
        return f"Box({self.value!r})"


class TensorInfo:
    """A tensor of the shared state. Keeps what it was made of alive, and looks at each sync where its memory is."""

    def __init__(self, name: str, data_ptr: int, *, numel: int, dtype: DataType, device_type: DeviceType,
                 allow_content_inequality: bool = False):
        """From an address, whose memory the caller keeps.

        ``numel`` is the number of elements. With ``allow_content_inequality`` the content may differ between peers; it
        moves only to peers whose revision is outdated.
        """
        words(name, "name")
        self.name = name
        self.data_ptr, self.numel = integer(data_ptr, "data_ptr", 0, U64), integer(numel, "numel", 0, U64)
        self.dtype, self.device_type = DataType.of(dtype), DeviceType.of(device_type)
        self.allow_content_inequality = flag(allow_content_inequality, "allow_content_inequality")
        self._source: Any = None
        self._entry: Optional[Entry] = None

    @classmethod
    def from_buffer(cls, source: Any, name: str, *, allow_content_inequality: bool = False) -> "TensorInfo":
        """From a tensor, an array, or anything else that has writable memory.

        Give the tensor or parameter itself, not ``parameter.data``: that is another tensor, which does not notice when
        the parameter gets other memory.
        """
        entry = memory_entry(words(name, "name").decode(), source)
        info = cls(name, entry.pointer, numel=entry.count, dtype=entry.dtype, device_type=entry.device_type,
                   allow_content_inequality=allow_content_inequality)
        info._source = source
        return info

    from_torch = from_buffer
    from_numpy = from_buffer

    def _capture(self) -> Entry:
        """Where it is now."""
        if self._source is None:
            entry = Entry(self.name, self.data_ptr, self.numel, self.dtype, None)
            entry.device_type = self.device_type
        else:
            # Held until the next capture: memory that could move away, such as that of a bytearray, does not.
            entry = memory_entry(self.name, self._source)
            self._entry = entry if entry.finish is None else None
            self.data_ptr, self.numel, self.dtype = entry.pointer, entry.count, entry.dtype
            self.device_type = entry.device_type
        entry.allow_content_inequality = self.allow_content_inequality
        return entry


Source = Union[Sequence[TensorInfo], Mapping[str, Any], Callable[[], Any]]


class SharedState:
    """What all peers of a group hold alike, and its revision.

    It is looked at anew at each sync: a tensor that has got other memory, an entry of a dict that was replaced, a
    checkpoint that was loaded in the meantime are all seen.
    """

    def __init__(self, source: Source, *, revision: int = 0):
        """From a sequence of ``TensorInfo``, from a mapping, or from a callable that returns either.

        A mapping has tensors, arrays, numbers, ``Box``, or mappings and lists of these; a number that a sync changes is
        written back into the mapping. Modules, optimisers, and whatever else has ``state_dict`` and ``load_state_dict``
        may be in it, too: see ``SharedState.of``. ``revision`` is that of the content.
        """
        if not callable(source) and not isinstance(source, (Mapping, list, tuple)):
            raise TypeError("a shared state is made from a sequence of TensorInfo, a mapping or a callable, not from "
                            f"a {type(source).__name__}; for a module write SharedState.of(model=model)")
        if _is_module(source):
            raise TypeError("write SharedState.of(model=model)")
        if not callable(source) and not source:
            raise ValueError("a shared state has at least one tensor")
        self._source = source
        self.revision = revision
        #: Set the numbers to what they were at the end of the last sync.
        self._numbers: List[Callable[[], None]] = []
        # A value that cannot be part of a state is found out now.
        self._capture()

    @classmethod
    def of(cls, *unnamed: Any, revision: int = 0, **parts: Any) -> "SharedState":
        """From parts with names: ``SharedState.of(model=model, optimizer=optimizer, extra={"step": Box(0)})``.

        A part is a module of torch (parameters and buffers), an optimiser of torch (its state and the numbers of its
        groups, such as learning rates), anything else with ``state_dict`` and ``load_state_dict`` (a scheduler), a
        tensor, an array, a ``Box``, a mapping or list of these, or a callable that returns any of these. Names of
        entries begin with the name of the part. A module and an optimiser may be given without names, which are then
        ``model`` and ``optimizer``: ``SharedState.of(model, optimizer)``. The state of an optimiser that has not made a
        step yet is made: ``materialise_optimizer``.
        """
        named = dict(parts)
        for part in unnamed:
            name = "model" if _is_module(part) else "optimizer" if _is_optimizer(part) else None
            if name is None:
                raise TypeError(f"a {type(part).__name__} needs a name, the same on all peers: "
                                "SharedState.of(weights=weights)")
            if name in named:
                raise TypeError(f"two parts would be called {name}: give them names")
            named[name] = part
        return cls(named, revision=revision)

    @property
    def revision(self) -> int:
        """The revision of the content, raised after each change; after a sync that of the others."""
        return self._revision

    @revision.setter
    def revision(self, revision: int) -> None:
        self._revision = integer(revision, "revision", 0, U64)

    def push_revision(self) -> None:
        """After a change of the state, before the next sync."""
        self.revision += 1

    def names(self) -> List[str]:
        """The names of all entries, as other peers need to have them."""
        return [entry.name for entry in self._capture().entries]

    def _capture(self) -> "Captured":
        return Captured(self.revision, list(_distinct(_top(self._source))))


class Captured:
    """A shared state as it lies in memory now, for one sync."""

    def __init__(self, revision: int, entries: List[Entry]):
        if not entries:
            raise ValueError("a shared state has at least one tensor")
        self.entries = entries
        self._names = [words(entry.name, "the name of a tensor") for entry in entries]
        self._infos = (structs.TensorInfo * len(entries))(*[
            structs.TensorInfo(name, entry.pointer, entry.count, entry.dtype.value, entry.device_type.value,
                               entry.allow_content_inequality)
            for name, entry in zip(self._names, entries)
        ])
        self.c = structs.SharedState(revision, len(entries), self._infos)

    def finish(self) -> None:
        """Carries what was received to where no memory could be written to directly."""
        for entry in self.entries:
            if entry.finish is not None:
                entry.finish()


def capture_mapping(mapping: Mapping[str, Any], revision: int) -> Captured:
    """The tensors and arrays of a mapping as they lie in memory now. It may be a copy, such as a ``state_dict``."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"a state is a SharedState or a mapping of names to tensors, not a {type(mapping).__name__}")
    return Captured(integer(revision, "revision", 0, U64), list(_mapping("", mapping, _Walk(fixed=True))))


def _distinct(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Without tensors that are the same memory as another one, such as weights that two layers share."""
    names: Set[str] = set()
    places: Set[Tuple[int, int]] = set()
    for entry in entries:
        if entry.name in names:
            raise ValueError(f"two tensors of the shared state have the name {entry.name!r}")
        names.add(entry.name)
        if entry.finish is not None or entry.place[1] == 0 or entry.place not in places:
            places.add(entry.place)
            yield entry


def _top(source: Any) -> Iterator[Entry]:
    fixed = False
    if callable(source) and not isinstance(source, Mapping):
        source, fixed = source(), True
    if isinstance(source, Mapping):
        yield from _mapping("", source, _Walk(fixed))
        return
    for info in source:
        if not isinstance(info, TensorInfo):
            raise TypeError(f"a {type(info).__name__} is no TensorInfo; a mapping has names: "
                            "SharedState({'weights': weights})")
        yield info._capture()


class _Walk:
    """How values are taken: whether containers are copies, into which no number can be written back, and whether texts,
    functions and ``None`` are left out."""

    def __init__(self, fixed: bool = False, lenient: bool = False):
        self.fixed, self.lenient = fixed, lenient


def _mapping(prefix: str, mapping: Mapping[Any, Any], walk: _Walk) -> Iterator[Entry]:
    if not walk.fixed and (hasattr(mapping, "_metadata") or set(mapping) == {"state", "param_groups"}):
        raise TypeError("a state_dict shows what was there when it was made, and no later change: write "
                        "SharedState.of(model=model, optimizer=optimizer), or SharedState(model.state_dict), without "
                        "the call")
    for key, value in list(mapping.items()):
        setter: Optional[Setter] = None
        if isinstance(mapping, MutableMapping) and not walk.fixed:
            setter = _item_setter(mapping, key)
        yield from _value(f"{prefix}.{key}" if prefix else str(key), value, setter, walk)


def _sequence(prefix: str, sequence: Any, setter: Optional[Setter], walk: _Walk) -> Iterator[Entry]:
    current = sequence if isinstance(sequence, list) else list(sequence)
    for index, value in enumerate(list(sequence)):
        if isinstance(sequence, list):
            own = None if walk.fixed else _item_setter(current, index)
        else:
            own = _tuple_setter(current, index, setter)
        yield from _value(f"{prefix}.{index}", value, own, walk)


def _item_setter(container: Any, key: Any) -> Setter:
    def put(number: Any) -> None:
        container[key] = number

    return put


def _tuple_setter(current: List[Any], index: int, setter: Optional[Setter]) -> Optional[Setter]:
    if setter is None:
        return None
    whole = setter

    def put(number: Any) -> None:
        current[index] = number
        whole(tuple(current))

    return put


def _value(name: str, value: Any, setter: Optional[Setter], walk: _Walk) -> Iterator[Entry]:
    if isinstance(value, TensorInfo):
        raise TypeError(f"{name} is a TensorInfo, which has a name of its own: give the tensor, or a list of them")
    if isinstance(value, Box):
        yield number_entry(name, value.value, lambda number: setattr(value, "value", number))
    elif _is_number(value):
        if setter is None:
            raise TypeError(f"{name} is a number that cannot be written back: write Box({value!r}) and keep the Box")
        yield number_entry(name, value, setter)
    elif _is_module(value):
        yield from _mapping(name, value.state_dict(), _Walk(fixed=True))
    elif _is_optimizer(value):
        yield from _optimizer(name, value)
    elif isinstance(value, Mapping):
        yield from _mapping(name, value, walk)
    elif isinstance(value, (list, tuple)):
        yield from _sequence(name, value, setter, walk)
    elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        yield from _stateful(name, value)
    elif walk.lenient and (value is None or isinstance(value, str) or callable(value)):
        return
    elif callable(value) and not hasattr(value, "__array_interface__"):
        yield from _value(name, value(), None, _Walk(fixed=True))
    elif value is None or isinstance(value, (str, bytes, complex)):
        raise TypeError(f"{name} is {value!r}, which cannot be part of a shared state: leave it out, or use an array")
    else:
        yield memory_entry(name, value)


def _is_number(value: Any) -> bool:
    kind = type(value)
    # A scalar of numpy is no array: it cannot be written to.
    return isinstance(value, (bool, int, float)) or (kind.__module__ == "numpy" and hasattr(value, "item")
                                                     and not hasattr(value, "__setitem__"))


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_optimizer(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def _optimizer(prefix: str, optimizer: Any) -> Iterator[Entry]:
    """The numbers of the groups, and the state of each parameter, which have numbers in the order of the groups."""
    materialise_optimizer(optimizer)
    walk, index = _Walk(lenient=True), 0
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key not in IMPLEMENTATION}
        for key, value in options.items():
            yield from _value(f"{prefix}.group.{number}.{key}", value, _item_setter(group, key), walk)
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or {}
            for key, value in list(state.items()):
                if isinstance(value, (list, dict)):
                    raise TypeError(f"{prefix}: the state {key!r} of {type(optimizer).__name__} may grow, and cannot "
                                    "be shared")
                yield from _value(f"{prefix}.state.{index}.{key}", value, _item_setter(state, key), walk)
            index += 1


def _stateful(prefix: str, owner: Any) -> Iterator[Entry]:
    """What an object says of itself, and takes back after a sync."""
    state = owner.state_dict()
    if not isinstance(state, MutableMapping):
        raise TypeError(f"{prefix}: state_dict() of {type(owner).__name__} returns no dict")
    last: Optional[Entry] = None
    for key, value in list(state.items()):
        for entry in _value(f"{prefix}.{key}", value, _item_setter(state, key), _Walk(lenient=True)):
            if last is not None:
                yield last
            last = entry
    if last is None:
        raise TypeError(f"{prefix}: state_dict() of {type(owner).__name__} has nothing that could be shared")
    before = last.finish

    def finish() -> None:
        if before is not None:
            before()
        owner.load_state_dict(state)

    last.finish = finish
    put_last = last.put_back

    def put_back() -> None:
        if put_last is not None:
            put_last()
        owner.load_state_dict(state)

    last.put_back = put_back
    yield last
