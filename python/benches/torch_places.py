"""Where the processes of ``compare_torch.py`` run: here, or on hosts of a network that can be slow and cut."""

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

#: Hosts of a lab: three replicas, one that takes the place of another, and the services.
REPLICAS, SERVICES = 4, 4
_LAB = """hosts = 5
prefix = "{prefix}"
[default]
delay_ms = {delay_ms}
rate_mbit = {rate_mbit}
"""


class Loopback:
    """All on this machine, by its loopback interface."""

    name, can_cut = "loopback", False

    def host(self, index):
        """The address of a host."""
        return "127.0.0.1"

    def enter(self, index):
        """Moves this process to a host."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"

    def port(self, index):
        """A free port of a host."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]


class Lab:
    """Network namespaces of the program ``wanlab``, each ordered pair with a delay and a rate of its own. A context
    manager; needs root."""

    can_cut = True

    def __init__(self, program, rate_mbit, delay_ms, prefix="cmp"):
        self.name = f"{rate_mbit} Mbit/s, {delay_ms} ms"
        self._program, self._prefix, self._next = program, prefix, 20000
        self._file = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self._file.write(_LAB.format(prefix=prefix, rate_mbit=rate_mbit, delay_ms=delay_ms))
        self._file.flush()

    def __enter__(self):
        self._process = subprocess.Popen([self._program, "up", self._file.name], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self._process.stdout:
            if "ready" in line:
                return self
        raise SystemExit(f"{self._program} up: the lab does not come up")

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()
        self._file.close()

    def host(self, index):
        """As on the loopback interface."""
        return f"10.77.{index}.1"

    def enter(self, index):
        """As on the loopback interface. The name of the host is its address, which programs publish."""
        os.environ["GLOO_SOCKET_IFNAME"] = "tun0"
        libc = ctypes.CDLL(None, use_errno=True)
        name = self.host(index).encode()
        with open(f"/run/netns/{self._prefix}{index}", "rb") as namespace:
            done = (libc.setns(namespace.fileno(), 0x40000000), libc.unshare(0x04000000),
                    libc.sethostname(name, len(name)))
        if any(done):
            raise OSError(ctypes.get_errno(), f"cannot move to host {index}: {done}")

    def __getstate__(self):
        # The needs of a process on one of the hosts.
        return {"_prefix": self._prefix}

    def port(self, index):
        """As on the loopback interface: one after the other, below those that the system gives out."""
        self._next += 1
        return self._next

    def _control(self, *words):
        subprocess.run([self._program, "-p", self._prefix, "ctl", *words], check=True, stdout=subprocess.DEVNULL)

    def cut(self, one, other):
        """Nothing goes between two hosts any more, either way."""
        self._control("cut", str(one), str(other), "both")

    def heal(self):
        """All cuts are over."""
        self._control("heal", "all")


class Service:
    """A process that others need, on the host of the services."""

    def __init__(self, place, command, ready=None):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True,
                                         preexec_fn=lambda: place.enter(SERVICES))
        if ready is not None:
            next(line for line in self._process.stdout if line.startswith(ready))

    def end(self):
        """Kills it."""
        self._process.kill()
        self._process.communicate()


def master(place, stack):
    """Starts a master of PCCL, and returns its address."""
    port = place.port(SERVICES)
    program = pathlib.Path(sys.executable).parent / "pccl-master"
    service = Service(place, [str(program), "--listen", f"{place.host(SERVICES)}:{port}", "--insecure"])
    stack.callback(service.end)
    return f"{place.host(SERVICES)}:{port}"


def lighthouse(place, stack, join_ms, heartbeat_ms):
    """Starts the lighthouse of torchft, and returns its address."""
    port = place.port(SERVICES)
    # Its own bind, so that the address is known; who is alive and does not ask is waited for.
    program = ("import sys; from torchft.coordination import LighthouseServer; server = LighthouseServer("
               f"bind='{place.host(SERVICES)}:{port}', min_replicas=2, join_timeout_ms={join_ms}, "
               f"heartbeat_timeout_ms={heartbeat_ms}); print('up', flush=True); sys.stdin.read()")
    service = Service(place, [sys.executable, "-c", program], "up")
    stack.callback(service.end)
    return f"http://{place.host(SERVICES)}:{port}"


def places(names, program, rate_mbit, delay_ms):
    """The places of these names, each as a context manager."""
    for name in names:
        yield contextlib.nullcontext(Loopback()) if name == "loopback" else Lab(program, rate_mbit, delay_ms)
