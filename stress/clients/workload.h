/* The workload of peers, as stress/src/workload.rs has it: pure functions of the seed. Bits count, so nothing here may
 * be contracted or reordered by the compiler. */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <pccl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MANY_TAG 100
#define PARTS_MAX 3
#define JOBS 6
/* Tags of the collectives beside all-reduces, of which each step has every other one. */
#define OTHER_TAG 11
#define OTHERS 10
/* The data to the next rank, and from the previous one, in reports. The calls have the first of them. */
#define SEND_TAG 21
#define RECV_TAG 22
#define PAIRS 2
#define JOBS_MAX (JOBS + OTHERS / 2 + PAIRS)
#define RING_MAX 64
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

typedef enum { KIND_F16, KIND_F32, KIND_F64, KIND_I64, KIND_U8 } kind_t;

typedef struct {
    kind_t kind;
    pcclRedOp_t op;
    size_t count;
    pcclQuantizationAlgorithm_t coding;
} part_t;

typedef enum {
    ALL_REDUCE, BROADCAST, ALL_GATHER, ALL_GATHER_COUNTS, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_COUNTS,
    WEIGHTED_AVERAGE, ALL_TO_ALL, GATHER, BARRIER, SEND, RECV
} collective_t;

typedef struct {
    uint64_t tag;
    collective_t collective;
    /* The rank whose turn it is to be root, and the count that each has. */
    uint64_t turn;
    bool in_place;
    pcclSchedule_t schedule;
    int parts_count;
    part_t parts[PARTS_MAX];
} job_t;

typedef struct {
    uint64_t seed;
    uint64_t elements;
} workload_t;

/* ---- Random numbers: SplitMix64 ------------------------------------------------------------------------------ */

static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t next(uint64_t *rng) {
    *rng += GOLDEN;
    return mix(*rng);
}

static inline uint64_t keyed(const uint64_t *parts, int count) {
    uint64_t state = 0x5eed;
    int i;
    for (i = 0; i < count; i++) {
        state ^= parts[i];
        state = next(&state);
    }
    return state;
}

static inline uint64_t between(uint64_t *rng, uint64_t low, uint64_t high) {
    return low + next(rng) % (high - low + 1);
}

/* ---- Elements ------------------------------------------------------------------------------------------------ */

static inline size_t size_of(kind_t kind) {
    static const size_t sizes[5] = {2, 4, 8, 8, 1};
    return sizes[kind];
}

static inline pcclDataType_t type_of(kind_t kind) {
    static const pcclDataType_t types[5] = {pcclFloat16, pcclFloat, pcclDouble, pcclInt64, pcclUint8};
    return types[kind];
}

/* Rounds to the nearest float16, ties to even. Of magnitudes between 2^-8 and 2^9, which all are normal. */
static inline uint16_t half_of(float value) {
    uint32_t bits, magnitude;
    memcpy(&bits, &value, 4);
    magnitude = bits & UINT32_C(0x7fffffff);
    magnitude += UINT32_C(0xfff) + (magnitude >> 13 & 1);
    return (uint16_t) ((bits >> 16 & 0x8000) | ((magnitude >> 13) - ((127 - 15) << 10)));
}

static inline double random_float(uint64_t bits) {
    double fraction = 1.0 + (double) (bits >> 40) / 16777216.0;
    double magnitude = ldexp(fraction, (int) (bits & 15) - 8);
    return bits & 16 ? -magnitude : magnitude;
}

static inline void fill(void *data, kind_t kind, size_t count, uint64_t *rng) {
    size_t i;
    for (i = 0; i < count; i++) {
        uint64_t bits = next(rng);
        switch (kind) {
        case KIND_F16: ((uint16_t *) data)[i] = half_of((float) random_float(bits)); break;
        case KIND_F32: ((float *) data)[i] = (float) random_float(bits); break;
        case KIND_F64: ((double *) data)[i] = random_float(bits); break;
        case KIND_I64: ((uint64_t *) data)[i] = bits; break;
        case KIND_U8: ((uint8_t *) data)[i] = (uint8_t) (bits >> 7); break;
        }
    }
}

/* ---- Checksums: each element is mixed with its position, and all are added ----------------------------------- */

typedef struct {
    uint64_t sum, count;
} checksum_t;

static inline void checksum_add(checksum_t *checksum, uint64_t bits) {
    checksum->count++;
    checksum->sum += mix(bits + checksum->count * GOLDEN);
}

static inline void checksum_buffer(checksum_t *checksum, const void *data, kind_t kind, size_t count) {
    size_t i, size = size_of(kind);
    checksum_add(checksum, count);
    for (i = 0; i < count; i++) {
        const unsigned char *at = (const unsigned char *) data + i * size;
        uint16_t two;
        uint32_t four;
        uint64_t bits = *at;
        if (size == 2) {
            memcpy(&two, at, 2);
            bits = two;
        } else if (size == 4) {
            memcpy(&four, at, 4);
            bits = four;
        } else if (size == 8) {
            memcpy(&bits, at, 8);
        }
        checksum_add(checksum, bits);
    }
}

/* ---- Jobs ---------------------------------------------------------------------------------------------------- */

static inline size_t draw_size(const workload_t *workload, uint64_t *rng, uint64_t share) {
    uint64_t most = workload->elements / share, size;
    most = most > 0 ? most : 1;
    if (next(rng) % 8 == 0)
        size = between(rng, 1, most < 9 ? most : 9);
    else
        size = between(rng, most / 2 + 1, most);
    return size < most ? size : most;
}

static inline job_t all_reduce(uint64_t step, uint64_t tag, bool in_place) {
    job_t job;
    memset(&job, 0, sizeof job);
    job.tag = tag;
    job.turn = step + tag;
    job.in_place = in_place;
    job.schedule = (step / 4 + tag) % 2 == 0 ? pcclSchedulePairwise : pcclScheduleAutomatic;
    return job;
}

static inline job_t single(const workload_t *workload, uint64_t step, uint64_t *rng, uint64_t tag, bool in_place,
                           kind_t kind, pcclRedOp_t op, uint64_t share) {
    job_t job = all_reduce(step, tag, in_place);
    job.parts_count = 1;
    job.parts[0].kind = kind;
    job.parts[0].op = op;
    job.parts[0].count = draw_size(workload, rng, share);
    job.parts[0].coding = pcclQuantNone;
    return job;
}

static const pcclQuantizationAlgorithm_t CODINGS[4] = {pcclQuantBlockAffineUint8, pcclQuantMinMax,
                                                       pcclQuantCastBFloat16, pcclQuantNone};

static inline void concurrent_jobs(const workload_t *workload, uint64_t step, job_t jobs[JOBS]) {
    static const pcclRedOp_t integer_ops[4] = {pcclSum, pcclProd, pcclMax, pcclMin};
    const uint64_t parts[3] = {workload->seed, 1, step};
    const pcclRedOp_t integer_op = integer_ops[step % 4];
    uint64_t rng = keyed(parts, 3);
    jobs[0] = single(workload, step, &rng, 1, true, KIND_F32, pcclSum, 1);
    jobs[1] = single(workload, step, &rng, 2, false, KIND_F64, pcclAvg, 2);
    jobs[2] = single(workload, step, &rng, 3, true, KIND_I64, integer_op, 4);
    jobs[3] = single(workload, step, &rng, 4, false, KIND_U8, integer_op, 4);
    jobs[4] = single(workload, step, &rng, 5, true, KIND_F16, step % 2 == 0 ? pcclAvg : pcclSum, 8);
    jobs[5] = single(workload, step, &rng, 6, step % 4 == 0, KIND_F32, step % 2 == 0 ? pcclSum : pcclAvg, 1);
    jobs[5].parts[0].coding = CODINGS[step % 3];
}

static inline job_t many_job(const workload_t *workload, uint64_t step) {
    static const kind_t kinds[PARTS_MAX] = {KIND_F32, KIND_I64, KIND_F64};
    static const pcclRedOp_t ops[PARTS_MAX] = {pcclAvg, pcclSum, pcclMin};
    static const uint64_t shares[PARTS_MAX] = {2, 8, 8};
    const uint64_t parts[4] = {workload->seed, 2, step, MANY_TAG};
    uint64_t rng = keyed(parts, 4);
    job_t job = all_reduce(step, MANY_TAG, (step + MANY_TAG) % 3 == 0);
    int i;
    job.parts_count = PARTS_MAX;
    for (i = 0; i < PARTS_MAX; i++) {
        job.parts[i].kind = kinds[i];
        job.parts[i].op = ops[i];
        job.parts[i].count = draw_size(workload, &rng, shares[i]);
        job.parts[i].coding = pcclQuantNone;
    }
    job.parts[0].coding = CODINGS[(step + MANY_TAG) % 4];
    return job;
}

/* The collectives of a step beside all-reduces. */
static inline void other_jobs(const workload_t *workload, uint64_t step, job_t jobs[OTHERS / 2]) {
    static const collective_t collectives[OTHERS] = {
        BROADCAST, ALL_GATHER, ALL_GATHER_COUNTS, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_COUNTS,
        WEIGHTED_AVERAGE, ALL_TO_ALL, GATHER, BARRIER};
    static const kind_t kinds[OTHERS] = {KIND_F32, KIND_F16, KIND_F32, KIND_F32, KIND_F64, KIND_F32, KIND_F32,
                                         KIND_I64, KIND_U8, KIND_U8};
    static const kind_t weighted[5] = {KIND_F32, KIND_F64, KIND_F32, KIND_F16, KIND_F32};
    static const uint64_t shares[OTHERS] = {4, 16, 16, 4, 16, 16, 4, 16, 16, 16};
    static const pcclSchedule_t schedules[3] = {pcclSchedulePairwise, pcclScheduleRing, pcclScheduleAutomatic};
    const uint64_t parts[3] = {workload->seed, 8, step}, turn = step / 2;
    uint64_t rng = keyed(parts, 3);
    int i, count = 0;
    for (i = 0; i < OTHERS; i++) {
        const uint64_t tag = OTHER_TAG + (uint64_t) i;
        const size_t size = draw_size(workload, &rng, shares[i]);
        job_t job;
        memset(&job, 0, sizeof job);
        job.tag = tag;
        job.collective = collectives[i];
        job.turn = step + tag;
        job.in_place = true;
        job.schedule = schedules[(step / 4 + tag) % 3];
        job.parts_count = job.collective == BARRIER ? 0 : 1;
        job.parts[0].kind = job.collective == WEIGHTED_AVERAGE ? weighted[turn % 5] : kinds[i];
        job.parts[0].op = turn % 2 == 0 ? pcclAvg : pcclSum;
        job.parts[0].count = size;
        job.parts[0].coding = job.parts[0].kind == KIND_F32 ? CODINGS[(turn + tag) % 4] : pcclQuantNone;
        if (job.turn % 2 == 0)
            jobs[count++] = job;
    }
}

/* The data around the ring of the beginning of a step, each between two. */
static inline void pair_jobs(const workload_t *workload, uint64_t step, job_t jobs[PAIRS]) {
    static const kind_t kinds[5] = {KIND_F32, KIND_U8, KIND_F16, KIND_F64, KIND_I64};
    const uint64_t parts[3] = {workload->seed, 9, step};
    uint64_t rng = keyed(parts, 3);
    const size_t size = draw_size(workload, &rng, 8);
    int i;
    for (i = 0; i < PAIRS; i++) {
        memset(&jobs[i], 0, sizeof jobs[i]);
        jobs[i].tag = i == 0 ? SEND_TAG : RECV_TAG;
        jobs[i].collective = i == 0 ? SEND : RECV;
        jobs[i].turn = step;
        jobs[i].in_place = true;
        jobs[i].schedule = pcclScheduleAutomatic;
        jobs[i].parts_count = 1;
        jobs[i].parts[0].kind = kinds[step % 5];
        jobs[i].parts[0].op = pcclSum;
        jobs[i].parts[0].count = size;
        jobs[i].parts[0].coding = pcclQuantNone;
    }
}

static inline bool is_between_two(const job_t *job) {
    return job->collective == SEND || job->collective == RECV;
}

static inline bool is_split(const job_t *job) {
    return job->collective == ALL_GATHER || job->collective == ALL_GATHER_COUNTS ||
           job->collective == REDUCE_SCATTER || job->collective == REDUCE_SCATTER_COUNTS ||
           job->collective == ALL_TO_ALL || job->collective == GATHER;
}

/* Whether the call depends on who is in the ring. */
static inline bool depends_on_ring(const job_t *job) {
    return is_split(job) || job->collective == BROADCAST || job->collective == REDUCE;
}

static inline uint32_t root_of(const job_t *job, size_t ranks) {
    return (uint32_t) (job->turn % (ranks > 0 ? ranks : 1));
}

/* Elements of each rank, of a tensor that is divided; returns their sum. */
static inline size_t counts_of(const job_t *job, size_t ranks, size_t counts[RING_MAX]) {
    const bool differ = job->collective == ALL_GATHER_COUNTS || job->collective == REDUCE_SCATTER_COUNTS;
    size_t rank, sum = 0;
    for (rank = 0; rank < ranks; rank++) {
        const size_t count = job->parts[0].count;
        counts[rank] = differ ? (count * ((rank + job->turn) % 3) + 1) / 2 : count;
        sum += counts[rank];
    }
    return sum;
}

#endif
