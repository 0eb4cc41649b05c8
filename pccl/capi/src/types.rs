//! The structures of the header. Enums arrive as plain integers: C may pass any value.

use std::ffi::{c_char, c_int, c_void};

/// The code that functions return.
pub(crate) type ResultCode = c_int;

/// Values of `pcclResult_t` that this library returns.
pub(crate) mod code {
    use super::ResultCode;
    pub(crate) const SUCCESS: ResultCode = 0;
    pub(crate) const NOT_INITIALIZED: ResultCode = 1;
    pub(crate) const INTERNAL_ERROR: ResultCode = 2;
    pub(crate) const INVALID_ARGUMENT: ResultCode = 3;
    pub(crate) const INVALID_USAGE: ResultCode = 4;
    pub(crate) const TOO_FEW_PEERS: ResultCode = 5;
    pub(crate) const MASTER_CONNECTION_FAILED: ResultCode = 6;
    pub(crate) const RANK_CONNECTION_LOST: ResultCode = 8;
    pub(crate) const NO_SHARED_STATE_AVAILABLE: ResultCode = 9;
    pub(crate) const PENDING_ASYNC_OPS: ResultCode = 10;
    pub(crate) const UPDATE_TOPOLOGY_FAILED: ResultCode = 11;
    pub(crate) const TOPOLOGY_OPTIMIZATION_FAILED: ResultCode = 12;
}

/// Names of the values of `pcclResult_t`, each with its zero.
pub(crate) const RESULT_NAMES: [&std::ffi::CStr; 13] = [
    c"pcclSuccess",
    c"pcclNotInitialized",
    c"pcclInternalError",
    c"pcclInvalidArgument",
    c"pcclInvalidUsage",
    c"pcclTooFewPeers",
    c"pcclMasterConnectionFailed",
    c"pcclRankConnectionFailed",
    c"pcclRankConnectionLost",
    c"pcclNoSharedStateAvailable",
    c"pcclPendingAsyncOps",
    c"pcclUpdateTopologyFailed",
    c"pcclTopologyOptimizationFailed",
];

/// `pcclComm_t *` and `pcclMasterInstance_t *`: never an address.
pub(crate) type Handle = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct InetAddress {
    pub(crate) protocol: c_int,
    pub(crate) ipv4: [u8; 4],
    pub(crate) ipv6: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SocketAddress {
    pub(crate) inet: InetAddress,
    pub(crate) port: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CommCreateParams {
    pub(crate) master_address: SocketAddress,
    pub(crate) peer_group: u32,
    pub(crate) pool_connections: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ReduceInfo {
    pub(crate) local_world_size: u32,
    pub(crate) schedule: c_int,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OperandDescriptor {
    pub(crate) data_type: c_int,
    pub(crate) distribution_hint: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QuantizationOptions {
    pub(crate) quantized_data_type: c_int,
    pub(crate) algorithm: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ReduceDescriptor {
    pub(crate) count: usize,
    pub(crate) op: c_int,
    pub(crate) tag: u64,
    pub(crate) source: OperandDescriptor,
    pub(crate) quantization: QuantizationOptions,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ReduceOpDescriptor {
    pub(crate) send: *mut c_void,
    pub(crate) recv: *mut c_void,
    pub(crate) descriptor: ReduceDescriptor,
}

/// `pcclSegment_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) contributors: u32,
    pub(crate) rank: u32,
}

/// `pcclClip_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Clip {
    pub(crate) norm: f64,
    pub(crate) scale: f64,
    pub(crate) median: f64,
    pub(crate) peers: u32,
}

/// `pcclPeerNorm_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PeerNorm {
    pub(crate) peer: [u8; 16],
    pub(crate) norm: f64,
    pub(crate) scale: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AsyncReduceOp {
    pub(crate) comm: Handle,
    pub(crate) tag: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TensorInfo {
    pub(crate) name: *const c_char,
    pub(crate) data: *mut c_void,
    pub(crate) count: usize,
    pub(crate) data_type: c_int,
    pub(crate) device_type: c_int,
    /// A `bool`, which C may have filled with anything.
    pub(crate) allow_content_inequality: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TensorShape {
    pub(crate) name: *const c_char,
    pub(crate) dimensions: usize,
    pub(crate) lengths: *const u64,
}

/// `pcclSaveOptions_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SaveOptions {
    /// A `bool`, which C may have filled with anything.
    pub(crate) keep_previous: u8,
    pub(crate) shape_count: usize,
    pub(crate) shapes: *const TensorShape,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SharedState {
    pub(crate) revision: u64,
    pub(crate) count: usize,
    pub(crate) infos: *mut TensorInfo,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TensorDiff {
    pub(crate) tensor: usize,
    pub(crate) first_element: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) contents: u32,
    pub(crate) peers_apart: u32,
    pub(crate) is_located: bool,
    pub(crate) is_apart: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SyncProgress {
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) bytes_per_s: u64,
    pub(crate) sources: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SyncInfo {
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
}

/// Hears how far a sync is.
pub(crate) type ProgressCallback = unsafe extern "C" fn(*const SyncProgress, *mut c_void);

/// `pcclUnchanged_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Unchanged {
    pub(crate) name: *const c_char,
    pub(crate) revision: u64,
}

/// `pcclSyncOptions_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SyncOptions {
    pub(crate) strategy: c_int,
    pub(crate) unchanged_count: usize,
    pub(crate) unchanged: *const Unchanged,
    pub(crate) progress: Option<ProgressCallback>,
    pub(crate) user: *mut c_void,
}

/// `pcclSyncInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SyncReport {
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) came_ahead: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) has_revision: bool,
    pub(crate) revision: u64,
    pub(crate) rx_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BuildInfo {
    pub(crate) has_cuda_support: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct World {
    pub(crate) global_size: u32,
    pub(crate) group_size: u32,
    pub(crate) groups: u32,
    pub(crate) largest_group: u32,
    pub(crate) min_world_size: u32,
    pub(crate) rank: u32,
}

/// A member of a group that is to be formed: by its name, or, where that is null, by its identity.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub(crate) name: *const c_char,
    pub(crate) peer: [u8; 16],
}

/// Bytes of a note with its zero: the longest text of the protocol, rounded up.
pub(crate) const NOTE_BYTES: usize = 1032;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Optimized {
    pub(crate) group_size: u32,
    pub(crate) schedule: c_int,
    pub(crate) changed: bool,
    pub(crate) proven: bool,
    pub(crate) has_slowest: bool,
    pub(crate) has_pairwise_gain: bool,
    pub(crate) pairwise_gain_pct: i32,
    pub(crate) slowest_from: [u8; 16],
    pub(crate) slowest_to: [u8; 16],
    pub(crate) slowest_mbit_s: f64,
    pub(crate) bound_mbit_s: f64,
    pub(crate) unmeasured_edges: u64,
    pub(crate) note: [u8; NOTE_BYTES],
}

/// Bytes of the name of a member of a global iteration, with its zero, rounded up.
pub(crate) const MEMBER_BYTES: usize = 72;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IterationInfo {
    pub(crate) iteration: u64,
    pub(crate) members: u32,
    pub(crate) position: u32,
    pub(crate) life: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IterationMember {
    pub(crate) life: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) joined: bool,
    pub(crate) id: [u8; MEMBER_BYTES],
}

// The test of the interface asserts the same of the header.
const _: () = {
    assert!(size_of::<SocketAddress>() == 28 && align_of::<SocketAddress>() == 4);
    assert!(size_of::<CommCreateParams>() == 36);
    assert!(size_of::<ReduceInfo>() == 24);
    assert!(size_of::<ReduceDescriptor>() == 40 && size_of::<ReduceOpDescriptor>() == 56);
    assert!(size_of::<AsyncReduceOp>() == 16);
    assert!(size_of::<Segment>() == 24);
    assert!(size_of::<Clip>() == 32 && size_of::<PeerNorm>() == 32);
    assert!(size_of::<TensorInfo>() == 40 && size_of::<SharedState>() == 24);
    assert!(size_of::<SyncInfo>() == 16 && size_of::<BuildInfo>() == 1 && size_of::<World>() == 24);
    assert!(size_of::<Optimized>() == 1104);
    assert!(size_of::<SyncOptions>() == 40 && size_of::<SyncReport>() == 24 && size_of::<Ahead>() == 24);
    assert!(size_of::<IterationInfo>() == 24 && size_of::<IterationMember>() == 88);
    assert!(MEMBER_BYTES > pccl_iteration::protocol::MAX_ID_BYTES);
};
