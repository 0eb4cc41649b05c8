"""Low-communication training in Python: numpy members, a plan, wrong arguments."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pccl
import pccl.diloco
import ports
import pytest
from pccl.diloco import audit, plan

PORTS = {"first_ports": (0, 0)}


def together(members):
    """Runs functions on threads of their own, and returns what they return."""
    results, errors = [None] * len(members), []

    def run(at):
        try:
            results[at] = members[at]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def descend(weights, goal):
    weights += numpy.float32(0.1) * (goal - weights)


def wait_for_figures(run):
    """Until the status of the master has those of both members."""
    deadline = time.monotonic() + 60
    while True:
        peers = run._run.comm.status()["peers"]
        figures = [peer["figures"] for peer in peers if peer["figures"].get("diloco.rounds", 0) >= 38]
        if {it.get("loss") for it in figures} == {1.0, 3.0}:
            assert all(it["diloco.contributed"] >= 38 and it["diloco.sent_bytes"] > 0 for it in figures)
            return
        assert time.monotonic() < deadline, peers
        time.sleep(0.05)


def test_members_end_with_the_same_bits_and_say_how_it_went(tmp_path):
    both = threading.Barrier(2)
    with pccl.MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"

        def member(goal):
            weights = numpy.full(5000, goal, numpy.float32)
            with pccl.diloco.Member(address, weights, every=8, fragments=[2000, 3000], overlap=2, compress="int4",
                                    **PORTS) as run:
                while run.step_index < 160:
                    descend(weights, goal)
                    run.step(goal)
                    run.report(loss=goal)
                run.save(tmp_path / "outer.state")
                members = run.stats().members
                wait_for_figures(run)
                both.wait(60)
                run.finish()
                return weights, run.stats()._replace(members=members), run.reports()

        ends = together([lambda: member(1.0), lambda: member(3.0)])
    (first, stats, reports), (second, _, _) = ends
    assert first.tobytes() == second.tobytes()
    # One of three parts of the weight draws to 1, the others to 3.
    assert 2.2 < first.mean() < 2.8
    assert stats.rounds == stats.contributed == 40 and stats.members == 2
    # Four steps before the first round, eight before each other one, of one of two fragments.
    assert stats.weight == (4 + 39 * 8) * (1 + 3) / 2
    assert stats.plain_bytes > 6 * stats.sent_bytes
    assert len(reports) == 40 and reports[0].startswith("round 0 | fragment 0 | 2 contributors")
    assert (tmp_path / "outer.state").stat().st_size > 2 * 4 * 5000


def test_a_newcomer_fetches_the_outer_state_before_it_is_let_in(caplog):
    caplog.set_level(logging.INFO, "pccl")
    fetched, came, until = "before it is let in", threading.Event(), time.monotonic() + 60
    with pccl.MasterNode("127.0.0.1:0") as master:

        def member(comes_later):
            if comes_later:
                came.wait()
            weights = numpy.full(700_000, float(comes_later), numpy.float32)
            with pccl.diloco.Member(f"127.0.0.1:{master.port}", weights, every=1, upload_share_pct=100,
                                    **PORTS) as run:
                assert (weights == 0).all() and run.step_index >= 3 * comes_later
                while run.step_index < 50:
                    run.step()
                    # The outer state stays as it is until the newcomer has it.
                    while run.step_index == 3 and not comes_later and fetched not in caplog.text:
                        assert time.monotonic() < until, caplog.text
                        came.set()
                        time.sleep(0.01)
                run.finish()

        together([lambda: member(False), lambda: member(False), lambda: member(True)])


def test_a_member_that_is_alone_trains_and_goes_on_from_a_file(tmp_path):
    path = str(tmp_path / "outer.state")
    for begin, end in ((0, 20), (20, 40)):
        with pccl.MasterNode("127.0.0.1:0") as master:
            weights = numpy.zeros(10, numpy.float32)
            resume = {"resume": path} if begin else {}
            with pccl.diloco.Member(f"127.0.0.1:{master.port}", weights, every=2, outer="average", min_world=1,
                                    **resume, **PORTS) as run:
                assert run.step_index == begin and (weights == begin).all()
                while run.step_index < end:
                    weights += 1
                    run.step()
                run.save(path)
            assert (weights == end).all()


def test_what_makes_no_sense_is_a_sentence():
    weights = numpy.zeros(10, numpy.float32)
    for named, settings in (("every 10 with 4 fragments", {"every": 10, "fragments": 4}),
                            ("compression", {"compress": "zip"}), ("quorum", {"quorum": 0}),
                            ("add up to 7", {"every": 2, "fragments": [3, 4]}), ("grace", {"grace": "soon"})):
        with pytest.raises(ValueError, match=named):
            pccl.diloco.Member("127.0.0.1:1", weights, **settings)
    with pytest.raises(TypeError, match="float32"):
        pccl.diloco.Member("127.0.0.1:1", numpy.zeros(10))
    with pytest.raises(ValueError, match="contiguous"):
        pccl.diloco.Member("127.0.0.1:1", numpy.zeros((10, 2), numpy.float32)[:, 0])


def test_a_contribution_that_is_not_finite_raises_and_the_member_may_go_on():
    with pccl.MasterNode("127.0.0.1:0") as master:
        weights = numpy.zeros(10, numpy.float32)
        with pccl.diloco.Member(f"127.0.0.1:{master.port}", weights, every=2, min_world=1, **PORTS) as run:
            run.step()
            weights[3] = numpy.nan
            with pytest.raises(ValueError, match="parameter 3 of fragment 0"):
                run.step()
            assert numpy.isfinite(weights).all()
            run.step()


def test_the_plan_says_what_a_round_costs(capsys, monkeypatch):
    cost = plan.cost(1e9, 200, 8, 0.8, 100, 4, 5, "int4")
    assert cost.ddp_bytes / cost.sent_bytes > 300
    assert 0 < cost.hidden_s <= cost.exchange_s and cost.ddp_utilisation < cost.utilisation <= 1
    monkeypatch.setattr("sys.argv", ["plan", "--params", "1e9", "--mbit", "200", "--peers", "8", "--step-s", "0.8"])
    plan.main()
    assert "int4" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["plan", "--params", "1e9", "--mbit", "200", "--peers", "1", "--step-s", "0.8"])
    with pytest.raises(SystemExit):
        plan.main()


def test_a_storm_of_kills_and_stops_ends_alike():
    program = os.path.join(os.path.dirname(__file__), "diloco_storm.py")
    command = [sys.executable, program, "--minutes=0.1", "--seed=3", f"--ports={ports.free_port()}"]
    output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert output.returncode == 0, output.stdout + output.stderr
    assert "was killed and replaced" in output.stdout and "was stopped" in output.stdout, output.stdout
    assert "computed again: the same bits" in output.stdout, output.stdout


def drop_errors(run):
    """Error memories that forget what was lost."""
    for process in run.processes:
        process.source_errors[:] = 0


def drop_errors_of_means(run):
    for process in run.processes:
        process.owner_errors[:] = 0


def momentum_twice(run):
    run.momentum *= numpy.float32(0.9)


@pytest.mark.parametrize("compress", ["none", "bf16", "int8", "int4", "int2", "largest 1/32", "largest 1/8"])
def test_an_audit_computes_all_rounds_again_and_sees_each_wrong_method(tmp_path, compress):
    with pccl.MasterNode("127.0.0.1:0") as master:

        def member(goal):
            weights, noise = numpy.zeros(5000, numpy.float32), numpy.random.default_rng(goal)
            with pccl.diloco.Member(f"127.0.0.1:{master.port}", weights, every=8, fragments=[1999, 3001],
                                    compress=compress, audit=str(tmp_path / str(goal)), **PORTS) as run:
                while run.step_index < 120:
                    descend(weights, goal)
                    weights += noise.standard_normal(5000, dtype=numpy.float32)
                    run.step(goal)

        together([lambda: member(1), lambda: member(3), lambda: member(7)])
    files = [str(tmp_path / name) for name in ("1", "3", "7")]
    done = subprocess.run([sys.executable, "-m", "pccl.diloco.audit", *files], capture_output=True, text=True)
    assert done.stdout == "rounds 0 to 29 of 3 processes: computed again, the same bits\n", done.stderr
    for fault in (drop_errors, drop_errors_of_means, momentum_twice):
        if compress == "none" and fault is not momentum_twice:
            continue
        run = audit.Run([audit.Process(path) for path in files])
        with pytest.raises(audit.Finding, match="and [0-9]+ more"):
            while run.advance():
                run.check_held()
                fault(run)
    # Without one of them nothing can be said, and a file that is none is told.
    with pytest.raises(audit.Finding, match="of which there is no file"):
        audit.check(files[1:])
    (tmp_path / "other").write_bytes(b"nothing")
    done = subprocess.run([sys.executable, "-m", "pccl.diloco.audit", str(tmp_path / "other")], capture_output=True,
                          text=True)
    assert done.returncode == 1 and "is no audit file" in done.stderr


STOPPED = """
import sys, numpy, pccl.diloco
weights = numpy.zeros(100, numpy.float32)
with pccl.diloco.Member(sys.argv[1], weights, every=1, quorum=0.5, min_world=2, first_ports=(0, 0)) as run:
    while True:
        run.step()
        print(run.stats().rounds, flush=True)
"""


def test_the_others_go_on_while_a_member_is_stopped_and_it_comes_back():
    with pccl.MasterNode("127.0.0.1:0", peer_timeout=3) as master:
        members = [subprocess.Popen([sys.executable, "-c", STOPPED, f"127.0.0.1:{master.port}"],
                                    stdout=subprocess.PIPE, text=True) for _ in range(3)]
        try:
            rounds = [int(member.stdout.readline()) for member in members]
            members[2].send_signal(signal.SIGSTOP)
            goal = max(rounds) + 20
            for member in members[:2]:
                while int(member.stdout.readline()) < goal:
                    pass
            # It comes back by itself, and is where the others are.
            members[2].send_signal(signal.SIGCONT)
            while int(members[2].stdout.readline()) < goal:
                pass
        finally:
            for member in members:
                member.kill()
                member.wait()
                member.stdout.close()
