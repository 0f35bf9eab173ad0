"""The processes of a run: start, SIGKILL, start again, stop. Only processes that were started here are touched."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 30.0
#: Imports take this long at most. Who is told to stop before it can hear that has done nothing that could be left half done.
YOUNG_SECONDS = 15.0
#: Small, so that the log rolls under load and kills fall near rolls; and so that a run takes little disk.
SEGMENT_BYTES = 16 << 20


class ProcessFailed(Exception):
    """A process that should run does not; the text ends with what it logged last."""


class Child:
    """One program over its lives; all of them log into one file."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self.kills = 0
        self._command = command
        self._log_path = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    def start(self) -> None:
        self._started_at = time.monotonic()
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # Ctrl-C is for the demo, which then stops everybody in order
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL, also for its children; returns when it is gone."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.kills += 1

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, and SIGKILL if that does not help in time.

        Raises:
            ProcessFailed: it did not end by itself with status 0, nor by the signal when it had just been started.
        """
        if not self.is_running:
            return
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ProcessFailed(f"{self.name} did not stop in {seconds:.0f} s\n{self.last_words()}") from None
        is_new = time.monotonic() - self._started_at < YOUNG_SECONDS
        if status and not (status == -signal.SIGTERM and is_new):
            raise ProcessFailed(f"{self.name} ended with status {status}\n{self.last_words()}")

    def abandon(self) -> None:
        """For the way out after an error: gone, whatever it was doing, its children included."""
        if self.is_running:
            assert self._process is not None
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def require_running(self) -> None:
        if not self.is_running:
            raise ProcessFailed(f"{self.name} ended with status {self.exit_status}\n{self.last_words()}")

    def last_words(self, lines: int = 25) -> str:
        if not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])


class BrokerProcess(Child):
    """``halfmq serve`` on one directory; the first start picks free ports, later ones use them again."""

    def __init__(self, directory: Path, check_immunity_ms: int) -> None:
        super().__init__("broker", [], directory)
        self._directory = directory
        self._immunity_ms = check_immunity_ms
        self._ports = {"broker": 0, "names": 0}
        #: Seconds from start to listening, for each life.
        self.start_seconds: list[float] = []

    def start(self) -> None:
        ports_file = self._directory / "ports.json"
        ports_file.unlink(missing_ok=True)
        self._command = [
            sys.executable, "-m", "halfmq", "serve", "--data", str(self._directory / "store"),
            "--port", str(self._ports["broker"]), "--name-port", str(self._ports["names"]),
            "--ports-file", str(ports_file), "--check-immunity-ms", str(self._immunity_ms),
            "--segment-bytes", str(SEGMENT_BYTES),
        ]  # fmt: skip
        started = time.monotonic()
        super().start()
        while not ports_file.exists() or not (text := ports_file.read_text()):
            self.require_running()
            if time.monotonic() - started > START_SECONDS:
                raise ProcessFailed(f"the broker did not start\n{self.last_words()}")
            time.sleep(0.01)
        self._ports = json.loads(text)
        self.start_seconds.append(time.monotonic() - started)

    @property
    def url(self) -> str:
        return f"rocketmq://127.0.0.1:{self._ports['names']}"


def module(name: str, directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, str(directory), *arguments]
