/* A peer of the stress harness that knows the library by its C interface alone: trains as stress/src/peer does, follows
 * the remedy of every failure, and reports each event in one line. */
#define _GNU_SOURCE
#include "workload.h"
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define ORPHANED 3

typedef enum { GO_ON, ALONE, LEAVE, RECONNECT } next_t;

typedef struct {
    pcclRankUuid_t peers[RING_MAX];
    size_t count;
} ring_t;

typedef struct {
    job_t job;
    /* What is sent, and where results go, which is the same in place; with their numbers of elements. */
    void *data[PARTS_MAX], *results[PARTS_MAX];
    size_t sent[PARTS_MAX], received[PARTS_MAX];
    uint64_t input_hash, empty_hash, result_hash;
    bool done, launched;
    /* The place that it was prepared for. */
    size_t rank, ranks;
    pcclAsyncReduceOp_t handle;
} task_t;

static atomic_bool asked_to_leave;
static workload_t workload;
static uint64_t step_ms, groups, optimize_every, revision, pace;
static pcclComm_t *comm;
static pcclRankUuid_t me;
static float *weights;
static double *momentum;
static bool loss_reported;
/* Answer of a question that was asked while all-reduces were in flight; -1: none. */
static int pending = -1;

/* ---- Reports ------------------------------------------------------------------------------------------------- */

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000 + (uint64_t) now.tv_nsec / 1000;
}

static void report(const char *event) {
    if (printf("@stress %" PRIu64 " %s\n", now_us(), event) < 0 || fflush(stdout) != 0)
        _exit(ORPHANED);
}

static void die(const char *text) {
    char line[2048];
    snprintf(line, sizeof line, "fatal %s", text);
    report(line);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL)
        die("no memory");
    return memory;
}

/* Writes identities as the harness reads them; returns the end. */
static char *write_peers(char *to, const pcclRankUuid_t *peers, size_t count) {
    size_t i;
    int digit;
    if (count == 0)
        *to++ = '-';
    for (i = 0; i < count; i++) {
        if (i > 0)
            *to++ = ',';
        for (digit = 0; digit < 16; digit++)
            to += sprintf(to, "%02x", peers[i].data[digit]);
    }
    *to = 0;
    return to;
}

static ring_t get_ring(void) {
    ring_t ring;
    if (pcclGetRing(comm, ring.peers, RING_MAX, &ring.count) != pcclSuccess || ring.count > RING_MAX)
        die("no ring");
    return ring;
}

static bool same_ring(const ring_t *a, const ring_t *b) {
    return a->count == b->count && memcmp(a->peers, b->peers, a->count * sizeof a->peers[0]) == 0;
}

static void report_completed(const char *word, uint64_t tag, size_t world, const char *way, uint64_t hash,
                           const ring_t *before) {
    static char line[2 * RING_MAX * 33 + 256];
    ring_t after = get_ring();
    /* The C interface tells no rank. */
    char *end = line + sprintf(line, "%s %" PRIu64 " %" PRIu64 " %zu - %s %016" PRIx64 " ",
                               word, revision, tag, world, way, hash);
    end = write_peers(end, before->peers, before->count);
    *end++ = ' ';
    if (same_ring(before, &after))
        strcpy(end, "=");
    else
        write_peers(end, after.peers, after.count);
    report(line);
}

/* One word for a failed call. The library's word for a drop is the reason for it, which is reported with the loss. */
static const char *failure_word(void) {
    static const char *const words[] = {"MasterLost", "OutcomeUnknown", "NotConnected", "ConnectFailed"};
    const char *cause = pcclGetLastCause();
    size_t i;
    if (pcclGetLastRemedy() != pcclRemedyReconnect)
        return cause;
    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(cause, words[i]) == 0)
            return cause;
    return "Kicked";
}

/* Reports a failure that leaves this peer in the run, as far as the failure goes. */
static void report_failed(const char *call, bool intact) {
    static char line[RING_MAX * 33 + 4096];
    pcclRankUuid_t culprits[RING_MAX];
    size_t count = 0;
    char *end = line + sprintf(line, "failed %s %" PRIu64 " %d %s ", call, revision, intact, failure_word());
    if (pcclGetLastCulprits(culprits, RING_MAX, &count) != pcclSuccess || count > RING_MAX)
        die("no culprits");
    end = write_peers(end, culprits, count);
    snprintf(end, 3000, " %s", pcclGetLastError());
    report(line);
}

/* What to do about a failure that is neither to be retried nor to be waited out. */
static next_t lost(void) {
    char line[4096];
    if (pcclGetLastRemedy() != pcclRemedyReconnect)
        die(pcclGetLastError());
    if (!loss_reported) {
        snprintf(line, sizeof line, "lost %s %s", pcclGetLastCause(), pcclGetLastError());
        report(line);
    }
    loss_reported = true;
    return RECONNECT;
}

static void *listen_to_supervisor(void *unused) {
    char line[64];
    (void) unused;
    while (fgets(line, sizeof line, stdin) != NULL)
        if (strcmp(line, "leave\n") == 0)
            atomic_store(&asked_to_leave, true);
    _exit(ORPHANED);
}

/* ---- Membership ---------------------------------------------------------------------------------------------- */

static void pause_us(uint64_t us) {
    struct timespec time;
    time.tv_sec = (time_t) (us / 1000000);
    time.tv_nsec = (long) (us % 1000000) * 1000;
    nanosleep(&time, NULL);
}

static next_t join_run(void) {
    char line[64];
    pcclWorld_t world;
    ring_t ring;
    for (;;) {
        if (atomic_load(&asked_to_leave))
            return LEAVE;
        loss_reported = false;
        if (pcclConnect(comm) == pcclSuccess)
            break;
        lost();
        pause_us(100000);
    }
    ring = get_ring();
    if (pcclGetWorld(comm, &world) != pcclSuccess || world.rank >= ring.count)
        die("no world");
    me = ring.peers[world.rank];
    pending = -1;
    write_peers(line + sprintf(line, "joined "), &me, 1);
    report(line);
    return GO_ON;
}

/* Lets in those who wait. */
static next_t admit(void) {
    bool answer = pending == 1;
    if (pending < 0 && pcclArePeersPending(comm, &answer) != pcclSuccess)
        return lost();
    pending = -1;
    return answer && pcclUpdateTopology(comm) != pcclSuccess ? lost() : GO_ON;
}

static int size_of_group(void) {
    int size = 0;
    if (pcclGetAttribute(comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, &size) != pcclSuccess)
        die("no size");
    return size;
}

/* Waits until there is another peer in the group. */
static next_t gather(void) {
    while (size_of_group() < 2) {
        pcclResult_t result;
        if (atomic_load(&asked_to_leave))
            return LEAVE;
        if (groups > 1) {
            next_t then = admit();
            if (then != GO_ON)
                return then;
            pause_us(10000);
            continue;
        }
        pending = -1;
        result = pcclWaitForWorld(comm, 2, 500);
        if (result != pcclSuccess && result != pcclTooFewPeers)
            return lost();
    }
    return GO_ON;
}

/* ---- A step -------------------------------------------------------------------------------------------------- */

static uint64_t state_hash(void) {
    checksum_t checksum = {0, 0};
    checksum_buffer(&checksum, weights, KIND_F32, workload.elements);
    checksum_buffer(&checksum, momentum, KIND_F64, workload.elements / 4 + 1);
    return checksum.sum;
}

static next_t synchronise(void) {
    pcclTensorInfo_t tensors[2] = {
        {"weights", weights, workload.elements, pcclFloat, pcclDeviceCpu, false},
        {"momentum", momentum, workload.elements / 4 + 1, pcclDouble, pcclDeviceCpu, false},
    };
    for (;;) {
        pcclSharedState_t state = {revision, 2, tensors};
        pcclSharedStateSyncInfo_t info;
        const uint64_t before = state_hash();
        char line[128];
        if (pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info) ==
            pcclSuccess) {
            revision = state.revision;
            sprintf(line, "synced %" PRIu64 " %016" PRIx64 " %" PRIu64, revision, state_hash(), info.rx_bytes);
            report(line);
            return GO_ON;
        }
        report_failed("sync", state_hash() == before);
        switch (pcclGetLastRemedy()) {
        case pcclRemedyRetry: break;
        case pcclRemedyWaitForPeers: {
            next_t then = gather();
            if (then != GO_ON)
                return then;
            break;
        }
        default: return lost();
        }
    }
}

/* A committed sync has told all peers of the run the same revision, so all decide alike. */
static next_t optimise(void) {
    const uint64_t began = now_us();
    ring_t before, after;
    char line[64];
    if (groups > 1 || optimize_every == 0 || revision % optimize_every != 1 % optimize_every)
        return GO_ON;
    before = get_ring();
    if (before.count < 2)
        return GO_ON;
    if (pcclOptimizeTopology(comm) != pcclSuccess)
        return lost();
    after = get_ring();
    sprintf(line, "optimized %d %" PRIu64, !same_ring(&before, &after), (now_us() - began) / 1000);
    report(line);
    return GO_ON;
}

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
    /* What was to be received is undefined. */
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
        /* Who it is for may be gone; both fail alike, and neither makes it again. */
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

/* Element-wise and deterministic: equal results keep equal states equal. */
static void update(const task_t *tasks) {
    const float *gradient = tasks[JOBS_MAX].results[0];
    const size_t slopes = tasks[JOBS_MAX].job.parts[0].count;
    uint64_t noise = 0;
    size_t i;
    for (i = 0; i <= JOBS_MAX; i++) {
        const collective_t collective = tasks[i].job.collective;
        /* Of these each peer has another result. */
        if (collective != REDUCE && collective != REDUCE_SCATTER && collective != REDUCE_SCATTER_COUNTS &&
            !is_between_two(&tasks[i].job))
            noise ^= tasks[i].result_hash;
    }
    for (i = 0; i < workload.elements; i++)
        weights[i] = weights[i] * 0.9f + gradient[i % slopes];
    for (i = 0; i < workload.elements / 4 + 1; i++) {
        const unsigned turn = i % 64;
        const uint64_t turned = turn == 0 ? noise : noise << turn | noise >> (64 - turn);
        momentum[i] = momentum[i] * 0.5 + (double) (turned >> 32);
    }
    revision++;
}

static next_t step(void) {
    const ring_t ring = get_ring();
    task_t tasks[JOBS_MAX + 1];
    job_t jobs[JOBS_MAX];
    next_t end = GO_ON;
    bool ask = revision % 2 == 0, open = true;
    int i;
    concurrent_jobs(&workload, revision, jobs);
    other_jobs(&workload, revision, jobs + JOBS);
    /* All members know the same ring now, and so who is whose neighbour. */
    pair_jobs(&workload, revision, jobs + JOBS + OTHERS / 2);
    for (i = 0; i < JOBS_MAX; i++) {
        tasks[i] = prepare(jobs[i], &ring);
        tasks[i].done = ring.count < 2 && is_between_two(&jobs[i]);
    }
    tasks[JOBS_MAX] = prepare(many_job(&workload, revision), &ring);
    while (end == GO_ON && open) {
        end = run_round(tasks, ask);
        ask = open = false;
        for (i = 0; i < JOBS_MAX; i++)
            open |= !tasks[i].done;
    }
    if (end == GO_ON)
        end = reduce_many(&tasks[JOBS_MAX]);
    if (end == GO_ON)
        update(tasks);
    for (i = 0; i <= JOBS_MAX; i++)
        release(&tasks[i]);
    return end;
}

static next_t train(void) {
    next_t then = gather();
    /* Whoever has just been let in goes on with the sync, as those do who let it in. */
    bool let_in = true;
    while (then == GO_ON) {
        if (atomic_load(&asked_to_leave))
            return LEAVE;
        if (!let_in && (then = admit()) != GO_ON)
            break;
        if ((then = synchronise()) != GO_ON || (then = optimise()) != GO_ON)
            break;
        pause_us(between(&pace, step_ms * 500, step_ms * 1000));
        then = step();
        let_in = then == ALONE;
        if (let_in)
            then = gather();
    }
    return then;
}

/* ---- Beginning ----------------------------------------------------------------------------------------------- */

static const char *argument(int count, char **arguments, const char *name) {
    int i;
    for (i = 1; i + 1 < count; i += 2)
        if (strcmp(arguments[i], name) == 0)
            return arguments[i + 1];
    return NULL;
}

static uint64_t number(int count, char **arguments, const char *name) {
    const char *text = argument(count, arguments, name);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

static void configure(int count, char **arguments) {
    const char *bind = argument(count, arguments, "--bind"), *shown = argument(count, arguments, "--shown");
    const uint64_t index = number(count, arguments, "--index");
    const uint64_t initial_key[2] = {number(count, arguments, "--seed"), 4};
    const uint64_t pace_key[3] = {initial_key[0], 6, index};
    uint64_t initial = keyed(initial_key, 2);
    workload.seed = initial_key[0];
    workload.elements = number(count, arguments, "--elements");
    step_ms = number(count, arguments, "--step-ms");
    groups = number(count, arguments, "--groups");
    optimize_every = number(count, arguments, "--optimize-every");
    pace = keyed(pace_key, 3);
    weights = allocate(workload.elements * sizeof *weights);
    momentum = allocate((workload.elements / 4 + 1) * sizeof *momentum);
    fill(weights, KIND_F32, workload.elements, &initial);
    fill(momentum, KIND_F64, workload.elements / 4 + 1, &initial);
    if (pcclInit() != pcclSuccess ||
        pcclCreateCommunicatorByName(argument(count, arguments, "--master"),
                                     (uint32_t) number(count, arguments, "--group"), (uint32_t) (index % 3),
                                     &comm) != pcclSuccess ||
        pcclSetBindAddress(comm, bind == NULL ? "127.0.0.1" : bind) != pcclSuccess ||
        pcclSetFirstPorts(comm, (uint16_t) number(count, arguments, "--data-port"),
                          (uint16_t) number(count, arguments, "--state-port")) != pcclSuccess ||
        /* The neighbour may be stopped: reaching it must have more time than the master needs to drop it. */
        pcclSetTimeout(comm, pcclTimeoutDial, number(count, arguments, "--peer-timeout-ms") + 2000) != pcclSuccess)
        die(pcclGetLastError());
    /* Bits are flipped on the way. */
    if (shown != NULL && (pcclSetAdvertisedHost(comm, shown) != pcclSuccess ||
                          pcclSetFrameChecksums(comm, pcclFrameChecksumsAlways) != pcclSuccess))
        die(pcclGetLastError());
}

int main(int count, char **arguments) {
    pthread_t listener;
    /* Also when this process is stopped, it does not outlive its supervisor. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() == 1)
        return ORPHANED;
    configure(count, arguments);
    if (pthread_create(&listener, NULL, listen_to_supervisor, NULL) != 0)
        die("no thread");
    for (;;) {
        next_t then = join_run();
        if (then == GO_ON)
            then = train();
        if (then == LEAVE)
            break;
    }
    if (pcclClose(comm) != pcclSuccess)
        die(pcclGetLastError());
    report("left");
    return pcclDestroyCommunicator(comm) == pcclSuccess ? 0 : 1;
}
