// The kernels of the library, compiled as C++.

#include "kernels.h"
#include "shim.h"

#include <utility>

#include "../kernels/hash.cu"
#include "../kernels/quantise.cu"

namespace {

template <auto kernel> struct Runner;

template <class... P, void (*kernel)(P...)> struct Runner<kernel> {
    template <size_t... AT> static void call(void **params, std::index_sequence<AT...>) {
        kernel(*(P *)params[AT]...);
    }

    static void run(void **params) { call(params, std::index_sequence_for<P...>()); }

    static Kernel named(const char *name) { return {name, run, {sizeof(P)...}}; }
};

#define KERNEL(name) Runner<&name>::named(#name)
#define BOTH(type, scheme)                                                                                             \
    Runner<&quantise::pccl_encode_##type##_##scheme>::named("pccl_encode_" #type "_" #scheme),                         \
        Runner<&quantise::pccl_decode_##type##_##scheme>::named("pccl_decode_" #type "_" #scheme)
#define SCHEMES(type)                                                                                                  \
    BOTH(type, affine_u8), BOTH(type, affine_u4), BOTH(type, symmetric_i8), BOTH(type, e4m3), BOTH(type, e5m2),        \
        BOTH(type, bf16), BOTH(type, f16)

}

const Kernel *find_kernel(const char *name) {
    static const std::vector<Kernel> ALL = {
        KERNEL(pccl_tree_level1), KERNEL(pccl_simplehash_blocks), KERNEL(pccl_simplehash_end),
        SCHEMES(f32), SCHEMES(f64), SCHEMES(f16), SCHEMES(bf16),
    };
    for (const Kernel &kernel : ALL) {
        if (std::strcmp(kernel.name, name) == 0) {
            return &kernel;
        }
    }
    return nullptr;
}
