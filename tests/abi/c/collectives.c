/* A peer that makes the collectives beside all-reduce: PORT SCENARIO PEERS INDEX. C99 and C++. */
#include "check.h"

#include <math.h>

#define PEERS 3
#define EACH 5
/* So much that a peer can be killed while it moves. */
#define LARGE (4u << 20)

static pcclComm_t *comm;
static uint32_t rank;

static pcclReduceDescriptor_t numbers(size_t count, pcclRedOp_t op, uint64_t tag) {
    return describe(count, pcclInt32, op, tag);
}

static void look(void) {
    pcclWorld_t shape;
    EXPECT(pcclGetWorld(comm, &shape), pcclSuccess);
    rank = shape.rank;
}

/* The result of a finished call, whichever way it was made. */
static void finish(pcclResult_t result, pcclAsyncReduceOp_t *handle, pcclReduceInfo_t *info) {
    EXPECT(result, pcclSuccess);
    if (handle != NULL)
        EXPECT(pcclAwaitAsyncReduce(handle, info), pcclSuccess);
    CHECK(info->local_world_size == PEERS);
}

static void broadcast(bool async) {
    int32_t data[EACH];
    uint32_t root, i;
    for (root = 0; root < PEERS; root++) {
        pcclReduceDescriptor_t descriptor = numbers(EACH, pcclSum, 1);
        pcclAsyncReduceOp_t handle;
        pcclReduceInfo_t info;
        for (i = 0; i < EACH; i++)
            data[i] = (int32_t) (100 * rank + i);
        if (async)
            finish(pcclBroadcastAsync(data, root, &descriptor, comm, &handle), &handle, &info);
        else
            finish(pcclBroadcast(data, root, &descriptor, comm, &info), NULL, &info);
        for (i = 0; i < EACH; i++)
            CHECK(data[i] == (int32_t) (100 * root + i));
    }
}

static void reduce(bool async) {
    int32_t data[EACH];
    uint32_t root, i;
    for (root = 0; root < PEERS; root++) {
        pcclReduceDescriptor_t descriptor = numbers(EACH, root == 1 ? pcclMax : pcclSum, 2);
        pcclAsyncReduceOp_t handle;
        pcclReduceInfo_t info;
        for (i = 0; i < EACH; i++)
            data[i] = (int32_t) (10 * rank + i);
        if (async)
            finish(pcclReduceAsync(data, root, &descriptor, comm, &handle), &handle, &info);
        else
            finish(pcclReduce(data, root, &descriptor, comm, &info), NULL, &info);
        for (i = 0; i < EACH; i++) {
            const int32_t result = root == 1 ? (int32_t) (20 + i) : (int32_t) (30 + 3 * i);
            CHECK(data[i] == (rank == root ? result : (int32_t) (10 * rank + i)));
        }
    }
}

static void all_gather(bool async) {
    static const size_t counts[PEERS] = {3, 0, 2};
    int64_t own[EACH], all[PEERS * EACH];
    size_t i, place = 0;
    pcclReduceDescriptor_t descriptor = describe(EACH, pcclInt64, pcclSum, 3);
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    uint32_t from;
    for (i = 0; i < EACH; i++)
        own[i] = (int64_t) (100 * rank + i);
    memset(all, 0xff, sizeof all);
    if (async)
        finish(pcclAllGatherAsync(own, all, PEERS * EACH, &descriptor, comm, &handle), &handle, &info);
    else
        finish(pcclAllGather(own, all, PEERS * EACH, &descriptor, comm, &info), NULL, &info);
    for (i = 0; i < PEERS * EACH; i++)
        CHECK(all[i] == (int64_t) (100 * (i / EACH) + i % EACH));
    memset(all, 0xff, sizeof all);
    descriptor.count = counts[rank];
    if (async)
        finish(pcclAllGatherVAsync(own, all, 5, counts, PEERS, &descriptor, comm, &handle), &handle, &info);
    else
        finish(pcclAllGatherV(own, all, 5, counts, PEERS, &descriptor, comm, &info), NULL, &info);
    for (from = 0; from < PEERS; from++)
        for (i = 0; i < counts[from]; i++)
            CHECK(all[place++] == (int64_t) (100 * from + i));
    CHECK(place == 5 && all[5] == -1 && own[EACH - 1] == (int64_t) (100 * rank + EACH - 1));
}

static void reduce_scatter(bool async) {
    static const size_t counts[PEERS] = {1, 4, 0}, begins[PEERS] = {0, 1, 5};
    double all[PEERS * EACH], own[EACH];
    size_t i;
    pcclReduceDescriptor_t descriptor = describe(PEERS * EACH, pcclDouble, pcclAvg, 4);
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    for (i = 0; i < PEERS * EACH; i++)
        all[i] = (double) (3 * rank + i);
    if (async)
        finish(pcclReduceScatterAsync(all, own, EACH, &descriptor, comm, &handle), &handle, &info);
    else
        finish(pcclReduceScatter(all, own, EACH, &descriptor, comm, &info), NULL, &info);
    for (i = 0; i < EACH; i++)
        CHECK(own[i] == (double) (3 + rank * EACH + i));
    for (i = 0; i < EACH; i++)
        own[i] = -1;
    descriptor.count = 5;
    descriptor.op = pcclMin;
    if (async)
        finish(pcclReduceScatterVAsync(all, own, counts[rank], counts, PEERS, &descriptor, comm, &handle), &handle,
               &info);
    else
        finish(pcclReduceScatterV(all, own, counts[rank], counts, PEERS, &descriptor, comm, &info), NULL, &info);
    for (i = 0; i < EACH; i++)
        CHECK(own[i] == (i < counts[rank] ? (double) (begins[rank] + i) : -1));
    for (i = 0; i < PEERS * EACH; i++)
        CHECK(all[i] == (double) (3 * rank + i));
}

#include "collectives_moves.h"

static void weighted_average(bool async) {
    float data[EACH];
    size_t i;
    pcclReduceDescriptor_t descriptor = describe(EACH, pcclFloat, pcclSum, 5);
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    for (i = 0; i < EACH; i++)
        data[i] = (float) (rank + i);
    if (async)
        finish(pcclWeightedAverageAsync(data, rank, &descriptor, comm, &handle), &handle, &info);
    else
        finish(pcclWeightedAverage(data, rank, &descriptor, comm, &info), NULL, &info);
    /* Weights 0, 1 and 2. */
    for (i = 0; i < EACH; i++)
        CHECK(data[i] == (float) ((double) (1 + i + 2 * (2 + i)) / 3));
    /* Without a weight there is no average, for nobody. */
    data[0] = 7;
    EXPECT(pcclWeightedAverage(data, 0, &descriptor, comm, NULL), pcclInvalidArgument);
    CHECK(data[0] == 7);
}

/* Three segments, of which all tell the same. Others are refused with nothing done. */
static void in_segments(void) {
    pcclSegment_t segments[4];
    pcclReduceInfo_t info;
    float data[10];
    size_t done = 9;
    pcclReduceDescriptor_t descriptor = describe(10, pcclFloat, pcclAvg, 5);
    int i;
    for (i = 0; i < 10; i++) {
        data[i] = (float) i + 3.0f * (float) rank;
    }
    memset(segments, 0, sizeof segments);
    EXPECT(pcclAllReduceInSegments(data, data, &descriptor, comm, 16, &info, segments, 4, &done), pcclSuccess);
    CHECK(done == 3 && info.local_world_size == PEERS && segments[3].count == 0);
    CHECK(segments[1].first == 4 && segments[1].count == 4 && segments[2].first == 8 && segments[2].count == 2);
    for (i = 0; i < 3; i++) {
        CHECK(segments[i].contributors == PEERS && segments[i].rank == rank);
    }
    for (i = 0; i < 10; i++) {
        CHECK(data[i] == (float) (i + 3));
    }
    EXPECT(pcclAllReduceInSegments(data, data, &descriptor, comm, rank == 1 ? 20 : 16, NULL, segments, 4, &done),
           pcclInvalidUsage);
    CHECK(strcmp(pcclGetLastCause(), "MismatchedCall") == 0 && done == 0 && data[9] == 12.0f);
    EXPECT(pcclAllReduceInSegments(data, data, &descriptor, comm, 0, NULL, NULL, 0, NULL), pcclInvalidArgument);
    EXPECT(pcclAllReduceInSegments(data, data, &descriptor, comm, 16, NULL, NULL, 1, NULL), pcclInvalidArgument);
}

/* Rank 1 is an outlier. A contribution has two tensors, and one norm. */
static void clip_to_median(void) {
    pcclReduceOpDescriptor_t tensors[2];
    float single = rank == 1 ? 300.0f : 3.0f;
    double twice[2] = {rank == 1 ? -400.0 : -4.0, 0.0};
    pcclPeerNorm_t norms[PEERS + 1];
    pcclRankUuid_t ring[PEERS];
    pcclClip_t clip;
    size_t count = 0;
    uint32_t i;
    memset(tensors, 0, sizeof tensors);
    memset(norms, 0, sizeof norms);
    tensors[0].sendbuf = &single;
    tensors[0].descriptor = describe(1, pcclFloat, pcclAvg, 6);
    tensors[1].sendbuf = twice;
    tensors[1].descriptor = describe(2, pcclDouble, pcclAvg, 6);
    EXPECT(pcclClipToMedian(tensors, 2, 10.0, comm, &clip, norms, PEERS + 1), pcclSuccess);
    CHECK(clip.peers == PEERS && clip.median == 5.0 && clip.norm == (rank == 1 ? 500.0 : 5.0));
    CHECK(clip.scale == (rank == 1 ? 0.1 : 1.0));
    CHECK(single == (rank == 1 ? (float) (300.0 * 0.1) : 3.0f) && twice[0] == (rank == 1 ? -400.0 * 0.1 : -4.0));
    EXPECT(pcclGetRing(comm, ring, PEERS, &count), pcclSuccess);
    for (i = 0; i < PEERS; i++) {
        CHECK(memcmp(&norms[i].peer, &ring[i], sizeof ring[i]) == 0);
        CHECK(norms[i].norm == (i == 1 ? 500.0 : 5.0) && norms[i].scale == (i == 1 ? 0.1 : 1.0));
    }
    CHECK(norms[PEERS].norm == 0);
    /* A number that is not finite is refused for all, and changed for none. */
    single = rank == 2 ? NAN : 1e9f;
    EXPECT(pcclClipToMedian(tensors, 2, 10.0, comm, NULL, NULL, 0), pcclInvalidUsage);
    CHECK(strcmp(pcclGetLastCause(), "NotFinite") == 0 && (rank == 2 || single == 1e9f));
    EXPECT(pcclGetLastCulprits(ring, PEERS, &count), pcclSuccess);
    CHECK(count == 1 && memcmp(&ring[0], &norms[2].peer, sizeof ring[0]) == 0);
    /* So is a factor that is not the same for all. */
    single = rank == 0 ? 1e9f : 1.0f;
    EXPECT(pcclClipToMedian(tensors, 1, rank == 2 ? 2.0 : 3.0, comm, NULL, NULL, 0), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "factors that differ") != NULL && single == (rank == 0 ? 1e9f : 1.0f));
}

/* All of them at the same time, awaited in another order than they were begun. */
static void several_at_once(void) {
    enum { FLIGHTS = 6 };
    pcclAsyncReduceOp_t handles[FLIGHTS];
    int32_t one[EACH], sum[EACH], own[EACH], all[PEERS * EACH], parts[PEERS * EACH], part[EACH];
    float average = (float) rank;
    pcclReduceInfo_t info;
    int i;
    pcclReduceDescriptor_t few = numbers(EACH, pcclSum, 10), many = numbers(PEERS * EACH, pcclSum, 13);
    pcclReduceDescriptor_t single = describe(1, pcclFloat, pcclSum, 14);
    for (i = 0; i < EACH; i++)
        one[i] = sum[i] = own[i] = (int32_t) rank + 1;
    for (i = 0; i < PEERS * EACH; i++)
        parts[i] = (int32_t) rank + 1;
    EXPECT(pcclBroadcastAsync(one, 2, &few, comm, &handles[0]), pcclSuccess);
    few.tag = 11;
    EXPECT(pcclReduceAsync(sum, 0, &few, comm, &handles[1]), pcclSuccess);
    few.tag = 12;
    EXPECT(pcclAllGatherAsync(own, all, PEERS * EACH, &few, comm, &handles[2]), pcclSuccess);
    EXPECT(pcclReduceScatterAsync(parts, part, EACH, &many, comm, &handles[3]), pcclSuccess);
    EXPECT(pcclWeightedAverageAsync(&average, 1, &single, comm, &handles[4]), pcclSuccess);
    EXPECT(pcclBarrierAsync(15, comm, &handles[5]), pcclSuccess);
    /* A tag names one at a time, of whatever kind. */
    EXPECT(pcclBarrier(10, comm, NULL), pcclInvalidArgument);
    for (i = FLIGHTS - 1; i >= 0; i--)
        EXPECT(pcclAwaitAsyncReduce(&handles[i], &info), pcclSuccess);
    for (i = 0; i < PEERS * EACH; i++)
        CHECK(all[i] == i / EACH + 1);
    for (i = 0; i < EACH; i++)
        CHECK(one[i] == 3 && sum[i] == (rank == 0 ? 6 : (int32_t) rank + 1) && part[i] == 6);
    CHECK(average == 1);
}

/* Nothing of it is sent: no other peer makes these calls. */
static void wrong_arguments(void) {
    int32_t data[PEERS * EACH] = {0}, other[PEERS * EACH];
    float real = 1;
    const size_t counts[PEERS] = {EACH, EACH, EACH}, wrong[PEERS] = {EACH + 1, EACH + 1, EACH + 1};
    pcclReduceDescriptor_t few = numbers(EACH, pcclSum, 20), all = numbers(PEERS * EACH, pcclSum, 20);
    pcclReduceDescriptor_t bad = few, single = describe(1, pcclFloat, pcclSum, 20);
    pcclReduceOpDescriptor_t clipped, both[2];
    pcclAsyncReduceOp_t handle;
    memset(&clipped, 0, sizeof clipped);
    EXPECT(pcclBroadcast(NULL, 0, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclBroadcast(data, 0, NULL, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclBroadcast(data, 0, &few, NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclBroadcast(data, PEERS, &few, comm, NULL), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "no rank 3") != NULL);
    EXPECT(pcclBroadcastAsync(data, 0, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclReduce(data, PEERS, &few, comm, NULL), pcclInvalidArgument);
    bad.op = (pcclRedOp_t) 17;
    EXPECT(pcclReduce(data, 0, &bad, comm, NULL), pcclInvalidArgument);
    bad = few;
    bad.src_descriptor.datatype = (pcclDataType_t) 99;
    EXPECT(pcclAllGather(data, other, PEERS * EACH, &bad, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllGather(data, NULL, PEERS * EACH, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllGather(data, other, PEERS * EACH - 1, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllGather(data, data, PEERS * EACH, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllGatherV(data, other, PEERS * EACH, NULL, PEERS, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllGatherV(data, other, PEERS * EACH, counts, PEERS - 1, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllGatherV(data, other, PEERS * EACH, wrong, PEERS, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclReduceScatter(data, other, EACH - 1, &all, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclReduceScatter(data, other, 0, &all, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclReduceScatterV(data, other, EACH, wrong, PEERS, &all, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclReduceScatterVAsync(data, other, EACH, counts, PEERS, &all, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclWeightedAverage(&real, -1, &single, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclWeightedAverage(&real, (double) NAN, &single, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclWeightedAverage(&real, (double) INFINITY, &single, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclWeightedAverage(data, 1, &few, comm, NULL), pcclInvalidArgument);
    clipped.sendbuf = &real;
    clipped.descriptor = single;
    EXPECT(pcclClipToMedian(&clipped, 1, 0, comm, NULL, NULL, 0), pcclInvalidArgument);
    EXPECT(pcclClipToMedian(&clipped, 1, (double) NAN, comm, NULL, NULL, 0), pcclInvalidArgument);
    EXPECT(pcclClipToMedian(&clipped, 0, 3, comm, NULL, NULL, 0), pcclInvalidArgument);
    EXPECT(pcclClipToMedian(NULL, 1, 3, comm, NULL, NULL, 0), pcclInvalidArgument);
    EXPECT(pcclClipToMedian(&clipped, 1, 3, comm, NULL, NULL, 1), pcclInvalidArgument);
    EXPECT(pcclClipToMedian(&clipped, 1, 3, NULL, NULL, NULL, 0), pcclInvalidArgument);
    /* The same memory twice would be made shorter twice. */
    both[0] = both[1] = clipped;
    EXPECT(pcclClipToMedian(both, 2, 3, comm, NULL, NULL, 0), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "overlap") != NULL);
    clipped.sendbuf = NULL;
    EXPECT(pcclClipToMedian(&clipped, 1, 3, comm, NULL, NULL, 0), pcclInvalidArgument);
    clipped.sendbuf = data;
    clipped.descriptor = few;
    EXPECT(pcclClipToMedian(&clipped, 1, 3, comm, NULL, NULL, 0), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "floats are") != NULL);
    EXPECT(pcclBarrier(20, NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclBarrierAsync(20, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclBarrierAsync(20, NULL, &handle), pcclInvalidArgument);
    CHECK(real == 1 && data[0] == 0);
}

/* Rank 0 comes late; the others are not let through before. */
static void barrier(void) {
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    bool done = true;
    if (rank == 0) {
        say("late");
        await_go();
        finish(pcclBarrier(30, comm, &info), NULL, &info);
        return;
    }
    EXPECT(pcclBarrierAsync(30, comm, &handle), pcclSuccess);
    EXPECT(pcclWaitAsyncReduce(&handle, 50, &done), pcclSuccess);
    CHECK(!done);
    say("waiting");
    finish(pcclSuccess, &handle, &info);
}

/* After a loss: what was called for three cannot be carried out by two, and what has been given is as it was. */
static void called_for_three(void) {
    int32_t own[EACH], all[PEERS * EACH], part[EACH] = {7, 7, 7, 7, 7};
    pcclReduceDescriptor_t few = numbers(EACH, pcclSum, 40), many = numbers(PEERS * EACH, pcclSum, 41);
    pcclAsyncReduceOp_t gather, scatter;
    size_t i;
    for (i = 0; i < EACH; i++)
        own[i] = (int32_t) i;
    for (i = 0; i < PEERS * EACH; i++)
        all[i] = (int32_t) i;
    EXPECT(pcclReduceScatterAsync(all, part, EACH, &many, comm, &scatter), pcclSuccess);
    {
        int32_t gathered[PEERS * EACH];
        EXPECT(pcclAllGatherAsync(own, gathered, PEERS * EACH, &few, comm, &gather), pcclSuccess);
        say("waiting");
        EXPECT(pcclAwaitAsyncReduce(&gather, NULL), pcclRankConnectionLost);
    }
    CHECK(strcmp(pcclGetLastCause(), "WorldChanged") == 0 && pcclGetLastRemedy() == pcclRemedyRetry);
    EXPECT(pcclAwaitAsyncReduce(&scatter, NULL), pcclRankConnectionLost);
    CHECK(strcmp(pcclGetLastCause(), "WorldChanged") == 0);
    for (i = 0; i < EACH; i++)
        CHECK(own[i] == (int32_t) i && part[i] == 7);
    for (i = 0; i < PEERS * EACH; i++)
        CHECK(all[i] == (int32_t) i);
}

/* The others go on with each other. */
static void two_are_left(void) {
    int32_t own = (int32_t) 5, all[2] = {0, 0};
    pcclReduceDescriptor_t single = numbers(1, pcclSum, 50);
    pcclReduceInfo_t info;
    CHECK(world(comm) == 2);
    look();
    own += (int32_t) rank;
    EXPECT(pcclAllGather(&own, all, 2, &single, comm, &info), pcclSuccess);
    CHECK(info.local_world_size == 2 && all[0] == 5 && all[1] == 6);
    EXPECT(pcclBroadcast(&own, 1, &single, comm, NULL), pcclSuccess);
    CHECK(own == 6);
    EXPECT(pcclBarrier(51, comm, NULL), pcclSuccess);
}

static void note_progress(const pcclSyncProgress_t *progress, void *user) {
    *(pcclSyncProgress_t *) user = *progress;
}

/* One element of one peer is another. */
static void where_states_differ(void) {
    float weights[PEERS * EACH] = {0};
    int64_t step = 7;
    pcclTensorInfo_t tensors[2] = {
        {"weights", weights, PEERS * EACH, pcclFloat, pcclDeviceCpu, false},
        {"step", &step, 1, pcclInt64, pcclDeviceCpu, false},
    };
    const pcclSharedState_t state = {0, 2, tensors};
    pcclSharedState_t mutable_state = {0, 2, tensors};
    pcclSharedStateSyncInfo_t info;
    pcclSyncProgress_t seen = {0, 0, 0, 0};
    pcclTensorDiff_t diffs[2];
    pcclRankUuid_t ring[PEERS], apart[PEERS];
    size_t count = 9, there = 0;
    char text[1024];
    EXPECT(pcclDiffSharedState(comm, &state, diffs, 2, &count), pcclSuccess);
    CHECK(count == 0);
    if (rank == 1)
        weights[4] = 2.5f;
    EXPECT(pcclDiffSharedState(comm, &state, diffs, 2, &count), pcclSuccess);
    CHECK(count == 1 && diffs[0].tensor == 0 && diffs[0].is_located && diffs[0].first_element == 4);
    CHECK(diffs[0].begin == 0 && diffs[0].end == PEERS * EACH && diffs[0].contents == 2);
    CHECK(diffs[0].peers_apart == 1 && diffs[0].is_apart == (rank == 1));
    CHECK(weights[4] == (rank == 1 ? 2.5f : 0.0f));
    EXPECT(pcclGetRing(comm, ring, PEERS, &there), pcclSuccess);
    EXPECT(pcclGetStateDiffPeers(comm, 0, apart, PEERS, &there), pcclSuccess);
    CHECK(there == 1 && memcmp(&apart[0], &ring[1], sizeof ring[1]) == 0);
    EXPECT(pcclGetStateDiffPeers(comm, 1, apart, PEERS, &there), pcclInvalidArgument);
    EXPECT(pcclGetStateDiffText(comm, text, sizeof text, NULL), pcclSuccess);
    EXPECT(pcclSynchronizeSharedStateWith(comm, &mutable_state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info,
                                          note_progress, &seen),
           pcclSuccess);
    CHECK(weights[4] == 0.0f && seen.done_bytes == info.rx_bytes && seen.total_bytes == info.rx_bytes);
    CHECK((info.rx_bytes > 0) == (rank == 1) && (seen.sources > 0) == (rank == 1));
    CHECK(strstr(text, "\"weights\"") != NULL && strstr(text, "element 4") != NULL && strstr(text, "2.5") != NULL);
}

/* Killed while much is on its way: each call succeeds whole, or leaves what it was given. */
static void killed_on_the_way(bool is_victim) {
    int32_t *data = (int32_t *) malloc(LARGE * sizeof *data);
    size_t i;
    CHECK(data != NULL);
    for (;;) {
        pcclReduceDescriptor_t descriptor = numbers(LARGE, pcclSum, 60);
        pcclResult_t result;
        int32_t wanted;
        for (i = 0; i < LARGE; i++)
            data[i] = (int32_t) (1000 * rank + i % 7);
        if (is_victim)
            say("begun");
        result = pcclBroadcast(data, 0, &descriptor, comm, NULL);
        CHECK(result == pcclSuccess || result == pcclRankConnectionLost);
        wanted = result == pcclSuccess ? 0 : (int32_t) (1000 * rank);
        for (i = 0; i < LARGE; i++)
            CHECK(data[i] == wanted + (int32_t) (i % 7));
        if (result != pcclSuccess) {
            pcclRankUuid_t culprits[PEERS];
            size_t count = 0;
            CHECK(pcclGetLastRemedy() == pcclRemedyRetry);
            EXPECT(pcclGetLastCulprits(culprits, PEERS, &count), pcclSuccess);
            /* A peer that died between two calls spoils the next one, which was called by a rank of the old world. */
            CHECK(count > 0 || strstr(pcclGetLastError(), "before it knew the present members") != NULL);
        }
        look();
        if (world(comm) == 2)
            break;
    }
    free(data);
}

int main(int argc, char **argv) {
    bool is_victim;
    CHECK(argc == 5);
    EXPECT(pcclInit(), pcclSuccess);
    CHECK(atoi(argv[3]) == PEERS);
    is_victim = atoi(argv[4]) == PEERS - 1;
    comm = join((unsigned) atoi(argv[1]), PEERS);
    look();
    say("joined");
    await_go();
    if (strcmp(argv[2], "results") == 0) {
        int async;
        for (async = 0; async < 2; async++) {
            broadcast(async != 0);
            reduce(async != 0);
            all_gather(async != 0);
            reduce_scatter(async != 0);
            weighted_average(async != 0);
            gather(async != 0);
            scatter(async != 0);
            all_to_all(async != 0);
        }
        in_segments();
        clip_to_median();
        several_at_once();
        where_states_differ();
        wrong_arguments();
        moves_that_do_not_fit();
        barrier();
    } else if (strcmp(argv[2], "missing") == 0) {
        if (is_victim) {
            say("here");
            await_go();
        }
        called_for_three();
        two_are_left();
    } else {
        CHECK(strcmp(argv[2], "killed") == 0);
        killed_on_the_way(is_victim);
        two_are_left();
    }
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    say("done");
    return 0;
}
