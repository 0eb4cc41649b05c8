/* Reduces of peer.c: types, several at once, quantised, many tensors, schedules. */
#ifndef PEER_REDUCES_H
#define PEER_REDUCES_H

#include "peer_common.h"

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

/* Over the sites that programs name. One that names none is a site by itself. */
static void reduce_over_sites(pcclComm_t *comm) {
    const time_t begun = time(NULL);
    pcclSchedule_t taken;
    /* Around the ring until all pairs are connected; nothing is measured, so only who asks for sites has them. */
    while ((taken = sum_by(comm, pcclScheduleSites)) != pcclScheduleSites)
        CHECK(taken != pcclSchedulePairwise && time(NULL) < begun + PATIENCE_S);
    many(comm);
    CHECK(sum_by(comm, pcclScheduleAutomatic) != pcclScheduleSites);
    CHECK(sum_by(comm, pcclScheduleRing) == pcclScheduleRing);
}

#endif
