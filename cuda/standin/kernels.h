// The kernels, as the stand-in driver finds and runs them.
#pragma once

#include <cstddef>
#include <vector>

struct Kernel {
    const char *name;
    /// Runs it on the present thread of the present block.
    void (*run)(void **params);
    /// How many bytes each parameter has: what a launch copies, as the caller's values may be gone later.
    std::vector<size_t> param_bytes;
};

/// Which one has this name; null: none.
const Kernel *find_kernel(const char *name);
