"""What ``import torch`` runs (entry point group ``torch.backends``): makes ``pccl://`` known to ``init_process_group``,
which asks for the rendezvous before it loads the backend. The package itself is imported when somebody uses it."""

from typing import Any, Iterator, Tuple


def register() -> None:
    """Makes ``pccl://host:port`` an ``init_method``. Never raises: it runs inside of ``import torch``."""
    try:
        from torch.distributed.rendezvous import register_rendezvous_handler

        register_rendezvous_handler("pccl", _rendezvous)
    except (ImportError, RuntimeError):
        # A torch without torch.distributed, or somebody has registered it before.
        pass


def _rendezvous(url: str, **settings: Any) -> Iterator[Tuple[Any, int, int]]:
    from pccl.torch._rendezvous import rendezvous

    return rendezvous(url, **settings)
