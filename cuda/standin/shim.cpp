#include "shim.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>

Index threadIdx;
Index blockIdx;

namespace {
constexpr size_t STACK_BYTES = 32 << 10;

/// Lives from block to block: what begins one costs more than what it does.
struct Thread {
    ucontext_t context;
    jmp_buf place;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    bool begun = false;
    bool ended = false;
};

ucontext_t first_scheduler;
jmp_buf scheduler;
Thread *running;
void (*kernel_now)(void **);
void **params_now;
/// Never destroyed: what it holds lives as long as the process.
std::vector<Thread *> &all = *new std::vector<Thread *>;

void leave() {
    if (_setjmp(running->place) == 0) {
        _longjmp(scheduler, 1);
    }
}

void entry() {
    for (;;) {
        kernel_now(params_now);
        running->ended = true;
        leave();
    }
}

void go_on(Thread *thread) {
    running = thread;
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (thread->begun) {
        _longjmp(thread->place, 1);
    }
    thread->begun = true;
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = thread->stack.data();
    thread->context.uc_stack.ss_size = STACK_BYTES;
    thread->context.uc_link = nullptr;
    makecontext(&thread->context, entry, 0);
    swapcontext(&first_scheduler, &thread->context);
}
}

void __syncthreads() {
    leave();
}

void shim::run_block(unsigned block, unsigned threads, void (*kernel)(void **), void **params) {
    kernel_now = kernel;
    params_now = params;
    blockIdx = {block, 0, 0};
    while (all.size() < threads) {
        all.push_back(new Thread);
    }
    for (unsigned i = 0; i < threads; i++) {
        all[i]->ended = false;
    }
    unsigned left = threads;
    for (unsigned turn = 0; left > 0; turn++) {
        unsigned before = left;
        for (unsigned k = 0; k < threads; k++) {
            // Forwards, backwards, and from the middle on: no order may matter between two barriers.
            unsigned i = turn % 3 == 0 ? k : turn % 3 == 1 ? threads - 1 - k : (k + threads / 2) % threads;
            if (all[i]->ended) {
                continue;
            }
            threadIdx = {i, 0, 0};
            go_on(all[i]);
            left -= all[i]->ended;
        }
        if (left != 0 && left != before) {
            std::fprintf(stderr, "a barrier that some threads of a block do not come to\n");
            std::abort();
        }
    }
}
