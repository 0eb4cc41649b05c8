/* The collectives of a step with their buffers. */
#ifndef TASKS_H
#define TASKS_H

#include "report.h"

typedef struct {
    job_t job;
    /* Buffers to send, and for results, which are the same in place; with their numbers of elements. */
    void *data[PARTS_MAX], *results[PARTS_MAX];
    size_t sent[PARTS_MAX], received[PARTS_MAX];
    uint64_t input_hash, empty_hash, result_hash;
    bool done, launched;
    /* The place that it was prepared for. */
    size_t rank, ranks;
    pcclAsyncReduceOp_t handle;
} task_t;

/* Answer of a question that was asked while all-reduces were in flight; -1: none. */
static int pending = -1;

static uint64_t hash_of(const task_t *task, void *const *buffers, const size_t *counts) {
    checksum_t checksum = {0, 0};
    int i;
    for (i = 0; i < task->job.parts_count; i++)
        checksum_buffer(&checksum, buffers[i], task->job.parts[i].kind, counts[i]);
    return checksum.sum;
}

static uint64_t input_hash(const task_t *task) {
    return hash_of(task, task->data, task->sent);
}

static uint64_t output_hash(const task_t *task) {
    return hash_of(task, task->results, task->received);
}

/* Whether results are on buffers of their own. */
static bool is_out_of_place(const task_t *task) {
    return task->job.parts_count > 0 && task->results[0] != task->data[0];
}

/* Whether what is sent, or worked on in place, is as it was before; and of a reduce-scatter the result, too. */
static bool is_intact(const task_t *task) {
    /* The receive buffer is undefined. */
    if (task->job.collective == RECV)
        return true;
    const bool keeps_results =
        task->job.collective == REDUCE_SCATTER || task->job.collective == REDUCE_SCATTER_COUNTS;
    return input_hash(task) == task->input_hash && (!keeps_results || output_hash(task) == task->empty_hash);
}

static uint64_t own_key(const task_t *task, uint64_t first, int part) {
    uint64_t high = 0, low = 0;
    int i;
    for (i = 0; i < 8; i++) {
        high = high << 8 | me.data[i];
        low = low << 8 | me.data[8 + i];
    }
    {
        const uint64_t key[7] = {workload.seed, first, high, low, revision, task->job.tag, (uint64_t) part};
        return keyed(key, part < 0 ? 6 : 7);
    }
}

/* Elements that go in, and that come out, of a tensor that is divided or not. */
static void size_task(task_t *task) {
    size_t counts[RING_MAX] = {0}, all;
    int i;
    for (i = 0; i < task->job.parts_count; i++)
        task->sent[i] = task->received[i] = task->job.parts[i].count;
    if (!is_split(&task->job))
        return;
    all = counts_of(&task->job, task->ranks, counts);
    if (task->job.collective == ALL_GATHER || task->job.collective == ALL_GATHER_COUNTS) {
        task->sent[0] = counts[task->rank];
        task->received[0] = all;
    } else if (task->job.collective == ALL_TO_ALL) {
        task->sent[0] = task->received[0] = all;
    } else if (task->job.collective == GATHER) {
        task->sent[0] = counts[task->rank];
        task->received[0] = root_of(&task->job, task->ranks) == task->rank ? all : 0;
    } else {
        task->sent[0] = all;
        task->received[0] = counts[task->rank];
    }
}

static task_t prepare(job_t job, const ring_t *ring) {
    task_t task;
    int i;
    memset(&task, 0, sizeof task);
    task.job = job;
    task.ranks = ring->count;
    while (task.rank + 1 < ring->count && memcmp(&ring->peers[task.rank], &me, sizeof me) != 0)
        task.rank++;
    size_task(&task);
    for (i = 0; i < job.parts_count; i++) {
        const size_t size = size_of(job.parts[i].kind);
        uint64_t rng = own_key(&task, 3, i);
        size_t filled;
        task.data[i] = task.results[i] = allocate(task.sent[i] * size);
        fill(task.data[i], job.parts[i].kind, task.sent[i], &rng);
        if (job.collective != ALL_REDUCE ? !is_split(&job) : job.in_place)
            continue;
        /* The own input is no right result of two or more peers, so one that was never written is noticed. */
        task.results[i] = allocate(task.received[i] * size);
        memset(task.results[i], 0, task.received[i] * size);
        for (filled = 0; task.sent[i] > 0 && filled < task.received[i]; filled += task.sent[i]) {
            const size_t left = task.received[i] - filled;
            memcpy((char *) task.results[i] + filled * size, task.data[i],
                   (left < task.sent[i] ? left : task.sent[i]) * size);
        }
    }
    task.input_hash = input_hash(&task);
    task.empty_hash = output_hash(&task);
    return task;
}

static void release(task_t *task) {
    int i;
    for (i = 0; i < task->job.parts_count; i++) {
        if (task->results[i] != task->data[i])
            free(task->results[i]);
        free(task->data[i]);
    }
}

/* Prepares a task anew if it depends on the ring and that is another one. */
static void fit(task_t *task, const ring_t *ring) {
    const bool fits = task->ranks == ring->count && memcmp(&ring->peers[task->rank], &me, sizeof me) == 0;
    if (fits || task->done || !depends_on_ring(&task->job))
        return;
    release(task);
    *task = prepare(task->job, ring);
}

static pcclReduceDescriptor_t describe(const task_t *task, int part) {
    pcclReduceDescriptor_t descriptor;
    memset(&descriptor, 0, sizeof descriptor);
    descriptor.count = task->sent[part];
    descriptor.op = task->job.parts[part].op;
    descriptor.tag = is_between_two(&task->job) ? SEND_TAG : task->job.tag + (uint64_t) part;
    descriptor.src_descriptor.datatype = type_of(task->job.parts[part].kind);
    descriptor.quantization_options.quantized_datatype = pcclUint8;
    descriptor.quantization_options.algorithm = task->job.parts[part].coding;
    return descriptor;
}

/* For the collectives that begin from now on. */
static void choose_schedule(const task_t *task) {
    if (pcclSetSchedule(comm, task->job.schedule) != pcclSuccess)
        die("no schedule");
}

/* Reports the result of a call, right after it, and says how to go on. */
static next_t conclude(task_t *task, const ring_t *before, pcclResult_t result, const pcclReduceInfo_t *info) {
    char tag[32];
    bool unknown;
    if (result == pcclSuccess) {
        if (is_out_of_place(task) && input_hash(task) != task->input_hash)
            die("a success changed the send buffer");
        task->result_hash = output_hash(task);
        task->done = true;
        report_completed("completed", task->job.tag, info->local_world_size,
                       info->schedule == pcclSchedulePairwise ? "pairwise" : "other", task->result_hash, before);
        return GO_ON;
    }
    /* With an unknown outcome the buffer holds the result; the supervisor is told which. */
    unknown = strcmp(pcclGetLastCause(), "OutcomeUnknown") == 0;
    sprintf(tag, "%" PRIu64, task->job.tag);
    report_failed(tag, unknown || is_intact(task));
    if (unknown)
        report_completed("unresolved", task->job.tag, before->count, "-", output_hash(task), before);
    switch (pcclGetLastRemedy()) {
    case pcclRemedyRetry:
        /* Its receiver may be gone; both fail alike, and neither makes it again. */
        task->done = is_between_two(&task->job);
        return GO_ON;
    case pcclRemedyWaitForPeers: return ALONE;
    default: return lost();
    }
}

/* Begins a collective. */
static pcclResult_t launch(task_t *task) {
    const uint32_t root = root_of(&task->job, task->ranks);
    const uint32_t next = (uint32_t) ((task->rank + 1) % task->ranks);
    const uint32_t previous = (uint32_t) ((task->rank + task->ranks - 1) % task->ranks);
    pcclReduceDescriptor_t descriptor = describe(task, 0);
    void *const data = task->data[0], *const result = task->results[0];
    const size_t received = task->received[0];
    size_t counts[RING_MAX];
    uint64_t rng;
    counts_of(&task->job, task->ranks, counts);
    choose_schedule(task);
    switch (task->job.collective) {
    case ALL_REDUCE: return pcclAllReduceAsync(data, result, &descriptor, comm, &task->handle);
    case BROADCAST: return pcclBroadcastAsync(data, root, &descriptor, comm, &task->handle);
    case REDUCE: return pcclReduceAsync(data, root, &descriptor, comm, &task->handle);
    case ALL_GATHER: return pcclAllGatherAsync(data, result, received, &descriptor, comm, &task->handle);
    case ALL_GATHER_COUNTS:
        return pcclAllGatherVAsync(data, result, received, counts, task->ranks, &descriptor, comm, &task->handle);
    case REDUCE_SCATTER: return pcclReduceScatterAsync(data, result, received, &descriptor, comm, &task->handle);
    case REDUCE_SCATTER_COUNTS:
        return pcclReduceScatterVAsync(data, result, received, counts, task->ranks, &descriptor, comm,
                                       &task->handle);
    case WEIGHTED_AVERAGE:
        rng = own_key(task, 7, -1);
        return pcclWeightedAverageAsync(data, (double) between(&rng, 1, 4096) / 16, &descriptor, comm,
                                        &task->handle);
    case ALL_TO_ALL: return pcclAllToAllAsync(data, result, &descriptor, comm, &task->handle);
    case GATHER: return pcclGatherAsync(data, result, received, root, &descriptor, comm, &task->handle);
    case BARRIER: return pcclBarrierAsync(task->job.tag, comm, &task->handle);
    case SEND: return pcclSendAsync(data, next, &descriptor, comm, &task->handle);
    case RECV: return pcclRecvAsync(data, previous, &descriptor, comm, &task->handle);
    }
    die("no such collective");
    return pcclInternalError;
}

/* All that are not done yet, at the same time. */
static next_t run_round(task_t *tasks, bool ask) {
    const ring_t before = get_ring();
    next_t end = GO_ON;
    int i;
    for (i = 0; i < JOBS_MAX; i++) {
        pcclResult_t result;
        if (tasks[i].done)
            continue;
        fit(&tasks[i], &before);
        result = launch(&tasks[i]);
        tasks[i].launched = result == pcclSuccess;
        if (!tasks[i].launched) {
            next_t then = conclude(&tasks[i], &before, result, NULL);
            end = end == RECONNECT || then == GO_ON ? end : then;
        }
    }
    if (ask) {
        bool answer = false;
        if (pcclArePeersPending(comm, &answer) == pcclSuccess)
            pending = answer;
        else
            end = lost();
    }
    for (i = 0; i < JOBS_MAX; i++) {
        pcclReduceInfo_t info;
        pcclResult_t result;
        next_t then;
        if (tasks[i].done || !tasks[i].launched)
            continue;
        result = pcclAwaitAsyncReduce(&tasks[i].handle, &info);
        then = conclude(&tasks[i], &before, result, &info);
        end = end == RECONNECT || then == GO_ON ? end : then;
    }
    return end;
}

/* One operation with many tensors; the library tries again by itself. */
static next_t reduce_many(task_t *task) {
    next_t end = GO_ON;
    while (end == GO_ON && !task->done) {
        const ring_t before = get_ring();
        pcclReduceOpDescriptor_t descriptors[PARTS_MAX];
        pcclReduceInfo_t info;
        pcclResult_t result;
        int i;
        for (i = 0; i < PARTS_MAX; i++) {
            descriptors[i].sendbuf = task->data[i];
            descriptors[i].recvbuf = task->results[i];
            descriptors[i].descriptor = describe(task, i);
        }
        choose_schedule(task);
        result = pcclAllReduceMultipleWithRetry(descriptors, PARTS_MAX, comm, &info, 8);
        end = conclude(task, &before, result, &info);
    }
    return end;
}


#endif
