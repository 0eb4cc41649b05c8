"""Low-communication training (DiLoCo): docs/diloco.md. ``DiLoCo`` is for PyTorch, ``Member`` for flat vectors of numpy,
and ``python -m pccl.diloco.plan`` says what a setting costs."""

from typing import TYPE_CHECKING, Any

from ._member import Member, Stats

if TYPE_CHECKING:
    from ._torch import DiLoCo

__all__ = ["DiLoCo", "Member", "Stats"]


def __getattr__(name: str) -> Any:
    # Torch is imported only for programs that use it.
    if name == "DiLoCo":
        from ._torch import DiLoCo

        return DiLoCo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
