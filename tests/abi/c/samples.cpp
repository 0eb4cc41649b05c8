// A sampler in C++, of a run of one member.
#include <pccl_samples.hpp>

#include <cstdio>
#include <stdexcept>

static void need(bool holds, const char *what) {
    if (!holds)
        throw std::runtime_error(what);
}

int main() {
    pccl::Samples samples(10, nullptr, 2, 4, 1);
    std::vector<std::uint64_t> seen;
    while (!samples.done()) {
        const auto taken = samples.take(0);
        need(!taken.empty() && taken.size() <= 4, "a batch");
        need(samples.settle(samples.counts(taken.size())) == taken.size(), "all are used");
        const auto counted = samples.commit();
        need(counted == taken, "what was taken is counted");
        seen.insert(seen.end(), counted.begin(), counted.end());
    }
    need(seen.size() == 20, "two epochs");
    for (std::size_t at = 0; at < seen.size(); at++)
        need(seen[at] == at % 10, "in order");
    try {
        samples.take(1);
        need(false, "a rank beyond the members");
    } catch (const pccl::Error &) {
    }
    std::puts("ok");
}
