/* A peer: PORT SCENARIO PEERS INDEX. Uses the original's functions, and extensions only to look at results. C99 and
 * C++. */
#include "peer_cycle.h"
#include "peer_failures.h"
#include "peer_reduces.h"

/* All but the first peer differ; in two steps of the revision. */
static void synchronise(pcclComm_t *comm) {
    static float weights[COUNT];
    static uint16_t halves[5];
    pcclTensorInfo_t tensors[2];
    pcclSharedState_t state;
    pcclSharedStateSyncInfo_t info;
    int i;
    tensors[0].name = "weights";
    tensors[0].data = weights;
    tensors[0].count = COUNT;
    tensors[0].datatype = pcclFloat;
    tensors[0].device_type = pcclDeviceCpu;
    tensors[0].allow_content_inequality = false;
    tensors[1] = tensors[0];
    tensors[1].name = "halves";
    tensors[1].data = halves;
    tensors[1].count = 5;
    tensors[1].datatype = pcclFloat16;
    for (i = 0; i < COUNT; i++)
        weights[i] = own_index == 0 ? 3.5f : 0.0f;
    memset(halves, own_index == 0 ? 0x3c : 0, sizeof halves);
    /* The highest first revision wins. */
    state.revision = own_index == 0 ? 13 : 0;
    state.count = 2;
    state.infos = tensors;
    EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info),
           pcclSuccess);
    CHECK(state.revision == 13 && weights[COUNT - 1] == 3.5f && halves[4] == 0x3c3c);
    CHECK(info.rx_bytes == (own_index == 0 ? 0 : sizeof weights + sizeof halves));
    state.revision++;
    weights[0] += 1;
    EXPECT(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info),
           pcclSuccess);
    CHECK(state.revision == 14 && info.rx_bytes == 0 && info.tx_bytes == 0);
}

static void all(pcclComm_t *comm) {
    pcclWorld_t shape;
    pcclRankUuid_t ring[8];
    size_t count = 0;
    CHECK(world(comm) == peers && attribute(comm, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS) == 1);
    CHECK(attribute(comm, PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE) == peers);
    reduce_types(comm);
    several_at_once(comm);
    quantise(comm);
    many(comm);
    choose_schedules(comm);
    synchronise(comm);
    EXPECT(pcclOptimizeTopology(comm), pcclSuccess);
    EXPECT(pcclGetWorld(comm, &shape), pcclSuccess);
    EXPECT(pcclGetRing(comm, ring, 8, &count), pcclSuccess);
    CHECK(shape.rank < (uint32_t) peers && count == (size_t) peers);
    many(comm);
}

int main(int count, char **arguments) {
    const char *scenario;
    pcclComm_t *comm;
    CHECK(count == 5);
    port = (unsigned) strtoul(arguments[1], NULL, 10);
    scenario = arguments[2];
    peers = (int) strtol(arguments[3], NULL, 10);
    own_index = (int) strtol(arguments[4], NULL, 10);
    EXPECT(pcclInit(), pcclSuccess);
    if (strncmp(scenario, "cycle=", 6) == 0) {
        cycle((int) strtol(scenario + 6, NULL, 10), true);
        return 0;
    }
    if (strncmp(scenario, "repeat=", 7) == 0) {
        cycle((int) strtol(scenario + 7, NULL, 10), false);
        return 0;
    }
    comm = create(port);
    /* Sites of different sizes, one of which is of one. */
    if (strcmp(scenario, "sites") == 0 && own_index > 0)
        EXPECT(pcclSetOption(comm, "site", own_index % 2 == 1 ? "eu-west" : "us-east/2"), pcclSuccess);
    enter(comm, peers);
    say("joined");
    await_go();
    if (strcmp(scenario, "all") == 0)
        all(comm);
    else if (strcmp(scenario, "sites") == 0)
        reduce_over_sites(comm);
    else if (strcmp(scenario, "limits") == 0)
        limits(comm);
    else if (strcmp(scenario, "survive") == 0)
        survive(comm);
    else if (strcmp(scenario, "give-up") == 0)
        give_up(comm);
    else if (strcmp(scenario, "deviate") == 0)
        deviate(comm, false);
    else if (strcmp(scenario, "skip") == 0)
        deviate(comm, true);
    else
        CHECK(!"a known scenario");
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    return 0;
}
