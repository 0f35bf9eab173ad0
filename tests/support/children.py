"""Forked children of a test: what they do, and what they have to say."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

#: A child that hangs (a lock that nobody holds any more) is killed after this, seconds.
_HANGS_S = 20


def fork(work: Callable[[], Any]) -> "Child":
    """Run ``work`` in a child. What it returns must have a JSON form."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    try:
        signal.alarm(_HANGS_S)
        os.close(reading)
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    except BaseException:  # nothing may pass into the test's own frames, which are copied here
        traceback.print_exc()
    finally:
        os._exit(1)


class Child:
    def __init__(self, pid: int, reading: int) -> None:
        self._pid = pid
        self._reading = reading

    def ended(self) -> int:
        """Its exit code, when it has ended; for a child that says nothing."""
        os.close(self._reading)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def result(self) -> Any:
        """What its work returned. Fails if it did not end well."""
        with open(self._reading, "rb") as said:
            text = said.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        assert code == 0, f"the child ended with {code}"
        return json.loads(text)
