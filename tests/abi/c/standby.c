/* Three peers, and a standby inside their process: their master is killed, and the standby goes on in its place. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PEERS 3
#define COUNT 1000

/* Runs a master in a process of its own, and returns its port. */
static pid_t start_master(uint16_t *port) {
    int ends[2];
    pid_t process;
    CHECK(pipe(ends) == 0);
    process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        pcclMasterInstance_t *master = NULL;
        EXPECT(pcclCreateMasterByName("127.0.0.1:0", &master), pcclSuccess);
        EXPECT(pcclMasterSetOption(master, "accept_standbys", "true"), pcclSuccess);
        EXPECT(pcclRunMaster(master), pcclSuccess);
        EXPECT(pcclMasterGetPort(master, port), pcclSuccess);
        CHECK(write(ends[1], port, sizeof *port) == (ssize_t) sizeof *port);
        EXPECT(pcclMasterAwaitTermination(master), pcclSuccess);
        exit(0);
    }
    CHECK(read(ends[0], port, sizeof *port) == (ssize_t) sizeof *port);
    return process;
}

/* As the status says: whether the master of this peer is of this term, and has that many who stand by for it. */
static bool leads(const pcclComm_t *comm, const char *term, bool has_standby) {
    static char status[1 << 16];
    size_t length = 0;
    EXPECT(pcclGetStatus(comm, false, status, sizeof status, &length), pcclSuccess);
    return strstr(status, term) != NULL && (strstr(status, "standbys: 127.0.0.1:") != NULL) == has_standby;
}

static char masters[64];

static pcclComm_t *create_by_list(void) {
    pcclComm_t *comm = NULL;
    EXPECT(pcclCreateCommunicatorByName(masters, 0, 1, &comm), pcclSuccess);
    EXPECT(pcclSetOption(comm, "first_p2p_port", "0"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "first_state_port", "0"), pcclSuccess);
    return comm;
}

static pthread_barrier_t barrier;
static pid_t acting;

static void reduce(const pcclComm_t *comm, uint64_t tag) {
    float values[COUNT];
    size_t i;
    pcclReduceInfo_t info;
    const pcclReduceDescriptor_t descriptor = describe(COUNT, pcclFloat, pcclSum, tag);
    for (i = 0; i < COUNT; i++)
        values[i] = 1;
    EXPECT(pcclAllReduce(values, values, &descriptor, comm, &info), pcclSuccess);
    CHECK(info.local_world_size == PEERS);
    for (i = 0; i < COUNT; i++)
        CHECK(values[i] == PEERS);
}

static void *peer(void *number) {
    const bool is_first = *(int *) number == 0;
    pcclComm_t *comm = create_by_list();
    EXPECT(pcclConnect(comm), pcclSuccess);
    EXPECT(pcclWaitForWorld(comm, PEERS, PCCL_NO_TIMEOUT), pcclSuccess);
    reduce(comm, 1);
    pthread_barrier_wait(&barrier);
    if (is_first) {
        const struct timespec moment = {0, 1000000};
        while (!leads(comm, "master of term 0", true))
            nanosleep(&moment, NULL);
        CHECK(kill(acting, SIGKILL) == 0);
    }
    pthread_barrier_wait(&barrier);
    reduce(comm, 2);
    CHECK(leads(comm, "master of term 1", false));
    pthread_barrier_wait(&barrier);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    return NULL;
}

int main(void) {
    pcclMasterInstance_t *standby = NULL;
    pthread_t threads[PEERS];
    int numbers[PEERS], i;
    uint16_t port = 0, own = 0;
    char place[32];
    acting = start_master(&port);
    EXPECT(pcclInit(), pcclSuccess);
    snprintf(place, sizeof place, "127.0.0.1:%u", (unsigned) port);
    EXPECT(pcclCreateMasterByName("127.0.0.1:0", &standby), pcclSuccess);
    EXPECT(pcclMasterSetOption(standby, "standby_of", place), pcclSuccess);
    EXPECT(pcclMasterSetOption(standby, "advertised_host", "127.0.0.1"), pcclSuccess);
    EXPECT(pcclRunMaster(standby), pcclSuccess);
    EXPECT(pcclMasterGetPort(standby, &own), pcclSuccess);
    /* A list in which the first place is the one that does not act. */
    snprintf(masters, sizeof masters, "127.0.0.1:%u,%s", (unsigned) own, place);
    CHECK(pthread_barrier_init(&barrier, NULL, PEERS) == 0);
    for (i = 0; i < PEERS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, peer, &numbers[i]) == 0);
    }
    for (i = 0; i < PEERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(waitpid(acting, NULL, 0) == acting);
    EXPECT(pcclInterruptMaster(standby), pcclSuccess);
    EXPECT(pcclMasterAwaitTermination(standby), pcclSuccess);
    EXPECT(pcclDestroyMaster(standby), pcclSuccess);
    return 0;
}
