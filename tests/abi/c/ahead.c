/* A peer: PORT SCENARIO PEERS INDEX. Two peers train and lend their state; the third one fetches it before it is let
 * in, and so does the fourth one. C99 and C++. */
#include "check.h"

#include <time.h>

/* Two MiBs, and half of a third one. */
#define COUNT 655360
#define PATIENCE_S 120

static float weights[COUNT];
static uint64_t step_count;
static pcclTensorInfo_t tensors[2];
static pcclSharedState_t state;

static void describe_state(float value, uint64_t revision) {
    size_t i;
    for (i = 0; i < COUNT; i++)
        weights[i] = value;
    step_count = revision;
    tensors[0].name = "weights";
    tensors[0].data = weights;
    tensors[0].count = COUNT;
    tensors[0].datatype = pcclFloat;
    tensors[0].device_type = pcclDeviceCpu;
    tensors[0].allow_content_inequality = false;
    tensors[1] = tensors[0];
    tensors[1].name = "step";
    tensors[1].data = &step_count;
    tensors[1].count = 1;
    tensors[1].datatype = pcclUint64;
    state.revision = revision;
    state.count = 2;
    state.infos = tensors;
}

static pcclSyncInfo_t sync_unless_unchanged(pcclComm_t *comm, bool unchanged) {
    pcclUnchanged_t words[2];
    pcclSyncOptions_t options;
    pcclSyncInfo_t info;
    memset(&options, 0, sizeof options);
    words[0].name = "weights";
    words[1].name = "step";
    words[0].revision = words[1].revision = state.revision;
    options.strategy = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    options.unchanged = words;
    options.unchanged_count = unchanged ? 2 : 0;
    memset(&info, 0xA5, sizeof info);
    EXPECT(pcclSyncSharedState(comm, &state, &options, &info), pcclSuccess);
    return info;
}

/* The work of a step that all have made: newcomers that came with the state have not. */
static void reduce(pcclComm_t *comm, bool worked) {
    float change[4] = {0, 0, 0, 0};
    pcclReduceDescriptor_t descriptor = describe(4, pcclFloat, pcclSum, 5);
    if (worked)
        change[0] = change[3] = 3;
    EXPECT(pcclWeightedAverage(change, worked ? 1 : 0, &descriptor, comm, NULL), pcclSuccess);
    CHECK(change[0] == 3 && change[1] == 0 && change[3] == 3);
}

/* Computes until a newcomer has fetched the state, and waits to be let in. */
static void compute_until_somebody_waits(pcclComm_t *comm) {
    time_t begun;
    bool pending = false;
    say("lent");
    await_go();
    begun = time(NULL);
    while (!pending) {
        EXPECT(pcclArePeersPending(comm, &pending), pcclSuccess);
        CHECK(time(NULL) < begun + PATIENCE_S);
    }
}

/* State that may not be lent, and the ends of a loan. */
static void rules_of_loans(pcclComm_t *comm) {
    pcclSharedState_t part = state;
    uint64_t one = 0, two = 0;
    weights[COUNT - 1] += 1;
    EXPECT(pcclLendSharedState(comm, &state, false, &one), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "weights has changed") != NULL && one == 0);
    EXPECT(pcclLendSharedStateSnapshot(comm, &state, false), pcclInvalidUsage);
    weights[COUNT - 1] -= 1;
    part.count = 1;
    EXPECT(pcclLendSharedState(comm, &part, false, &one), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "step is missing") != NULL);
    EXPECT(pcclLendSharedState(comm, &state, false, &one), pcclSuccess);
    EXPECT(pcclLendSharedState(comm, &state, false, &two), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "another loan stands") != NULL && one != 0 && two == 0);
    EXPECT(pcclReclaimSharedState(comm, one), pcclSuccess);
    EXPECT(pcclReclaimSharedState(comm, one), pcclSuccess);
    EXPECT(pcclLendSharedState(comm, &state, true, &two), pcclSuccess);
    CHECK(two != one);
    /* That one has ended, this one stands. */
    EXPECT(pcclReclaimSharedState(comm, one), pcclSuccess);
    EXPECT(pcclLendSharedState(comm, &state, true, NULL), pcclInvalidUsage);
    /* A sync ends it, whatever becomes of the sync. */
    EXPECT(pcclSyncSharedState(comm, NULL, NULL, NULL), pcclInvalidArgument);
    EXPECT(pcclLendSharedState(comm, &state, true, NULL), pcclSuccess);
    EXPECT(pcclReclaimSharedState(comm, 0), pcclSuccess);
}

static void train(unsigned port) {
    pcclComm_t *comm = join(port, 2);
    pcclSyncInfo_t info;
    uint64_t loan = 0;
    describe_state(0.5f, 7);
    EXPECT(pcclLendSharedState(comm, &state, false, &loan), pcclInvalidUsage);
    CHECK(strstr(pcclGetLastError(), "there was no sync yet") != NULL);
    info = sync_unless_unchanged(comm, false);
    CHECK(!info.came_ahead);
    rules_of_loans(comm);

    /* The third one comes while the tensors are lent, and is let in before they change. */
    EXPECT(pcclLendSharedState(comm, &state, true, &loan), pcclSuccess);
    compute_until_somebody_waits(comm);
    EXPECT(pcclReclaimSharedState(comm, loan), pcclSuccess);
    EXPECT(pcclUpdateTopology(comm), pcclSuccess);
    info = sync_unless_unchanged(comm, true);
    CHECK(info.tx_bytes == 0 && info.rx_bytes == 0 && !info.came_ahead && world(comm) == 3);
    reduce(comm, true);

    /* The fourth one comes while a copy is lent; what changes meanwhile is moved by the sync, and no more. */
    EXPECT(pcclLendSharedStateSnapshot(comm, &state, true), pcclSuccess);
    weights[0] += 1;
    state.revision++;
    compute_until_somebody_waits(comm);
    EXPECT(pcclUpdateTopology(comm), pcclSuccess);
    info = sync_unless_unchanged(comm, false);
    CHECK(info.rx_bytes == 0 && info.tx_bytes <= 1 << 20 && state.revision == 8 && world(comm) == 4);
    EXPECT(pcclEndSharedStateSnapshot(comm), pcclSuccess);
    EXPECT(pcclEndSharedStateSnapshot(comm), pcclSuccess);
    reduce(comm, true);
    say("done");
    await_go();
    /* It ends the loan. */
    EXPECT(pcclLendSharedState(comm, &state, false, NULL), pcclSuccess);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
}

/* The user of this program hears when the state is here, before this peer is let in. */
static void tell(pcclLogLevel_t level, const char *origin, const char *text, void *user) {
    (void) level;
    (void) origin;
    (void) user;
    if (strstr(text, "before it is let in") != NULL)
        say("fetched");
}

static void hear(const pcclSyncProgress_t *progress, void *user) {
    *(pcclSyncProgress_t *) user = *progress;
}

static void join_third(unsigned port) {
    pcclComm_t *comm = create(port);
    pcclSyncProgress_t seen;
    pcclSyncInfo_t info;
    pcclAhead_t ahead;
    memset(&seen, 0, sizeof seen);
    memset(&ahead, 0xA5, sizeof ahead);
    describe_state(0, 0);
    EXPECT(pcclConnectWithState(comm, &state, PCCL_NO_TIMEOUT, hear, &seen, &ahead), pcclSuccess);
    CHECK(ahead.has_revision && ahead.revision == 7 && ahead.rx_bytes == sizeof weights + sizeof step_count);
    CHECK(seen.done_bytes == ahead.rx_bytes && state.revision == 7);
    CHECK(weights[0] == 0.5f && weights[COUNT - 1] == 0.5f && step_count == 7);
    info = sync_unless_unchanged(comm, false);
    CHECK(info.rx_bytes == 0 && info.tx_bytes == 0 && info.came_ahead && state.revision == 7);
    reduce(comm, !info.came_ahead);
    weights[0] += 1;
    state.revision++;
    compute_until_somebody_waits(comm);
    EXPECT(pcclUpdateTopology(comm), pcclSuccess);
    info = sync_unless_unchanged(comm, false);
    CHECK(info.rx_bytes == 0 && !info.came_ahead && state.revision == 8);
    reduce(comm, true);
    say("done");
    await_go();
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
}

static void join_fourth(unsigned port) {
    pcclComm_t *comm = create(port);
    pcclSyncInfo_t info;
    pcclAhead_t ahead;
    memset(&ahead, 0xA5, sizeof ahead);
    describe_state(0, 0);
    /* Nothing to be done, so nothing is fetched. */
    EXPECT(pcclRecoverWithState(comm, pcclRemedyNone, 2, &state, &ahead), pcclSuccess);
    CHECK(!ahead.has_revision && ahead.rx_bytes == 0 && state.revision == 0);
    EXPECT(pcclRecoverWithState(comm, pcclRemedyReconnect, 2, &state, &ahead), pcclSuccess);
    CHECK(ahead.has_revision && ahead.revision == 7 && ahead.rx_bytes == sizeof weights + sizeof step_count);
    CHECK(weights[0] == 0.5f && state.revision == 7);
    info = sync_unless_unchanged(comm, false);
    /* The MiB that has changed since. */
    CHECK(info.rx_bytes == 1 << 20 && info.came_ahead && state.revision == 8);
    CHECK(weights[0] == 1.5f && weights[COUNT - 1] == 0.5f && step_count == 7);
    reduce(comm, !info.came_ahead);
    say("done");
    await_go();
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
}

int main(int count, char **arguments) {
    const unsigned port = count > 1 ? (unsigned) strtoul(arguments[1], NULL, 10) : 0;
    const long index = count > 4 ? strtol(arguments[4], NULL, 10) : 0;
    EXPECT(pcclInit(), pcclSuccess);
    if (index >= 2)
        EXPECT(pcclSetLogCallback(pcclLogInfo, tell, NULL), pcclSuccess);
    if (index < 2)
        train(port);
    else if (index == 2)
        join_third(port);
    else
        join_fourth(port);
    return 0;
}
