"""What calls fail with."""

import concurrent.futures
import copy
import os
import pickle
import re

import pytest

import pccl
from pccl import Remedy, Result
from pccl._errors import CLASSES, PCCLError, _class_of

DOCUMENT = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "errors.md")


def an_error():
    return pccl.PeerLost(Result.RANK_CONNECTION_LOST, "Communicator.all_reduce", "all-reduce tag 7 failed: PeerDied",
                         Remedy.RETRY,
                         "all-reduce tag 7 failed: PeerDied", "PeerDied", (bytes(16),))


def test_they_are_copied_and_pickled_whole():
    for one in (an_error(), pccl.PCCLError(Result.INTERNAL_ERROR, "Communicator.connect")):
        for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert type(other) is type(one) and str(other) == str(one) and vars(other) == vars(one)
            assert other.retryable == one.retryable
    assert str(an_error()) == "Communicator.all_reduce failed: all-reduce tag 7 failed: PeerDied"


def fail():
    raise an_error()


def test_one_comes_out_of_another_process():
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        with pytest.raises(pccl.PeerLost) as caught:
            pool.submit(fail).result(60)
    assert caught.value.cause == "PeerDied" and caught.value.culprits == (bytes(16),)


def test_each_class_is_in_the_document():
    with open(DOCUMENT) as file:
        text = file.read()
    begin = text.index("## In Python")
    named = set(re.findall(r"`(\w+)`", text[begin:text.index("\n## ", begin + 1)]))
    for kind in CLASSES:
        assert kind.__name__ in named and getattr(pccl, kind.__name__) is kind and kind.__name__ in pccl.__all__, kind


def test_each_cause_of_a_verdict_is_known():
    with open(DOCUMENT) as file:
        text = file.read()
    begin = text.index("## Verdicts")
    causes = re.findall(r"^\| `(\w+)` \|", text[begin:text.index("\n## ", begin + 1)], re.M)
    assert "PeerDied" in causes
    for cause in causes:
        assert issubclass(_class_of(cause, Remedy.RETRY), pccl.Aborted), cause


def test_each_cause_has_its_class():
    for cause, remedy, kind in (
            ("PeerDied", Remedy.RETRY, pccl.PeerLost), ("PeerLeft", Remedy.RETRY, pccl.PeerLost),
            ("EdgeBroken", Remedy.RETRY, pccl.Aborted), ("MismatchedCall", Remedy.GIVE_UP, pccl.Mismatch),
            ("MasterStopping", Remedy.RETRY, pccl.Aborted), ("MasterStopping", Remedy.RECONNECT, pccl.Dropped),
            ("Straggler", Remedy.RECONNECT, pccl.Dropped), ("Operator", Remedy.GIVE_UP, pccl.Dropped),
            ("CallTimeout", Remedy.RETRY, pccl.Aborted), ("MasterLost", Remedy.RECONNECT, pccl.MasterLost),
            ("OutcomeUnknown", Remedy.RECONNECT, pccl.MasterLost), ("TooFewPeers", Remedy.WAIT_FOR_PEERS,
                                                                    pccl.TooFewPeers),
            ("Refused", Remedy.GIVE_UP, pccl.ConnectFailed), ("InvalidArgument", Remedy.GIVE_UP, ValueError),
            ("PendingAsyncOps", Remedy.GIVE_UP, pccl.InvalidUsage)):
        assert issubclass(_class_of(cause, remedy), kind) and issubclass(_class_of(cause, remedy), PCCLError)


def test_calls_are_named_as_in_python():
    comm = pccl.Communicator("127.0.0.1:1", connect_timeout=0.1)
    for call in ("update_topology", "are_peers_pending", "optimize_topology", "world", "ring", "status", "connect"):
        with pytest.raises(PCCLError) as caught:
            getattr(comm, call)()
        assert caught.value.func_name == f"Communicator.{call}" and f"Communicator.{call} failed: " in str(caught.value)
        assert type(caught.value) is (pccl.ConnectFailed if call == "connect" else pccl.NotConnected), caught.value
