"""The backend ``pccl`` of ``torch.distributed``: docs/pytorch/README.md."""

from ._create import Options, register
from ._elastic import Elastic, elastic
from ._errors import CollectiveError, Unsupported
from ._group import PCCLProcessGroup
from ._replica import data_parallel
from ._work import CollectiveWork

register()

__all__ = [
    "CollectiveError", "CollectiveWork", "Elastic", "Options", "PCCLProcessGroup", "Unsupported", "data_parallel", "elastic",
    "register",
]
