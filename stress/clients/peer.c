/* A peer of the stress harness that knows the library by its C interface alone: trains as stress/src/peer does, follows
 * the remedy of every failure, and reports each event in one line. */
#define _GNU_SOURCE
#include "state.h"
#include "tasks.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>

static atomic_bool asked_to_leave;
static uint64_t step_ms, groups, optimize_every, pace;

static void *listen_to_supervisor(void *unused) {
    char line[64];
    (void) unused;
    while (fgets(line, sizeof line, stdin) != NULL)
        if (strcmp(line, "leave\n") == 0)
            atomic_store(&asked_to_leave, true);
    _exit(ORPHANED);
}

/* ---- Membership ---------------------------------------------------------------------------------------------- */

static next_t join_run(void) {
    char line[64];
    pcclAhead_t ahead;
    pcclWorld_t world;
    ring_t ring;
    for (;;) {
        if (atomic_load(&asked_to_leave))
            return LEAVE;
        loss_reported = false;
        if (connect_ahead(&ahead) == pcclSuccess)
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
    report_ahead(&ahead);
    return GO_ON;
}

/* Lets in those who wait, and says whether there was anybody. */
static next_t admit(bool *any) {
    *any = pending == 1;
    if (pending < 0 && pcclArePeersPending(comm, any) != pcclSuccess)
        return lost();
    pending = -1;
    return *any && pcclUpdateTopology(comm) != pcclSuccess ? lost() : GO_ON;
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
            bool any;
            next_t then = admit(&any);
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

/* Syncs until that succeeds; again: nothing has changed since the last sync. Says whether this peer has just come with
 * the state. */
static next_t synchronise(bool again, bool *came_ahead) {
    for (;;) {
        const uint64_t before = state_hash();
        if (sync_once(again, came_ahead) == pcclSuccess)
            return GO_ON;
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

static void update(const task_t *tasks) {
    uint64_t noise = 0;
    int i;
    for (i = 0; i <= JOBS_MAX; i++) {
        const collective_t collective = tasks[i].job.collective;
        /* Of these each peer has another result. */
        if (collective != REDUCE && collective != REDUCE_SCATTER && collective != REDUCE_SCATTER_COUNTS &&
            collective != ALL_TO_ALL && collective != GATHER && !is_between_two(&tasks[i].job))
            noise ^= tasks[i].result_hash;
    }
    update_state(tasks[JOBS_MAX].results[0], tasks[JOBS_MAX].job.parts[0].count, noise);
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
    while (then == GO_ON) {
        bool came_ahead, any = true;
        if (atomic_load(&asked_to_leave))
            return LEAVE;
        if ((then = synchronise(false, &came_ahead)) != GO_ON)
            break;
        /* Nobody waits for one that has just come with the state: the others have computed meanwhile. */
        if (!came_ahead && (then = compute(between(&pace, step_ms * 500, step_ms * 1000))) != GO_ON)
            break;
        /* Before the state changes, so that a newcomer holds it. Each sync is followed by this question. */
        while ((then = admit(&any)) == GO_ON && any && (then = synchronise(true, &came_ahead)) == GO_ON)
            ;
        if (then != GO_ON || (then = optimise()) != GO_ON)
            break;
        then = step();
        if (then == ALONE)
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

static void set_number(const char *name, uint64_t value, const char *unit) {
    char text[32];
    snprintf(text, sizeof text, "%llu%s", (unsigned long long) value, unit);
    if (pcclSetOption(comm, name, text) != pcclSuccess)
        die(pcclGetLastError());
}

/* Without a proxy no port is given, and any will do. */
static void set_port(int count, char **arguments, const char *name, const char *option) {
    const char *text = argument(count, arguments, name);
    if (pcclSetOption(comm, option, text == NULL ? "0" : text) != pcclSuccess)
        die(pcclGetLastError());
}

static uint64_t number(int count, char **arguments, const char *name) {
    const char *text = argument(count, arguments, name);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

static void configure(int count, char **arguments) {
    const char *bind = argument(count, arguments, "--bind"), *shown = argument(count, arguments, "--shown");
    const uint64_t index = number(count, arguments, "--index");
    const uint64_t pace_key[3] = {number(count, arguments, "--seed"), 6, index};
    const char *memory = argument(count, arguments, "--state-memory-mib");
    workload.seed = pace_key[0];
    workload.elements = number(count, arguments, "--elements");
    step_ms = number(count, arguments, "--step-ms");
    groups = number(count, arguments, "--groups");
    optimize_every = number(count, arguments, "--optimize-every");
    pace = keyed(pace_key, 3);
    make_state(workload.seed, index, number(count, arguments, "--state-mib"));
    if (pcclInit() != pcclSuccess ||
        pcclCreateCommunicatorByName(argument(count, arguments, "--master"),
                                     (uint32_t) number(count, arguments, "--group"), (uint32_t) (index % 3),
                                     &comm) != pcclSuccess ||
        pcclSetOption(comm, "bind", bind == NULL ? "127.0.0.1" : bind) != pcclSuccess)
        die(pcclGetLastError());
    set_port(count, arguments, "--data-port", "first_p2p_port");
    set_port(count, arguments, "--state-port", "first_state_port");
    /* The neighbour may be stopped: reaching it must have more time than the master needs to drop it. */
    set_number("dial_timeout", number(count, arguments, "--peer-timeout-ms") + 2000, "ms");
    if (memory != NULL)
        set_number("state_memory", strtoull(memory, NULL, 10) << 20, "");
    /* Bits are flipped on the way. */
    if (shown != NULL && (pcclSetOption(comm, "advertised_host", shown) != pcclSuccess ||
                          pcclSetOption(comm, "frame_checksums", "always") != pcclSuccess))
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
