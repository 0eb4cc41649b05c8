// A stand-in for the driver of CUDA, for tests on machines without a device.
//
// Device memory is memory of this process that nobody may touch but this library: it is protected except while an
// operation runs. Kernels are those of ../kernels/, compiled as C++. The queue of a stream runs as late as it
// may: when somebody waits for it, and then nothing of another stream runs that no event puts before it. A chosen
// call fails with a chosen error; after an error that takes the device with it, all calls fail.

#include "kernels.h"
#include "shim.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 Result;
typedef u64 DevicePointer;

enum : Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
};

namespace {

constexpr int DEVICES = 2;

struct Context {
    int device;
};

struct Stream;

struct Event {
    Context *context;
    Stream *stream = nullptr;
    /// Operations of the stream that have to be over.
    u64 position = 0;
};

struct Stream {
    Context *context;
    u64 done = 0;
    u64 queued = 0;
    std::deque<std::function<Result()>> operations;
};

struct Module {
    Context *context;
};

struct Range {
    u64 bytes;
    Context *context;
};

std::recursive_mutex lock;
bool initialized = false;
Context contexts[DEVICES] = {{0}, {1}};
thread_local std::vector<Context *> current;
std::map<u64, Range> device_memory;
std::map<u64, u64> pinned_memory;
/// Never destroyed: whatever is not given back is still there when the process ends.
std::set<void *> &streams = *new std::set<void *>, &events = *new std::set<void *>, &modules = *new std::set<void *>;
u64 device_bytes = 0;
u64 device_limit = 1ull << 40;
u64 calls = 0;
u64 fail_at = 0;
Result fail_with = SUCCESS;
/// The call with this number waits until somebody lets it go.
u64 hold_at = 0;
std::condition_variable_any released;
/// How long each call takes, beside what it does.
u64 call_ms = 0;
/// The error that took the device with it.
Result lost = SUCCESS;
u64 kernels_run = 0;
u64 bytes_to_host = 0;
u64 bytes_to_device = 0;

bool takes_device(Result error) {
    return error == ILLEGAL_ADDRESS || error == LAUNCH_FAILED || error == 46 || error == 214;
}

/// The device does nothing any more, of what is queued neither.
void lose(Result error) {
    lost = error;
    for (void *handle : streams) {
        Stream *stream = (Stream *)handle;
        stream->operations.clear();
        stream->done = stream->queued;
    }
}

/// Every call begins with this: it counts, and fails if it is its turn.
Result enter() {
    if (lost != SUCCESS) {
        return lost;
    }
    const u64 number = ++calls;
    released.wait(lock, [&] { return hold_at != number; });
    released.wait_for(lock, std::chrono::milliseconds(call_ms), [] { return call_ms == 0; });
    if (fail_at != 0 && number == fail_at) {
        if (takes_device(fail_with)) {
            lose(fail_with);
        }
        return fail_with;
    }
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

Result enter_with_context(Context **context) {
    Result error = enter();
    if (error != SUCCESS) {
        return error;
    }
    if (current.empty()) {
        return INVALID_CONTEXT;
    }
    *context = current.back();
    return SUCCESS;
}

/// The address space of a range, in whole pages.
u64 whole_pages(u64 bytes) {
    return (bytes + 4095) / 4096 * 4096;
}

/// Ranges that lie side by side are protected by one call: calls are slow, and an allocation lies beside the last one.
void protect(int protection) {
    auto range = device_memory.begin();
    while (range != device_memory.end()) {
        u64 start = range->first, end = start;
        for (; range != device_memory.end() && range->first == end; ++range) {
            end += whole_pages(range->second.bytes);
        }
        mprotect((void *)start, end - start, protection);
    }
}

/// Device memory may be touched while this lives.
struct Open {
    Open() { protect(PROT_READ | PROT_WRITE); }
    ~Open() { protect(PROT_NONE); }
};

/// The range that these bytes lie in.
std::map<u64, Range>::iterator holder(u64 at, u64 bytes) {
    auto next = device_memory.upper_bound(at);
    if (next == device_memory.begin()) {
        return device_memory.end();
    }
    auto range = std::prev(next);
    bool inside = at - range->first <= range->second.bytes && bytes <= range->second.bytes - (at - range->first);
    return inside ? range : device_memory.end();
}

bool is_pinned(const void *at, u64 bytes) {
    auto next = pinned_memory.upper_bound((u64)at);
    if (next == pinned_memory.begin()) {
        return false;
    }
    auto range = std::prev(next);
    u64 offset = (u64)at - range->first;
    return offset <= range->second && bytes <= range->second - offset;
}

/// Runs a stream until this number of its operations are over.
Result run_until(Stream *stream, u64 position) {
    while (stream->done < position) {
        auto operation = std::move(stream->operations.front());
        stream->operations.pop_front();
        stream->done++;
        Result error = operation();
        if (error != SUCCESS) {
            lose(error);
            return error;
        }
    }
    return SUCCESS;
}

void queue(Stream *stream, std::function<Result()> operation) {
    stream->operations.push_back(std::move(operation));
    stream->queued++;
}

/// A stream of the current context. 0, 1 and 2 are its default streams, which are one here.
Result stream_of(void *handle, Context *context, Stream **stream) {
    static Stream nulls[DEVICES] = {{&contexts[0], 0, 0, {}}, {&contexts[1], 0, 0, {}}};
    if ((u64)handle <= 2) {
        *stream = &nulls[context->device];
        return SUCCESS;
    }
    if (!streams.count(handle)) {
        return INVALID_HANDLE;
    }
    *stream = (Stream *)handle;
    return (*stream)->context == context ? SUCCESS : INVALID_CONTEXT;
}

}

#define API extern "C" __attribute__((visibility("default")))
#define LOCKED std::lock_guard<std::recursive_mutex> guard(lock)
#define ENTER                                                                                                          \
    LOCKED;                                                                                                            \
    Context *context = nullptr;                                                                                        \
    if (Result error = enter_with_context(&context); error != SUCCESS)                                                 \
    return error
#define STREAM(handle)                                                                                                 \
    Stream *stream = nullptr;                                                                                          \
    if (Result error = stream_of(handle, context, &stream); error != SUCCESS)                                          \
    return error

API Result cuInit(unsigned flags) {
    LOCKED;
    initialized = flags == 0;
    return enter();
}

API Result cuDeviceGetCount(int *count) {
    LOCKED;
    *count = DEVICES;
    return enter();
}

API Result cuDeviceGet(int *device, int ordinal) {
    LOCKED;
    *device = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? enter() : (Result)INVALID_DEVICE;
}

API Result cuDeviceGetName(char *name, int bytes, int device) {
    LOCKED;
    std::snprintf(name, bytes, "stand-in %d", device);
    return enter();
}

API Result cuDeviceGetAttribute(int *value, int attribute, int) {
    LOCKED;
    // Compute capability 9.0.
    *value = attribute == 75 ? 9 : 0;
    return enter();
}

API Result cuDeviceTotalMem_v2(size_t *bytes, int) {
    LOCKED;
    *bytes = device_limit;
    return enter();
}

/// That of the newest release of CUDA 12.
API Result cuDriverGetVersion(int *version) {
    *version = 12090;
    return SUCCESS;
}

API Result cuDevicePrimaryCtxRetain(Context **context, int device) {
    LOCKED;
    *context = &contexts[device];
    return enter();
}

API Result cuCtxPushCurrent_v2(Context *context) {
    LOCKED;
    if (Result error = enter(); error != SUCCESS) {
        return error;
    }
    current.push_back(context);
    return SUCCESS;
}

API Result cuCtxPopCurrent_v2(Context **context) {
    // Never made to fail: whoever pops has no way to go on otherwise.
    LOCKED;
    if (current.empty()) {
        return INVALID_CONTEXT;
    }
    *context = current.back();
    current.pop_back();
    return SUCCESS;
}

API Result cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER;
    *free = device_limit - device_bytes;
    *total = device_limit;
    return SUCCESS;
}

API Result cuMemAlloc_v2(DevicePointer *pointer, size_t bytes) {
    ENTER;
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    if (bytes > device_limit - device_bytes) {
        return OUT_OF_MEMORY;
    }
    size_t whole = whole_pages(bytes);
    void *start = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    device_bytes += bytes;
    device_memory[(u64)start] = {bytes, context};
    *pointer = (u64)start;
    return SUCCESS;
}

API Result cuMemFree_v2(DevicePointer pointer) {
    ENTER;
    auto range = device_memory.find(pointer);
    if (range == device_memory.end()) {
        return INVALID_VALUE;
    }
    // As the real one does: it waits for all that may use the memory.
    for (void *stream : streams) {
        if (Result error = run_until((Stream *)stream, ((Stream *)stream)->queued); error != SUCCESS) {
            return error;
        }
    }
    munmap((void *)pointer, whole_pages(range->second.bytes));
    device_bytes -= range->second.bytes;
    device_memory.erase(range);
    return SUCCESS;
}

API Result cuMemHostAlloc(void **pointer, size_t bytes, unsigned) {
    ENTER;
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    *pointer = std::malloc(bytes);
    pinned_memory[(u64)*pointer] = bytes;
    return SUCCESS;
}

API Result cuMemFreeHost(void *pointer) {
    LOCKED;
    // Also of a device that is lost.
    if (pinned_memory.erase((u64)pointer) == 0) {
        return INVALID_VALUE;
    }
    std::free(pointer);
    return enter();
}

API Result cuMemcpyDtoHAsync_v2(void *to, DevicePointer from, size_t bytes, void *handle) {
    ENTER;
    STREAM(handle);
    if (holder(from, bytes) == device_memory.end() || !is_pinned(to, bytes)) {
        return INVALID_VALUE;
    }
    queue(stream, [=] {
        Open open;
        std::memcpy(to, (void *)from, bytes);
        bytes_to_host += bytes;
        return SUCCESS;
    });
    return SUCCESS;
}

API Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void *from, size_t bytes, void *handle) {
    ENTER;
    STREAM(handle);
    if (holder(to, bytes) == device_memory.end() || !is_pinned(from, bytes)) {
        return INVALID_VALUE;
    }
    queue(stream, [=] {
        Open open;
        std::memcpy((void *)to, from, bytes);
        bytes_to_device += bytes;
        return SUCCESS;
    });
    return SUCCESS;
}

API Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void *handle) {
    ENTER;
    STREAM(handle);
    if (holder(to, bytes) == device_memory.end() || holder(from, bytes) == device_memory.end()) {
        return INVALID_VALUE;
    }
    queue(stream, [=] {
        Open open;
        std::memcpy((void *)to, (const void *)from, bytes);
        return SUCCESS;
    });
    return SUCCESS;
}

API Result cuMemcpyHtoD_v2(DevicePointer to, const void *from, size_t bytes) {
    ENTER;
    if (holder(to, bytes) == device_memory.end()) {
        return INVALID_VALUE;
    }
    Open open;
    std::memcpy((void *)to, from, bytes);
    return SUCCESS;
}

API Result cuMemcpyDtoH_v2(void *to, DevicePointer from, size_t bytes) {
    ENTER;
    if (holder(from, bytes) == device_memory.end()) {
        return INVALID_VALUE;
    }
    Open open;
    std::memcpy(to, (const void *)from, bytes);
    return SUCCESS;
}

API Result cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t bytes) {
    ENTER;
    if (holder(to, bytes) == device_memory.end() || holder(from, bytes) == device_memory.end()) {
        return INVALID_VALUE;
    }
    Open open;
    std::memcpy((void *)to, (const void *)from, bytes);
    return SUCCESS;
}

API Result cuCtxSynchronize() {
    ENTER;
    for (void *stream : streams) {
        if (Result error = run_until((Stream *)stream, ((Stream *)stream)->queued); error != SUCCESS) {
            return error;
        }
    }
    return SUCCESS;
}

API Result cuStreamCreate(void **handle, unsigned) {
    ENTER;
    *handle = new Stream{context, 0, 0, {}};
    streams.insert(*handle);
    return SUCCESS;
}

API Result cuStreamDestroy_v2(void *handle) {
    ENTER;
    STREAM(handle);
    // The queued operations still run.
    Result error = run_until(stream, stream->queued);
    // Events may still name it.
    streams.erase(handle);
    return error;
}

API Result cuStreamSynchronize(void *handle) {
    ENTER;
    STREAM(handle);
    return run_until(stream, stream->queued);
}

API Result cuStreamQuery(void *handle) {
    ENTER;
    STREAM(handle);
    return stream->done == stream->queued ? (Result)SUCCESS : (Result)NOT_READY;
}

API Result cuStreamWaitEvent(void *handle, void *waited, unsigned) {
    ENTER;
    STREAM(handle);
    if (!events.count(waited)) {
        return INVALID_HANDLE;
    }
    Event event = *(Event *)waited;
    queue(stream, [=] { return event.stream == nullptr ? (Result)SUCCESS : run_until(event.stream, event.position); });
    return SUCCESS;
}

API Result cuEventCreate(void **handle, unsigned) {
    ENTER;
    *handle = new Event{context};
    events.insert(*handle);
    return SUCCESS;
}

API Result cuEventDestroy_v2(void *handle) {
    LOCKED;
    if (events.erase(handle) == 0) {
        return INVALID_HANDLE;
    }
    delete (Event *)handle;
    return enter();
}

API Result cuEventRecord(void *handle, void *on) {
    ENTER;
    STREAM(on);
    if (!events.count(handle)) {
        return INVALID_HANDLE;
    }
    Event *event = (Event *)handle;
    event->stream = stream;
    event->position = stream->queued;
    return event->context == context ? SUCCESS : INVALID_HANDLE;
}

API Result cuEventSynchronize(void *handle) {
    ENTER;
    if (!events.count(handle)) {
        return INVALID_HANDLE;
    }
    Event *event = (Event *)handle;
    return event->stream == nullptr ? (Result)SUCCESS : run_until(event->stream, event->position);
}

API Result cuModuleLoadData(void **module, const void *image) {
    ENTER;
    if (std::strncmp((const char *)image, "stand-in image", 14) != 0) {
        return INVALID_IMAGE;
    }
    *module = new Module{context};
    modules.insert(*module);
    return SUCCESS;
}

API Result cuModuleGetFunction(const void **function, void *module, const char *name) {
    ENTER;
    if (!modules.count(module)) {
        return INVALID_HANDLE;
    }
    if (const Kernel *kernel = find_kernel(name)) {
        *function = kernel;
        return SUCCESS;
    }
    return NOT_FOUND;
}

API Result cuLaunchKernel(const Kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned, void *handle, void **params, void **extra) {
    ENTER;
    STREAM(handle);
    if (find_kernel(kernel->name) != kernel || grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x > 1024 ||
        block_y != 1 || block_z != 1 || extra != nullptr) {
        return INVALID_VALUE;
    }
    std::vector<u64> kept(kernel->param_bytes.size());
    for (size_t i = 0; i < kept.size(); i++) {
        std::memcpy(&kept[i], params[i], kernel->param_bytes[i]);
    }
    queue(stream, [=] {
        Open open;
        std::vector<u64> own = kept;
        std::vector<void *> pointers;
        for (u64 &value : own) {
            pointers.push_back(&value);
        }
        for (unsigned block = 0; block < grid_x; block++) {
            shim::run_block(block, block_x, kernel->run, pointers.data());
        }
        kernels_run++;
        return SUCCESS;
    });
    return SUCCESS;
}

API Result cuPointerGetAttribute(void *value, int attribute, DevicePointer pointer) {
    LOCKED;
    if (Result error = enter(); error != SUCCESS) {
        return error;
    }
    auto range = holder(pointer, 0);
    if (range == device_memory.end()) {
        return INVALID_VALUE;
    }
    switch (attribute) {
    case 2: // Kind of memory.
        *(u32 *)value = 2;
        return SUCCESS;
    case 9: // Ordinal of the device.
        *(int *)value = range->second.context->device;
        return SUCCESS;
    case 11: // Start of the allocation.
        *(u64 *)value = range->first;
        return SUCCESS;
    case 12: // Its bytes.
        *(u64 *)value = range->second.bytes;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

API Result cuGetErrorName(Result error, const char **name) {
    static std::map<Result, std::string> names;
    LOCKED;
    *name = names.emplace(error, "STANDIN_ERROR_" + std::to_string(error)).first->second.c_str();
    return SUCCESS;
}

// Functions by which tests ask this library itself.

/// The call with this number from now on fails with this error; 0: none does. A lost device is there again.
API void standin_fail(u64 number, Result error) {
    LOCKED;
    fail_at = number == 0 ? 0 : calls + number;
    fail_with = error;
    lost = SUCCESS;
}

/// The call with this number from now on waits; 0: none does any more.
API void standin_hold(u64 number) {
    LOCKED;
    hold_at = number == 0 ? 0 : calls + number;
    released.notify_all();
}

/// Each call takes this number of milliseconds from now on, while others go on.
API void standin_slow(u64 milliseconds) {
    LOCKED;
    call_ms = milliseconds;
    released.notify_all();
}

/// Whether a call waits.
API bool standin_holds() {
    LOCKED;
    return hold_at != 0 && calls >= hold_at;
}

/// A device has this number of bytes from now on.
API void standin_limit(u64 bytes) {
    LOCKED;
    device_limit = bytes;
}

/// 0: calls so far, 1: kernels that ran, 2: bytes copied to the host, 3: to a device, 4: device memory in use, 5:
/// pinned memory in use, 6: streams, 7: events, 8: operations that are queued on streams, 9: modules.
API u64 standin_count(u32 what) {
    LOCKED;
    u64 pinned = 0;
    for (auto &[start, bytes] : pinned_memory) {
        pinned += bytes;
    }
    u64 queued = 0;
    for (void *stream : streams) {
        queued += ((Stream *)stream)->operations.size();
    }
    const u64 counts[] = {calls,        kernels_run, bytes_to_host,  bytes_to_device,
                          device_bytes, pinned,      streams.size(), events.size(), queued, modules.size()};
    return counts[what];
}

/// Device memory of the program, on the first device; zeros.
API u64 standin_new(u64 bytes) {
    LOCKED;
    initialized = true;
    current.push_back(&contexts[0]);
    DevicePointer pointer = 0;
    Result error = cuMemAlloc_v2(&pointer, bytes);
    current.pop_back();
    return error == SUCCESS ? pointer : 0;
}

API void standin_free(u64 pointer) {
    LOCKED;
    auto range = device_memory.find(pointer);
    if (range != device_memory.end()) {
        munmap((void *)pointer, whole_pages(range->second.bytes));
        device_bytes -= range->second.bytes;
        device_memory.erase(range);
    }
}

API void standin_put(u64 to, const u8 *from, u64 bytes) {
    LOCKED;
    Open open;
    std::memcpy((void *)to, from, bytes);
}

API void standin_get(u64 from, u8 *to, u64 bytes) {
    LOCKED;
    Open open;
    std::memcpy(to, (const void *)from, bytes);
}

API u64 standin_stream() {
    LOCKED;
    Stream *stream = new Stream{&contexts[0], 0, 0, {}};
    streams.insert(stream);
    return (u64)stream;
}

/// Does what is queued on a stream of the program.
API void standin_settle(u64 handle) {
    LOCKED;
    Stream *stream = nullptr;
    if (stream_of((void *)handle, &contexts[0], &stream) == SUCCESS) {
        run_until(stream, stream->queued);
    }
}

API void standin_put_later(u64 handle, u64 to, const u8 *from, u64 bytes) {
    LOCKED;
    Stream *stream = nullptr;
    if (stream_of((void *)handle, &contexts[0], &stream) != SUCCESS) {
        return;
    }
    std::vector<u8> kept(from, from + bytes);
    queue(stream, [=] {
        Open open;
        std::memcpy((void *)to, kept.data(), kept.size());
        return SUCCESS;
    });
}
