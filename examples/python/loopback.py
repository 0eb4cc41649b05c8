"""Runs an example on one machine: a master and three peers, one of which is killed and replaced; and says how it goes."""

import hashlib
import queue
import subprocess
import sys
import threading
import time

import pccl


def say(text):
    print(text, flush=True)


def step(peers, number, loss):
    """The line of a peer after a step."""
    say(f"step {number} peers {peers} loss {loss:.3f}")


def end(weights, accuracy):
    """The last line of a peer, which stays until it is told to go: the others may need it for their last step."""
    say(f"end {hashlib.sha256(weights.tobytes()).hexdigest()[:16]} accuracy {accuracy:.3f}")
    sys.stdin.readline()


class Watched:
    """A peer, and what it says."""

    def __init__(self, name, command):
        self.name, self.lines = name, queue.Queue()
        #: When it was started, and the time and loss of each step.
        self.started, self.steps = time.monotonic(), []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # The output of a child has to be read, or it would wait.
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            words = line.split()
            if words[0] == "step":
                self.steps.append((time.monotonic(), float(words[5])))
            self.lines.put(words)
        self.lines.put(None)

    def follow(self, word, at_least=0, show=0):
        """The next line that begins with a word and a number that is large enough; shows each ``show``-th step on the way."""
        peers = None
        while True:
            line = self.lines.get()
            if line is None:
                raise SystemExit(f"{self.name} ended before it said {word!r}")
            if line[0] == "step" and show and (int(line[1]) % show == 0 or peers not in (None, line[3])):
                say(f"step {line[1]:>4}  {line[3]} peers  loss {line[5]}")
            peers = line[3] if line[0] == "step" else peers
            if line[0] == word and (word != "step" or int(line[1]) >= at_least):
                return line


def run(script, *arguments, show=20, plot=None):
    """Exits with 0 only if all peers end with the same weights, and have learned something. ``plot`` gets all peers,
    and when one of them was killed."""
    with pccl.MasterNode("127.0.0.1:0") as master:
        command = [sys.executable, script, *arguments, "--peer", f"127.0.0.1:{master.port}"]
        peers = [Watched(f"peer {number}", command) for number in (1, 2, 3)]
        try:
            peers[0].follow("step", 10, show)
            victim = peers.pop()
            victim.process.kill()
            killed = time.monotonic()
            say(f"           {victim.name} was killed")
            at = int(peers[0].follow("step", 11, show)[1])
            peers[0].follow("step", at + 5, show)
            peers.append(Watched("peer 4", command))
            say("           peer 4 was started in its place")
            ends = [one.follow("end", show=show if one is peers[0] else 0) for one in peers]
            for one, line in zip(peers, ends):
                say(f"{one.name}: {' '.join(line)}")
            for one in peers:
                one.process.stdin.close()
            if any(one.process.wait() for one in peers) or len({tuple(line)
                                                                for line in ends}) != 1 or float(ends[0][-1]) < 0.9:
                raise SystemExit("the peers have not learned the same")
            if plot:
                plot([victim, *peers], killed)
        finally:
            for one in peers:
                one.process.kill()
