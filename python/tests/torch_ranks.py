"""Process groups whose members are threads of one process: for tests of the backend, not of torch around it."""

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import torch.distributed as dist

import pccl
from pccl.torch._create import Options, create

LIMIT = timedelta(seconds=60)
_numbers = itertools.count()


def member(store, name, rank, size, master=None, reconfigures=False, limit=LIMIT):
    """One process group. Without ``master`` rank 0 starts one."""
    given = SimpleNamespace(group_rank=rank, group_size=size, timeout=limit, store=store, group_id=name,
                            global_ranks_in_group=list(range(size)), enable_reconfigure=reconfigures)
    return create(given, Options(master=master, communicator={"name": f"w{rank}"}))


class Ranks:
    """A group with ``size`` members. ``run`` calls a function in all of them at once."""

    def __init__(self, size, master, reconfigures=False, limit=LIMIT):
        self.size, self._pool, self._store = size, ThreadPoolExecutor(size), dist.HashStore()
        name = f"group {next(_numbers)}"

        self.groups = list(self._pool.map(
            lambda rank: member(self._store, name, rank, size, master, reconfigures, limit), range(size)))

    def run(self, function, members=None):
        """What ``function(group, rank)`` returns, or raises, by rank."""
        chosen = range(self.size) if members is None else members

        def call(rank):
            try:
                return function(self.groups[rank], rank)
            except Exception as error:
                return error

        return list(self._pool.map(call, chosen))

    def check(self, function, members=None):
        """As ``run``, for what has to succeed everywhere."""
        results = self.run(function, members)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def handles(self):
        """By rank."""
        return [group.get_reconfigure_handle() for group in self.groups]

    def close(self):
        # At once: each waits for the others.
        list(self._pool.map(lambda group: group.shutdown(), self.groups))
        self._pool.shutdown()


def reconfiguration(uuid, handles, limit=LIMIT):
    """Options of ``reconfigure``."""
    opts = dist.distributed_c10d.ReconfigureOptions()
    opts.uuid, opts.handles, opts.timeout = uuid, handles, limit
    return opts


@contextlib.contextmanager
def ranks_of_a_master(size):
    """A group with a master of its own."""
    with pccl.MasterNode("127.0.0.1:0") as node:
        made = Ranks(size, f"127.0.0.1:{node.port}")
        yield made
        made.close()
