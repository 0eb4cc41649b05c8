"""A global iteration over a store: of this process, and of PyTorch if it is there."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import pccl
from pccl import GlobalIteration, Store

FAST = dict(heartbeat_interval=0.05, inactive_after=0.6, no_progress=1.0, poll_interval=0.02)
PATIENCE_S = 60


@pytest.fixture
def store():
    with Store() as store:
        yield store


def together(*calls):
    """Makes calls at the same time; their results in order."""
    results = [None] * len(calls)

    def run(index):
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def test_members_agree_and_one_that_stays_behind_is_fenced(store):
    with GlobalIteration(store, 0, 2, **FAST) as one, GlobalIteration(store.address, "1", 2, **FAST) as two:
        assert one.current() is None
        first, second = together(lambda: one.join(b"a"), two.join)
        assert first.iteration == second.iteration == 0 and (first.position, second.position) == (0, 1)
        assert first.members == second.members and first.members[0] == ("0", 1, b"a", True)
        first, second = together(lambda: one.advance(b"x" * 4096), lambda: two.advance(bytearray(b"\0\1")))
        assert first.members == second.members and [one.payload for one in first.members] == [b"x" * 4096, b"\0\1"]
        assert one.current() == 1 and one.decision() == first
        one.force_members([0])
        assert [member.id for member in one.advance().members] == ["0"]
        with pytest.raises(pccl.Fenced) as caught:
            two.advance()
        assert caught.value.remedy is pccl.Remedy.RECONNECT and isinstance(caught.value, pccl.IterationError)
        with pytest.raises(pccl.NotMember):
            two.advance()
        one.leave()
        assert two.catch_up().members == [("1", 2, b"", True)]


def test_whoever_leaves_is_not_waited_for(store):
    times = dict(FAST, inactive_after=600.0, no_progress=600.0)
    with GlobalIteration(store, "stays", 2, **times) as stays:
        with GlobalIteration(store, "goes", 2, **times) as goes:
            together(stays.join, goes.join)
        assert len(stays.advance().members) == 1


def test_a_majority_is_wanted_and_missing(store):
    with GlobalIteration(store, 0, 3, policy="strict_majority", **FAST) as one:
        others = [GlobalIteration(store, index, 3, policy="strict_majority", **FAST) for index in (1, 2)]
        together(one.join, *[other.join for other in others])
        for other in others:
            other.destroy()
        with pytest.raises(pccl.NoQuorum) as caught:
            one.advance()
        assert "1 (life 1)" in caught.value.message and caught.value.remedy is pccl.Remedy.WAIT_FOR_PEERS


def test_arguments(store):
    good = dict(store=store, member="0", world_size=1)
    for name, value, kind in [
        ("store", "no port", ValueError), ("store", 7, TypeError), ("member", "a b", ValueError),
        ("member", -1, ValueError),
        ("member", 1.5, TypeError), ("world_size", 0, ValueError), ("world_size", "2", TypeError),
        ("run", "a/b", ValueError),
        ("run", "a\0", ValueError), ("policy", "most", ValueError), ("first_iteration", -1, ValueError),
        ("poll_interval", 0, ValueError), ("no_progress", float("nan"), ValueError), ("mirror", 1, TypeError),
        ("join_timeout", "long", TypeError),
    ]:
        with pytest.raises(kind):
            GlobalIteration(**{**good, name: value})
    with GlobalIteration(**good, heartbeat_interval=20.0) as member:
        with pytest.raises(pccl.InvalidArgument):
            member.join()
    with GlobalIteration(**good, **FAST) as member:
        for call in (member.advance, member.leave, member.decision):
            with pytest.raises(pccl.InvalidUsage):
                call()
        for payload, kind in ((b"x" * 4097, ValueError), ("text", TypeError), (None, TypeError)):
            with pytest.raises(kind):
                member.join(payload)
        member.join()
        with pytest.raises(TypeError):
            member.force_members("0")
        with pytest.raises(pccl.InvalidUsage):
            member.join()
    with pytest.raises(pccl.InvalidArgument):
        member.join()


def test_a_store_that_is_not_there():
    with GlobalIteration("127.0.0.1:1", 0, 1, store_timeout=0.2) as member:
        with pytest.raises(pccl.StoreUnreachable) as caught:
            member.join()
        assert caught.value.retryable
    with pytest.raises(pccl.InvalidUsage):
        Store("nowhere")


def test_a_store_with_a_file_is_kept(tmp_path):
    path = str(tmp_path / "store")
    with Store(file=path) as store, GlobalIteration(store, 0, 1, first_iteration=7, **FAST) as member:
        member.join()
    with Store(file=path) as store, GlobalIteration(store, 0, 1, **FAST) as member:
        assert member.current() == 7


def test_waiting_lets_other_threads_run_and_they_can_end_it(store):
    with GlobalIteration(store, 0, 2, **FAST) as member:
        failed = []

        def wait():
            try:
                member.join()
            except pccl.Cancelled as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        count, until = 0, time.monotonic() + 0.2
        while time.monotonic() < until:
            count += 1
        assert count > 100 and thread.is_alive()
        member.cancel()
        thread.join(PATIENCE_S)
        assert len(failed) == 1


def test_ctrl_c_ends_a_wait(store):
    program = subprocess.Popen(
        [sys.executable, "-c", "import pccl, signal, sys\n"
         "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
         "with pccl.GlobalIteration(sys.argv[1], 0, 2) as member:\n"
         "    print('waits', flush=True)\n    member.join()\n", store.address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert program.stdout.readline().strip() == "waits"
    time.sleep(0.3)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=PATIENCE_S)
    assert program.returncode != 0 and "KeyboardInterrupt" in errors


def test_over_the_store_of_torch():
    dist = pytest.importorskip("torch.distributed")
    theirs = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    with GlobalIteration(theirs, 0, 2, **FAST) as one, GlobalIteration(f"127.0.0.1:{theirs.port}", 1, 2, **FAST) as two:
        together(one.join, two.join)
        first, second = together(one.advance, two.advance)
        assert first.iteration == second.iteration == 1
        assert theirs.get("global_iteration_counter") == b"1"


def test_torch_uses_our_store(store):
    dist = pytest.importorskip("torch.distributed")
    client = dist.TCPStore("127.0.0.1", store.port, None, False)
    with GlobalIteration(client, 0, 1, **FAST) as member:
        member.join()
        assert client.get("global_iteration_counter") == b"0"
