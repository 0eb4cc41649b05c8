// RAII around the C interface of PCCL, as much as the example beside it needs. C++17.
#pragma once

#include <pccl.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pccl {

// A call that failed: what happened, in words, and what to do about it.
class Error : public std::runtime_error {
public:
    Error(pcclResult_t result, const std::string &call)
        : std::runtime_error(call + ": " + pcclGetResultName(result) + ": " + pcclGetLastError()), result(result),
          remedy(pcclGetLastRemedy()) {}

    const pcclResult_t result;
    const pcclRemedy_t remedy;
};

inline void check(pcclResult_t result, const char *call) {
    if (result != pcclSuccess)
        throw Error(result, call);
}

template <typename T> constexpr pcclDataType_t data_type();
template <> constexpr pcclDataType_t data_type<float>() { return pcclFloat; }
template <> constexpr pcclDataType_t data_type<double>() { return pcclDouble; }
template <> constexpr pcclDataType_t data_type<std::uint64_t>() { return pcclUint64; }

class Communicator;

// An all-reduce in flight. Its destructor waits: nothing writes into the buffer any more when it has returned.
class Reduce {
public:
    Reduce(Reduce &&other) noexcept : op_(std::exchange(other.op_, {})) {}
    Reduce(const Reduce &) = delete;
    Reduce &operator=(const Reduce &) = delete;
    Reduce &operator=(Reduce &&) = delete;

    ~Reduce() {
        if (op_.comm != nullptr)
            pcclAwaitAsyncReduce(&op_, nullptr);
    }

    // Throws if it failed; then the buffer holds what it held before.
    pcclReduceInfo_t wait() {
        pcclReduceInfo_t info{};
        const pcclAsyncReduceOp_t op = std::exchange(op_, {});
        check(pcclAwaitAsyncReduce(&op, &info), "all-reduce");
        return info;
    }

private:
    friend class Communicator;
    explicit Reduce(pcclAsyncReduceOp_t op) : op_(op) {}

    pcclAsyncReduceOp_t op_;
};

// Tensors that all peers hold alike. It refers to their memory, which has to stay where it is.
class SharedState {
public:
    template <typename T> void add(const char *name, std::vector<T> &tensor) {
        tensors_.push_back({name, tensor.data(), tensor.size(), data_type<T>(), pcclDeviceCpu, false});
    }

    std::uint64_t revision = 0;

private:
    friend class Communicator;

    std::vector<pcclTensorInfo_t> tensors_;
};

// A peer of a run. It leaves the run at the end of its life.
class Communicator {
public:
    explicit Communicator(const std::string &master) {
        check(pcclInit(), "init");
        pcclComm_t *comm = nullptr;
        check(pcclCreateCommunicatorByName(master.c_str(), 0, 0, &comm), "create");
        comm_.reset(comm);
    }

    void connect() { check(pcclConnect(comm_.get()), "connect"); }

    void wait_for_world(std::uint32_t peers) {
        check(pcclWaitForWorld(comm_.get(), peers, PCCL_NO_TIMEOUT), "wait for world");
    }

    pcclWorld_t world() const {
        pcclWorld_t world{};
        check(pcclGetWorld(comm_.get(), &world), "world");
        return world;
    }

    // Lets in those who wait, if there are any.
    void admit() {
        bool pending = false;
        check(pcclArePeersPending(comm_.get(), &pending), "pending");
        if (pending)
            check(pcclUpdateTopology(comm_.get()), "update topology");
    }

    void synchronise(SharedState &state) {
        pcclSharedState_t c_state{state.revision, state.tensors_.size(), state.tensors_.data()};
        check(pcclSynchronizeSharedState(comm_.get(), &c_state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, nullptr),
              "sync");
        state.revision = c_state.revision;
    }

    // Begins an all-reduce in place.
    template <typename T> [[nodiscard]] Reduce all_reduce(std::vector<T> &data, pcclRedOp_t op, std::uint64_t tag) {
        pcclReduceDescriptor_t descriptor{};
        descriptor.count = data.size();
        descriptor.op = op;
        descriptor.tag = tag;
        descriptor.src_descriptor.datatype = data_type<T>();
        pcclAsyncReduceOp_t handle{};
        check(pcclAllReduceAsync(data.data(), data.data(), &descriptor, comm_.get(), &handle), "all-reduce");
        return Reduce(handle);
    }

private:
    struct Destroy {
        void operator()(pcclComm_t *comm) const { pcclDestroyCommunicator(comm); }
    };

    std::unique_ptr<pcclComm_t, Destroy> comm_;
};

} // namespace pccl
