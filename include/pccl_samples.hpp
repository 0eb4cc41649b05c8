// Samples that are counted once for C++17: pccl_samples.h with an object and exceptions. The rules of pccl.hpp hold.
#pragma once

#include <pccl.hpp>
#include <pccl_samples.h>

namespace pccl {

// A sampler for steps in lock step. Its position is `words`: a tensor of pcclUint64 of the shared state.
class Samples {
public:
    std::vector<std::uint64_t> words;

    // `length` samples, `epochs` times, in the order of `seed`, or as they are if it is null.
    Samples(std::uint64_t length, const std::uint64_t *seed, std::uint64_t epochs, std::uint64_t batch,
            std::uint64_t members)
        : words(pcclSamplesWordsFor(members)), batch_(batch), members_(members) {
        pcclSamples_t *samples = nullptr;
        check(pcclSamplesCreate(length, seed, epochs, batch, members, &samples), "create a sampler");
        samples_.reset(samples);
        check(pcclSamplesGetWords(get(), words.data(), words.size()), "first position");
    }

    pcclSamples_t *get() const noexcept { return samples_.get(); }

    // The samples of this rank for the step that begins.
    std::vector<std::uint64_t> take(std::uint64_t rank) {
        std::vector<std::uint64_t> taken(batch_);
        std::uint64_t count = 0;
        check(pcclSamplesTake(get(), words.data(), words.size(), rank, taken.data(), taken.size(), &count), "take");
        taken.resize(count);
        return taken;
    }
    // What the all-reduce of the step sums beside its gradients.
    std::vector<std::uint64_t> counts(std::uint64_t used) const {
        std::vector<std::uint64_t> counts(2 * members_);
        std::uint64_t count = 0;
        check(pcclSamplesGetCounts(get(), words.data(), words.size(), used, counts.data(), counts.size(), &count),
              "counts");
        return counts;
    }
    // The sums. Returns how many samples the gradients are of.
    std::uint64_t settle(const std::vector<std::uint64_t> &sums) {
        std::uint64_t used = 0;
        check(pcclSamplesSettle(get(), words.data(), words.size(), sums.data(), sums.size(), &used), "settle");
        return used;
    }
    // The step has succeeded. Returns the samples that it has counted.
    std::vector<std::uint64_t> commit() {
        std::vector<std::uint64_t> counted(batch_ * members_);
        std::uint64_t count = 0;
        check(pcclSamplesCommit(get(), words.data(), words.size(), counted.data(), counted.size(), &count), "commit");
        counted.resize(count);
        return counted;
    }
    // Whether each sample of each epoch is counted.
    bool done() const {
        std::uint64_t steps = 0, counted = 0, total = 0;
        check(pcclSamplesGetProgress(get(), words.data(), words.size(), &steps, &counted, &total), "progress");
        return counted == total;
    }

private:
    struct Destroy {
        void operator()(pcclSamples_t *samples) const noexcept { pcclSamplesDestroy(samples); }
    };

    std::unique_ptr<pcclSamples_t, Destroy> samples_;
    std::uint64_t batch_, members_;
};

} // namespace pccl
