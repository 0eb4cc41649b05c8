/*
 * A peer of this bench that calls the library through its C interface: the commands that `--wan` gives. The bench
 * starts it as it starts itself (`--peer PATH`). Built from the root of the repository, behind
 * `cargo build --release -p pccl-capi`, by
 *
 *     cc -O2 -Iinclude pccl/benches/all_reduce/peer.c -Ltarget/release -lpccl \
 *         -Wl,-rpath,$PWD/target/release -o target/peer
 */
#define _POSIX_C_SOURCE 200809L
#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The bench's numbers of schedules. */
static const pcclSchedule_t SCHEDULES[] = {pcclScheduleAutomatic, pcclScheduleRing, pcclSchedulePairwise,
                                           pcclScheduleSites};

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, pcclGetLastError());
    return 1;
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double) now.tv_sec + (double) now.tv_nsec * 1e-9;
}

/* The value behind an option of the command line, or "". */
static const char *option(int count, char **arguments, const char *name) {
    int i;
    for (i = 1; i + 1 < count; i++)
        if (strcmp(arguments[i], name) == 0)
            return arguments[i + 1];
    return "";
}

/* Sums in place, this number of repetitions, and says how long one took and what it cost the processor. */
static int reduce(pcclComm_t *comm, unsigned schedule, size_t bytes, unsigned repetitions) {
    pcclReduceDescriptor_t descriptor;
    float *data = malloc(bytes);
    size_t i;
    unsigned round;
    double begin, cpu;
    if (data == NULL || schedule >= sizeof SCHEDULES / sizeof *SCHEDULES) {
        fprintf(stderr, "no memory for %zu bytes, or no schedule %u\n", bytes, schedule);
        free(data);
        return 1;
    }
    for (i = 0; i < bytes / sizeof *data; i++)
        data[i] = 1;
    memset(&descriptor, 0, sizeof descriptor);
    descriptor.count = bytes / sizeof *data;
    descriptor.op = pcclSum;
    descriptor.src_descriptor.datatype = pcclFloat;
    descriptor.quantization_options.algorithm = pcclQuantNone;
    if (pcclSetSchedule(comm, SCHEDULES[schedule]) != pcclSuccess)
        return failed("pcclSetSchedule");
    begin = seconds_of(CLOCK_MONOTONIC);
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (round = 0; round < repetitions; round++)
        if (pcclAllReduce(data, data, &descriptor, comm, NULL) != pcclSuccess)
            return failed("pcclAllReduce");
    printf("%.9f %.9f\n", (seconds_of(CLOCK_MONOTONIC) - begin) / repetitions,
           (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu) / repetitions);
    free(data);
    return 0;
}

int main(int count, char **arguments) {
    const char *master = option(count, arguments, "--master");
    const uint32_t peers = (uint32_t) strtoul(option(count, arguments, "--peers"), NULL, 10);
    unsigned a, b, c, d, port, schedule, repetitions;
    pcclCommCreateParams_t params;
    pcclComm_t *comm = NULL;
    size_t bytes;
    char line[256];

    if (sscanf(master, "%u.%u.%u.%u:%u", &a, &b, &c, &d, &port) != 5) {
        fprintf(stderr, "--master IPV4:PORT is missing; the benchmark starts this program, see its --peer\n");
        return 1;
    }
    memset(&params, 0, sizeof params);
    params.master_address.inet.protocol = inetIPv4;
    params.master_address.inet.ipv4.data[0] = (uint8_t) a;
    params.master_address.inet.ipv4.data[1] = (uint8_t) b;
    params.master_address.inet.ipv4.data[2] = (uint8_t) c;
    params.master_address.inet.ipv4.data[3] = (uint8_t) d;
    params.master_address.port = (uint16_t) port;
    params.p2p_connection_pool_size = (uint32_t) strtoul(option(count, arguments, "--pool"), NULL, 10);

    setvbuf(stdout, NULL, _IOLBF, 0);
    /* The port of the plain ring, which this peer does not have, and the neighbour's. */
    puts("0");
    if (fgets(line, sizeof line, stdin) == NULL)
        return 1;
    if (pcclInit() != pcclSuccess || pcclCreateCommunicator(&params, &comm) != pcclSuccess ||
        pcclConnect(comm) != pcclSuccess || pcclWaitForWorld(comm, peers, 60000) != pcclSuccess)
        return failed("connecting");
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "scheduled %u %zu %u", &schedule, &bytes, &repetitions) != 3) {
            fprintf(stderr, "unknown command: %s", line);
            return 1;
        }
        if (reduce(comm, schedule, bytes, repetitions) != 0)
            return 1;
    }
    return pcclDestroyCommunicator(comm) == pcclSuccess ? 0 : 1;
}
