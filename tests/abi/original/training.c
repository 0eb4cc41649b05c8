/* Programs as they are written for version 1.0.0 of the original, with its functions only:
 *   training master PORT           a master until a signal interrupts it
 *   training peer PORT STEPS WORLD the usual loop; from half of the steps on it waits until there are WORLD peers
 *   training threads PORT          a master and two peers in one process
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <pccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PCCL_CHECK(call)                                                                                       \
    do {                                                                                                       \
        pcclResult_t status_ = (call);                                                                         \
        if (status_ != pcclSuccess) {                                                                          \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, (int) status_);                  \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#define REQUIRE(condition)                                                                                     \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                            \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#define WEIGHTS 1024

static ccoip_socket_address_t loopback(unsigned port) {
    ccoip_socket_address_t address;
    memset(&address, 0, sizeof address);
    address.inet.protocol = inetIPv4;
    address.inet.ipv4.data[0] = 127;
    address.inet.ipv4.data[3] = 1;
    address.port = (uint16_t) port;
    return address;
}

static pcclComm_t *create(unsigned port) {
    pcclCommCreateParams_t params;
    pcclComm_t *communicator = NULL;
    memset(&params, 0, sizeof params);
    params.master_address = loopback(port);
    params.peer_group = 0;
    params.p2p_connection_pool_size = 0;
    PCCL_CHECK(pcclCreateCommunicator(&params, &communicator));
    return communicator;
}

static int attribute(const pcclComm_t *communicator, pcclAttribute_t which) {
    int value = 0;
    PCCL_CHECK(pcclGetAttribute(communicator, which, &value));
    return value;
}

static void pause_ms(long milliseconds) {
    struct timespec time = {0, milliseconds * 1000000};
    nanosleep(&time, NULL);
}

static pcclReduceDescriptor_t describe(size_t count, pcclRedOp_t op, uint64_t tag) {
    pcclReduceDescriptor_t descriptor;
    memset(&descriptor, 0, sizeof descriptor);
    descriptor.count = count;
    descriptor.op = op;
    descriptor.tag = tag;
    descriptor.src_descriptor.datatype = pcclFloat;
    descriptor.src_descriptor.distribution_hint = pcclDistributionNone;
    descriptor.quantization_options.quantized_datatype = pcclFloat;
    descriptor.quantization_options.algorithm = pcclQuantNone;
    return descriptor;
}

/* Averages the gradient; as often as it takes, or until this peer is alone. */
static int reduce(pcclComm_t *communicator, float *gradient, float *average) {
    pcclReduceDescriptor_t descriptor = describe(WEIGHTS, pcclAvg, 0);
    for (;;) {
        pcclAsyncReduceOp_t handle;
        pcclReduceInfo_t info;
        pcclResult_t status;
        if (attribute(communicator, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) < 2)
            return 0;
        status = pcclAllReduceAsync(gradient, average, &descriptor, communicator, &handle);
        if (status == pcclTooFewPeers)
            return 0;
        PCCL_CHECK(status);
        status = pcclAwaitAsyncReduce(&handle, &info);
        if (status == pcclSuccess) {
            REQUIRE(info.local_world_size >= 2 && info.tx_bytes > 0 && info.rx_bytes > 0);
            return 1;
        }
        REQUIRE(status == pcclRankConnectionLost);
    }
}

static int train(unsigned port, uint64_t steps, int wanted_world) {
    static float weights[WEIGHTS], momentum[WEIGHTS], gradient[WEIGHTS], average[WEIGHTS];
    pcclComm_t *communicator = create(port);
    pcclTensorInfo_t infos[2];
    pcclSharedState_t state;
    uint64_t iteration = 0;
    size_t i;
    memset(infos, 0, sizeof infos);
    infos[0].name = "weights";
    infos[0].data = weights;
    infos[1].name = "momentum";
    infos[1].data = momentum;
    for (i = 0; i < 2; i++) {
        infos[i].count = WEIGHTS;
        infos[i].datatype = pcclFloat;
        infos[i].device_type = pcclDeviceCpu;
        infos[i].allow_content_inequality = false;
    }
    state.revision = 0;
    state.count = 2;
    state.infos = infos;
    /* The master may start later. */
    while (pcclConnect(communicator) != pcclSuccess)
        pause_ms(100);
    printf("connected\n");
    fflush(stdout);

    while (state.revision < steps) {
        pcclSharedStateSyncInfo_t sync_info;
        pcclResult_t status;
        int world;
        /* Whoever has just been let in is where the others are after this. */
        if (iteration++ > 0)
            while (pcclUpdateTopology(communicator) == pcclUpdateTopologyFailed)
                pause_ms(10);
        world = attribute(communicator, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE);
        REQUIRE(attribute(communicator, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS) == 1);
        if (world < 2 || (state.revision >= steps / 2 && world < wanted_world)) {
            pause_ms(10);
            continue;
        }
        while ((status = pcclOptimizeTopology(communicator)) == pcclTopologyOptimizationFailed)
            PCCL_CHECK(pcclUpdateTopology(communicator));
        if (status == pcclInvalidUsage && attribute(communicator, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) < 2)
            continue;
        PCCL_CHECK(status);
        status = pcclSynchronizeSharedState(communicator, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR,
                                            &sync_info);
        if (status != pcclSuccess) {
            REQUIRE(status == pcclInvalidUsage);
            continue;
        }
        /* Who was there before has nothing to receive: no drift. */
        REQUIRE(state.revision == 0 || iteration == 1 || sync_info.rx_bytes == 0);
        for (i = 0; i < WEIGHTS; i++)
            gradient[i] = weights[i] - (float) (i % 7);
        if (!reduce(communicator, gradient, average))
            continue;
        for (i = 0; i < WEIGHTS; i++) {
            REQUIRE(average[i] == gradient[i]);
            momentum[i] = 0.5f * momentum[i] + average[i];
            weights[i] -= 0.1f * momentum[i];
        }
        state.revision++;
        printf("step %lu world %d\n", (unsigned long) state.revision, world);
        fflush(stdout);
    }
    printf("end %.9g %.9g\n", (double) weights[3], (double) momentum[5]);
    PCCL_CHECK(pcclDestroyCommunicator(communicator));
    return 0;
}

static pcclMasterInstance_t *instance;

static void on_signal(int number) {
    (void) number;
    pcclInterruptMaster(instance);
}

static int run_master(unsigned port) {
    PCCL_CHECK(pcclCreateMaster(loopback(port), &instance));
    PCCL_CHECK(pcclRunMaster(instance));
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    printf("listening\n");
    fflush(stdout);
    PCCL_CHECK(pcclMasterAwaitTermination(instance));
    PCCL_CHECK(pcclDestroyMaster(instance));
    return 0;
}

static void *member(void *port) {
    static const float inputs[2] = {10, 20};
    pcclComm_t *communicator = create(*(unsigned *) port);
    float many[2][8], sums[2][8];
    pcclReduceOpDescriptor_t descriptors[2];
    pcclReduceInfo_t info;
    bool pending = true;
    int value = 0, i;
    REQUIRE(pcclGetAttribute(communicator, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value) == pcclInvalidUsage);
    PCCL_CHECK(pcclConnect(communicator));
    while (attribute(communicator, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) < 2)
        PCCL_CHECK(pcclUpdateTopology(communicator));
    REQUIRE(attribute(communicator, PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE) == 2);
    PCCL_CHECK(pcclArePeersPending(communicator, &pending));
    REQUIRE(!pending);
    for (i = 0; i < 8; i++) {
        many[0][i] = inputs[0];
        many[1][i] = inputs[1];
    }
    memset(descriptors, 0, sizeof descriptors);
    for (i = 0; i < 2; i++) {
        descriptors[i].sendbuf = many[i];
        descriptors[i].recvbuf = sums[i];
        descriptors[i].descriptor = describe(8, pcclSum, (uint64_t) i);
    }
    PCCL_CHECK(pcclAllReduceMultipleWithRetry(descriptors, 2, communicator, &info, 16));
    REQUIRE(info.local_world_size == 2);
    for (i = 0; i < 8; i++)
        REQUIRE(sums[0][i] == 2 * inputs[0] && sums[1][i] == 2 * inputs[1]);
    PCCL_CHECK(pcclAllReduce(many[0], many[0], &descriptors[0].descriptor, communicator, NULL));
    REQUIRE(many[0][7] == 2 * inputs[0]);
    PCCL_CHECK(pcclDestroyCommunicator(communicator));
    return NULL;
}

static int threads(unsigned port) {
    pcclBuildInfo_t build;
    pthread_t members[2];
    int i;
    PCCL_CHECK(pcclGetBuildInfo(&build));
    PCCL_CHECK(pcclCreateMaster(loopback(port), &instance));
    REQUIRE(pcclInterruptMaster(instance) == pcclInvalidUsage);
    PCCL_CHECK(pcclRunMaster(instance));
    REQUIRE(pcclRunMaster(instance) == pcclInvalidUsage);
    for (i = 0; i < 2; i++)
        REQUIRE(pthread_create(&members[i], NULL, member, &port) == 0);
    for (i = 0; i < 2; i++)
        REQUIRE(pthread_join(members[i], NULL) == 0);
    PCCL_CHECK(pcclInterruptMaster(instance));
    PCCL_CHECK(pcclInterruptMaster(instance));
    PCCL_CHECK(pcclMasterAwaitTermination(instance));
    PCCL_CHECK(pcclDestroyMaster(instance));
    printf("end\n");
    return 0;
}

int main(int count, char **arguments) {
    unsigned port;
    REQUIRE(count >= 3);
    port = (unsigned) strtoul(arguments[2], NULL, 10);
    if (strcmp(arguments[1], "master") == 0)
        return run_master(port);
    PCCL_CHECK(pcclInit());
    if (strcmp(arguments[1], "threads") == 0)
        return threads(port);
    REQUIRE(count == 5);
    return train(port, strtoul(arguments[3], NULL, 10), atoi(arguments[4]));
}
