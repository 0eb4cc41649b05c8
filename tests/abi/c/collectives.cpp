// The collectives of pccl.hpp, made by three peers in threads of their own: PORT.
#include "check.h"

#include <pccl.hpp>

#include <thread>

using namespace pccl;

static const std::uint32_t PEERS = 3;

// Makes a call by its blocking method and by the one that begins it.
template <typename Reset, typename Block, typename Begin, typename Look>
static void both(Reset reset, Block block, Begin begin, Look look) {
    reset();
    CHECK(block().local_world_size == PEERS);
    look();
    reset();
    CHECK(begin().wait().local_world_size == PEERS);
    look();
}

static void calls(Communicator &comm) {
    const std::uint32_t rank = comm.world().rank;
    std::vector<float> data, parts, all;
    const std::vector<std::size_t> counts{1, 0, 2};
    const auto own = static_cast<float>(rank + 1);
    const auto reset = [&] {
        data.assign(2, own);
        parts.assign(6, own);
        all.assign(6, -1.0F);
    };
    const auto two = describe(2, pcclFloat, pcclSum, 1), six = describe(6, pcclFloat, pcclMax, 1),
               six_moved = describe(6, pcclFloat, pcclSum, 1);
    both(reset, [&] { return comm.broadcast(data.data(), 2, two); },
         [&] { return comm.broadcast_async(data.data(), 2, two); }, [&] { CHECK(data[0] == 3 && data[1] == 3); });
    both(reset, [&] { return comm.reduce(data.data(), 1, two); },
         [&] { return comm.reduce_async(data.data(), 1, two); }, [&] { CHECK(data[1] == (rank == 1 ? 6 : own)); });
    both(reset, [&] { return comm.all_gather(data.data(), all.data(), 6, two); },
         [&] { return comm.all_gather_async(data.data(), all.data(), 6, two); },
         [&] { CHECK(all == std::vector<float>({1, 1, 2, 2, 3, 3})); });
    const auto mine = describe(counts[rank], pcclFloat, pcclSum, 1);
    both(reset, [&] { return comm.all_gather_v(data.data(), all.data(), 3, counts, mine); },
         [&] { return comm.all_gather_v_async(data.data(), all.data(), 3, counts, mine); },
         [&] { CHECK(all == std::vector<float>({1, 3, 3, -1, -1, -1})); });
    both(reset, [&] { return comm.reduce_scatter(parts.data(), data.data(), 2, six); },
         [&] { return comm.reduce_scatter_async(parts.data(), data.data(), 2, six); },
         [&] { CHECK(data == std::vector<float>({3, 3}) && parts[0] == own); });
    const auto three = describe(3, pcclFloat, pcclSum, 1);
    both(reset, [&] { return comm.reduce_scatter_v(parts.data(), data.data(), counts[rank], counts, three); },
         [&] { return comm.reduce_scatter_v_async(parts.data(), data.data(), counts[rank], counts, three); },
         [&] { CHECK(data[0] == (counts[rank] > 0 ? 6 : own) && data[1] == (counts[rank] > 1 ? 6 : own)); });
    both(reset, [&] { return comm.gather(data.data(), all.data(), 6, 1, two); },
         [&] { return comm.gather_async(data.data(), all.data(), 6, 1, two); },
         [&] { CHECK(all == (rank == 1 ? std::vector<float>({1, 1, 2, 2, 3, 3}) : std::vector<float>(6, -1.0F))); });
    both(reset, [&] { return comm.gather_v(data.data(), all.data(), 3, 0, counts, mine); },
         [&] { return comm.gather_v_async(data.data(), all.data(), 3, 0, counts, mine); },
         [&] { CHECK(all[0] == (rank == 0 ? 1 : -1) && all[1] == (rank == 0 ? 3 : -1)); });
    both(reset, [&] { return comm.scatter(parts.data(), 6, data.data(), 2, two); },
         [&] { return comm.scatter_async(parts.data(), 6, data.data(), 2, two); },
         [&] { CHECK(data == std::vector<float>({3, 3})); });
    both(reset, [&] { return comm.scatter_v(parts.data(), 3, data.data(), 2, counts, mine); },
         [&] { return comm.scatter_v_async(parts.data(), 3, data.data(), 2, counts, mine); },
         [&] { CHECK(data[0] == (counts[rank] > 0 ? 3 : own) && data[1] == (counts[rank] > 1 ? 3 : own)); });
    both(reset, [&] { return comm.all_to_all(parts.data(), all.data(), six_moved); },
         [&] { return comm.all_to_all_async(parts.data(), all.data(), six_moved); },
         [&] { CHECK(all == std::vector<float>({1, 1, 2, 2, 3, 3})); });
    // Each sends as much as the receiver's rank says.
    const auto pairs = comm.exchange_counts({0, 1, 2}, std::vector<std::size_t>(3, rank));
    CHECK(pairs == std::vector<std::size_t>({0, 1, 2, 0, 1, 2, 0, 1, 2}));
    both(reset, [&] { return comm.all_to_all_v(parts.data(), all.data(), 3 * rank, pairs, three); },
         [&] { return comm.all_to_all_v_async(parts.data(), all.data(), 3 * rank, pairs, three); },
         [&] { CHECK(all[0] == (rank == 0 ? -1 : 1) && all[5] == (rank == 2 ? 3 : -1)); });
    both(reset, [&] { return comm.weighted_average(data.data(), own, two); },
         [&] { return comm.weighted_average_async(data.data(), own, two); },
         [&] { CHECK(data[0] == static_cast<float>(14.0 / 6.0)); });
    reset();
    data[0] = rank == 0 ? 1000.0F : 1.0F;
    data[1] = 0.0F;
    const Clip clip = comm.clip_to_median(data, 4.0);
    CHECK(clip.median == 1 && clip.peers.size() == PEERS && clip.peers[0].scale < 1 && clip.peers[1].scale == 1);
    CHECK(data[0] == (rank == 0 ? 4.0F : 1.0F) && (clip.scale < 1) == (rank == 0));
    both(reset, [&] { return comm.barrier(); }, [&] { return comm.barrier_async(9); }, [] {});
    try {
        comm.broadcast(data.data(), PEERS, two);
        CHECK(!"there is such a rank");
    } catch (const Error &error) {
        CHECK(error.result() == pcclInvalidArgument && error.remedy() == pcclRemedyGiveUp);
    }
    std::vector<double> weights(10, rank == 2 ? 1.5 : 0.5);
    SharedState state;
    CHECK(comm.diff(state).tensors.empty());
    state.add("weights", weights);
    const StateDiff diff = comm.diff(state);
    CHECK(diff.tensors.size() == 1 && diff.peers_apart.at(0).size() == 1 && diff.tensors[0].is_apart == (rank == 2));
    CHECK(diff.text.find("first at element 0") != std::string::npos);
    std::uint64_t fetched = 0;
    const auto info = comm.synchronise(state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR,
                                       [&](const pcclSyncProgress_t &seen) { fetched = seen.done_bytes; });
    CHECK(weights[0] == 0.5 && fetched == info.rx_bytes && (fetched > 0) == (rank == 2));
    // The root has gone when the others call: they are told so, and keep what they have.
    comm.barrier(10);
    if (rank == 2) {
        comm.close();
        return;
    }
    reset();
    try {
        // Only a world of which this peer knows has that root.
        comm.broadcast(data.data(), 2, two);
        CHECK(!"it has got it from nobody");
    } catch (const Error &error) {
        CHECK(error.cause() == "WorldChanged" && error.remedy() == pcclRemedyRetry && data[0] == own);
    }
    CHECK(comm.world().group_size == 2);
}

int main() {
    Master master("127.0.0.1:0");
    master.run();
    const std::string address = "127.0.0.1:" + std::to_string(master.port());
    std::vector<std::thread> peers;
    for (std::uint32_t i = 0; i < PEERS; i++) {
        peers.emplace_back([&address] {
            Communicator comm(address);
            comm.first_ports(0, 0).connect();
            comm.wait_for_world(PEERS);
            calls(comm);
        });
    }
    for (std::thread &peer : peers)
        peer.join();
    return 0;
}
