// All-reduces of Gloo over TCP between processes of this machine: gloo PEERS FOLDER. The folder, empty, is where they
// meet.

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "measure.h"

static void run(int rank, int peers, const char* folder) {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, peers);
    context->connectFullMesh(store, device);

    std::vector<float> data(64u << 20, 1.0f);
    auto reduce = [&](float* start, size_t count, gloo::AllreduceOptions::Func function) {
        gloo::AllreduceOptions options(context);
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
    measure(
        "gloo", rank, peers, [&](size_t bytes) { reduce(data.data(), bytes / sizeof(float), add); },
        [&](double value) { return one(value, add); }, [&](double value) { return one(value, max); });
}

int main(int argc, char** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: gloo PEERS FOLDER\n");
        return 2;
    }
    int peers = atoi(argv[1]);
    for (int rank = 0; rank < peers; rank++) {
        if (fork() == 0) {
            run(rank, peers, argv[2]);
            _exit(0);
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status != 0;
    return failed;
}
