// PCCL for C++17: the C interface of pccl.h with objects that release what they hold, and exceptions. Header only; link
// with libpccl. pccl.h says what each call does, and what all peers have to do alike.
//
// Rules: a failed call throws pccl::Error. Objects can be moved, not copied; one that was moved from may only be
// destroyed or assigned to. Memory that a Communicator or a Reduce was given to read or write has to live until the
// Reduce is over.
#pragma once

// Visual C++ says in _MSVC_LANG what others say in __cplusplus.
#if __cplusplus < 201703L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#error "pccl.hpp needs C++17: compile with -std=c++17 or later, or use pccl.h, which needs C++98 or C99"
#else

#include <pccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pccl {

using Milliseconds = std::chrono::milliseconds;

// Waits for ever.
inline constexpr Milliseconds no_timeout = Milliseconds::max();

// Version of the library, such as "0.1.0".
inline std::string version() { return pcclGetVersion(); }

// A call that failed: what happened, in words, and what to do about it.
class Error : public std::runtime_error {
public:
    // Of the last call of this thread.
    Error(pcclResult_t result, const char *call)
        : std::runtime_error(std::string(call) + ": " + pcclGetLastError() + " (" + pcclGetResultName(result) + ")"),
          result_(result), remedy_(pcclGetLastRemedy()), cause_(pcclGetLastCause()) {
        std::size_t count = 0;
        if (pcclGetLastCulprits(nullptr, 0, &count) != pcclSuccess || count == 0)
            return;
        culprits_.resize(count);
        if (pcclGetLastCulprits(culprits_.data(), culprits_.size(), &count) != pcclSuccess)
            culprits_.clear();
    }

    pcclResult_t result() const noexcept { return result_; }
    // The measure of Communicator::recover against it.
    pcclRemedy_t remedy() const noexcept { return remedy_; }
    // One word of docs/errors.md, such as "PeerDied", "MasterLost" or "TooFewPeers".
    const std::string &cause() const noexcept { return cause_; }
    // Peers that the verdict names.
    const std::vector<pcclRankUuid_t> &culprits() const noexcept { return culprits_; }

private:
    pcclResult_t result_;
    pcclRemedy_t remedy_;
    std::string cause_;
    std::vector<pcclRankUuid_t> culprits_;
};

// Throws if a call of the C interface failed.
inline void check(pcclResult_t result, const char *call) {
    if (result != pcclSuccess)
        throw Error(result, call);
}

// The number of ranks of which there is one count for each pair.
inline std::size_t ranks_of(const std::vector<std::size_t> &counts) {
    std::size_t ranks = 0;
    while (ranks * ranks < counts.size()) {
        ++ranks;
    }
    if (ranks * ranks != counts.size()) {
        throw std::invalid_argument("not one count for each pair of ranks");
    }
    return ranks;
}

// Types of elements. For 16-bit floats, which C++17 does not have, the functions that take pointers take the type as
// well.
template <typename T> struct DataType;
template <> struct DataType<std::uint8_t> { static constexpr pcclDataType_t value = pcclUint8; };
template <> struct DataType<std::int8_t> { static constexpr pcclDataType_t value = pcclInt8; };
template <> struct DataType<std::int16_t> { static constexpr pcclDataType_t value = pcclInt16; };
template <> struct DataType<std::uint16_t> { static constexpr pcclDataType_t value = pcclUint16; };
template <> struct DataType<std::uint32_t> { static constexpr pcclDataType_t value = pcclUint32; };
template <> struct DataType<std::int32_t> { static constexpr pcclDataType_t value = pcclInt32; };
template <> struct DataType<std::uint64_t> { static constexpr pcclDataType_t value = pcclUint64; };
template <> struct DataType<std::int64_t> { static constexpr pcclDataType_t value = pcclInt64; };
template <> struct DataType<float> { static constexpr pcclDataType_t value = pcclFloat; };
template <> struct DataType<double> { static constexpr pcclDataType_t value = pcclDouble; };

// Limit of the calls of the calling thread, whatever their communicators have; PCCL_DEFAULT_TIMEOUT takes it back.
inline void thread_call_timeout(std::uint64_t milliseconds) {
    check(pcclSetThreadCallTimeout(milliseconds), "set call time-out of the thread");
}

// While it lives the buffers of all collectives that the calling thread begins are on a device, after what is queued on
// the stream: see pcclSetThreadDevice. They do not nest.
class OnDevice {
public:
    explicit OnDevice(void *stream = nullptr) { check(pcclSetThreadDevice(true, stream), "set device of the thread"); }
    ~OnDevice() { pcclSetThreadDevice(false, nullptr); }
    OnDevice(const OnDevice &) = delete;
    OnDevice &operator=(const OnDevice &) = delete;
};

// The same, but each buffer is where its address says: see pcclSetThreadByAddress.
class ByAddress {
public:
    explicit ByAddress(void *stream = nullptr) { check(pcclSetThreadByAddress(stream), "set places of the thread"); }
    ~ByAddress() { pcclSetThreadDevice(false, nullptr); }
    ByAddress(const ByAddress &) = delete;
    ByAddress &operator=(const ByAddress &) = delete;
};

// A time as the C interface has it.
inline std::uint64_t milliseconds_of(Milliseconds time) {
    return time == no_timeout ? PCCL_NO_TIMEOUT : static_cast<std::uint64_t>(time.count());
}

// The same as the value of an option.
inline std::string option_of(Milliseconds time) {
    return time == no_timeout ? "none" : std::to_string(time.count()) + "ms";
}

// Whether this build of the library works on memory of GPUs, and a driver of CUDA loads.
inline bool has_cuda_support() {
    pcclBuildInfo_t info{};
    check(pcclGetBuildInfo(&info), "build info");
    return info.has_cuda_support;
}

// How many devices of CUDA this process can use; 0 where there is no driver.
inline std::uint32_t device_count() {
    std::uint32_t count = 0;
    check(pcclGetDeviceCount(&count), "device count");
    return count;
}

// Memory of the host that stands for a tensor on a device in collectives, see pcclStage: with its content, or zeros.
// The device has the result after write_back; without that its memory stays as it was.
template <typename T> class Staged {
public:
    Staged(const T *device_data, std::size_t count, void *stream = nullptr, bool reads = true) : count_(count) {
        check(pcclStage(device_data, count * sizeof(T), stream, reads, &staged_, &host_), "stage");
    }
    Staged(Staged &&other) noexcept
        : count_(other.count_), host_(other.host_), staged_(std::exchange(other.staged_, nullptr)) {}
    Staged &operator=(Staged &&) = delete;
    ~Staged() {
        if (staged_ != nullptr)
            pcclUnstage(staged_, false);
    }

    T *data() noexcept { return static_cast<T *>(host_); }
    std::size_t size() const noexcept { return count_; }

    // Once, after the end of the collective.
    void write_back() { check(pcclUnstage(std::exchange(staged_, nullptr), true), "write to a device"); }

    // The same for the stream, which waits for the result in place of the caller, see pcclUnstageOnStream.
    void write_back_on_stream() { check(pcclUnstageOnStream(std::exchange(staged_, nullptr)), "write to a device"); }

private:
    std::size_t count_;
    void *host_ = nullptr;
    pcclStaged_t *staged_ = nullptr;
};

// Hands the lines of the log to a function instead of standard error, for as long as it lives; there may be one at a
// time. Any thread may call the function, several at a time. It must be short, must not call the library and must not
// throw.
class LogSink {
public:
    using Function = std::function<void(pcclLogLevel_t level, const char *origin, const char *text)>;

    explicit LogSink(Function function, pcclLogLevel_t level = pcclLogEnvironment)
        : function_(std::make_unique<Function>(std::move(function))) {
        check(pcclSetLogCallback(level, &LogSink::take, function_.get()), "log callback");
    }
    LogSink(const LogSink &) = delete;
    LogSink &operator=(const LogSink &) = delete;
    // When it has returned, the function is not called any more. One that does not return for seconds stays where it
    // is.
    ~LogSink() {
        if (pcclSetLogCallback(pcclLogEnvironment, nullptr, nullptr) != pcclSuccess) (void) function_.release();
    }

private:
    static void take(pcclLogLevel_t level, const char *origin, const char *text, void *user) noexcept {
        (*static_cast<Function *>(user))(level, origin, text);
    }

    std::unique_ptr<Function> function_;
};

// A line of the caller's own, in the same queue and with the same look as the library's.
inline void write_log(pcclLogLevel_t level, const char *text) { check(pcclWriteLog(level, text), "write log"); }

// A member of a group that is to be formed: a name, or an identity.
struct Member {
    // Not explicit: a list is written as {"a", "b"}.
    Member(const char *name) : name(name) {}
    Member(std::string name) : name(std::move(name)) {}
    Member(const pcclRankUuid_t &peer) : peer(peer) {}

    std::string name;
    pcclRankUuid_t peer{};
};

// The operation of an all-reduce on its elements.
struct Reduction {
    // Not explicit: most calls need no more than the operation.
    Reduction(pcclRedOp_t op, std::uint64_t tag = 0) : op(op), tag(tag) {}

    pcclRedOp_t op;
    // Names the operation among those in flight, on all peers.
    std::uint64_t tag;
    // Fewer bits on the way, for sums and averages of floats.
    pcclQuantizationOptions_t quantization{pcclUint8, pcclQuantNone};
};

// The tensor that is reduced: for lists of them, see Communicator::all_reduce_many.
inline pcclReduceOpDescriptor_t describe(const void *send, void *receive, std::size_t count, pcclDataType_t type,
                                         const Reduction &reduction) {
    pcclReduceOpDescriptor_t one{};
    // The C interface writes to the second of the two only.
    one.sendbuf = const_cast<void *>(send);
    one.recvbuf = receive;
    one.descriptor.count = count;
    one.descriptor.op = reduction.op;
    one.descriptor.tag = reduction.tag;
    one.descriptor.src_descriptor.datatype = type;
    one.descriptor.quantization_options = reduction.quantization;
    return one;
}

// The same, in place.
template <typename T> pcclReduceOpDescriptor_t describe(std::vector<T> &data, const Reduction &reduction) {
    return describe(data.data(), data.data(), data.size(), DataType<T>::value, reduction);
}

// An all-reduce in flight. Its destructor gives it up and waits: nothing writes into the buffer any more when it has
// returned.
class Reduce {
public:
    Reduce(Reduce &&other) noexcept : op_(std::exchange(other.op_, {})) {}
    Reduce &operator=(Reduce &&other) noexcept {
        if (this != &other) {
            end();
            op_ = std::exchange(other.op_, {});
        }
        return *this;
    }
    Reduce(const Reduce &) = delete;
    Reduce &operator=(const Reduce &) = delete;
    ~Reduce() { end(); }

    // Throws if it failed; then a buffer that is reduced in place holds what it held before.
    pcclReduceInfo_t wait() {
        pcclReduceInfo_t info{};
        const pcclAsyncReduceOp_t op = std::exchange(op_, {});
        check(pcclAwaitAsyncReduce(&op, &info), "all-reduce");
        return info;
    }

    // The same with a limit: when the time is over, it is given up for all peers.
    pcclReduceInfo_t wait(Milliseconds timeout) {
        pcclReduceInfo_t info{};
        const pcclAsyncReduceOp_t op = std::exchange(op_, {});
        check(pcclAwaitAsyncReduceFor(&op, milliseconds_of(timeout), &info), "all-reduce");
        return info;
    }

    // Whether wait would return at once.
    bool done() const {
        bool done = false;
        check(pcclTestAsyncReduce(&op_, &done), "test all-reduce");
        return done;
    }

    // Waits for as long at most; whether it is done.
    bool wait_for(Milliseconds timeout) const {
        bool done = false;
        check(pcclWaitAsyncReduce(&op_, static_cast<std::uint64_t>(timeout.count()), &done), "wait for all-reduce");
        return done;
    }

    // Gives it up for all peers, unless its outcome is decided; wait says what came of it.
    void abort() { check(pcclAbortAsyncReduce(&op_), "abort all-reduce"); }

private:
    friend class Communicator;
    explicit Reduce(pcclAsyncReduceOp_t op) : op_(op) {}

    void end() noexcept {
        if (op_.comm == nullptr)
            return;
        // A peer that leaves without waiting has failed elsewhere: the others need not wait for anything either.
        pcclAbortAsyncReduce(&op_);
        pcclAwaitAsyncReduce(&op_, nullptr);
    }

    pcclAsyncReduceOp_t op_;
};

// A state that another thread of the library saves. Its destructor waits until it is saved, or has failed: only wait
// says which.
class Saving {
public:
    Saving(Saving &&other) noexcept : saving_(std::exchange(other.saving_, nullptr)) {}
    Saving &operator=(Saving &&other) noexcept {
        if (this != &other) {
            end();
            saving_ = std::exchange(other.saving_, nullptr);
        }
        return *this;
    }
    Saving(const Saving &) = delete;
    Saving &operator=(const Saving &) = delete;
    ~Saving() { end(); }

    // How many bytes were written. Once.
    std::uint64_t wait() {
        std::uint64_t written = 0;
        check(pcclAwaitSaving(std::exchange(saving_, nullptr), &written), "save the state");
        return written;
    }

    // Whether wait would return at once.
    bool done() const {
        bool done = false;
        check(pcclTestSaving(saving_, &done), "test saving");
        return done;
    }

private:
    friend class SharedState;
    explicit Saving(pcclSaving_t *saving) : saving_(saving) {}

    void end() noexcept {
        if (saving_ != nullptr)
            pcclAwaitSaving(saving_, nullptr);
    }

    pcclSaving_t *saving_;
};

// Tensors that all peers hold alike. It refers to their memory, which has to stay where it is, and to no copy.
class SharedState {
public:
    // Of the next sync: the one after the last, or 0 in the beginning. A sync sets it to the one that all hold.
    std::uint64_t revision = 0;

    template <typename T> SharedState &add(const std::string &name, std::vector<T> &tensor, bool may_differ = false) {
        return add(name, tensor.data(), tensor.size(), DataType<T>::value, may_differ);
    }

    // One number, such as the step.
    template <typename T> SharedState &add(const std::string &name, T &value, bool may_differ = false) {
        return add(name, &value, 1, DataType<T>::value, may_differ);
    }

    // Content that may differ is not compared; it moves to peers whose revision is outdated.
    SharedState &add(const std::string &name, void *data, std::size_t count, pcclDataType_t type,
                     bool may_differ = false) {
        names_.push_back(std::make_unique<std::string>(name));
        tensors_.push_back({names_.back()->c_str(), data, count, type, pcclDeviceCpu, may_differ});
        return *this;
    }

    // A tensor on a device of CUDA, used after what is queued on the default stream.
    template <typename T>
    SharedState &add_device(const std::string &name, T *data, std::size_t count, bool may_differ = false) {
        add(name, data, count, DataType<T>::value, may_differ);
        tensors_.back().device_type = pcclDeviceCuda;
        return *this;
    }

    // Writes it to a file, whole or not at all, and returns how many bytes that took. See pcclSaveSharedState.
    std::uint64_t save(const std::string &path, bool keep_previous = false) const {
        const pcclSharedState_t state = c_state();
        std::uint64_t written = 0;
        const pcclSaveOptions_t options{keep_previous, 0, nullptr};
        check(pcclSaveSharedState(&state, path.c_str(), &options, &written), "save the state");
        return written;
    }

    // The same of a copy, by another thread, while the training goes on.
    [[nodiscard]] Saving save_while(const std::string &path, bool keep_previous = false) const {
        const pcclSharedState_t state = c_state();
        const pcclSaveOptions_t options{keep_previous, 0, nullptr};
        pcclSaving_t *saving = nullptr;
        check(pcclSaveSharedStateAsync(&state, path.c_str(), &options, &saving), "begin to save the state");
        return Saving(saving);
    }

    // Reads such a file into the tensors, and its revision. After a failure they are as they were.
    void load(const std::string &path) {
        pcclSharedState_t state = c_state();
        check(pcclLoadSharedState(&state, path.c_str()), "load the state");
        revision = state.revision;
    }

private:
    friend class Communicator;

    pcclSharedState_t c_state() const {
        return {revision, tensors_.size(), const_cast<pcclTensorInfo_t *>(tensors_.data())};
    }

    std::vector<std::unique_ptr<std::string>> names_;
    std::vector<pcclTensorInfo_t> tensors_;
};

// Where the peers of a group differ: each tensor that is not the same, whose content is not the most frequent one, and
// all of it in words.
struct StateDiff {
    std::vector<pcclTensorDiff_t> tensors;
    std::vector<std::vector<pcclRankUuid_t>> peers_apart;
    std::string text;
};

// The findings of a clip: see pcclClip_t.
struct Clip {
    double norm = 0;
    double scale = 1;
    double median = 0;
    // All peers, by rank. A peer with a scale below 1 was clipped.
    std::vector<pcclPeerNorm_t> peers;
};

// How to sync.
struct SyncOptions {
    pcclSharedStateSyncStrategy_t strategy = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    // Tensors that are as they were when a sync committed a revision: see pcclUnchanged_t.
    std::vector<std::pair<std::string, std::uint64_t>> unchanged{};
    // Hears how far it is, about once per second while this peer fetches what differs. Its exceptions are thrown when
    // the call is over.
    std::function<void(const pcclSyncProgress_t &)> progress{};
};

// A state that is lent to newcomers. From its begin until its end the tensors must be neither written nor freed; see
// pcclLendSharedState, which says what else ends it, such as the end of the Communicator.
class Loan {
public:
    Loan(Loan &&other) noexcept
        : comm_(std::exchange(other.comm_, nullptr)), number_(std::exchange(other.number_, 0)) {}
    Loan &operator=(Loan &&other) noexcept {
        if (this != &other) {
            end();
            comm_ = std::exchange(other.comm_, nullptr);
            number_ = std::exchange(other.number_, 0);
        }
        return *this;
    }
    Loan(const Loan &) = delete;
    Loan &operator=(const Loan &) = delete;
    ~Loan() { end(); }

    // Nobody reads the tensors any more when this returns.
    void end() noexcept {
        if (comm_ != nullptr)
            pcclReclaimSharedState(comm_, number_);
        comm_ = nullptr;
    }

private:
    friend class Communicator;
    Loan(const pcclComm_t *comm, std::uint64_t number) : comm_(comm), number_(number) {}

    const pcclComm_t *comm_;
    std::uint64_t number_;
};

// A peer of a run. It leaves the run at the end of its life, which ends all its calls and reduces.
class Communicator {
public:
    // For a master at "host:port", "1.2.3.4:port" or "[::1]:port". No connection is made yet. 0 connections to the next
    // peer lets the library choose.
    explicit Communicator(const std::string &master, std::uint32_t peer_group = 0, std::uint32_t connections = 0) {
        check(pcclInit(), "init");
        pcclComm_t *comm = nullptr;
        check(pcclCreateCommunicatorByName(master.c_str(), peer_group, connections, &comm), "create communicator");
        comm_.reset(comm);
    }

    explicit Communicator(const pcclCommCreateParams_t &params) {
        check(pcclInit(), "init");
        pcclComm_t *comm = nullptr;
        check(pcclCreateCommunicator(&params, &comm), "create communicator");
        comm_.reset(comm);
    }

    // For functions of pccl.h.
    pcclComm_t *get() const noexcept { return comm_.get(); }

    // Settings, before the first connect.

    // Changes one by its name: see pcclSetOption.
    Communicator &set(const std::string &name, const std::string &value) {
        check(pcclSetOption(get(), name.c_str(), value.c_str()), "set an option");
        return *this;
    }
    Communicator &set(const std::string &name, Milliseconds time) { return set(name, option_of(time)); }
    // First ports that the listeners try, for tensors and for shared state; 0 takes any free one.
    Communicator &first_ports(std::uint16_t p2p, std::uint16_t shared_state) {
        set("first_p2p_port", std::to_string(p2p));
        return set("first_state_port", std::to_string(shared_state));
    }

    // At any time: how long calls that begin from then on may wait for other peers.
    Communicator &call_timeout(Milliseconds time) {
        check(pcclSetCallTimeout(get(), milliseconds_of(time)), "set call time-out");
        return *this;
    }
    // At any time, for the reduces that begin from then on.
    Communicator &schedule(pcclSchedule_t schedule) {
        check(pcclSetSchedule(get(), schedule), "set schedule");
        return *this;
    }

    // The loop around the steps of a training, and its parts.

    // Makes steps for as long as there is more to do, and makes good what fails: connects (first of all, too), waits
    // for peers, or has the step made again. Throws what cannot be made good. Before each step it waits until there are
    // at least this many peers; 2 is right for most. A step begins with synchronise and ends with admit. It changes the
    // shared state only after its last reduce. WHATEVER ELSE A FAILED TRY HAS CHANGED STAYS CHANGED, such as gradients
    // that add up, counters, random generators and optimisers outside of the state: put it back when a step begins.
    template <typename More, typename Step> void run(std::uint32_t peers, More more, Step step) {
        run_by(more, step, peers, [&](pcclRemedy_t remedy) { recover(remedy, peers); });
    }

    // The same for steps that lend their state: whenever this peer connects, it fetches the state before it is let in.
    template <typename More, typename Step>
    void run(std::uint32_t peers, SharedState &state, More more, Step step) {
        run_by(more, step, peers, [&](pcclRemedy_t remedy) { recover(remedy, peers, state); });
    }

    // Does what a failure asks for, so that the step can be made again: see pcclRecover. Throws what cannot be made
    // good; that may be the error itself.
    void recover(const Error &error, std::uint32_t peers) {
        if (error.remedy() == pcclRemedyGiveUp || error.remedy() == pcclRemedyFormGroup)
            throw error;
        recover(error.remedy(), peers);
    }
    void recover(pcclRemedy_t remedy, std::uint32_t peers) { check(pcclRecover(get(), remedy, peers), "recover"); }
    // The same; if that means to connect, the state is fetched before this peer is let in, as connect(state) does it.
    pcclAhead_t recover(pcclRemedy_t remedy, std::uint32_t peers, SharedState &state) {
        pcclSharedState_t c_state = state.c_state();
        pcclAhead_t ahead{};
        check(pcclRecoverWithState(get(), remedy, peers, &c_state, &ahead), "recover");
        state.revision = c_state.revision;
        return ahead;
    }

    void connect() { check(pcclConnect(get()), "connect"); }
    // The same, and fetches the state of the group from members that lend it while this peer waits to be let in: see
    // pcclConnectWithState. Until a sync has succeeded the content of the tensors is unspecified. An exception of
    // progress is thrown when this is over. Without a time-out the limit is that of call_timeout.
    pcclAhead_t connect(SharedState &state, std::function<void(const pcclSyncProgress_t &)> progress = {},
                        std::optional<Milliseconds> timeout = std::nullopt) {
        Listener listener{std::move(progress), nullptr};
        pcclSharedState_t c_state = state.c_state();
        pcclAhead_t ahead{};
        const std::uint64_t limit = timeout ? milliseconds_of(*timeout) : PCCL_DEFAULT_TIMEOUT;
        check(pcclConnectWithState(get(), &c_state, limit, &Listener::tell, &listener, &ahead), "connect");
        state.revision = c_state.revision;
        listener.rethrow();
        return ahead;
    }
    bool is_connected() const {
        bool connected = false;
        check(pcclIsConnected(get(), &connected), "is connected");
        return connected;
    }
    // Leaves the run at once. It may connect again.
    void close() { check(pcclClose(get()), "close"); }
    // Leaves it when the calls that have begun are over, or the time is.
    void close_within(Milliseconds time) {
        check(pcclCloseWithin(get(), static_cast<std::uint64_t>(time.count())), "close");
    }

    // The members.

    pcclWorld_t world() const {
        pcclWorld_t world{};
        check(pcclGetWorld(get(), &world), "world");
        return world;
    }
    // The name of this peer.
    std::string name() const {
        return text("name", [&](char *buffer, std::size_t capacity, std::size_t *length) {
            return pcclGetName(get(), buffer, capacity, length);
        });
    }
    // Another one after each connect.
    pcclRankUuid_t id() const {
        pcclRankUuid_t id{};
        check(pcclGetPeerId(get(), &id), "identity");
        return id;
    }
    int attribute(pcclAttribute_t attribute) const {
        int value = 0;
        check(pcclGetAttribute(get(), attribute, &value), "attribute");
        return value;
    }
    // The peers of the own group in the order in which data flows; the index is the rank.
    std::vector<pcclRankUuid_t> ring() const {
        std::size_t count = 0;
        check(pcclGetRing(get(), nullptr, 0, &count), "ring");
        std::vector<pcclRankUuid_t> ring(count);
        // It can only have changed by calls of other threads.
        check(pcclGetRing(get(), ring.data(), ring.size(), &count), "ring");
        ring.resize(count < ring.size() ? count : ring.size());
        return ring;
    }
    void wait_for_world(std::uint32_t peers, Milliseconds timeout = no_timeout) {
        check(pcclWaitForWorld(get(), peers, milliseconds_of(timeout)), "wait for world");
    }
    // Forms a group of these members, in this order; see pcclFormGroup. All of them call it with the same uuid, which
    // is used once. Needs formed_groups.
    void form_group(std::uint64_t uuid, const std::vector<Member> &members, std::uint64_t uuid_high = 0) {
        std::vector<pcclMember_t> list;
        for (const Member &member : members)
            list.push_back({member.name.empty() ? nullptr : member.name.c_str(), member.peer});
        check(pcclFormGroup(get(), uuid_high, uuid, list.data(), list.size()), "form group");
    }
    bool are_peers_pending() const {
        bool pending = false;
        check(pcclArePeersPending(get(), &pending), "are peers pending");
        return pending;
    }
    void update_topology() { check(pcclUpdateTopology(get()), "update topology"); }
    // Lets in those who wait, if there are any: the end of a step.
    void admit() {
        if (are_peers_pending())
            update_topology();
    }
    // pcclOptimizeTopology(comm) is the same without the answer.
    pcclOptimized_t optimize_topology() {
        pcclOptimized_t optimized{};
        check(pcclOptimizeTopologyInfo(get(), &optimized), "optimise topology");
        return optimized;
    }
    // The run as the master sees it, as a text or as JSON.
    std::string status(bool as_json = false) const {
        return text("status", [&](char *buffer, std::size_t capacity, std::size_t *length) {
            return pcclGetStatus(get(), as_json, buffer, capacity, length);
        });
    }
    // Reports a number of the training, such as its step or its loss: the status of the master has the newest.
    void report(const char *name, double value) const { check(pcclReport(get(), name, value), "report"); }
    // Whether this machine could take part in the run: what failed and what to do about it, as a text or as JSON.
    std::string doctor(bool as_json = false, bool *passed = nullptr) const {
        bool nothing_failed = false;
        check(pcclDoctor(get(), &nothing_failed), "doctor");
        if (passed)
            *passed = nothing_failed;
        return text("doctor", [&](char *buffer, std::size_t capacity, std::size_t *length) {
            return pcclGetDoctorReport(get(), as_json, buffer, capacity, length);
        });
    }
    // Why the last operation failed on all peers; empty if none has.
    std::string last_verdict() const {
        return text("last verdict", [&](char *buffer, std::size_t capacity, std::size_t *length) {
            return pcclGetLastVerdict(get(), buffer, capacity, length);
        });
    }
    // Writes what the flight recorder holds into a new file in a directory, and returns its path.
    std::string dump_flight(const std::string &directory) const {
        return text("dump flight", [&](char *buffer, std::size_t capacity, std::size_t *length) {
            return pcclDumpFlight(get(), directory.c_str(), buffer, capacity, length);
        });
    }

    // Data.

    // Before connect: this peer holds the state, for instance from a file, and the run can go on from it.
    void offer_resume(const SharedState &state) const {
        const pcclSharedState_t c_state = state.c_state();
        check(pcclOfferResume(get(), &c_state), "offer the state");
    }

    pcclSharedStateSyncInfo_t
    synchronise(SharedState &state,
                pcclSharedStateSyncStrategy_t strategy = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR) {
        pcclSharedState_t c_state = state.c_state();
        pcclSharedStateSyncInfo_t info{};
        check(pcclSynchronizeSharedState(get(), &c_state, strategy, &info), "sync");
        state.revision = c_state.revision;
        return info;
    }

    // The same, and tells a function how far it is, about once per second while this peer fetches what differs. An
    // exception of the function is thrown when the sync is over.
    pcclSharedStateSyncInfo_t synchronise(SharedState &state, pcclSharedStateSyncStrategy_t strategy,
                                          const std::function<void(const pcclSyncProgress_t &)> &progress) {
        Listener listener{progress, nullptr};
        pcclSharedState_t c_state = state.c_state();
        pcclSharedStateSyncInfo_t info{};
        check(pcclSynchronizeSharedStateWith(get(), &c_state, strategy, &info, &Listener::tell, &listener), "sync");
        state.revision = c_state.revision;
        listener.rethrow();
        return info;
    }

    // The same with all options, and says whether this peer has come with the state that its group lent.
    pcclSyncInfo_t sync(SharedState &state, const SyncOptions &options = {}) {
        std::vector<pcclUnchanged_t> unchanged;
        for (const auto &[name, revision] : options.unchanged)
            unchanged.push_back({name.c_str(), revision});
        Listener listener{options.progress, nullptr};
        const pcclSyncOptions_t c_options{options.strategy, unchanged.size(), unchanged.data(), &Listener::tell,
                                          &listener};
        pcclSharedState_t c_state = state.c_state();
        pcclSyncInfo_t info{};
        check(pcclSyncSharedState(get(), &c_state, &c_options, &info), "sync");
        state.revision = c_state.revision;
        listener.rethrow();
        return info;
    }

    // Lends the state to newcomers until the loan ends: see pcclLendSharedState. With unchanged, the program gives its
    // word that it is what the last sync committed, and nothing is hashed.
    [[nodiscard]] Loan lend(const SharedState &state, bool unchanged = false) const {
        const pcclSharedState_t c_state = state.c_state();
        std::uint64_t number = 0;
        check(pcclLendSharedState(get(), &c_state, unchanged, &number), "lend the state");
        return Loan(get(), number);
    }
    // Lends a copy of the state, until end_snapshot or the next sync that commits something else.
    void lend_snapshot(const SharedState &state, bool unchanged = false) const {
        const pcclSharedState_t c_state = state.c_state();
        check(pcclLendSharedStateSnapshot(get(), &c_state, unchanged), "lend a snapshot");
    }
    void end_snapshot() const { check(pcclEndSharedStateSnapshot(get()), "end the snapshot"); }

    // Where the peers of the group differ. Nothing is changed.
    StateDiff diff(const SharedState &state) {
        std::vector<pcclTensorInfo_t> tensors = state.tensors_;
        const pcclSharedState_t c_state{state.revision, tensors.size(), tensors.data()};
        StateDiff found;
        found.tensors.resize(tensors.size());
        std::size_t count = 0, length = 0;
        check(pcclDiffSharedState(get(), &c_state, found.tensors.data(), found.tensors.size(), &count), "diff");
        found.tensors.resize(count);
        for (std::size_t i = 0; i < count; i++) {
            std::vector<pcclRankUuid_t> peers(found.tensors[i].peers_apart);
            check(pcclGetStateDiffPeers(get(), i, peers.data(), peers.size(), &length), "diff");
            found.peers_apart.push_back(peers);
        }
        check(pcclGetStateDiffText(get(), nullptr, 0, &length), "diff");
        found.text.resize(length);
        check(pcclGetStateDiffText(get(), &found.text[0], length + 1, nullptr), "diff");
        return found;
    }

    // In place.
    template <typename T> pcclReduceInfo_t all_reduce(std::vector<T> &data, const Reduction &reduction) {
        return all_reduce(describe(data, reduction));
    }
    pcclReduceInfo_t all_reduce(const pcclReduceOpDescriptor_t &one) {
        pcclReduceInfo_t info{};
        check(pcclAllReduce(one.sendbuf, one.recvbuf, &one.descriptor, get(), &info), "all-reduce");
        return info;
    }

    // Begins one.
    template <typename T> [[nodiscard]] Reduce all_reduce_async(std::vector<T> &data, const Reduction &reduction) {
        return all_reduce_async(describe(data, reduction));
    }
    [[nodiscard]] Reduce all_reduce_async(const pcclReduceOpDescriptor_t &one) {
        pcclAsyncReduceOp_t handle{};
        check(pcclAllReduceAsync(one.sendbuf, one.recvbuf, &one.descriptor, get(), &handle), "begin all-reduce");
        return Reduce(handle);
    }

    // Of buffers on a device, after what is queued on the stream: see pcclAllReduceOnDevice.
    pcclReduceInfo_t all_reduce_on_device(const pcclReduceOpDescriptor_t &one, void *stream = nullptr) {
        pcclReduceInfo_t info{};
        check(pcclAllReduceOnDevice(one.sendbuf, one.recvbuf, stream, &one.descriptor, get(), &info),
              "all-reduce on a device");
        return info;
    }
    [[nodiscard]] Reduce all_reduce_on_device_async(const pcclReduceOpDescriptor_t &one, void *stream = nullptr) {
        pcclAsyncReduceOp_t handle{};
        check(pcclAllReduceOnDeviceAsync(one.sendbuf, one.recvbuf, stream, &one.descriptor, get(), &handle),
              "begin all-reduce on a device");
        return Reduce(handle);
    }

    // Begins one of several buffers, as one operation: all of them are reduced, or none. The tag of the first names it.
    [[nodiscard]] Reduce all_reduce_many_async(const std::vector<pcclReduceOpDescriptor_t> &all) {
        pcclAsyncReduceOp_t handle{};
        check(pcclAllReduceManyAsync(all.data(), all.size(), get(), &handle), "begin all-reduce");
        return Reduce(handle);
    }

    // Several buffers in one operation, which is tried again until it succeeds or the peer is alone.
    pcclReduceInfo_t all_reduce_many(const std::vector<pcclReduceOpDescriptor_t> &all) {
        pcclReduceInfo_t info{};
        check(pcclAllReduceMultipleWithRetry(all.data(), all.size(), get(), &info, 1), "all-reduce");
        return info;
    }

    // Collectives beside all-reduce: see pccl.h for what the descriptor counts in each of them.

    // Everybody gets what the root has.
    pcclReduceInfo_t broadcast(void *buffer, std::uint32_t root, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclBroadcast(buffer, root, &descriptor, get(), &info), "broadcast");
        return info;
    }
    [[nodiscard]] Reduce broadcast_async(void *buffer, std::uint32_t root, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclBroadcastAsync(buffer, root, &descriptor, get(), &handle), "begin broadcast");
        return Reduce(handle);
    }

    // Only the root gets the result.
    pcclReduceInfo_t reduce(void *buffer, std::uint32_t root, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclReduce(buffer, root, &descriptor, get(), &info), "reduce");
        return info;
    }
    [[nodiscard]] Reduce reduce_async(void *buffer, std::uint32_t root, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclReduceAsync(buffer, root, &descriptor, get(), &handle), "begin reduce");
        return Reduce(handle);
    }

    // Everybody gets what each one sends, in the order of the ranks.
    pcclReduceInfo_t all_gather(const void *send, void *recv, std::size_t recv_count,
                                const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclAllGather(send, recv, recv_count, &descriptor, get(), &info), "all-gather");
        return info;
    }
    [[nodiscard]] Reduce all_gather_async(const void *send, void *recv, std::size_t recv_count,
                                          const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclAllGatherAsync(send, recv, recv_count, &descriptor, get(), &handle), "begin all-gather");
        return Reduce(handle);
    }

    // The same, with a count for each rank.
    pcclReduceInfo_t all_gather_v(const void *send, void *recv, std::size_t recv_count,
                                  const std::vector<std::size_t> &counts, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclAllGatherV(send, recv, recv_count, counts.data(), counts.size(), &descriptor, get(), &info),
              "all-gather-v");
        return info;
    }
    [[nodiscard]] Reduce all_gather_v_async(const void *send, void *recv, std::size_t recv_count,
                                            const std::vector<std::size_t> &counts,
                                            const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclAllGatherVAsync(send, recv, recv_count, counts.data(), counts.size(), &descriptor, get(), &handle),
              "begin all-gather-v");
        return Reduce(handle);
    }

    // Each one gets its part of the result.
    pcclReduceInfo_t reduce_scatter(const void *send, void *recv, std::size_t recv_count,
                                    const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclReduceScatter(send, recv, recv_count, &descriptor, get(), &info), "reduce-scatter");
        return info;
    }
    [[nodiscard]] Reduce reduce_scatter_async(const void *send, void *recv, std::size_t recv_count,
                                              const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclReduceScatterAsync(send, recv, recv_count, &descriptor, get(), &handle), "begin reduce-scatter");
        return Reduce(handle);
    }

    // The same, with a count for each rank.
    pcclReduceInfo_t reduce_scatter_v(const void *send, void *recv, std::size_t recv_count,
                                      const std::vector<std::size_t> &counts,
                                      const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclReduceScatterV(send, recv, recv_count, counts.data(), counts.size(), &descriptor, get(), &info),
              "reduce-scatter-v");
        return info;
    }
    [[nodiscard]] Reduce reduce_scatter_v_async(const void *send, void *recv, std::size_t recv_count,
                                                const std::vector<std::size_t> &counts,
                                                const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclReduceScatterVAsync(send, recv, recv_count, counts.data(), counts.size(), &descriptor, get(),
              &handle), "begin reduce-scatter-v");
        return Reduce(handle);
    }

    // Only the root gets what each one sends, in the order of the ranks; the others have no use for recv.
    pcclReduceInfo_t gather(const void *send, void *recv, std::size_t recv_count, std::uint32_t root,
            const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclGather(send, recv, recv_count, root, &descriptor, get(), &info), "gather");
        return info;
    }
    [[nodiscard]] Reduce gather_async(const void *send, void *recv, std::size_t recv_count, std::uint32_t root,
            const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclGatherAsync(send, recv, recv_count, root, &descriptor, get(), &handle), "begin gather");
        return Reduce(handle);
    }

    // The same, with a count for each rank.
    pcclReduceInfo_t gather_v(const void *send, void *recv, std::size_t recv_count, std::uint32_t root,
            const std::vector<std::size_t> &counts, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclGatherV(send, recv, recv_count, root, counts.data(), counts.size(), &descriptor, get(), &info),
              "gather-v");
        return info;
    }
    [[nodiscard]] Reduce gather_v_async(const void *send, void *recv, std::size_t recv_count, std::uint32_t root,
            const std::vector<std::size_t> &counts, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclGatherVAsync(send, recv, recv_count, root, counts.data(), counts.size(), &descriptor, get(), &handle),
              "begin gather-v");
        return Reduce(handle);
    }

    // Each one gets its part of what the root sends; the others have no use for send.
    pcclReduceInfo_t scatter(const void *send, std::size_t send_count, void *recv, std::uint32_t root,
            const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclScatter(send, send_count, recv, root, &descriptor, get(), &info), "scatter");
        return info;
    }
    [[nodiscard]] Reduce scatter_async(const void *send, std::size_t send_count, void *recv, std::uint32_t root,
            const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclScatterAsync(send, send_count, recv, root, &descriptor, get(), &handle), "begin scatter");
        return Reduce(handle);
    }

    // The same, with a count for each rank.
    pcclReduceInfo_t scatter_v(const void *send, std::size_t send_count, void *recv, std::uint32_t root,
            const std::vector<std::size_t> &counts, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclScatterV(send, send_count, recv, root, counts.data(), counts.size(), &descriptor, get(), &info),
              "scatter-v");
        return info;
    }
    [[nodiscard]] Reduce scatter_v_async(const void *send, std::size_t send_count, void *recv, std::uint32_t root,
            const std::vector<std::size_t> &counts, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclScatterVAsync(send, send_count, recv, root, counts.data(), counts.size(),
              &descriptor, get(), &handle), "begin scatter-v");
        return Reduce(handle);
    }

    // Each one gets an equal part of what each one sends, in the order of the ranks.
    pcclReduceInfo_t all_to_all(const void *send, void *recv, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclAllToAll(send, recv, &descriptor, get(), &info), "all-to-all");
        return info;
    }
    [[nodiscard]] Reduce all_to_all_async(const void *send, void *recv, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclAllToAllAsync(send, recv, &descriptor, get(), &handle), "begin all-to-all");
        return Reduce(handle);
    }

    // The same, with a count for each pair of ranks, those of what rank 0 sends first: see exchange_counts.
    pcclReduceInfo_t all_to_all_v(const void *send, void *recv, std::size_t recv_count,
            const std::vector<std::size_t> &counts, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclAllToAllV(send, recv, recv_count, counts.data(), ranks_of(counts), &descriptor, get(), &info),
              "all-to-all-v");
        return info;
    }
    [[nodiscard]] Reduce all_to_all_v_async(const void *send, void *recv, std::size_t recv_count,
            const std::vector<std::size_t> &counts, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclAllToAllVAsync(send, recv, recv_count, counts.data(), ranks_of(counts), &descriptor, get(), &handle),
              "begin all-to-all-v");
        return Reduce(handle);
    }

    // For peers that know their own numbers only, one for each rank: those of all pairs, which all_to_all_v wants.
    std::vector<std::size_t> exchange_counts(const std::vector<std::size_t> &send_counts,
                                             const std::vector<std::size_t> &recv_counts, std::uint64_t tag = 0) {
        const std::size_t ranks = send_counts.size();
        if (recv_counts.size() != ranks) {
            throw std::invalid_argument("as many counts to send as to receive");
        }
        std::vector<std::size_t> all(ranks * ranks);
        check(pcclExchangeCounts(send_counts.data(), recv_counts.data(), ranks, all.data(), tag, get()),
              "exchange counts");
        return all;
    }

    // Floats only; the weight is finite and at least 0.
    pcclReduceInfo_t weighted_average(void *buffer, double weight, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclWeightedAverage(buffer, weight, &descriptor, get(), &info), "weighted-average");
        return info;
    }
    [[nodiscard]] Reduce weighted_average_async(void *buffer, double weight, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclWeightedAverageAsync(buffer, weight, &descriptor, get(), &handle), "begin weighted-average");
        return Reduce(handle);
    }

    // An all-reduce in place, of which what is done stays done when a peer dies: see pcclAllReduceInSegments. Returns
    // the segments with the number of their contributors. After an error done has those that are done, if it is not
    // null.
    template <typename T>
    std::vector<pcclSegment_t> all_reduce_in_segments(std::vector<T> &data, std::size_t segment_bytes,
                                                      const Reduction &reduction,
                                                      std::vector<pcclSegment_t> *done = nullptr) {
        const pcclReduceOpDescriptor_t it = describe(data, reduction);
        const std::size_t step = segment_bytes < sizeof(T) ? 1 : segment_bytes / sizeof(T);
        std::vector<pcclSegment_t> segments((data.size() + step - 1) / step + 1);
        std::size_t count = 0;
        const pcclResult_t result =
            pcclAllReduceInSegments(it.sendbuf, it.recvbuf, &it.descriptor, get(), segment_bytes, nullptr,
                                    segments.data(), segments.size(), &count);
        segments.resize(count < segments.size() ? count : segments.size());
        if (done != nullptr) {
            *done = segments;
        }
        check(result, "all-reduce in segments");
        return segments;
    }

    // Before an average: bounds the norm of what this peer is to contribute by a multiple of the median of all. See
    // pcclClipToMedian.
    template <typename T> Clip clip_to_median(std::vector<T> &data, double factor, std::uint64_t tag = 0) {
        return clip_to_median({describe(data, {pcclSum, tag})}, factor);
    }
    // The same with one norm over several tensors, of which the memory to send is clipped.
    Clip clip_to_median(const std::vector<pcclReduceOpDescriptor_t> &tensors, double factor) {
        pcclClip_t clip{};
        std::vector<pcclPeerNorm_t> peers(world().group_size);
        check(pcclClipToMedian(tensors.data(), tensors.size(), factor, get(), &clip, peers.data(), peers.size()),
              "clip to the median");
        // It can only have changed by calls of other threads.
        peers.resize(clip.peers < peers.size() ? clip.peers : peers.size());
        return {clip.norm, clip.scale, clip.median, std::move(peers)};
    }

    // Returns when all peers of the group have called it.
    pcclReduceInfo_t barrier(std::uint64_t tag = 0) {
        pcclReduceInfo_t info{};
        check(pcclBarrier(tag, get(), &info), "barrier");
        return info;
    }
    [[nodiscard]] Reduce barrier_async(std::uint64_t tag = 0) {
        pcclAsyncReduceOp_t handle{};
        check(pcclBarrierAsync(tag, get(), &handle), "begin barrier");
        return Reduce(handle);
    }

    // To one rank, which calls recv with the same tag; from one rank. Nobody else takes part.
    pcclReduceInfo_t send(const void *buffer, std::uint32_t to, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclSend(buffer, to, &descriptor, get(), &info), "send");
        return info;
    }
    [[nodiscard]] Reduce send_async(const void *buffer, std::uint32_t to, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclSendAsync(buffer, to, &descriptor, get(), &handle), "begin send");
        return Reduce(handle);
    }
    pcclReduceInfo_t recv(void *buffer, std::uint32_t from, const pcclReduceDescriptor_t &descriptor) {
        pcclReduceInfo_t info{};
        check(pcclRecv(buffer, from, &descriptor, get(), &info), "recv");
        return info;
    }
    [[nodiscard]] Reduce recv_async(void *buffer, std::uint32_t from, const pcclReduceDescriptor_t &descriptor) {
        pcclAsyncReduceOp_t handle{};
        check(pcclRecvAsync(buffer, from, &descriptor, get(), &handle), "begin recv");
        return Reduce(handle);
    }

private:
    // Takes how far a sync is, and keeps what the function of the caller throws.
    struct Listener {
        std::function<void(const pcclSyncProgress_t &)> progress;
        std::exception_ptr thrown;

        static void tell(const pcclSyncProgress_t *seen, void *user) noexcept {
            Listener &listener = *static_cast<Listener *>(user);
            try {
                if (!listener.thrown && listener.progress)
                    listener.progress(*seen);
            } catch (...) {
                listener.thrown = std::current_exception();
            }
        }
        void rethrow() const {
            if (thrown)
                std::rethrow_exception(thrown);
        }
    };

    template <typename More, typename Step, typename Recover>
    void run_by(More &more, Step &step, std::uint32_t peers, Recover make_good) {
        pcclRemedy_t remedy = is_connected() ? pcclRemedyNone : pcclRemedyReconnect;
        while (more()) {
            // Outside of the try: recover tries again by itself, for as long as that is of use.
            make_good(remedy);
            try {
                const pcclWorld_t now = world();
                if (now.global_size < peers || now.global_size < now.min_world_size)
                    wait_for_world(peers > now.min_world_size ? peers : now.min_world_size);
                step();
                remedy = pcclRemedyNone;
            } catch (const Error &error) {
                // The last is after close in another thread.
                if (error.remedy() == pcclRemedyGiveUp || error.remedy() == pcclRemedyFormGroup ||
                    error.cause() == "NotConnected")
                    throw;
                remedy = error.remedy();
            }
        }
    }

    // A text whose length is not known before.
    template <typename Read> static std::string text(const char *call, Read read) {
        std::string text(1024, '\0');
        for (;;) {
            std::size_t length = 0;
            check(read(text.data(), text.size(), &length), call);
            const bool fits = length < text.size();
            text.resize(fits ? length : length + 1024);
            if (fits)
                return text;
        }
    }

    struct Destroy {
        void operator()(pcclComm_t *comm) const noexcept { pcclDestroyCommunicator(comm); }
    };

    std::unique_ptr<pcclComm_t, Destroy> comm_;
};

// A master in this process. It ends with its life.
class Master {
public:
    // At "host:port"; port 0 takes a free one. It does not listen before run.
    explicit Master(const std::string &listen) {
        pcclMasterInstance_t *master = nullptr;
        check(pcclCreateMasterByName(listen.c_str(), &master), "create master");
        master_.reset(master);
    }
    explicit Master(ccoip_socket_address_t listen) {
        pcclMasterInstance_t *master = nullptr;
        check(pcclCreateMaster(listen, &master), "create master");
        master_.reset(master);
    }

    pcclMasterInstance_t *get() const noexcept { return master_.get(); }

    // Changes a setting by its name, before run: see pcclMasterSetOption.
    Master &set(const std::string &name, const std::string &value) {
        check(pcclMasterSetOption(get(), name.c_str(), value.c_str()), "set an option of the master");
        return *this;
    }
    Master &set(const std::string &name, Milliseconds time) {
        return set(name, option_of(time));
    }

    void run() { check(pcclRunMaster(get()), "run master"); }
    std::uint16_t port() const {
        std::uint16_t port = 0;
        check(pcclMasterGetPort(get(), &port), "port of the master");
        return port;
    }
    // Asks it to end; one that stands by goes on in its place. The functions of the C interface for this and for
    // end_run may be called from a signal handler.
    void interrupt() { check(pcclInterruptMaster(get()), "interrupt master"); }
    // The same, and the run ends although others stand by.
    void end_run() { check(pcclMasterEndRun(get()), "end the run"); }
    bool has_ended() const {
        bool ended = false;
        check(pcclMasterHasEnded(get(), &ended), "has the master ended");
        return ended;
    }
    // Waits until it has ended, which it does when somebody interrupts it.
    void wait() { check(pcclMasterAwaitTermination(get()), "wait for the master"); }

private:
    struct Destroy {
        // It is stopped, and waited for.
        void operator()(pcclMasterInstance_t *master) const noexcept {
            if (pcclInterruptMaster(master) == pcclSuccess)
                pcclMasterAwaitTermination(master);
            pcclDestroyMaster(master);
        }
    };

    std::unique_ptr<pcclMasterInstance_t, Destroy> master_;
};

// A store for global iterations in this process. It ends with its life.
class Store {
public:
    // At "host:port"; port 0 takes a free one. The file, if there is one, keeps it over a restart.
    explicit Store(const std::string &listen, const std::string &file = "") {
        pcclIterationStore_t *store = nullptr;
        check(pcclIterationServeStore(listen.c_str(), file.empty() ? nullptr : file.c_str(), &store), "serve store");
        store_.reset(store);
    }

    std::uint16_t port() const {
        std::uint16_t port = 0;
        check(pcclIterationGetStorePort(store_.get(), &port), "port of the store");
        return port;
    }

private:
    struct Stop {
        void operator()(pcclIterationStore_t *store) const noexcept { pcclIterationStopStore(store); }
    };

    std::unique_ptr<pcclIterationStore_t, Stop> store_;
};

// A member of a run whose members agree on a global iteration through a store, without a master. It has to leave if the
// others are not to wait for it.
class GlobalIteration {
public:
    // A member as all members see it.
    struct Member {
        std::string id;
        std::uint64_t life = 0;
        // It has come with the decision.
        bool joined = false;
        std::string payload;
    };

    GlobalIteration(const std::string &store, const std::string &run, const std::string &member,
                    std::uint32_t world_size) {
        pcclIteration_t *iteration = nullptr;
        check(pcclIterationCreate(store.c_str(), run.c_str(), member.c_str(), world_size, &iteration),
              "create global iteration");
        iteration_.reset(iteration);
    }

    // For functions of pccl.h.
    pcclIteration_t *get() const noexcept { return iteration_.get(); }

    // Settings, before the join.

    GlobalIteration &policy(pcclIterationPolicy_t policy) {
        check(pcclIterationSetPolicy(get(), policy), "set policy");
        return *this;
    }
    GlobalIteration &first(std::uint64_t iteration) {
        check(pcclIterationSetFirst(get(), iteration), "set first iteration");
        return *this;
    }
    GlobalIteration &time(pcclIterationTime_t which, Milliseconds time) {
        check(pcclIterationSetTime(get(), which, milliseconds_of(time)), "set time");
        return *this;
    }
    GlobalIteration &mirror(bool mirror) {
        check(pcclIterationSetMirror(get(), mirror), "set mirror");
        return *this;
    }

    // The decision that has taken this member in.
    pcclIterationInfo_t join(const std::string &payload = "") {
        pcclIterationInfo_t info{};
        check(pcclIterationJoin(get(), payload.data(), payload.size(), &info), "join");
        return info;
    }
    // Arrives for the next iteration; returns when it is decided.
    pcclIterationInfo_t advance(const std::string &payload = "") {
        pcclIterationInfo_t info{};
        check(pcclIterationAdvance(get(), payload.data(), payload.size(), &info), "advance");
        return info;
    }
    // After an error with the cause "Fenced": comes back as a new life.
    pcclIterationInfo_t catch_up(const std::string &payload = "") {
        pcclIterationInfo_t info{};
        check(pcclIterationCatchUp(get(), payload.data(), payload.size(), &info), "catch up");
        return info;
    }
    void leave() { check(pcclIterationLeave(get()), "leave"); }
    // Ends the calls of other threads, for good.
    void cancel() { check(pcclIterationCancel(get()), "cancel"); }
    // The members that must be there for the next decision that this member proposes, whatever the policy demands.
    void force_members(const std::vector<std::string> &members) {
        std::vector<const char *> ids;
        for (const std::string &member : members)
            ids.push_back(member.c_str());
        check(pcclIterationForceMembers(get(), ids.data(), ids.size()), "force members");
    }

    // The present content of the store; false if the run has not begun.
    bool current(pcclIterationInfo_t &info) const {
        bool begun = false;
        check(pcclIterationGetCurrent(get(), &begun, &info), "current iteration");
        return begun;
    }
    // The last decision that this member has taken part in.
    pcclIterationInfo_t decision() const {
        pcclIterationInfo_t info{};
        check(pcclIterationGetDecision(get(), &info), "decision");
        return info;
    }
    // Its members in order.
    std::vector<Member> members() const {
        std::vector<Member> all;
        const std::uint32_t count = decision().members;
        for (std::uint32_t position = 0; position < count; position++) {
            pcclIterationMember_t one{};
            std::string payload(4096, '\0');
            check(pcclIterationGetMember(get(), position, &one, &payload[0], payload.size()), "member");
            payload.resize(one.payload_bytes);
            all.push_back({one.id, one.life, one.joined, std::move(payload)});
        }
        return all;
    }

private:
    struct Destroy {
        void operator()(pcclIteration_t *iteration) const noexcept { pcclIterationDestroy(iteration); }
    };

    std::unique_ptr<pcclIteration_t, Destroy> iteration_;
};

} // namespace pccl

#endif
