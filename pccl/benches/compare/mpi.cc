// All-reduces of MPI: mpirun -np PEERS --mca btl tcp,self mpi

#include <mpi.h>

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
    measure(
        "mpi", rank, peers,
        [&](size_t bytes) {
            MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
        },
        [&](double value) { return one(value, MPI_SUM); }, [&](double value) { return one(value, MPI_MAX); });
    MPI_Finalize();
}
