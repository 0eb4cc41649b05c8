"""Reduces as users write them, limits of calls, and the loop that survives its peers and its master."""

import os
import re
import signal
import subprocess
import sys

import pytest
from ports import free_port

import pccl

pytest.importorskip("numpy")
DOCUMENTS = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "python")
#: A training that says each step.
LOOP = """
weights = numpy.zeros(1000, numpy.float32)
state = SharedState.of(weights=weights)
comm = Communicator(address, first_ports=(0, 0))

def step():
    change = numpy.float32(0.1) * (1 - weights)
    comm.all_reduce(change, op="avg")
    weights[:] += change
    say(f"step {state.revision} {len(comm.ring())}")
"""


@pytest.fixture
def lead():
    """Starts the program ``pccl-master`` at an address."""
    started = []

    def start(address):
        started.append(subprocess.Popen([sys.executable, "-m", "pccl.master", "--listen", address],
                                        stdout=subprocess.PIPE,
                                        text=True))
        assert "listening" in started[-1].stdout.readline()
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()
        one.stdout.close()


def until(peer, wanted):
    """Reads lines of a peer until one matches."""
    while True:
        line = peer.process.stdout.readline()
        assert line, f"it ended before {wanted!r}"
        if re.search(wanted, line):
            return line


def test_in_place_many_and_tags(fleet):
    fleet(3, """
        comm = join()
        data = numpy.full(5, index, numpy.float32)
        info = comm.all_reduce(data, op="avg")
        assert (data == 1).all() and info.world_size == 3
        into = numpy.zeros(5, numpy.float32)
        comm.all_reduce(data, into, op=ReduceOp.SUM, tag=77)
        assert (into == 3).all() and (data == 1).all()
        # Shapes are not compared, the sum is the default, and the average of integers drops the fraction.
        shaped = numpy.arange(6.0).reshape((2, 3) if index else (3, 2))
        comm.all_reduce(shaped, tag=78)
        assert (shaped.ravel() == 3 * numpy.arange(6.0)).all()
        whole = numpy.full(2, 1 + index // 2)
        comm.all_reduce(whole, op="avg", tag=79)
        assert (whole == 1).all()
        # In the order of the calls, as everybody writes it.
        handles = [comm.all_reduce_async(numpy.full(10 + i, index + i, numpy.float64), op="max") for i in range(20)]
        assert [handle.tag for handle in handles] == list(range(1, 21))
        assert all(handle.result().world_size == 3 for handle in handles)
        # Half of them are waited for in another order.
        arrays = [numpy.full(3, index + i) for i in range(6)]
        handles = [comm.all_reduce_async(a, op="sum") for a in arrays]
        for handle in reversed(handles):
            handle.result()
        assert all((a == 3 + 3 * i).all() for i, a in enumerate(arrays))
        assert comm.drain() and comm._in_flight == {}
        mixed = [numpy.full(4, index + 1, numpy.float32), numpy.full(2, index, numpy.int16), bytearray([index])]
        assert comm.all_reduce_many(mixed, op="max").world_size == 3
        assert (mixed[0] == 3).all() and (mixed[1] == 2).all() and mixed[2] == bytearray([2])
        sends, recvs = [numpy.ones(3), numpy.ones(2)], [numpy.zeros(3), numpy.zeros(2)]
        handle = comm.all_reduce_many_async(sends, recvs, op="sum")
        handle.result(60)
        assert (recvs[0] == 3).all() and (recvs[1] == 3).all() and (sends[0] == 1).all()
        # They begin again, so that newcomers count alike.
        comm.sync_shared_state(SharedState.of(x=data))
        assert comm.all_reduce_async(data, op="sum").tag == 0 and comm.drain(60)
        found = comm.optimize_topology()
        assert isinstance(found, Optimized) and found.group_size == 3 and isinstance(found.note, str)
        assert found.slowest_edge is None or set(found.slowest_edge) <= set(comm.ring())
        assert comm.peer_id == comm.ring()[comm.world().rank]
        """)


def test_tags_are_the_same_for_those_who_come_and_those_who_stay(master, start):
    """A survivor has counted on; a newcomer begins. Nobody may wait for a tag that nobody else has."""
    program = """
        comm = Communicator(address, first_ports=(0, 0))
        comm.connect()
        comm.wait_for_world(2 if index < 2 else 3)
        if index < 2:
            for _ in range(5):
                comm.all_reduce(numpy.ones(3), op="sum")
            say("counted")
            comm.wait_for_world(3)
        for _ in range(3):
            data = numpy.ones(3)
            comm.all_reduce(data, op="sum")
            assert (data == 3).all()
        handles = [comm.all_reduce_async(numpy.ones(3), op="sum") for _ in range(3)]
        for handle in handles:
            handle.result()
        """
    peers = [start(program, master, 3, index) for index in range(2)]
    for peer in peers:
        peer.expect("counted")
    peers.append(start(program, master, 3, 2))
    for peer in peers:
        peer.finish()


def test_a_result_that_failed_raises(master, start):
    program = """
        comm = join()
        if index == 1:
            comm.all_reduce(numpy.ones(3), op="sum")
            say("ready")
            go()
            raise SystemExit("not killed")
        comm.all_reduce(numpy.ones(3), op="sum")
        data = numpy.ones(3)
        handle = comm.all_reduce_async(data, op="sum")
        say("waits")
        try:
            handle.result()
            raise SystemExit("it did not raise")
        except (PeerLost, TooFewPeers) as error:
            assert error.func_name == "Communicator.all_reduce_async"
            assert error is handle.error and not handle.wait()[0] and (data == 1).all()
        try:
            comm.all_reduce(data, op="sum")
            raise SystemExit("it did not raise")
        except TooFewPeers as error:
            assert error.result is Result.TOO_FEW_PEERS and error.remedy is Remedy.WAIT_FOR_PEERS
        """
    peers = [start(program, master, 2, index) for index in range(2)]
    peers[1].expect("ready")
    peers[0].expect("waits")
    peers[1].kill()
    peers[0].finish()


def test_limits_of_calls(master, start):
    """One peer calls nothing. The others give up in time, say so, and go on."""
    program = """
        import time
        comm = Communicator(address, first_ports=(0, 0), name=f"peer-{index}", call_timeout=None if index else 100)
        comm.connect()
        comm.wait_for_world(2)
        data, state = numpy.ones(3), SharedState.of(x=numpy.zeros(3))
        if index == 0:
            calls = {
                "reduce": lambda: comm.all_reduce(data, op="sum", timeout=0.5),
                "many": lambda: comm.all_reduce_many([data], op="sum", timeout=0.5),
                "handle": lambda: comm.all_reduce_async(data, op="sum").result(0.5),
                "sync": lambda: comm.sync_shared_state(state, timeout=0.5),
                "update": lambda: comm.update_topology(timeout=0.5),
                "pending": lambda: comm.are_peers_pending(timeout=0.5),
                "optimize": lambda: comm.optimize_topology(timeout=0.5),
            }
            for name, call in calls.items():
                began = time.monotonic()
                try:
                    call()
                    raise SystemExit(f"{name} did not give up")
                except TimedOut as error:
                    taken = time.monotonic() - began
                    assert 0.4 < taken < 30, (name, taken)
                assert (data == 1).all()
            say("gave up")
            go()
        else:
            say("idle")
            go()
        # A call that was given up fails for whoever makes it later, too; these are others.
        comm.sync_shared_state(state, timeout=60)
        comm.all_reduce(data, op="sum", tag=100, timeout=60)
        assert (data == 2).all()
        """
    peers = [start(program, master, 2, index) for index in range(2)]
    peers[1].expect("idle")
    peers[0].expect("gave up")
    for peer in peers:
        peer.go()
    for peer in peers:
        peer.finish()


def test_peers_may_be_started_before_their_master(start, lead):
    address = f"127.0.0.1:{free_port()}"
    peers = [start(LOOP + "say('started')\ncomm.run(step, state=state, steps=5)\nsay(f'end {weights[0]:.6f}')\n",
                   address, 2, index)
             for index in range(2)]
    for peer in peers:
        peer.expect("started")
    lead(address)
    assert len({until(peer, "^end") for peer in peers}) == 1
    for peer in peers:
        peer.finish()


#: Says what ended it, and after how long.
ENDS = """
import time
began = time.monotonic()
try:
    comm.run(step, state=state, {how})
except ConnectFailed as error:
    assert error.func_name == "Communicator.recover" and address in str(error), error
    say(f"ended after {{time.monotonic() - began:.0f}} s")
"""


@pytest.mark.parametrize("how", ["steps=5", "steps=5, compute=lambda: None"], ids=["run", "run lending"])
def test_the_loop_ends_when_there_is_no_master(start, how):
    program = LOOP.replace("first_ports=", "connect_timeout=1, first_ports=") + ENDS.format(how=how)
    peer = start(program, f"127.0.0.1:{free_port()}", 2, 0)
    assert int(peer.expect("ended").split()[2]) < 10
    peer.finish()


def test_the_loop_ends_when_the_master_does_not_come_back(start, lead):
    address = f"127.0.0.1:{free_port()}"
    program = LOOP.replace("first_ports=", "connect_timeout=1, master_grace=0, first_ports=")
    peers = [start(program + ENDS.format(how="more=lambda: True"), address, 2, index) for index in range(2)]
    master = lead(address)
    for peer in peers:
        until(peer, "^step 5 ")
    master.kill()
    for peer in peers:
        until(peer, "^ended")
        peer.finish()


@pytest.mark.skipif("PCCL_LOG_LEVEL" in os.environ or "RUST_LOG" in os.environ, reason="the log goes to standard error")
def test_a_failure_is_told_once(start, lead):
    """By the library, where it arrives; the loop does not say it again."""
    address = f"127.0.0.1:{free_port()}"
    told = """
import logging
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("pccl").addHandler(Keep(logging.WARNING))
"""
    program = told + LOOP + """
comm.run(step, state=state, steps=200)
# The log is handed over by another thread.
assert len([line for line in lines if "master lost" in line]) <= 1, lines
assert not [line for line in lines if "a step failed: " in line and "too few" not in line], lines
say("end")
"""
    program = program.replace("first_ports=", "master_grace=0, first_ports=")
    master = lead(address)
    peers = [start(program, address, 2, index) for index in range(2)]
    for peer in peers:
        until(peer, "^step 5 ")
    master.kill()
    master.wait()
    lead(address)
    for peer in peers:
        until(peer, "^end")
        peer.finish()


def blocks():
    """All programs, and parts of programs, of docs/python; those of its README.md come first."""
    texts = []
    for page in sorted(os.listdir(DOCUMENTS), key=lambda page: (page != "README.md", page)):
        with open(os.path.join(DOCUMENTS, page)) as file:
            texts.append(file.read())
    return re.findall(r"```python\n(.*?)```", "\n".join(texts), re.S)


def documented():
    """The loops of docs/python/README.md, with more steps that take no time, and told to say each."""
    whole, own, lending, own_lending = blocks()[:4]
    for part, wanted in ((whole, "comm.run(step"), (own, "comm.recover(error"), (lending, "compute=compute"),
                         (own_lending, "comm.lend(")):
        assert wanted in part
    begin, compute = (part.partition("with Communicator(")[0] for part in (whole, lending))
    made = 'comm = Communicator("master.example:48148")\n'
    programs = whole, begin + made + own, begin + lending, begin + compute + made + own_lending
    changes = (('"master.example:48148"', "address, first_ports=(0, 0)"), ("steps=20", "steps=400"), ("< 20", "< 400"),
               ("time.sleep(0.1)", "time.sleep(0)"),
               ("weights[:] += change", "weights[:] += change; say(f'step {state.revision}')"))
    for program in programs:
        for old, new in changes:
            assert old in program or "20" in old
            program = program.replace(old, new)
        assert "400" in program
        yield program + "say(f'end {state.revision} {weights.tobytes().hex()[:16]}')\n"


def test_the_first_program_says_how_it_goes(master, start):
    program = blocks()[0].replace('"master.example:48148"', "address, first_ports=(0, 0)")
    peers = [start(program, master, 2, index) for index in range(2)]
    for peer in peers:
        for step in (10, 20):
            until(peer, rf"^step {step}: loss 0\.\d{{4}}, 2 peers, \d+\.\d steps/s$")
        peer.finish()


#: What the parts of programs that are no loop need before and behind them.
PARTS = {
    "for handle in handles:": ("comm = join()\ngradients = [numpy.ones(3), numpy.ones(5)]\n",
                               "assert all((gradient == 1).all() for gradient in gradients)\n"),
    "pccl.Notice(": (LOOP.replace("Communicator(address,", "Communicator(address, name=str(index),")
                     + "COMMAND = 'sleep 1; true'\n", "assert notice.is_given() or state.revision == 1000\n"),
    "comm.form_group(": ("gradient = numpy.full(3, index, numpy.float32)\n",
                         "    assert world.rank == index and (gradient == 1).all()\n"),
    "pccl.GlobalIteration(": ("""
import pccl
rank, state_hash, taken = index, b"", []
def train(iteration, members):
    assert len(members) == 2
    taken.append(iteration)
""", "assert taken == list(range(20))\n"),
}


def test_every_program_of_the_document_is_run():
    """The first four by the tests of loops."""
    rest = blocks()[4:]
    assert len(rest) == len(PARTS) and all(sum(mark in part for mark in PARTS) == 1 for part in rest)
    # A part that does not run by itself says what it needs.
    assert all(part.startswith("# ") for part in blocks()[1:])


@pytest.mark.parametrize("mark", list(PARTS), ids=["handles", "notice", "formed group", "iteration"])
def test_the_documented_parts_run(master, start, mark):
    part = next(part for part in blocks() if mark in part)
    before, behind = PARTS[mark]
    program, peers = before + part + behind, 3 if "form_group" in mark else 2
    for old, new in (('"master.example:48148", name="b"', 'address, name="abc"[index], first_ports=(0, 0)'),
                     ('"10.0.0.1:29500"', "address"), ("world_size=8", "world_size=2"), ("< 1000:", "< 20:")):
        program = program.replace(old, new)
    if "GlobalIteration" not in mark:
        started = [start(program, master, peers, index) for index in range(peers)]
        for peer in started:
            peer.finish()
        return
    with pccl.Store("127.0.0.1:0") as store:
        started = [start(program, f"127.0.0.1:{store.port}", peers, index) for index in range(peers)]
        for peer in started:
            peer.finish()


def test_a_notice_while_a_peer_waits_for_others_ends_its_loop(master, start):
    """The first leaves by its notice, and the second, which waits for another peer, by the end of its own."""
    part = next(part for part in blocks() if "pccl.Notice(" in part)
    before, behind = PARTS["pccl.Notice("][0], "assert notice.is_given()\n"
    for old, new in (("sleep 1;", "sleep ' + str(1 + 4 * index) + ';"), ("within=25", "within=1"),
                     ("state.revision < 1000 and not", "not")):
        assert old in before + part
        before, part = before.replace(old, new), part.replace(old, new)
    started = [start(before + part + behind, master, 2, index) for index in range(2)]
    for peer in started:
        peer.finish()


@pytest.mark.parametrize("program", list(documented()), ids=["run", "recover", "run lending", "recover lending"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_the_documented_loops_survive_their_master(start, lead, how, program):
    address = f"127.0.0.1:{free_port()}"
    peers = [start(program, address, 2, index) for index in range(2)]
    master = lead(address)
    for peer in peers:
        until(peer, "^step 10$")
    for _ in range(2):
        master.send_signal(how)
        master.wait(60)
        master = lead(address)
        for peer in peers:
            seen = int(until(peer, "^step ").split()[1])
            until(peer, f"^step {seen + 20}$")
    assert len({until(peer, "^end 400 ") for peer in peers}) == 1
    for peer in peers:
        peer.finish()


def test_the_loop_survives_a_peer_and_lets_one_in(master, start):
    program = LOOP + """
held = index == 0

def held_once():
    global held
    if held and state.revision == 29:
        held = False
        go()
    step()
comm.run(held_once, state=state, steps=300, min_world=lambda: 2 if 5 <= state.revision < 150 else 3)
say(f"end {state.revision} {weights.tobytes().hex()[:16]}")
go()
"""
    peers = [start(program, master, 2, index) for index in range(3)]
    until(peers[0], "^step 28 3")
    peers.pop().kill()
    peers[0].go()
    until(peers[0], r"^step \d+ 2")
    peers.append(start(program, master, 2, 3))
    until(peers[2], r"^step \d+ 3")
    ends = {until(peer, "^end 300 ") for peer in peers}
    assert len(ends) == 1
    for peer in peers:
        peer.go()
    for peer in peers:
        peer.finish()


def test_a_failed_step_leaves_nothing_in_flight(master, start):
    """A peer dies while reduces are in flight that the step has not waited for: the next sync must be possible."""
    program = LOOP + """
def step():
    handles = [comm.all_reduce_async(numpy.ones(10), op="sum") for _ in range(4)]
    handles[0].result()
    for handle in handles:
        handle.result()
    say(f"step {state.revision} {len(comm.ring())}")
comm.run(step, state=state, steps=200, min_world=lambda: 2 if state.revision > 5 else 3)
say("end")
go()
"""
    peers = [start(program, master, 2, index) for index in range(3)]
    until(peers[2], "^step 5 ")
    peers.pop().kill()
    for peer in peers:
        until(peer, "^end")
        peer.go()
    for peer in peers:
        peer.finish()


def test_what_nothing_can_be_done_about_is_raised(fleet):
    fleet(2, LOOP + """
comm.connect()
calls = []
def step():
    calls.append(1)
    comm.all_reduce(numpy.ones(3 + index), op="sum")
try:
    comm.run(step, state=state, steps=5)
    raise SystemExit("not refused")
except Mismatch as error:
    assert error.cause == "MismatchedCall" and calls == [1], error
    try:
        comm.recover(error)
        raise SystemExit("not refused")
    except Mismatch as same:
        assert same is error
class Own(Exception):
    pass
def fail():
    raise Own
try:
    comm.run(fail, state=state, steps=5)
    raise SystemExit("not refused")
except Own:
    pass
""")


@pytest.mark.skipif("PCCL_LOG_LEVEL" in os.environ or "RUST_LOG" in os.environ, reason="the log goes to standard error")
def test_lines_go_to_the_logging_of_python(master, start):
    peer = start("""
        import logging, time
        records = []
        class Keep(logging.Handler):
            def emit(self, record):
                records.append(record)
        logging.getLogger("pccl").addHandler(Keep())
        logging.getLogger("pccl").setLevel(logging.DEBUG)
        comm = Communicator(address, first_ports=(0, 0))
        comm.connect()
        deadline = time.monotonic() + 60
        while not records:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert all(record.name == "pccl" and record.origin.startswith(("pccl", "tinysockets")) for record in records), records
        assert {record.levelno for record in records} <= {10, 20, 30, 40}
        """, master, 1, 0)
    peer.finish()


@pytest.mark.skipif("PCCL_LOG_LEVEL" in os.environ or "RUST_LOG" in os.environ, reason="the log goes to standard error")
def test_a_handler_that_stands_still_stops_nothing(master, start):
    # Neither the reduces nor the lines of this package, nor the end of Python, which waits for the lock of each
    # handler.
    program = """
        import logging, threading
        from pccl._log import warn
        class Stand(logging.Handler):
            def emit(self, record):
                threading.Event().wait()
        logging.getLogger("pccl").addHandler(Stand())
        logging.getLogger("pccl").setLevel(5)
        comm = join()
        for step in range(300):
            data = numpy.ones(10, dtype=numpy.float32)
            comm.all_reduce(data, op="sum")
            assert data[0] == peers
            warn(f"step {step}")
        say("done")
        """
    peers = [start(program, master, 2, index) for index in range(2)]
    for peer in peers:
        peer.expect("done")
    for peer in peers:
        peer.finish()


def test_flight_records(master, start, tmp_path):
    peer = start("""
        comm = Communicator(address, first_ports=(0, 0))
        comm.connect()
        path = comm.dump_flight(sys.argv[4])
        import os
        assert os.path.dirname(path) == sys.argv[4] and os.path.getsize(path) > 0
        """, master, 1, 0, str(tmp_path))
    peer.finish()
