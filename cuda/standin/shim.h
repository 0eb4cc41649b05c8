// The surroundings of a kernel on a device, for a kernel that is compiled as C++: the threads of a block are contexts
// that take turns on one thread, from barrier to barrier, in an order that changes with every barrier.
#pragma once

#include <cstdint>
#include <cstring>
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

// Operations that round by themselves: the compiler is told to fuse nothing.

template <class To, class From> static inline To shim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

static inline float __uint_as_float(unsigned bits) { return shim_bits<float>(bits); }
static inline unsigned __float_as_uint(float x) { return shim_bits<unsigned>(x); }
static inline double __longlong_as_double(long long bits) { return shim_bits<double>(bits); }
static inline long long __double_as_longlong(double x) { return shim_bits<long long>(x); }
static inline float __double2float_rn(double x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }

namespace shim {
/// Runs one block of this number of threads.
void run_block(unsigned block, unsigned threads, void (*kernel)(void **), void **params);
}
