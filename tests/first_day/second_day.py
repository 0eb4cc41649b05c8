"""What a run meets on its second day on one machine, as a person would see it: a log that nobody reads, a full disk, a
planned restart, steps that are short, a key that has leaked. `walk.py` runs these after the mistakes of the first day.

Each case starts the programs that users start, and says in problems what should have been otherwise.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import tempfile
import time

from lab import MASTER_PORT, MASTER_PROGRAM, PATIENCE_S, PEER_PROGRAM, Lab, Program, address, run

# Steps for which a case watches that nothing happens.
WATCHED_STEPS = 100
SHORT_STEPS_S = 60
# Newcomers of which the master writes more than a small pipe holds, and what it says when somebody reads again.
UNREAD_JOINS = 12
# An attempt that failed, as a peer tells it.
FAILED = re.compile(r"WARN.*all-reduce.* failed while")
LATE = re.compile(rb"\(said \d+ s ago\)|of the log (?:was|were) dropped")


class Case:
    """One thing that happens to a run: a master on machine 0, and whatever the case starts."""

    def __init__(self, number, title, play):
        self.number, self.title, self.play = number, title, play
        self.programs, self.problems = [], []
        self.sentence = None

    def take(self):
        began = time.monotonic()
        self.lab = Lab(self.number)
        try:
            self.play(self)
        except Exception as error:  # What a case could not do is a problem of that case alone.
            self.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self.lab.close()
        return self.problems, self.report(time.monotonic() - began)

    def start(self, host, name, *command, **more):
        program = Program(self.lab, host, name, *command, **more)
        self.programs.append(program)
        return program

    def master(self, host=0, *arguments, name=None, **more):
        listen = ("--listen", f"0.0.0.0:{MASTER_PORT}")
        return self.start(host, name or f"master {host}", MASTER_PROGRAM, *listen, *arguments, **more)

    def peer(self, host, number, *arguments, masters=None, **more):
        masters = masters or f"{address(0)}:{MASTER_PORT}"
        command = [PEER_PROGRAM, "--role", "peer", "--master", masters, "--shard", str(number), "--steps", "1000000"]
        return self.start(host, f"peer {number}", *command, *arguments, **more)

    def ask(self, host, *command):
        """Status and output of a command on a machine."""
        done = subprocess.run(["ip", "netns", "exec", self.lab.space(host), *command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False)
        return done.returncode, done.stdout

    def status(self, host=0):
        """What a master says of itself, or nothing if it does not answer."""
        code, text = self.ask(host, MASTER_PROGRAM, "status", "--json", f"{address(host)}:{MASTER_PORT}")
        return json.loads(text) if code == 0 else None

    def until(self, what, holds, patience_s=PATIENCE_S):
        deadline = time.monotonic() + patience_s
        while not holds():
            if time.monotonic() > deadline:
                self.problems.append(f"not within {patience_s} s: {what}")
                return False
            time.sleep(0.1)
        return True

    def train(self, peers, what, steps=20):
        """These peers make this number of further steps."""
        before = [len(peer.steps()) for peer in peers]
        enough = lambda: all(len(peer.steps()) >= count + steps for peer, count in zip(peers, before))
        return self.until(what, enough)

    def says(self, program, pattern, patience_s=PATIENCE_S):
        """The first line of a program that fits."""
        found = lambda: next((line for line in program.lines() if re.search(pattern, line)), None)
        if self.until(f"{program.name} says {pattern!r}", found, patience_s):
            self.sentence = f"{program.name}: {found()}"

    def never_said(self, programs, pattern):
        for program in programs:
            for line in program.lines():
                if re.search(pattern, line):
                    self.problems.append(f"{program.name} says: {line}")
                    break

    def report(self, took_s):
        text = [f"=== {self.title}: {'FAILED' if self.problems else 'ok'} after {took_s:.0f} s"]
        for program in self.programs:
            said = program.said()
            shown = said if len(said) <= 24 else said[:12] + [f"... {len(said) - 24} lines more"] + said[-12:]
            text += [f"  {program.name:8} | {line}" for line in shown]
            if program.steps():
                text.append(f"  {program.name:8} | {len(program.steps())} steps")
        text += [f"  -> {self.sentence}"] if self.sentence else []
        text += [f"  FAILED: {problem}" for problem in self.problems]
        return "\n".join(text)


def unread_log(case):
    """Nobody reads what the master prints: the run goes on and takes newcomers, and the log says later what was late."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    case.master(0, "--insecure", stderr=writer)
    os.close(writer)
    peers = [case.peer(host, host) for host in (1, 2)]
    case.train(peers, "two peers train")
    for newcomer in range(UNREAD_JOINS):
        third = case.peer(3, 3 + newcomer)
        if not case.train([*peers, third], f"newcomer {newcomer} gets in although nobody reads the log", 1):
            break
        third.process.kill()
        third.process.wait()
    case.train(peers, "the two train on")
    os.set_blocking(reader, False)
    read = bytearray()

    def tells():
        try:
            read.extend(os.read(reader, 1 << 16))
        except BlockingIOError:
            pass
        return LATE.search(read)

    if case.until("the log says that lines were late", tells):
        line = next(line for line in bytes(read).splitlines() if LATE.search(line))
        case.sentence = f"master 0: {line.decode(errors='replace')}"
    os.close(reader)


def full_disk(case):
    """The disk of the journal fills up. Status says so, a new journal begins when there is room, and the run survives."""
    with tempfile.TemporaryDirectory() as folder:
        run("mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", folder)
        try:
            journal, ballast = os.path.join(folder, "journal"), os.path.join(folder, "ballast")
            master = case.master(0, "--insecure", "--journal", journal)
            peers = [case.peer(host, host) for host in (1, 2)]
            case.train(peers, "two peers train")
            try:
                with open(ballast, "wb") as file:
                    while True:
                        file.write(bytes(4096))
                        file.flush()
            except OSError:
                pass
            case.train([*peers, case.peer(3, 3)], "a newcomer gets in although the disk is full")
            state = lambda: json.dumps((case.status() or {}).get("journal"))
            case.until("status says that the journal was given up", lambda: "given-up" in state())
            os.unlink(ballast)
            case.until("status says that there is a journal again", lambda: "kept" in state(), 90)
            master.process.kill()
            master.process.wait()
            case.master(0, "--insecure", "--journal", journal, name="master again")
            case.train(peers, "the run goes on under the next master")
            case.never_said(peers, r"MasterLost|master was lost|has ended")
        finally:
            run("umount", "-l", folder)


def planned_restart(case):
    """Three masters have one command line. Each is restarted as a service manager does, and no call fails."""
    places = [f"{address(host)}:{MASTER_PORT}" for host in (0, 1, 2)]
    listed = ",".join(places)
    start = lambda host, turn: case.master(host, "--insecure", "--masters", listed, name=f"master {host}.{turn}")
    masters = {host: start(host, 1) for host in (0, 1, 2)}
    peers = [case.peer(host, host, masters=listed) for host in (1, 2, 3)]
    leading = lambda: [host for host in (0, 1, 2) if ((case.status(host) or {}).get("lead") or {}).get("acts")]
    complete = lambda: any(len(((case.status(host) or {}).get("lead") or {}).get("standbys") or []) == 2
                           for host in leading())
    case.train(peers, "three peers train")
    for host in (0, 1, 2):
        if not case.until("two masters stand by", complete):
            return
        before = leading()
        masters[host].process.send_signal(signal.SIGTERM)
        status = masters[host].process.wait(PATIENCE_S)
        if status != 0:
            case.problems.append(f"master {host} ends with status {status}")
        case.until("one master leads", lambda: len(leading()) == 1)
        case.train(peers, f"the peers train on while master {host} (leader: {before}) is down")
        masters[host] = start(host, 2)
    case.until("one master leads at last", lambda: len(leading()) == 1 and complete())
    case.train(peers, "the peers train on at last")
    case.never_said(peers, r"failed|MasterLost|the run has ended")
    case.sentence = f"leader at last: {leading()}"


def short_steps(case):
    """Steps that take a millisecond are no offence: nobody is dropped in a minute of them."""
    master = case.master(0, "--insecure")
    peers = [case.peer(host, host, "--pace-ms", "0") for host in (1, 2, 3)]
    case.train(peers, "three peers train")
    first, began = [len(peer.steps()) for peer in peers], time.monotonic()
    while time.monotonic() < began + SHORT_STEPS_S:
        time.sleep(1)
    rates = [(len(peer.steps()) - count) / (time.monotonic() - began) for peer, count in zip(peers, first)]
    if min(rates) < 1:
        case.problems.append(f"steps per second: {rates}")
    case.never_said([master, *peers], r"dropped|violation|failed")
    case.sentence = "steps per second: " + ", ".join(f"{rate:.0f}" for rate in rates)


def third_beside_a_black_hole(case):
    """Large packets are dropped between two, whose attempts fail. A third peer waits for no more than one of them."""
    case.lab.drop_large_packets(3)
    master = case.master(0, "--insecure")
    pair = [case.peer(host, host) for host in (2, 3)]
    let_in = lambda: sum("] accepted " in line for line in master.lines())
    case.until("two are in", lambda: let_in() >= 2)
    third = case.peer(1, 1)
    case.until("the third one is let in", lambda: let_in() >= 3)
    failed = [sum(bool(FAILED.search(line)) for line in peer.lines()) for peer in pair]
    if max(failed) > 1:
        case.problems.append(f"{failed} attempts failed before the third one was let in")
    case.sentence = f"attempts that failed before the third one was let in: {failed}"
    case.train([*pair, third], "three peers train together")


def leaked_key(case):
    """A key has leaked: rotating it with --drop puts its holder out, and he does not come back."""
    with tempfile.TemporaryDirectory() as folder:
        (key, path), (_, new_path) = [new_key(os.path.join(folder, name)) for name in ("run.key", "new.key")]
        admin = os.path.join(folder, "admin")
        master = case.master(0, "--key-file", path, "--admin", admin)
        holds = {"PCCL_RUN_KEY": key}
        peers = [case.peer(host, host, environment=holds) for host in (1, 2)]
        thief = case.peer(3, 3, environment=holds)
        case.train([*peers, thief], "all who hold the key train")
        case.says(master, rf"{re.escape(address(3))}")
        named = lambda: [peer for peer in (json_of(case, key).get("peers") or []) if address(3) in json.dumps(peer)]
        if not case.until("status lists the thief", named):
            return
        who = named()[0]
        identity = who.get("peer") or who.get("id") or who.get("identity")
        code, text = case.ask(0, MASTER_PROGRAM, "rotate-key", "--key-file", new_path, "--admin", admin, "--drop",
                              str(identity))
        if code != 0:
            case.problems.append(f"rotate-key --drop ends with {code}: {text.strip()}")
        case.train(peers, "the others train on")
        count = len(thief.steps())
        case.train(peers, "the others train on", WATCHED_STEPS)
        if len(thief.steps()) > count + 1:
            case.problems.append("the thief is back")
        case.sentence = " ".join(text.split())


def new_key(path):
    """A new run key, in a file that nobody else may read."""
    key = run(MASTER_PROGRAM, "--new-key").strip()
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write(key + "\n")
    return key, path


def json_of(case, key):
    done = subprocess.run(["ip", "netns", "exec", case.lab.space(0), MASTER_PROGRAM, "status", "--json",
                           f"{address(0)}:{MASTER_PORT}"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S,
                          env={**os.environ, "PCCL_RUN_KEY": key}, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def cases(number):
    """All cases; their labs have numbers from this one on."""
    all_cases = [("unread log", unread_log), ("full disk of the journal", full_disk),
                 ("planned restart with two standbys", planned_restart), ("short steps for a minute", short_steps),
                 ("leaked key", leaked_key), ("third peer beside large packets dropped", third_beside_a_black_hole)]
    return [Case(number + index, title, play) for index, (title, play) in enumerate(all_cases)]
