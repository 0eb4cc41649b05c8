"""Fault-tolerant collective communication for training across unreliable machines."""

import os as _os

from . import cuda
from ._communicator import Communicator
from ._descriptors import (
    Ahead,
    Clip,
    Optimized,
    PeerNorm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Segment,
    SharedStateSyncInfo,
    StateDiff,
    SyncProgress,
    TensorDiff,
    World,
)
from ._enums import (
    Attribute,
    DataType,
    DeviceType,
    DistributionHint,
    QuantizationAlgorithm,
    ReduceOp,
    Remedy,
    Result,
    Schedule,
    SharedStateSyncStrategy,
)
from ._errors import (
    Aborted,
    Cancelled,
    ConnectFailed,
    Dropped,
    Fenced,
    GroupBroken,
    InternalError,
    InvalidArgument,
    InvalidBuffer,
    InvalidUsage,
    IterationError,
    MasterLost,
    Mismatch,
    NoQuorum,
    NotConnected,
    NotFinite,
    NotMember,
    OutcomeUnknown,
    PCCLError,
    PeerLost,
    PendingAsyncOps,
    Refused,
    ResumeWaits,
    SeederMissing,
    StateFileError,
    StateLost,
    StoreLost,
    StoreUnreachable,
    System,
    TimedOut,
    TooFewPeers,
)
from ._files import Saving, load_state, save_state, save_state_while
from ._iteration import Decision, GlobalIteration, Member, Store
from ._library import library as _library
from ._master_node import MasterNode
from ._notice import Notice
from ._optimizers import materialise_optimizer
from ._reduces import AsyncReduceHandle
from ._repeat import NotRepeatable
from ._samples import Samples
from ._sharing import Loan
from ._state import Box, SharedState, TensorInfo

__version__: str = _library.pcclGetVersion().decode()


def pccl_dir() -> str:
    """The directory of this package, which holds the shared library: for ``-L`` of a linker."""
    return _os.path.dirname(_os.path.abspath(__file__))


def get_include() -> str:
    """The directory of the C headers: for ``-I`` of a compiler."""
    return _os.path.join(pccl_dir(), "include")


__all__ = [
    "Aborted", "Ahead", "AsyncReduceHandle", "Attribute", "Box", "Cancelled", "Clip", "Communicator",
    "ConnectFailed", "DataType",
    "Decision", "DeviceType", "DistributionHint", "Dropped", "Fenced", "GlobalIteration", "GroupBroken",
    "InternalError", "InvalidArgument", "InvalidBuffer", "InvalidUsage", "IterationError", "Loan", "MasterLost",
    "MasterNode",
    "Member", "Mismatch", "NoQuorum", "NotConnected", "NotFinite", "NotMember", "NotRepeatable", "Notice",
    "Optimized", "OutcomeUnknown",
    "PCCLError", "PeerLost", "PeerNorm", "PendingAsyncOps", "QuantizationAlgorithm", "QuantizationOptions", "ReduceDescriptor",
    "ReduceInfo",
    "ReduceOp", "ReduceOpDescriptor",
    "ReduceOperandDescriptor", "Refused", "Remedy", "Result", "ResumeWaits", "Samples", "Saving", "Schedule",
    "SeederMissing", "Segment", "SharedState",
    "SharedStateSyncInfo", "SharedStateSyncStrategy", "StateDiff", "StateFileError", "StateLost", "Store", "StoreLost",
    "StoreUnreachable", "SyncProgress", "System", "TensorDiff", "TensorInfo", "TimedOut", "TooFewPeers", "World", "cuda", "get_include",
    "load_state", "materialise_optimizer", "pccl_dir", "save_state", "save_state_while", "__version__",
]
