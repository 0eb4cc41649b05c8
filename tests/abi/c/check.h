/* Shared parts of the programs of the test. */
#ifndef CHECK_H
#define CHECK_H

#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition,            \
                    pcclGetLastError());                                                                       \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#define EXPECT(call, result)                                                                                   \
    do {                                                                                                       \
        pcclResult_t got_ = (call);                                                                            \
        if (got_ != (result)) {                                                                                \
            fprintf(stderr, "%s:%d: %s gave %s, not %s: %s\n", __FILE__, __LINE__, #call,                      \
                    pcclGetResultName(got_), #result, pcclGetLastError());                                     \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

static inline ccoip_socket_address_t loopback(unsigned port) {
    ccoip_socket_address_t address;
    memset(&address, 0, sizeof address);
    address.inet.protocol = inetIPv4;
    address.inet.ipv4.data[0] = 127;
    address.inet.ipv4.data[3] = 1;
    address.port = (uint16_t) port;
    return address;
}

static inline pcclComm_t *create(unsigned port) {
    pcclCommCreateParams_t params;
    pcclComm_t *comm = NULL;
    memset(&params, 0, sizeof params);
    params.master_address = loopback(port);
    EXPECT(pcclCreateCommunicator(&params, &comm), pcclSuccess);
    /* Tests run side by side: any free ports. */
    EXPECT(pcclSetOption(comm, "first_p2p_port", "0"), pcclSuccess);
    EXPECT(pcclSetOption(comm, "first_state_port", "0"), pcclSuccess);
    return comm;
}

static inline int attribute(const pcclComm_t *comm, pcclAttribute_t which) {
    int value = -1;
    EXPECT(pcclGetAttribute(comm, which, &value), pcclSuccess);
    return value;
}

static inline int world(const pcclComm_t *comm) {
    return attribute(comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE);
}

/* Connects as programs written for the original do: the members let in whoever comes until there are enough. */
static inline void enter(pcclComm_t *comm, int peers) {
    EXPECT(pcclConnect(comm), pcclSuccess);
    while (attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) < peers)
        EXPECT(pcclUpdateTopology(comm), pcclSuccess);
}

static inline pcclComm_t *join(unsigned port, int peers) {
    pcclComm_t *comm = create(port);
    enter(comm, peers);
    return comm;
}

static inline pcclReduceDescriptor_t describe(size_t count, pcclDataType_t type, pcclRedOp_t op, uint64_t tag) {
    pcclReduceDescriptor_t descriptor;
    memset(&descriptor, 0, sizeof descriptor);
    descriptor.count = count;
    descriptor.op = op;
    descriptor.tag = tag;
    descriptor.src_descriptor.datatype = type;
    descriptor.quantization_options.quantized_datatype = type;
    descriptor.quantization_options.algorithm = pcclQuantNone;
    return descriptor;
}

/* Waits for a line from whoever runs this program. */
static inline void await_go(void) {
    char line[16];
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static inline void say(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

#endif
