"""`halfmq serve` as a separate process, for tests that kill it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.ports import free_port

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

    def start(self, timeout_seconds: float = 30) -> None:
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
        while True:
            with contextlib.suppress(OSError, ValueError):
                json.loads(ports_file.read_text())
                break
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the broker ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}"
                )
            if time.monotonic() - started > timeout_seconds:
                raise AssertionError(
                    f"the broker did not listen in {timeout_seconds} s:\n{self.log.read_text()[-3000:]}"
                )
            time.sleep(0.01)
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
