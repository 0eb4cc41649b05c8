// What a kernel finds on a device, for a kernel that is compiled as C++: the threads of a block are contexts that take
// turns on one thread, from barrier to barrier, in an order that changes with every barrier.
#pragma once

#include <cstdint>
#include <vector>

#define __global__
#define __device__
#define __constant__ static const
#define __forceinline__ inline
// Blocks run one after the other, so one instance serves them all.
#define __shared__ static
#define __launch_bounds__(threads)

struct Index {
    unsigned x, y, z;
};

struct ulonglong2 {
    unsigned long long x, y;
};

extern Index threadIdx;
extern Index blockIdx;

void __syncthreads();

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

namespace shim {
/// Runs one block of so many threads.
void run_block(unsigned block, unsigned threads, void (*kernel)(void **), void **params);
}
