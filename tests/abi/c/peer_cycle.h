/* Scenarios of peer.c with many lives of a communicator. */
#ifndef PEER_CYCLE_H
#define PEER_CYCLE_H

#include "peer_reduces.h"

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
    const struct timespec pause = {0, 10000000};
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
    /* A thread that was joined counts until the kernel has taken it down. */
    for (i = 0; i < 1000 && (status_field("Threads") > threads || descriptors() > open); i++)
        nanosleep(&pause, NULL);
    CHECK(status_field("Threads") <= threads);
    CHECK(descriptors() <= open);
    printf("grew from %ld to %ld KiB\n", memory_kb, status_field("VmRSS"));
    CHECK(status_field("VmRSS") <= memory_kb + 4096);
}

#endif
