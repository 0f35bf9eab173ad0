"""`halfmq serve` as a separate process, for tests that kill it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until

#: Two segments are preallocated; with the default of 1 GiB that would be 2 GiB per test.
SEGMENT_BYTES = 64 << 20


class Served:
    """One data directory and one pair of ports, over many restarts of the broker. ``options`` override the defaults set here."""

    def __init__(self, data: Path, log: Path, *options: str) -> None:
        self.data = data
        self.log = log
        self.options = options
        self.port = free_port()
        self.name_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.kills = 0
        self.ready_seconds: list[float] = []

    @property
    def url(self) -> str:
        """Of its name service."""
        return f"rocketmq://127.0.0.1:{self.name_port}"

    def start(self, seconds: float = PATIENCE_S) -> None:
        ports_file = self.data.parent / f"ports-{time.monotonic_ns()}.json"
        command = [
            sys.executable, "-m", "halfmq", "serve", "--data", str(self.data), "--port", str(self.port),
            "--name-port", str(self.name_port), "--ports-file", str(ports_file),
            "--segment-bytes", str(SEGMENT_BYTES), *self.options,
        ]  # fmt: skip
        started = time.monotonic()
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"}
            )

        def is_ready() -> bool:
            with contextlib.suppress(OSError, ValueError):
                return bool(json.loads(ports_file.read_text()))
            return False

        def ended() -> str:
            assert self.process is not None
            code = self.process.poll()
            return "" if code is None else f"the broker ended with {code}:\n{self.log.read_text()[-3000:]}"

        wait_until(is_ready, f"listening broker, whose log is {self.log}", seconds, unless=ended)
        ports_file.unlink()
        self.ready_seconds.append(time.monotonic() - started)

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        assert self.process is not None
        assert self.process.poll() is None, f"the broker was dead before the kill:\n{self.log.read_text()[-3000:]}"
        self.process.kill()
        self.process.wait(30)
        self.kills += 1

    def stop(self) -> int:
        """SIGTERM, then wait; returns the exit code."""
        if self.process is None or self.process.poll() is not None:
            return 0 if self.process is None else self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """``start(*options)`` starts ``halfmq serve`` on a fresh directory and free ports; ended with the context."""
    with contextlib.ExitStack() as ends:

        def start(*options: str) -> Served:
            directory = tmp_path_factory.mktemp("served")
            broker = Served(directory / "data", directory / "log", *options)
            ends.callback(broker.stop)
            broker.start()
            return broker

        yield start
