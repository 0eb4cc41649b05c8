"""What low communication costs in loss, and saves in bytes: the digits of the examples, by DDP with an average of
gradients in each step, and by DiLoCo with a setting, at equal samples, with several seeds.

    python python/benches/diloco_loss.py --seeds 5
    python python/benches/diloco_loss.py --every 100 --fragments 4 --overlap 5 --compress "largest 1/32"
"""

import argparse
import os
import statistics
import sys
import threading

import numpy
import pccl
import pccl.diloco

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "python"))
import digits  # noqa: E402


def together(count, member):
    """Runs members on threads of their own, and returns what they return."""
    ends = [None] * count

    def run(rank):
        ends[rank] = member(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in ends:
        raise SystemExit("a member has failed")
    return ends


def ddp(args, address, seed, rank):
    training, _ = digits.load()
    weights, sampler = digits.initial_weights(), digits.Sampler(training, seed=1000 * seed + rank)
    sent = 0
    with pccl.Communicator(address, first_ports=(0, 0)) as comm:
        comm.connect()
        comm.wait_for_world(args.peers)
        for _ in range(args.steps):
            gradient, _ = digits.gradient(weights, *sampler.batch())
            sent += comm.all_reduce(gradient, op="avg").tx_bytes
            weights -= numpy.float32(args.rate) * gradient
    return weights, sent


def diloco(args, address, seed, rank):
    training, _ = digits.load()
    weights, sampler = digits.initial_weights(), digits.Sampler(training, seed=1000 * seed + rank)
    with pccl.diloco.Member(address, weights, every=args.every, fragments=args.fragments, overlap=args.overlap,
                            compress=args.compress, outer=args.outer, min_world=args.peers,
                            first_ports=(0, 0)) as run:
        while run.step_index < args.steps:
            gradient, _ = digits.gradient(weights, *sampler.batch())
            weights -= numpy.float32(args.rate) * gradient
            run.step()
        run.finish()
        return weights, run.stats().sent_bytes


def loss_of(weights, data):
    return float(digits.gradient(weights, *data)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--overlap", type=int, default=5)
    parser.add_argument("--compress", default="int4")
    parser.add_argument("--outer", default="nesterov 0.7 0.9")
    args = parser.parse_args()
    _, test = digits.load()
    mean_bytes = {}
    for name, member in (("DDP", ddp), ("DiLoCo", diloco)):
        losses, accuracies, sent = [], [], []
        for seed in range(args.seeds):
            with pccl.MasterNode("127.0.0.1:0") as master:
                address = f"127.0.0.1:{master.port}"
                ends = together(args.peers, lambda rank: member(args, address, seed, rank))
            if len({weights.tobytes() for weights, _ in ends}) != 1:
                raise SystemExit("members end with different weights")
            losses.append(loss_of(ends[0][0], test))
            accuracies.append(digits.accuracy(ends[0][0], test))
            sent.append(statistics.mean(it[1] for it in ends))
        mean_bytes[name] = statistics.mean(sent)
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        print(f"{name:>7}: test loss {statistics.mean(losses):.4f} (standard deviation {spread:.4f}), accuracy "
              f"{statistics.mean(accuracies):.4f}, {mean_bytes[name] / 1e3:.0f} kB sent by each member", flush=True)
    print(f"bytes: 1/{mean_bytes['DDP'] / mean_bytes['DiLoCo']:.0f}")


if __name__ == "__main__":
    main()
