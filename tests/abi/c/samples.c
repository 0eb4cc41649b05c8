/* A sampler in C: three members in one process, whose sums are made by hand, one of which dies in the middle. */
#include <pccl_samples.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 100, EPOCHS = 3, BATCH = 8, MEMBERS = 3 };

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, pcclGetLastError());                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

int main(void) {
    CHECK(pcclInit() == pcclSuccess);
    const uint64_t seed = 5, size = pcclSamplesWordsFor(MEMBERS);
    pcclSamples_t *members[MEMBERS];
    uint64_t *words[MEMBERS], used, count, steps, counted = 0, total = 0;
    int times[LENGTH] = {0};
    for (int at = 0; at < MEMBERS; at++) {
        CHECK(pcclSamplesCreate(LENGTH, &seed, EPOCHS, BATCH, MEMBERS, &members[at]) == pcclSuccess);
        words[at] = malloc(size * sizeof(uint64_t));
        CHECK(pcclSamplesGetWords(members[at], words[at], size) == pcclSuccess);
    }
    for (int step = 0; step == 0 || counted < total; step++) {
        uint64_t sums[2 * MEMBERS] = {0}, batch[BATCH], counts[2 * MEMBERS], all[BATCH * MEMBERS];
        for (int at = 0; at < MEMBERS; at++) {
            CHECK(pcclSamplesTake(members[at], words[at], size, at, batch, BATCH, &count) == pcclSuccess);
            /* The second one dies in each third step: nothing of it is in the sums. */
            if (at == 1 && step % 3 == 0)
                continue;
            CHECK(pcclSamplesGetCounts(members[at], words[at], size, count, counts, 2 * MEMBERS, &used) ==
                  pcclSuccess);
            for (int index = 0; index < 2 * MEMBERS; index++)
                sums[index] += counts[index];
        }
        for (int at = 0; at < MEMBERS; at++) {
            CHECK(pcclSamplesSettle(members[at], words[at], size, sums, 2 * MEMBERS, &used) == pcclSuccess);
            CHECK(used == 0 || pcclSamplesCommit(members[at], words[at], size, all, used - 1, &count) ==
                                   pcclInvalidArgument);
            CHECK(pcclSamplesCommit(members[at], words[at], size, all, BATCH * MEMBERS, &count) == pcclSuccess);
            CHECK(count == used && memcmp(words[at], words[0], size * sizeof(uint64_t)) == 0);
        }
        for (uint64_t index = 0; index < count; index++)
            times[all[index]]++;
        CHECK(pcclSamplesGetProgress(members[0], words[0], size, &steps, &counted, &total) == pcclSuccess);
        CHECK(steps == (uint64_t)step + 1 && total == LENGTH * EPOCHS);
    }
    for (int at = 0; at < LENGTH; at++)
        CHECK(times[at] == EPOCHS);

    uint64_t twice[2 * MEMBERS] = {2, 8}, one = 0;
    CHECK(pcclSamplesGetWords(members[0], words[0], size) == pcclSuccess);
    CHECK(pcclSamplesSettle(members[0], words[0], size, twice, 2 * MEMBERS, &used) == pcclRankConnectionLost);
    CHECK(pcclGetLastRemedy() == pcclRemedyRetry && strstr(pcclGetLastError(), "make the step again"));
    words[0][0] ^= 1;
    CHECK(pcclSamplesTake(members[0], words[0], size, 0, &one, 1, &count) == pcclInvalidArgument);
    CHECK(pcclSamplesCreate(0, NULL, 1, 1, 1, &members[0]) == pcclInvalidArgument);
    CHECK(pcclSamplesTake(NULL, words[1], size, 0, &one, 1, &count) == pcclInvalidArgument);
    for (int at = 0; at < MEMBERS; at++) {
        CHECK(pcclSamplesDestroy(members[at]) == pcclSuccess);
        CHECK(pcclSamplesDestroy(members[at]) != pcclSuccess);
        free(words[at]);
    }
    puts("ok");
    return 0;
}
