/* A peer: PORT SCENARIO PEERS INDEX. Uses the original's functions, and extensions only to look at results. C99 and
 * C++. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "check.h"

#include <time.h>

#if defined(__linux__)
#include <unistd.h>
#endif

#define COUNT 1000
#define PATIENCE_S 120

static unsigned port;
static int peers, own_index;

/* Every type: the sum of index + 1 over all peers, at an odd address. */
static void reduce_types(pcclComm_t *comm) {
    static const size_t sizes[12] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    static unsigned char memory[8 * COUNT + 1], first[8];
    int type, sum = peers * (peers + 1) / 2, i;
    for (type = 0; type < 12; type++) {
        unsigned char *data = memory + 1;
        size_t size = sizes[type];
        pcclReduceDescriptor_t descriptor = describe(COUNT, (pcclDataType_t) type, pcclSum, 7);
        pcclReduceInfo_t info;
        float as_float = (float) (own_index + 1), sum_float = (float) sum;
        double as_double = own_index + 1, sum_double = sum;
        uint64_t as_integer = (uint64_t) own_index + 1, sum_integer = (uint64_t) sum;
        /* Small integers as float16: 1, 2, 3, 6. As bfloat16: the upper half of a float. */
        static const uint16_t half[7] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};
        uint32_t bits;
        for (i = 0; i < COUNT; i++) {
            unsigned char *to = data + (size_t) i * size;
            if (type == pcclFloat)
                memcpy(to, &as_float, 4);
            else if (type == pcclDouble)
                memcpy(to, &as_double, 8);
            else if (type == pcclFloat16)
                memcpy(to, &half[own_index + 1], 2);
            else if (type == pcclBFloat16) {
                memcpy(&bits, &as_float, 4);
                bits >>= 16;
                memcpy(to, &bits, 2);
            } else
                memcpy(to, &as_integer, size);
        }
        EXPECT(pcclAllReduce(data, data, &descriptor, comm, &info), pcclSuccess);
        CHECK(info.local_world_size == (uint32_t) peers);
        CHECK(info.tx_bytes > 0 && info.tx_bytes <= (size_t) (peers - 1) * COUNT * size);
        if (type == pcclFloat)
            memcpy(first, &sum_float, 4);
        else if (type == pcclDouble)
            memcpy(first, &sum_double, 8);
        else if (type == pcclFloat16)
            memcpy(first, &half[sum], 2);
        else if (type == pcclBFloat16) {
            memcpy(&bits, &sum_float, 4);
            bits >>= 16;
            memcpy(first, &bits, 2);
        } else
            memcpy(first, &sum_integer, size);
        for (i = 0; i < COUNT; i++)
            CHECK(memcmp(data + (size_t) i * size, first, size) == 0);
    }
}

static void several_at_once(pcclComm_t *comm) {
    static float send[COUNT], sums[COUNT], largest[COUNT];
    pcclReduceDescriptor_t sum = describe(COUNT, pcclFloat, pcclSum, 1), max = describe(COUNT, pcclFloat, pcclMax, 2);
    pcclReduceDescriptor_t none = describe(0, pcclFloat, pcclSum, 3), quantised = sum;
    pcclSharedState_t state = {0, 0, NULL};
    pcclAsyncReduceOp_t one, two, copy;
    bool done = false;
    int i;
    for (i = 0; i < COUNT; i++)
        send[i] = (float) (own_index + i);
    EXPECT(pcclAllReduceAsync(send, sums, &sum, comm, &one), pcclSuccess);
    EXPECT(pcclAllReduceAsync(send, largest, &max, comm, &two), pcclSuccess);
    EXPECT(pcclAllReduceAsync(send, largest, &max, comm, &copy), pcclInvalidArgument);
    EXPECT(pcclUpdateTopology(comm), pcclPendingAsyncOps);
    EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL),
           pcclPendingAsyncOps);
    EXPECT(pcclArePeersPending(comm, &done), pcclSuccess);
    CHECK(!done);
    /* A handle is a value. */
    copy.comm = comm;
    copy.tag = 2;
    EXPECT(pcclWaitAsyncReduce(&copy, 60000, &done), pcclSuccess);
    CHECK(done);
    EXPECT(pcclTestAsyncReduce(&two, &done), pcclSuccess);
    CHECK(done);
    EXPECT(pcclAwaitAsyncReduce(&copy, NULL), pcclSuccess);
    EXPECT(pcclAwaitAsyncReduce(&two, NULL), pcclRankConnectionLost);
    EXPECT(pcclAwaitAsyncReduce(&one, NULL), pcclSuccess);
    for (i = 0; i < COUNT; i++) {
        CHECK(sums[i] == (float) (peers * i + peers * (peers - 1) / 2));
        CHECK(largest[i] == (float) (peers - 1 + i) && send[i] == (float) (own_index + i));
    }
    EXPECT(pcclAllReduce(NULL, NULL, &none, comm, NULL), pcclSuccess);
    /* Buffers that overlap in part. */
    EXPECT(pcclAllReduce(send, send + 1, &none, comm, NULL), pcclSuccess);
    sum.count = COUNT - 1;
    EXPECT(pcclAllReduce(send, send + 1, &sum, comm, NULL), pcclInvalidArgument);
    quantised.quantization_options.algorithm = (pcclQuantizationAlgorithm_t) 9;
    EXPECT(pcclAllReduce(send, send, &quantised, comm, NULL), pcclInvalidArgument);
}

/* Constants come out exactly, and alike on all peers; what cannot be quantised is refused. */
static void quantise(pcclComm_t *comm) {
    static const int algorithms[6] = {pcclQuantMinMax, pcclQuantZeroPointScale, pcclQuantBlockAffineUint8,
                                      pcclQuantBlockSymmetricInt8, pcclQuantCastBFloat16, pcclQuantCastFloat16};
    static float data[COUNT];
    int which, i;
    for (which = 0; which < 6; which++) {
        pcclReduceDescriptor_t descriptor = describe(COUNT, pcclFloat, pcclSum, 20);
        pcclReduceInfo_t info;
        const float sum = (float) (42 * peers + peers * (peers - 1) / 2);
        descriptor.quantization_options.algorithm = (pcclQuantizationAlgorithm_t) algorithms[which];
        descriptor.quantization_options.quantized_datatype = pcclUint8;
        for (i = 0; i < COUNT; i++)
            data[i] = (float) (42 + own_index);
        EXPECT(pcclAllReduce(data, data, &descriptor, comm, &info), pcclSuccess);
        for (i = 0; i < COUNT; i++)
            CHECK(data[i] > sum - 1 && data[i] < sum + 1);
        CHECK(info.tx_bytes < 2 * COUNT * sizeof(float) * (size_t) (peers - 1) / (size_t) peers);
        descriptor.op = pcclMax;
        EXPECT(pcclAllReduce(data, data, &descriptor, comm, &info), pcclInvalidArgument);
    }
}

static void many(pcclComm_t *comm) {
    static float floats[COUNT];
    static int16_t integers[3];
    pcclReduceOpDescriptor_t descriptors[2];
    pcclAsyncReduceOp_t op;
    pcclReduceInfo_t info;
    int i;
    for (i = 0; i < COUNT; i++)
        floats[i] = (float) own_index;
    integers[0] = integers[1] = integers[2] = (int16_t) own_index;
    memset(descriptors, 0, sizeof descriptors);
    descriptors[0].sendbuf = descriptors[0].recvbuf = floats;
    descriptors[0].descriptor = describe(COUNT, pcclFloat, pcclAvg, 10);
    descriptors[1].sendbuf = descriptors[1].recvbuf = integers;
    descriptors[1].descriptor = describe(3, pcclInt16, pcclMin, 11);
    EXPECT(pcclAllReduceMultipleWithRetry(descriptors, 2, comm, &info, 1), pcclSuccess);
    CHECK(info.local_world_size == (uint32_t) peers);
    for (i = 0; i < COUNT; i++)
        CHECK(floats[i] == (float) (peers - 1) / 2);
    CHECK(integers[0] == 0 && integers[2] == 0);
    for (i = 0; i < COUNT; i++)
        floats[i] = (float) own_index;
    integers[0] = integers[1] = integers[2] = (int16_t) own_index;
    EXPECT(pcclAllReduceManyAsync(descriptors, 2, comm, &op), pcclSuccess);
    CHECK(op.tag == 10);
    EXPECT(pcclAwaitAsyncReduce(&op, &info), pcclSuccess);
    CHECK(floats[0] == (float) (peers - 1) / 2 && floats[COUNT - 1] == floats[0] && integers[1] == 0);
}

/* A sum by the schedule that was chosen; which one it took is the same on all peers. */
static pcclSchedule_t sum_by(pcclComm_t *comm, pcclSchedule_t schedule) {
    static float data[COUNT];
    pcclReduceDescriptor_t descriptor = describe(COUNT, pcclFloat, pcclSum, 30);
    pcclReduceInfo_t info;
    int i;
    memset(&info, 0xA5, sizeof info);
    for (i = 0; i < COUNT; i++)
        data[i] = (float) (own_index + i);
    EXPECT(pcclSetSchedule(comm, schedule), pcclSuccess);
    EXPECT(pcclAllReduce(data, data, &descriptor, comm, &info), pcclSuccess);
    for (i = 0; i < COUNT; i++)
        CHECK(data[i] == (float) (peers * i + peers * (peers - 1) / 2));
    return info.schedule;
}

static void choose_schedules(pcclComm_t *comm) {
    static float data[COUNT];
    const time_t begun = time(NULL);
    pcclReduceDescriptor_t descriptor = describe(COUNT, pcclFloat, pcclSum, 30);
    pcclSchedule_t taken = sum_by(comm, pcclScheduleAutomatic);
    /* Small, so in few hops. */
    CHECK(taken == pcclScheduleAllGather || taken == pcclScheduleDirect || taken == pcclScheduleReduceBroadcast);
    CHECK(sum_by(comm, pcclScheduleRing) == pcclScheduleRing);
    taken = sum_by(comm, pcclSchedulePairwise);
    if (peers < 3)
        CHECK(taken == pcclScheduleAllGather);
    else {
        /* Around the ring until all pairs are connected. */
        for (; taken != pcclSchedulePairwise; taken = sum_by(comm, pcclSchedulePairwise))
            CHECK(taken == pcclScheduleRing && time(NULL) < begun + PATIENCE_S);
        many(comm);
    }
    /* Choices that differ are a mistake, and change nothing. */
    data[0] = 17;
    EXPECT(pcclSetSchedule(comm, own_index == 0 ? pcclScheduleRing : pcclSchedulePairwise), pcclSuccess);
    EXPECT(pcclAllReduce(data, data, &descriptor, comm, NULL), pcclInvalidUsage);
    CHECK(data[0] == 17 && strcmp(pcclGetLastCause(), "MismatchedCall") == 0);
    CHECK(strstr(pcclGetLastError(), "pairwise") != NULL);
    EXPECT(pcclSetSchedule(comm, pcclScheduleAutomatic), pcclSuccess);
}

/* All but the first peer differ; in two steps of the revision. */
static void synchronise(pcclComm_t *comm) {
    static float weights[COUNT];
    static uint16_t halves[5];
    pcclTensorInfo_t tensors[2];
    pcclSharedState_t state;
    pcclSharedStateSyncInfo_t info;
    int i;
    tensors[0].name = "weights";
    tensors[0].data = weights;
    tensors[0].count = COUNT;
    tensors[0].datatype = pcclFloat;
    tensors[0].device_type = pcclDeviceCpu;
    tensors[0].allow_content_inequality = false;
    tensors[1] = tensors[0];
    tensors[1].name = "halves";
    tensors[1].data = halves;
    tensors[1].count = 5;
    tensors[1].datatype = pcclFloat16;
    for (i = 0; i < COUNT; i++)
        weights[i] = own_index == 0 ? 3.5f : 0.0f;
    memset(halves, own_index == 0 ? 0x3c : 0, sizeof halves);
    /* The highest first revision wins. */
    state.revision = own_index == 0 ? 13 : 0;
    state.count = 2;
    state.infos = tensors;
    EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info),
           pcclSuccess);
    CHECK(state.revision == 13 && weights[COUNT - 1] == 3.5f && halves[4] == 0x3c3c);
    CHECK(info.rx_bytes == (own_index == 0 ? 0 : sizeof weights + sizeof halves));
    state.revision++;
    weights[0] += 1;
    EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info),
           pcclSuccess);
    CHECK(state.revision == 14 && info.rx_bytes == 0 && info.tx_bytes == 0);
}

static void all(pcclComm_t *comm) {
    pcclWorld_t shape;
    pcclRankUuid_t ring[8];
    size_t count = 0;
    CHECK(world(comm) == peers && attribute(comm, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS) == 1);
    CHECK(attribute(comm, PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE) == peers);
    reduce_types(comm);
    several_at_once(comm);
    quantise(comm);
    many(comm);
    choose_schedules(comm);
    synchronise(comm);
    EXPECT(pcclOptimizeTopology(comm), pcclSuccess);
    EXPECT(pcclGetWorld(comm, &shape), pcclSuccess);
    EXPECT(pcclGetRing(comm, ring, 8, &count), pcclSuccess);
    CHECK(shape.rank < (uint32_t) peers && count == (size_t) peers);
    many(comm);
}

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

/* Who gives an all-reduce up frees everybody. */
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

#if defined(__linux__)
static long status_field(const char *name) {
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtol(line + strlen(name) + 1, NULL, 10);
    fclose(file);
    return value;
}

static int descriptors(void) {
    int fd, open = 0;
    for (fd = 0; fd < 1024; fd++)
        open += lseek(fd, 0, SEEK_CUR) != -1 || dup2(fd, fd) == fd;
    return open;
}
#else
static long status_field(const char *name) {
    (void) name;
    return 0;
}
static int descriptors(void) {
    return 0;
}
#endif

/* Connects, reduces, synchronises and leaves, many times; nothing grows, if that is what is measured. */
static void cycle(int times, bool measured) {
    const int warm_up = times / 5;
    long memory_kb = 0, threads = 0;
    int open = 0, i;
    for (i = 0; i < times; i++) {
        pcclComm_t *comm = join(port, peers);
        many(comm);
        {
            static double state_data[COUNT];
            pcclTensorInfo_t tensor = {"state", state_data, COUNT, pcclDouble, pcclDeviceCpu, false};
            pcclSharedState_t state = {0, 1, &tensor};
            state_data[0] = own_index;
            EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL),
                   pcclSuccess);
        }
        EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
        if (i == warm_up) {
            memory_kb = status_field("VmRSS");
            threads = status_field("Threads");
            open = descriptors();
        }
        /* Until all have left: otherwise somebody would meet the old world. */
        say("left");
        await_go();
    }
    if (!measured)
        return;
    CHECK(status_field("Threads") <= threads && descriptors() <= open);
    printf("grew from %ld to %ld KiB\n", memory_kb, status_field("VmRSS"));
    CHECK(status_field("VmRSS") <= memory_kb + 4096);
}

int main(int count, char **arguments) {
    const char *scenario;
    pcclComm_t *comm;
    CHECK(count == 5);
    port = (unsigned) strtoul(arguments[1], NULL, 10);
    scenario = arguments[2];
    peers = (int) strtol(arguments[3], NULL, 10);
    own_index = (int) strtol(arguments[4], NULL, 10);
    EXPECT(pcclInit(), pcclSuccess);
    if (strncmp(scenario, "cycle=", 6) == 0) {
        cycle((int) strtol(scenario + 6, NULL, 10), true);
        return 0;
    }
    if (strncmp(scenario, "repeat=", 7) == 0) {
        cycle((int) strtol(scenario + 7, NULL, 10), false);
        return 0;
    }
    comm = join(port, peers);
    say("joined");
    await_go();
    if (strcmp(scenario, "all") == 0)
        all(comm);
    else if (strcmp(scenario, "limits") == 0)
        limits(comm);
    else if (strcmp(scenario, "survive") == 0)
        survive(comm);
    else if (strcmp(scenario, "give-up") == 0)
        give_up(comm);
    else if (strcmp(scenario, "deviate") == 0)
        deviate(comm, false);
    else if (strcmp(scenario, "skip") == 0)
        deviate(comm, true);
    else
        CHECK(!"a known scenario");
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    return 0;
}
