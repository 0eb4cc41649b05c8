// All-reduces of Gloo over TCP between processes of this machine: gloo PEERS FOLDER [several]. The folder, empty, is
// where they meet. An operation of Gloo takes a thread for as long as it lasts, so several are in flight on as many
// threads, at most eight, each with a tag of its own.

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "measure.h"

static const int THREADS = 8;

static void run(int rank, int peers, const char* folder, bool several) {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, peers);
    context->connectFullMesh(store, device);

    std::vector<float> data(64u << 20, 1.0f);
    auto reduce = [&](float* start, size_t count, gloo::AllreduceOptions::Func function, uint32_t tag = 0) {
        gloo::AllreduceOptions options(context);
        options.setTag(tag);
        options.setOutput(start, count);
        options.setReduceFunction(function);
        gloo::allreduce(options);
    };
    auto add = [](void* c, const void* a, const void* b, size_t n) {
        gloo::sum<float>(static_cast<float*>(c), static_cast<const float*>(a), static_cast<const float*>(b), n);
    };
    auto max = [](void* c, const void* a, const void* b, size_t n) {
        gloo::max<float>(static_cast<float*>(c), static_cast<const float*>(a), static_cast<const float*>(b), n);
    };
    auto one = [&](double value, gloo::AllreduceOptions::Func function) {
        float number = static_cast<float>(value);
        reduce(&number, 1, function);
        return static_cast<double>(number);
    };
    if (several) {
        auto in_flight = [&](int tensors, size_t bytes) {
            // Every peer begins them in the same order, and tensors that are in flight have different tags.
            std::atomic<int> next{0};
            std::vector<std::thread> threads;
            for (int thread = 0; thread < std::min(THREADS, tensors); thread++) {
                threads.emplace_back([&] {
                    for (int tensor; (tensor = next++) < tensors;) {
                        const size_t count = bytes / sizeof(float);
                        reduce(data.data() + tensor * count, count, add, static_cast<uint32_t>(tensor + 1));
                    }
                });
            }
            for (std::thread& thread : threads) thread.join();
        };
        measure_several(
            "gloo", rank, peers, [&](size_t bytes) { reduce(data.data(), bytes / sizeof(float), add); }, in_flight,
            [&](double value) { return one(value, add); }, [&](double value) { return one(value, max); });
        return;
    }
    measure(
        "gloo", rank, peers, [&](size_t bytes) { reduce(data.data(), bytes / sizeof(float), add); },
        [&](double value) { return one(value, add); }, [&](double value) { return one(value, max); });
}

int main(int argc, char** argv) {
    const bool several = argc == 4 && strcmp(argv[3], "several") == 0;
    if (argc != 3 && !several) {
        fprintf(stderr, "usage: gloo PEERS FOLDER [several]\n");
        return 2;
    }
    int peers = atoi(argv[1]);
    for (int rank = 0; rank < peers; rank++) {
        if (fork() == 0) {
            run(rank, peers, argv[2], several);
            _exit(0);
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status != 0;
    return failed;
}
