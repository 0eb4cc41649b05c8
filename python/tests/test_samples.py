"""Samples that are counted once, in lock step and between rounds, with members that are killed."""

import os
import re
import threading

import numpy
import pccl
import pccl.diloco
import pytest
import samples_storm


@pytest.mark.parametrize("kind", ["lockstep", "diloco"])
def test_each_sample_is_counted_once_an_epoch_whoever_is_killed(kind):
    assert samples_storm.storm(kind, kills=4, members=3, length=4000, epochs=2, every_s=0.7, limit_s=240) > 0


def test_wrong_arguments_are_named():
    for words, make in [
        ("length", lambda: pccl.Samples(0)), ("epochs", lambda: pccl.Samples(10, epochs=0)),
        ("batch", lambda: pccl.Samples(10, batch=0)), ("members", lambda: pccl.Samples(10, members=0)),
        ("seed", lambda: pccl.Samples(10, seed=-1)), ("epochs", lambda: pccl.Samples(1 << 63, epochs=4)),
    ]:
        with pytest.raises(ValueError, match=words):
            make()
    samples = pccl.Samples(10)
    with pytest.raises(TypeError, match="a run"):
        next(iter(samples))
    with pytest.raises(KeyError):
        samples.counted(0)
    assert (samples.steps, samples.done) == (0, False)
    samples.words[0] = 1
    with pytest.raises(ValueError, match="damaged"):
        samples.steps


def test_a_sampler_of_another_data_set_is_refused():
    with pccl.MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        ready, over, errors = threading.Event(), threading.Event(), []

        def first():
            samples = pccl.Samples(100, batch=5)
            with pccl.diloco.Member(address, numpy.zeros(4, numpy.float32), min_world=1, samples=samples,
                                    first_ports=(0, 0)) as run:
                ready.set()
                over.wait(60)
                with pytest.raises(ValueError, match="samples="):
                    run.step()
                with pytest.raises(TypeError, match="lock step"):
                    samples.commit()

        thread = threading.Thread(target=first)
        thread.start()
        assert ready.wait(60)
        try:
            with pytest.raises(ValueError, match="samples 100 x 1"):
                pccl.diloco.Member(address, numpy.zeros(4, numpy.float32), min_world=1,
                                   samples=pccl.Samples(101, batch=5), first_ports=(0, 0))
            with pytest.raises(TypeError, match="pccl.Samples"):
                pccl.diloco.Member(address, numpy.zeros(4, numpy.float32), samples=[1, 2])
        finally:
            over.set()
            thread.join()


def test_without_a_seed_the_samples_come_in_order():
    samples = pccl.Samples(10, seed=None, batch=4, members=2)
    with pccl.MasterNode("127.0.0.1:0") as master:
        with pccl.Communicator(f"127.0.0.1:{master.port}", first_ports=(0, 0), world_of_one=True) as comm:
            seen = []

            def step():
                taken, ones = samples.take(comm), numpy.ones(1)
                seen.append((taken, samples.all_reduce(comm, [ones], used=min(3, len(taken)))))
                samples.commit()

            comm.run(step, state=pccl.SharedState.of(samples=samples), more=lambda: not samples.done, min_world=1)
    assert seen == [([0, 1, 2, 3], 3), ([3, 4, 5, 6], 3), ([6, 7, 8, 9], 3), ([9], 1)]
    assert samples.counted(1) == [3, 4, 5] and samples.steps == 4


def test_the_loop_of_the_page_counts_each_sample():
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "samples.md")
    with open(page) as lines:
        loop = re.search(r"```python\n(.*?)```", lines.read(), re.S).group(1)
    learned = [0] * 50

    def sum_of_gradients(weights, batch):
        for at in batch:
            learned[at] += 1
        return 0 * weights

    with pccl.MasterNode("127.0.0.1:0") as master:
        loop = loop.replace('"master:48148"', f'"127.0.0.1:{master.port}", first_ports=(0, 0), world_of_one=True')
        loop = loop.replace("not samples.done)", "not samples.done, min_world=1)")
        exec(loop, {"dataset": range(50), "sum_of_gradients": sum_of_gradients})
    assert learned == [5] * 50


def test_a_run_of_rounds_goes_on_from_a_file_with_what_it_has_counted(tmp_path):
    path, rounds = tmp_path / "outer.state", []
    for resume in ({}, {"resume": str(path)}):
        with pccl.MasterNode("127.0.0.1:0") as master:
            samples, weights = pccl.Samples(100, batch=5), numpy.zeros(100, numpy.float32)
            with pccl.diloco.Member(f"127.0.0.1:{master.port}", weights, every=2, outer="average", min_world=1,
                                    samples=samples, first_ports=(0, 0), **resume) as run:
                for taken in samples:
                    weights[taken] += 1
                    run.step(samples=len(taken))
                    if not resume and run.stats().rounds == 4:
                        run.save(path)
                        break
                rounds.append(run.stats().rounds)
    assert rounds == [4, 10] and (weights == 1).all()


def test_members_in_lock_step_with_another_seed_or_batch_are_refused():
    for other in ({"seed": 1}, {"batch": 3}, {"epochs": 2}):
        mine, theirs = pccl.Samples(100, batch=5), pccl.Samples(100, **{"batch": 5, **other})
        mine.load_state_dict(theirs.state_dict())
        with pytest.raises(ValueError, match="another"):
            mine.steps
