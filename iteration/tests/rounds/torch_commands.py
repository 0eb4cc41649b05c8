"""Calls every command of PyTorch's TCPStore client and prints what it gets, one line for each call.

    python torch_commands.py ours PORT       against a store that listens on PORT
    python torch_commands.py libuv|legacy    against a server of PyTorch in this process

The test `main.rs` compares the output of our server with that of PyTorch's own. A method of the client that is not
called here ends the script with an error, so that a new one is not overlooked.
"""

import datetime
import sys
import threading
import time

import torch.distributed as dist

SHORT = datetime.timedelta(milliseconds=300)
LONG = datetime.timedelta(seconds=60)


# Those that have no command: they tell what the client itself knows.
LOCAL = {"host", "port", "timeout", "libuvBackend"}
# Those whose command has no answer.
UNANSWERED = {"set", "append", "multi_set", "queue_push"}
called = set()


class Recorded:
    """A client that notes which of its methods are called."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        called.add(name)
        method = getattr(self.store, name)
        return self.until_done(method) if name in UNANSWERED else method

    def until_done(self, method):
        """Returns when the server has taken the command: otherwise one of another client may come before it."""

        def call(*arguments):
            result = method(*arguments)
            self.store.check([])
            return result

        return call


def connect(kind, port):
    if kind == "ours":
        return None, lambda: dist.TCPStore("127.0.0.1", port, None, False, timeout=LONG)
    server = dist.TCPStore(
        "127.0.0.1", 0, None, True, timeout=LONG, wait_for_workers=False, use_libuv=kind == "libuv"
    )
    return server, lambda: dist.TCPStore(
        "127.0.0.1", server.port, None, False, timeout=LONG, use_libuv=kind == "libuv"
    )


def show(name, call):
    try:
        result = call()
    except (dist.DistStoreError, dist.DistNetworkError, RuntimeError) as error:
        result = type(error).__name__
    print(name, result, flush=True)


def main():
    kind = sys.argv[1]
    server, make = connect(kind, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    one, two = Recorded(make()), Recorded(make())
    show("has_extended_api", lambda: one.has_extended_api())

    show("set", lambda: one.set("k", "v"))
    show("get", lambda: two.get("k"))
    show("set again", lambda: one.set("k", "w"))
    show("get again", lambda: two.get("k"))
    show("empty value", lambda: (one.set("e", ""), two.get("e")))
    show("large value", lambda: (one.set("l", "x" * 3_000_000), len(two.get("l"))))
    show("add", lambda: [one.add("n", amount) for amount in (5, -7, 0, 100)])
    show("add is text", lambda: two.get("n"))
    show("compare_set missing", lambda: one.compare_set("c", "other", "x"))
    show("still missing", lambda: one.check(["c"]))
    show("compare_set new", lambda: one.compare_set("c", "", "a"))
    show("compare_set wrong", lambda: one.compare_set("c", "b", "x"))
    show("compare_set right", lambda: two.compare_set("c", "a", "b"))
    show("compare_set result", lambda: one.get("c"))
    show("check", lambda: [one.check(["k", "n"]), one.check(["k", "missing"]), one.check([])])
    show("compare_set to nothing", lambda: (two.compare_set("c2", "", ""), one.check(["c2"])))
    show("other letters", lambda: (one.set("ключ\n \t", "значение\0end"), two.get("ключ\n \t")))
    show("many keys at once", lambda: one.check(["k"] * 5000 + ["n"]))
    show("delete", lambda: [one.delete_key("k"), one.delete_key("k"), two.check(["k"])])
    show("num_keys", lambda: one.num_keys())

    if kind != "legacy":
        show("append", lambda: (one.append("a", "x"), two.append("a", "y"), one.append("a", "z"), two.get("a"))[-1])
        show("multi_set", lambda: one.multi_set(["m1", "m2", "m3"], ["1", "", "3"]))
        show("multi_get", lambda: two.multi_get(["m3", "m2", "m1"]))
        show("multi_get none", lambda: two.multi_get([]))
        show("append to a number", lambda: (one.add("an", 12), two.append("an", "3"), one.add("an", 1))[-1])
    one.set_timeout(SHORT)
    show("get missing", lambda: one.get("missing"))
    show("after a cancelled wait", lambda: one.get("c"))
    show("wait for two, one missing", lambda: one.wait(["c", "missing"], SHORT))
    show("after another", lambda: one.get("n"))
    show("wait for nothing", lambda: one.wait([]))
    show("wait for what is there", lambda: one.wait(["c", "n", "c"]))
    if kind != "legacy":
        show("multi_get, one missing", lambda: one.multi_get(["c", "missing"]))
        show("after that", lambda: one.multi_get(["c", "n"]))
        show("queue_pop of an empty queue", lambda: one.queue_pop("q0"))
        show("nobody pops any more", lambda: (two.queue_push("q0", "kept"), two.queue_len("q0"), one.queue_pop("q0")))
        show("queue_len of no queue", lambda: one.queue_len("q none"))
    show("cancelled waits leave no key", lambda: [one.check([key]) for key in ("missing", "q0", "q none")])
    one.set_timeout(LONG)
    # A wait that is given up by one client is not given up for the other.
    waiting = threading.Thread(target=lambda: show("the other one still waits", lambda: two.get("both wait")))
    waiting.start()
    show("one of two gives up", lambda: one.wait(["both wait"], SHORT))
    one.set("both wait", "came")
    waiting.join()

    def later(action):
        thread = threading.Thread(target=lambda: (time.sleep(0.2), action()))
        thread.start()
        return thread

    for name, action in [
        ("set", lambda: two.set("w set", "1")),
        ("add", lambda: two.add("w add", 1)),
        ("compare_set", lambda: two.compare_set("w compare_set", "", "1")),
    ]:
        thread = later(action)
        show("wait woken by " + name, lambda: (one.wait(["c", "w " + name]), one.get("w " + name)))
        thread.join()
    thread = later(lambda: two.set("get waits", "came"))
    show("get waits", lambda: one.get("get waits"))
    thread.join()

    if kind != "legacy":
        thread = later(lambda: two.multi_set(["w m1", "w m2"], ["1", "2"]))
        show("wait woken by multi_set", lambda: one.wait(["w m1", "w m2"]))
        thread.join()
        show("queue", lambda: (one.queue_push("q", "1"), two.queue_push("q", "2"), one.queue_len("q")))
        show("queue_pop", lambda: [one.queue_pop("q"), two.queue_pop("q"), one.queue_len("q")])
        show("queue_pop without waiting", lambda: one.queue_pop("q", False))
        thread = later(lambda: two.queue_push("q", "late"))
        show("queue_pop waits", lambda: one.queue_pop("q"))
        thread.join()
    if hasattr(one, "list_keys") and kind != "legacy":
        show("list_keys", lambda: sorted(key for key in one.list_keys() if "pccl/store" not in key))
    if hasattr(one, "barrier") and kind != "legacy":
        thread = later(lambda: two.barrier("b", 2, LONG))
        show("barrier", lambda: one.barrier("b", 2, LONG))
        thread.join()
        show("barrier that is full", lambda: one.barrier("b", 2, LONG))
        show("barrier times out", lambda: one.barrier("b2", 2, SHORT))
        show("after a barrier that timed out", lambda: one.get("c"))
    clone = one.clone()
    show("clone", lambda: (clone.set("from clone", "1"), one.get("from clone")))
    prefix = dist.PrefixStore("p", one.store)
    show("prefix", lambda: (prefix.set("k", "1"), two.get("p/k")))
    show("many", lambda: sum(one.add("many", 1) and 1 for _ in range(500)))
    threads = [threading.Thread(target=lambda store=make(): [store.add("sum", 1) for _ in range(200)])
               for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    show("sum", lambda: one.add("sum", 0))
    show("number that is none", lambda: two.add("e2", int(two.set("e2", "text") is None)))
    overlooked = {name for name in dir(dist.TCPStore) if not name.startswith("_")} - LOCAL - called
    if overlooked and kind != "legacy":
        sys.exit(f"never called: {sorted(overlooked)}")
    del server


if __name__ == "__main__":
    main()
