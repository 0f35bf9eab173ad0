"""Runs the streaming query of a job to its end, or until the process is told to stop, and reports each batch.

A job is started again on its checkpoint at any time: what was done stays, and what was interrupted is done again.
"""

import contextlib
import itertools
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from halfmq.errors import HalfmqError

#: Called with one line of progress for people.
Say = Callable[[str], None]

_POLL_SECONDS: Final = 0.2
#: The last line of a Python traceback.
_RAISED: Final = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?", re.ASCII)


class JobFailed(HalfmqError):
    """A query of a job stopped with an error. What was written stays; start the job again when the cause is removed."""

    code = "job-failed"


def run(
    writer: Any, say: Say, *, follow: bool, trigger_seconds: float = 0, stopping: threading.Event | None = None
) -> None:
    """Start ``writer`` (a DataStreamWriter without a trigger), and report batches until it ends.

    ``follow``: start a batch every ``trigger_seconds`` (0: as soon as there are messages) until ``stopping`` is set, or SIGTERM or SIGINT
    comes (main thread only); otherwise end at what is there at the start. A batch that runs when it is told to stop is given up, and done
    again by the next run on the checkpoint.

    Raises:
        JobFailed: the query failed; the text is the first cause.
    """
    stopping = stopping or threading.Event()
    with _signals(stopping):
        trigger = {"processingTime": f"{trigger_seconds} seconds"} if follow else {"availableNow": True}
        query = writer.trigger(**trigger).start()
        seen, rows = -1, 0
        try:
            while True:
                ended = query.awaitTermination(_POLL_SECONDS)
                for progress in query.recentProgress:
                    if progress["batchId"] > seen:
                        seen = progress["batchId"]
                        rows += progress["numInputRows"]
                        if progress["numInputRows"]:
                            say(_line(progress, rows))
                if ended:
                    if not rows:
                        say("nothing new")
                    return
                if stopping.is_set():
                    say("stopping: a batch that is not complete is done again by the next run")
                    return
        except Exception as error:
            raise JobFailed(first_cause(error)) from error
        finally:
            query.stop()


def _line(progress: dict[str, Any], rows: int) -> str:
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1_000
    rate = f", {progress['numInputRows'] / seconds:,.0f} rows/s" if seconds and progress["numInputRows"] else ""
    return f"batch {progress['batchId']}: {progress['numInputRows']:,} rows in {seconds:.1f} s{rate}; {rows:,} in all"


def first_cause(error: BaseException) -> str:
    """The sentence of an error that Spark wrapped: of the Python exception in its text, without stack traces."""
    lines = str(error).splitlines() or [type(error).__name__]
    raised = [
        match
        for before, line in itertools.pairwise(lines)
        if (before.startswith("    ") or line.startswith("halfmq.errors."))
        and (match := _RAISED.fullmatch(line.rstrip()))
    ]
    if not raised:
        return lines[0]
    name, text = raised[-1].groups()
    return text or name


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, lambda *_: stopping.set()) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
