"""Arrays on a device, on the stand-in driver of the repository: a process finds it by LD_LIBRARY_PATH."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "cuda" / "standin"

DEVICE = '''
import ctypes
driver = ctypes.CDLL("libcuda.so")
driver.standin_new.restype = driver.standin_stream.restype = driver.standin_count.restype = ctypes.c_uint64
driver.standin_new.argtypes = [ctypes.c_uint64]
driver.standin_put.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64]
driver.standin_get.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]
driver.standin_settle.argtypes = [ctypes.c_uint64]
driver.standin_put_later.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64]

class Array:
    """What cupy, numba and others give."""
    def __init__(self, content, stream=None):
        self.like, self.stream = content, stream
        self.address = driver.standin_new(content.nbytes)
        if stream is None:
            driver.standin_put(self.address, content.tobytes(), content.nbytes)
        else:
            driver.standin_put_later(stream, self.address, content.tobytes(), content.nbytes)
    @property
    def __cuda_array_interface__(self):
        return {"shape": self.like.shape, "typestr": self.like.dtype.str, "data": (self.address, False),
                "strides": None, "version": 3, "stream": self.stream}
    def get(self):
        content = numpy.empty_like(self.like)
        driver.standin_get(self.address, content.ctypes.data, content.nbytes)
        return content

class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]

class Packed:
    """What gives DLPack only."""
    def __init__(self, array):
        self.array, self.shape = array, (ctypes.c_int64 * array.like.ndim)(*array.like.shape)
    def __dlpack_device__(self):
        return (2, 0)
    def __dlpack__(self, *, stream):
        assert stream == 1, "the default stream"
        like = self.array.like
        self.tensor = DLTensor(self.array.address - 8, (2, 0), like.ndim, 2, 8 * like.itemsize, 1, self.shape, None, 8)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)
'''


@pytest.fixture
def standin(tmp_path, monkeypatch):
    """Children find the stand-in."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or not SOURCES.is_dir():
        pytest.skip("no compiler for the stand-in driver, or no sources of it")
    for name, sources in {"libcuda.so": ["driver.cpp", "kernels.cpp", "shim.cpp"],
                          "libnvrtc.so": ["nvrtc.cpp"]}.items():
        subprocess.run([compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", f"-Wl,-soname,{name}",
                        "-o", tmp_path / name, *(SOURCES / source for source in sources)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("PCCL_KERNEL_CACHE", str(tmp_path / "kernels"))


def test_collectives_take_arrays_on_devices(standin, fleet):
    fleet(2, DEVICE + """
comm = join()
rank = comm.world().rank
stream = driver.standin_stream()
a = Array(numpy.full((1000, 7), 1.5 + rank, numpy.float32), stream)
comm.all_reduce(a, op="sum")
assert (a.get() == 4.0).all(), a.get()
b, c = Array(numpy.full(9, rank, numpy.int64)), Array(numpy.zeros(9, numpy.int64))
comm.all_reduce(b, c, op="max")
assert (b.get() == rank).all() and (c.get() == 1).all()
handle = comm.all_reduce_many_async([Packed(Array(numpy.ones(5))), a], op="avg")
handle.result()
assert (a.get() == 4.0).all()
p = Array(numpy.full(5, 1.0 + rank))
comm.all_reduce(Packed(p), op="sum")
assert (p.get() == 3.0).all(), p.get()
d = Array(numpy.full(11, rank, numpy.uint8))
comm.broadcast(d, 1)
assert (d.get() == 1).all()
e = Array(numpy.zeros((2, 3), numpy.float32))
comm.all_gather(numpy.full(3, rank, numpy.float32), e)
assert (e.get() == [[0] * 3, [1] * 3]).all()
assert pccl.cuda.device_count() == 2
assert driver.standin_count(4) > 0
comm.barrier()
comm.destroy()
""")


def test_every_call_takes_arrays_where_they_are(standin, fleet):
    fleet(2, DEVICE + """
comm = join()
rank, count = comm.world().rank, 300_000
stream = driver.standin_stream()

def numbers(first, count=count):
    return (first + numpy.arange(count) % 1000).astype(numpy.float32)

def later(content):
    return Array(content, stream)

def packed(content):
    # DLPack is asked for the default stream.
    return Packed(Array(content))

def got(array):
    return (array.array if isinstance(array, Packed) else array).get()

for make in (later, packed):
    a = make(numbers(rank))
    comm.broadcast(a, 1)
    assert (got(a) == numbers(1)).all()
    up = driver.standin_count(3)
    comm.reduce_async(a, 0, op="sum").result()
    assert (got(a) == (2 if rank == 0 else 1) * numbers(1)).all()
    assert driver.standin_count(3) - up == (4 * count if rank == 0 else 0), "only results go up"
    both = make(numpy.zeros(2 * count, numpy.float32))
    comm.all_gather(make(numbers(rank)), both)
    assert (got(both) == numpy.concatenate([numbers(0), numbers(1)])).all()
    own = make(numpy.zeros(count, numpy.float32))
    comm.reduce_scatter(both, own, op="avg")
    assert (got(own) == numbers(rank)).all()
    uneven = make(numpy.zeros(count + 10, numpy.float32))
    comm.all_gather(make(numbers(rank, 10 if rank else count)), uneven, counts=[count, 10])
    assert (got(uneven) == numpy.concatenate([numbers(0), numbers(1, 10)])).all()
    comm.weighted_average(own, rank)
    assert (got(own) == numbers(1)).all()
    clip = comm.clip_to_median([own, uneven], 3.0)
    assert clip.scale == 1 and (got(own) == numbers(1)).all()
    segments = comm.all_reduce_in_segments(own, segment_bytes=400_000, op="sum")
    assert len(segments) == 3 and (got(own) == 2 * numbers(1)).all()
    x, y = make(numbers(rank)), make(numbers(7, 3))
    comm.all_reduce_many([x, y], op="max")
    assert (got(x) == numbers(1)).all() and (got(y) == numbers(7, 3)).all()
    sent, received = make(numbers(5)), make(numbers(0))
    handles = [comm.send_async(sent, 1 - rank), comm.recv_async(received, 1 - rank)]
    for handle in handles:
        handle.result()
    assert (got(received) == numbers(5)).all() and (got(sent) == numbers(5)).all()
    # One on the host, one on a device.
    mixed, down = numbers(rank), driver.standin_count(2)
    comm.all_gather(mixed, both)
    assert driver.standin_count(2) == down, "what only is written is not read"
    assert (got(both) == numpy.concatenate([numbers(0), numbers(1)])).all()
    comm.all_reduce_many([mixed, own], op="max")
    assert (mixed == numbers(1)).all() and (got(own) == 2 * numbers(1)).all()
    # Of one reduce: by memory of the host.
    comm.all_reduce(mixed, own, op="sum")
    assert (mixed == numbers(1)).all() and (got(own) == 2 * numbers(1)).all()
host = numbers(rank)
comm.broadcast(host, 0)
assert (host == numbers(0)).all(), "the thread knows no device any more"
comm.barrier()
comm.destroy()
""")


def test_all_reduces_are_quantised_on_the_device(standin, fleet):
    fleet(2, DEVICE + """
comm = join()
rank = comm.world().rank
content = numpy.sin(numpy.arange(300_001, dtype=numpy.float32) + rank)
how = pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_AFFINE_UINT8)
host, stream = content.copy(), driver.standin_stream()
comm.all_reduce(host, op="avg", tag=7, quantization_options=how)
a, b = Array(content, stream), Array(numpy.zeros_like(content), driver.standin_stream())
down = driver.standin_count(2)
comm.all_reduce_async(a, b, op="avg", tag=7, quantization_options=how).result()
assert driver.standin_count(2) - down < content.nbytes / 3, "only what travels is copied"
assert (b.get().view(numpy.uint32) == host.view(numpy.uint32)).all(), "the bytes of the host"
assert (a.get() == content).all()
comm.all_reduce(a, op="avg", tag=7, quantization_options=how)
assert (a.get().view(numpy.uint32) == host.view(numpy.uint32)).all()
big = Array(numpy.full(900_000, rank, numpy.int32), stream)
comm.all_reduce(big, op="max")
assert (big.get() == 1).all()
comm.barrier()
comm.destroy()
""")


def test_a_stream_waits_for_results_if_asked(standin, fleet):
    fleet(2, DEVICE + """
comm = join()
rank = comm.world().rank
stream = driver.standin_stream()
a, b = (Array(numpy.full(1000, 1.0 + rank, numpy.float32), stream) for _ in range(2))
with pccl.cuda.results_on_stream():
    comm.all_reduce(a, op="sum")
    handle = comm.all_reduce_async(b, op="sum")
handle.result()
assert (a.get() == 3.0).all(), "the content of b came after it on the stream"
assert (b.get() == 1.0 + rank).all(), "nobody has waited for the stream"
driver.standin_settle(stream)
assert (b.get() == 3.0).all(), b.get()
comm.all_reduce(a, op="sum")
assert (a.get() == 6.0).all(), "waited for, outside"
comm.barrier()
comm.destroy()
""")


def test_kernels_are_compiled_once_for_all_processes(standin, fleet, tmp_path):
    def sync(compiled):
        fleet(2, DEVICE + f"""
comm = join()
state = SharedState({{"weights": Array(numpy.ones(100_000, numpy.float32))}}, revision=1)
comm.sync_shared_state(state)
compiled = ctypes.CDLL("libnvrtc.so").standin_compiled()
assert compiled in {compiled}, compiled
assert driver.standin_count(1) > 0
comm.barrier()
comm.destroy()
""")

    # The second of two that begin at a time may find what the first has compiled.
    sync((0, 1))
    sync((0,))
    kept, = (tmp_path / "kernels").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    sync((0, 1))
    assert kept.read_bytes() == whole, "half of a file is none"


def test_a_failed_reduce_leaves_the_device_as_it_was(standin, fleet):
    fleet(1, DEVICE + """
comm = join()
a = Array(numpy.full(100, 3.0, numpy.float32))
try:
    comm.all_reduce(a, op="sum")
except PCCLError:
    assert (a.get() == 3.0).all()
else:
    assert False, "alone"
comm.destroy()
""")


def test_a_state_is_on_a_device_at_one_peer_and_on_the_host_at_the_other(standin, fleet):
    fleet(2, DEVICE + """
comm = join()
rank = comm.world().rank
content = numpy.arange(700_000, dtype=numpy.float32) if rank == 0 else numpy.zeros(700_000, numpy.float32)
array = Array(content, driver.standin_stream()) if rank == 1 else content
state = SharedState({"weights": array, "step": Box(5 - 5 * rank)}, revision=3 - 3 * rank)
comm.sync_shared_state(state)
held = array.get() if rank == 1 else array
assert (held == numpy.arange(700_000)).all() and state.revision == 3
info = comm.sync_shared_state(state)
assert info.rx_bytes == 0
comm.barrier()
comm.destroy()
""")


def test_what_a_gpu_is_checked_with_passes(standin):
    script = SOURCES.parent / "check" / "device.py"
    output = subprocess.run([sys.executable, script, "--mebibytes", "2", "--state-mebibytes", "2"], check=True, stdout=subprocess.PIPE, text=True)
    lines = output.stdout.splitlines()
    assert lines[0].startswith("device: stand-in 0;") and len(lines) == 24, lines


def test_a_machine_with_a_gpu_is_told_what_it_has(standin):
    if shutil.which("cargo") is None:
        pytest.skip("no cargo, which this needs")
    looked = subprocess.run([SOURCES.parents[1] / ".ci" / "gpu", "--look"], stdout=subprocess.PIPE, text=True)
    assert looked.returncode == 0, looked.stdout
    assert "found    device of CUDA: 2, of which the first one is used: stand-in 0" in looked.stdout, looked.stdout
    assert "missing  nvcc" in looked.stdout or "found    nvcc" in looked.stdout


def test_a_machine_without_a_gpu_is_told_what_is_missing():
    import pccl

    if pccl.cuda.device_count() > 0:
        pytest.skip("there is a driver")
    looked = subprocess.run([SOURCES.parents[1] / ".ci" / "gpu"], stdout=subprocess.PIPE, text=True)
    assert looked.returncode == 1
    for missing in ("driver of CUDA", "device of CUDA", "torch for CUDA", "nvcc", "compute-sanitizer"):
        named = [line for line in looked.stdout.splitlines() if missing in line]
        assert named and named[0].split()[0] in ("missing", "found"), looked.stdout
    assert "missing  driver of CUDA" in looked.stdout and "nothing was checked" in looked.stdout


def test_without_a_driver_the_error_says_so():
    program = """
import pccl
class Array:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}
import ctypes
try:
    loads = bool(ctypes.CDLL("libcuda.so.1"))
except OSError:
    loads = False
assert pccl.cuda.is_available() == loads and pccl.cuda.device_count() == 0
try:
    pccl.TensorInfo.from_buffer(Array(), "x")
    pccl._buffers.buffer_of(Array(), writable=True)
except pccl.PCCLError as error:
    assert "no driver of CUDA" in str(error), error
else:
    assert False, "there is none"
"""
    import pccl

    if pccl.cuda.device_count() > 0:
        pytest.skip("there is a driver")
    subprocess.run([sys.executable, "-c", program], check=True,
                   env={**os.environ, "PYTHONPATH": str(Path(pccl.__file__).parents[1])})
