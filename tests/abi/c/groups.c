/* A peer of groups of given members: PORT SCENARIO PEERS INDEX. C99 and C++. */
#include "check.h"

static float reduced(pcclComm_t *comm, float own, pcclResult_t expected) {
    float value = own;
    pcclReduceDescriptor_t descriptor = describe(1, pcclFloat, pcclSum, 3);
    EXPECT(pcclAllReduce(&value, &value, &descriptor, comm, NULL), expected);
    return value;
}

int main(int argc, char **argv) {
    unsigned port;
    int peers, own, i;
    pcclComm_t *comm, *alone;
    pcclMember_t members[8];
    pcclWorld_t shape;
    char names[8][8];
    CHECK(argc == 5 && strcmp(argv[2], "groups") == 0);
    port = (unsigned) atoi(argv[1]);
    peers = atoi(argv[3]);
    own = atoi(argv[4]);
    CHECK(peers >= 2 && peers <= 8);
    EXPECT(pcclInit(), pcclSuccess);
    comm = create(port);
    memset(members, 0, sizeof members);
    for (i = 0; i < peers; i++) {
        /* The last one is rank 0. */
        snprintf(names[i], sizeof names[i], "w%d", i);
        members[peers - 1 - i].name = names[i];
    }
    EXPECT(pcclSetOption(comm, "name", names[own]), pcclSuccess);
    EXPECT(pcclSetOption(comm, "formed_groups", "true"), pcclSuccess);
    EXPECT(pcclFormGroup(comm, 0, 1, members, (size_t) peers), pcclInvalidUsage);
    EXPECT(pcclConnect(comm), pcclSuccess);
    EXPECT(pcclSetOption(comm, "formed_groups", "false"), pcclInvalidUsage);
    EXPECT(pcclUpdateTopology(comm), pcclInvalidUsage);
    EXPECT(pcclFormGroup(comm, 0, 1, NULL, 1), pcclInvalidArgument);
    EXPECT(pcclFormGroup(comm, 0, 1, members, 0), pcclInvalidArgument);
    EXPECT(pcclFormGroup(comm, 0, 1, members, (size_t) peers), pcclSuccess);
    EXPECT(pcclGetWorld(comm, &shape), pcclSuccess);
    CHECK(shape.group_size == (uint32_t) peers && shape.rank == (uint32_t) (peers - 1 - own));
    CHECK(reduced(comm, (float) own, pcclSuccess) == (float) (peers * (peers - 1) / 2));
    say("formed");
    await_go();
    if (own == 0) {
        EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    } else {
        CHECK(reduced(comm, 4, pcclRankConnectionLost) == 4);
        CHECK(strcmp(pcclGetLastCause(), "GroupBroken") == 0 && pcclGetLastRemedy() == pcclRemedyFormGroup);
        CHECK(strstr(pcclGetLastError(), "w0") != NULL);
        EXPECT(pcclRecover(comm, pcclRemedyFormGroup, 2), pcclInvalidUsage);
        EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    }
    /* In a group that lets newcomers in, one who wants to may work alone. */
    if (own == 0) {
        pcclCommCreateParams_t params;
        memset(&params, 0, sizeof params);
        params.master_address = loopback(port);
        params.peer_group = 9;
        EXPECT(pcclCreateCommunicator(&params, &alone), pcclSuccess);
        EXPECT(pcclSetOption(alone, "first_p2p_port", "0"), pcclSuccess);
        EXPECT(pcclSetOption(alone, "first_state_port", "0"), pcclSuccess);
        EXPECT(pcclSetOption(alone, "world_of_one", "true"), pcclSuccess);
        EXPECT(pcclSetOption(alone, "state_memory", "1048576"), pcclSuccess);
        EXPECT(pcclSetOption(alone, "state_spill_dir", "/tmp"), pcclSuccess);
        EXPECT(pcclConnect(alone), pcclSuccess);
        CHECK(reduced(alone, 6, pcclSuccess) == 6);
        EXPECT(pcclDestroyCommunicator(alone), pcclSuccess);
    }
    say("done");
    return 0;
}
