/* The shared state: it is fetched while this peer waits to be let in, synced, and lent while it computes. */
#ifndef STATE_H
#define STATE_H

#include "report.h"

#define TENSORS_MAX 3
/* Elements of a MiB. */
#define MIB ((1 << 20) / sizeof(uint64_t))
/* One peer of this number lends a copy, which stands until the state has changed. */
#define COPIES 3

static float *weights;
static double *momentum;
/* Large, if it is there: each step changes some MiBs of it. */
static uint64_t *ballast;
static size_t ballast_count;
static bool lends_copies;

typedef struct {
    pcclTensorInfo_t tensors[TENSORS_MAX];
    pcclUnchanged_t unchanged[TENSORS_MAX];
    pcclSharedState_t state;
} description_t;

static void make_state(uint64_t seed, uint64_t index, uint64_t mib) {
    const uint64_t initial_key[2] = {seed, 4};
    uint64_t initial = keyed(initial_key, 2);
    lends_copies = index % COPIES == 0;
    ballast_count = mib * MIB;
    weights = allocate(workload.elements * sizeof *weights);
    momentum = allocate((workload.elements / 4 + 1) * sizeof *momentum);
    ballast = allocate(ballast_count * sizeof *ballast);
    fill(weights, KIND_F32, workload.elements, &initial);
    fill(momentum, KIND_F64, workload.elements / 4 + 1, &initial);
    fill(ballast, KIND_I64, ballast_count, &initial);
}

static uint64_t state_hash(void) {
    checksum_t checksum = {0, 0};
    checksum_buffer(&checksum, weights, KIND_F32, workload.elements);
    checksum_buffer(&checksum, momentum, KIND_F64, workload.elements / 4 + 1);
    if (ballast_count > 0)
        checksum_buffer(&checksum, ballast, KIND_I64, ballast_count);
    return checksum.sum;
}

static void describe_state(description_t *it) {
    const pcclTensorInfo_t tensors[TENSORS_MAX] = {
        {"weights", weights, workload.elements, pcclFloat, pcclDeviceCpu, false},
        {"momentum", momentum, workload.elements / 4 + 1, pcclDouble, pcclDeviceCpu, false},
        {"ballast", ballast, ballast_count, pcclInt64, pcclDeviceCpu, false},
    };
    size_t i;
    memcpy(it->tensors, tensors, sizeof tensors);
    it->state.revision = revision;
    it->state.count = ballast_count > 0 ? TENSORS_MAX : TENSORS_MAX - 1;
    it->state.infos = it->tensors;
    for (i = 0; i < TENSORS_MAX; i++) {
        it->unchanged[i].name = tensors[i].name;
        it->unchanged[i].revision = revision;
    }
}

/* Joins the run, and fetches its state as far as others lend it. */
static pcclResult_t connect_ahead(pcclAhead_t *ahead) {
    description_t it;
    pcclResult_t result;
    describe_state(&it);
    result = pcclConnectWithState(comm, &it.state, PCCL_DEFAULT_TIMEOUT, NULL, NULL, ahead);
    if (result == pcclSuccess && ahead->has_revision)
        revision = it.state.revision;
    return result;
}

static void report_ahead(const pcclAhead_t *ahead) {
    char line[128];
    if (ahead->has_revision)
        sprintf(line, "ahead %" PRIu64 " %016" PRIx64 " %" PRIu64, ahead->revision, state_hash(), ahead->rx_bytes);
    else
        sprintf(line, "ahead - %" PRIu64, ahead->rx_bytes);
    report(line);
}

/* Syncs once; again: nothing has changed since the last sync. */
static pcclResult_t sync_once(bool again, bool *came_ahead) {
    description_t it;
    pcclSyncOptions_t options;
    pcclSyncInfo_t info;
    pcclResult_t result;
    char line[128];
    describe_state(&it);
    memset(&options, 0, sizeof options);
    options.strategy = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    options.unchanged = it.unchanged;
    options.unchanged_count = again ? it.state.count : 0;
    result = pcclSyncSharedState(comm, &it.state, &options, &info);
    if (result == pcclSuccess) {
        revision = it.state.revision;
        *came_ahead = info.came_ahead;
        sprintf(line, "synced %" PRIu64 " %016" PRIx64 " %" PRIu64, revision, state_hash(), info.rx_bytes);
        report(line);
    }
    return result;
}

/* The time that training spends on other things. Newcomers fetch the state meanwhile. */
static next_t compute(uint64_t us) {
    description_t it;
    uint64_t loan = 0;
    describe_state(&it);
    if (lends_copies ? pcclLendSharedStateSnapshot(comm, &it.state, true) != pcclSuccess
                     : pcclLendSharedState(comm, &it.state, true, &loan) != pcclSuccess)
        return lost();
    pause_us(us);
    if (!lends_copies && pcclReclaimSharedState(comm, loan) != pcclSuccess)
        return lost();
    return GO_ON;
}

/* An eighth of the MiBs, chosen by noise. */
static void change_some(uint64_t noise) {
    size_t number, i;
    for (number = 0; number < ballast_count / MIB; number++) {
        const uint64_t draw = mix(noise ^ mix(number));
        for (i = 0; draw % 8 == 0 && i < MIB; i += 1000)
            ballast[number * MIB + i] += draw;
    }
}

/* Element-wise and deterministic: equal results keep equal states equal. */
static void update_state(const float *gradient, size_t slopes, uint64_t noise) {
    size_t i;
    for (i = 0; i < workload.elements; i++)
        weights[i] = weights[i] * 0.9f + gradient[i % slopes];
    for (i = 0; i < workload.elements / 4 + 1; i++) {
        const unsigned turn = i % 64;
        const uint64_t turned = turn == 0 ? noise : noise << turn | noise >> (64 - turn);
        momentum[i] = momentum[i] * 0.5 + (double) (turned >> 32);
    }
    change_some(noise ^ revision);
    revision++;
}

#endif
