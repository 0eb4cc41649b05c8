/* Reports of a peer to its supervisor, one line for each event, and what it knows of itself. */
#ifndef REPORT_H
#define REPORT_H

#include "workload.h"
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ORPHANED 3

typedef enum { GO_ON, ALONE, LEAVE, RECONNECT } next_t;

typedef struct {
    pcclRankUuid_t peers[RING_MAX];
    size_t count;
} ring_t;

static workload_t workload;
static uint64_t revision;
static pcclComm_t *comm;
static pcclRankUuid_t me;
static bool loss_reported;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000 + (uint64_t) now.tv_nsec / 1000;
}

static void report(const char *event) {
    if (printf("@stress %" PRIu64 " %s\n", now_us(), event) < 0 || fflush(stdout) != 0)
        _exit(ORPHANED);
}

static void die(const char *text) {
    char line[2048];
    snprintf(line, sizeof line, "fatal %s", text);
    report(line);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL)
        die("no memory");
    return memory;
}

/* Writes identities as the harness reads them; returns the end. */
static char *write_peers(char *to, const pcclRankUuid_t *peers, size_t count) {
    size_t i;
    int digit;
    if (count == 0)
        *to++ = '-';
    for (i = 0; i < count; i++) {
        if (i > 0)
            *to++ = ',';
        for (digit = 0; digit < 16; digit++)
            to += sprintf(to, "%02x", peers[i].data[digit]);
    }
    *to = 0;
    return to;
}

static ring_t get_ring(void) {
    ring_t ring;
    if (pcclGetRing(comm, ring.peers, RING_MAX, &ring.count) != pcclSuccess || ring.count > RING_MAX)
        die("no ring");
    return ring;
}

static bool same_ring(const ring_t *a, const ring_t *b) {
    return a->count == b->count && memcmp(a->peers, b->peers, a->count * sizeof a->peers[0]) == 0;
}

static void report_completed(const char *word, uint64_t tag, size_t world, const char *way, uint64_t hash,
                           const ring_t *before) {
    static char line[2 * RING_MAX * 33 + 256];
    ring_t after = get_ring();
    /* The C interface tells no rank. */
    char *end = line + sprintf(line, "%s %" PRIu64 " %" PRIu64 " %zu - %s %016" PRIx64 " ",
                               word, revision, tag, world, way, hash);
    end = write_peers(end, before->peers, before->count);
    *end++ = ' ';
    if (same_ring(before, &after))
        strcpy(end, "=");
    else
        write_peers(end, after.peers, after.count);
    report(line);
}

/* One word for a failed call. The library's word for a drop is the reason for it, which is reported with the loss. */
static const char *failure_word(void) {
    static const char *const words[] = {"MasterLost", "OutcomeUnknown", "NotConnected", "ConnectFailed"};
    const char *cause = pcclGetLastCause();
    size_t i;
    if (pcclGetLastRemedy() != pcclRemedyReconnect)
        return cause;
    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(cause, words[i]) == 0)
            return cause;
    return "Kicked";
}

/* Reports a failure that leaves this peer in the run, as far as the failure goes. */
static void report_failed(const char *call, bool intact) {
    static char line[RING_MAX * 33 + 4096];
    pcclRankUuid_t culprits[RING_MAX];
    size_t count = 0;
    char *end = line + sprintf(line, "failed %s %" PRIu64 " %d %s ", call, revision, intact, failure_word());
    if (pcclGetLastCulprits(culprits, RING_MAX, &count) != pcclSuccess || count > RING_MAX)
        die("no culprits");
    end = write_peers(end, culprits, count);
    snprintf(end, 3000, " %s", pcclGetLastError());
    report(line);
}

/* The reaction to a failure that is neither to be retried nor to be waited out. */
static next_t lost(void) {
    char line[4096];
    if (pcclGetLastRemedy() != pcclRemedyReconnect)
        die(pcclGetLastError());
    if (!loss_reported) {
        snprintf(line, sizeof line, "lost %s %s", pcclGetLastCause(), pcclGetLastError());
        report(line);
    }
    loss_reported = true;
    return RECONNECT;
}

static void pause_us(uint64_t us) {
    struct timespec time;
    time.tv_sec = (time_t) (us / 1000000);
    time.tv_nsec = (long) (us % 1000000) * 1000;
    nanosleep(&time, NULL);
}

#endif
