"""Tensors on a device, checked and measured: on a machine with a driver of CUDA, or on the stand-in.

    python cuda/check/device.py [--mebibytes 1024] [--state-mebibytes 8192] [--checks-only]

Needs the package for Python, numpy, and NVRTC where the loader finds it. Ends with an error at the first thing that is
wrong; a target that is missed is only told. Where there is too little memory it measures with less, and says so. Two
peers are threads of this process, on the first device; CUDA_VISIBLE_DEVICES chooses another one.
"""

import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy

import pccl

#: Schemes of which elements stay on the device.
QUANTISED = ("BLOCK_AFFINE_UINT8", "BLOCK_AFFINE_UINT4", "BLOCK_SYMMETRIC_INT8", "CAST_BFLOAT16", "CAST_FLOAT16")


#: What is to be reached: of a copy on the device in the same run, of the same on the host, of the kernel by itself.
OF_COPY, OF_HOST, OF_KERNEL = 0.8, 0.9, 0.8


class Targets:
    """What was measured beside what it is to reach."""

    def __init__(self):
        self.met, self.missed = [], []

    def say(self, name, rate, ratio, of, target):
        """Prints a rate, and its ratio to something; without a ``target`` there is none to be reached."""
        told = "no target"
        if target is not None:
            (self.met if ratio >= target else self.missed).append(name)
            told = f"target {target:.2f}, {'met' if ratio >= target else 'MISSED'}"
        print(f"{name + ':':31}{rate:8.2f} GB/s, {ratio:.2f} of {of} ({told})")

    def end(self):
        print(f"targets: {len(self.met)} met; missed: {'; '.join(self.missed) or 'none'}")


class Device:
    """The driver, as programs use it."""

    def __init__(self):
        for name in ("libcuda.so", "libcuda.so.1"):
            try:
                self.driver = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise SystemExit("there is no driver of CUDA")
        self.call("cuInit", 0)
        self.context, name = ctypes.c_void_p(), ctypes.create_string_buffer(100)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuDeviceGetName", name, 100, 0)
        self.name = name.value.decode()

    def call(self, function, *arguments):
        result = getattr(self.driver, function)(*arguments)
        if result != 0:
            raise SystemExit(f"{function}: error {result}")

    def enter(self):
        """Makes the device the one of this thread."""
        self.call("cuCtxPushCurrent_v2", self.context)


def host_bytes():
    """Memory of the host that is left, for this container."""
    left = []
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            left.append(1024 * int(line.split()[1]))
    # Of both versions of control groups.
    for limit, used in (("memory.max", "memory.current"),
                        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            most, now = [(pathlib.Path("/sys/fs/cgroup") / name).read_text().strip() for name in (limit, used)]
        except OSError:
            continue
        if most != "max":
            left.append(max(0, int(most) - int(now)))
    return min(left)


def fitting(device, what, mebibytes, on_device, on_host):
    """So many MiB, or fewer if there is no room for as many times that on the device and on the host."""
    room = host_bytes() * 0.8 / on_host
    if hasattr(device.driver, "cuMemGetInfo_v2"):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        device.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        room = min(room, free.value * 0.9 / on_device)
    fits = max(1, min(mebibytes, int(room) >> 20))
    if fits < mebibytes:
        print(f"{what}: {fits} MiB, since there is no room for {mebibytes}")
    return fits


KERNELS = pathlib.Path(__file__).resolve().parent.parent / "kernels"


class Program:
    """Kernels of the library, to be launched by themselves."""

    def __init__(self, device, source):
        self.device = device
        for name in ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"):
            try:
                compiler = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise SystemExit("there is no NVRTC")
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert compiler.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
        self.version = f"{major.value}.{minor.value}"
        device.call("cuDeviceGetAttribute", ctypes.byref(major), 75, 0)
        device.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, 0)
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        option = f"--gpu-architecture=compute_{major.value}{minor.value}".encode()
        text = (KERNELS / source).read_bytes()
        assert compiler.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None) == 0
        assert compiler.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(option)) == 0, "NVRTC is too old"
        assert compiler.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
        image, self.module = ctypes.create_string_buffer(size.value), ctypes.c_void_p()
        assert compiler.nvrtcGetPTX(program, image) == 0
        device.call("cuModuleLoadData", ctypes.byref(self.module), image)

    def launch(self, name, blocks, threads, *arguments):
        """Runs a kernel, and waits for it."""
        function = ctypes.c_void_p()
        self.device.call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
        addresses = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(argument) for argument in arguments])
        self.device.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, addresses, None)
        self.device.call("cuStreamSynchronize", None)


class Array:
    """An array on the device, made on a stream."""

    def __init__(self, device, like, stream=None, bytes=None):
        """As ``like``; or what it holds over and over, so many ``bytes``."""
        self.device, self.like, self.stream = device, like, stream
        self.bytes = like.nbytes if bytes is None else bytes
        self.address = ctypes.c_uint64()
        device.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.bytes))
        for at in range(0, self.bytes, max(1, like.nbytes)):
            self.put(like, at)

    def put(self, content, at=0):
        address, length = ctypes.c_uint64(self.address.value + at), min(content.nbytes, self.bytes - at)
        pointer = ctypes.c_void_p(content.ctypes.data)
        self.device.call("cuMemcpyHtoD_v2", address, pointer, ctypes.c_size_t(length))

    def get(self):
        content = numpy.empty_like(self.like)
        pointer = ctypes.c_void_p(content.ctypes.data)
        self.device.call("cuMemcpyDtoH_v2", pointer, self.address, ctypes.c_size_t(content.nbytes))
        return content

    def copy_to(self, other):
        self.device.call("cuMemcpyDtoD_v2", other.address, self.address, ctypes.c_size_t(self.like.nbytes))
        self.device.call("cuCtxSynchronize")

    def free(self):
        self.device.call("cuMemFree_v2", self.address)

    @property
    def __cuda_array_interface__(self):
        shape = self.like.shape if self.bytes == self.like.nbytes else (self.bytes // self.like.itemsize,)
        return {"shape": shape, "typestr": self.like.dtype.str, "data": (self.address.value, False),
                "strides": None, "version": 3, "stream": self.stream}


def together(device, work):
    """Runs ``work(comm, rank)`` at two peers, and returns what rank 0 returns."""
    results, errors = {}, []

    def peer(address):
        try:
            device.enter()
            comm = pccl.Communicator(address, first_ports=(0, 0))
            try:
                comm.connect()
                comm.wait_for_world(2)
                rank = comm.world().rank
                results[rank] = work(comm, rank)
                comm.barrier()
            except BaseException as error:
                # Before the other one fails because this one goes.
                errors.append(error)
            finally:
                comm.destroy()
        except BaseException as error:
            errors.append(error)

    with pccl.MasterNode("127.0.0.1:0") as node:
        threads = [threading.Thread(target=peer, args=(f"127.0.0.1:{node.port}",), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return results[0]


def seconds(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def check_kernels(device):
    """Without kernels the library would work on the host, and all checks would pass."""
    version = [Program(device, source).version for source in ("hash.cu", "quantise.cu")][0]
    print(f"kernels: the driver takes what NVRTC {version} makes")


def check_states(device):
    """Digests are those of the host at all lengths that matter, and what differs arrives."""
    generator = numpy.random.default_rng(1)
    lengths = [1, 3, 16, 17, 128, 240, 241, 1024, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (3 << 20) + 241]
    contents = [generator.integers(0, 256, length, numpy.uint8) for length in lengths]

    def work(comm, rank):
        arrays = [Array(device, content) if rank == 0 else content.copy() for content in contents]
        state = pccl.SharedState({f"t{place:02}": array for place, array in enumerate(arrays)}, revision=1)
        info = comm.sync_shared_state(state)
        assert info.rx_bytes == 0, "the digests of device and host differ"
        # Rank 0 has something else on the device, and gets back what rank 1 has on the host.
        if rank == 0:
            arrays[-1].put(contents[-1][::-1].copy())
        state.revision = 2 if rank == 1 else 1
        comm.sync_shared_state(state)
        for array, content in zip(arrays, contents):
            assert ((array.get() if rank == 0 else array) == content).all(), f"{len(content)} bytes are wrong"
        if rank == 0:
            for array in arrays:
                array.free()

    together(device, work)
    print(f"digests and repair: right for {len(lengths)} lengths")


def check_reduces(device):
    def work(comm, rank):
        for dtype in (numpy.uint8, numpy.int32, numpy.float16, numpy.float32, numpy.float64):
            array = Array(device, numpy.full(100_003, 1 + rank, dtype))
            comm.all_reduce(array, op="sum")
            assert (array.get() == 3).all(), dtype
            comm.broadcast(array, 1)
            array.free()

    together(device, work)
    print("reduces: right for 5 types")


def check_collectives(device):
    """All other kinds, by small messages and by large ones, leave what they leave on the host."""

    def work(comm, rank):
        def on_device(content):
            array = Array(device, content)
            arrays.append(array)
            return array

        def numbers(first, count):
            return (first + numpy.arange(count) % 1000).astype(numpy.float32)

        def same(array, content):
            assert (array.get() == content).all()

        for count in (11, 2_000_003):
            arrays = []
            one = on_device(numbers(rank, count))
            comm.broadcast(one, 1)
            same(one, numbers(1, count))
            comm.reduce(one, 0, op="sum")
            same(one, (1 if rank else 2) * numbers(1, count))
            both, own = on_device(numpy.zeros(2 * count, numpy.float32)), on_device(numbers(rank, count))
            comm.all_gather(own, both)
            same(both, numpy.concatenate([numbers(0, count), numbers(1, count)]))
            comm.reduce_scatter(both, one, op="avg")
            same(one, numbers(rank, count))
            comm.weighted_average(one, rank)
            same(one, numbers(1, count))
            comm.all_reduce_many([one, both], op="max")
            same(one, numbers(1, count))
            assert comm.clip_to_median(one, 3.0).scale == 1
            segments = comm.all_reduce_in_segments(one, segment_bytes=1 << 20, op="avg")
            assert len(segments) == max(1, -(-4 * count // (1 << 20)))
            same(one, numbers(1, count))
            handles = [comm.send_async(own, 1 - rank), comm.recv_async(one, 1 - rank)]
            for handle in handles:
                handle.result()
            same(one, numbers(1 - rank, count))
            for array in arrays:
                array.free()

    together(device, work)
    print("all other collectives: right, of few elements and of many")


def check_streams(device):
    """Calls begin after what is queued on the stream that an array names, however much that is."""

    def work(comm, rank):
        size = 4_000_001
        stream, pinned = ctypes.c_void_p(), ctypes.c_void_p()
        device.call("cuStreamCreate", ctypes.byref(stream), 1)
        device.call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(4 * size), 0)
        queued = numpy.ctypeslib.as_array(ctypes.cast(pinned, ctypes.POINTER(ctypes.c_float)), (size,))
        queued[:] = 1 + rank
        array = Array(device, numpy.zeros(size, numpy.float32), stream.value)
        for call, result in ((lambda: comm.all_reduce(array, op="sum"), 3), (lambda: comm.broadcast(array, 1), 2)):
            for _ in range(20):
                device.call("cuMemcpyHtoDAsync_v2", array.address, pinned, ctypes.c_size_t(4 * size), stream)
            call()
            assert (array.get() == result).all(), result
        array.free()
        device.call("cuStreamDestroy_v2", stream)
        device.call("cuMemFreeHost", pinned)

    together(device, work)
    print("calls begin after what is queued on a stream: right")


def check_memory(device):
    """What many calls leave on the device: nothing."""
    if not hasattr(device.driver, "cuMemGetInfo_v2"):
        return print("memory of the device after many calls: this driver does not say")

    def left():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        device.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def work(comm, rank):
        array = Array(device, numpy.ones(3_000_001, numpy.float32))

        def calls(times):
            for _ in range(times):
                comm.all_reduce(array, op="max")
                comm.broadcast(array, 0)
            comm.barrier()

        calls(3)
        before = left()
        calls(50)
        after = left()
        comm.barrier()
        array.free()
        return before - after

    lost = together(device, work)
    assert lost <= 0, f"{lost} bytes are missing"
    print("memory of the device after many calls: as before")


def check_torch():
    """Tensors of torch, on the stream that is its current one."""
    try:
        import torch
    except ImportError:
        return print("tensors of torch: left out, there is no torch")
    if not torch.cuda.is_available():
        return print("tensors of torch: left out, this torch has no CUDA")

    def peer(comm, rank):
        with torch.cuda.stream(torch.cuda.Stream()):
            heavy = torch.full((2048, 2048), 0.5, device="cuda")
            for _ in range(20):
                heavy = heavy @ heavy / 512
            tensor = heavy + rank
            expected = (2 * heavy + 1).clone()
            comm.all_reduce(tensor, op="sum")
            assert torch.equal(tensor, expected)
            comm.broadcast(tensor, 1)
            assert torch.equal(tensor, expected)
            half = torch.full((1_000_003,), 1.0 + rank, device="cuda", dtype=torch.bfloat16)
            comm.all_reduce_many([half, tensor], op="max")
            assert (half == 2).all() and torch.equal(tensor, expected)

    class Entered:
        """torch makes the device that of each of its threads by itself."""

        def enter(self):
            torch.cuda.set_device(0)

    together(Entered(), peer)
    print("tensors of torch: right, on a stream of their own")


def check_results_on_stream(device):
    def work(comm, rank):
        array = Array(device, numpy.full(3_000_001, 1 + rank, numpy.float32))
        with pccl.cuda.results_on_stream():
            for _ in range(3):
                comm.all_reduce(array, op="sum")
        device.call("cuCtxSynchronize")
        assert (array.get() == 12).all()
        array.free()

    together(device, work)
    print("results for which the stream waits: right")


def check_quantised(device):
    """Quantised on the device they are the bits of the host, whoever has a device."""
    algorithms = [pccl.QuantizationAlgorithm[name] for name in QUANTISED]

    def work(comm, rank):
        for place, algorithm in enumerate(algorithms):
            for count in (1, 255, 100_003):
                content = numpy.random.default_rng(place + rank).standard_normal(count).astype(numpy.float32)
                how = pccl.QuantizationOptions(algorithm=algorithm)
                host = content.copy()
                comm.all_reduce(host, op="avg", tag=7, quantization_options=how)
                array = Array(device, content) if rank == 0 else content
                comm.all_reduce(array, op="avg", tag=7, quantization_options=how)
                result = array.get() if rank == 0 else array
                assert (result.view(numpy.uint32) == host.view(numpy.uint32)).all(), (algorithm, count)
                if rank == 0:
                    array.free()

    together(device, work)
    print(f"quantised reduces: the bits of the host for {len(algorithms)} schemes")


def check_pipeline(device):
    """Copies beside the ring, in place and from one buffer into another."""

    def work(comm, rank):
        content = numpy.arange(3_000_001, dtype=numpy.int32) * (rank + 1)
        array, other = Array(device, content), Array(device, numpy.zeros_like(content))
        comm.all_reduce(array, other, op="sum")
        assert (other.get() == numpy.arange(3_000_001, dtype=numpy.int32) * 3).all()
        assert (array.get() == content).all()
        comm.all_reduce(array, op="max")
        assert (array.get() == numpy.arange(3_000_001, dtype=numpy.int32) * 2).all()
        array.free()
        other.free()

    together(device, work)
    print("reduces beside which copies go on: right, in place and not")


def measure_kernels(device, targets, mebibytes):
    """Each kernel by itself, beside a copy on the device of the same memory. The rate of the hash, in GB/s."""
    content = numpy.random.default_rng(3).standard_normal(mebibytes << 18, numpy.float32)
    array, other = Array(device, content), Array(device, content)
    count, block = content.size, 256
    records = Array(device, numpy.zeros(count // block * (block + 8), numpy.uint8))
    table = numpy.array([array.address.value, content.nbytes, 0], numpy.uint64)
    stretches, digests = Array(device, table), Array(device, numpy.zeros(16 * mebibytes, numpy.uint8))
    hashes, coders = Program(device, "hash.cu"), Program(device, "quantise.cu")
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64

    def encode():
        coders.launch("pccl_encode_f32_affine_u8", count // (4 * block), 256, array.address, u64(count), u32(block),
                      records.address, u64(0), u32(0), u32(0), u64(0), u64(0))

    def decode():
        coders.launch("pccl_decode_f32_affine_u8", count // 256, 256, records.address, u64(count), u32(block),
                      other.address)

    def tree():
        hashes.launch("pccl_tree_level1", mebibytes, 1024, stretches.address, u32(1), u64(0), digests.address)

    size = content.nbytes / 1e9
    copy = size / min(seconds(lambda: array.copy_to(other)) for _ in range(5))
    print(f"copy on the device:            {copy:8.2f} GB/s of {mebibytes} MiB; of elements, beside it:")
    rates = []
    for name, work in [("hash", tree), ("encode, affine u8, block 256", encode), ("decode", decode)]:
        rates.append(size / min(seconds(work) for _ in range(5)))
        targets.say(name, rates[-1], rates[-1] / copy, "the copy", OF_COPY)
    error = numpy.abs(other.get() - content).max()
    assert error < 0.05, error
    for one in (array, other, records, stretches, digests):
        one.free()
    return rates[0]


def first_use(device):
    """Seconds of the first sync of this process, which compiles the kernels, or finds them."""

    def work(comm, rank):
        array = Array(device, numpy.ones(1000, numpy.float32))
        taken = seconds(lambda: comm.sync_shared_state(pccl.SharedState({"weights": array}, revision=0)))
        array.free()
        return taken

    return together(device, work)


def check_kernel_cache():
    """Kernels are compiled by the first of two processes."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--first-use"]
        environment = {**os.environ, "PCCL_KERNEL_CACHE": directory}

        def run():
            return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)

        compiling, finding = run(), run()
        assert len(os.listdir(directory)) == 1, os.listdir(directory)
    print(f"first sync of a process:       {compiling:8.2f} s, {finding:.2f} s with kernels from a file")


def measure_sync(device, targets, mebibytes, hash_rate):
    """A sync of a state that is the same at both peers, which hash it on the same device at the same time."""
    piece = numpy.random.default_rng(4).integers(0, 1 << 32, min(mebibytes, 64) << 18, numpy.uint32)

    def work(comm, rank):
        # The same random numbers over and over.
        array = Array(device, piece, bytes=mebibytes << 20)
        state = pccl.SharedState({"weights": array}, revision=0)
        comm.sync_shared_state(state)
        taken = min(seconds(lambda: comm.sync_shared_state(state)) for _ in range(3))
        array.free()
        return taken

    taken = together(device, work)
    rate = 2 * (mebibytes << 20) / 1e9 / taken
    print(f"sync of an identical state:    {taken * 1e3:8.1f} ms for {mebibytes} MiB at each of two peers")
    targets.say("hashed by both in a sync", rate, rate / hash_rate, "the hash by itself", OF_KERNEL)


def measure(device, targets, mebibytes):
    content = numpy.random.default_rng(2).integers(0, 1 << 32, mebibytes << 18, numpy.uint32).astype(numpy.float32)

    def work(comm, rank):
        array = Array(device, content)
        on_host = content.copy()
        host = min(seconds(lambda: comm.all_reduce(on_host, op="avg")) for _ in range(2))
        on_device = min(seconds(lambda: comm.all_reduce(array, op="avg")) for _ in range(2))
        with pccl.cuda.results_on_stream():
            on_stream = min(seconds(lambda: comm.all_reduce(array, op="avg")) for _ in range(2))
        how = pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_AFFINE_UINT8)

        def quantised(buffer):
            return min(seconds(lambda: comm.all_reduce(buffer, op="avg", quantization_options=how)) for _ in range(2))

        coded = quantised(on_host), quantised(array)
        comm.barrier()
        array.free()
        return host, on_device, on_stream, coded

    host, on_device, on_stream, coded = together(device, work)
    size = content.nbytes / 1e9
    print(f"all-reduce on the host:        {size / host:8.2f} GB/s of {mebibytes} MiB, on loopback; beside it:")
    targets.say("all-reduce of device buffers", size / on_device, host / on_device, "the host", OF_HOST)
    targets.say("copied before and after", size / on_stream, host / on_stream, "the host", None)
    print(f"quantised, on the host:        {size / coded[0]:8.2f} GB/s; beside it:")
    targets.say("quantised, device buffers", size / coded[1], coded[0] / coded[1], "the host", OF_HOST)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of what is reduced and encoded")
    parser.add_argument("--state-mebibytes", type=int, default=8192, help="size of the state that is synced")
    parser.add_argument("--checks-only", action="store_true", help="measures nothing")
    parser.add_argument("--first-use", action="store_true", help="only prints the seconds of the first sync")
    arguments = parser.parse_args()
    device = Device()
    device.enter()
    if arguments.first_use:
        return print(first_use(device))
    print(f"device: {device.name}; usable by the library: {pccl.cuda.device_count()}")
    assert pccl.cuda.device_count() > 0
    check_kernels(device)
    check_states(device)
    check_reduces(device)
    check_quantised(device)
    check_pipeline(device)
    check_collectives(device)
    check_streams(device)
    check_results_on_stream(device)
    check_memory(device)
    check_torch()
    if arguments.checks_only:
        return
    check_kernel_cache()
    targets = Targets()
    # What the arrays of each take, and what the library takes for them, on the device and on the host.
    hash_rate = measure_kernels(device, targets, fitting(device, "kernels", min(arguments.mebibytes, 1024), 2.5, 2))
    state = fitting(device, "state", arguments.state_mebibytes, 2, 0.1)
    measure_sync(device, targets, state, hash_rate)
    measure(device, targets, fitting(device, "all-reduces", arguments.mebibytes, 2, 11))
    targets.end()


if __name__ == "__main__":
    main()
