// All-reduces of MPI: mpirun -np PEERS --mca btl tcp,self mpi [several]

#include <mpi.h>

#include <cstring>

#include "measure.h"

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank, peers;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peers);
    std::vector<float> data(64u << 20, 1.0f);
    auto one = [](double value, MPI_Op op) {
        double result;
        MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
        return result;
    };
    auto reduce = [&](size_t bytes) {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    };
    auto in_flight = [&](int tensors, size_t bytes) {
        const int count = static_cast<int>(bytes / sizeof(float));
        std::vector<MPI_Request> requests(tensors);
        for (int i = 0; i < tensors; i++)
            MPI_Iallreduce(MPI_IN_PLACE, data.data() + static_cast<size_t>(i) * count, count, MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD, &requests[i]);
        MPI_Waitall(tensors, requests.data(), MPI_STATUSES_IGNORE);
    };
    auto sum = [&](double value) { return one(value, MPI_SUM); };
    auto largest = [&](double value) { return one(value, MPI_MAX); };
    if (argc > 1 && strcmp(argv[1], "several") == 0)
        measure_several("mpi", rank, peers, reduce, in_flight, sum, largest);
    else
        measure("mpi", rank, peers, reduce, sum, largest);
    MPI_Finalize();
}
