// Low-communication training for C++17: pccl_diloco.h with an object and exceptions. The rules of pccl.hpp hold.
#pragma once

#include <pccl.hpp>
#include <pccl_diloco.h>

namespace pccl {

// A member of a run. Its communicator must live longer than it, and is nobody else's meanwhile.
class DiLoCo {
public:
    explicit DiLoCo(Communicator &comm) {
        pcclDiloco_t *diloco = nullptr;
        check(pcclDilocoCreate(comm.get(), &diloco), "create a member");
        diloco_.reset(diloco);
    }

    pcclDiloco_t *get() const noexcept { return diloco_.get(); }

    // Changes a setting by its name, before it joins: see pcclDilocoSet.
    DiLoCo &set(const std::string &name, const std::string &value) {
        check(pcclDilocoSet(get(), name.c_str(), value.c_str()), "set");
        return *this;
    }
    // Connects, waits for the others, and puts the outer parameters of the run into `parameters`.
    void join(std::vector<float> &parameters) {
        check(pcclDilocoJoin(get(), parameters.data(), parameters.size()), "join");
    }
    // An inner step has been made, which stands for `weight`.
    void step(std::vector<float> &parameters, double weight = 1) {
        check(pcclDilocoStep(get(), parameters.data(), parameters.size(), weight), "step");
    }
    std::uint64_t step_index() const {
        std::uint64_t index = 0;
        check(pcclDilocoGetStepIndex(get(), &index), "step index");
        return index;
    }

    // The parts of step, for parameters that do not lie in one vector.
    void count(double weight = 1) { check(pcclDilocoCount(get(), weight), "count"); }
    std::pair<pcclDilocoAction_t, std::uint64_t> next() {
        pcclDilocoAction_t action = pcclDilocoNothing;
        std::uint64_t fragment = 0;
        check(pcclDilocoNext(get(), &action, &fragment), "next action");
        return {action, fragment};
    }
    void contribute(std::uint64_t fragment, const float *parameters, std::size_t count) {
        check(pcclDilocoContribute(get(), fragment, parameters, count), "contribute");
    }
    void land(std::uint64_t fragment, float *parameters, std::size_t count) {
        check(pcclDilocoLand(get(), fragment, parameters, count), "land");
    }

    // Takes up to `most` samples of the setting `samples`.
    std::vector<std::uint64_t> take_samples(std::size_t most) {
        std::vector<std::uint64_t> taken(most);
        std::uint64_t count = 0;
        check(pcclDilocoTakeSamples(get(), taken.data(), taken.size(), &count), "take samples");
        taken.resize(count);
        return taken;
    }
    // Before step or count: it was made on `count` samples, those that were taken first.
    void count_samples(std::uint64_t count) { check(pcclDilocoCountSamples(get(), count), "count samples"); }
    // How many were taken that no step was made on, and whether all are counted.
    std::pair<std::uint64_t, bool> samples() const {
        std::uint64_t outstanding = 0;
        bool are_over = false;
        check(pcclDilocoGetSamples(get(), &outstanding, &are_over), "samples");
        return {outstanding, are_over};
    }
    // The samples that a round has counted.
    std::vector<std::uint64_t> counted_samples(std::uint64_t round) const {
        std::vector<std::uint64_t> counted;
        std::uint64_t count = 0;
        check(pcclDilocoGetCountedSamples(get(), round, counted.data(), 0, &count), "counted samples");
        counted.resize(count);
        check(pcclDilocoGetCountedSamples(get(), round, counted.data(), counted.size(), &count), "counted samples");
        return counted;
    }

    void load_outer(std::vector<float> &parameters) {
        check(pcclDilocoLoadOuter(get(), parameters.data(), parameters.size()), "load the outer parameters");
    }
    pcclDilocoStats_t stats() const {
        pcclDilocoStats_t stats{};
        check(pcclDilocoGetStats(get(), &stats), "stats");
        return stats;
    }
    // The oldest report of a round that has not been taken; empty if there is none.
    std::string take_report() {
        std::string text(4096, '\0');
        for (;;) {
            std::size_t length = 0;
            check(pcclDilocoTakeReport(get(), &text[0], text.size(), &length), "take a report");
            const bool fits = length < text.size();
            text.resize(fits ? length : length + 1);
            if (fits)
                return text;
        }
    }
    void save(const std::string &path) { check(pcclDilocoSave(get(), path.c_str()), "save"); }

    // Waits until the last contribution is part of a round, puts the outer parameters into `parameters`, and leaves.
    void finish(std::vector<float> &parameters, Milliseconds timeout = no_timeout) {
        const std::uint64_t limit = timeout == no_timeout ? UINT64_MAX : static_cast<std::uint64_t>(timeout.count());
        check(pcclDilocoFinish(get(), parameters.data(), parameters.size(), limit), "finish");
    }

private:
    struct Destroy {
        void operator()(pcclDiloco_t *diloco) const noexcept { pcclDilocoDestroy(diloco); }
    };

    std::unique_ptr<pcclDiloco_t, Destroy> diloco_;
};

} // namespace pccl
