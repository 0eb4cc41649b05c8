"""Runs one test of somebody else's suite, and prints its outcome as a line of JSON."""

import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
import unittest

#: One test in a process of its own, whatever it waits for.
LIMIT_S = 700


def report(name, test, scratch):
    """Prints whether the test passed, failed, or was skipped, and the reason."""
    began = time.monotonic()
    outcome, why = outcome_of(test, scratch)
    seconds = round(time.monotonic() - began, 1)
    print("\n" + json.dumps({"test": name, "outcome": outcome, "why": why, "s": seconds}), flush=True)


def report_loss(name, outcome, why):
    """Prints the outcome of what did not come so far as to be run, or ended without one."""
    print("\n" + json.dumps({"test": name, "outcome": outcome, "why": why, "s": 0.0}), flush=True)


def outcome_of(test, scratch):
    """The output of the test is looked at only if it fails."""
    result, output = unittest.TestResult(), scratch / "output"
    kept = os.dup(1), os.dup(2)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            test.run(result)
        except BaseException:
            result.errors.append((None, traceback.format_exc()))
        finally:
            sys.stdout.flush()
            for copy, number in zip(kept, (1, 2)):
                os.dup2(copy, number)
                os.close(copy)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    if not result.failures and not result.errors:
        return "passed", ""
    return "failed", (result.failures + result.errors)[0][1] + output.read_text(errors="replace")


def tests_of(module):
    """All tests of a module, each a case of its own."""
    remaining = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while remaining:
        each = remaining.pop(0)
        if isinstance(each, unittest.TestCase):
            yield each
        else:
            remaining[:0] = list(each)


def alone(test, name, scratch):
    """Runs a test in a process of its own, since threads and groups of one that failed may go on; what it has started
    ends with it."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(test, name, scratch))
    process.start()
    process.join(LIMIT_S)
    ended = process.exitcode
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.join()
    if ended != 0:
        report_loss(name, "failed", f"the process ended with {ended}, limit {LIMIT_S} s")


def _run(test, name, scratch):
    os.setsid()
    # A suite of one, which prepares the class.
    report(name, unittest.TestSuite([test]), scratch)
    # Without the interpreter's end: threads of a test may wait for ever.
    os._exit(0)
