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
import time

import numpy

import pccl
from checks import check_all
from driver import Array, Device, Program, together

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


def seconds(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


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
    """This number of MiB, or fewer if there is no room for as many times that on the device and on the host."""
    room = host_bytes() * 0.8 / on_host
    if hasattr(device.driver, "cuMemGetInfo_v2"):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        device.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        room = min(room, free.value * 0.9 / on_device)
    fits = max(1, min(mebibytes, int(room) >> 20))
    if fits < mebibytes:
        print(f"{what}: {fits} MiB, since there is no room for {mebibytes}")
    return fits


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
    check_all(device)
    if arguments.checks_only:
        return
    check_kernel_cache()
    targets = Targets()
    # Memory of the arrays of each, and of the library for them, on the device and on the host.
    hash_rate = measure_kernels(device, targets, fitting(device, "kernels", min(arguments.mebibytes, 1024), 2.5, 2))
    state = fitting(device, "state", arguments.state_mebibytes, 2, 0.1)
    measure_sync(device, targets, state, hash_rate)
    measure(device, targets, fitting(device, "all-reduces", arguments.mebibytes, 2, 11))
    targets.end()


if __name__ == "__main__":
    main()
