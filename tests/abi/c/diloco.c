/* A run of two members of pccl_diloco.h, with one vector and with fragments, and what is refused. */
#include "check.h"

#include <pccl_diloco.h>
#include <pthread.h>

enum { COUNT = 1000, STEPS = 60 };

static uint16_t port;
static float ends[2][COUNT];

static pcclComm_t *communicator(void) {
    pcclComm_t *comm = create(port);
    EXPECT(pcclSetOption(comm, "first_p2p_port", "0"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "first_state_port", "0"), pcclSuccess);
    return comm;
}

static pcclDiloco_t *member(pcclComm_t *comm) {
    pcclDiloco_t *diloco = NULL;
    EXPECT(pcclDilocoCreate(comm, &diloco), pcclSuccess);
    EXPECT(pcclDilocoSet(diloco, "every", "6"), pcclSuccess);
    EXPECT(pcclDilocoSet(diloco, "fragment_lengths", "300,700"), pcclSuccess);
    EXPECT(pcclDilocoSet(diloco, "overlap", "1"), pcclSuccess);
    EXPECT(pcclDilocoSet(diloco, "compression", "int8"), pcclSuccess);
    return diloco;
}

/* The work of pcclDilocoStep, part by part. */
static void step(pcclDiloco_t *diloco, float *parameters) {
    pcclDilocoAction_t action = pcclDilocoNothing;
    uint64_t fragment = 0;
    EXPECT(pcclDilocoCount(diloco, 1), pcclSuccess);
    for (;;) {
        EXPECT(pcclDilocoNext(diloco, &action, &fragment), pcclSuccess);
        if (action == pcclDilocoNothing)
            return;
        CHECK(fragment < 2);
        float *begin = parameters + (fragment ? 300 : 0);
        const uint64_t count = fragment ? 700 : 300;
        if (action == pcclDilocoHandIn)
            EXPECT(pcclDilocoContribute(diloco, fragment, begin, count), pcclSuccess);
        else
            EXPECT(pcclDilocoLand(diloco, fragment, begin, count), pcclSuccess);
    }
}

static void *train(void *number) {
    const int which = *(const int *) number;
    float *parameters = ends[which];
    uint64_t index = 0;
    char report[512];
    size_t length = 0;
    pcclDilocoStats_t stats;
    for (int at = 0; at < COUNT; at++)
        parameters[at] = (float) which;
    pcclComm_t *comm = communicator();
    pcclDiloco_t *diloco = member(comm);
    EXPECT(pcclDilocoJoin(diloco, parameters, COUNT), pcclSuccess);
    EXPECT(pcclDilocoJoin(diloco, parameters, COUNT), pcclInvalidUsage);
    EXPECT(pcclDilocoSet(diloco, "every", "8"), pcclInvalidUsage);
    EXPECT(pcclDilocoStep(diloco, parameters, COUNT - 1, 1), pcclInvalidArgument);
    EXPECT(pcclDilocoStep(diloco, parameters, COUNT, -1), pcclInvalidArgument);
    EXPECT(pcclDilocoLand(diloco, 2, parameters, 300), pcclInvalidArgument);
    EXPECT(pcclDilocoContribute(diloco, 0, parameters, 299), pcclInvalidArgument);
    while (index < STEPS) {
        for (int at = 0; at < COUNT; at++)
            parameters[at] += 0.1F * ((float) (which + 3) - parameters[at]);
        if (which)
            EXPECT(pcclDilocoStep(diloco, parameters, COUNT, 1), pcclSuccess);
        else
            step(diloco, parameters);
        EXPECT(pcclDilocoGetStepIndex(diloco, &index), pcclSuccess);
    }
    EXPECT(pcclDilocoFinish(diloco, parameters, COUNT, UINT64_MAX), pcclSuccess);
    EXPECT(pcclDilocoGetStats(diloco, &stats), pcclSuccess);
    CHECK(stats.rounds == STEPS / 3 && stats.contributed == STEPS / 3 && stats.members == 2);
    CHECK(stats.sent_bytes > 0 && stats.plain_bytes > 3 * stats.sent_bytes);
    EXPECT(pcclDilocoTakeReport(diloco, NULL, 0, &length), pcclSuccess);
    CHECK(length > 0 && length < sizeof report);
    EXPECT(pcclDilocoTakeReport(diloco, report, sizeof report, &length), pcclSuccess);
    CHECK(strstr(report, "round 0 | fragment 0 | 2 contributors") == report);
    EXPECT(pcclDilocoDestroy(diloco), pcclSuccess);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    return NULL;
}

static void arguments(void) {
    pcclComm_t *comm = communicator();
    pcclDiloco_t *diloco = NULL;
    float parameters[4] = {0, 0, 0, 0};
    uint64_t index = 0;
    EXPECT(pcclDilocoCreate(NULL, &diloco), pcclInvalidArgument);
    EXPECT(pcclDilocoCreate(comm, NULL), pcclInvalidArgument);
    EXPECT(pcclDilocoCreate(comm, &diloco), pcclSuccess);
    EXPECT(pcclDilocoSet(diloco, "quickly", "yes"), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "fragment_lengths") != NULL);
    EXPECT(pcclDilocoSet(diloco, "every", NULL), pcclInvalidArgument);
    EXPECT(pcclDilocoSet(diloco, "every", "often"), pcclInvalidArgument);
    EXPECT(pcclDilocoStep(diloco, parameters, 4, 1), pcclInvalidUsage);
    EXPECT(pcclDilocoGetStepIndex(diloco, &index), pcclInvalidUsage);
    EXPECT(pcclDilocoJoin(diloco, NULL, 4), pcclInvalidArgument);
    EXPECT(pcclDilocoJoin(diloco, (float *) ((char *) parameters + 1), 3), pcclInvalidArgument);
    EXPECT(pcclDilocoSet(diloco, "fragments", "3"), pcclSuccess);
    EXPECT(pcclDilocoJoin(diloco, parameters, 4), pcclInvalidArgument);
    CHECK(strstr(pcclGetLastError(), "every 100 with 3 fragments") != NULL);
    EXPECT(pcclDilocoDestroy(diloco), pcclSuccess);
    EXPECT(pcclDilocoDestroy(diloco), pcclInvalidArgument);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
}

int main(void) {
    pcclMasterInstance_t *master = NULL;
    pthread_t threads[2];
    int numbers[2] = {0, 1};
    EXPECT(pcclInit(), pcclSuccess);
    EXPECT(pcclCreateMasterByName("127.0.0.1:0", &master), pcclSuccess);
    EXPECT(pcclRunMaster(master), pcclSuccess);
    EXPECT(pcclMasterGetPort(master, &port), pcclSuccess);
    arguments();
    for (int at = 0; at < 2; at++)
        CHECK(pthread_create(&threads[at], NULL, train, &numbers[at]) == 0);
    for (int at = 0; at < 2; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK(memcmp(ends[0], ends[1], sizeof ends[0]) == 0);
    CHECK(ends[0][0] > 2.5F && ends[0][0] < 4.5F);
    EXPECT(pcclInterruptMaster(master), pcclSuccess);
    EXPECT(pcclMasterAwaitTermination(master), pcclSuccess);
    EXPECT(pcclDestroyMaster(master), pcclSuccess);
    return 0;
}
