"""The enums of the header, with its numbers."""

from enum import Enum


class Result(Enum):
    SUCCESS = 0
    NOT_INITIALIZED = 1
    INTERNAL_ERROR = 2
    INVALID_ARGUMENT = 3
    INVALID_USAGE = 4
    TOO_FEW_PEERS = 5
    MASTER_CONNECTION_FAILED = 6
    RANK_CONNECTION_FAILED = 7
    RANK_CONNECTION_LOST = 8
    NO_SHARED_STATE_AVAILABLE = 9
    PENDING_ASYNC_OPS = 10
    UPDATE_TOPOLOGY_FAILED = 11
    TOPOLOGY_OPTIMIZATION_FAILED = 12


class Remedy(Enum):
    """What a program does about a failure."""

    NONE = 0
    RETRY = 1
    WAIT_FOR_PEERS = 2
    RECONNECT = 3
    GIVE_UP = 4


class ReduceOp(Enum):
    SUM = 0
    AVG = 1
    PROD = 2
    MAX = 3
    MIN = 4


class Attribute(Enum):
    GLOBAL_WORLD_SIZE = 1
    LOCAL_WORLD_SIZE = 2
    NUM_DISTINCT_PEER_GROUPS = 3
    LARGEST_PEER_GROUP_WORLD_SIZE = 4


class SharedStateSyncStrategy(Enum):
    ENFORCE_POPULAR = 0
    RECEIVE_ONLY = 1
    SEND_ONLY = 2


class Schedule(Enum):
    """How the data of a reduce travels. The second to fourth of these are for small reduces and cannot be chosen."""

    AUTOMATIC = 0
    RING = 1
    ALL_GATHER = 2
    DIRECT = 3
    REDUCE_BROADCAST = 4
    PAIRWISE = 5


class DeviceType(Enum):
    CPU = 0
    CUDA = 1


class DistributionHint(Enum):
    NONE = 0
    NORMAL = 1
    UNIFORM = 2


class QuantizationAlgorithm(Enum):
    NONE = 0
    MIN_MAX = 1
    ZERO_POINT_SCALE = 2
    BLOCK_AFFINE_UINT8 = 100
    BLOCK_SYMMETRIC_INT8 = 101
    BLOCK_AFFINE_UINT4 = 102
    CAST_BFLOAT16 = 103
    CAST_FLOAT16 = 104


class DataType(Enum):
    UINT8 = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    UINT32 = 4
    INT32 = 5
    UINT64 = 6
    INT64 = 7
    FLOAT16 = 8
    BFLOAT16 = 9
    FLOAT = 10
    DOUBLE = 11

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _SIZES[self]

    @classmethod
    def from_torch_dtype(cls, dtype) -> "DataType":
        """The type of the elements of a torch tensor."""
        return cls._named(str(dtype).rpartition(".")[2], dtype)

    def to_torch_dtype(self):
        import torch

        return getattr(torch, _NAMES[self])

    @classmethod
    def from_numpy_dtype(cls, dtype) -> "DataType":
        """The type of the elements of a numpy array."""
        import numpy

        dtype = numpy.dtype(dtype)
        if not dtype.isnative:
            raise ValueError(f"{dtype} has the byte order of another machine")
        return cls._named(dtype.name, dtype)

    def to_numpy_dtype(self):
        """numpy has no bfloat16: ``ValueError``."""
        import numpy

        if self is DataType.BFLOAT16:
            raise ValueError("numpy has no bfloat16")
        return numpy.dtype(_NAMES[self])

    @classmethod
    def _named(cls, name, dtype) -> "DataType":
        for member, its_name in _NAMES.items():
            if name == its_name:
                return member
        raise ValueError(f"elements of type {dtype} cannot be reduced or synchronised")


_NAMES = {
    member: {"FLOAT": "float32", "DOUBLE": "float64"}.get(member.name, member.name.lower()) for member in DataType
}
_SIZES = {member: int("".join(filter(str.isdigit, name.replace("bfloat", "")))) // 8 for member, name in _NAMES.items()}
