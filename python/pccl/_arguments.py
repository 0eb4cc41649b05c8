"""Arguments are checked here, before they reach C, where numbers would wrap around without a word."""

import math
import operator
from typing import Any, Optional

#: What C takes for "no limit".
NO_TIMEOUT = (1 << 64) - 1
#: Ten years. The clock of the system cannot add up much more.
LONGEST_S = 10 * 366 * 86400
U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1


def _is_bool(value: Any) -> bool:
    """Whether it is a bool, of Python or of another package."""
    named = type(value).__name__ in ("bool", "bool_")
    return isinstance(value, bool) or named or "bool" in str(getattr(value, "dtype", ""))


def integer(value: Any, what: str, low: int, high: int) -> int:
    """An integer of any package from ``low`` to ``high``. A bool is none, and neither is a float."""
    if _is_bool(value):
        raise TypeError(f"{what} is an integer, not a bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is an integer, not a {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{what} is {number}, but it lies between {low} and {high}")
    return number


def number_of(value: Any, what: str) -> float:
    """A real number that is not nan."""
    if _is_bool(value) or isinstance(value, (str, bytes, complex)):
        raise TypeError(f"{what} is a number of seconds, not a {type(value).__name__}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is a number of seconds, not a {type(value).__name__}") from None
    except OverflowError:
        raise ValueError(f"{what} is too large") from None
    if math.isnan(number):
        raise ValueError(f"{what} is not a number (nan)")
    return number


def milliseconds(value: Any, what: str, *, least_s: float = 0.0) -> int:
    """A time in seconds, as milliseconds, rounded up."""
    seconds = number_of(value, what)
    if not least_s <= seconds <= LONGEST_S:
        raise ValueError(f"{what} is {seconds:g} s, but it lies between {least_s:g} s and ten years")
    return math.ceil(seconds * 1000)


def limit_ms(value: Any, what: str = "timeout") -> int:
    """A time-out that may be ``None`` or infinite, which both mean that there is none."""
    if value is None:
        return NO_TIMEOUT
    number = number_of(value, what)
    return NO_TIMEOUT if number == math.inf else milliseconds(number, what)


def flag(value: Any, what: str) -> bool:
    """True or False, and nothing that only behaves so."""
    if not _is_bool(value):
        raise TypeError(f"{what} is True or False, not {value!r}")
    return bool(value)


def words(value: Any, what: str) -> bytes:
    """A text for C."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a text, not a {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} has a zero character in it")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is no proper text: {error}") from None


def optional_words(value: Any, what: str) -> Optional[bytes]:
    """A text for C, or nothing."""
    return None if value is None else words(value, what)
