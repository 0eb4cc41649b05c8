/* Gather, scatter and all-to-all, which only move: a part of collectives.c. */

static void gather(bool async) {
    static const size_t counts[PEERS] = {3, 0, 2};
    int64_t own[EACH], all[PEERS * EACH];
    pcclReduceDescriptor_t descriptor = describe(EACH, pcclInt64, pcclSum, 7);
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    size_t i, place;
    uint32_t root, from;
    for (i = 0; i < EACH; i++)
        own[i] = (int64_t) (100 * rank + i);
    for (root = 0; root < PEERS; root++) {
        /* Only the root has memory for all. */
        int64_t *into = rank == root ? all : NULL;
        memset(all, 0xff, sizeof all);
        descriptor.count = EACH;
        if (async)
            finish(pcclGatherAsync(own, into, PEERS * EACH, root, &descriptor, comm, &handle), &handle, &info);
        else
            finish(pcclGather(own, into, rank == root ? PEERS * EACH : 0, root, &descriptor, comm, &info), NULL, &info);
        for (i = 0; i < PEERS * EACH; i++)
            CHECK(all[i] == (rank == root ? (int64_t) (100 * (i / EACH) + i % EACH) : -1));
        memset(all, 0xff, sizeof all);
        descriptor.count = counts[rank];
        if (async)
            finish(pcclGatherVAsync(own, all, 5, root, counts, PEERS, &descriptor, comm, &handle), &handle, &info);
        else
            finish(pcclGatherV(own, all, 5, root, counts, PEERS, &descriptor, comm, &info), NULL, &info);
        place = 0;
        for (from = 0; from < PEERS && rank == root; from++)
            for (i = 0; i < counts[from]; i++)
                CHECK(all[place++] == (int64_t) (100 * from + i));
        CHECK(all[place] == -1);
    }
}

static void scatter(bool async) {
    static const size_t counts[PEERS] = {1, 4, 0}, begins[PEERS] = {0, 1, 5};
    int64_t all[PEERS * EACH], own[EACH];
    pcclReduceDescriptor_t descriptor = describe(EACH, pcclInt64, pcclSum, 8);
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    uint32_t root;
    size_t i;
    for (i = 0; i < PEERS * EACH; i++)
        all[i] = (int64_t) (1000 * rank + i);
    for (root = 0; root < PEERS; root++) {
        const int64_t *from = rank == root ? all : NULL;
        descriptor.count = EACH;
        if (async)
            finish(pcclScatterAsync(from, PEERS * EACH, own, root, &descriptor, comm, &handle), &handle, &info);
        else
            finish(pcclScatter(from, rank == root ? PEERS * EACH : 0, own, root, &descriptor, comm, &info), NULL,
                   &info);
        for (i = 0; i < EACH; i++)
            CHECK(own[i] == (int64_t) (1000 * root + EACH * rank + i));
        memset(own, 0xff, sizeof own);
        descriptor.count = counts[rank];
        if (async)
            finish(pcclScatterVAsync(from, 5, own, root, counts, PEERS, &descriptor, comm, &handle), &handle, &info);
        else
            finish(pcclScatterV(all, 5, own, root, counts, PEERS, &descriptor, comm, &info), NULL, &info);
        for (i = 0; i < EACH; i++)
            CHECK(own[i] == (i < counts[rank] ? (int64_t) (1000 * root + begins[rank] + i) : -1));
    }
}

/* Rank s sends rank d s + 2 d elements. */
static void all_to_all(bool async) {
    int32_t given[PEERS * EACH], taken[PEERS * EACH + 1];
    size_t send_counts[PEERS], recv_counts[PEERS], counts[PEERS * PEERS], sent = 0, got = 0, i, place = 0;
    pcclReduceDescriptor_t descriptor = numbers(PEERS * EACH, pcclSum, 9);
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    uint32_t other;
    for (i = 0; i < PEERS * EACH; i++)
        given[i] = (int32_t) (100 * rank + i);
    if (async)
        finish(pcclAllToAllAsync(given, taken, &descriptor, comm, &handle), &handle, &info);
    else
        finish(pcclAllToAll(given, taken, &descriptor, comm, &info), NULL, &info);
    for (i = 0; i < PEERS * EACH; i++)
        CHECK(taken[i] == (int32_t) (100 * (i / EACH) + EACH * rank + i % EACH));
    for (other = 0; other < PEERS; other++) {
        sent += send_counts[other] = rank + 2 * other;
        got += recv_counts[other] = other + 2 * rank;
    }
    EXPECT(pcclExchangeCounts(send_counts, recv_counts, PEERS, counts, 9, comm), pcclSuccess);
    for (i = 0; i < PEERS * PEERS; i++)
        CHECK(counts[i] == i / PEERS + 2 * (i % PEERS));
    memset(taken, 0xff, sizeof taken);
    descriptor.count = sent;
    if (async)
        finish(pcclAllToAllVAsync(given, taken, got, counts, PEERS, &descriptor, comm, &handle), &handle, &info);
    else
        finish(pcclAllToAllV(given, taken, got, counts, PEERS, &descriptor, comm, &info), NULL, &info);
    for (other = 0; other < PEERS; other++) {
        size_t first = 0;
        uint32_t before;
        for (before = 0; before < rank; before++)
            first += other + 2 * before;
        for (i = 0; i < recv_counts[other]; i++)
            CHECK(taken[place++] == (int32_t) (100 * other + first + i));
    }
    CHECK(place == got && taken[place] == -1);
    /* One that expects more than it is sent is named, to all. */
    recv_counts[0] += rank == 2;
    EXPECT(pcclExchangeCounts(send_counts, recv_counts, PEERS, counts, 9, comm), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "rank 0 gives rank 2 4 elements, and rank 2 takes 5") != NULL);
}

/* Nothing of it is sent: no other peer makes these calls. */
static void moves_that_do_not_fit(void) {
    int32_t data[PEERS * EACH] = {0}, other[PEERS * EACH];
    const size_t counts[PEERS] = {EACH, EACH, EACH}, wrong[PEERS] = {EACH + 1, EACH + 1, EACH + 1};
    size_t pairs[PEERS * PEERS] = {0};
    pcclReduceDescriptor_t few = numbers(EACH, pcclSum, 20), odd = numbers(PEERS * EACH - 1, pcclSum, 20);
    pcclReduceDescriptor_t coded = describe(EACH, pcclFloat, pcclSum, 20);
    EXPECT(pcclGather(NULL, other, PEERS * EACH, 0, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGather(data, other, PEERS * EACH, PEERS, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGather(data, other, PEERS * EACH - 1, rank, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGather(data, NULL, PEERS * EACH, rank, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGather(data, data, PEERS * EACH, rank, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGatherV(data, other, PEERS * EACH, rank, wrong, PEERS, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclGatherVAsync(data, other, PEERS * EACH, rank, counts, PEERS, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclScatter(NULL, PEERS * EACH, other, rank, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclScatter(data, EACH + 1, other, rank, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclScatterV(data, PEERS * EACH, other, rank, NULL, PEERS, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllToAll(data, other, &odd, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllToAllV(data, other, EACH, pairs, PEERS, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclAllToAllV(data, other, EACH, pairs, SIZE_MAX, &few, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclExchangeCounts(counts, counts, PEERS - 1, pairs, 20, comm), pcclInvalidArgument);
    EXPECT(pcclExchangeCounts(counts, counts, PEERS, NULL, 20, comm), pcclInvalidArgument);
    EXPECT(pcclExchangeCounts(NULL, counts, PEERS, pairs, 20, comm), pcclInvalidArgument);
    coded.quantization_options.algorithm = pcclQuantMinMax;
    coded.quantization_options.quantized_datatype = pcclUint8;
    EXPECT(pcclAllToAll(data, other, &coded, comm, NULL), pcclInvalidArgument);
}
