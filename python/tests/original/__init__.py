"""The core of a package as that of the original's version 1.0.0: cffi over the shared object in the directory of the
package.

The tests put it, as ``pccl``, beside a libpccl.so of this repository: nothing of this repository's own package is used.
"""

from enum import Enum

from ._loader import ffi, load_native_module

C = load_native_module()


class Result(Enum):
    SUCCESS = C.pcclSuccess
    NOT_INITIALIZED = C.pcclNotInitialized
    INTERNAL_ERROR = C.pcclInternalError
    INVALID_ARGUMENT = C.pcclInvalidArgument
    INVALID_USAGE = C.pcclInvalidUsage
    TOO_FEW_PEERS = C.pcclTooFewPeers
    MASTER_CONNECTION_FAILED = C.pcclMasterConnectionFailed
    RANK_CONNECTION_FAILED = C.pcclRankConnectionFailed
    RANK_CONNECTION_LOST = C.pcclRankConnectionLost
    NO_SHARED_STATE_AVAILABLE = C.pcclNoSharedStateAvailable
    PENDING_ASYNC_OPS = C.pcclPendingAsyncOps
    UPDATE_TOPOLOGY_FAILED = C.pcclUpdateTopologyFailed
    TOPOLOGY_OPTIMIZATION_FAILED = C.pcclTopologyOptimizationFailed


class Attribute(Enum):
    GLOBAL_WORLD_SIZE = C.PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE
    LOCAL_WORLD_SIZE = C.PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE


class PCCLError(Exception):
    def __init__(self, result, name):
        super().__init__(f"{name}: {result}")
        self.result = result

    @staticmethod
    def check(code, name):
        if Result(code) != Result.SUCCESS:
            raise PCCLError(Result(code), name)


PCCLError.check(C.pcclInit(), "pcclInit")
_build_info = ffi.new("pcclBuildInfo_t*")
PCCLError.check(C.pcclGetBuildInfo(_build_info), "pcclGetBuildInfo")
HAS_CUDA = _build_info.has_cuda_support


def socket_address(address):
    host, port = address.split(":")
    result = ffi.new("ccoip_socket_address_t*")
    result.inet.protocol = C.inetIPv4
    result.inet.ipv4.data = [int(part) for part in host.split(".")]
    result.port = int(port)
    return result


class MasterNode:
    def __init__(self, listen_address):
        self._address = socket_address(listen_address)
        self._master = ffi.new("pcclMasterInstance_t**")
        PCCLError.check(C.pcclCreateMaster(self._address[0], self._master), "pcclCreateMaster")

    def run(self):
        PCCLError.check(C.pcclRunMaster(self._master[0]), "pcclRunMaster")

    def interrupt(self):
        PCCLError.check(C.pcclInterruptMaster(self._master[0]), "pcclInterruptMaster")

    def __del__(self):
        PCCLError.check(C.pcclMasterAwaitTermination(self._master[0]), "pcclMasterAwaitTermination")
        PCCLError.check(C.pcclDestroyMaster(self._master[0]), "pcclDestroyMaster")


class Communicator:
    def __init__(self, address, peer_group=0):
        self._params = ffi.new("pcclCommCreateParams_t*")
        self._params.master_address = socket_address(address)[0]
        self._params.peer_group = peer_group
        self._comm = ffi.new("pcclComm_t**")
        PCCLError.check(C.pcclCreateCommunicator(self._params, self._comm), "pcclCreateCommunicator")

    def connect(self):
        PCCLError.check(C.pcclConnect(self._comm[0]), "pcclConnect")

    def get_attribute(self, attribute):
        value = ffi.new("int*")
        PCCLError.check(C.pcclGetAttribute(self._comm[0], attribute.value, value), "pcclGetAttribute")
        return value[0]

    def update_topology(self):
        PCCLError.check(C.pcclUpdateTopology(self._comm[0]), "pcclUpdateTopology")

    def are_peers_pending(self):
        pending = ffi.new("bool*")
        PCCLError.check(C.pcclArePeersPending(self._comm[0], pending), "pcclArePeersPending")
        return pending[0]

    def optimize_topology(self):
        PCCLError.check(C.pcclOptimizeTopology(self._comm[0]), "pcclOptimizeTopology")

    def sync_shared_state(self, state):
        info = ffi.new("pcclSharedStateSyncInfo_t*")
        strategy = C.PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR
        PCCLError.check(C.pcclSynchronizeSharedState(self._comm[0], state.c, strategy, info),
                        "pcclSynchronizeSharedState")
        return info.tx_bytes, info.rx_bytes

    def all_reduce_async(self, send, recv, *, op, tag=0, quantised=False):
        descriptor = ffi.new("pcclReduceDescriptor_t*")
        descriptor.count, descriptor.op, descriptor.tag = send.size, op, tag
        descriptor.src_descriptor.datatype = C.pcclFloat
        # The original passes the type of the data itself if nothing is quantised.
        descriptor.quantization_options.quantized_datatype = C.pcclUint8 if quantised else C.pcclFloat
        descriptor.quantization_options.algorithm = C.pcclQuantMinMax if quantised else C.pcclQuantNone
        handle = ffi.new("pcclAsyncReduceOp_t*")
        code = C.pcclAllReduceAsync(ffi.cast("void*", send.ctypes.data), ffi.cast("void*", recv.ctypes.data),
                                    descriptor,
                                    self._comm[0], handle)
        PCCLError.check(code, "pcclAllReduceAsync")
        # A copy of the value, as the original stores it.
        return AsyncReduceHandle(handle[0])

    def __del__(self):
        PCCLError.check(C.pcclDestroyCommunicator(self._comm[0]), "pcclDestroyCommunicator")


class AsyncReduceHandle:
    def __init__(self, handle):
        self._handle = ffi.new("pcclAsyncReduceOp_t*")
        self._handle.comm, self._handle.tag = handle.comm, handle.tag

    def wait(self):
        info = ffi.new("pcclReduceInfo_t*")
        code = C.pcclAwaitAsyncReduce(self._handle, info)
        return code == C.pcclSuccess, code, info


class SharedState:
    def __init__(self, **arrays):
        self._names = [ffi.new("char[]", name.encode()) for name in arrays]
        self._infos = ffi.new("pcclTensorInfo_t[]", len(arrays))
        for info, name, array in zip(self._infos, self._names, arrays.values()):
            info.name, info.data, info.count = name, ffi.cast("void*", array.ctypes.data), array.size
            info.datatype, info.device_type = C.pcclFloat, C.pcclDeviceCpu
        self.c = ffi.new("pcclSharedState_t*")
        self.c.revision, self.c.count, self.c.infos = 0, len(arrays), self._infos

    @property
    def revision(self):
        return self.c.revision

    def push_revision(self):
        self.c.revision += 1
