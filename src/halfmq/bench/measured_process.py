"""A server process and its CPU time, anonymous memory and start time, from /proc (Linux only)."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from halfmq.errors import EnvironmentFailed

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class MeasuredProcess:
    """A process started by ``broker`` or ``baseline``. The caller must call ``stop``."""

    def __init__(
        self, process: "subprocess.Popen[str]", port: int, ready_seconds: float, directory: Path | None = None
    ) -> None:
        self.process = process
        self.port = port
        self.ready_seconds = ready_seconds
        #: Holds its ports file and its output; removed by ``stop``.
        self._directory = directory

    def cpu_seconds(self) -> float:
        """User and system time of all threads since the start; the resolution is one clock tick (10 ms)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def anonymous_bytes(self) -> int:
        """RssAnon: resident memory without mapped files, bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1_024
        raise EnvironmentFailed("no RssAnon in /proc", hint="these figures need Linux")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal and wait; after 30 s, kill."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def broker(data: Path, *options: str, timeout_seconds: float = 60) -> MeasuredProcess:
    """Start ``halfmq serve`` on ``data`` with free ports; returns once it accepts connections.

    Raises:
        EnvironmentFailed: it exited, or did not listen in time; the text includes its output.
    """
    directory = Path(tempfile.mkdtemp(prefix="halfmq-bench-"))
    ports_file, output = directory / "ports.json", directory / "output"
    command = [
        sys.executable, "-m", "halfmq", "serve", "--data", str(data), "--port", "0", "--name-port", "0",
        "--ports-file", str(ports_file), *options,
    ]  # fmt: skip
    started = time.perf_counter()
    # A file and not a pipe: nobody reads while it runs, and a broker must not wait for a reader of its log.
    with output.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, text=True)  # nosec B603 # a broker of this benchmark, no shell
    server = MeasuredProcess(process, 0, 0.0, directory)
    while not ports_file.exists():
        if process.poll() is not None:
            said = output.read_text().strip()
            server.stop()
            raise EnvironmentFailed(f"the broker exited with status {process.returncode}: {said}")
        if time.perf_counter() - started > timeout_seconds:
            server.stop(signal.SIGKILL)
            raise EnvironmentFailed(f"the broker did not listen within {timeout_seconds:.0f} s")
        time.sleep(0.005)
    server.ready_seconds = time.perf_counter() - started
    server.port = json.loads(ports_file.read_text())["broker"]
    return server


def baseline() -> MeasuredProcess:
    """Start the baseline server on a free port."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "halfmq.bench.baseline"], stdout=subprocess.PIPE, text=True)  # nosec B603 # as above
    assert process.stdout is not None
    port = json.loads(process.stdout.readline())["port"]
    return MeasuredProcess(process, port, time.perf_counter() - started)
