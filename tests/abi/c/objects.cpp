// The objects of pccl.hpp: a master and a lone peer of it.
#include "check.h"

#include <pccl.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include <unistd.h>

using namespace pccl;

static void loops(Communicator &comm) {
    std::vector<float> weights(4, 1.0F);
    std::uint64_t step = 7;
    SharedState state;
    state.add("weights", weights).add("step", step);
    int steps = 0;
    comm.run(1, [&] { return steps < 3; },
             [&] {
                 comm.synchronise(state);
                 state.revision++;
                 comm.admit();
                 // As a loss of the master is: the loop connects again.
                 if (++steps == 2)
                     check(pcclClose(comm.get()), "close");
                 if (steps == 2)
                     comm.recover(pcclRemedyReconnect, 1);
             });
    CHECK(steps == 3 && state.revision == 3 && comm.is_connected());
}

static void failures(Communicator &comm) {
    std::vector<float> weights(4, 1.0F);
    try {
        comm.all_reduce(weights, pcclSum);
        CHECK(!"a peer that is alone reduces");
    } catch (const Error &error) {
        CHECK(error.result() == pcclTooFewPeers && error.cause() == "TooFewPeers" && error.culprits().empty());
        CHECK(error.remedy() == pcclRemedyWaitForPeers);
    }
    try {
        comm.wait_for_world(2, Milliseconds(1));
        CHECK(!"there are two");
    } catch (const Error &error) {
        CHECK(error.cause() == "TimedOut");
    }
    try {
        comm.run(1, [] { return true; }, [&] { comm.attribute(static_cast<pcclAttribute_t>(9)); });
    } catch (const Error &error) {
        CHECK(error.result() == pcclInvalidArgument && error.remedy() == pcclRemedyGiveUp);
    }
    // Another thread ends the loop.
    std::thread closes;
    try {
        comm.run(1, [] { return true; },
                 [&] {
                     if (!closes.joinable())
                         closes = std::thread([&] { comm.close(); });
                     comm.admit();
                 });
        CHECK(!"it has ended by itself");
    } catch (const Error &error) {
        CHECK(error.cause() == "NotConnected");
    }
    closes.join();
}

static void iterations() {
    Store store("127.0.0.1:0");
    GlobalIteration one("127.0.0.1:" + std::to_string(store.port()), "cpp", "0", 1);
    one.policy(pcclIterationStrictMajority).first(7).mirror(false).time(pcclIterationTimeJoin, no_timeout);
    pcclIterationInfo_t info{};
    CHECK(!one.current(info));
    CHECK(one.join("hello").iteration == 7 && one.current(info) && info.members == 1);
    one.force_members({"0"});
    CHECK(one.advance(std::string(4096, 'x')).iteration == 8 && one.decision().iteration == 8);
    const std::vector<GlobalIteration::Member> members = one.members();
    CHECK(members.size() == 1 && members[0].id == "0" && members[0].payload == std::string(4096, 'x'));
    one.leave();
    try {
        one.advance();
        CHECK(!"it has left");
    } catch (const Error &error) {
        CHECK(error.cause() == "NotMember" && error.remedy() == pcclRemedyReconnect);
    }
    one.catch_up();
    CHECK(one.members()[0].life == 2);
    one.cancel();
}

static void files() {
    const auto directory = std::filesystem::temp_directory_path();
    const std::string path = (directory / ("pccl-cpp-" + std::to_string(getpid()) + ".safetensors")).string();
    std::vector<float> weights{1, 2, 3};
    std::uint64_t step = 5;
    SharedState state;
    state.add("weights", weights).add("step", step).revision = 9;
    CHECK(state.save(path) > 4096 && state.save(path, true) > 4096);
    weights = {0, 0, 0};
    step = 0;
    SharedState loaded;
    loaded.add("weights", weights).add("step", step).load(path);
    CHECK(loaded.revision == 9 && step == 5 && weights == (std::vector<float>{1, 2, 3}));
    // A change while it is saved is not in it.
    step = 6;
    Saving saving = loaded.save_while(path);
    Saving moved = std::move(saving);
    step = 7;
    weights = {9, 9, 9};
    CHECK(moved.wait() > 4096);
    loaded.load(path);
    CHECK(loaded.revision == 9 && step == 6 && weights == (std::vector<float>{1, 2, 3}));
    {
        Saving dropped = loaded.save_while(path, true);
    }
    CHECK(std::filesystem::exists(path + ".previous"));
    try {
        loaded.save_while("/proc/nobody/can/write/here").wait();
        CHECK(!"it can be written");
    } catch (const Error &error) {
        CHECK(error.cause() == "System" && error.result() == pcclInternalError);
    }
    std::vector<float> more(4, 7.0f);
    SharedState other;
    try {
        other.add("weights", more).add("step", step).load(path);
        CHECK(!"it has another shape");
    } catch (const Error &error) {
        CHECK(error.cause() == "StateFileError" && error.result() == pcclNoSharedStateAvailable);
        CHECK(std::string(error.what()).find("weights") != std::string::npos && more[0] == 7.0f);
    }
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".previous");
}

// Two masters with one list: the first begins a run and ends it, although the other one stands by.
static void masters_of_a_list() {
    // Addresses of this process alone, with the usual port.
    const int process = static_cast<int>(getpid());
    const std::string net = "127." + std::to_string(200 + process / 256 % 50) + "." + std::to_string(process % 256);
    const std::string first = net + ".1", second = net + ".2", list = first + "," + second;
    Master begins(first + ":48148"), stands_by(second + ":48148");
    stands_by.set("masters", list).run();
    begins.set("masters", list).set("me", first).run();
    Communicator comm(first + ":48148," + second + ":48148");
    comm.first_ports(0, 0).connect();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (comm.status(false).find("standbys: " + second + ":48148") == std::string::npos)
        CHECK(std::chrono::steady_clock::now() < deadline);
    begins.end_run();
    begins.wait();
    try {
        comm.admit();
        CHECK(!"the run has ended");
    } catch (const Error &error) {
        CHECK(error.cause() == "MasterStopping" && error.remedy() == pcclRemedyReconnect);
    }
    CHECK(begins.has_ended() && !stands_by.has_ended());
    stands_by.end_run();
    stands_by.wait();
    CHECK(stands_by.has_ended());
}

int main() {
    iterations();
    files();
    masters_of_a_list();
    std::atomic<int> lines{0}, own{0};
    {
        LogSink sink(
            [&](pcclLogLevel_t, const char *, const char *text) {
                lines++;
                own += std::string(text).find("a line of the program") != std::string::npos;
            },
            pcclLogDebug);
        write_log(pcclLogInfo, "a line of the program");
        Master master("127.0.0.1:0");
        master.set("min_world_size", "1").set("peer_timeout", Milliseconds(60000));
        master.set("straggler_timeout", no_timeout).set("wire", "encrypt");
        master.set("edge_timeout", Milliseconds(4000)).run();
        Communicator comm("127.0.0.1:" + std::to_string(master.port()));
        comm.first_ports(0, 0).set("strict_ports", "false").set("outbound_only", "false");
        comm.set("name", "one").set("bind", "127.0.0.1").set("frame_checksums", "always");
        comm.set("connect_timeout", Milliseconds(60000)).call_timeout(no_timeout);
        comm.schedule(pcclScheduleRing);
        loops(comm);
        CHECK(comm.name() == "one" && comm.ring().size() == 1 && comm.world().rank == 0);
        CHECK(memcmp(comm.ring()[0].data, comm.id().data, sizeof comm.id().data) == 0);
        CHECK(comm.status(true).find("\"one\"") != std::string::npos && comm.last_verdict().empty());
        failures(comm);
        master.interrupt();
        master.wait();
        CHECK(master.has_ended());
    }
    CHECK(has_cuda_support() || device_count() == 0);
    CHECK(lines > 0 && own == 1 && Staged<float>(nullptr, 0).size() == 0 && !version().empty());
    return 0;
}
