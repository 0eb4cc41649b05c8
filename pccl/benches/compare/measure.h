// The measurements of other libraries share this: sizes, clocks, and the line of the table, as `all_reduce` prints it.
#pragma once

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

struct Work {
    const char* name;
    size_t bytes;    // of one operation
    int operations;  // in a row
    int repetitions;
    bool small;
};

// As many repetitions as make a measurement long enough to be read, and short enough to be waited for.
static const std::vector<Work> WORK = {
    {"16 MiB", 16u << 20, 1, 16, false},
    {"64 MiB", 64u << 20, 1, 8, false},
    {"256 MiB", 256u << 20, 1, 3, false},
    {"64 tensors of 1 MiB", 1u << 20, 64, 4, false},
    {"1 KiB", 1u << 10, 1, 2000, true},
    {"64 KiB", 64u << 10, 1, 500, true},
    {"1 MiB", 1u << 20, 1, 100, true},
};
static const int ROUNDS = 5;

static double now_seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static double cpu_seconds() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Measures everything in this process. `reduce` reduces the given number of bytes, `sum` adds one number over all
// ranks, `largest` takes the largest. Rank 0 prints.
static void measure(const char* library, int rank, int peers, const std::function<void(size_t)>& reduce,
                    const std::function<double(double)>& sum, const std::function<double(double)>& largest) {
    for (const Work& work : WORK) {
        std::vector<double> seconds, cpu;
        for (int round = 0; round <= ROUNDS; round++) {
            double start = now_seconds(), start_cpu = cpu_seconds();
            for (int i = 0; i < work.repetitions * work.operations; i++) reduce(work.bytes);
            double taken = largest(now_seconds() - start), spent = sum(cpu_seconds() - start_cpu);
            if (round > 0) {  // the first touches the memory for the first time
                seconds.push_back(taken / work.repetitions);
                cpu.push_back(spent / work.repetitions);
            }
        }
        std::sort(seconds.begin(), seconds.end());
        std::sort(cpu.begin(), cpu.end());
        double time = seconds[ROUNDS / 2], spent = cpu[ROUNDS / 2], volume = 1e-9 * work.bytes * work.operations;
        if (rank != 0) continue;
        if (work.small)
            printf("%-8s %d peers  %-20s %10.0f ops/s %8.3f ms %8.3f CPU ms/op\n", library, peers, work.name, 1 / time,
                   time * 1e3, spent * 1e3);
        else
            printf("%-8s %d peers  %-20s %10.2f GB/s  %8.2f CPU s/GB\n", library, peers, work.name, volume / time,
                   spent / volume);
        fflush(stdout);
    }
}

struct Several {
    const char* name;
    int tensors;
    size_t bytes;  // of each
};

static const std::vector<Several> SEVERAL = {
    {"64 x 1 MiB in flight", 64, 1u << 20},
    {"8 x 32 MiB in flight", 8, 32u << 20},
};
// Bytes of one measurement, as `all_reduce --several` has them by default.
static const size_t SEVERAL_VOLUME = size_t{512} << 20;

// The cost of several tensors, each case beside one operation of the same bytes, in turns: the table of
// `all_reduce --several`. `several` reduces a number of tensors of a number of bytes each, all of them in flight at the
// same time.
static void measure_several(const char* library, int rank, int peers, const std::function<void(size_t)>& reduce,
                            const std::function<void(int, size_t)>& several,
                            const std::function<double(double)>& sum, const std::function<double(double)>& largest) {
    if (rank == 0)
        printf("\n%d peers, %s\n%-34s%8s%10s%8s%10s\n", peers, library, "", "GB/s", "CPU s/GB", "time", "CPU time");
    for (const Several& work : SEVERAL) {
        const size_t all = work.tensors * work.bytes;
        const int repetitions = static_cast<int>(std::max<size_t>(SEVERAL_VOLUME / all, 1));
        std::vector<double> seconds, cpu, ratio, cpu_ratio;
        for (int round = 0; round <= ROUNDS; round++) {
            double taken[2], spent[2];
            for (int which = 0; which < 2; which++) {
                double start = now_seconds(), start_cpu = cpu_seconds();
                for (int i = 0; i < repetitions; i++) {
                    if (which == 0)
                        reduce(all);
                    else
                        several(work.tensors, work.bytes);
                }
                taken[which] = largest(now_seconds() - start);
                spent[which] = sum(cpu_seconds() - start_cpu);
            }
            if (round == 0) continue;  // the first touches the memory for the first time
            seconds.push_back(taken[1]);
            cpu.push_back(spent[1]);
            ratio.push_back(taken[1] / taken[0]);
            cpu_ratio.push_back(spent[1] / spent[0]);
        }
        auto median = [](std::vector<double>& values) {
            std::sort(values.begin(), values.end());
            return values[ROUNDS / 2];
        };
        const double volume = 1e-9 * static_cast<double>(all) * repetitions;
        const double time = median(seconds), spent = median(cpu);
        if (rank != 0) continue;
        printf("%-34s%8.2f%10.2f%8.2f%10.2f\n", work.name, volume / time, spent / volume, median(ratio),
               median(cpu_ratio));
        fflush(stdout);
    }
}
