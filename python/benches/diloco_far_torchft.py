"""The work of ``diloco_far.py`` with the DiLoCo of torchft over Gloo: a member, or the lighthouse. Needs ``torchft``.

Its outer step, fragments and overlap are those of the other members. Contributions travel as they are: torchft
quantises on GPUs only.
"""

import argparse
import datetime
import os
import socket
import sys
import time


def lighthouse(address):
    from torchft.coordination import LighthouseServer

    # Members that have not come yet are waited for as long as torchft's own documents say.
    server = LighthouseServer(bind=address, min_replicas=2, join_timeout_ms=10_000, quorum_tick_ms=100)
    print(server.address(), flush=True)
    while True:
        time.sleep(3600)


def member(args):
    # The hosts of a lab have no names.
    socket.gethostname = lambda: args.host
    os.environ["GLOO_SOCKET_IFNAME"] = args.interface
    import torch
    import torchft
    from torchft.local_sgd import DiLoCo

    torch.set_num_threads(1)
    pieces = torch.nn.ModuleList(
        torch.nn.Linear(args.params // args.fragments, 1, bias=False) for _ in range(args.fragments))
    inner = torch.optim.SGD(pieces.parameters(), lr=0.01)
    outers = [torch.optim.SGD(piece.parameters(), lr=0.7, momentum=0.9, nesterov=True) for piece in pieces]
    store = torch.distributed.TCPStore(args.host, 0, is_master=True, wait_for_workers=False)
    timeout = datetime.timedelta(seconds=args.timeout)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timeout), min_replica_size=2, use_async_quorum=False, timeout=timeout,
        load_state_dict=lambda state: pieces.load_state_dict(state), state_dict=lambda: pieces.state_dict(),
        replica_id=f"host-{args.host}-", rank=0, world_size=1, store_addr=args.host, store_port=store.port,
        lighthouse_addr=args.lighthouse, hostname=args.host)
    for parameter in pieces.parameters():
        parameter.grad = torch.ones_like(parameter)
    with DiLoCo(manager, list(pieces), inner, outers, sync_every=args.every, fragment_sync_delay=args.overlap,
                fragment_update_alpha=0.5 if args.overlap else 0.0):
        while time.time() < args.until:
            time.sleep(args.step_s)
            inner.step()
            # Each of a committed round stands for the steps between two rounds.
            print(manager.batches_committed() * (args.every // args.fragments), manager.current_step(), flush=True)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", metavar="ADDRESS")
    parser.add_argument("--lighthouse")
    parser.add_argument("--host")
    parser.add_argument("--interface")
    for name, kind in (("params", int), ("every", int), ("fragments", int), ("overlap", int), ("step-s", float),
                       ("until", float), ("timeout", float)):
        parser.add_argument(f"--{name}", type=kind)
    args = parser.parse_args()
    return lighthouse(args.serve) if args.serve else member(args)


if __name__ == "__main__":
    sys.exit(main())
