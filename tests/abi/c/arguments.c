/* Every function with NULL, with handles that do not exist, with values of no enum, and before its time. */
#include "arguments_member.h"

#define RUN_KEY "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static void before_init(void) {
    pcclCommCreateParams_t params;
    pcclComm_t *comm = NULL;
    pcclAsyncReduceOp_t op = {NULL, 0};
    pcclReduceDescriptor_t descriptor = describe(1, pcclFloat, pcclSum, 0);
    pcclSharedState_t state = {0, 0, NULL};
    pcclBuildInfo_t info;
    uint32_t devices = 1;
    bool flag;
    int value;
    memset(&params, 0, sizeof params);
    EXPECT(pcclGetBuildInfo(&info), pcclSuccess);
    EXPECT(pcclGetDeviceCount(&devices), pcclSuccess);
    CHECK(info.has_cuda_support || devices == 0);
    EXPECT(pcclCreateCommunicator(&params, &comm), pcclNotInitialized);
    EXPECT(pcclDestroyCommunicator(NULL), pcclNotInitialized);
    EXPECT(pcclConnect(NULL), pcclNotInitialized);
    EXPECT(pcclGetAttribute(NULL, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value), pcclNotInitialized);
    EXPECT(pcclUpdateTopology(NULL), pcclNotInitialized);
    EXPECT(pcclArePeersPending(NULL, &flag), pcclNotInitialized);
    EXPECT(pcclOptimizeTopology(NULL), pcclNotInitialized);
    EXPECT(pcclAllReduce(data, data, &descriptor, NULL, NULL), pcclNotInitialized);
    EXPECT(pcclAllReduceAsync(data, data, &descriptor, NULL, &op), pcclNotInitialized);
    EXPECT(pcclAwaitAsyncReduce(&op, NULL), pcclNotInitialized);
    EXPECT(pcclAwaitAsyncReduceFor(&op, 1, NULL), pcclNotInitialized);
    EXPECT(pcclSetThreadCallTimeout(1000), pcclNotInitialized);
    EXPECT(pcclSetThreadDevice(false, NULL), pcclNotInitialized);
    EXPECT(pcclSetThreadByAddress(NULL), pcclNotInitialized);
    EXPECT(pcclSynchronizeSharedState(NULL, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, NULL),
           pcclNotInitialized);
    EXPECT(pcclSyncSharedState(NULL, &state, NULL, NULL), pcclNotInitialized);
    EXPECT(pcclConnectWithState(NULL, &state, 1, NULL, NULL, NULL), pcclNotInitialized);
    EXPECT(pcclRecoverWithState(NULL, pcclRemedyRetry, 2, &state, NULL), pcclNotInitialized);
    EXPECT(pcclLendSharedState(NULL, &state, false, NULL), pcclNotInitialized);
    EXPECT(pcclReclaimSharedState(NULL, 0), pcclNotInitialized);
    EXPECT(pcclLendSharedStateSnapshot(NULL, &state, false), pcclNotInitialized);
    EXPECT(pcclEndSharedStateSnapshot(NULL), pcclNotInitialized);
    CHECK(strstr(pcclGetLastError(), "pcclInit") != NULL);
}

static void handles(void) {
    int no_handle = 0;
    pcclComm_t *wrong[3];
    pcclAsyncReduceOp_t op;
    pcclReduceDescriptor_t descriptor = describe(1, pcclFloat, pcclSum, 0);
    pcclReduceOpDescriptor_t many;
    pcclSharedState_t state = {0, 0, NULL};
    pcclWorld_t shape;
    pcclRankUuid_t peer;
    size_t length;
    bool flag;
    int value, i;
    many.sendbuf = many.recvbuf = data;
    many.descriptor = descriptor;
    wrong[0] = NULL;
    wrong[1] = (pcclComm_t *) (void *) &no_handle;
    wrong[2] = create(1);
    EXPECT(pcclDestroyCommunicator(wrong[2]), pcclSuccess);
    for (i = 0; i < 3; i++) {
        pcclComm_t *comm = wrong[i];
        op.comm = comm;
        op.tag = 0;
        EXPECT(pcclDestroyCommunicator(comm), pcclInvalidArgument);
        EXPECT(pcclConnect(comm), pcclInvalidArgument);
        EXPECT(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value), pcclInvalidArgument);
        EXPECT(pcclUpdateTopology(comm), pcclInvalidArgument);
        EXPECT(pcclArePeersPending(comm, &flag), pcclInvalidArgument);
        EXPECT(pcclOptimizeTopology(comm), pcclInvalidArgument);
        EXPECT(pcclAllReduce(data, data, &descriptor, comm, NULL), pcclInvalidArgument);
        EXPECT(pcclAllReduceAsync(data, data, &descriptor, comm, &op), pcclInvalidArgument);
        EXPECT(pcclAwaitAsyncReduce(&op, NULL), pcclInvalidArgument);
        EXPECT(pcclAllReduceMultipleWithRetry(&many, 1, comm, NULL, 1), pcclInvalidArgument);
        EXPECT(pcclOfferResume(comm, &state), pcclInvalidArgument);
        EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, NULL),
               pcclInvalidArgument);
        EXPECT(pcclSyncSharedState(comm, &state, NULL, NULL), pcclInvalidArgument);
        EXPECT(pcclConnectWithState(comm, &state, 1, NULL, NULL, NULL), pcclInvalidArgument);
        EXPECT(pcclRecoverWithState(comm, pcclRemedyRetry, 2, &state, NULL), pcclInvalidArgument);
        EXPECT(pcclRecoverWithState(comm, pcclRemedyGiveUp, 2, &state, NULL), pcclInvalidArgument);
        EXPECT(pcclLendSharedState(comm, &state, false, NULL), pcclInvalidArgument);
        EXPECT(pcclReclaimSharedState(comm, 0), pcclInvalidArgument);
        EXPECT(pcclLendSharedStateSnapshot(comm, &state, false), pcclInvalidArgument);
        EXPECT(pcclEndSharedStateSnapshot(comm), pcclInvalidArgument);
        EXPECT(pcclGetLastVerdict(comm, NULL, 0, &length), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "dial_timeout", "1000ms"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "advertised_host", "localhost"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "bind", "127.0.0.1"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "run_key", RUN_KEY), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "run_name", "A"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "first_p2p_port", "0"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "first_state_port", "0"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "frame_checksums", "never"), pcclInvalidArgument);
        EXPECT(pcclSetSchedule(comm, pcclScheduleRing), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "strict_ports", "true"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "outbound_only", "true"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "name", "name"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "site", "site"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "formed_groups", "true"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "world_of_one", "true"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "state_memory", "1"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "upload_share_pct", "50"), pcclInvalidArgument);
        EXPECT(pcclSetOption(comm, "refuse_non_finite", "true"), pcclInvalidArgument);
        EXPECT(pcclFormGroup(comm, 0, 1, NULL, 0), pcclInvalidArgument);
        EXPECT(pcclSetCallTimeout(comm, 1000), pcclInvalidArgument);
        EXPECT(pcclGetName(comm, NULL, 0, &length), pcclInvalidArgument);
        EXPECT(pcclGetPeerId(comm, &peer), pcclInvalidArgument);
        EXPECT(pcclOptimizeTopologyInfo(comm, NULL), pcclInvalidArgument);
        EXPECT(pcclAwaitAsyncReduceFor(&op, 1, NULL), pcclInvalidArgument);
        EXPECT(pcclIsConnected(comm, &flag), pcclInvalidArgument);
        EXPECT(pcclGetWorld(comm, &shape), pcclInvalidArgument);
        EXPECT(pcclGetRing(comm, NULL, 0, &length), pcclInvalidArgument);
        EXPECT(pcclWaitForWorld(comm, 2, 0), pcclInvalidArgument);
        EXPECT(pcclRecover(comm, pcclRemedyRetry, 2), pcclInvalidArgument);
        EXPECT(pcclRecover(comm, pcclRemedyGiveUp, 2), pcclInvalidArgument);
        EXPECT(pcclGetStatus(comm, false, NULL, 0, &length), pcclInvalidArgument);
        EXPECT(pcclDumpFlight(comm, "/tmp", NULL, 0, &length), pcclInvalidArgument);
        EXPECT(pcclAllReduceManyAsync(&many, 1, comm, &op), pcclInvalidArgument);
        EXPECT(pcclTestAsyncReduce(&op, &flag), pcclInvalidArgument);
        EXPECT(pcclWaitAsyncReduce(&op, 0, &flag), pcclInvalidArgument);
        EXPECT(pcclAbortAsyncReduce(&op), pcclInvalidArgument);
        EXPECT(pcclClose(comm), pcclInvalidArgument);
        EXPECT(pcclCloseWithin(comm, 0), pcclInvalidArgument);
    }
}

/* A peer that is not connected yet. */
static void unconnected(void) {
    pcclComm_t *comm = create(1);
    pcclReduceDescriptor_t descriptor = describe(1, pcclFloat, pcclSum, 0);
    pcclSharedState_t state = {0, 0, NULL};
    pcclAsyncReduceOp_t op;
    pcclWorld_t shape;
    pcclRankUuid_t peer;
    bool flag = true;
    int value;
    op.comm = comm;
    op.tag = 0;
    EXPECT(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value), pcclInvalidUsage);
    EXPECT(pcclUpdateTopology(comm), pcclInvalidUsage);
    EXPECT(pcclArePeersPending(comm, &flag), pcclInvalidUsage);
    EXPECT(pcclOptimizeTopology(comm), pcclInvalidUsage);
    EXPECT(pcclAllReduce(data, data, &descriptor, comm, NULL), pcclInvalidUsage);
    EXPECT(pcclAllReduceAsync(data, data, &descriptor, comm, &op), pcclInvalidUsage);
    CHECK(pcclGetLastRemedy() == pcclRemedyReconnect && strcmp(pcclGetLastCause(), "NotConnected") == 0);
    EXPECT(pcclAwaitAsyncReduce(&op, NULL), pcclInvalidUsage);
    EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, NULL),
           pcclInvalidUsage);
    EXPECT(pcclSyncSharedState(comm, &state, NULL, NULL), pcclInvalidUsage);
    EXPECT(pcclLendSharedState(comm, &state, false, NULL), pcclInvalidUsage);
    EXPECT(pcclLendSharedStateSnapshot(comm, &state, false), pcclInvalidUsage);
    CHECK(pcclGetLastRemedy() == pcclRemedyReconnect && strcmp(pcclGetLastCause(), "NotConnected") == 0);
    EXPECT(pcclReclaimSharedState(comm, 0), pcclSuccess);
    EXPECT(pcclReclaimSharedState(comm, 77), pcclSuccess);
    EXPECT(pcclEndSharedStateSnapshot(comm), pcclSuccess);
    EXPECT(pcclGetWorld(comm, &shape), pcclInvalidUsage);
    EXPECT(pcclGetPeerId(comm, &peer), pcclInvalidUsage);
    EXPECT(pcclOptimizeTopologyInfo(comm, NULL), pcclInvalidUsage);
    EXPECT(pcclAwaitAsyncReduceFor(&op, 1, NULL), pcclInvalidUsage);
    EXPECT(pcclSetCallTimeout(comm, 1000), pcclSuccess);
    EXPECT(pcclWaitForWorld(comm, 1, 0), pcclInvalidUsage);
    CHECK(pcclGetLastRemedy() == pcclRemedyReconnect && strcmp(pcclGetLastCause(), "NotConnected") == 0);
    EXPECT(pcclIsConnected(comm, &flag), pcclSuccess);
    CHECK(!flag);
    EXPECT(pcclClose(comm), pcclSuccess);
    EXPECT(pcclCloseWithin(comm, 10), pcclSuccess);
    /* Nobody listens there. */
    EXPECT(pcclSetOption(comm, "connect_timeout", "300ms"), pcclSuccess);
    EXPECT(pcclConnect(comm), pcclMasterConnectionFailed);
    CHECK(pcclGetLastRemedy() == pcclRemedyReconnect && strcmp(pcclGetLastCause(), "ConnectFailed") == 0);
    EXPECT(pcclConnect(comm), pcclMasterConnectionFailed);
    EXPECT(pcclRecover(comm, pcclRemedyReconnect, 2), pcclMasterConnectionFailed);
    EXPECT(pcclRecover(comm, pcclRemedyWaitForPeers, 2), pcclMasterConnectionFailed);
    CHECK(strstr(pcclGetLastError(), "127.0.0.1:1: connection refused") != NULL);
    EXPECT(pcclConnectWithState(comm, NULL, 1, NULL, NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclConnectWithState(comm, &state, PCCL_DEFAULT_TIMEOUT, NULL, NULL, NULL), pcclMasterConnectionFailed);
    EXPECT(pcclRecoverWithState(comm, pcclRemedyRetry, 2, NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclRecoverWithState(comm, (pcclRemedy_t) 6, 2, &state, NULL), pcclInvalidArgument);
    EXPECT(pcclRecoverWithState(comm, pcclRemedyNone, 2, &state, NULL), pcclSuccess);
    EXPECT(pcclRecoverWithState(comm, pcclRemedyReconnect, 2, &state, NULL), pcclMasterConnectionFailed);
    EXPECT(pcclRecoverWithState(comm, pcclRemedyGiveUp, 2, &state, NULL), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "127.0.0.1:1: connection refused") != NULL);
    /* The text of the error stays to be read. */
    EXPECT(pcclRecover(comm, pcclRemedyGiveUp, 2), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "connection refused") != NULL);
    EXPECT(pcclRecover(comm, (pcclRemedy_t) 6, 2), pcclInvalidArgument);
    EXPECT(pcclRecover(comm, pcclRemedyNone, 2), pcclSuccess);
    EXPECT(pcclRecover(comm, pcclRemedyRetry, 2), pcclSuccess);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
}

static void settings(void) {
    pcclComm_t *comm = NULL;
    char text[8];
    size_t length = 0;
    pcclCommCreateParams_t params;
    memset(&params, 0, sizeof params);
    params.master_address = loopback(1);
    EXPECT(pcclCreateCommunicator(NULL, &comm), pcclInvalidArgument);
    EXPECT(pcclCreateCommunicator(&params, NULL), pcclInvalidArgument);
    params.master_address.inet.protocol = (ccoip_inet_protocol_t) 2;
    EXPECT(pcclCreateCommunicator(&params, &comm), pcclInvalidArgument);
    params.master_address = loopback(1);
    params.p2p_connection_pool_size = 100000;
    EXPECT(pcclCreateCommunicator(&params, &comm), pcclInvalidArgument);
    CHECK(comm == NULL);
    EXPECT(pcclCreateCommunicatorByName(NULL, 0, 0, &comm), pcclInvalidArgument);
    EXPECT(pcclCreateCommunicatorByName("no port", 0, 0, &comm), pcclInvalidArgument);
    EXPECT(pcclCreateCommunicatorByName("localhost:1", 0, 0, NULL), pcclInvalidArgument);
    EXPECT(pcclCreateCommunicatorByName("[::1]:1", 0, 0, &comm), pcclSuccess);
    EXPECT(pcclSetOption(comm, "no_timeout", "1s"), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "run_key, run_name, peer_group") != NULL);
    EXPECT(pcclSetOption(comm, NULL, "1s"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "dial_timeout", "soon"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "call_timeout", "10m"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "call_timeout", "none"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "master_grace", "0ms"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "connect_timeout", "0ms"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "connect_timeout", "500ms"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "master_timeout", "500ms"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "advertised_host", NULL), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "advertised_host", ""), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "advertised_host", "localhost"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "run_key", NULL), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "run_key", "secret"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "run_name", NULL), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "run_name", "two words"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "run_key", RUN_KEY), pcclSuccess);
    EXPECT(pcclSetOption(comm, "run_name", "A"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "bind", NULL), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "bind", "somewhere"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "bind", "127.0.0.1"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "name", NULL), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "name", ""), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "name", "two words"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "name", "\033[2J"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "name", "\xff"), pcclInvalidArgument);
    EXPECT(pcclGetName(comm, text, sizeof text, &length), pcclSuccess);
    /* The name of the host and the number of the process, as much of it as there is room for. */
    CHECK(length > 2 && strlen(text) == (length < sizeof text ? length : sizeof text - 1));
    EXPECT(pcclSetOption(comm, "name", "node-7"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "site", NULL), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "site", ""), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "site", "two words"), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "site \"two words\"") != NULL);
    CHECK(strstr(pcclGetLastError(), "1 to 64 bytes of letters") != NULL);
    EXPECT(pcclSetOption(comm, "site", "eu-west"), pcclSuccess);
    EXPECT(pcclGetName(comm, text, sizeof text, &length), pcclSuccess);
    CHECK(length == 6 && strcmp(text, "node-7") == 0);
    EXPECT(pcclSetOption(comm, "upload_share_pct", "0"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "upload_share_pct", "306"), pcclInvalidArgument);
    EXPECT(pcclSetOption(comm, "upload_share_pct", "101"), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "1 to 100") != NULL);
    EXPECT(pcclSetOption(comm, "refuse_non_finite", "false"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "upload_share_pct", "1"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "upload_share_pct", "100"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "strict_ports", "true"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "outbound_only", "true"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "outbound_only", "false"), pcclSuccess);
    EXPECT(pcclSetCallTimeout(comm, 0), pcclInvalidArgument);
    EXPECT(pcclSetCallTimeout(comm, PCCL_DEFAULT_TIMEOUT), pcclInvalidArgument);
    EXPECT(pcclSetCallTimeout(comm, PCCL_NO_TIMEOUT), pcclSuccess);
    EXPECT(pcclSetThreadDevice(false, &comm), pcclInvalidArgument);
    EXPECT(pcclSetThreadDevice(true, NULL), pcclSuccess);
    EXPECT(pcclSetThreadByAddress(NULL), pcclSuccess);
    EXPECT(pcclSetThreadDevice(false, NULL), pcclSuccess);
    EXPECT(pcclSetThreadCallTimeout(0), pcclInvalidArgument);
    EXPECT(pcclSetThreadCallTimeout(1000), pcclSuccess);
    EXPECT(pcclSetThreadCallTimeout(PCCL_DEFAULT_TIMEOUT), pcclSuccess);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
}

static void masters(void) {
    int no_handle = 0;
    ccoip_socket_address_t address = loopback(0);
    pcclMasterInstance_t *master = NULL, *second = NULL, *wrong[2];
    uint16_t port = 0;
    bool ended = false;
    int i;
    wrong[0] = NULL;
    wrong[1] = (pcclMasterInstance_t *) (void *) &no_handle;
    for (i = 0; i < 2; i++) {
        EXPECT(pcclRunMaster(wrong[i]), pcclInvalidArgument);
        EXPECT(pcclInterruptMaster(wrong[i]), pcclInvalidArgument);
        EXPECT(pcclMasterEndRun(wrong[i]), pcclInvalidArgument);
        EXPECT(pcclMasterAwaitTermination(wrong[i]), pcclInvalidArgument);
        EXPECT(pcclDestroyMaster(wrong[i]), pcclInvalidArgument);
        EXPECT(pcclMasterGetPort(wrong[i], &port), pcclInvalidArgument);
        EXPECT(pcclMasterSetOption(wrong[i], "min_world_size", "2"), pcclInvalidArgument);
    }
    EXPECT(pcclCreateMaster(address, NULL), pcclInvalidArgument);
    EXPECT(pcclCreateMasterByName(NULL, &master), pcclInvalidArgument);
    EXPECT(pcclCreateMasterByName("127.0.0.1:0", NULL), pcclInvalidArgument);
    address.inet.protocol = (ccoip_inet_protocol_t) 2;
    EXPECT(pcclCreateMaster(address, &master), pcclInvalidArgument);
    EXPECT(pcclCreateMaster(loopback(0), &master), pcclSuccess);
    EXPECT(pcclInterruptMaster(master), pcclInvalidUsage);
    EXPECT(pcclMasterEndRun(master), pcclInvalidUsage);
    EXPECT(pcclMasterAwaitTermination(master), pcclInvalidUsage);
    EXPECT(pcclMasterGetPort(master, &port), pcclInvalidUsage);
    EXPECT(pcclMasterHasEnded(master, &ended), pcclInvalidUsage);
    EXPECT(pcclMasterHasEnded(NULL, &ended), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, NULL, "5s"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "peer_timeout", NULL), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "run_key", "secret"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "run_name", "two words"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "wire", "plain"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "peer_timeout", "soon"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "min_world_size", "-1"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "accept_standbys", "perhaps"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "journal", ""), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "peer_timeouts", "5s"), pcclInvalidArgument);
    EXPECT(pcclMasterSetOption(master, "", ""), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "peer_timeout, return_grace") != NULL);
    EXPECT(pcclMasterSetOption(master, "peer_timeout", "5s"), pcclSuccess);
    EXPECT(pcclMasterSetOption(master, "wire", "encrypt"), pcclSuccess);
    EXPECT(pcclMasterSetOption(master, "accept_standbys", "true"), pcclSuccess);
    EXPECT(pcclMasterSetOption(master, "edge_timeout", "2000ms"), pcclSuccess);
    EXPECT(pcclMasterSetOption(master, "straggler_timeout", "1ms"), pcclSuccess);
    /* Too short, which only the start says. */
    EXPECT(pcclRunMaster(master), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "straggler") != NULL);
    EXPECT(pcclMasterSetOption(master, "straggler_timeout", "none"), pcclSuccess);
    EXPECT(pcclRunMaster(master), pcclSuccess);
    EXPECT(pcclRunMaster(master), pcclInvalidUsage);
    EXPECT(pcclMasterSetOption(master, "peer_timeout", "5s"), pcclInvalidUsage);
    EXPECT(pcclMasterGetPort(master, NULL), pcclInvalidArgument);
    EXPECT(pcclMasterHasEnded(master, NULL), pcclInvalidArgument);
    EXPECT(pcclMasterHasEnded(master, &ended), pcclSuccess);
    CHECK(!ended);
    EXPECT(pcclMasterGetPort(master, &port), pcclSuccess);
    /* A port that is taken. */
    EXPECT(pcclCreateMaster(loopback(port), &second), pcclSuccess);
    EXPECT(pcclRunMaster(second), pcclInvalidUsage);
    EXPECT(pcclInterruptMaster(second), pcclInvalidUsage);
    EXPECT(pcclMasterAwaitTermination(second), pcclInvalidUsage);
    EXPECT(pcclDestroyMaster(second), pcclSuccess);
    EXPECT(pcclDestroyMaster(second), pcclInvalidArgument);
    /* Lists that only the start finds wrong. */
    EXPECT(pcclCreateMaster(loopback(0), &second), pcclSuccess);
    EXPECT(pcclMasterSetOption(second, "masters", "127.0.0.1,"), pcclSuccess);
    EXPECT(pcclRunMaster(second), pcclInvalidUsage);
    EXPECT(pcclMasterSetOption(second, "masters", "127.0.0.1,127.0.0.2"), pcclSuccess);
    EXPECT(pcclMasterSetOption(second, "me", "127.0.0.3"), pcclSuccess);
    EXPECT(pcclRunMaster(second), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "does not have this one") != NULL);
    EXPECT(pcclDestroyMaster(second), pcclSuccess);
    EXPECT(pcclInterruptMaster(second), pcclInvalidArgument);

    EXPECT(pcclInit(), pcclSuccess);
    EXPECT(pcclInit(), pcclSuccess);
    connected(port);
    EXPECT(pcclInterruptMaster(master), pcclSuccess);
    EXPECT(pcclInterruptMaster(master), pcclSuccess);
    EXPECT(pcclMasterAwaitTermination(master), pcclSuccess);
    EXPECT(pcclMasterAwaitTermination(master), pcclSuccess);
    EXPECT(pcclMasterHasEnded(master, &ended), pcclSuccess);
    CHECK(ended);
    EXPECT(pcclDestroyMaster(master), pcclSuccess);
    /* One that runs is stopped. */
    EXPECT(pcclCreateMasterByName("localhost:0", &master), pcclSuccess);
    EXPECT(pcclRunMaster(master), pcclSuccess);
    EXPECT(pcclDestroyMaster(master), pcclSuccess);
}

typedef struct heard_t {
    int lines;
    pcclLogLevel_t level;
    char origin[64];
    char text[256];
    pcclResult_t inside;
} heard_t;

static void hear(pcclLogLevel_t level, const char *origin, const char *text, void *user) {
    heard_t *heard = user;
    heard->lines++;
    heard->level = level;
    snprintf(heard->origin, sizeof heard->origin, "%s", origin);
    snprintf(heard->text, sizeof heard->text, "%s", text);
    /* A call that the rules forbid does not hang. */
    heard->inside = pcclSetLogCallback(pcclLogOff, NULL, NULL);
}

/* The lines go to a function, at the level that was asked for, until it is taken away. */
static void logs(void) {
    heard_t heard;
    memset(&heard, 0, sizeof heard);
    EXPECT(pcclSetLogCallback((pcclLogLevel_t) 6, hear, &heard), pcclInvalidArgument);
    EXPECT(pcclSetLogCallback((pcclLogLevel_t) -2, hear, &heard), pcclInvalidArgument);
    EXPECT(pcclSetLogCallback(pcclLogDebug, hear, &heard), pcclSuccess);
    EXPECT(pcclGetBuildInfo(NULL), pcclInvalidArgument);
    /* Another thread hands them over; whoever replaces the function waits until it has. */
    EXPECT(pcclSetLogCallback(pcclLogInfo, hear, &heard), pcclSuccess);
    CHECK(heard.lines == 1 && heard.level == pcclLogDebug && heard.inside == pcclInvalidUsage);
    CHECK(strstr(heard.text, "info is NULL") != NULL && strncmp(heard.origin, "pccl", 4) == 0);
    EXPECT(pcclGetBuildInfo(NULL), pcclInvalidArgument);
    EXPECT(pcclSetLogCallback(pcclLogTrace, hear, &heard), pcclSuccess);
    CHECK(heard.lines == 1);
    EXPECT(pcclWriteLog(pcclLogOff, "no level of a line"), pcclInvalidArgument);
    EXPECT(pcclWriteLog(pcclLogInfo, NULL), pcclInvalidArgument);
    EXPECT(pcclSetLogCallback(pcclLogWarn, hear, &heard), pcclSuccess);
    heard.lines = 0;
    EXPECT(pcclWriteLog(pcclLogInfo, "not wanted"), pcclSuccess);
    EXPECT(pcclWriteLog(pcclLogWarn, "step 1"), pcclSuccess);
    EXPECT(pcclSetLogCallback(pcclLogEnvironment, NULL, NULL), pcclSuccess);
    CHECK(heard.lines == 1 && strcmp(heard.text, "step 1") == 0 && strcmp(heard.origin, "pccl_program") == 0);
    EXPECT(pcclGetBuildInfo(NULL), pcclInvalidArgument);
    CHECK(heard.lines == 1);
    /* The log level of the environment: the test runs this program with DEBUG and with nothing. */
    EXPECT(pcclSetLogCallback(pcclLogEnvironment, hear, &heard), pcclSuccess);
    EXPECT(pcclGetBuildInfo(NULL), pcclInvalidArgument);
    EXPECT(pcclSetLogCallback(pcclLogEnvironment, NULL, NULL), pcclSuccess);
    CHECK(heard.lines == (getenv("PCCL_LOG_LEVEL") != NULL ? 2 : 1));
}

static void devices(void) {
    float host[4] = {0, 0, 0, 0};
    pcclStaged_t *staged = NULL;
    void *stands_for = NULL;
    uint32_t count = 7;
    EXPECT(pcclGetDeviceCount(NULL), pcclInvalidArgument);
    EXPECT(pcclGetDeviceCount(&count), pcclSuccess);
    CHECK(count != 7);
    EXPECT(pcclStage(host, sizeof host, NULL, true, NULL, &stands_for), pcclInvalidArgument);
    EXPECT(pcclStage(host, sizeof host, NULL, true, &staged, NULL), pcclInvalidArgument);
    /* No driver, or not memory of a device. */
    EXPECT(pcclStage(host, sizeof host, NULL, true, &staged, &stands_for), pcclInvalidArgument);
    CHECK(staged == NULL && stands_for == NULL);
    EXPECT(pcclStage(NULL, 0, NULL, true, &staged, &stands_for), pcclSuccess);
    CHECK(staged != NULL && stands_for != NULL);
    EXPECT(pcclUnstage(staged, true), pcclSuccess);
    EXPECT(pcclUnstage(staged, true), pcclInvalidArgument);
    EXPECT(pcclUnstage(NULL, false), pcclInvalidArgument);
    EXPECT(pcclUnstage((pcclStaged_t *) host, false), pcclInvalidArgument);
    EXPECT(pcclUnstageOnStream(staged), pcclInvalidArgument);
    EXPECT(pcclUnstageOnStream(NULL), pcclInvalidArgument);
    EXPECT(pcclStage(NULL, 0, NULL, true, &staged, &stands_for), pcclSuccess);
    EXPECT(pcclUnstageOnStream(staged), pcclSuccess);
}

int main(void) {
    size_t count_of_culprits = 1;
    CHECK(strcmp(pcclGetLastError(), "") == 0 && pcclGetLastRemedy() == pcclRemedyNone);
    CHECK(strcmp(pcclGetResultName(pcclRankConnectionLost), "pcclRankConnectionLost") == 0);
    CHECK(strcmp(pcclGetResultName((pcclResult_t) -1), "unknown") == 0 && strlen(pcclGetVersion()) > 4);
    CHECK(strcmp(pcclGetLastCause(), "") == 0);
    EXPECT(pcclGetLastCulprits(NULL, 0, NULL), pcclInvalidArgument);
    EXPECT(pcclGetLastCulprits(NULL, 1, &count_of_culprits), pcclInvalidArgument);
    EXPECT(pcclGetLastCulprits(NULL, 0, &count_of_culprits), pcclSuccess);
    CHECK(count_of_culprits == 0 && strcmp(pcclGetLastCause(), "InvalidArgument") == 0);
    logs();
    before_init();
    masters();
    handles();
    unconnected();
    settings();
    devices();
    return 0;
}
