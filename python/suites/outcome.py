"""Runs one test of somebody else's suite, and prints its outcome as a line of JSON."""

import json
import os
import sys
import time
import traceback
import unittest


def report(name, test, scratch):
    """Prints whether the test passed, failed, or was skipped, and the reason."""
    began = time.monotonic()
    outcome, why = outcome_of(test, scratch)
    seconds = round(time.monotonic() - began, 1)
    print("\n" + json.dumps({"test": name, "outcome": outcome, "why": why, "s": seconds}), flush=True)


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
