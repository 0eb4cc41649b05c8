"""Takes the time of DDP's steps over Gloo and over PCCL, in turns: the gradients of one layer after the other are
exchanged in buckets, and nothing else is computed that takes long.

    python python/benches/ddp_step.py --mib 64 --bucket-mib 25 1 --turns 3
    python python/benches/ddp_step.py --mib 64 --bucket-mib 25 --profile      # where Python spends it

On machines of their own, one command on each, with its rank:

    python python/benches/ddp_step.py --rank 0 --init tcp://10.77.0.1:29700 --backend gloo --bucket-mib 25
"""

import argparse
import cProfile
import datetime
import pstats
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

#: Elements of one layer: 1 MiB of float32.
WIDTH = 512


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=64, help="gradients of all layers")
    parser.add_argument("--bucket-mib", type=float, nargs="+", default=[25, 1])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="what Python does in the steps over PCCL, at rank 0")
    parser.add_argument("--rank", type=int, help="be this rank, and not all of them")
    parser.add_argument("--init", help="with --rank: where rank 0 serves the store")
    parser.add_argument("--backend", default="pccl", help="with --rank")
    chosen = parser.parse_args()
    if chosen.rank is not None:
        member(chosen.rank, chosen.backend, chosen.init, chosen.bucket_mib[0], chosen, Printed())
        return
    for bucket_mib in chosen.bucket_mib:
        medians = {"gloo": [], "pccl": []}
        for _ in range(chosen.turns):
            for backend, taken in medians.items():
                results = mp.get_context("spawn").SimpleQueue()
                where = f"tcp://127.0.0.1:{free_port()}"
                mp.spawn(member, (backend, where, bucket_mib, chosen, results), nprocs=chosen.ranks)
                taken.append(results.get())
        gloo, pccl = (statistics.median(medians[backend]) for backend in ("gloo", "pccl"))
        print(f"{chosen.mib} MiB in buckets of {bucket_mib:g} MiB, {chosen.ranks} ranks: Gloo {1000 * gloo:.1f} ms a step, "
              f"PCCL {1000 * pccl:.1f} ms, ratio {pccl / gloo:.2f} (medians of {chosen.turns} turns)", flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Printed:
    """Takes the result of a rank that is alone."""

    def put(self, seconds):
        print(f"{1000 * seconds:.1f} ms a step")


def member(rank, backend, where, bucket_mib, chosen, results):
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=chosen.ranks,
                            timeout=datetime.timedelta(seconds=300))
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(chosen.mib)))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=bucket_mib)
    given, times, profile = torch.ones(1, WIDTH), [], cProfile.Profile()
    for step in range(chosen.steps + 2):
        if chosen.profile and backend == "pccl" and step == 2:
            profile.enable()
        began = time.monotonic()
        model(given).sum().backward()
        times.append(time.monotonic() - began)
    profile.disable()
    if rank == 0:
        # Buckets are built anew after the first step.
        results.put(statistics.median(times[2:]))
        if chosen.profile and backend == "pccl":
            pstats.Stats(profile).sort_stats("tottime").print_stats(14)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
