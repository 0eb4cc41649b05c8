"""A master as a program: ``python -m pccl.master --listen-address 0.0.0.0:48148``."""

import argparse
import signal
import sys

from . import MasterNode, PCCLError


def main() -> int:
    parser = argparse.ArgumentParser(prog="pccl-master", description="Runs a master until it is interrupted.")
    parser.add_argument("--listen-address", default="0.0.0.0:48148", help="host:port; port 0 takes a free one")
    parser.add_argument("--min-world-size", type=int, default=None, help="reduces and syncs need this many peers")
    parser.add_argument("--peer-timeout", type=float, default=None, help="seconds of silence after which a peer is dropped")
    arguments = parser.parse_args()
    try:
        master = MasterNode(arguments.listen_address, min_world_size=arguments.min_world_size,
                            peer_timeout=arguments.peer_timeout)
        master.run()
    except (PCCLError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: master.interrupt())
    print(f"listening on port {master.port}", flush=True)
    master.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
