/*
 * Fits a line to points that are spread over peers: each computes the gradient of its own points, a weighted average
 * makes one of them, and the shared state hands the model to whoever joins later: while the others compute, so that
 * nobody waits for it.
 *
 *     train_linear [PORT [PEERS]]      a peer of the master at 127.0.0.1:PORT (48148); begins when there are PEERS (2)
 *
 * It says what it waits for, and every second how it goes. With PCCL_LOG_LEVEL=INFO the library says more.
 */
#define _POSIX_C_SOURCE 199309L /* nanosleep */
#include <float.h>
#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STEPS 200
#define POINTS 100

/* The same on every peer after each sync: the line, and how many steps it has seen. */
typedef struct model_t {
    float weights[2];
    uint64_t step;
    pcclTensorInfo_t tensors[2];
    pcclSharedState_t state;
} model_t;

static void begin(model_t *model) {
    const pcclTensorInfo_t tensors[2] = {
        {"weights", model->weights, 2, pcclFloat, pcclDeviceCpu, false},
        {"step", &model->step, 1, pcclUint64, pcclDeviceCpu, false},
    };
    memset(model->weights, 0, sizeof model->weights);
    memcpy(model->tensors, tensors, sizeof tensors);
    model->step = model->state.revision = 0;
    model->state.count = 2;
    model->state.infos = model->tensors;
}

/* The gradient for points of y = 3 x - 1, other ones on each peer, and their mean squared error. */
static float gradient_of(const model_t *model, unsigned *random, float gradient[2]) {
    const struct timespec time_of_a_larger_model = {0, 10 * 1000 * 1000};
    float loss = 0;
    int i;
    gradient[0] = gradient[1] = 0;
    nanosleep(&time_of_a_larger_model, NULL);
    for (i = 0; i < POINTS; i++) {
        float x, error;
        *random = *random * 1664525u + 1013904223u;
        x = (float) (*random >> 8) / (float) (1 << 24);
        error = model->weights[0] * x + model->weights[1] - (3 * x - 1);
        gradient[0] += 2 * error * x / POINTS;
        gradient[1] += 2 * error / POINTS;
        loss += error * error / POINTS;
    }
    return loss;
}

/* Says once a second how it goes. */
static void tell(const pcclComm_t *comm, const model_t *model, float loss) {
    static time_t said;
    static uint64_t told;
    const time_t now = time(NULL);
    pcclWorld_t world;
    if (now == said || pcclGetWorld(comm, &world) != pcclSuccess)
        return;
    if (said != 0)
        printf("step %lu: loss %.6f, %lu peers, %.0f steps/s\n", (unsigned long) model->step, (double) loss,
               (unsigned long) world.group_size, (double) (model->step - told) / difftime(now, said));
    fflush(stdout);
    said = now;
    told = model->step;
}

/* Lends the model while this peer computes: newcomers fetch it. */
static pcclResult_t compute(pcclComm_t *comm, const model_t *model, unsigned *random, float gradient[2],
                            float *loss) {
    /* Nothing has changed since the sync: it need not be hashed again. */
    const pcclResult_t result = pcclLendSharedState(comm, &model->state, true, NULL);
    if (result != pcclSuccess)
        return result;
    *loss = gradient_of(model, random, gradient);
    return pcclReclaimSharedState(comm, 0);
}

/* Lets in who waits and holds the model, as long as there is anybody. The sync moves nothing, and proves that. */
static pcclResult_t let_in(pcclComm_t *comm, model_t *model) {
    pcclResult_t result;
    bool pending = false;
    while ((result = pcclArePeersPending(comm, &pending)) == pcclSuccess && pending)
        if ((result = pcclUpdateTopology(comm)) != pcclSuccess ||
            (result = pcclSyncSharedState(comm, &model->state, NULL, NULL)) != pcclSuccess)
            break;
    return result;
}

static pcclResult_t step(pcclComm_t *comm, model_t *model, unsigned *random) {
    pcclReduceDescriptor_t descriptor;
    pcclSyncInfo_t info;
    pcclResult_t result;
    float gradient[2] = {0, 0}, loss = -1;
    /* Next to nothing, for who has nothing computed. */
    double weight = DBL_MIN;

    if ((result = pcclSyncSharedState(comm, &model->state, NULL, &info)) != pcclSuccess)
        return result;
    /* A peer that has just come with the model computes nothing: the others have, and wait for nobody. */
    if (!info.came_ahead) {
        if ((result = compute(comm, model, random, gradient, &loss)) != pcclSuccess)
            return result;
        weight = 1;
    }
    /* Before the model changes, so that newcomers hold it. */
    if ((result = let_in(comm, model)) != pcclSuccess)
        return result;

    memset(&descriptor, 0, sizeof descriptor);
    descriptor.count = 2;
    descriptor.src_descriptor.datatype = pcclFloat;
    descriptor.quantization_options.algorithm = pcclQuantNone;
    if ((result = pcclWeightedAverage(gradient, weight, &descriptor, comm, NULL)) != pcclSuccess)
        return result;
    model->weights[0] -= 0.5f * gradient[0];
    model->weights[1] -= 0.5f * gradient[1];
    model->step++;
    model->state.revision++;
    if (loss >= 0)
        tell(comm, model, loss);
    return pcclSuccess;
}

int main(int count, char **arguments) {
    const unsigned port = count > 1 ? (unsigned) strtoul(arguments[1], NULL, 10) : 48148;
    const uint32_t peers = count > 2 ? (uint32_t) strtoul(arguments[2], NULL, 10) : 2;
    pcclCommCreateParams_t params;
    pcclComm_t *comm = NULL;
    pcclWorld_t world;
    model_t model;
    unsigned random;
    pcclResult_t result;
    pcclRemedy_t remedy = pcclRemedyNone;

    begin(&model);
    memset(&params, 0, sizeof params);
    params.master_address.inet.protocol = inetIPv4;
    params.master_address.inet.ipv4.data[0] = 127;
    params.master_address.inet.ipv4.data[3] = 1;
    params.master_address.port = (uint16_t) port;

    printf("waiting for the master at 127.0.0.1:%u, and for %lu peers\n", port, (unsigned long) peers);
    fflush(stdout);
    /* Connects, to a master that may not be there yet, and waits until there are enough peers. */
    if ((result = pcclInit()) != pcclSuccess || (result = pcclCreateCommunicator(&params, &comm)) != pcclSuccess ||
        (result = pcclRecoverWithState(comm, pcclRemedyReconnect, peers, &model.state, NULL)) != pcclSuccess ||
        (result = pcclGetWorld(comm, &world)) != pcclSuccess) {
        fprintf(stderr, "%s: %s\n", pcclGetResultName(result), pcclGetLastError());
        return 1;
    }
    random = world.rank + 1;
    /* After a failure it does whatever lets the step be made again. */
    while (model.step < STEPS && pcclRecoverWithState(comm, remedy, 2, &model.state, NULL) == pcclSuccess)
        remedy = step(comm, &model, &random) == pcclSuccess ? pcclRemedyNone : pcclGetLastRemedy();
    if (model.step < STEPS) {
        fprintf(stderr, "%s\n", pcclGetLastError());
        pcclDestroyCommunicator(comm);
        return 1;
    }
    /* The proof that all peers have the same model. */
    if (pcclSyncSharedState(comm, &model.state, NULL, NULL) != pcclSuccess)
        fprintf(stderr, "last sync: %s\n", pcclGetLastError());
    printf("y = %.6f x + %.6f after %lu steps\n", (double) model.weights[0], (double) model.weights[1],
           (unsigned long) model.step);
    return pcclDestroyCommunicator(comm) == pcclSuccess ? 0 : 1;
}
