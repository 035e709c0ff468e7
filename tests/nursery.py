"""Processes to be killed or interrupted, forked from one that has loaded what they need, which takes seconds.

The process that forks has no threads and does nothing else. It reads lines of JSON, ["load", code] for code that it
runs itself and ["fork", code] for code that a child runs, and tells when a child begins and how it ended; what children
print comes through the same pipe.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path


class Nursery:
    def __init__(self):
        command = [sys.executable, "-u", __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.loaded = set()

    def load(self, code):
        """Run this once, for all children to have."""
        if code not in self.loaded:
            self.loaded.add(code)
            self._tell("load", code)
            assert self.line() == "loaded"

    def fork(self, code):
        """The process id of a child that runs this."""
        self._tell("fork", code)
        return int(self.line().removeprefix("begins "))

    def line(self):
        """The next line that the child prints, or how it ended: ``"ended 0"``, ``"ended -9"``."""
        return self.process.stdout.readline().removesuffix("\n")

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _tell(self, *message):
        print(json.dumps(message), file=self.process.stdin, flush=True)


def end_with_the_parent():
    """So that nobody runs on when the tests are gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def serve():
    end_with_the_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell takes from what it runs in the background
    names = {"__name__": "nursery"}
    for line in sys.stdin:
        what, code = json.loads(line)
        if what == "load":
            exec(code, names)
            print("loaded")
            continue
        child = os.fork()
        if child == 0:
            end_with_the_parent()
            print("begins", os.getpid())
            exec(code, names)
            sys.stdout.flush()
            os._exit(0)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "unit")]
    serve()
