// The object of pccl_diloco.hpp: a master, and a member that is alone.
#include "check.h"

#include <pccl_diloco.hpp>

using namespace pccl;

// A run that counts samples: each adds one to the weight of its number.
static void with_samples(const Master &master) {
    Communicator comm("127.0.0.1:" + std::to_string(master.port()));
    comm.set("first_p2p_port", "0").set("first_state_port", "0").set("peer_group", "1");
    std::vector<float> weights(30, 0.0F);
    DiLoCo run(comm);
    run.set("every", "2").set("min_world", "1").set("outer", "average");
    run.set("samples", "30").set("samples_seed", "4").set("samples_epochs", "2").set("samples_held", "16");
    run.join(weights);
    while (!run.samples().second) {
        const std::vector<std::uint64_t> taken = run.take_samples(4);
        for (const std::uint64_t sample : taken)
            weights[sample] += 1;
        CHECK(run.samples().first == taken.size());
        run.count_samples(taken.size());
        run.step(weights, static_cast<double>(taken.size()));
    }
    std::vector<std::uint64_t> counted;
    for (std::uint64_t round = 0; round < run.stats().rounds; round++)
        for (const std::uint64_t sample : run.counted_samples(round))
            counted.push_back(sample);
    CHECK(counted.size() == 60);
    run.finish(weights, Milliseconds(60000));
    CHECK(weights == std::vector<float>(30, 2.0F));
}

int main() {
    CHECK(pcclInit() == pcclSuccess);
    Master master("127.0.0.1:0");
    master.run();
    Communicator comm("127.0.0.1:" + std::to_string(master.port()));
    comm.set("first_p2p_port", "0").set("first_state_port", "0");
    std::vector<float> weights(100, 1.0F);
    DiLoCo run(comm);
    run.set("every", "4").set("min_world", "1").set("outer", "average");
    try {
        run.step(weights);
        CHECK(!"it has not joined");
    } catch (const Error &error) {
        CHECK(error.result() == pcclInvalidUsage);
    }
    run.join(weights);
    while (run.step_index() < 20) {
        for (float &weight : weights)
            weight += 1;
        run.step(weights, 16);
    }
    run.finish(weights, Milliseconds(60000));
    // Five rounds of the mean of one member: it is where its own steps have led it.
    CHECK(weights == std::vector<float>(100, 21.0F));
    const pcclDilocoStats_t stats = run.stats();
    CHECK(stats.rounds == 5 && stats.weight == 320 && stats.sent_bytes == 0);
    CHECK(run.take_report().find("round 0 | fragment 0 | 1 contributors") == 0);
    with_samples(master);
    return 0;
}
