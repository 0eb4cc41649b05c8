/* A sampler whose position is part of the shared state of a run: each sample of each epoch is in exactly one step that
 * has succeeded, whoever dies, joins, or makes a step again. docs/samples.md.
 *
 * A step in lock step: sync the shared state, with the words among its tensors; pcclSamplesTake; compute;
 * pcclSamplesGetCounts; one pcclAllReduceManyAsync of the gradients and the counts (pcclUint64, pcclSum);
 * pcclSamplesSettle; then change the state, pcclSamplesCommit with it.
 *
 * All calls return at once. Those of one sampler come one after the other. */
#ifndef PCCL_SAMPLES_H
#define PCCL_SAMPLES_H

#include "pccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A sampler. */
typedef struct pcclSamples_t pcclSamples_t;

/* `length` samples, `epochs` times, in the order of a seed, or as they are without one (NULL). Each member takes up to
 * `batch` of them in a step; there are never more than `members`. All members give the same. */
PCCL_EXPORT pcclResult_t pcclSamplesCreate(uint64_t length, const uint64_t *seed, uint64_t epochs, uint64_t batch,
                                           uint64_t members, pcclSamples_t **samples_out);

/* How many words the position has. */
PCCL_EXPORT uint64_t pcclSamplesWordsFor(uint64_t members);

/* The position before the first step. The caller keeps it, has it in its shared state as a tensor of pcclUint64, and
 * gives it to the functions below. */
PCCL_EXPORT pcclResult_t pcclSamplesGetWords(pcclSamples_t *samples, uint64_t *words, uint64_t count);

/* The samples of this rank of the group for the step that begins: `batch` of them, or less, or none at the end. */
PCCL_EXPORT pcclResult_t pcclSamplesTake(pcclSamples_t *samples, const uint64_t *words, uint64_t word_count,
                                         uint64_t rank, uint64_t *taken, uint64_t capacity, uint64_t *count_out);

/* Numbers that the all-reduce of the step sums beside its gradients: twice as many as there may be members. `used`: how
 * many of the samples are in the gradient, the first ones. */
PCCL_EXPORT pcclResult_t pcclSamplesGetCounts(pcclSamples_t *samples, const uint64_t *words, uint64_t word_count,
                                              uint64_t used, uint64_t *counts, uint64_t capacity,
                                              uint64_t *count_out);

/* The sums. Writes how many samples the gradients are of. pcclRankConnectionLost: two members have taken the same
 * samples, since one has known earlier than the other that a peer is gone; all get this, and make the step again. */
PCCL_EXPORT pcclResult_t pcclSamplesSettle(pcclSamples_t *samples, const uint64_t *words, uint64_t word_count,
                                           const uint64_t *sums, uint64_t sum_count, uint64_t *used_out);

/* The step has succeeded: puts the next position into `words`. Writes the samples that the step has counted, for an
 * audit: as many as pcclSamplesSettle has said. With less room than that nothing changes. */
PCCL_EXPORT pcclResult_t pcclSamplesCommit(pcclSamples_t *samples, uint64_t *words, uint64_t word_count,
                                           uint64_t *counted, uint64_t capacity, uint64_t *count_out);

/* Steps that have counted, and how many samples of how many, over all epochs. */
PCCL_EXPORT pcclResult_t pcclSamplesGetProgress(pcclSamples_t *samples, const uint64_t *words, uint64_t word_count,
                                                uint64_t *steps_out, uint64_t *counted_out, uint64_t *total_out);

PCCL_EXPORT pcclResult_t pcclSamplesDestroy(pcclSamples_t *samples);

#ifdef __cplusplus
}
#endif

#endif
