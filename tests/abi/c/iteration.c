/* A global iteration over a store in this process: two members, what is refused, and one that is fenced. */
#include "check.h"

#include <pccl.h>
#include <pthread.h>

static char address[32];

static pcclIteration_t *member(const char *id, const char *run, uint32_t world_size) {
    pcclIteration_t *iteration = NULL;
    EXPECT(pcclIterationCreate(address, run, id, world_size, &iteration), pcclSuccess);
    EXPECT(pcclIterationSetTime(iteration, pcclIterationTimeHeartbeat, 50), pcclSuccess);
    EXPECT(pcclIterationSetTime(iteration, pcclIterationTimeInactive, 600), pcclSuccess);
    EXPECT(pcclIterationSetTime(iteration, pcclIterationTimeNoProgress, 1000), pcclSuccess);
    EXPECT(pcclIterationSetTime(iteration, pcclIterationTimePoll, 20), pcclSuccess);
    return iteration;
}

static void arguments(void) {
    pcclIterationStore_t *store = NULL;
    pcclIteration_t *iteration = NULL;
    pcclIterationInfo_t info;
    pcclIterationMember_t one;
    uint16_t port;
    bool begun = true;
    char large[4097];
    memset(large, 0, sizeof large);
    EXPECT(pcclIterationServeStore(NULL, NULL, &store), pcclInvalidArgument);
    EXPECT(pcclIterationServeStore("127.0.0.1:0", NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclIterationServeStore("nowhere", NULL, &store), pcclInvalidUsage);
    EXPECT(pcclIterationServeStore("127.0.0.1:0", "/no/such/directory/file", &store), pcclInvalidUsage);
    EXPECT(pcclIterationGetStorePort(NULL, &port), pcclInvalidArgument);
    EXPECT(pcclIterationStopStore(NULL), pcclInvalidArgument);
    EXPECT(pcclIterationCreate(NULL, "run", "0", 1, &iteration), pcclInvalidArgument);
    EXPECT(pcclIterationCreate("no port", "run", "0", 1, &iteration), pcclInvalidArgument);
    EXPECT(pcclIterationCreate(address, "a/b", "0", 1, &iteration), pcclInvalidArgument);
    EXPECT(pcclIterationCreate(address, "run", "rank 0", 1, &iteration), pcclInvalidArgument);
    EXPECT(pcclIterationCreate(address, "run", "0", 0, &iteration), pcclInvalidArgument);
    EXPECT(pcclIterationCreate(address, "run", "0", 1, NULL), pcclInvalidArgument);
    CHECK(iteration == NULL);
    iteration = member("0", "arguments", 1);
    EXPECT(pcclIterationSetTime(iteration, (pcclIterationTime_t) 6, 10), pcclInvalidArgument);
    EXPECT(pcclIterationSetTime(iteration, pcclIterationTimePoll, 0), pcclInvalidArgument);
    EXPECT(pcclIterationSetPolicy(iteration, (pcclIterationPolicy_t) 2), pcclInvalidArgument);
    EXPECT(pcclIterationSetPolicy(iteration, pcclIterationStrictMajority), pcclSuccess);
    EXPECT(pcclIterationSetMirror(iteration, false), pcclSuccess);
    EXPECT(pcclIterationSetFirst(iteration, 40), pcclSuccess);
    EXPECT(pcclIterationAdvance(iteration, NULL, 0, &info), pcclInvalidUsage);
    EXPECT(pcclIterationLeave(iteration), pcclInvalidUsage);
    EXPECT(pcclIterationGetDecision(iteration, &info), pcclInvalidUsage);
    EXPECT(pcclIterationForceMembers(iteration, NULL, 0), pcclInvalidUsage);
    EXPECT(pcclIterationGetCurrent(iteration, NULL, &info), pcclInvalidArgument);
    EXPECT(pcclIterationGetCurrent(iteration, &begun, &info), pcclSuccess);
    CHECK(!begun);
    EXPECT(pcclIterationJoin(iteration, NULL, 1, &info), pcclInvalidArgument);
    EXPECT(pcclIterationJoin(iteration, large, sizeof large, &info), pcclInvalidArgument);
    EXPECT(pcclIterationJoin(iteration, "hello", 5, &info), pcclSuccess);
    CHECK(info.iteration == 40 && info.members == 1 && info.position == 0 && info.life == 1);
    EXPECT(pcclIterationJoin(iteration, NULL, 0, NULL), pcclInvalidUsage);
    EXPECT(pcclIterationSetFirst(iteration, 1), pcclInvalidUsage);
    EXPECT(pcclIterationGetMember(iteration, 1, &one, NULL, 0), pcclInvalidArgument);
    EXPECT(pcclIterationGetMember(iteration, 0, NULL, NULL, 0), pcclInvalidArgument);
    EXPECT(pcclIterationGetMember(iteration, 0, &one, NULL, 4), pcclInvalidArgument);
    EXPECT(pcclIterationGetMember(iteration, 0, &one, large, 4), pcclSuccess);
    CHECK(one.payload_bytes == 5 && one.joined && one.life == 1 && strcmp(one.id, "0") == 0);
    CHECK(memcmp(large, "hell\0", 5) == 0);
    EXPECT(pcclIterationAdvance(iteration, NULL, 0, NULL), pcclSuccess);
    EXPECT(pcclIterationGetDecision(iteration, NULL), pcclInvalidArgument);
    EXPECT(pcclIterationGetDecision(iteration, &info), pcclSuccess);
    CHECK(info.iteration == 41);
    EXPECT(pcclIterationCancel(iteration), pcclSuccess);
    EXPECT(pcclIterationAdvance(iteration, NULL, 0, NULL), pcclInvalidUsage);
    CHECK(strcmp(pcclGetLastCause(), "Cancelled") == 0);
    EXPECT(pcclIterationLeave(iteration), pcclSuccess);
    EXPECT(pcclIterationDestroy(iteration), pcclSuccess);
    EXPECT(pcclIterationDestroy(iteration), pcclInvalidArgument);
    EXPECT(pcclIterationAdvance(iteration, NULL, 0, NULL), pcclInvalidArgument);
    /* Nobody listens there. */
    EXPECT(pcclIterationCreate("127.0.0.1:1", "run", "0", 1, &iteration), pcclSuccess);
    EXPECT(pcclIterationSetTime(iteration, pcclIterationTimeStore, 200), pcclSuccess);
    EXPECT(pcclIterationJoin(iteration, NULL, 0, NULL), pcclMasterConnectionFailed);
    CHECK(strcmp(pcclGetLastCause(), "StoreUnreachable") == 0 && pcclGetLastRemedy() == pcclRemedyRetry);
    EXPECT(pcclIterationDestroy(iteration), pcclSuccess);
}

/* One more member, in a thread: joins, advances twice, and stays behind. */
static void *second(void *unused) {
    pcclIteration_t *iteration = member("b", "two", 2);
    pcclIterationInfo_t info;
    (void) unused;
    EXPECT(pcclIterationJoin(iteration, NULL, 0, &info), pcclSuccess);
    EXPECT(pcclIterationAdvance(iteration, "x", 1, &info), pcclSuccess);
    CHECK(info.iteration == 1 && info.members == 2 && info.position == 1);
    return iteration;
}

static void two_members(void) {
    pcclIteration_t *iteration = member("a", "two", 2), *other;
    pcclIterationInfo_t info;
    pcclIterationMember_t one;
    const char *alone[] = {"a"};
    char payload[2] = "";
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, second, NULL) == 0);
    EXPECT(pcclIterationJoin(iteration, NULL, 0, &info), pcclSuccess);
    CHECK(info.iteration == 0 && info.members == 2);
    EXPECT(pcclIterationAdvance(iteration, NULL, 0, &info), pcclSuccess);
    CHECK(pthread_join(thread, &result) == 0);
    other = result;
    EXPECT(pcclIterationGetMember(iteration, 1, &one, payload, 1), pcclSuccess);
    CHECK(strcmp(one.id, "b") == 0 && payload[0] == 'x' && one.payload_bytes == 1);
    /* The second one does not come, and the first goes on without it. */
    EXPECT(pcclIterationForceMembers(iteration, alone, 1), pcclSuccess);
    EXPECT(pcclIterationAdvance(iteration, NULL, 0, &info), pcclSuccess);
    CHECK(info.iteration == 2 && info.members == 1);
    EXPECT(pcclIterationAdvance(other, NULL, 0, NULL), pcclRankConnectionLost);
    CHECK(strcmp(pcclGetLastCause(), "Fenced") == 0 && pcclGetLastRemedy() == pcclRemedyReconnect);
    EXPECT(pcclIterationAdvance(other, NULL, 0, NULL), pcclInvalidUsage);
    CHECK(strcmp(pcclGetLastCause(), "NotMember") == 0);
    EXPECT(pcclIterationDestroy(iteration), pcclSuccess);
    /* It takes the run over when the first one is found silent. */
    EXPECT(pcclIterationCatchUp(other, NULL, 0, &info), pcclSuccess);
    CHECK(info.iteration == 3 && info.members == 1 && info.life == 2);
    EXPECT(pcclIterationLeave(other), pcclSuccess);
    EXPECT(pcclIterationDestroy(other), pcclSuccess);
}

int main(void) {
    pcclIterationStore_t *store = NULL;
    uint16_t port = 0;
    EXPECT(pcclIterationServeStore("127.0.0.1:0", NULL, &store), pcclSuccess);
    EXPECT(pcclIterationGetStorePort(store, &port), pcclSuccess);
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned) port);
    arguments();
    two_members();
    EXPECT(pcclIterationStopStore(store), pcclSuccess);
    EXPECT(pcclIterationStopStore(store), pcclInvalidArgument);
    return 0;
}
