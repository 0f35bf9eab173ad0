"""Forked children of a test, and their results."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

#: A child that hangs (on a lock whose owner does not exist any more) is killed after this time, seconds.
_HANGS_S = 20


def fork(work: Callable[[], Any]) -> "Child":
    """Run ``work`` in a child. Its result must have a JSON form."""
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
    except BaseException:  # nothing may propagate into the frames of the test, which are copied here
        traceback.print_exc()
    finally:
        os._exit(1)


class Child:
    def __init__(self, pid: int, reading: int) -> None:
        self._pid = pid
        self._reading = reading

    def ended(self) -> int:
        """The exit code, after the child has ended; for a child without a result."""
        os.close(self._reading)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def result(self) -> Any:
        """The result of ``work``. Fails if the child failed."""
        with open(self._reading, "rb") as said:
            text = said.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        assert code == 0, f"the child ended with {code}"
        return json.loads(text)
