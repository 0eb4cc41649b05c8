/* Scenarios of peer.c in which somebody dies, deviates, gives up or does not come. */
#ifndef PEER_FAILURES_H
#define PEER_FAILURES_H

#include "peer_common.h"

/* The last peer is killed by whoever runs this when it says so; the others go on without it. */
static void survive(pcclComm_t *comm) {
    static float data[COUNT];
    pcclReduceDescriptor_t descriptor = describe(COUNT, pcclFloat, pcclSum, 0);
    pcclAsyncReduceOp_t op;
    pcclRankUuid_t ring[3], culprit;
    pcclWorld_t shape;
    uint32_t own_rank;
    size_t count = 0;
    char verdict[500];
    int i;
    if (own_index == peers - 1) {
#if defined(__linux__)
        /* A child that sleeps does not keep the connections of its parent, and cannot use them. */
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(pcclUpdateTopology(comm) == pcclInvalidUsage && pcclConnect(comm) == pcclInvalidUsage);
            CHECK(pcclDestroyCommunicator(comm) == pcclInvalidUsage && pcclInit() == pcclInvalidUsage);
            CHECK(strstr(pcclGetLastError(), "forked") != NULL);
            printf("child %d\n", (int) getpid());
            fflush(stdout);
            for (;;)
                pause();
        }
#endif
        await_go();
        return;
    }
    EXPECT(pcclGetRing(comm, ring, 3, &count), pcclSuccess);
    CHECK(count == 3);
    EXPECT(pcclGetWorld(comm, &shape), pcclSuccess);
    own_rank = shape.rank;
    for (i = 0; i < COUNT; i++)
        data[i] = (float) own_index + 1;
    /* One attempt with three peers has begun, as far as these two know. */
    EXPECT(pcclAllReduceAsync(data, data, &descriptor, comm, &op), pcclSuccess);
    say("waiting");
    if (pcclAwaitAsyncReduce(&op, NULL) != pcclSuccess) {
        CHECK(data[0] == (float) own_index + 1 && data[COUNT - 1] == (float) own_index + 1);
        CHECK(strcmp(pcclGetLastCause(), "PeerDied") == 0);
        EXPECT(pcclGetLastCulprits(&culprit, 1, &count), pcclSuccess);
        CHECK(count == 1 && memcmp(culprit.data, ring[own_rank].data, 16) != 0);
        CHECK(memcmp(culprit.data, ring[0].data, 16) == 0 || memcmp(culprit.data, ring[1].data, 16) == 0 ||
              memcmp(culprit.data, ring[2].data, 16) == 0);
        EXPECT(pcclGetLastVerdict(comm, verdict, sizeof verdict, NULL), pcclSuccess);
        say(verdict);
        while (pcclAllReduce(data, data, &descriptor, comm, NULL) != pcclSuccess)
            CHECK(pcclGetLastRemedy() == pcclRemedyRetry);
    }
    CHECK(world(comm) == peers - 1 && data[0] == (float) (peers * (peers - 1) / 2));
    /* Before anybody leaves. */
    say("done");
    await_go();
}

/* One sync of one tensor. */
static pcclResult_t sync_once(pcclComm_t *comm, const char *name, uint64_t *revision) {
    static double data[COUNT];
    pcclTensorInfo_t tensor = {"", NULL, COUNT, pcclDouble, pcclDeviceCpu, false};
    pcclSharedState_t state;
    pcclResult_t result;
    tensor.name = name;
    tensor.data = data;
    state.revision = *revision;
    state.count = 1;
    state.infos = &tensor;
    result = pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL);
    *revision = state.revision;
    return result;
}

/* The first peer has another tensor than the others, or skips a revision: it is dropped, they go on in the same
 * call. */
static void deviate(pcclComm_t *comm, bool skips) {
    uint64_t revision = 3;
    EXPECT(sync_once(comm, "weights", &revision), pcclSuccess);
    revision++;
    if (own_index > 0) {
        EXPECT(sync_once(comm, "weights", &revision), pcclSuccess);
        CHECK(revision == 4 && world(comm) == peers - 1);
        revision++;
        EXPECT(sync_once(comm, "weights", &revision), pcclSuccess);
        say("done");
        await_go();
        return;
    }
    revision += skips ? 1 : 0;
    EXPECT(sync_once(comm, skips ? "weights" : "wheigts", &revision), pcclInvalidUsage);
    CHECK(revision == (skips ? 5u : 4u));
    if (skips)
        CHECK(strcmp(pcclGetLastCause(), "RevisionJump") == 0 && strstr(pcclGetLastError(), "revision 5") != NULL);
    else {
        CHECK(strcmp(pcclGetLastCause(), "StateMismatch") == 0 && pcclGetLastRemedy() == pcclRemedyGiveUp);
        CHECK(strstr(pcclGetLastError(), "\"weights\": 1000 elements of f64 (2 of 3 peers)") != NULL);
        CHECK(strstr(pcclGetLastError(), "it has no \"weights\"") != NULL);
    }
    EXPECT(pcclUpdateTopology(comm), pcclUpdateTopologyFailed);
    EXPECT(sync_once(comm, "weights", &revision), pcclInvalidUsage);
    say("done");
    await_go();
}

/* A caller that gives an all-reduce up frees everybody. */
static void give_up(pcclComm_t *comm) {
    static float data[COUNT];
    pcclReduceDescriptor_t descriptor = describe(COUNT, pcclFloat, pcclSum, 4);
    pcclReduceDescriptor_t other = describe(COUNT / 2, pcclFloat, pcclSum, 5);
    pcclAsyncReduceOp_t op;
    data[0] = 17;
    if (own_index == 0) {
        EXPECT(pcclAllReduceAsync(data, data, &descriptor, comm, &op), pcclSuccess);
        EXPECT(pcclAbortAsyncReduce(&op), pcclSuccess);
        EXPECT(pcclAwaitAsyncReduce(&op, NULL), pcclRankConnectionLost);
    } else {
        EXPECT(pcclAllReduce(data, data, &descriptor, comm, NULL), pcclRankConnectionLost);
    }
    CHECK(data[0] == 17 && pcclGetLastRemedy() == pcclRemedyRetry);
    CHECK(strstr(pcclGetLastError(), "given up by a caller") != NULL);
    /* Calls that do not match are a mistake, not something to repeat. */
    if (own_index == 0)
        other.count--;
    EXPECT(pcclAllReduce(data, data, &other, comm, NULL), pcclInvalidUsage);
    CHECK(data[0] == 17 && pcclGetLastRemedy() == pcclRemedyGiveUp);
    /* Destroying waits for what is in flight. */
    if (own_index == 0)
        EXPECT(pcclAllReduceAsync(data, data, &descriptor, comm, &op), pcclSuccess);
    say("done");
    await_go();
}

/* The last peer makes no call; the first one has a limit, and frees the others. */
static void limits(pcclComm_t *comm) {
    static float data[COUNT];
    static char status[20000], name[80];
    pcclReduceDescriptor_t descriptor = describe(COUNT, pcclFloat, pcclSum, 4);
    pcclReduceDescriptor_t alone = describe(1, pcclFloat, pcclSum, 9);
    pcclTensorInfo_t tensor = {"state", data, COUNT, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state = {0, 1, &tensor};
    const pcclSharedStateSyncStrategy_t popular = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    pcclAsyncReduceOp_t op;
    pcclOptimized_t optimized;
    pcclRankUuid_t own, culprit;
    size_t count = 0, length = 0;
    bool flag = false;
    const char *cause = own_index == 0 ? "TimedOut" : "CallTimeout";
    EXPECT(pcclGetPeerId(comm, &own), pcclSuccess);
    EXPECT(pcclGetName(comm, name, sizeof name, &length), pcclSuccess);
    EXPECT(pcclGetStatus(comm, false, status, sizeof status, NULL), pcclSuccess);
    CHECK(length > 2 && strstr(status, name) != NULL);
    data[0] = 17;
    if (own_index < peers - 1) {
        if (own_index == 0)
            EXPECT(pcclSetCallTimeout(comm, 1000), pcclSuccess);
        EXPECT(pcclAllReduce(data, data, &descriptor, comm, NULL), pcclRankConnectionLost);
        CHECK(data[0] == 17 && pcclGetLastRemedy() == pcclRemedyRetry && strcmp(pcclGetLastCause(), cause) == 0);
        CHECK(strstr(pcclGetLastError(), "gave it up after 1.0 s, waiting for") != NULL);
        EXPECT(pcclGetLastCulprits(&culprit, 1, &count), pcclSuccess);
        CHECK(count == 1 && memcmp(culprit.data, own.data, 16) != 0);
        EXPECT(pcclSynchronizeSharedState(comm, &state, popular, NULL), pcclInvalidUsage);
        CHECK(pcclGetLastRemedy() == pcclRemedyRetry && strcmp(pcclGetLastCause(), cause) == 0);
    }
    if (own_index == 0) {
        /* The thread's own limit, whatever the communicator has. */
        EXPECT(pcclSetCallTimeout(comm, PCCL_NO_TIMEOUT), pcclSuccess);
        EXPECT(pcclSetThreadCallTimeout(200), pcclSuccess);
        EXPECT(pcclArePeersPending(comm, &flag), pcclInvalidUsage);
        CHECK(pcclGetLastRemedy() == pcclRemedyRetry && strcmp(pcclGetLastCause(), "TimedOut") == 0);
        EXPECT(pcclUpdateTopology(comm), pcclUpdateTopologyFailed);
        EXPECT(pcclOptimizeTopologyInfo(comm, &optimized), pcclTopologyOptimizationFailed);
        CHECK(strcmp(pcclGetLastCause(), "TimedOut") == 0);
        EXPECT(pcclSetThreadCallTimeout(PCCL_DEFAULT_TIMEOUT), pcclSuccess);
        EXPECT(pcclAllReduceAsync(data, data, &alone, comm, &op), pcclSuccess);
        EXPECT(pcclAwaitAsyncReduceFor(&op, 200, NULL), pcclRankConnectionLost);
        CHECK(data[0] == 17 && strcmp(pcclGetLastCause(), "TimedOut") == 0);
        EXPECT(pcclAwaitAsyncReduceFor(&op, 200, NULL), pcclRankConnectionLost);
        CHECK(strcmp(pcclGetLastCause(), "TimedOut") != 0);
        say("limited");
    }
    await_go();
    while (pcclAllReduce(data, data, &descriptor, comm, NULL) != pcclSuccess)
        CHECK(pcclGetLastRemedy() == pcclRemedyRetry && data[0] == 17);
    CHECK(data[0] == 17 * (float) peers);
    memset(&optimized, 0xA5, sizeof optimized);
    EXPECT(pcclOptimizeTopologyInfo(comm, &optimized), pcclSuccess);
    CHECK(optimized.group_size == (uint32_t) peers && optimized.unmeasured_edges == 0 && optimized.has_slowest);
    CHECK(optimized.slowest_mbit_s > 0 && optimized.bound_mbit_s >= optimized.slowest_mbit_s * 0.5);
    CHECK(optimized.schedule == pcclScheduleRing || optimized.schedule == pcclSchedulePairwise);
    CHECK(memcmp(optimized.slowest_from.data, optimized.slowest_to.data, 16) != 0);
    CHECK(strlen(optimized.note) < sizeof optimized.note);
    EXPECT(pcclGetStatus(comm, false, status, sizeof status, NULL), pcclSuccess);
    CHECK(strstr(status, "slowest edge") != NULL);
    say("done");
    await_go();
}

#endif
