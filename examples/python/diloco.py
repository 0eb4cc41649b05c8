"""DiLoCo on handwritten digits, on one machine: a master and three peers, one of which is killed and replaced. With
torch if it is installed, otherwise with numpy.

    python examples/python/diloco.py   all of it; exits with 0 only if all peers end with the same weights
    python examples/python/diloco.py --async   the same, in two fragments of 4 bits that travel beside the next steps
    python examples/python/diloco.py --plot FILE   the same, and a plot of loss against time (needs matplotlib)
    python examples/python/diloco.py [--async] --peer ADDR  one peer of the run at ADDR

Each peer takes steps on its own data; every ten steps the average of how far the peers have moved is the gradient of an
outer Nesterov step (docs/diloco.md). The replacement fetches the outer weights while the others train.
"""

import argparse
import time

import digits
import loopback
import numpy
import pccl.diloco

STEPS, RATE = 600, numpy.float32(0.1)
IN_TIME = {"every": 10, "outer": "nesterov 0.7 0.6"}
BESIDE = {"every": 20, "fragments": 2, "overlap": 3, "compress": "int4", "outer": "nesterov 0.7 0.6"}


def peer(address, beside):
    training, test = digits.load()
    weights, sampler = digits.initial_weights(), digits.Sampler(training)
    with pccl.diloco.Member(address, weights, first_ports=(0, 0), **(BESIDE if beside else IN_TIME)) as run:
        while run.step_index < STEPS:
            gradient, loss = digits.gradient(weights, *sampler.batch())
            weights -= RATE * gradient
            run.step()
            if run.step_index % 10 == 0:
                loopback.step(run.stats().members, run.step_index // 10, loss)
            # So that the replacement has its part, however long it takes to start.
            while run.step_index >= STEPS // 2 and run.stats().members < 3:
                time.sleep(0.05)
        run.finish()
        loopback.end(weights, digits.accuracy(weights, test))


def plot(path):
    """A function that draws the loss of each peer, with the death and the join."""
    from matplotlib.figure import Figure

    def draw(peers, killed):
        begun, figure = min(one.started for one in peers), Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel="seconds", ylabel="loss", yscale="log")
        for one in peers:
            axes.plot(*zip(*[(at - begun, loss) for at, loss in one.steps]), label=one.name, linewidth=1)
        for at, text in ((killed, f"{peers[0].name} killed"), (peers[-1].started, f"{peers[-1].name} started"),
                         (peers[-1].steps[0][0], f"{peers[-1].name} joined")):
            axes.axvline(at - begun, color="grey", linestyle=":")
            axes.annotate(text, (at - begun, 1), xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top")
        axes.legend()
        figure.savefig(path)

    return draw


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", metavar="ADDR")
    parser.add_argument("--async", action="store_true", dest="beside")
    parser.add_argument("--plot", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments.peer, arguments.beside)
    else:
        loopback.run(__file__, *(["--async"] if arguments.beside else []), show=5,
                     plot=plot(arguments.plot) if arguments.plot else None)
