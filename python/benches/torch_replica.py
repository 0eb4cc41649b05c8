"""A replica of ``compare_torch.py``: ``examples/torch/train.py`` in a process that begins with torch loaded."""

import json
import multiprocessing
import os
import pathlib
import signal
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "torch"))

# Memory that is free again stays with the process: new pages for 64 MiB in each step take longer than any transport.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 30))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 32))
#: Imports what takes long once, and forks a process for each replica.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo",
                                 "torchft"])


class Replica:
    """The process and what it has reported."""

    def __init__(self, place, index, arguments, seen):
        self.lines = []
        given, self._say = _CONTEXT.Pipe(duplex=False)
        self._said, taken = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(target=_train, args=(place, index, arguments, given, taken), daemon=True)
        self.process.start()
        given.close()
        taken.close()
        self._reader = threading.Thread(target=self._read, args=(seen,), daemon=True)
        self._reader.start()

    def _read(self, seen):
        with os.fdopen(os.dup(self._said.fileno())) as lines:
            for line in lines:
                self.lines.append(json.loads(line))
                seen()

    def say(self, line):
        """Has one that waits take part by an empty line, and one that takes part leave by another one."""
        os.write(self._say.fileno(), f"{line}\n".encode())

    def go_on(self):
        """Ends a SIGSTOP, unless the process has ended."""
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGCONT)

    def end(self):
        """Kills it."""
        self.process.kill()
        self.process.join()
        self._reader.join()
        self._say.close()
        self._said.close()


def _train(place, index, arguments, given, taken):
    place.enter(index)
    os.dup2(given.fileno(), 0)
    os.dup2(taken.fileno(), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    given.close()
    taken.close()
    sys.stdin = os.fdopen(0)
    sys.argv = ["train.py", *arguments]
    import train

    train.main()
