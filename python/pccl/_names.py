"""What a function has names for: by reading its code, without calling it."""

import functools
import inspect
import types
from typing import Any, Callable, Dict, Iterator, List, Tuple


def referred(function: Callable[..., Any]) -> Dict[str, Any]:
    """The variables outside of ``function`` that it names, and those of functions and objects of the same module that
    it names: closures, globals, attributes of ``self``."""
    found: Dict[str, Any] = {}
    seen: List[int] = []
    waiting: List[Tuple[str, Any]] = [("", inspect.unwrap(function))]
    while waiting:
        prefix, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.append(id(one))
        for name, value in _named_by(one):
            found.setdefault(prefix + name, value)
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                waiting.append((prefix, value))
            elif _is_of_program(value, one):
                waiting.append((f"{prefix}{name}.", value))
    return found


def _named_by(one: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(one, functools.partial):
        yield from ((f"argument {index}", value) for index, value in enumerate((one.func, *one.args)))
        yield from one.keywords.items()
    elif isinstance(one, types.MethodType):
        yield "self", one.__self__
        yield "__func__", one.__func__
    elif isinstance(one, types.FunctionType):
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or ()):
            try:
                yield name, cell.cell_contents
            except ValueError:
                # It has got no value yet.
                pass
        for name in _global_names(one.__code__):
            if name in one.__globals__:
                yield name, one.__globals__[name]
    else:
        yield from getattr(one, "__dict__", {}).items()
        if isinstance(getattr(type(one), "__call__", None), types.FunctionType):
            yield "__call__", type(one).__call__


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Also of the functions, comprehensions and lambdas inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _is_of_program(value: Any, by: Any) -> bool:
    """Whether it is an object of a class of the same module as the function that names it, such as a trainer."""
    module = getattr(by, "__module__", None)
    return not isinstance(value, (type, types.ModuleType)) and type(value).__module__ == module != "builtins"
