"""The client of this process: made when it is first needed, and again in each forked child (gunicorn --preload)."""

import atexit
import os
import threading
import time
from contextlib import suppress
from typing import Any, Final

from halfmq.client import forks
from halfmq.client.log import logger
from halfmq.client.sync import Client
from halfmq.django.configuration import Configuration, configuration
from halfmq.django.markers import markers_of
from halfmq.errors import HalfmqError

_log = logger(__name__)

#: How long the first block of a process waits for a broker, seconds: until then the client connects in the background.
CONNECT_WAIT_S: Final = 5.0
_STEP_S: Final = 0.01


class _Process:
    """What this process has."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: Client | None = None
        self.made_for: Configuration | None = None
        #: ``forks.generation`` in which the client was asked to connect, and in which a block has waited for a broker.
        self.connected_in = self.waited_in = -1


_process: Final = _Process()


def _after_fork_in_child() -> None:
    _process.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def client() -> Client:
    """The client of this process, connected. It answers checks unless ``HALFMQ["ANSWER_CHECKS"]`` is False. Do not close it.

    Raises:
        UsageError: the setting HALFMQ is wrong.
    """
    made = _opened()
    if _process.waited_in != forks.generation:
        _process.waited_in = forks.generation
        until = time.monotonic() + CONNECT_WAIT_S
        while not made.is_ready and time.monotonic() < until:
            time.sleep(_STEP_S)
    return made


def _opened() -> Client:
    made = _process.client
    if made is not None and _process.connected_in == forks.generation:
        return made
    with _process.lock:
        made = _process.client
        if made is None:
            wanted = configuration()
            made = make_client(wanted)
            _process.client, _process.made_for = made, wanted
            atexit.register(close)
        if _process.connected_in != forks.generation:
            made.connect(wait=False)
            _process.connected_in = forks.generation
        return made


def make_client(wanted: Configuration, *, answers_checks: bool | None = None) -> Client:
    """A client that is not connected yet; ``answers_checks``: instead of the setting."""
    made = Client(wanted.url, group=wanted.group, **wanted.options)
    if wanted.answers_checks if answers_checks is None else answers_checks:
        for using in wanted.databases:
            made.answer_checks(markers_of(using), using)  # type: ignore[arg-type]  # what Markers of Django takes
    return made


def begin_to_answer(**_: Any) -> None:
    """At the first request of a process: connect, so that this process answers checks although no view has sent anything yet."""
    if _process.connected_in == forks.generation:
        return
    try:
        if configuration().answers_checks:
            _opened()
    except HalfmqError as error:  # the system checks say so; a request that sends nothing works nevertheless
        _log.warning("this process answers no checks: %s", error)
        _process.connected_in = forks.generation


def close() -> None:
    """Close the client of this process, if there is one; the next use makes another. For tests, and at the end of the process."""
    with _process.lock:
        made, _process.client = _process.client, None
        connected_in, _process.connected_in, _process.waited_in = _process.connected_in, -1, -1
    if made is not None and connected_in == forks.generation:
        with suppress(HalfmqError):
            made.close()
