"""Serves a TCPStore of PyTorch, prints its port, and ends when nobody reads from it any more."""

import sys

import torch.distributed as dist

store = dist.TCPStore(
    "127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=sys.argv[1] == "libuv"
)
print(store.port, flush=True)
sys.stdin.read()
