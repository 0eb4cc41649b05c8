// Loans and newcomers of pccl.hpp: a master, two peers that train, and one that joins them, each on a thread.
#include "check.h"

#include <pccl.hpp>

#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

using namespace pccl;

namespace {

constexpr std::uint64_t REVISIONS = 12;

// The model of a peer: the same on all of them after each sync.
struct Training {
    std::vector<float> weights = std::vector<float>(300000, 0.0F);
    SharedState state;

    Training() { state.add("weights", weights); }
};

// One step: the state is lent while this peer computes, whoever waits is let in before it changes, and a peer that has
// just come with it has computed nothing.
void step(Communicator &comm, Training &training, bool &came, bool &worked) {
    float change = 0;
    pcclSyncInfo_t info = comm.sync(training.state);
    came |= info.came_ahead;
    bool computed = false;
    for (;;) {
        if (!computed && !info.came_ahead) {
            const Loan loan = comm.lend(training.state, true);
            change = 1 + training.weights[0] * 0;
            computed = true;
        }
        if (!comm.are_peers_pending())
            break;
        comm.update_topology();
        SyncOptions options;
        options.unchanged.emplace_back("weights", training.state.revision);
        info = comm.sync(training.state, options);
        CHECK(info.rx_bytes == 0);
    }
    worked |= computed;
    pcclReduceDescriptor_t descriptor{};
    descriptor.count = 1;
    descriptor.src_descriptor.datatype = pcclFloat;
    comm.weighted_average(&change, computed ? 1 : 0, descriptor);
    for (float &weight : training.weights)
        weight += change;
    training.state.revision++;
}

// Steps until the newcomer has come and all have made this number.
float train(const std::string &master, std::uint32_t peers, std::promise<void> *lent,
            const std::shared_future<void> &fetched, bool newcomer) {
    Training training;
    Communicator comm(master);
    comm.first_ports(0, 0).set("upload_share_pct", "100");
    bool came = false, worked = false;
    if (!newcomer) {
        comm.recover(pcclRemedyReconnect, peers);
        // Until the newcomer has the state, so that nothing depends on who is how fast.
        comm.sync(training.state);
        Loan loan = comm.lend(training.state);
        Loan moved = std::move(loan);
        lent->set_value();
        fetched.wait();
        while (!comm.are_peers_pending())
            std::this_thread::yield();
        moved.end();
        moved.end();
        comm.update_topology();
    }
    comm.run(2, training.state, [&] { return training.state.revision < REVISIONS; },
             [&] { step(comm, training, came, worked); });
    CHECK(came == newcomer && worked);
    comm.synchronise(training.state);
    return training.weights.back();
}

// A copy is lent while the tensors change; what progress throws is thrown in the end.
void snapshots(const std::string &master) {
    Training training;
    Communicator alone(master, 7);
    alone.first_ports(0, 0);
    try {
        alone.lend_snapshot(training.state);
        CHECK(!"it is not connected");
    } catch (const Error &error) {
        CHECK(error.cause() == "NotConnected");
    }
    CHECK(!alone.connect(training.state, {}, Milliseconds(120000)).has_revision);
    alone.sync(training.state);
    alone.lend_snapshot(training.state, true);
    training.weights[0] = 5;
    try {
        alone.lend_snapshot(training.state);
        CHECK(!"it has changed");
    } catch (const Error &error) {
        CHECK(error.result() == pcclInvalidUsage);
    }
    alone.end_snapshot();
    SyncOptions wrong;
    wrong.unchanged.emplace_back("weihgts", 0);
    try {
        alone.sync(training.state, wrong);
        CHECK(!"there is no such tensor");
    } catch (const Error &error) {
        CHECK(error.result() == pcclInvalidArgument);
    }
    alone.close();
}

} // namespace

int main() {
    Master master("127.0.0.1:0");
    master.run();
    const std::string address = "127.0.0.1:" + std::to_string(master.port());
    {
        std::promise<void> lent[2], held;
        const std::shared_future<void> fetched = held.get_future().share();
        bool heard = false;
        LogSink sink([&](pcclLogLevel_t, const char *, const char *text) {
            if (!heard && strstr(text, "before it is let in") != nullptr) {
                heard = true;
                held.set_value();
            }
        }, pcclLogInfo);
        auto first = std::async(std::launch::async, train, address, 2, &lent[0], fetched, false);
        auto second = std::async(std::launch::async, train, address, 2, &lent[1], fetched, false);
        lent[0].get_future().wait();
        lent[1].get_future().wait();
        auto third = std::async(std::launch::async, train, address, 2, nullptr, fetched, true);
        const float end = first.get();
        CHECK(end == static_cast<float>(REVISIONS) && second.get() == end && third.get() == end);
    }
    snapshots(address);
    return 0;
}
