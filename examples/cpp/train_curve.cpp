// Fits a cubic curve to noisy points that are spread over peers. The gradients of two halves of the points travel at
// the same time: the second one is computed while the first one is on its way. Newcomers fetch the model while the
// first half is computed, so that nobody waits for them.
//
//     train_curve [PORT [PEERS]]      a peer of the master at 127.0.0.1:PORT (48148); begins when there are PEERS (2)
//
// It says what it waits for, and every second how it goes. With PCCL_LOG_LEVEL=INFO the library says more.
#include <pccl.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <thread>

namespace {

constexpr std::uint64_t STEPS = 300;
constexpr int HALF = 200;
constexpr float RATE = 0.3F, MOMENTUM = 0.9F;

using Coefficients = std::vector<float>;

struct Model {
    Coefficients weights = Coefficients(4, 0.0F);
    Coefficients momentum = Coefficients(4, 0.0F);
};

// y = 1 - 2x + 3x^2 - x^3 for x from -1 to 1, with noise.
class Points {
public:
    explicit Points(unsigned seed) : random_(seed) {}

    Coefficients gradient(const Coefficients &weights) {
        Coefficients gradient(4, 0.0F);
        loss_ = 0;
        std::this_thread::sleep_for(std::chrono::milliseconds(4)); // a larger model takes its time
        for (int i = 0; i < HALF; i++) {
            const float x = place_(random_);
            const float powers[4] = {1, x, x * x, x * x * x};
            float error = -(1 - 2 * x + 3 * x * x - x * x * x) + noise_(random_);
            for (int k = 0; k < 4; k++)
                error += weights[k] * powers[k];
            for (int k = 0; k < 4; k++)
                gradient[k] += 2 * error * powers[k] / HALF;
            loss_ += error * error / HALF;
        }
        return gradient;
    }

    // Mean squared error of the last of them.
    float loss() const { return loss_; }

private:
    float loss_ = 0;
    std::mt19937 random_;
    std::uniform_real_distribution<float> place_{-1, 1};
    std::normal_distribution<float> noise_{0, 0.05F};
};

// Says once a second how it goes.
class Progress {
public:
    void tell(std::uint64_t step, float loss, std::uint32_t peers) {
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::duration<double> since = now - said_;
        if (since.count() < 1)
            return;
        std::printf("step %lu: loss %.6f, %lu peers, %.0f steps/s\n", static_cast<unsigned long>(step),
                    static_cast<double>(loss), static_cast<unsigned long>(peers),
                    static_cast<double>(step - told_) / since.count());
        std::fflush(stdout);
        said_ = now;
        told_ = step;
    }

private:
    std::chrono::steady_clock::time_point said_ = std::chrono::steady_clock::now();
    std::uint64_t told_ = 0;
};

// A weight that counts for nothing beside any other.
constexpr double NEXT_TO_NOTHING = std::numeric_limits<double>::min();

pccl::Reduce average(pccl::Communicator &comm, Coefficients &gradient, double weight, std::uint64_t tag) {
    const auto described = pccl::describe(gradient, {pcclAvg, tag});
    return comm.weighted_average_async(described.recvbuf, weight, described.descriptor);
}

void step(pccl::Communicator &comm, pccl::SharedState &state, Model &model, Points &points) {
    Coefficients first(4, 0.0F), second;
    double weight = NEXT_TO_NOTHING;
    // A peer that has just come with the model has no part in the first half: the others have computed it, and wait
    // for nobody.
    if (!comm.sync(state).came_ahead) {
        // Newcomers fetch the model meanwhile. It has not changed since the sync, so it need not be hashed again.
        const pccl::Loan loan = comm.lend(state, true);
        first = points.gradient(model.weights);
        weight = 1;
    }
    // A peer that waits and holds the model is let in before that changes: these syncs move nothing.
    while (comm.are_peers_pending()) {
        comm.update_topology();
        comm.sync(state);
    }
    {
        pccl::Reduce reduce_first = average(comm, first, weight, 1);
        second = points.gradient(model.weights);
        pccl::Reduce reduce_second = average(comm, second, 1, 2);
        reduce_first.wait();
        reduce_second.wait();
    }
    for (int k = 0; k < 4; k++) {
        model.momentum[k] = MOMENTUM * model.momentum[k] + (first[k] + second[k]) / 2;
        model.weights[k] -= (1 - MOMENTUM) * RATE * model.momentum[k];
    }
    state.revision++;
}

Model train(const std::string &master, std::uint32_t peers) {
    Model model;
    pccl::SharedState state;
    state.add("weights", model.weights);
    state.add("momentum", model.momentum);
    pccl::Communicator comm(master);
    std::printf("waiting for the master at %s, and for %lu peers\n", master.c_str(), static_cast<unsigned long>(peers));
    std::fflush(stdout);
    // Connects, to a master that may not be there yet, and waits until there are enough peers.
    comm.recover(pcclRemedyReconnect, peers, state);
    Points points(comm.world().rank + 1);
    Progress progress;
    // Each failure is made good, and its step is made again.
    comm.run(2, state, [&] { return state.revision < STEPS; }, [&] {
        step(comm, state, model, points);
        progress.tell(state.revision, points.loss(), comm.world().group_size);
    });
    // The proof that all peers have the same model.
    comm.sync(state);
    return model;
}

} // namespace

int main(int count, char **arguments) {
    const std::string port = count > 1 ? arguments[1] : "48148";
    const auto peers = static_cast<std::uint32_t>(count > 2 ? std::stoul(arguments[2]) : 2);
    try {
        const Coefficients weights = train("127.0.0.1:" + port, peers).weights;
        std::printf("y = %.6f %+.6f x %+.6f x^2 %+.6f x^3\n",
                    static_cast<double>(weights[0]), static_cast<double>(weights[1]),
                    static_cast<double>(weights[2]), static_cast<double>(weights[3]));
        return std::abs(weights[2] - 3) < 0.2F ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
