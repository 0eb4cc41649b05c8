/* A master as programs of the original run one: until a signal interrupts it. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>

static pcclMasterInstance_t *master;

static void on_signal(int number) {
    (void) number;
    pcclInterruptMaster(master);
}

int main(void) {
    struct sigaction action;
    uint16_t port = 0;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    EXPECT(pcclCreateMaster(loopback(0), &master), pcclSuccess);
    EXPECT(pcclRunMaster(master), pcclSuccess);
    EXPECT(pcclMasterGetPort(master, &port), pcclSuccess);
    CHECK(sigaction(SIGTERM, &action, NULL) == 0);
    printf("%u\n", (unsigned) port);
    fflush(stdout);
    EXPECT(pcclMasterAwaitTermination(master), pcclSuccess);
    EXPECT(pcclDestroyMaster(master), pcclSuccess);
    return 0;
}
