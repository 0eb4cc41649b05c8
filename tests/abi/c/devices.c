/* A peer whose buffers are on a device, where a stand-in plays the driver: PORT SCENARIO PEERS INDEX. The first peer
 * has its buffers on the host. C99 and C++. */
#include "check.h"

#include <dlfcn.h>
#include <stdint.h>

#define EACH 70001
#define BYTES(count) ((count) * sizeof(float))

static uint64_t (*standin_new)(uint64_t bytes);
static void (*standin_get)(uint64_t from, void *to, uint64_t bytes);
static uint64_t (*standin_stream)(void);
static void (*standin_put_later)(uint64_t stream, uint64_t to, const void *from, uint64_t bytes);

static pcclComm_t *comm;
static uint32_t rank, ranks;
static bool on_device;
static void *stream;

/* ISO C has no way from an object's address to a function's. */
static void find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    memcpy(function, &found, sizeof found);
}

static void find_standin(void) {
    void *library = dlopen("libcuda.so", RTLD_NOW | RTLD_GLOBAL);
    CHECK(library != NULL);
    find(library, "standin_new", &standin_new);
    find(library, "standin_get", &standin_get);
    find(library, "standin_stream", &standin_stream);
    find(library, "standin_put_later", &standin_put_later);
}

/* A buffer with count elements that begin with first, which on a device come there as late as its stream allows. */
static float *buffer(size_t count, float first) {
    float *host = (float *) malloc(BYTES(count));
    size_t i;
    uint64_t address;
    CHECK(host != NULL);
    for (i = 0; i < count; i++)
        host[i] = first + (float) (i % 1000);
    if (!on_device)
        return host;
    address = standin_new(BYTES(count));
    CHECK(address != 0);
    standin_put_later((uint64_t) (uintptr_t) stream, address, host, BYTES(count));
    free(host);
    return (float *) (uintptr_t) address;
}

static float at(const float *data, size_t index) {
    float value;
    if (!on_device)
        return data[index];
    standin_get((uint64_t) (uintptr_t) data + BYTES(index), &value, sizeof value);
    return value;
}

static pcclReduceDescriptor_t floats(size_t count, pcclRedOp_t op, uint64_t tag) {
    return describe(count, pcclFloat, op, tag);
}

static void all_reduces(void) {
    pcclReduceDescriptor_t descriptor = floats(EACH, pcclSum, 1);
    pcclReduceOpDescriptor_t many[2];
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    float *one = buffer(EACH, (float) rank), *two = buffer(EACH, 5), *three = buffer(EACH, 1);
    EXPECT(pcclAllReduce(one, two, &descriptor, comm, &info), pcclSuccess);
    CHECK(at(two, 7) == (float) (ranks * (ranks - 1) / 2 + 7 * ranks) && at(one, 7) == (float) (rank + 7));
    EXPECT(pcclAllReduceAsync(one, one, &descriptor, comm, &handle), pcclSuccess);
    EXPECT(pcclAwaitAsyncReduce(&handle, NULL), pcclSuccess);
    CHECK(at(one, EACH - 1) == at(two, EACH - 1));
    memset(many, 0, sizeof many);
    many[0].sendbuf = many[0].recvbuf = one;
    many[0].descriptor = floats(EACH, pcclMax, 2);
    many[1].sendbuf = many[1].recvbuf = three;
    many[1].descriptor = floats(EACH, pcclAvg, 3);
    EXPECT(pcclAllReduceMultipleWithRetry(many, 2, comm, &info, 1), pcclSuccess);
    CHECK(at(one, 9) == at(two, 9) && at(three, 9) == 10);
}

static void others(void) {
    pcclReduceDescriptor_t descriptor = floats(EACH, pcclSum, 4);
    pcclAsyncReduceOp_t handle;
    float *own = buffer(EACH, (float) (100 * rank)), *all = buffer(ranks * EACH, 0);
    uint32_t from;
    EXPECT(pcclAllGatherAsync(own, all, ranks * EACH, &descriptor, comm, &handle), pcclSuccess);
    EXPECT(pcclAwaitAsyncReduce(&handle, NULL), pcclSuccess);
    for (from = 0; from < ranks; from++)
        CHECK(at(all, from * EACH + 3) == (float) (100 * from + 3));
    descriptor.count = ranks * EACH;
    EXPECT(pcclReduceScatter(all, own, EACH, &descriptor, comm, NULL), pcclSuccess);
    CHECK(at(own, 3) == (float) (ranks * (100 * rank + 3)));
    descriptor.count = EACH;
    EXPECT(pcclBroadcast(own, 1, &descriptor, comm, NULL), pcclSuccess);
    CHECK(at(own, 3) == (float) (ranks * 103));
    EXPECT(pcclReduce(own, 0, &descriptor, comm, NULL), pcclSuccess);
    CHECK(at(own, 3) == (float) ((rank == 0 ? ranks : 1) * ranks * 103));
    EXPECT(pcclWeightedAverage(own, rank == 1 ? 1 : 0, &descriptor, comm, NULL), pcclSuccess);
    CHECK(at(own, 3) == (float) (ranks * 103));
    if (rank == 0)
        EXPECT(pcclSend(own, 1, &descriptor, comm, NULL), pcclSuccess);
    else if (rank == 1)
        EXPECT(pcclRecv(all, 0, &descriptor, comm, NULL), pcclSuccess);
    if (rank == 1)
        CHECK(at(all, 3) == at(own, 3));
}

/* Some buffers of a call are on a device, and others on the host. */
static void mixed(void) {
    pcclReduceDescriptor_t descriptor = floats(EACH, pcclSum, 10);
    pcclReduceOpDescriptor_t many[2];
    pcclAsyncReduceOp_t handle;
    float *all = buffer(ranks * EACH, 0), *own = buffer(EACH, 0);
    float *host = (float *) malloc(BYTES(EACH));
    size_t i;
    CHECK(host != NULL);
    for (i = 0; i < EACH; i++)
        host[i] = (float) (rank + i % 1000);
    EXPECT(pcclSetThreadByAddress(stream), pcclSuccess);
    EXPECT(pcclAllGather(host, all, ranks * EACH, &descriptor, comm, NULL), pcclSuccess);
    CHECK(at(all, (ranks - 1) * EACH + 3) == (float) (ranks - 1 + 3) && host[3] == (float) (rank + 3));
    memset(many, 0, sizeof many);
    many[0].sendbuf = many[0].recvbuf = host;
    many[1].sendbuf = many[1].recvbuf = own;
    many[0].descriptor = many[1].descriptor = floats(EACH, pcclMax, 11);
    EXPECT(pcclAllReduceManyAsync(many, 2, comm, &handle), pcclSuccess);
    EXPECT(pcclAwaitAsyncReduce(&handle, NULL), pcclSuccess);
    CHECK(host[3] == (float) (ranks - 1 + 3) && at(own, 3) == 3);
    if (on_device)
        EXPECT(pcclAllReduce(host, own, &descriptor, comm, NULL), pcclInvalidArgument);
    EXPECT(pcclSetThreadDevice(on_device, on_device ? stream : NULL), pcclSuccess);
    free(host);
}

/* A caller that names memory of no device is told, and nobody waits for it. */
static void refused(void) {
    pcclReduceDescriptor_t descriptor = floats(2, pcclSum, 9);
    float host[2] = {1, 2};
    int call;
    for (call = 0; call < 3; call++) {
        float *data = call == 2 && on_device ? NULL : host;
        pcclResult_t result = call == 1 ? pcclAllReduce(data, data, &descriptor, comm, NULL)
                                        : pcclBroadcast(data, 0, &descriptor, comm, NULL);
        if (on_device) {
            EXPECT(result, pcclInvalidArgument);
        } else {
            CHECK(result != pcclSuccess && strcmp(pcclGetLastCause(), "LocalFault") == 0);
            CHECK(strstr(pcclGetLastError(), "is not device memory") != NULL);
        }
        CHECK(host[0] == 1 && host[1] == 2);
    }
}

int main(int argc, char **argv) {
    pcclWorld_t shape;
    CHECK(argc == 5);
    find_standin();
    EXPECT(pcclInit(), pcclSuccess);
    comm = join((unsigned) atoi(argv[1]), atoi(argv[3]));
    say("joined");
    await_go();
    EXPECT(pcclGetWorld(comm, &shape), pcclSuccess);
    rank = shape.rank;
    ranks = shape.group_size;
    on_device = atoi(argv[4]) != 0;
    stream = (void *) (uintptr_t) standin_stream();
    EXPECT(pcclSetThreadDevice(on_device, on_device ? stream : NULL), pcclSuccess);
    all_reduces();
    others();
    mixed();
    refused();
    EXPECT(pcclSetThreadDevice(false, NULL), pcclSuccess);
    EXPECT(pcclDestroyCommunicator(comm), pcclSuccess);
    return 0;
}
