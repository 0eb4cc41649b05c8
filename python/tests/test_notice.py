"""Peers that are told to go: by a real SIGTERM, by a command, by the program."""

import signal
import subprocess
import sys
import threading

import pytest

import pccl
from conftest import PATIENCE_S

TRAINING = """
    import signal
    comm = Communicator(address, first_ports=(0, 0))
    comm.connect()
    comm.wait_for_world(peers)
    weights = numpy.zeros(10_000, numpy.float32)
    state = SharedState({"weights": weights})
    seen = []
    def step():
        change = numpy.ones(10_000, numpy.float32)
        seen.append(comm.all_reduce(change, op="avg").world_size)
        comm.barrier()
        weights[:] += change
        if len(seen) == 3:
            say("training")
"""


def test_a_peer_that_gets_sigterm_leaves_and_nobody_sees_an_abort(master, start):
    leaver = start(TRAINING + """
    before = signal.getsignal(signal.SIGTERM)
    with pccl.Notice([signal.SIGTERM]) as notice:
        comm.close_on(notice, within=60)
        comm.run(step, state=state, more=lambda: not notice.is_given())
        comm.close_within(60)
        say(notice.given_by)
    assert signal.getsignal(signal.SIGTERM) == before
    """, master, 3, 0)
    others = [start(TRAINING + """
    while seen.count(2) < 10:
        # Not run(), which would make an abort good in silence.
        comm.sync_shared_state(state)
        step()
        state.push_revision()
        if comm.are_peers_pending():
            comm.update_topology()
    say("left")
    """, master, 3, index) for index in (1, 2)]
    leaver.expect("training")
    leaver.process.send_signal(signal.SIGTERM)
    leaver.expect("signal 15")
    leaver.finish()
    for other in others:
        other.expect("training")
        other.expect("left")
        other.finish()


def test_a_peer_that_is_blocked_is_closed_when_its_time_is_over(master, start):
    blocked = start("""
    import signal
    comm = join()
    notice = pccl.Notice([signal.SIGTERM])
    comm.close_on(notice, within=0.2)
    say("ready")
    try:
        # The other one never calls it.
        comm.all_reduce(numpy.ones(10), op="sum")
        raise SystemExit("nobody has cut it off")
    except pccl.NotConnected:
        say("cut off")
    """, master, 2, 0)
    other = start("""
    comm = join()
    go()
    assert comm.wait_for_world(1).global_size == 1
    say("alone")
    """, master, 2, 1)
    blocked.expect("ready")
    blocked.process.send_signal(signal.SIGTERM)
    blocked.expect("cut off")
    blocked.finish()
    other.go()
    other.expect("alone")
    other.finish()


def test_commands_and_the_program_give_it():
    with pccl.Notice(command="exit 1", every=0.01) as notice:
        assert not notice.wait(0.2) and notice.given_by is None
        notice.give("the operator")
        notice.give("somebody else")
        assert notice.wait() and notice.given_by == "the operator"
    with pccl.Notice(command="exit 0") as notice:
        assert notice.wait(PATIENCE_S) and notice.given_by == "command 'exit 0'"


def test_the_end_of_a_notice_ends_the_command_that_runs():
    notice = pccl.Notice(command="sleep 300")
    closing = threading.Thread(target=notice.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive() and not notice.is_given()


def test_the_handler_that_was_there_comes_back():
    def own(_number, _frame):
        raise AssertionError("not while the notice is there")

    before = signal.signal(signal.SIGUSR1, own)
    try:
        with pccl.Notice([signal.SIGUSR1]) as notice:
            signal.raise_signal(signal.SIGUSR1)
            assert notice.wait(PATIENCE_S) and notice.given_by == f"signal {int(signal.SIGUSR1)}"
        assert signal.getsignal(signal.SIGUSR1) is own
        # One that somebody has put there meanwhile stays.
        with pccl.Notice([signal.SIGUSR1]):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nothing_is_handled_unasked():
    program = """
import signal
before = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
import pccl
comm = pccl.Communicator("127.0.0.1:1")
with pccl.Notice() as notice:
    comm.close_on(notice, 1)
    assert before == [signal.getsignal(number) for number in sorted(signal.valid_signals())]
comm.destroy()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_what_has_no_meaning_is_refused():
    for wrong in ([0], [1000], [signal.SIGKILL]):
        with pytest.raises((ValueError, OSError)):
            pccl.Notice(wrong)
    with pytest.raises(ValueError):
        pccl.Notice(command="true", every=-1)
    with pytest.raises(TypeError):
        pccl.Notice(command=7)
    with pccl.Communicator("127.0.0.1:1") as comm, pytest.raises(TypeError):
        comm.close_on("now", 1)
