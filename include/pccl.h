/*
 * PCCL: fault-tolerant collective communication. The C interface, for C99 and C++.
 *
 * The first part is that of version 1.0.0 of the original: names, values, layouts and results are the same, and
 * programs that were compiled for it run unchanged. The second part, from "Extensions" on, is new.
 *
 * Rules for all functions, unless they say otherwise:
 * - They block until they are done. They may be called from any thread; calls that exclude each other return
 *   pcclInvalidUsage instead of waiting.
 * - A pointer that must not be NULL, a handle that is unknown or destroyed, or a value that is not in its enum gives
 *   pcclInvalidArgument.
 * - After any failure send buffers and in-place buffers hold what they held before; there is one exception, see
 *   pcclGetLastCause.
 * - A failure leaves its text in pcclGetLastError() of the calling thread.
 * - In a process that was forked while it had communicators, masters or savings, all of them return pcclInvalidUsage.
 */
#ifndef PCCL_H
#define PCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ccoip_inet.h"

/* The version of this header; pcclGetVersion() tells that of the library. As a number it grows with every version. */
#define PCCL_VERSION_MAJOR 0
#define PCCL_VERSION_MINOR 1
#define PCCL_VERSION_PATCH 0
#define PCCL_VERSION_STRING "0.1.0"
#define PCCL_VERSION (PCCL_VERSION_MAJOR * 1000000 + PCCL_VERSION_MINOR * 1000 + PCCL_VERSION_PATCH)

#if defined(_WIN32)
#define PCCL_EXPORT
#else
#define PCCL_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Values -------------------------------------------------------------------------------------------------- */

typedef enum pcclResult_t {
    pcclSuccess = 0,
    pcclNotInitialized = 1,
    pcclInternalError = 2,
    pcclInvalidArgument = 3,
    pcclInvalidUsage = 4,
    pcclTooFewPeers = 5,
    pcclMasterConnectionFailed = 6,
    pcclRankConnectionFailed = 7,
    pcclRankConnectionLost = 8,
    pcclNoSharedStateAvailable = 9,
    pcclPendingAsyncOps = 10,
    pcclUpdateTopologyFailed = 11,
    pcclTopologyOptimizationFailed = 12
} pcclResult_t;

typedef enum pcclDataType_t {
    pcclUint8 = 0,
    pcclInt8 = 1,
    pcclInt16 = 2,
    pcclUint16 = 3,
    pcclUint32 = 4,
    pcclInt32 = 5,
    pcclUint64 = 6,
    pcclInt64 = 7,
    pcclFloat16 = 8,
    pcclBFloat16 = 9,
    pcclFloat = 10,
    pcclDouble = 11
} pcclDataType_t;

typedef enum pcclDeviceType_t {
    pcclDeviceCpu = 0,
    pcclDeviceCuda = 1
} pcclDeviceType_t;

typedef enum pcclRedOp_t {
    pcclSum = 0,
    pcclAvg = 1,
    pcclProd = 2,
    pcclMax = 3,
    pcclMin = 4
} pcclRedOp_t;

typedef enum pcclAttribute_t {
    PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1,
    PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,
    PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,
    PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4
} pcclAttribute_t;

typedef enum pcclSharedStateSyncStrategy_t {
    PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0,
    PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,
    PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2
} pcclSharedStateSyncStrategy_t;

/* Not used by the library. */
typedef enum pcclDistributionHint_t {
    pcclDistributionHintNone = 0,
    pcclDistributionHintNormal = 1,
    pcclDistributionHintUniform = 2,
    /* Other spellings that programs use. */
    pcclDistributionNone = 0,
    pcclDistributionNormal = 1,
    pcclDistributionUniform = 2,
    PCCL_DISTRIBUTION_HINT_NONE = 0,
    PCCL_DISTRIBUTION_HINT_NORMAL = 1,
    PCCL_DISTRIBUTION_HINT_UNIFORM = 2
} pcclDistributionHint_t;

typedef enum pcclQuantizationAlgorithm_t {
    pcclQuantNone = 0,
    pcclQuantMinMax = 1,
    pcclQuantZeroPointScale = 2,
    /* Extensions. The type that travels follows from the algorithm, quantized_datatype does not count. */
    pcclQuantBlockAffineUint8 = 100,
    pcclQuantBlockSymmetricInt8 = 101,
    pcclQuantBlockAffineUint4 = 102,
    pcclQuantCastBFloat16 = 103,
    pcclQuantCastFloat16 = 104
} pcclQuantizationAlgorithm_t;

/* How the data of a reduce travels. An extension: programs of the original know nothing of it. */
typedef enum pcclSchedule_t {
    /* The library chooses, by the size of the reduce and by the rates that pcclOptimizeTopology has measured. */
    pcclScheduleAutomatic = 0,
    /* Around the ring. */
    pcclScheduleRing = 1,
    /* These cannot be chosen. Small reduces take them by themselves. */
    pcclScheduleAllGather = 2,
    pcclScheduleDirect = 3,
    pcclScheduleReduceBroadcast = 4,
    /* In groups of 3 to 8, between all pairs of peers at once; what is quantised comes out more accurate than around
     * the ring, but depends a little on which peer owns what, and so on measured rates. The ring is taken where a pair
     * cannot connect within 2 s. Other groups choose as if it were automatic. */
    pcclSchedulePairwise = 5,
    /* All-reduces in two levels over sites (option "site"), in groups of 3 to 32: each byte crosses between two sites
     * once each way. All peers have the same bytes, but not those of the ring, as contributions are added in another
     * order. Data that is quantised is so between sites only, once for each crossing. Other collectives, and groups
     * without sites, choose as if it were automatic. */
    pcclScheduleSites = 6
} pcclSchedule_t;

/* ---- Structures ---------------------------------------------------------------------------------------------- */

typedef struct pcclComm_t pcclComm_t;
typedef struct pcclMasterInstance_t pcclMasterInstance_t;
typedef struct pcclRankInfo_t pcclRankInfo_t;

typedef struct pcclRankUuid_t {
    uint8_t data[16];
} pcclRankUuid_t;

typedef struct pcclBuildInfo_t {
    /* Whether the library was built with CUDA and a driver loads, which it looks for at run time.
     * pcclGetDeviceCount says how many devices there are. */
    bool has_cuda_support;
} pcclBuildInfo_t;

typedef struct pcclCommCreateParams_t {
    ccoip_socket_address_t master_address;
    /* All-reduces and syncs run inside a group. */
    uint32_t peer_group;
    /* Connections to the next peer of the ring. 0 lets the library choose, and so does 1, which programs of the
     * original pass: one connection does not fill a long path. */
    uint32_t p2p_connection_pool_size;
} pcclCommCreateParams_t;

typedef struct pcclReduceInfo_t {
    /* Peers that took part. */
    uint32_t local_world_size;
    /* How the data travelled. An extension, where the original has four bytes without a meaning. */
    pcclSchedule_t schedule;
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclReduceInfo_t;

typedef struct pcclReduceOperandDescriptor_t {
    pcclDataType_t datatype;
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

/* Sums and averages of floats may travel in fewer bits; the results are still the same on all peers. */
typedef struct pcclQuantizationOptions_t {
    /* Does not count while algorithm is pcclQuantNone. */
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

typedef struct pcclReduceDescriptor_t {
    /* Elements. */
    size_t count;
    pcclRedOp_t op;
    /* Names the operation among those in flight. */
    uint64_t tag;
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

typedef struct pcclReduceSingleDescriptor_t {
    void *sendbuf;
    void *recvbuf;
    pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

/* A plain value: it may be copied, and made by hand. */
typedef struct pcclAsyncReduceOp_t {
    pcclComm_t *comm;
    uint64_t tag;
} pcclAsyncReduceOp_t;

typedef struct pcclTensorInfo_t {
    /* Ends with a zero; must be different for each tensor. */
    const char *name;
    /* With pcclDeviceCuda an address on a device. It is used after what is queued on the default stream of its
     * context: wait for other streams before. */
    void *data;
    /* Elements. */
    size_t count;
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    /* The content may differ between peers; it moves only to peers whose revision is outdated. */
    bool allow_content_inequality;
} pcclTensorInfo_t;

typedef struct pcclSharedState_t {
    uint64_t revision;
    size_t count;
    pcclTensorInfo_t *infos;
} pcclSharedState_t;

typedef struct pcclSharedStateSyncInfo_t {
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclSharedStateSyncInfo_t;

/* ---- Functions of the original ------------------------------------------------------------------------------- */

/* Prepares the library; all but the functions of the master need it. May be called any number of times. */
PCCL_EXPORT pcclResult_t pcclInit(void);

PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info);

/* Makes a communicator. No connection is made yet; the parameters are copied. */
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out);

/* Leaves the run, ends what is in flight, and waits until nothing uses a buffer of the caller any more. */
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator);

/* Joins the run. Returns when this peer is a member of the ring: at once for the first peer of a run, otherwise when
 * the others have called pcclUpdateTopology. A master that cannot be reached is tried again for 60 s
 * (option "connect_timeout"), so peers may be started before it. pcclMasterConnectionFailed: it may be called again. */
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t *communicator);

/* Sizes as of the answer to the last call that agreed with others: all peers that got the same answer see the same.
 * pcclInvalidUsage before the first connect. */
PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute,
                                          int *attribute_out);

/* Lets in all peers that wait. All peers of the run have to call it. pcclPendingAsyncOps while reduces are in
 * flight. */
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t *communicator);

/* Whether peers wait to be let in; the same answer for all peers of the run, all of which have to call it. */
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *pending_out);

/* Chooses a better ring, by agreement of all peers of the run. pcclInvalidUsage for a peer that is alone. */
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator);

/* Reduces sendbuf over all peers of the group into recvbuf; the two may be the same. pcclTooFewPeers if there is no
 * other peer; pcclRankConnectionLost if it failed and may be called again; pcclInvalidUsage if peers made calls that do
 * not match. reduce_info_out may be NULL. */
PCCL_EXPORT pcclResult_t pcclAllReduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator, pcclReduceInfo_t *reduce_info_out);

/* Begins an all-reduce. The buffers belong to the library until pcclAwaitAsyncReduce has returned, or
 * pcclDestroyCommunicator. */
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void *sendbuf, void *recvbuf,
                                            const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                            pcclAsyncReduceOp_t *reduce_handle_out);

/* Waits for an all-reduce; to be called once for each. reduce_info_out may be NULL. */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                              pcclReduceInfo_t *reduce_info_out);

/* Reduces several buffers as one operation: either all of them are reduced or none. After a failure all of them are
 * tried again, until they succeed, the group has fewer than two peers, or a caller on any peer has given them up. The
 * tags must differ, and none may be in flight. reduce_info_out may be NULL; max_in_flight must be positive. */
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                        const pcclComm_t *communicator,
                                                        pcclReduceInfo_t *reduce_info_out, int max_in_flight);

/* Makes the content of all tensors, and the revision, the same on all peers of the group. Each peer passes the revision
 * after the last one, or 0 in the beginning. A peer whose tensors are not those of its group, that skips a revision, or
 * that can fetch from nobody is dropped, and the others go on. pcclInvalidUsage for every failure. sync_info_out may be
 * NULL. */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t *sync_info_out);

/* Makes a master that will listen on an address. */
PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address,
                                          pcclMasterInstance_t **p_master_handle_out);

/* Starts it. pcclInvalidUsage if it cannot listen there, or has been started before. */
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t *master_instance);

/* Asks it to end. May be called from a signal handler. */
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master_instance);

/* Waits until it has ended, which it does when somebody interrupts it. */
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master_instance);

PCCL_EXPORT pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master_instance);

/* ---- Extensions ---------------------------------------------------------------------------------------------------
 * Not in the original. A text is written into a buffer of the caller, cut to its capacity and ended with a zero, and
 * its whole length (without the zero) into *length_out, which may be NULL; the buffer may be NULL if its capacity is 0.
 */
#define PCCL_HAS_EXTENSIONS 1

/* Waits for ever. */
#define PCCL_NO_TIMEOUT UINT64_MAX
/* As the communicator has it. */
#define PCCL_DEFAULT_TIMEOUT (UINT64_MAX - 1)

/* The remedy of a program for a failure. */
typedef enum pcclRemedy_t {
    /* There was no failure. */
    pcclRemedyNone = 0,
    /* Make the same call again. */
    pcclRemedyRetry = 1,
    /* Wait until there are enough peers, see pcclWaitForWorld. */
    pcclRemedyWaitForPeers = 2,
    /* Connect again, then synchronise the shared state. */
    pcclRemedyReconnect = 3,
    /* The program has to be changed, or the environment. */
    pcclRemedyGiveUp = 4,
    /* Form the group again of those who are there, with a fresh uuid, then synchronise the shared state. */
    pcclRemedyFormGroup = 5
} pcclRemedy_t;

/* How urgent a line of the log is. */
typedef enum pcclLogLevel_t {
    /* The level that the environment asks for (PCCL_LOG_LEVEL, RUST_LOG), or warnings. */
    pcclLogEnvironment = -1,
    pcclLogOff = 0,
    pcclLogError = 1,
    pcclLogWarn = 2,
    pcclLogInfo = 3,
    pcclLogDebug = 4,
    pcclLogTrace = 5
} pcclLogLevel_t;

/* Takes a line of the log: how urgent (pcclLogError to pcclLogTrace), which part of the library it comes from, the text
 * without a line end, and the user of pcclSetLogCallback. The texts are valid until it returns. A thread of the library
 * calls it for one line after the other, in their order, and nothing in the library waits for it. Lines that come
 * faster than it takes them are dropped and counted; a line says how many. A warning that comes again with the same
 * text is counted, and the count follows after 30 s. Calls of the function into the library are not logged. */
typedef void (*pcclLogCallback_t)(pcclLogLevel_t level, const char *origin, const char *text, void *user);

typedef struct pcclWorld_t {
    uint32_t global_size;
    uint32_t group_size;
    uint32_t groups;
    uint32_t largest_group;
    /* Below this size reduces and syncs return pcclTooFewPeers and pcclInvalidUsage. */
    uint32_t min_world_size;
    /* Own place in the ring of the group. */
    uint32_t rank;
} pcclWorld_t;

/* The result of an optimisation; the same on all peers of a group. */
typedef struct pcclOptimized_t {
    /* Peers of the group. */
    uint32_t group_size;
    /* How large reduces go whose callers leave it open: pcclScheduleRing, or pcclSchedulePairwise or
     * pcclScheduleSites while all pairs are connected. */
    pcclSchedule_t schedule;
    /* The ring is another one than before. */
    bool changed;
    /* No ring is better, by what was measured. */
    bool proven;
    /* The slowest edge of the ring is known: the three fields behind this one, which are 0 otherwise. */
    bool has_slowest;
    /* Whether pairwise_gain_pct is known; it is 0 otherwise. */
    bool has_pairwise_gain;
    /* How many per cent faster than around the ring reduces are predicted to be by pairwise exchange; below 0 if
     * slower. */
    int32_t pairwise_gain_pct;
    pcclRankUuid_t slowest_from;
    pcclRankUuid_t slowest_to;
    double slowest_mbit_s;
    /* No ring has a faster slowest edge than this; 0 if no ring was planned. */
    double bound_mbit_s;
    /* Edges that could not be measured. No ring uses them. */
    uint64_t unmeasured_edges;
    /* Why no ring was planned, or who stands in the way of one; else "". Ends with a zero. */
    char note[1032];
} pcclOptimized_t;

/* A member of a group that is to be formed. */
typedef struct pcclMember_t {
    /* The name of the member; NULL: peer counts. */
    const char *name;
    pcclRankUuid_t peer;
} pcclMember_t;

/* How far a sync is that fetches what differs. */
typedef struct pcclSyncProgress_t {
    /* Bytes that have arrived, are verified and in their places. */
    uint64_t done_bytes;
    /* Bytes that differ, as far as that is known: it grows while digests are compared. */
    uint64_t total_bytes;
    /* Over the last seconds. */
    uint64_t bytes_per_s;
    /* Peers that give at the moment. */
    uint32_t sources;
} pcclSyncProgress_t;

/* Hears of it on the thread that syncs. The progress is valid until it returns. */
typedef void (*pcclSyncProgressCallback_t)(const pcclSyncProgress_t *progress, void *user);

/* The program's word that a tensor is as it was when a sync of this communicator committed the revision. If the last
 * sync that succeeded committed that revision or a later one, and had the same tensor, it is not hashed; otherwise it
 * is hashed as ever. After a wrong word the states of the peers differ, and nobody notices. */
typedef struct pcclUnchanged_t {
    const char *name;
    uint64_t revision;
} pcclUnchanged_t;

typedef struct pcclSyncOptions_t {
    pcclSharedStateSyncStrategy_t strategy;
    /* Tensors that have not changed. unchanged may be NULL if there are none. */
    size_t unchanged_count;
    const pcclUnchanged_t *unchanged;
    /* As that of pcclSynchronizeSharedStateWith; may be NULL. */
    pcclSyncProgressCallback_t progress;
    void *user;
} pcclSyncOptions_t;

typedef struct pcclSyncInfo_t {
    uint64_t tx_bytes;
    uint64_t rx_bytes;
    /* This peer has come with the state that its group lent, see pcclConnectWithState. The others have computed in the
     * meantime and wait for nobody, so it had better not compute first. True in its first sync only. */
    bool came_ahead;
} pcclSyncInfo_t;

/* The state that a newcomer had fetched when it was let in. */
typedef struct pcclAhead_t {
    /* It holds a whole state of its group, verified: that of the revision, which is 0 otherwise. */
    bool has_revision;
    uint64_t revision;
    /* Bytes that it has fetched. */
    uint64_t rx_bytes;
} pcclAhead_t;

/* A tensor that is not the same on all peers. */
typedef struct pcclTensorDiff_t {
    /* Its index in the infos of the shared state. */
    size_t tensor;
    /* The first element that is not the same everywhere; 0 if is_located is false. */
    uint64_t first_element;
    /* All that differs lies between these: from begin on, and before end. */
    uint64_t begin;
    uint64_t end;
    /* Different contents that there are, and peers whose content is not the most frequent one. */
    uint32_t contents;
    uint32_t peers_apart;
    /* It is known where it differs: true of the first 64 tensors that do. */
    bool is_located;
    /* This peer's content is not the most frequent one. */
    bool is_apart;
} pcclTensorDiff_t;

/* A part of a tensor that was reduced as one: see pcclAllReduceInSegments. */
typedef struct pcclSegment_t {
    /* Its first element in the tensor, and how many it has. */
    uint64_t first;
    uint64_t count;
    /* How many peers have contributed, by whose number an average is divided, and this peer's rank among them. */
    uint32_t contributors;
    uint32_t rank;
} pcclSegment_t;

/* The result of a clip. */
typedef struct pcclClip_t {
    /* Euclidean norm of what this peer is to contribute, before the clip. */
    double norm;
    /* The factor by which its elements were multiplied: less than 1 if it was clipped; at 1 no byte was touched. */
    double scale;
    /* Of the norms of all peers; of an even number of them the lesser of the two in the middle. */
    double median;
    /* How many peers there are. */
    uint32_t peers;
} pcclClip_t;

/* The norm that one peer was about to contribute, as it says itself, and the factor by which its elements are
 * multiplied. */
typedef struct pcclPeerNorm_t {
    pcclRankUuid_t peer;
    double norm;
    double scale;
} pcclPeerNorm_t;

/* Of the library, such as "0.1.0". */
PCCL_EXPORT const char *pcclGetVersion(void);

/* Name of a result, such as "pcclSuccess". */
PCCL_EXPORT const char *pcclGetResultName(pcclResult_t result);

/* Text of the last failure of a call of this thread, valid until the next one; "" if there was none. Never NULL. */
PCCL_EXPORT const char *pcclGetLastError(void);

/* The remedy for the last failure of a call of this thread. */
PCCL_EXPORT pcclRemedy_t pcclGetLastRemedy(void);

/* Hands the lines of the log that are at least as urgent as level to a function, instead of standard error; NULL brings
 * them back there. May be called at any time, also before pcclInit. When it has succeeded, the function before is not
 * called any more; so the program has to call it with NULL before user or the function are gone. If the function before
 * does not return within seconds, the change is made all the same, and pcclInvalidUsage says that it still runs. */
PCCL_EXPORT pcclResult_t pcclSetLogCallback(pcclLogLevel_t level, pcclLogCallback_t callback, void *user);

/* Puts a line of the program among those of the library, with the origin "pccl_program". Never waits: the line goes
 * through the same queue to the same place, which may be a pipe that nobody reads. */
PCCL_EXPORT pcclResult_t pcclWriteLog(pcclLogLevel_t level, const char *text);

/* One word for the last failure of a call of this thread, of those in docs/errors.md: the cause of a verdict, such as
 * "PeerDied"; the reason for which the master dropped this peer, such as "Silent"; otherwise the error, such as
 * "MasterLost". Valid until the next failure; "" if there was none. Never NULL. After "OutcomeUnknown", and only then,
 * buffers hold the result of a reduce that may have succeeded for the others. */
PCCL_EXPORT const char *pcclGetLastCause(void);

/* The peers that the verdict of the last failure of a call of this thread names. Writes at most capacity of them, and
 * how many there are to *count_out. */
PCCL_EXPORT pcclResult_t pcclGetLastCulprits(pcclRankUuid_t *culprits, size_t capacity, size_t *count_out);

/* Why the last operation of this communicator failed on all peers: cause, who, where, how far. Empty if none has. */
PCCL_EXPORT pcclResult_t pcclGetLastVerdict(const pcclComm_t *communicator, char *buffer, size_t capacity,
                                            size_t *length_out);

/* The shape of a tensor, for those who read a file otherwise; its product is the number of elements. */
typedef struct pcclTensorShape_t {
    const char *name;
    size_t dimensions;
    const uint64_t *lengths;
} pcclTensorShape_t;

typedef struct pcclSaveOptions_t {
    bool keep_previous;
    /* Of tensors without a shape all elements are in one dimension. shapes may be NULL if there are none. */
    size_t shape_count;
    const pcclTensorShape_t *shapes;
} pcclSaveOptions_t;

/* Writes tensors and revision to a file that programs for safetensors can read, whole or not at all: until all of it is
 * on the disk, the file that was there before stays. With keep_previous that one is kept as PATH.previous, and the next
 * save writes only the MiBs that differ from it (docs/state-files.md). options may be NULL, and so may
 * bytes_written_out. Needs no pcclInit; neither do the next four functions. */
PCCL_EXPORT pcclResult_t pcclSaveSharedState(const pcclSharedState_t *shared_state, const char *path,
                                             const pcclSaveOptions_t *options, uint64_t *bytes_written_out);

/* A state that another thread of the library saves. */
typedef struct pcclSaving_t pcclSaving_t;

/* As pcclSaveSharedState, but copies the state, has another thread save the copy, and returns: the tensors may be
 * changed at once. The copy takes as much memory as the tensors until it is saved. Each saving is to be awaited, by one
 * caller; if the process ends before, what the file held before is still there. */
PCCL_EXPORT pcclResult_t pcclSaveSharedStateAsync(const pcclSharedState_t *shared_state, const char *path,
                                                  const pcclSaveOptions_t *options, pcclSaving_t **saving_out);

/* Whether pcclAwaitSaving would return at once. */
PCCL_EXPORT pcclResult_t pcclTestSaving(pcclSaving_t *saving, bool *done_out);

/* Waits until the state is saved, and returns what pcclSaveSharedState would. Whatever it returns, the saving is gone
 * then. bytes_written_out may be NULL. */
PCCL_EXPORT pcclResult_t pcclAwaitSaving(pcclSaving_t *saving, uint64_t *bytes_written_out);

/* Reads such a file into the tensors, and its revision. Everything is verified before the first tensor is replaced.
 * pcclNoSharedStateAvailable with the cause "StateFileError" if the file is damaged or holds other tensors; the text
 * names the tensor and the bytes. pcclInternalError with the cause "System" if it cannot be read. */
PCCL_EXPORT pcclResult_t pcclLoadSharedState(pcclSharedState_t *shared_state, const char *path);

/* To be called before pcclConnect: this peer holds the state, and the run can go on from it. Fresh peers wait for it;
 * the first sync of this peer has to bring exactly this state. */
PCCL_EXPORT pcclResult_t pcclOfferResume(const pcclComm_t *communicator, const pcclSharedState_t *shared_state);

/* As pcclCreateCommunicator, for a master at "host:port", "1.2.3.4:port" or "[::1]:port", or for that of several which
 * acts: "h1:48148,h2:48148". */
PCCL_EXPORT pcclResult_t pcclCreateCommunicatorByName(const char *master_address, uint32_t peer_group,
                                                      uint32_t p2p_connection_pool_size, pcclComm_t **comm_out);

/* Changes a setting by its name, before the first connect: docs/settings.md lists them and says what they do. Times are
 * "10s", "500ms", "2m" or plain seconds; flags "true" or "false"; "none" is off, or not given. pcclInvalidArgument if
 * there is no such setting, or the value is none; pcclInvalidUsage after the first connect. */
PCCL_EXPORT pcclResult_t pcclSetOption(pcclComm_t *communicator, const char *name, const char *value);

/* How the data of reduces travels that begin from now on; all peers have to choose the same for the same reduce. May be
 * called at any time. Default automatic. A schedule that cannot be chosen gives pcclInvalidArgument. */
PCCL_EXPORT pcclResult_t pcclSetSchedule(pcclComm_t *communicator, pcclSchedule_t schedule);

/* How long a call that begins from now on may wait for other peers. Then it gives up, for all peers where that is
 * possible: this one gets the result of a failed call with the cause "TimedOut", the others the verdict
 * "CallTimeout", and all of them may go on. Of asynchronous reduces it is the wait that has the limit. May be called
 * at any time. PCCL_NO_TIMEOUT, which is the default: for ever. It has to be longer than the longest step of the
 * slowest peer. pcclWaitForWorld has a limit of its own. */
PCCL_EXPORT pcclResult_t pcclSetCallTimeout(pcclComm_t *communicator, uint64_t milliseconds);

/* The same for the calls of the calling thread, whatever their communicator has; PCCL_DEFAULT_TIMEOUT: as that has
 * it. */
PCCL_EXPORT pcclResult_t pcclSetThreadCallTimeout(uint64_t milliseconds);

/* The name of this peer. */
PCCL_EXPORT pcclResult_t pcclGetName(const pcclComm_t *communicator, char *buffer, size_t capacity, size_t *length_out);

/* The identity of this peer in the run, a new one after each connect. pcclInvalidUsage before the first connect. */
PCCL_EXPORT pcclResult_t pcclGetPeerId(const pcclComm_t *communicator, pcclRankUuid_t *peer_out);

PCCL_EXPORT pcclResult_t pcclIsConnected(const pcclComm_t *communicator, bool *connected_out);

/* Sizes and own rank as of the answer to the last call that agreed with others. pcclInvalidUsage before the first
 * connect. */
PCCL_EXPORT pcclResult_t pcclGetWorld(const pcclComm_t *communicator, pcclWorld_t *world_out);

/* The peers of the own group in the order in which data flows; the index is the rank. Writes at most capacity of them,
 * and how many there are to *count_out. */
PCCL_EXPORT pcclResult_t pcclGetRing(const pcclComm_t *communicator, pcclRankUuid_t *ring, size_t capacity,
                                     size_t *count_out);

/* Waits until the run has at least this many peers, letting in whoever comes. pcclTooFewPeers when the time is over. */
PCCL_EXPORT pcclResult_t pcclWaitForWorld(pcclComm_t *communicator, uint32_t peers, uint64_t timeout_ms);

/* Forms a group of count members: the place in the list is the rank. All of them call it with the same uuid (128 bits,
 * in two halves) and list, and it returns when they are connected; then pcclGetWorld has the rank. Nobody joins between
 * two formings, and when a member is lost every call fails with the cause "GroupBroken" and names it, until the group
 * is formed again. A uuid is used once, also by a try that fails. The limit is that of calls, or a minute if they have
 * none; who has not called by then is named to all who have. pcclInvalidUsage for lists or uuids that differ, a uuid
 * that was used, and for communicators without the option "formed_groups"; pcclUpdateTopologyFailed if the group cannot
 * be formed. */
PCCL_EXPORT pcclResult_t pcclFormGroup(pcclComm_t *communicator, uint64_t uuid_high, uint64_t uuid_low,
                                       const pcclMember_t *members, size_t count);

/* Does what a failure asks for, so that the step in which it happened can be made again, from its sync on: nothing
 * (pcclRemedyNone, pcclRemedyRetry), a wait for peers, or pcclConnect and a wait for peers. If that fails, what that
 * failure asks for is done, for up to the connect time-out. So a loop is
 *
 *     pcclRemedy_t remedy = pcclRemedyReconnect;
 *     while (there is more to do && pcclRecover(comm, remedy, 2) == pcclSuccess)
 *         remedy = step(comm) == pcclSuccess ? pcclRemedyNone : pcclGetLastRemedy();
 *
 * and if there is still more to do, pcclGetLastError() says why it has ended. pcclRemedyReconnect connects only if that
 * is needed. peers is how many there have to be at least; 2 is right for most. Reduces have to be awaited before.
 * pcclInvalidUsage for pcclRemedyGiveUp, which leaves pcclGetLastError as it was, and after pcclClose by another
 * thread; pcclMasterConnectionFailed if the master cannot be reached in time, does not take this peer, or drops it
 * again and again. */
PCCL_EXPORT pcclResult_t pcclRecover(pcclComm_t *communicator, pcclRemedy_t remedy, uint32_t peers);

/* The run as the master sees it: who is in, what each peer does, what waits for whom and since when; as JSON or as a
 * text of several lines. May be called beside any other call. */
PCCL_EXPORT pcclResult_t pcclGetStatus(const pcclComm_t *communicator, bool as_json, char *buffer, size_t capacity,
                                       size_t *length_out);

/* Reports a number of the training, such as its step or its loss: the status of the master has the newest of each name,
 * soon after. At most 16 names for each peer, of 1 to 32 letters, digits and -_.:@/+=~; the number may be no number. It
 * waits for nothing, and may be called at any time. */
PCCL_EXPORT pcclResult_t pcclReport(const pcclComm_t *communicator, const char *name, double value);

/* Finds out whether this machine could take part in the run, with the settings of this communicator, and if not, which
 * rule to open where or what to change: name of the master, key, ports both ways, largest packet, clock, buffers, the
 * way to each peer that is in the run. Joins nothing, and no peer hears of it. Best before pcclConnect, which takes the
 * ports. *passed_out says whether nothing failed; what was found is in the report. */
PCCL_EXPORT pcclResult_t pcclDoctor(const pcclComm_t *communicator, bool *passed_out);
/* The findings of the last of these calls, as JSON or as a table of several lines. */
PCCL_EXPORT pcclResult_t pcclGetDoctorReport(const pcclComm_t *communicator, bool as_json, char *buffer,
                                             size_t capacity, size_t *length_out);

/* Begins an all-reduce of several buffers as one operation: either all of them are reduced or none. The tag of the
 * first descriptor names it, those of the others do not count. To be awaited as one of pcclAllReduceAsync. */
PCCL_EXPORT pcclResult_t pcclAllReduceManyAsync(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                const pcclComm_t *communicator,
                                                pcclAsyncReduceOp_t *reduce_handle_out);

/* Collectives beside all-reduce, which all peers of the group call with the same arguments: an extension. The meaning
 * of the count of the descriptor is said at each of them; its op is used by those that reduce. Results, time-outs, tags
 * and handles are those of pcclAllReduce and pcclAllReduceAsync: after a failure what is sent, or worked on in place,
 * is as before. A root is a rank: an index of pcclGetRing. If root or counts do not fit the members that the group has
 * when it begins, all peers fail with the cause "WorldChanged": look at pcclGetWorld and call again. The second such
 * call in a row in a world that is known gives pcclInvalidArgument: it would never fit. info_out may be NULL. */

/* Everybody gets the count elements of the root. */
PCCL_EXPORT pcclResult_t pcclBroadcast(void *buffer, uint32_t root, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclBroadcastAsync(void *buffer, uint32_t root, const pcclReduceDescriptor_t *descriptor,
                                            const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* Reduces the count elements of all in place at the root; those of the others stay as they are. */
PCCL_EXPORT pcclResult_t pcclReduce(void *buffer, uint32_t root, const pcclReduceDescriptor_t *descriptor,
                                    const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclReduceAsync(void *buffer, uint32_t root, const pcclReduceDescriptor_t *descriptor,
                                         const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* Everybody gets the count elements that each one sends, in the order of the ranks: recv_count, which is count times
 * the peers of the group. */
PCCL_EXPORT pcclResult_t pcclAllGather(const void *sendbuf, void *recvbuf, size_t recv_count,
                                       const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                       pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclAllGatherAsync(const void *sendbuf, void *recvbuf, size_t recv_count,
                                            const pcclReduceDescriptor_t *descriptor,
                                            const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* The same, with counts[rank] elements of each rank; the descriptor has the own count, recv_count is the sum. */
PCCL_EXPORT pcclResult_t pcclAllGatherV(const void *sendbuf, void *recvbuf, size_t recv_count, const size_t *counts,
                                        size_t ranks, const pcclReduceDescriptor_t *descriptor,
                                        const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclAllGatherVAsync(const void *sendbuf, void *recvbuf, size_t recv_count,
                                             const size_t *counts, size_t ranks,
                                             const pcclReduceDescriptor_t *descriptor,
                                             const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* Reduces the count elements of all; each one gets its part, in the order of the ranks: recv_count elements, which
 * times the peers of the group is count. */
PCCL_EXPORT pcclResult_t pcclReduceScatter(const void *sendbuf, void *recvbuf, size_t recv_count,
                                           const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                           pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclReduceScatterAsync(const void *sendbuf, void *recvbuf, size_t recv_count,
                                                const pcclReduceDescriptor_t *descriptor,
                                                const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* The same, with counts[rank] elements for each rank; recv_count is the own one, and the descriptor has the sum. */
PCCL_EXPORT pcclResult_t pcclReduceScatterV(const void *sendbuf, void *recvbuf, size_t recv_count,
                                            const size_t *counts, size_t ranks,
                                            const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                            pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclReduceScatterVAsync(const void *sendbuf, void *recvbuf, size_t recv_count,
                                                 const size_t *counts, size_t ranks,
                                                 const pcclReduceDescriptor_t *descriptor,
                                                 const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* The root gets the count elements that each one sends, in the order of the ranks: recv_count, which is count times the
 * peers of the group. On the others recvbuf and recv_count do not count. Gather, scatter and all-to-all do not reduce,
 * and the quantisation of the descriptor has to be "none". */
PCCL_EXPORT pcclResult_t pcclGather(const void *sendbuf, void *recvbuf, size_t recv_count, uint32_t root,
                                    const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                    pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclGatherAsync(const void *sendbuf, void *recvbuf, size_t recv_count, uint32_t root,
                                         const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                         pcclAsyncReduceOp_t *handle_out);

/* The same, with counts[rank] elements of each rank; the descriptor has the own count. */
PCCL_EXPORT pcclResult_t pcclGatherV(const void *sendbuf, void *recvbuf, size_t recv_count, uint32_t root,
                                     const size_t *counts, size_t ranks, const pcclReduceDescriptor_t *descriptor,
                                     const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclGatherVAsync(const void *sendbuf, void *recvbuf, size_t recv_count, uint32_t root,
                                          const size_t *counts, size_t ranks,
                                          const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                          pcclAsyncReduceOp_t *handle_out);

/* Each one gets count elements of those that the root sends, in the order of the ranks: send_count, which is count
 * times the peers of the group. On the others sendbuf and send_count do not count. */
PCCL_EXPORT pcclResult_t pcclScatter(const void *sendbuf, size_t send_count, void *recvbuf, uint32_t root,
                                     const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                     pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclScatterAsync(const void *sendbuf, size_t send_count, void *recvbuf, uint32_t root,
                                          const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                          pcclAsyncReduceOp_t *handle_out);

/* The same, with counts[rank] elements for each rank; the descriptor has the own count. */
PCCL_EXPORT pcclResult_t pcclScatterV(const void *sendbuf, size_t send_count, void *recvbuf, uint32_t root,
                                      const size_t *counts, size_t ranks, const pcclReduceDescriptor_t *descriptor,
                                      const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclScatterVAsync(const void *sendbuf, size_t send_count, void *recvbuf, uint32_t root,
                                           const size_t *counts, size_t ranks,
                                           const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                           pcclAsyncReduceOp_t *handle_out);

/* Each one gets an equal part of the count elements that each one sends, in the order of the ranks: recvbuf has count
 * elements as well. */
PCCL_EXPORT pcclResult_t pcclAllToAll(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                      const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclAllToAllAsync(const void *sendbuf, void *recvbuf,
                                           const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                           pcclAsyncReduceOp_t *handle_out);

/* The same, with counts[from * ranks + to] elements from each rank to each, of which all peers give the same numbers;
 * the descriptor has what this rank sends, and recv_count what it gets. */
PCCL_EXPORT pcclResult_t pcclAllToAllV(const void *sendbuf, void *recvbuf, size_t recv_count, const size_t *counts,
                                       size_t ranks, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclAllToAllVAsync(const void *sendbuf, void *recvbuf, size_t recv_count,
                                            const size_t *counts, size_t ranks,
                                            const pcclReduceDescriptor_t *descriptor,
                                            const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* For peers that know their own numbers only: this one sends each rank send_counts[rank] elements, and gets
 * recv_counts[rank] of each. Writes the ranks * ranks numbers that pcclAllToAllV wants. pcclInvalidArgument on all
 * peers if a rank expects more or less than another one sends it: pcclGetLastError names both. */
PCCL_EXPORT pcclResult_t pcclExchangeCounts(const size_t *send_counts, const size_t *recv_counts, size_t ranks,
                                            size_t *counts_out, uint64_t tag, const pcclComm_t *communicator);

/* Replaces count floats by their average over all peers, each with its own weight, which is finite and at least 0. */
PCCL_EXPORT pcclResult_t pcclWeightedAverage(void *buffer, double weight, const pcclReduceDescriptor_t *descriptor,
                                             const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclWeightedAverageAsync(void *buffer, double weight,
                                                  const pcclReduceDescriptor_t *descriptor,
                                                  const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* An all-reduce of a large tensor, segment by segment: a segment that is done stays done when a peer dies, and those
 * that were open are done again among those who are left, within the call. So each has contributors of its own; its
 * elements have the same ones, and the same bytes on all of them. A segment has segment_bytes of the tensor, rounded
 * down to whole elements; all peers give the same number, or all get pcclInvalidUsage with the cause "MismatchedCall".
 *
 * Writes at most capacity of the segments that are done, in the order of their elements, and their number to done_out,
 * also after a failure: then these hold their results, in place everything else is as before, and the same call again
 * would reduce them twice. Only with the cause "OutcomeUnknown" may further elements hold results. Of reduce_info_out,
 * local_world_size is the least number of contributors of a segment, and schedule that of the last one.
 * reduce_info_out and done_out may be NULL, and segments if capacity is 0. */
PCCL_EXPORT pcclResult_t pcclAllReduceInSegments(const void *sendbuff, void *recvbuff,
                                                 const pcclReduceDescriptor_t *descriptor,
                                                 const pcclComm_t *communicator, size_t segment_bytes,
                                                 pcclReduceInfo_t *reduce_info_out, pcclSegment_t *segments,
                                                 size_t capacity, size_t *done_out);

/* Before an average: bounds the Euclidean norm of what this peer is to contribute, the sendbuf of all tensors together,
 * by factor times the median of the norms of all peers. A contribution beyond that is multiplied by the one number that
 * takes it there, any other keeps every byte. Floats only; recvbuf, operator and quantisation are not used, so that the
 * reduction may take the same descriptors. The tag of the first names the operation. All peers give the same factor,
 * which is finite and above 0: pcclInvalidArgument on all of them if they differ. pcclInvalidUsage with the cause
 * "NotFinite" on all if an element of anybody is NaN or an infinity. Writes the norms of at most capacity peers, in the
 * order of the ranks; clip_out may be NULL, and norms if capacity is 0. It is against peers that are faulty, not
 * against those that lie about their norm. */
PCCL_EXPORT pcclResult_t pcclClipToMedian(const pcclReduceOpDescriptor_t *tensors, size_t count, double factor,
                                          const pcclComm_t *communicator, pcclClip_t *clip_out,
                                          pcclPeerNorm_t *norms, size_t capacity);

/* Returns when all peers of the group have called it. */
PCCL_EXPORT pcclResult_t pcclBarrier(uint64_t tag, const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclBarrierAsync(uint64_t tag, const pcclComm_t *communicator,
                                          pcclAsyncReduceOp_t *handle_out);

/* Gives count elements to one peer of the group, which calls pcclRecv with the same tag. Nobody else takes part or is
 * waited for. The peer is a rank. A tag counts among what goes from this peer to that one, so the same tag may be in
 * flight to others, from others, and among all; the handles have numbers of their own, from 2^63 on, which are no tags
 * for other calls meanwhile. The reduction and the quantisation of the descriptor are not used; the latter has to be
 * "none". */
PCCL_EXPORT pcclResult_t pcclSend(const void *buffer, uint32_t to, const pcclReduceDescriptor_t *descriptor,
                                  const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclSendAsync(const void *buffer, uint32_t to, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* Puts what one peer of the group gives by pcclSend into the buffer. After a failure its content is undefined. */
PCCL_EXPORT pcclResult_t pcclRecv(void *buffer, uint32_t from, const pcclReduceDescriptor_t *descriptor,
                                  const pcclComm_t *communicator, pcclReduceInfo_t *info_out);
PCCL_EXPORT pcclResult_t pcclRecvAsync(void *buffer, uint32_t from, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator, pcclAsyncReduceOp_t *handle_out);

/* Whether pcclAwaitAsyncReduce would return at once. */
PCCL_EXPORT pcclResult_t pcclTestAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle, bool *done_out);

/* Waits until pcclAwaitAsyncReduce would return at once, or the time is over. Not instead of it. */
PCCL_EXPORT pcclResult_t pcclWaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle, uint64_t timeout_ms,
                                             bool *done_out);

/* As pcclAwaitAsyncReduce. When the time is over, the reduce is given up for all peers, as pcclSetCallTimeout says.
 * The buffers are the caller's again when it returns, whatever it returns. */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduceFor(const pcclAsyncReduceOp_t *reduce_handle, uint64_t timeout_ms,
                                                 pcclReduceInfo_t *reduce_info_out);

/* As pcclSynchronizeSharedState, and tells a function how far it is while this peer fetches what differs: about once a
 * second, and at the end. The work of the function holds up nothing but its next call; it may be NULL. */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedStateWith(const pcclComm_t *communicator,
                                                        pcclSharedState_t *shared_state,
                                                        pcclSharedStateSyncStrategy_t strategy,
                                                        pcclSharedStateSyncInfo_t *sync_info_out,
                                                        pcclSyncProgressCallback_t progress, void *user);

/* As pcclSynchronizeSharedState, with options; NULL: none. A peer may use this function while others use that one.
 * sync_info_out may be NULL. */
PCCL_EXPORT pcclResult_t pcclSyncSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                             const pcclSyncOptions_t *options, pcclSyncInfo_t *sync_info_out);

/* Joining without a stop: peers lend their state while they compute, and newcomers fetch it before they are let in, so
 * that a sync moves only what has changed since. docs/c-api/README.md has the loop. */

/* As pcclConnect, and fetches the state of the group into the tensors while this peer waits to be let in, from members
 * that lend it. As long as they lend, it is let in when it holds what they committed last; where nobody lends, as ever.
 * The time-out is that of the whole call; PCCL_DEFAULT_TIMEOUT is that of pcclSetCallTimeout. The function
 * progress, which may be NULL, hears what is fetched, as in a sync.
 *
 * From here until a sync succeeds the content of the tensors is unspecified, also if this fails: some pieces are of one
 * state and some of another one. No sync commits such a mixture. ahead_out, which may be NULL, says what was fetched;
 * if that was all of a state, shared_state has its revision. */
PCCL_EXPORT pcclResult_t pcclConnectWithState(pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                              uint64_t timeout_ms, pcclSyncProgressCallback_t progress, void *user,
                                              pcclAhead_t *ahead_out);

/* As pcclRecover; if that means to connect, it is done as pcclConnectWithState does it. */
PCCL_EXPORT pcclResult_t pcclRecoverWithState(pcclComm_t *communicator, pcclRemedy_t remedy, uint32_t peers,
                                              pcclSharedState_t *shared_state, pcclAhead_t *ahead_out);

/* Lends the tensors to newcomers: other threads of the library read them. They have to be what the last sync committed,
 * pcclInvalidUsage otherwise; with unchanged, the program gives its word for that, as pcclUnchanged_t has it, and
 * nothing is hashed. There is one loan at a time. loan_out, which may be NULL, gets its number, which is not 0.
 *
 * From here on the tensors may be read, but neither written nor freed, until one of these has returned, whatever it
 * returns: pcclReclaimSharedState, any sync, pcclConnect, pcclRecover and their namesakes with state, pcclClose,
 * pcclCloseWithin, or pcclDestroyCommunicator. Each of them ends the loan, and returns when nobody reads the tensors
 * any more. A lost connection ends the giving, but the tensors are the caller's again only after one of these calls.
 * The descriptions (names and infos) may go at once. */
PCCL_EXPORT pcclResult_t pcclLendSharedState(const pcclComm_t *communicator, const pcclSharedState_t *shared_state,
                                             bool unchanged, uint64_t *loan_out);

/* Ends the loan with this number, or, for 0, the one that stands. Success as well if it has ended before. */
PCCL_EXPORT pcclResult_t pcclReclaimSharedState(const pcclComm_t *communicator, uint64_t loan);

/* Copies the tensors and lends the copy, so that they may be written and freed at once. The copy takes as much memory
 * as they do until pcclEndSharedStateSnapshot, pcclClose or pcclDestroyCommunicator; a later call copies only the MiBs
 * that have changed. The loan ends with the next sync that commits something else, and goes on after one that commits
 * the same again. While it stands, pcclLendSharedState lends nothing beside it. */
PCCL_EXPORT pcclResult_t pcclLendSharedStateSnapshot(const pcclComm_t *communicator,
                                                     const pcclSharedState_t *shared_state, bool unchanged);

/* Ends the loan of the copy, and frees it. */
PCCL_EXPORT pcclResult_t pcclEndSharedStateSnapshot(const pcclComm_t *communicator);

/* Finds out where the peers of the group differ, and changes nothing: all of them call it, with the same tensors, whose
 * revision does not matter. Tensors whose content may differ are left out. All get the same answer, with the first
 * values that differ in the text. Writes at most capacity differences, in the order of the names of their tensors, and
 * how many there are to *count_out: 0 says that all peers hold the same. A guard beside any training loop. */
PCCL_EXPORT pcclResult_t pcclDiffSharedState(const pcclComm_t *communicator, const pcclSharedState_t *shared_state,
                                             pcclTensorDiff_t *diffs, size_t capacity, size_t *count_out);
/* The findings of the last of these calls, in words. */
PCCL_EXPORT pcclResult_t pcclGetStateDiffText(const pcclComm_t *communicator, char *buffer, size_t capacity,
                                              size_t *length_out);
/* The peers whose content is not the most frequent one, of a difference by its number. Writes at most capacity of them,
 * and how many there are to *count_out. */
PCCL_EXPORT pcclResult_t pcclGetStateDiffPeers(const pcclComm_t *communicator, size_t diff, pcclRankUuid_t *peers,
                                               size_t capacity, size_t *count_out);

/* As pcclOptimizeTopology, and says what it came to. optimized_out may be NULL. */
PCCL_EXPORT pcclResult_t pcclOptimizeTopologyInfo(const pcclComm_t *communicator, pcclOptimized_t *optimized_out);

/* Gives an all-reduce up, for all peers, unless its outcome is decided. It still has to be awaited. */
PCCL_EXPORT pcclResult_t pcclAbortAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle);

/* Writes what the flight recorder holds into a new file in a directory, which is made if it is not there, and its path
 * into the buffer. "pccl-master explain" reads the files of several peers together. pcclInternalError if the file
 * cannot be written. */
PCCL_EXPORT pcclResult_t pcclDumpFlight(const pcclComm_t *communicator, const char *directory, char *buffer,
                                        size_t capacity, size_t *length_out);

/* Leaves the run at once: calls of other threads fail. The communicator may connect again. */
PCCL_EXPORT pcclResult_t pcclClose(pcclComm_t *communicator);

/* Leaves the run when the calls that have begun are over, or when the time is: pcclInvalidUsage then, and they fail. */
PCCL_EXPORT pcclResult_t pcclCloseWithin(pcclComm_t *communicator, uint64_t timeout_ms);

/* As pcclCreateMaster, for "host:port". Port 0 takes a free one. */
PCCL_EXPORT pcclResult_t pcclCreateMasterByName(const char *listen_address, pcclMasterInstance_t **p_master_handle_out);

/* Changes a setting of a master that has not been run, by its name: docs/settings.md lists them, pccl-master --help
 * explains them. Times are "10s", "500ms", "2m" or plain seconds; flags "true" or "false"; lists have commas; "none"
 * is off. pcclInvalidArgument if there is no such setting, or the value is none; whether settings fit each other shows
 * in pcclRunMaster. */
PCCL_EXPORT pcclResult_t pcclMasterSetOption(pcclMasterInstance_t *master_instance, const char *name,
                                             const char *value);

/* As pcclInterruptMaster, after which one that stands by goes on in its place; after this the run ends for all. */
PCCL_EXPORT pcclResult_t pcclMasterEndRun(pcclMasterInstance_t *master_instance);

/* Whether pcclMasterAwaitTermination would return at once. */
PCCL_EXPORT pcclResult_t pcclMasterHasEnded(pcclMasterInstance_t *master_instance, bool *ended_out);

/* The port that a running master listens on. */
PCCL_EXPORT pcclResult_t pcclMasterGetPort(pcclMasterInstance_t *master_instance, uint16_t *port_out);

/* ---- Global iteration ---------------------------------------------------------------------------------------------
 * Programs that agree on "which iteration are we in, and who is in it" through a key-value store, without a master; see
 * docs/iteration.md. Needs no pcclInit. Results, with the words of pcclGetLastCause():
 * - pcclMasterConnectionFailed if the store cannot be reached ("StoreUnreachable", call again) or has lost what it held
 *   ("StoreLost", give up);
 * - pcclRankConnectionLost if the others went on without this member ("Fenced", pcclIterationCatchUp);
 * - pcclTooFewPeers if the policy demands more members ("NoQuorum"), or the time of a join is over ("TimedOut");
 * - pcclInvalidUsage before pcclIterationJoin, while another call of the same member is under way, for a member that is
 *   out ("NotMember"), and after pcclIterationCancel ("Cancelled").
 */

typedef struct pcclIteration_t pcclIteration_t;
typedef struct pcclIterationStore_t pcclIterationStore_t;

/* The members that must be there for a decision when nobody else comes any more. */
typedef enum pcclIterationPolicy_t {
    /* The members that live go on. */
    pcclIterationAnySubset = 0,
    /* More than half of the members of the last decision, without those who left. */
    pcclIterationStrictMajority = 1
} pcclIterationPolicy_t;

typedef enum pcclIterationTime_t {
    /* A member gives a sign of life this often. Default 5 s. */
    pcclIterationTimeHeartbeat = 0,
    /* A member without a sign of life for this long is not waited for. Default 30 s. */
    pcclIterationTimeInactive = 1,
    /* Without progress for this long nobody is waited for. Default 60 s. */
    pcclIterationTimeNoProgress = 2,
    /* A member that waits looks at the store this often. Default 200 ms. */
    pcclIterationTimePoll = 3,
    /* The store may be unreachable for this long within one call. Default 60 s. */
    pcclIterationTimeStore = 4,
    /* How long a join or a catch-up may take; PCCL_NO_TIMEOUT, which is the default: as long as any member lives. */
    pcclIterationTimeJoin = 5
} pcclIterationTime_t;

/* A decision, as one of its members sees it. */
typedef struct pcclIterationInfo_t {
    /* The iteration that begins with it: one more than that of the decision before. */
    uint64_t iteration;
    uint32_t members;
    /* Own place among the members, the same for all who hold this decision; UINT32_MAX for one that is not in it. */
    uint32_t position;
    /* Which life of this member is in it, from 1; 0 for none. */
    uint64_t life;
} pcclIterationInfo_t;

typedef struct pcclIterationMember_t {
    uint64_t life;
    /* Bytes that it said when it arrived or joined. */
    uint32_t payload_bytes;
    /* It has come with this decision. */
    bool joined;
    /* Ends with a zero. */
    char id[72];
} pcclIterationMember_t;

/* Serves a store that clients of PyTorch's TCPStore can use as well, at "host:port"; port 0 takes a free one. It ends
 * with this process; file may be NULL, or name a file that keeps the store over a restart. pcclInvalidUsage if it
 * cannot. */
PCCL_EXPORT pcclResult_t pcclIterationServeStore(const char *listen_address, const char *file,
                                                 pcclIterationStore_t **store_out);
PCCL_EXPORT pcclResult_t pcclIterationGetStorePort(pcclIterationStore_t *store, uint16_t *port_out);
PCCL_EXPORT pcclResult_t pcclIterationStopStore(pcclIterationStore_t *store);

/* Makes a member of a run over the store at "host:port": PyTorch's TCPStore, pcclIterationServeStore, or
 * pccl-master --store-only. run and member are 1 to 64 letters, digits, hyphens, underscores and points. A new run
 * begins when world_size members have joined. Nothing is connected yet. */
PCCL_EXPORT pcclResult_t pcclIterationCreate(const char *store_address, const char *run, const char *member,
                                             uint32_t world_size, pcclIteration_t **iteration_out);

/* Ends its calls and its signs of life. The others notice after pcclIterationTimeInactive, unless it has left. */
PCCL_EXPORT pcclResult_t pcclIterationDestroy(pcclIteration_t *iteration);

/* Settings, before the join. All members of a run have to have the same policy, world size and first iteration. */
PCCL_EXPORT pcclResult_t pcclIterationSetPolicy(pcclIteration_t *iteration, pcclIterationPolicy_t policy);
/* Number of the first iteration of a new run. Default 0. */
PCCL_EXPORT pcclResult_t pcclIterationSetFirst(pcclIteration_t *iteration, uint64_t first_iteration);
PCCL_EXPORT pcclResult_t pcclIterationSetTime(pcclIteration_t *iteration, pcclIterationTime_t which,
                                              uint64_t milliseconds);
/* Whether to write keys for humans and old tools, such as global_iteration_counter. Default true. */
PCCL_EXPORT pcclResult_t pcclIterationSetMirror(pcclIteration_t *iteration, bool mirror);

/* Joins the run; returns when it has taken this member in. In this and the next two calls the payload (at most 4096
 * bytes; NULL if there are none) is shown to all members, and info_out may be NULL. */
PCCL_EXPORT pcclResult_t pcclIterationJoin(pcclIteration_t *iteration, const void *payload, size_t bytes,
                                           pcclIterationInfo_t *info_out);

/* Arrives for the next iteration; returns when it is decided. */
PCCL_EXPORT pcclResult_t pcclIterationAdvance(pcclIteration_t *iteration, const void *payload, size_t bytes,
                                              pcclIterationInfo_t *info_out);

/* Comes back after "Fenced" or a leave, as a new life. Results computed since the last decision must not be used. */
PCCL_EXPORT pcclResult_t pcclIterationCatchUp(pcclIteration_t *iteration, const void *payload, size_t bytes,
                                              pcclIterationInfo_t *info_out);

/* Nobody needs to wait for this member any more. */
PCCL_EXPORT pcclResult_t pcclIterationLeave(pcclIteration_t *iteration);

/* Ends the calls of this member in other threads, for good; only leaving is possible then. */
PCCL_EXPORT pcclResult_t pcclIterationCancel(pcclIteration_t *iteration);

/* For the next decision that this member proposes, these and no fewer must be there, whatever the policy demands. */
PCCL_EXPORT pcclResult_t pcclIterationForceMembers(pcclIteration_t *iteration, const char *const *members,
                                                   size_t count);

/* The decision that the store holds now, whoever is in it, also before the join. Leaves *info_out alone if the run has
 * not begun. */
PCCL_EXPORT pcclResult_t pcclIterationGetCurrent(pcclIteration_t *iteration, bool *begun_out,
                                                 pcclIterationInfo_t *info_out);

/* The last decision that this member has taken part in. Asks nobody. */
PCCL_EXPORT pcclResult_t pcclIterationGetDecision(pcclIteration_t *iteration, pcclIterationInfo_t *info_out);

/* A member of that decision, and its payload, cut to the capacity; payload may be NULL if that is 0. */
PCCL_EXPORT pcclResult_t pcclIterationGetMember(pcclIteration_t *iteration, uint32_t position,
                                                pcclIterationMember_t *member_out, void *payload, size_t capacity);

/* ---- Tensors on devices --------------------------------------------------------------------------------------- */

/* How many devices of CUDA this process can use; 0 where there is no driver. */
PCCL_EXPORT pcclResult_t pcclGetDeviceCount(uint32_t *count_out);

/* Says where the buffers of all collectives are that the calling thread begins from now on, of whatever communicator:
 * all of them on a device, if on_device is true, otherwise on the host, as they are at first; then the stream is NULL.
 * A collective begins after what is queued then on the stream (a CUstream or cudaStream_t of the same device; NULL: the
 * default one). When it is over, what it has written is there, and after a failure the buffers are what they would be
 * on the host; copies go on beside the data's way. Other peers may have theirs elsewhere. A buffer that is no memory of
 * a device, or no driver, gives pcclInvalidArgument, and the call fails for all peers. It does not change calls that
 * take a stream of their own, nor shared state. */
PCCL_EXPORT pcclResult_t pcclSetThreadDevice(bool on_device, void *stream);

/* The same, but each buffer is where its address says: on a device, if it is memory of one, otherwise on the host. The
 * buffers of one collective may be here and there, but not sendbuf and recvbuf of one reduction, which is
 * pcclInvalidArgument. pcclSetThreadDevice ends it. */
PCCL_EXPORT pcclResult_t pcclSetThreadByAddress(void *stream);

/* As pcclAllReduce and pcclAllReduceAsync, of buffers on a device, both after what is queued on the stream (a CUstream
 * or cudaStream_t of the same device; NULL: the default one), for which these wait. If it is quantised by blocks or
 * casts, it is encoded and decoded on the device, and only what travels is copied; otherwise copies go on beside the
 * ring. The result is there when the operation is over. pcclInvalidArgument if it is not memory of a device, or there
 * is no driver. */
PCCL_EXPORT pcclResult_t pcclAllReduceOnDevice(const void *sendbuf, void *recvbuf, void *stream,
                                               const pcclReduceDescriptor_t *descriptor,
                                               const pcclComm_t *communicator, pcclReduceInfo_t *reduce_info_out);
PCCL_EXPORT pcclResult_t pcclAllReduceOnDeviceAsync(const void *sendbuf, void *recvbuf, void *stream,
                                                    const pcclReduceDescriptor_t *descriptor,
                                                    const pcclComm_t *communicator,
                                                    pcclAsyncReduceOp_t *reduce_handle_out);

/* Memory of the host that stands for a tensor on a device in collectives: for results that a stream waits for. */
typedef struct pcclStaged_t pcclStaged_t;

/* Gives memory of the host, *host_out, in the place of this number of bytes on a device, for any collective,
 * synchronous or not: with their content, if reads is true, else zeros. They are read after what is queued on the
 * stream (a CUstream or cudaStream_t of the same device; NULL: the default one), and are there when this returns. The
 * device's memory stays as it is until pcclUnstage. pcclInvalidArgument if it is not memory of a device, or there is no
 * driver. */
PCCL_EXPORT pcclResult_t pcclStage(const void *device_data, size_t bytes, void *stream, bool reads,
                                   pcclStaged_t **staged_out, void **host_out);

/* Frees it. If writes is true, the content goes to the device first, after what is queued on the stream, and is there
 * when this returns. To be called once, after the end of the collective, also of one that failed. */
PCCL_EXPORT pcclResult_t pcclUnstage(pcclStaged_t *staged, bool writes);

/* The same as pcclUnstage with writes, but the content may not be there yet when this returns: the stream waits for it,
 * so that what is queued there from then on comes after it. Until the stream has come so far the device's memory has to
 * stay, and nobody may use it but by way of the stream. Of more than 64 MiB this waits for all but the last ones. If it
 * fails no copy is under way, and the content of the device's memory is undefined. */
PCCL_EXPORT pcclResult_t pcclUnstageOnStream(pcclStaged_t *staged);

#ifdef __cplusplus
}
#endif

#endif
