"""The backend ``pccl`` of ``torch.distributed``: docs/pytorch.md."""

from ._create import Options, register
from ._elastic import Elastic, data_parallel, elastic
from ._errors import CollectiveError, Unsupported
from ._group import PCCLProcessGroup
from ._work import CollectiveWork

register()

__all__ = [
    "CollectiveError", "CollectiveWork", "Elastic", "Options", "PCCLProcessGroup", "Unsupported", "data_parallel", "elastic",
    "register",
]
