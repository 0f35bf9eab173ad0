"""A server process and its CPU time, anonymous memory and start time, from /proc (Linux only)."""

import contextlib
import json
import os
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

    def __init__(self, process: "subprocess.Popen[str]", port: int, ready_seconds: float) -> None:
        self.process = process
        self.port = port
        self.ready_seconds = ready_seconds

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


def broker(data: Path, *options: str, timeout_seconds: float = 60) -> MeasuredProcess:
    """Start ``halfmq serve`` on ``data`` with free ports; returns once it accepts connections.

    Raises:
        EnvironmentFailed: it exited, or did not listen in time; the text includes its output.
    """
    ports_file = Path(tempfile.mkdtemp(prefix="halfmq-ports-")) / "ports.json"
    command = [
        sys.executable, "-m", "halfmq", "serve", "--data", str(data), "--port", "0", "--name-port", "0",
        "--ports-file", str(ports_file), *options,
    ]  # fmt: skip
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not ports_file.exists():
        if process.poll() is not None:
            raise EnvironmentFailed(
                f"the broker exited with status {process.returncode}: {process.communicate()[1].strip()}"
            )
        if time.perf_counter() - started > timeout_seconds:
            process.kill()
            raise EnvironmentFailed(f"the broker did not listen within {timeout_seconds:.0f} s")
        time.sleep(0.005)
    ready = time.perf_counter() - started
    return MeasuredProcess(process, json.loads(ports_file.read_text())["broker"], ready)


def baseline() -> MeasuredProcess:
    """Start the baseline server on a free port."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "halfmq.bench.baseline"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = json.loads(process.stdout.readline())["port"]
    return MeasuredProcess(process, port, time.perf_counter() - started)
