"""Takes the time of ``new_group`` and its first barrier, over Gloo and over PCCL in turns.

    python python/benches/new_group.py --ranks 3 --groups 50
    python python/benches/new_group.py --ranks 4 --groups 20 --pairs     # groups of two members each
    python python/benches/new_group.py --groups 2000 --destroy           # none of them is kept

The recorder of torch takes about 30 ms for each group of any backend that is not torch's own;
``TORCH_FR_BUFFER_SIZE=0`` in the environment leaves it out.
"""

import argparse
import datetime
import os
import socket
import statistics
import time

import torch.distributed as dist
import torch.multiprocessing as mp


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--pairs", action="store_true", help="groups of two members, instead of all")
    parser.add_argument("--destroy", action="store_true", help="destroy each before the next")
    chosen = parser.parse_args()
    for _ in range(chosen.turns):
        for backend in ("gloo", "pccl"):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            mp.start_processes(member, (backend, port, chosen), nprocs=chosen.ranks, start_method="spawn")


def member(rank, backend, port, chosen):
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=chosen.ranks,
                            timeout=datetime.timedelta(seconds=120))
    dist.barrier()
    before, made, met = descriptors(), [], []
    for _ in range(chosen.groups):
        if chosen.pairs:
            lists = [[first, first + 1] for first in range(0, chosen.ranks - 1, 2)]
        else:
            lists = [list(range(chosen.ranks))]
        began = time.monotonic()
        groups = [dist.new_group(ranks) for ranks in lists]
        made.append(time.monotonic() - began)
        for group in groups:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.barrier(group=group)
        met.append(time.monotonic() - began - made[-1])
        if chosen.destroy:
            for group in groups:
                if group is not dist.GroupMember.NON_GROUP_MEMBER:
                    dist.destroy_process_group(group)
            groups = group = None
    if rank == 0:
        print(f"{backend}: new_group {1000 * statistics.median(made):.1f} ms (worst {1000 * max(made):.1f}), "
              f"barrier {1000 * statistics.median(met):.1f} ms (worst {1000 * max(met):.1f}); "
              f"descriptors {before}, then {descriptors()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    main()
