"""The shared library beside this file, and the structures of its header."""

import ctypes
import os
import sys
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int32, c_size_t,
                    c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)
from typing import Any, Dict, List


class structs:
    """Structures of ``pccl.h``."""

    class BuildInfo(Structure):
        _fields_ = [("has_cuda_support", c_bool)]

    class ReduceInfo(Structure):
        _fields_ = [("local_world_size", c_uint32), ("schedule", c_int), ("tx_bytes", c_uint64), ("rx_bytes", c_uint64)]

    class OperandDescriptor(Structure):
        _fields_ = [("datatype", c_int), ("distribution_hint", c_int)]

    class QuantizationOptions(Structure):
        _fields_ = [("quantized_datatype", c_int), ("algorithm", c_int)]

    class AsyncReduceOp(Structure):
        _fields_ = [("comm", c_void_p), ("tag", c_uint64)]

    class Segment(Structure):
        _fields_ = [("first", c_uint64), ("count", c_uint64), ("contributors", c_uint32), ("rank", c_uint32)]

    class Clip(Structure):
        _fields_ = [("norm", c_double), ("scale", c_double), ("median", c_double), ("peers", c_uint32)]

    class PeerNorm(Structure):
        _fields_ = [("peer", c_uint8 * 16), ("norm", c_double), ("scale", c_double)]

    class TensorInfo(Structure):
        _fields_ = [
            ("name", c_char_p), ("data", c_void_p), ("count", c_size_t), ("datatype", c_int), ("device_type", c_int),
            ("allow_content_inequality", c_bool),
        ]

    class SyncInfo(Structure):
        _fields_ = [("tx_bytes", c_uint64), ("rx_bytes", c_uint64), ("came_ahead", c_bool)]

    class Unchanged(Structure):
        _fields_ = [("name", c_char_p), ("revision", c_uint64)]

    class SyncOptions(Structure):
        _fields_ = [
            ("strategy", c_int), ("unchanged_count", c_size_t), ("unchanged", c_void_p), ("progress", c_void_p),
            ("user", c_void_p),
        ]

    class Ahead(Structure):
        _fields_ = [("has_revision", c_bool), ("revision", c_uint64), ("rx_bytes", c_uint64)]

    class SyncProgress(Structure):
        _fields_ = [
            ("done_bytes", c_uint64), ("total_bytes", c_uint64), ("bytes_per_s", c_uint64), ("sources", c_uint32),
        ]

    class TensorDiff(Structure):
        _fields_ = [
            ("tensor", c_size_t), ("first_element", c_uint64), ("begin", c_uint64), ("end", c_uint64),
            ("contents", c_uint32), ("peers_apart", c_uint32), ("is_located", c_bool), ("is_apart", c_bool),
        ]

    class TensorShape(Structure):
        _fields_ = [("name", c_char_p), ("dimensions", c_size_t), ("lengths", POINTER(c_uint64))]

    class SaveOptions(Structure):
        _fields_ = [("keep_previous", c_bool), ("shape_count", c_size_t), ("shapes", c_void_p)]

    class World(Structure):
        _fields_ = [
            ("global_size", c_uint32), ("group_size", c_uint32), ("groups", c_uint32), ("largest_group", c_uint32),
            ("min_world_size", c_uint32), ("rank", c_uint32),
        ]


    class Optimized(Structure):
        _fields_ = [
            ("group_size", c_uint32), ("schedule", c_int), ("changed", c_bool), ("proven", c_bool),
            ("has_slowest", c_bool), ("has_pairwise_gain", c_bool), ("pairwise_gain_pct", c_int32),
            ("slowest_from", c_uint8 * 16), ("slowest_to", c_uint8 * 16), ("slowest_mbit_s", c_double),
            ("bound_mbit_s", c_double), ("unmeasured_edges", c_uint64), ("note", c_char * 1032),
        ]

    class IterationInfo(Structure):
        _fields_ = [("iteration", c_uint64), ("members", c_uint32), ("position", c_uint32), ("life", c_uint64)]

    class IterationMember(Structure):
        _fields_ = [("life", c_uint64), ("payload_bytes", c_uint32), ("joined", c_bool), ("id", c_char * 72)]

    class Member(Structure):
        _fields_ = [("name", c_char_p), ("peer", c_uint8 * 16)]

    # With structures inside, see below.
    ReduceDescriptor: "type[_ReduceDescriptor]"
    ReduceOpDescriptor: "type[_ReduceOpDescriptor]"
    SharedState: "type[_SharedState]"


class _ReduceDescriptor(Structure):
    _fields_ = [
        ("count", c_size_t), ("op", c_int), ("tag", c_uint64), ("src_descriptor", structs.OperandDescriptor),
        ("quantization_options", structs.QuantizationOptions),
    ]


class _ReduceOpDescriptor(Structure):
    _fields_ = [("sendbuf", c_void_p), ("recvbuf", c_void_p), ("descriptor", _ReduceDescriptor)]


class _SharedState(Structure):
    _fields_ = [("revision", c_uint64), ("count", c_size_t), ("infos", POINTER(structs.TensorInfo))]


structs.ReduceDescriptor = _ReduceDescriptor
structs.ReduceOpDescriptor = _ReduceOpDescriptor
structs.SharedState = _SharedState

_HANDLE = c_void_p
_TEXT = [c_char_p, c_size_t, POINTER(c_size_t)]
#: What every call that begins a collective ends with.
_BEGIN = [POINTER(_ReduceDescriptor), _HANDLE, POINTER(structs.AsyncReduceOp)]
_PAYLOAD = [c_char_p, c_size_t, POINTER(structs.IterationInfo)]
PROGRESS_CALLBACK = CFUNCTYPE(None, POINTER(structs.SyncProgress), c_void_p)
_LOG_CALLBACK = CFUNCTYPE(None, c_int, c_char_p, c_char_p, c_void_p)
_FUNCTIONS: Dict[str, List[Any]] = {
    "pcclInit": [],
    "pcclGetBuildInfo": [POINTER(structs.BuildInfo)],
    "pcclDestroyCommunicator": [_HANDLE],
    "pcclConnect": [_HANDLE],
    "pcclGetAttribute": [_HANDLE, c_int, POINTER(c_int)],
    "pcclUpdateTopology": [_HANDLE],
    "pcclArePeersPending": [_HANDLE, POINTER(c_bool)],
    "pcclAllReduceAsync":
        [c_void_p, c_void_p, POINTER(_ReduceDescriptor), _HANDLE, POINTER(structs.AsyncReduceOp)],
    "pcclBroadcastAsync": [c_void_p, c_uint32, *_BEGIN],
    "pcclReduceAsync": [c_void_p, c_uint32, *_BEGIN],
    "pcclWeightedAverageAsync": [c_void_p, c_double, *_BEGIN],
    "pcclAllGatherAsync": [c_void_p, c_void_p, c_size_t, *_BEGIN],
    "pcclAllGatherVAsync": [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, *_BEGIN],
    "pcclReduceScatterAsync": [c_void_p, c_void_p, c_size_t, *_BEGIN],
    "pcclReduceScatterVAsync": [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, *_BEGIN],
    "pcclSendAsync": [c_void_p, c_uint32, *_BEGIN],
    "pcclRecvAsync": [c_void_p, c_uint32, *_BEGIN],
    "pcclBarrierAsync": [c_uint64, _HANDLE, POINTER(structs.AsyncReduceOp)],
    "pcclAllReduceInSegments":
        [c_void_p, c_void_p, POINTER(_ReduceDescriptor), _HANDLE, c_size_t, POINTER(structs.ReduceInfo),
         POINTER(structs.Segment), c_size_t, POINTER(c_size_t)],
    "pcclClipToMedian":
        [POINTER(_ReduceOpDescriptor), c_size_t, c_double, _HANDLE, POINTER(structs.Clip), POINTER(structs.PeerNorm),
         c_size_t],
    "pcclAwaitAsyncReduce": [POINTER(structs.AsyncReduceOp), POINTER(structs.ReduceInfo)],
    "pcclAllReduceMultipleWithRetry":
        [POINTER(_ReduceOpDescriptor), c_size_t, _HANDLE, POINTER(structs.ReduceInfo), c_int],
    "pcclSaveSharedState": [POINTER(_SharedState), c_char_p, POINTER(structs.SaveOptions), POINTER(c_uint64)],
    "pcclLoadSharedState": [POINTER(_SharedState), c_char_p],
    "pcclOfferResume": [_HANDLE, POINTER(_SharedState)],
    "pcclSyncSharedState":
        [_HANDLE, POINTER(_SharedState), POINTER(structs.SyncOptions), POINTER(structs.SyncInfo)],
    "pcclConnectWithState":
        [_HANDLE, POINTER(_SharedState), c_uint64, PROGRESS_CALLBACK, c_void_p, POINTER(structs.Ahead)],
    "pcclRecoverWithState": [_HANDLE, c_int, c_uint32, POINTER(_SharedState), POINTER(structs.Ahead)],
    "pcclLendSharedState": [_HANDLE, POINTER(_SharedState), c_bool, POINTER(c_uint64)],
    "pcclReclaimSharedState": [_HANDLE, c_uint64],
    "pcclLendSharedStateSnapshot": [_HANDLE, POINTER(_SharedState), c_bool],
    "pcclEndSharedStateSnapshot": [_HANDLE],
    "pcclDiffSharedState":
        [_HANDLE, POINTER(_SharedState), POINTER(structs.TensorDiff), c_size_t, POINTER(c_size_t)],
    "pcclGetStateDiffText": [_HANDLE, *_TEXT],
    "pcclGetStateDiffPeers": [_HANDLE, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)],
    "pcclRunMaster": [_HANDLE],
    "pcclInterruptMaster": [_HANDLE],
    "pcclDestroyMaster": [_HANDLE],
    "pcclGetLastVerdict": [_HANDLE, *_TEXT],
    "pcclCreateCommunicatorByName": [c_char_p, c_uint32, c_uint32, POINTER(c_void_p)],
    "pcclGetDeviceCount": [POINTER(c_uint32)],
    "pcclStage": [c_void_p, c_size_t, c_void_p, c_bool, POINTER(c_void_p), POINTER(c_void_p)],
    "pcclUnstage": [c_void_p, c_bool],
    "pcclUnstageOnStream": [c_void_p],
    "pcclGetLastCulprits": [c_void_p, c_size_t, POINTER(c_size_t)],
    "pcclFormGroup": [_HANDLE, c_uint64, c_uint64, POINTER(structs.Member), c_size_t],
    "pcclSetOption": [_HANDLE, c_char_p, c_char_p],
    "pcclSetSchedule": [_HANDLE, c_int],
    "pcclIsConnected": [_HANDLE, POINTER(c_bool)],
    "pcclGetWorld": [_HANDLE, POINTER(structs.World)],
    "pcclGetRing": [_HANDLE, c_void_p, c_size_t, POINTER(c_size_t)],
    "pcclWaitForWorld": [_HANDLE, c_uint32, c_uint64],
    "pcclGetStatus": [_HANDLE, c_bool, *_TEXT],
    "pcclDoctor": [_HANDLE, POINTER(c_bool)],
    "pcclGetDoctorReport": [_HANDLE, c_bool, *_TEXT],
    "pcclTestAsyncReduce": [POINTER(structs.AsyncReduceOp), POINTER(c_bool)],
    "pcclWaitAsyncReduce": [POINTER(structs.AsyncReduceOp), c_uint64, POINTER(c_bool)],
    "pcclAbortAsyncReduce": [POINTER(structs.AsyncReduceOp)],
    "pcclAwaitAsyncReduceFor": [POINTER(structs.AsyncReduceOp), c_uint64, POINTER(structs.ReduceInfo)],
    "pcclAllReduceManyAsync": [POINTER(_ReduceOpDescriptor), c_size_t, _HANDLE, POINTER(structs.AsyncReduceOp)],
    "pcclOptimizeTopologyInfo": [_HANDLE, POINTER(structs.Optimized)],
    "pcclRecover": [_HANDLE, c_int, c_uint32],
    "pcclDumpFlight": [_HANDLE, c_char_p, *_TEXT],
    "pcclSetCallTimeout": [_HANDLE, c_uint64],
    "pcclSetThreadCallTimeout": [c_uint64],
    "pcclSetThreadDevice": [c_bool, c_void_p],
    "pcclSetThreadByAddress": [c_void_p],
    "pcclGetName": [_HANDLE, *_TEXT],
    "pcclGetPeerId": [_HANDLE, c_void_p],
    "pcclSetLogCallback": [c_int, _LOG_CALLBACK, c_void_p],
    "pcclWriteLog": [c_int, c_char_p],
    "pcclClose": [_HANDLE],
    "pcclCloseWithin": [_HANDLE, c_uint64],
    "pcclCreateMasterByName": [c_char_p, POINTER(c_void_p)],
    "pcclMasterSetOption": [_HANDLE, c_char_p, c_char_p],
    "pcclMasterGetPort": [_HANDLE, POINTER(c_uint16)],
    "pcclMasterHasEnded": [_HANDLE, POINTER(c_bool)],
    "pcclMasterEndRun": [_HANDLE],
    "pcclIterationServeStore": [c_char_p, c_char_p, POINTER(c_void_p)],
    "pcclIterationGetStorePort": [_HANDLE, POINTER(c_uint16)],
    "pcclIterationStopStore": [_HANDLE],
    "pcclIterationCreate": [c_char_p, c_char_p, c_char_p, c_uint32, POINTER(c_void_p)],
    "pcclIterationDestroy": [_HANDLE],
    "pcclIterationSetPolicy": [_HANDLE, c_int],
    "pcclIterationSetFirst": [_HANDLE, c_uint64],
    "pcclIterationSetTime": [_HANDLE, c_int, c_uint64],
    "pcclIterationSetMirror": [_HANDLE, c_bool],
    "pcclIterationJoin": [_HANDLE, *_PAYLOAD],
    "pcclIterationAdvance": [_HANDLE, *_PAYLOAD],
    "pcclIterationCatchUp": [_HANDLE, *_PAYLOAD],
    "pcclIterationLeave": [_HANDLE],
    "pcclIterationCancel": [_HANDLE],
    "pcclIterationForceMembers": [_HANDLE, POINTER(c_char_p), c_size_t],
    "pcclIterationGetCurrent": [_HANDLE, POINTER(c_bool), POINTER(structs.IterationInfo)],
    "pcclIterationGetDecision": [_HANDLE, POINTER(structs.IterationInfo)],
    "pcclIterationGetMember": [_HANDLE, c_uint32, POINTER(structs.IterationMember), c_void_p, c_size_t],
}


class Library(ctypes.CDLL):
    """The shared library, with its functions declared."""

    #: The type of functions that take lines of the log.
    LOG_CALLBACK = _LOG_CALLBACK


def _load() -> Library:
    name = {"darwin": "libpccl.dylib", "win32": "pccl.dll"}.get(sys.platform, "libpccl.so")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if not os.path.exists(path):
        raise ImportError(f"{path} is missing: install the package, which builds it")
    loaded = Library(path)
    for function, arguments in _FUNCTIONS.items():
        getattr(loaded, function).argtypes = arguments
        getattr(loaded, function).restype = c_int
    for function in ("pcclGetVersion", "pcclGetLastError", "pcclGetLastCause"):
        getattr(loaded, function).argtypes = []
        getattr(loaded, function).restype = c_char_p
    loaded.pcclGetLastRemedy.argtypes = []
    loaded.pcclGetLastRemedy.restype = c_int
    return loaded


library = _load()
library.pcclInit()
