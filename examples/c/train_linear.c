/*
 * Fits a line to points that are spread over peers: each computes the gradient of its own points, an all-reduce
 * averages the gradients, and the shared state hands the model to whoever joins later.
 *
 *     train_linear [PORT [PEERS]]      a peer of the master at 127.0.0.1:PORT (48148); begins when there are PEERS (2)
 */
#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 200
#define POINTS 100

/* The same on every peer after each sync: the line, and how many steps it has seen. */
typedef struct model_t {
    float weights[2];
    uint64_t step;
} model_t;

static pcclResult_t synchronise(pcclComm_t *comm, model_t *model) {
    pcclTensorInfo_t tensors[2] = {
        {"weights", model->weights, 2, pcclFloat, pcclDeviceCpu, false},
        {"step", &model->step, 1, pcclUint64, pcclDeviceCpu, false},
    };
    pcclSharedState_t state = {model->step, 2, tensors};
    return pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL);
}

/* The gradient for points of y = 3 x - 1, other ones on each peer. */
static void gradient_of(const model_t *model, unsigned *random, float gradient[2]) {
    int i;
    gradient[0] = gradient[1] = 0;
    for (i = 0; i < POINTS; i++) {
        float x, error;
        *random = *random * 1664525u + 1013904223u;
        x = (float) (*random >> 8) / (float) (1 << 24);
        error = model->weights[0] * x + model->weights[1] - (3 * x - 1);
        gradient[0] += 2 * error * x / POINTS;
        gradient[1] += 2 * error / POINTS;
    }
}

static pcclResult_t step(pcclComm_t *comm, model_t *model, unsigned *random) {
    pcclReduceDescriptor_t descriptor;
    pcclResult_t result;
    float gradient[2];
    bool pending = false;

    /* Whoever has just joined begins here, and gets the model from the others. */
    if ((result = synchronise(comm, model)) != pcclSuccess)
        return result;

    gradient_of(model, random, gradient);
    memset(&descriptor, 0, sizeof descriptor);
    descriptor.count = 2;
    descriptor.op = pcclAvg;
    descriptor.src_descriptor.datatype = pcclFloat;
    descriptor.quantization_options.algorithm = pcclQuantNone;
    if ((result = pcclAllReduce(gradient, gradient, &descriptor, comm, NULL)) != pcclSuccess)
        return result;
    model->weights[0] -= 0.5f * gradient[0];
    model->weights[1] -= 0.5f * gradient[1];
    model->step++;

    if ((result = pcclArePeersPending(comm, &pending)) != pcclSuccess || !pending)
        return result;
    return pcclUpdateTopology(comm);
}

int main(int count, char **arguments) {
    const unsigned port = count > 1 ? (unsigned) strtoul(arguments[1], NULL, 10) : 48148;
    const uint32_t peers = count > 2 ? (uint32_t) strtoul(arguments[2], NULL, 10) : 2;
    pcclCommCreateParams_t params;
    pcclComm_t *comm = NULL;
    pcclWorld_t world;
    model_t model = {{0, 0}, 0};
    unsigned random;
    pcclResult_t result;
    pcclRemedy_t remedy = pcclRemedyNone;

    memset(&params, 0, sizeof params);
    params.master_address.inet.protocol = inetIPv4;
    params.master_address.inet.ipv4.data[0] = 127;
    params.master_address.inet.ipv4.data[3] = 1;
    params.master_address.port = (uint16_t) port;

    /* pcclRecover connects, to a master that may not be there yet, and waits until there are enough peers. */
    if ((result = pcclInit()) != pcclSuccess || (result = pcclCreateCommunicator(&params, &comm)) != pcclSuccess ||
        (result = pcclRecover(comm, pcclRemedyReconnect, peers)) != pcclSuccess ||
        (result = pcclGetWorld(comm, &world)) != pcclSuccess) {
        fprintf(stderr, "%s: %s\n", pcclGetResultName(result), pcclGetLastError());
        return 1;
    }
    random = world.rank + 1;
    /* After a failure it does whatever lets the step be made again. */
    while (model.step < STEPS && pcclRecover(comm, remedy, 2) == pcclSuccess)
        remedy = step(comm, &model, &random) == pcclSuccess ? pcclRemedyNone : pcclGetLastRemedy();
    if (model.step < STEPS) {
        fprintf(stderr, "%s\n", pcclGetLastError());
        pcclDestroyCommunicator(comm);
        return 1;
    }
    /* The proof that all peers have the same model. */
    if (synchronise(comm, &model) != pcclSuccess)
        fprintf(stderr, "last sync: %s\n", pcclGetLastError());
    printf("y = %.6f x + %.6f after %lu steps\n", (double) model.weights[0], (double) model.weights[1],
           (unsigned long) model.step);
    return pcclDestroyCommunicator(comm) == pcclSuccess ? 0 : 1;
}
