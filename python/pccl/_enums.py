"""The enums of the header, and how arguments become members of them."""

import importlib
from enum import Enum
from typing import Any, Dict, Optional, Type, TypeVar, cast

from . import _declarations as structs

_Member = TypeVar("_Member", bound="Choice")


class Choice(Enum):
    """An enum that can be an argument."""

    @classmethod
    def of(cls: Type[_Member], value: Any) -> _Member:
        """The member that ``value`` is, or that the text ``value`` names (``"avg"``, ``"AVG"``).

        Raises ``TypeError`` for members of other enums and for numbers, whose meaning would be a guess, and
        ``ValueError`` for a text that is no name.
        """
        if isinstance(value, cls):
            return value
        name = value if isinstance(value, str) else cls._foreign_name(value)
        if name is None:
            raise TypeError(f"{value!r} is a {type(value).__name__}, but a {cls._described()} is needed")
        normal = name.strip().lower().replace("-", "_")
        normal = cls._aliases().get(normal, normal)
        # All names are in upper case.
        member = cls.__members__.get(normal.upper())
        if member is not None:
            return member
        raise (ValueError if isinstance(value, str) else TypeError)(f"{value!r} is no {cls._described()}")

    @classmethod
    def _foreign_name(cls, value: Any) -> Optional[str]:
        """The name of a value of another package that means the same."""
        return None

    @classmethod
    def _aliases(cls) -> Dict[str, str]:
        """Other names of members, in lower case."""
        return {}

    @classmethod
    def _described(cls) -> str:
        return f"{cls.__name__} ({', '.join(member.name for member in cls)})"


class Result(Enum):
    """The code that the C function behind a call returned."""

    SUCCESS = structs.pcclSuccess
    NOT_INITIALIZED = structs.pcclNotInitialized
    INTERNAL_ERROR = structs.pcclInternalError
    INVALID_ARGUMENT = structs.pcclInvalidArgument
    INVALID_USAGE = structs.pcclInvalidUsage
    TOO_FEW_PEERS = structs.pcclTooFewPeers
    MASTER_CONNECTION_FAILED = structs.pcclMasterConnectionFailed
    RANK_CONNECTION_FAILED = structs.pcclRankConnectionFailed
    RANK_CONNECTION_LOST = structs.pcclRankConnectionLost
    NO_SHARED_STATE_AVAILABLE = structs.pcclNoSharedStateAvailable
    PENDING_ASYNC_OPS = structs.pcclPendingAsyncOps
    UPDATE_TOPOLOGY_FAILED = structs.pcclUpdateTopologyFailed
    TOPOLOGY_OPTIMIZATION_FAILED = structs.pcclTopologyOptimizationFailed


class Remedy(Enum):
    """What a program does about a failure."""

    NONE = structs.pcclRemedyNone
    RETRY = structs.pcclRemedyRetry
    WAIT_FOR_PEERS = structs.pcclRemedyWaitForPeers
    RECONNECT = structs.pcclRemedyReconnect
    GIVE_UP = structs.pcclRemedyGiveUp
    #: Form the group again with ``form_group``, of those who are there and with a fresh uuid, then sync.
    FORM_GROUP = structs.pcclRemedyFormGroup


class ReduceOp(Choice):
    """What a reduce computes. Where one is an argument, a name does as well (``"sum"``, ``"avg"``, ``"mean"``), and so
    does a ``torch.distributed.ReduceOp``: its name counts, not its number, which means something else."""

    SUM = structs.pcclSum
    AVG = structs.pcclAvg
    PROD = structs.pcclProd
    MAX = structs.pcclMax
    MIN = structs.pcclMin

    @classmethod
    def _foreign_name(cls, value: Any) -> Optional[str]:
        kind = type(value)
        if not kind.__module__.startswith("torch.") or kind.__name__ not in ("ReduceOp", "RedOpType"):
            return None
        # A ReduceOp with parameters of its own wraps a RedOpType.
        plain = value if hasattr(value, "name") else getattr(value, "op", value)
        return str(getattr(plain, "name", plain)).rpartition(".")[2]

    @classmethod
    def _aliases(cls) -> Dict[str, str]:
        return {"mean": "avg", "average": "avg", "product": "prod", "maximum": "max", "minimum": "min"}


class Attribute(Choice):
    """A size of the run."""

    GLOBAL_WORLD_SIZE = structs.PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE
    LOCAL_WORLD_SIZE = structs.PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE
    NUM_DISTINCT_PEER_GROUPS = structs.PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS
    LARGEST_PEER_GROUP_WORLD_SIZE = structs.PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE


class SharedStateSyncStrategy(Choice):
    """What a peer does in a sync."""

    ENFORCE_POPULAR = structs.PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR
    RECEIVE_ONLY = structs.PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY
    SEND_ONLY = structs.PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY


class Schedule(Choice):
    """How the data of a reduce travels. The second to fourth of these are for small reduces and cannot be chosen."""

    AUTOMATIC = structs.pcclScheduleAutomatic
    RING = structs.pcclScheduleRing
    ALL_GATHER = structs.pcclScheduleAllGather
    DIRECT = structs.pcclScheduleDirect
    REDUCE_BROADCAST = structs.pcclScheduleReduceBroadcast
    PAIRWISE = structs.pcclSchedulePairwise
    SITES = structs.pcclScheduleSites


class DeviceType(Choice):
    """Where the memory of a tensor is."""

    CPU = structs.pcclDeviceCpu
    CUDA = structs.pcclDeviceCuda


class DistributionHint(Choice):
    """How values are distributed. It changes nothing."""

    NONE = structs.pcclDistributionHintNone
    NORMAL = structs.pcclDistributionHintNormal
    UNIFORM = structs.pcclDistributionHintUniform


class QuantizationAlgorithm(Choice):
    """How floats travel in fewer bits: docs/quantisation.md."""

    NONE = structs.pcclQuantNone
    MIN_MAX = structs.pcclQuantMinMax
    ZERO_POINT_SCALE = structs.pcclQuantZeroPointScale
    BLOCK_AFFINE_UINT8 = structs.pcclQuantBlockAffineUint8
    BLOCK_SYMMETRIC_INT8 = structs.pcclQuantBlockSymmetricInt8
    BLOCK_AFFINE_UINT4 = structs.pcclQuantBlockAffineUint4
    CAST_BFLOAT16 = structs.pcclQuantCastBFloat16
    CAST_FLOAT16 = structs.pcclQuantCastFloat16


class DataType(Choice):
    """The type of elements. Where one is an argument, its name does as well, and so does a type of torch or numpy."""

    UINT8 = structs.pcclUint8
    INT8 = structs.pcclInt8
    INT16 = structs.pcclInt16
    UINT16 = structs.pcclUint16
    UINT32 = structs.pcclUint32
    INT32 = structs.pcclInt32
    UINT64 = structs.pcclUint64
    INT64 = structs.pcclInt64
    FLOAT16 = structs.pcclFloat16
    BFLOAT16 = structs.pcclBFloat16
    FLOAT = structs.pcclFloat
    DOUBLE = structs.pcclDouble

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _SIZES[self]

    @classmethod
    def from_torch_dtype(cls, dtype: Any) -> "DataType":
        """The type of the elements of a torch tensor."""
        return cls._named(str(dtype).rpartition(".")[2], dtype)

    def to_torch_dtype(self) -> Any:
        """The ``torch.dtype``."""
        torch: Any = importlib.import_module("torch")
        return getattr(torch, _NAMES[self])

    @classmethod
    def from_numpy_dtype(cls, dtype: Any) -> "DataType":
        """The type of the elements of a numpy array."""
        import numpy

        dtype = numpy.dtype(dtype)
        if not dtype.isnative:
            raise ValueError(f"{dtype} has the byte order of another machine")
        return cls._named(dtype.name, dtype)

    def to_numpy_dtype(self) -> Any:
        """The ``numpy.dtype``. numpy has no bfloat16: ``ValueError``."""
        import numpy

        if self is DataType.BFLOAT16:
            raise ValueError("numpy has no bfloat16")
        return numpy.dtype(_NAMES[self])

    @classmethod
    def _named(cls, name: str, dtype: Any) -> "DataType":
        for member, its_name in _NAMES.items():
            if name == its_name:
                return member
        raise ValueError(f"elements of type {dtype} cannot be reduced")

    @classmethod
    def _foreign_name(cls, value: Any) -> Optional[str]:
        module = type(value).__module__.partition(".")[0]
        if module == "torch" and type(value).__name__ == "dtype":
            return str(value).rpartition(".")[2]
        if module == "numpy" and hasattr(value, "isnative"):
            return cast(str, value.name) if value.isnative else None
        return None

    @classmethod
    def _aliases(cls) -> Dict[str, str]:
        return {"float32": "float", "float64": "double"}


_NAMES = {
    member: {"FLOAT": "float32", "DOUBLE": "float64"}.get(member.name, member.name.lower()) for member in DataType
}
_SIZES = {member: int("".join(filter(str.isdigit, name.replace("bfloat", "")))) // 8 for member, name in _NAMES.items()}
