"""The constants, structures and functions of the C headers, made by ``make_python_declarations`` of tidy."""

from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32,
                    c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)

pcclSuccess = 0
pcclNotInitialized = 1
pcclInternalError = 2
pcclInvalidArgument = 3
pcclInvalidUsage = 4
pcclTooFewPeers = 5
pcclMasterConnectionFailed = 6
pcclRankConnectionFailed = 7
pcclRankConnectionLost = 8
pcclNoSharedStateAvailable = 9
pcclPendingAsyncOps = 10
pcclUpdateTopologyFailed = 11
pcclTopologyOptimizationFailed = 12

pcclUint8 = 0
pcclInt8 = 1
pcclInt16 = 2
pcclUint16 = 3
pcclUint32 = 4
pcclInt32 = 5
pcclUint64 = 6
pcclInt64 = 7
pcclFloat16 = 8
pcclBFloat16 = 9
pcclFloat = 10
pcclDouble = 11

pcclDeviceCpu = 0
pcclDeviceCuda = 1

pcclSum = 0
pcclAvg = 1
pcclProd = 2
pcclMax = 3
pcclMin = 4

PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1
PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2
PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3
PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4

PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0
PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1
PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2

pcclDistributionHintNone = 0
pcclDistributionHintNormal = 1
pcclDistributionHintUniform = 2
pcclDistributionNone = 0
pcclDistributionNormal = 1
pcclDistributionUniform = 2
PCCL_DISTRIBUTION_HINT_NONE = 0
PCCL_DISTRIBUTION_HINT_NORMAL = 1
PCCL_DISTRIBUTION_HINT_UNIFORM = 2

pcclQuantNone = 0
pcclQuantMinMax = 1
pcclQuantZeroPointScale = 2
pcclQuantBlockAffineUint8 = 100
pcclQuantBlockSymmetricInt8 = 101
pcclQuantBlockAffineUint4 = 102
pcclQuantCastBFloat16 = 103
pcclQuantCastFloat16 = 104

pcclScheduleAutomatic = 0
pcclScheduleRing = 1
pcclScheduleAllGather = 2
pcclScheduleDirect = 3
pcclScheduleReduceBroadcast = 4
pcclSchedulePairwise = 5
pcclScheduleSites = 6

RankUuid = c_uint8 * 16


class BuildInfo(Structure):
    _fields_ = [
        ("has_cuda_support", c_bool),
    ]


class ReduceInfo(Structure):
    _fields_ = [
        ("local_world_size", c_uint32),
        ("schedule", c_int),
        ("tx_bytes", c_uint64),
        ("rx_bytes", c_uint64),
    ]


class ReduceOperandDescriptor(Structure):
    _fields_ = [
        ("datatype", c_int),
        ("distribution_hint", c_int),
    ]


class QuantizationOptions(Structure):
    _fields_ = [
        ("quantized_datatype", c_int),
        ("algorithm", c_int),
    ]


class ReduceDescriptor(Structure):
    _fields_ = [
        ("count", c_size_t),
        ("op", c_int),
        ("tag", c_uint64),
        ("src_descriptor", ReduceOperandDescriptor),
        ("quantization_options", QuantizationOptions),
    ]


class ReduceOpDescriptor(Structure):
    _fields_ = [
        ("sendbuf", c_void_p),
        ("recvbuf", c_void_p),
        ("descriptor", ReduceDescriptor),
    ]


class AsyncReduceOp(Structure):
    _fields_ = [
        ("comm", c_void_p),
        ("tag", c_uint64),
    ]


class TensorInfo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("data", c_void_p),
        ("count", c_size_t),
        ("datatype", c_int),
        ("device_type", c_int),
        ("allow_content_inequality", c_bool),
    ]


class SharedState(Structure):
    _fields_ = [
        ("revision", c_uint64),
        ("count", c_size_t),
        ("infos", POINTER(TensorInfo)),
    ]


class SharedStateSyncInfo(Structure):
    _fields_ = [
        ("tx_bytes", c_uint64),
        ("rx_bytes", c_uint64),
    ]

pcclRemedyNone = 0
pcclRemedyRetry = 1
pcclRemedyWaitForPeers = 2
pcclRemedyReconnect = 3
pcclRemedyGiveUp = 4
pcclRemedyFormGroup = 5

pcclLogEnvironment = -1
pcclLogOff = 0
pcclLogError = 1
pcclLogWarn = 2
pcclLogInfo = 3
pcclLogDebug = 4
pcclLogTrace = 5

LogCallback = CFUNCTYPE(None, c_int, c_char_p, c_char_p, c_void_p)


class World(Structure):
    _fields_ = [
        ("global_size", c_uint32),
        ("group_size", c_uint32),
        ("groups", c_uint32),
        ("largest_group", c_uint32),
        ("min_world_size", c_uint32),
        ("rank", c_uint32),
    ]


class Optimized(Structure):
    _fields_ = [
        ("group_size", c_uint32),
        ("schedule", c_int),
        ("changed", c_bool),
        ("proven", c_bool),
        ("has_slowest", c_bool),
        ("has_pairwise_gain", c_bool),
        ("pairwise_gain_pct", c_int32),
        ("slowest_from", RankUuid),
        ("slowest_to", RankUuid),
        ("slowest_mbit_s", c_double),
        ("bound_mbit_s", c_double),
        ("unmeasured_edges", c_uint64),
        ("note", c_char * 1032),
    ]


class Member(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("peer", RankUuid),
    ]


class SyncProgress(Structure):
    _fields_ = [
        ("done_bytes", c_uint64),
        ("total_bytes", c_uint64),
        ("bytes_per_s", c_uint64),
        ("sources", c_uint32),
    ]

SyncProgressCallback = CFUNCTYPE(None, POINTER(SyncProgress), c_void_p)


class Unchanged(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("revision", c_uint64),
    ]


class SyncOptions(Structure):
    _fields_ = [
        ("strategy", c_int),
        ("unchanged_count", c_size_t),
        ("unchanged", POINTER(Unchanged)),
        ("progress", SyncProgressCallback),
        ("user", c_void_p),
    ]


class SyncInfo(Structure):
    _fields_ = [
        ("tx_bytes", c_uint64),
        ("rx_bytes", c_uint64),
        ("came_ahead", c_bool),
    ]


class Ahead(Structure):
    _fields_ = [
        ("has_revision", c_bool),
        ("revision", c_uint64),
        ("rx_bytes", c_uint64),
    ]


class TensorDiff(Structure):
    _fields_ = [
        ("tensor", c_size_t),
        ("first_element", c_uint64),
        ("begin", c_uint64),
        ("end", c_uint64),
        ("contents", c_uint32),
        ("peers_apart", c_uint32),
        ("is_located", c_bool),
        ("is_apart", c_bool),
    ]


class Segment(Structure):
    _fields_ = [
        ("first", c_uint64),
        ("count", c_uint64),
        ("contributors", c_uint32),
        ("rank", c_uint32),
    ]


class Clip(Structure):
    _fields_ = [
        ("norm", c_double),
        ("scale", c_double),
        ("median", c_double),
        ("peers", c_uint32),
    ]


class PeerNorm(Structure):
    _fields_ = [
        ("peer", RankUuid),
        ("norm", c_double),
        ("scale", c_double),
    ]


class TensorShape(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dimensions", c_size_t),
        ("lengths", POINTER(c_uint64)),
    ]


class SaveOptions(Structure):
    _fields_ = [
        ("keep_previous", c_bool),
        ("shape_count", c_size_t),
        ("shapes", POINTER(TensorShape)),
    ]

pcclIterationAnySubset = 0
pcclIterationStrictMajority = 1

pcclIterationTimeHeartbeat = 0
pcclIterationTimeInactive = 1
pcclIterationTimeNoProgress = 2
pcclIterationTimePoll = 3
pcclIterationTimeStore = 4
pcclIterationTimeJoin = 5


class IterationInfo(Structure):
    _fields_ = [
        ("iteration", c_uint64),
        ("members", c_uint32),
        ("position", c_uint32),
        ("life", c_uint64),
    ]


class IterationMember(Structure):
    _fields_ = [
        ("life", c_uint64),
        ("payload_bytes", c_uint32),
        ("joined", c_bool),
        ("id", c_char * 72),
    ]

pcclDilocoNothing = 0
pcclDilocoHandIn = 1
pcclDilocoTakeOver = 2


class DilocoStats(Structure):
    _fields_ = [
        ("rounds", c_uint64),
        ("weight", c_double),
        ("rounds_here", c_uint64),
        ("contributed", c_uint64),
        ("stood_in", c_uint64),
        ("repeated", c_uint64),
        ("sent_bytes", c_uint64),
        ("plain_bytes", c_uint64),
        ("exchange_seconds", c_double),
        ("waited_seconds", c_double),
        ("members", c_uint64),
    ]


#: Of each function the type of its result, and those of its parameters.
FUNCTIONS = {
    "pcclInit": (c_int, []),
    "pcclGetBuildInfo": (c_int, [POINTER(BuildInfo)]),
    "pcclDestroyCommunicator": (c_int, [c_void_p]),
    "pcclConnect": (c_int, [c_void_p]),
    "pcclGetAttribute": (c_int, [c_void_p, c_int, POINTER(c_int)]),
    "pcclUpdateTopology": (c_int, [c_void_p]),
    "pcclArePeersPending": (c_int, [c_void_p, POINTER(c_bool)]),
    "pcclOptimizeTopology": (c_int, [c_void_p]),
    "pcclAllReduce": (c_int, [c_void_p, c_void_p, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclAllReduceAsync": (c_int, [c_void_p, c_void_p, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclAwaitAsyncReduce": (c_int, [POINTER(AsyncReduceOp), POINTER(ReduceInfo)]),
    "pcclAllReduceMultipleWithRetry": (c_int, [POINTER(ReduceOpDescriptor), c_size_t, c_void_p, POINTER(ReduceInfo), c_int]),
    "pcclSynchronizeSharedState": (c_int, [c_void_p, POINTER(SharedState), c_int, POINTER(SharedStateSyncInfo)]),
    "pcclRunMaster": (c_int, [c_void_p]),
    "pcclInterruptMaster": (c_int, [c_void_p]),
    "pcclMasterAwaitTermination": (c_int, [c_void_p]),
    "pcclDestroyMaster": (c_int, [c_void_p]),
    "pcclGetVersion": (c_char_p, []),
    "pcclGetResultName": (c_char_p, [c_int]),
    "pcclGetLastError": (c_char_p, []),
    "pcclGetLastRemedy": (c_int, []),
    "pcclSetLogCallback": (c_int, [c_int, LogCallback, c_void_p]),
    "pcclWriteLog": (c_int, [c_int, c_char_p]),
    "pcclGetLastCause": (c_char_p, []),
    "pcclGetLastCulprits": (c_int, [c_void_p, c_size_t, POINTER(c_size_t)]),
    "pcclGetLastVerdict": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)]),
    "pcclSaveSharedState": (c_int, [POINTER(SharedState), c_char_p, POINTER(SaveOptions), POINTER(c_uint64)]),
    "pcclSaveSharedStateAsync": (c_int, [POINTER(SharedState), c_char_p, POINTER(SaveOptions), POINTER(c_void_p)]),
    "pcclTestSaving": (c_int, [c_void_p, POINTER(c_bool)]),
    "pcclAwaitSaving": (c_int, [c_void_p, POINTER(c_uint64)]),
    "pcclLoadSharedState": (c_int, [POINTER(SharedState), c_char_p]),
    "pcclOfferResume": (c_int, [c_void_p, POINTER(SharedState)]),
    "pcclCreateCommunicatorByName": (c_int, [c_char_p, c_uint32, c_uint32, POINTER(c_void_p)]),
    "pcclSetOption": (c_int, [c_void_p, c_char_p, c_char_p]),
    "pcclSetSchedule": (c_int, [c_void_p, c_int]),
    "pcclSetCallTimeout": (c_int, [c_void_p, c_uint64]),
    "pcclSetThreadCallTimeout": (c_int, [c_uint64]),
    "pcclGetName": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)]),
    "pcclGetPeerId": (c_int, [c_void_p, c_void_p]),
    "pcclIsConnected": (c_int, [c_void_p, POINTER(c_bool)]),
    "pcclGetWorld": (c_int, [c_void_p, POINTER(World)]),
    "pcclGetRing": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t)]),
    "pcclWaitForWorld": (c_int, [c_void_p, c_uint32, c_uint64]),
    "pcclFormGroup": (c_int, [c_void_p, c_uint64, c_uint64, POINTER(Member), c_size_t]),
    "pcclRecover": (c_int, [c_void_p, c_int, c_uint32]),
    "pcclGetStatus": (c_int, [c_void_p, c_bool, c_char_p, c_size_t, POINTER(c_size_t)]),
    "pcclReport": (c_int, [c_void_p, c_char_p, c_double]),
    "pcclDoctor": (c_int, [c_void_p, POINTER(c_bool)]),
    "pcclGetDoctorReport": (c_int, [c_void_p, c_bool, c_char_p, c_size_t, POINTER(c_size_t)]),
    "pcclAllReduceManyAsync": (c_int, [POINTER(ReduceOpDescriptor), c_size_t, c_void_p, POINTER(AsyncReduceOp)]),
    "pcclBroadcast": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclBroadcastAsync": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclReduce": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclReduceAsync": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclAllGather": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclAllGatherAsync": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclAllGatherV": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclAllGatherVAsync": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclReduceScatter": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclReduceScatterAsync": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclReduceScatterV": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclReduceScatterVAsync": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclGather": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclGatherAsync": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclGatherV": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclGatherVAsync": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclScatter": (c_int, [c_void_p, c_size_t, c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclScatterAsync": (c_int, [c_void_p, c_size_t, c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclScatterV": (c_int, [c_void_p, c_size_t, c_void_p, c_uint32, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclScatterVAsync": (c_int, [c_void_p, c_size_t, c_void_p, c_uint32, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclAllToAll": (c_int, [c_void_p, c_void_p, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclAllToAllAsync": (c_int, [c_void_p, c_void_p, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclAllToAllV": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclAllToAllVAsync": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_size_t, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclExchangeCounts": (c_int, [POINTER(c_size_t), POINTER(c_size_t), c_size_t, POINTER(c_size_t), c_uint64, c_void_p]),
    "pcclWeightedAverage": (c_int, [c_void_p, c_double, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclWeightedAverageAsync": (c_int, [c_void_p, c_double, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclAllReduceInSegments": (c_int, [c_void_p, c_void_p, POINTER(ReduceDescriptor), c_void_p, c_size_t, POINTER(ReduceInfo), POINTER(Segment), c_size_t, POINTER(c_size_t)]),
    "pcclClipToMedian": (c_int, [POINTER(ReduceOpDescriptor), c_size_t, c_double, c_void_p, POINTER(Clip), POINTER(PeerNorm), c_size_t]),
    "pcclBarrier": (c_int, [c_uint64, c_void_p, POINTER(ReduceInfo)]),
    "pcclBarrierAsync": (c_int, [c_uint64, c_void_p, POINTER(AsyncReduceOp)]),
    "pcclSend": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclSendAsync": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclRecv": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclRecvAsync": (c_int, [c_void_p, c_uint32, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclTestAsyncReduce": (c_int, [POINTER(AsyncReduceOp), POINTER(c_bool)]),
    "pcclWaitAsyncReduce": (c_int, [POINTER(AsyncReduceOp), c_uint64, POINTER(c_bool)]),
    "pcclAwaitAsyncReduceFor": (c_int, [POINTER(AsyncReduceOp), c_uint64, POINTER(ReduceInfo)]),
    "pcclSynchronizeSharedStateWith": (c_int, [c_void_p, POINTER(SharedState), c_int, POINTER(SharedStateSyncInfo), SyncProgressCallback, c_void_p]),
    "pcclSyncSharedState": (c_int, [c_void_p, POINTER(SharedState), POINTER(SyncOptions), POINTER(SyncInfo)]),
    "pcclConnectWithState": (c_int, [c_void_p, POINTER(SharedState), c_uint64, SyncProgressCallback, c_void_p, POINTER(Ahead)]),
    "pcclRecoverWithState": (c_int, [c_void_p, c_int, c_uint32, POINTER(SharedState), POINTER(Ahead)]),
    "pcclLendSharedState": (c_int, [c_void_p, POINTER(SharedState), c_bool, POINTER(c_uint64)]),
    "pcclReclaimSharedState": (c_int, [c_void_p, c_uint64]),
    "pcclLendSharedStateSnapshot": (c_int, [c_void_p, POINTER(SharedState), c_bool]),
    "pcclEndSharedStateSnapshot": (c_int, [c_void_p]),
    "pcclDiffSharedState": (c_int, [c_void_p, POINTER(SharedState), POINTER(TensorDiff), c_size_t, POINTER(c_size_t)]),
    "pcclGetStateDiffText": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)]),
    "pcclGetStateDiffPeers": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)]),
    "pcclOptimizeTopologyInfo": (c_int, [c_void_p, POINTER(Optimized)]),
    "pcclAbortAsyncReduce": (c_int, [POINTER(AsyncReduceOp)]),
    "pcclDumpFlight": (c_int, [c_void_p, c_char_p, c_char_p, c_size_t, POINTER(c_size_t)]),
    "pcclClose": (c_int, [c_void_p]),
    "pcclCloseWithin": (c_int, [c_void_p, c_uint64]),
    "pcclCreateMasterByName": (c_int, [c_char_p, POINTER(c_void_p)]),
    "pcclMasterSetOption": (c_int, [c_void_p, c_char_p, c_char_p]),
    "pcclMasterEndRun": (c_int, [c_void_p]),
    "pcclMasterHasEnded": (c_int, [c_void_p, POINTER(c_bool)]),
    "pcclMasterGetPort": (c_int, [c_void_p, POINTER(c_uint16)]),
    "pcclIterationServeStore": (c_int, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "pcclIterationGetStorePort": (c_int, [c_void_p, POINTER(c_uint16)]),
    "pcclIterationStopStore": (c_int, [c_void_p]),
    "pcclIterationCreate": (c_int, [c_char_p, c_char_p, c_char_p, c_uint32, POINTER(c_void_p)]),
    "pcclIterationDestroy": (c_int, [c_void_p]),
    "pcclIterationSetPolicy": (c_int, [c_void_p, c_int]),
    "pcclIterationSetFirst": (c_int, [c_void_p, c_uint64]),
    "pcclIterationSetTime": (c_int, [c_void_p, c_int, c_uint64]),
    "pcclIterationSetMirror": (c_int, [c_void_p, c_bool]),
    "pcclIterationJoin": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(IterationInfo)]),
    "pcclIterationAdvance": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(IterationInfo)]),
    "pcclIterationCatchUp": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(IterationInfo)]),
    "pcclIterationLeave": (c_int, [c_void_p]),
    "pcclIterationCancel": (c_int, [c_void_p]),
    "pcclIterationForceMembers": (c_int, [c_void_p, POINTER(c_char_p), c_size_t]),
    "pcclIterationGetCurrent": (c_int, [c_void_p, POINTER(c_bool), POINTER(IterationInfo)]),
    "pcclIterationGetDecision": (c_int, [c_void_p, POINTER(IterationInfo)]),
    "pcclIterationGetMember": (c_int, [c_void_p, c_uint32, POINTER(IterationMember), c_void_p, c_size_t]),
    "pcclGetDeviceCount": (c_int, [POINTER(c_uint32)]),
    "pcclSetThreadDevice": (c_int, [c_bool, c_void_p]),
    "pcclSetThreadByAddress": (c_int, [c_void_p]),
    "pcclAllReduceOnDevice": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(ReduceDescriptor), c_void_p, POINTER(ReduceInfo)]),
    "pcclAllReduceOnDeviceAsync": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(ReduceDescriptor), c_void_p, POINTER(AsyncReduceOp)]),
    "pcclStage": (c_int, [c_void_p, c_size_t, c_void_p, c_bool, POINTER(c_void_p), POINTER(c_void_p)]),
    "pcclUnstage": (c_int, [c_void_p, c_bool]),
    "pcclUnstageOnStream": (c_int, [c_void_p]),
    "pcclDilocoCreate": (c_int, [c_void_p, POINTER(c_void_p)]),
    "pcclDilocoSet": (c_int, [c_void_p, c_char_p, c_char_p]),
    "pcclDilocoJoin": (c_int, [c_void_p, POINTER(c_float), c_uint64]),
    "pcclDilocoStep": (c_int, [c_void_p, POINTER(c_float), c_uint64, c_double]),
    "pcclDilocoCount": (c_int, [c_void_p, c_double]),
    "pcclDilocoNext": (c_int, [c_void_p, POINTER(c_int), POINTER(c_uint64)]),
    "pcclDilocoContribute": (c_int, [c_void_p, c_uint64, POINTER(c_float), c_uint64]),
    "pcclDilocoLand": (c_int, [c_void_p, c_uint64, POINTER(c_float), c_uint64]),
    "pcclDilocoTakeSamples": (c_int, [c_void_p, POINTER(c_uint64), c_uint64, POINTER(c_uint64)]),
    "pcclDilocoCountSamples": (c_int, [c_void_p, c_uint64]),
    "pcclDilocoGetSamples": (c_int, [c_void_p, POINTER(c_uint64), POINTER(c_bool)]),
    "pcclDilocoGetCountedSamples": (c_int, [c_void_p, c_uint64, POINTER(c_uint64), c_uint64, POINTER(c_uint64)]),
    "pcclDilocoLoadOuter": (c_int, [c_void_p, POINTER(c_float), c_uint64]),
    "pcclDilocoGetStepIndex": (c_int, [c_void_p, POINTER(c_uint64)]),
    "pcclDilocoGetStats": (c_int, [c_void_p, POINTER(DilocoStats)]),
    "pcclDilocoTakeReport": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)]),
    "pcclDilocoSave": (c_int, [c_void_p, c_char_p]),
    "pcclDilocoFinish": (c_int, [c_void_p, POINTER(c_float), c_uint64, c_uint64]),
    "pcclDilocoDestroy": (c_int, [c_void_p]),
    "pcclSamplesCreate": (c_int, [c_uint64, POINTER(c_uint64), c_uint64, c_uint64, c_uint64, POINTER(c_void_p)]),
    "pcclSamplesWordsFor": (c_uint64, [c_uint64]),
    "pcclSamplesGetWords": (c_int, [c_void_p, POINTER(c_uint64), c_uint64]),
    "pcclSamplesTake": (c_int, [c_void_p, POINTER(c_uint64), c_uint64, c_uint64, POINTER(c_uint64), c_uint64, POINTER(c_uint64)]),
    "pcclSamplesGetCounts": (c_int, [c_void_p, POINTER(c_uint64), c_uint64, c_uint64, POINTER(c_uint64), c_uint64, POINTER(c_uint64)]),
    "pcclSamplesSettle": (c_int, [c_void_p, POINTER(c_uint64), c_uint64, POINTER(c_uint64), c_uint64, POINTER(c_uint64)]),
    "pcclSamplesCommit": (c_int, [c_void_p, POINTER(c_uint64), c_uint64, POINTER(c_uint64), c_uint64, POINTER(c_uint64)]),
    "pcclSamplesGetProgress": (c_int, [c_void_p, POINTER(c_uint64), c_uint64, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint64)]),
    "pcclSamplesDestroy": (c_int, [c_void_p]),
}
