"""A real server for a session of tests. In CI it must exist; elsewhere tests that need it are skipped, and say how to get it."""

import os
from collections.abc import Iterator
from typing import Protocol, TypeVar

import pytest


class Server(Protocol):
    """``start`` raises if its programs are missing; ``stop`` may follow in any case."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=Server)


def running(server: S, missing: type[Exception]) -> Iterator[S]:
    """For ``yield from`` in a fixture: the server while it runs. ``missing``: what ``start`` raises if there are no programs."""
    try:
        server.start()
    except missing as error:
        server.stop()
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have it: {error}")
        pytest.skip(str(error))
    yield server
    server.stop()
