"""What the checks of a device work with: its driver, kernels, arrays on it, and two peers."""

import ctypes
import pathlib
import threading

import numpy

import pccl


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
        """As ``like``; or its content over and over, up to ``bytes``."""
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
