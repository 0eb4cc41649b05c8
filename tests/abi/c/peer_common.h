/* Shared parts of the scenarios of peer.c. */
#ifndef PEER_COMMON_H
#define PEER_COMMON_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "check.h"

#include <time.h>

#if defined(__linux__)
#include <unistd.h>
#endif

#define COUNT 1000
#define PATIENCE_S 120

static unsigned port;
static int peers, own_index;

#endif
