/* Wrong arguments of calls that a member of a run makes, so that what is refused is the argument. */
#ifndef ARGUMENTS_MEMBER_H
#define ARGUMENTS_MEMBER_H

#include "check.h"

static float data[4];

static void settings_of_member(pcclComm_t *comm) {
    size_t length = 0;
    bool flag = true;
    int value = 0;
    EXPECT(pcclConnect(comm), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "first_p2p_port", "0"), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "first_state_port", "0"), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "strict_ports", "false"), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "outbound_only", "false"), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "name", "other"), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "site", "elsewhere"), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "upload_share_pct", "50"), pcclInvalidUsage);
    EXPECT(pcclSetOption(comm, "refuse_non_finite", "true"), pcclInvalidUsage);
    EXPECT(pcclOptimizeTopologyInfo(comm, NULL), pcclInvalidUsage);
    EXPECT(pcclAwaitAsyncReduceFor(NULL, 1, NULL), pcclInvalidArgument);
    EXPECT(pcclGetPeerId(comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGetName(comm, NULL, 4, &length), pcclInvalidArgument);
    EXPECT(pcclSetCallTimeout(comm, 60000), pcclSuccess);
    EXPECT(pcclSetOption(comm, "frame_checksums", "always"), pcclInvalidUsage);
    EXPECT(pcclGetBuildInfo(NULL), pcclInvalidArgument);
    EXPECT(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, NULL), pcclInvalidArgument);
    EXPECT(pcclGetAttribute(comm, (pcclAttribute_t) 0, &value), pcclInvalidArgument);
    EXPECT(pcclGetAttribute(comm, (pcclAttribute_t) 9, &value), pcclInvalidArgument);
    EXPECT(pcclArePeersPending(comm, NULL), pcclInvalidArgument);
    EXPECT(pcclArePeersPending(comm, &flag), pcclSuccess);
    CHECK(!flag);
    EXPECT(pcclOptimizeTopology(comm), pcclInvalidUsage);
    EXPECT(pcclDumpFlight(comm, NULL, NULL, 0, &length), pcclInvalidArgument);
    EXPECT(pcclDumpFlight(comm, "/proc/nobody/can/write/here", NULL, 0, &length), pcclInternalError);
}

static void reduces_of_member(pcclComm_t *comm) {
    pcclReduceDescriptor_t good = describe(1, pcclFloat, pcclSum, 0), bad = good;
    pcclAsyncReduceOp_t op;
    bool flag = true;
    op.comm = comm;
    op.tag = 0;
    EXPECT(pcclAllReduce(data, data, NULL, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllReduce(NULL, data, &good, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllReduce(data, NULL, &good, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllReduceAsync(data, data, NULL, comm, &op), pcclInvalidArgument);
    EXPECT(pcclAllReduceAsync(data, data, &good, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAwaitAsyncReduce(NULL, NULL), pcclInvalidArgument);
    bad.op = (pcclRedOp_t) 5;
    EXPECT(pcclAllReduce(data, data, &bad, comm, NULL), pcclInvalidArgument);
    bad = good;
    bad.src_descriptor.datatype = (pcclDataType_t) 12;
    EXPECT(pcclAllReduce(data, data, &bad, comm, NULL), pcclInvalidArgument);
    bad = good;
    bad.src_descriptor.distribution_hint = (pcclDistributionHint_t) 3;
    EXPECT(pcclAllReduce(data, data, &bad, comm, NULL), pcclInvalidArgument);
    bad = good;
    bad.quantization_options.algorithm = (pcclQuantizationAlgorithm_t) 3;
    EXPECT(pcclAllReduce(data, data, &bad, comm, NULL), pcclInvalidArgument);
    bad = good;
    bad.count = (size_t) -1;
    EXPECT(pcclAllReduce(data, data, &bad, comm, NULL), pcclInvalidArgument);
    bad = good;
    bad.quantization_options.quantized_datatype = (pcclDataType_t) 77;
    EXPECT(pcclAllReduce(data, data, &bad, comm, NULL), pcclTooFewPeers);
    CHECK(pcclGetLastRemedy() == pcclRemedyWaitForPeers);
    EXPECT(pcclAllReduceAsync(data, data, &good, comm, &op), pcclTooFewPeers);
    EXPECT(pcclAwaitAsyncReduce(&op, NULL), pcclRankConnectionLost);
    EXPECT(pcclTestAsyncReduce(&op, &flag), pcclInvalidUsage);
    EXPECT(pcclTestAsyncReduce(NULL, &flag), pcclInvalidArgument);
    EXPECT(pcclTestAsyncReduce(&op, NULL), pcclInvalidArgument);
    EXPECT(pcclWaitAsyncReduce(NULL, 1, &flag), pcclInvalidArgument);
    EXPECT(pcclAbortAsyncReduce(NULL), pcclInvalidArgument);
}

static void many_reduces_of_member(pcclComm_t *comm) {
    pcclReduceOpDescriptor_t many[2];
    pcclAsyncReduceOp_t op;
    many[0].sendbuf = many[0].recvbuf = data;
    many[1].sendbuf = many[1].recvbuf = data + 1;
    many[0].descriptor = many[1].descriptor = describe(1, pcclFloat, pcclSum, 0);
    EXPECT(pcclAllReduceMultipleWithRetry(NULL, 1, comm, NULL, 1), pcclInvalidArgument);
    EXPECT(pcclAllReduceMultipleWithRetry(many, 0, comm, NULL, 1), pcclInvalidArgument);
    EXPECT(pcclAllReduceMultipleWithRetry(many, 1, comm, NULL, 0), pcclInvalidArgument);
    EXPECT(pcclAllReduceMultipleWithRetry(many, 1, comm, NULL, -1), pcclInvalidArgument);
    EXPECT(pcclAllReduceMultipleWithRetry(many, 2, comm, NULL, 1), pcclInvalidArgument);
    EXPECT(pcclAllReduceMultipleWithRetry(many, 1, comm, NULL, 1), pcclTooFewPeers);
    EXPECT(pcclAllReduceManyAsync(NULL, 1, comm, &op), pcclInvalidArgument);
    EXPECT(pcclAllReduceManyAsync(many, 0, comm, &op), pcclInvalidArgument);
    EXPECT(pcclAllReduceManyAsync(many, 1, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllReduceManyAsync(many, 1, comm, &op), pcclTooFewPeers);
}

static void differences_of_member(pcclComm_t *comm, const pcclSharedState_t *state) {
    size_t length = 0;
    EXPECT(pcclDiffSharedState(comm, NULL, NULL, 0, &length), pcclInvalidArgument);
    EXPECT(pcclDiffSharedState(comm, state, NULL, 0, NULL), pcclInvalidArgument);
    EXPECT(pcclDiffSharedState(comm, state, NULL, 1, &length), pcclInvalidArgument);
    EXPECT(pcclDiffSharedState(comm, state, NULL, 0, &length), pcclSuccess);
    CHECK(length == 0);
    EXPECT(pcclDoctor(comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGetDoctorReport(comm, false, NULL, 1, &length), pcclInvalidArgument);
    EXPECT(pcclGetDoctorReport(comm, true, NULL, 0, &length), pcclSuccess);
    EXPECT(pcclGetStateDiffText(comm, NULL, 1, &length), pcclInvalidArgument);
    EXPECT(pcclGetStateDiffText(comm, NULL, 0, &length), pcclSuccess);
    EXPECT(pcclGetStateDiffPeers(comm, 0, NULL, 0, &length), pcclInvalidArgument);
}

static void syncs_of_member(pcclComm_t *comm, pcclTensorInfo_t *tensor) {
    const pcclSharedStateSyncStrategy_t popular = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    pcclTensorInfo_t wrong = *tensor;
    pcclSharedState_t state = {0, 1, tensor};
    EXPECT(pcclSynchronizeSharedState(comm, NULL, popular, NULL), pcclInvalidArgument);
    EXPECT(pcclSynchronizeSharedState(comm, &state, (pcclSharedStateSyncStrategy_t) 3, NULL), pcclInvalidArgument);
    state.infos = NULL;
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidArgument);
    state.infos = &wrong;
    wrong.name = NULL;
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidArgument);
    wrong = *tensor;
    wrong.name = "\xff";
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidArgument);
    wrong = *tensor;
    wrong.data = NULL;
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidArgument);
    wrong = *tensor;
    wrong.datatype = (pcclDataType_t) 12;
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidArgument);
    wrong = *tensor;
    wrong.device_type = pcclDeviceCuda;
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidArgument);
    wrong.device_type = (pcclDeviceType_t) 2;
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidArgument);
    state.infos = tensor;
    state.revision = 13;
    EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclSuccess);
    CHECK(state.revision == 13);
}

/* The last sync has committed the state. */
static void loans_of_member(pcclComm_t *comm, pcclTensorInfo_t *tensor) {
    const pcclSharedStateSyncStrategy_t popular = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    pcclSharedState_t state = {13, 1, tensor};
    pcclSyncOptions_t options;
    pcclUnchanged_t word;
    EXPECT(pcclConnectWithState(comm, &state, 1000, NULL, NULL, NULL), pcclInvalidUsage);
    EXPECT(pcclSyncSharedState(comm, NULL, NULL, NULL), pcclInvalidArgument);
    memset(&options, 0, sizeof options);
    options.strategy = (pcclSharedStateSyncStrategy_t) 3;
    EXPECT(pcclSyncSharedState(comm, &state, &options, NULL), pcclInvalidArgument);
    options.strategy = popular;
    options.unchanged_count = 1;
    EXPECT(pcclSyncSharedState(comm, &state, &options, NULL), pcclInvalidArgument);
    options.unchanged = &word;
    word.name = NULL;
    EXPECT(pcclSyncSharedState(comm, &state, &options, NULL), pcclInvalidArgument);
    word.name = "wheigts";
    EXPECT(pcclSyncSharedState(comm, &state, &options, NULL), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "\"wheigts\"") != NULL);
    word.name = tensor->name;
    word.revision = 13;
    EXPECT(pcclSyncSharedState(comm, &state, &options, NULL), pcclSuccess);
    EXPECT(pcclSyncSharedState(comm, &state, NULL, NULL), pcclSuccess);
    EXPECT(pcclLendSharedState(comm, NULL, false, NULL), pcclInvalidArgument);
    EXPECT(pcclLendSharedStateSnapshot(comm, NULL, false), pcclInvalidArgument);
    state.infos = NULL;
    EXPECT(pcclLendSharedState(comm, &state, true, NULL), pcclInvalidArgument);
    EXPECT(pcclLendSharedStateSnapshot(comm, &state, true), pcclInvalidArgument);
    state.infos = tensor;
    EXPECT(pcclLendSharedState(comm, &state, true, NULL), pcclSuccess);
    EXPECT(pcclReclaimSharedState(comm, 0), pcclSuccess);
}

static void files_of_member(pcclComm_t *comm, pcclTensorInfo_t *tensor) {
    pcclSharedState_t state = {13, 1, tensor};
    const uint64_t lengths[2] = {7, 77};
    pcclTensorShape_t two_lengths;
    pcclSaveOptions_t save;
    pcclSaving_t *saving = NULL;
    bool flag = true;
    int value = 0;
    EXPECT(pcclOfferResume(comm, NULL), pcclInvalidArgument);
    EXPECT(pcclOfferResume(comm, &state), pcclSuccess);
    EXPECT(pcclSaveSharedState(NULL, "/proc/nobody/can/write/here", NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclSaveSharedState(&state, NULL, NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclSaveSharedState(&state, "/", NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclSaveSharedState(&state, "/proc/nobody/can/write/here", NULL, NULL), pcclInternalError);
    save.keep_previous = false;
    save.shape_count = 1;
    save.shapes = NULL;
    EXPECT(pcclSaveSharedState(&state, "/proc/nobody/can/write/here", &save, NULL), pcclInvalidArgument);
    save.shapes = &two_lengths;
    two_lengths.name = tensor->name;
    two_lengths.dimensions = 2;
    two_lengths.lengths = lengths;
    EXPECT(pcclSaveSharedState(&state, "/proc/nobody/can/write/here", &save, NULL), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "[7, 77]") != NULL);
    EXPECT(pcclSaveSharedStateAsync(NULL, "/proc/nobody/can/write/here", NULL, &saving), pcclInvalidArgument);
    EXPECT(pcclSaveSharedStateAsync(&state, NULL, NULL, &saving), pcclInvalidArgument);
    EXPECT(pcclSaveSharedStateAsync(&state, "/proc/nobody/can/write/here", NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclTestSaving(NULL, &flag), pcclInvalidArgument);
    EXPECT(pcclAwaitSaving(NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclAwaitSaving((pcclSaving_t *) (void *) &value, NULL), pcclInvalidArgument);
    /* The wait says what is wrong with the options or the file. */
    EXPECT(pcclSaveSharedStateAsync(&state, "/proc/nobody/can/write/here", &save, &saving), pcclSuccess);
    EXPECT(pcclTestSaving(saving, NULL), pcclInvalidArgument);
    EXPECT(pcclAwaitSaving(saving, NULL), pcclInvalidArgument);
    EXPECT(pcclTestSaving(saving, &flag), pcclInvalidArgument);
    EXPECT(pcclSaveSharedStateAsync(&state, "/proc/nobody/can/write/here", NULL, &saving), pcclSuccess);
    EXPECT(pcclAwaitSaving(saving, NULL), pcclInternalError);
    EXPECT(pcclAwaitSaving(saving, NULL), pcclInvalidArgument);
    EXPECT(pcclLoadSharedState(NULL, "/proc/nobody/can/write/here"), pcclInvalidArgument);
    EXPECT(pcclLoadSharedState(&state, NULL), pcclInvalidArgument);
    EXPECT(pcclLoadSharedState(&state, "/proc/nobody/can/write/here"), pcclInternalError);
    EXPECT(pcclLoadSharedState(&state, "/proc/self/exe"), pcclNoSharedStateAvailable);
    CHECK(strcmp(pcclGetLastCause(), "StateFileError") == 0 && state.revision == 13);
}

static void world_of_member(pcclComm_t *comm) {
    pcclRankUuid_t ring[2];
    pcclWorld_t shape;
    char text[4];
    size_t length = 0;
    EXPECT(pcclSetSchedule(comm, (pcclSchedule_t) 7), pcclInvalidArgument);
    EXPECT(pcclSetSchedule(comm, (pcclSchedule_t) -1), pcclInvalidArgument);
    EXPECT(pcclSetSchedule(comm, pcclScheduleAllGather), pcclInvalidArgument);
    EXPECT(pcclSetSchedule(comm, pcclScheduleDirect), pcclInvalidArgument);
    EXPECT(pcclSetSchedule(comm, pcclScheduleReduceBroadcast), pcclInvalidArgument);
    EXPECT(pcclSetSchedule(comm, pcclSchedulePairwise), pcclSuccess);
    EXPECT(pcclSetSchedule(comm, pcclScheduleAutomatic), pcclSuccess);
    EXPECT(pcclIsConnected(comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGetWorld(comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGetWorld(comm, &shape), pcclSuccess);
    CHECK(shape.global_size == 1 && shape.group_size == 1 && shape.groups == 1 && shape.rank == 0);
    EXPECT(pcclGetRing(comm, ring, 2, NULL), pcclInvalidArgument);
    EXPECT(pcclGetRing(comm, NULL, 2, &length), pcclInvalidArgument);
    EXPECT(pcclGetRing(comm, ring, 2, &length), pcclSuccess);
    CHECK(length == 1);
    EXPECT(pcclGetPeerId(comm, &ring[1]), pcclSuccess);
    CHECK(memcmp(&ring[0], &ring[1], sizeof ring[0]) == 0);
    EXPECT(pcclWaitForWorld(comm, 2, 1), pcclTooFewPeers);
    EXPECT(pcclWaitForWorld(comm, 1, PCCL_NO_TIMEOUT), pcclSuccess);
    EXPECT(pcclGetStatus(comm, true, NULL, 4, &length), pcclInvalidArgument);
    EXPECT(pcclGetStatus(comm, true, text, sizeof text, &length), pcclSuccess);
    CHECK(strcmp(text, "{\"r") == 0 && length > 100);
    EXPECT(pcclGetStatus(comm, false, NULL, 0, NULL), pcclSuccess);
    EXPECT(pcclGetLastVerdict(comm, text, sizeof text, &length), pcclSuccess);
    CHECK(length == 0 && text[0] == 0);
}

static void connected(unsigned port) {
    pcclComm_t *comm = join(port, 1);
    pcclTensorInfo_t tensor = {"weights", data, 4, pcclFloat, pcclDeviceCpu, false};
    const pcclSharedState_t state = {0, 1, &tensor};
    settings_of_member(comm);
    reduces_of_member(comm);
    many_reduces_of_member(comm);
    differences_of_member(comm, &state);
    syncs_of_member(comm, &tensor);
    loans_of_member(comm, &tensor);
    files_of_member(comm, &tensor);
    world_of_member(comm);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
}

#endif
