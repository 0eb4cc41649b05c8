"""Whether the library is right about tensors on a device: each check ends with an error at the first thing wrong."""

import ctypes

import numpy

import pccl
from driver import Array, Program, together

#: Schemes of which elements stay on the device.
QUANTISED = ("BLOCK_AFFINE_UINT8", "BLOCK_AFFINE_UINT4", "BLOCK_SYMMETRIC_INT8", "CAST_BFLOAT16", "CAST_FLOAT16")


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


def check_all(device):
    """All of them, the kernels first."""
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
