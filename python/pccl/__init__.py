"""Fault-tolerant collective communication for training across unreliable machines."""

import os as _os

from . import cuda
from ._communicator import AsyncReduceHandle, Communicator
from ._descriptors import (
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncInfo,
    TensorInfo,
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
from ._errors import InvalidBuffer, PCCLError
from ._library import library as _library
from ._master_node import MasterNode

__version__ = _library.pcclGetVersion().decode()


def pccl_dir() -> str:
    """The directory of this package, which holds the shared library: for ``-L`` of a linker."""
    return _os.path.dirname(_os.path.abspath(__file__))


def get_include() -> str:
    """The directory of the C headers: for ``-I`` of a compiler."""
    return _os.path.join(pccl_dir(), "include")


__all__ = [
    "AsyncReduceHandle", "Attribute", "Communicator", "DataType", "DeviceType", "DistributionHint", "InvalidBuffer",
    "MasterNode", "PCCLError", "QuantizationAlgorithm", "QuantizationOptions", "ReduceDescriptor", "ReduceInfo",
    "ReduceOp", "ReduceOpDescriptor", "ReduceOperandDescriptor", "Remedy", "Result", "Schedule",
    "SharedState", "SharedStateSyncInfo", "SharedStateSyncStrategy", "TensorInfo", "World", "cuda", "get_include", "pccl_dir",
    "__version__",
]
