/*
 * Low-communication training on PCCL, for C99 and C++: each member takes many inner steps on its own data, and now and
 * then the members average how far they have moved (DiLoCo). docs/diloco.md says what the settings do.
 *
 *     pcclDiloco_t *run;
 *     pcclDilocoCreate(comm, &run);
 *     pcclDilocoSet(run, "every", "100");
 *     pcclDilocoJoin(run, parameters, count);
 *     for (uint64_t step = 0; step < steps; pcclDilocoGetStepIndex(run, &step)) {
 *         inner_step(parameters);
 *         pcclDilocoStep(run, parameters, count, tokens);
 *     }
 *     pcclDilocoFinish(run, parameters, count, UINT64_MAX);
 *     pcclDilocoDestroy(run);
 *
 * The rules of pccl.h hold. One thread at a time calls functions of one member; another one gets pcclInvalidUsage.
 * Parameters are flat vectors of float, in memory of the host.
 */
#ifndef PCCL_DILOCO_H
#define PCCL_DILOCO_H

#include "pccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A member of a run. */
typedef struct pcclDiloco_t pcclDiloco_t;

/* The work on the parameters before the next inner step. */
typedef enum pcclDilocoAction_t {
    pcclDilocoNothing = 0,
    /* Hand in a fragment: pcclDilocoContribute. */
    pcclDilocoHandIn = 1,
    /* Take over the result of a round: pcclDilocoLand. */
    pcclDilocoTakeOver = 2
} pcclDilocoAction_t;

typedef struct pcclDilocoStats_t {
    uint64_t rounds;         /* of the run, also those before this member came */
    double weight;           /* the sum of all weights of the run */
    uint64_t rounds_here;    /* that this member was in */
    uint64_t contributed;    /* of those, with a contribution of its own */
    uint64_t stood_in;       /* of those, without */
    uint64_t repeated;       /* begun again after a failure */
    uint64_t sent_bytes;     /* to others */
    uint64_t plain_bytes;    /* the same without compression */
    double exchange_seconds; /* of all exchanges */
    double waited_seconds;   /* of those, the time that the caller waited: the rest was hidden */
    uint64_t members;        /* of the run */
} pcclDilocoStats_t;

/* A member of the run of a communicator, with default settings. The communicator need not be connected; nobody else may
 * use it until the member is destroyed. */
PCCL_EXPORT pcclResult_t pcclDilocoCreate(pcclComm_t *comm, pcclDiloco_t **diloco_out);

/* Sets one setting before it joins: every, fragments, fragment_lengths, overlap, alpha, outer, compression, quorum,
 * grace, min_world, resume, samples, samples_seed, samples_epochs, samples_held, samples_members, audit. */
PCCL_EXPORT pcclResult_t pcclDilocoSet(pcclDiloco_t *diloco, const char *name, const char *value);

/* Connects, waits for min_world members, and puts the outer parameters of the run into `parameters`. */
PCCL_EXPORT pcclResult_t pcclDilocoJoin(pcclDiloco_t *diloco, float *parameters, uint64_t count);

/* An inner step has been made, which stands for `weight`, such as its tokens: does what is to be done with the
 * parameters. Waits only for the result of an own contribution that was handed in `overlap` steps ago. A contribution
 * that is not finite gives pcclInvalidArgument: the others go on without it, and so may the caller. */
PCCL_EXPORT pcclResult_t pcclDilocoStep(pcclDiloco_t *diloco, float *parameters, uint64_t count, double weight);

/* The parts of pcclDilocoStep, for parameters that do not lie in one vector: count a step, then do what
 * pcclDilocoNext says, with the parameters of that fragment, until there is nothing more. */
PCCL_EXPORT pcclResult_t pcclDilocoCount(pcclDiloco_t *diloco, double weight);
PCCL_EXPORT pcclResult_t pcclDilocoNext(pcclDiloco_t *diloco, pcclDilocoAction_t *action_out, uint64_t *fragment_out);
PCCL_EXPORT pcclResult_t pcclDilocoContribute(pcclDiloco_t *diloco, uint64_t fragment, const float *parameters,
                                              uint64_t count);
PCCL_EXPORT pcclResult_t pcclDilocoLand(pcclDiloco_t *diloco, uint64_t fragment, float *parameters, uint64_t count);

/* The samples of the setting `samples`, each of which the run counts once an epoch. Takes up to `capacity` to train on;
 * none are left for now if rounds have to be made first, which steps without samples bring about. */
PCCL_EXPORT pcclResult_t pcclDilocoTakeSamples(pcclDiloco_t *diloco, uint64_t *samples, uint64_t capacity,
                                               uint64_t *count_out);
/* Before the step or its count: it was made on `count` samples, those that were taken first. */
PCCL_EXPORT pcclResult_t pcclDilocoCountSamples(pcclDiloco_t *diloco, uint64_t count);
/* How many were taken that no step was made on, and whether all samples of all epochs are counted. */
PCCL_EXPORT pcclResult_t pcclDilocoGetSamples(pcclDiloco_t *diloco, uint64_t *outstanding_out, bool *are_over_out);
/* The samples that a round has counted, for an audit: of the last thousand rounds that this member was in. If there are
 * more than `capacity`, only their number is written. */
PCCL_EXPORT pcclResult_t pcclDilocoGetCountedSamples(pcclDiloco_t *diloco, uint64_t round, uint64_t *samples,
                                                     uint64_t capacity, uint64_t *count_out);

/* Puts the outer parameters into `parameters`. */
PCCL_EXPORT pcclResult_t pcclDilocoLoadOuter(pcclDiloco_t *diloco, float *parameters, uint64_t count);

/* How far the run is, in inner steps of a member that misses none. */
PCCL_EXPORT pcclResult_t pcclDilocoGetStepIndex(pcclDiloco_t *diloco, uint64_t *step_index_out);

PCCL_EXPORT pcclResult_t pcclDilocoGetStats(pcclDiloco_t *diloco, pcclDilocoStats_t *stats_out);

/* The oldest report of a round that has not been taken, as a line of text; an empty one if there is none. It is taken
 * once it fits into `capacity` bytes with its zero. */
PCCL_EXPORT pcclResult_t pcclDilocoTakeReport(pcclDiloco_t *diloco, char *buffer, size_t capacity, size_t *length_out);

/* Saves the outer state in one file; the setting resume goes on from it. */
PCCL_EXPORT pcclResult_t pcclDilocoSave(pcclDiloco_t *diloco, const char *path);

/* Waits until the last contribution is part of a round, `timeout_ms` at most (UINT64_MAX: however long), puts the outer
 * parameters into `parameters`, and leaves the run. */
PCCL_EXPORT pcclResult_t pcclDilocoFinish(pcclDiloco_t *diloco, float *parameters, uint64_t count,
                                          uint64_t timeout_ms);

/* Leaves the run, and closes the communicator. */
PCCL_EXPORT pcclResult_t pcclDilocoDestroy(pcclDiloco_t *diloco);

#ifdef __cplusplus
}
#endif

#endif
