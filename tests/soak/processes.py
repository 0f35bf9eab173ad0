"""Processes that die and are restarted; each is killed and paused by its own id only, and its lives are counted."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.notes import Counter
from tests.soak.plan import TOPICS, Plan
from tests.soak.spawned import Forked, die_with_parent
from tests.support.jvm import QUICK

CHECKOUT = Path(__file__).parent.parent.parent
SELF_KILLED = -signal.SIGKILL
#: Exit status of a JVM that halts at its point.
HALTED = 137
#: For a Python process: module and arguments; for any other: the command line.
Command = tuple[str, tuple[str, ...]] | list[str]


class ProcessFailed(AssertionError):
    """A process that should run does not; the text ends with its last output."""


class Child:
    """``kind``: its kind in the record. ``command(life)``: starts its next life."""

    def __init__(self, plan: Plan, kind: str, name: str, command: Callable[[int], Command]) -> None:
        self.kind = kind
        self.name = name
        self.lives = 0
        self.paused = False
        self.counter = Counter(plan.counter_file(name))
        self._command = command
        self.log_path = plan.path / f"{name}.log"
        self.process: subprocess.Popen[bytes] | Forked | None = None
        #: The counter when this life began.
        self.counted_at_start = 0

    def start(self) -> None:
        self.lives += 1
        self.paused = False
        self.counted_at_start = self.counter.read()
        command = self._command(self.lives)
        if isinstance(command, tuple):
            self.process = Forked(*command, self.log_path)
            return
        with self.log_path.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=CHECKOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                     "PYTHONUNBUFFERED": "1"},
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_warm(self) -> bool:
        """Whether it has done something in this life."""
        return self.is_running and self.counter.read() > self.counted_at_start

    @property
    def killed_itself(self) -> bool:
        return self.process is not None and self.process.poll() in (SELF_KILLED, HALTED)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)
        self.paused = False

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def go_on(self) -> None:
        if self.paused and self.is_running:
            assert self.process is not None
            self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def stop(self, seconds: float, *, expected: tuple[int, ...] = (0,)) -> None:
        """Send SIGTERM, and wait.

        Raises:
            ProcessFailed: it did not end in time, or with an unexpected status.
        """
        if self.process is None:
            return
        self.go_on()
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"{self.name} did not end in {seconds:.0f} s\n{self.last_words()}") from None
        if status not in expected:
            raise ProcessFailed(f"{self.name} ended with {status}\n{self.last_words()}")

    def abandon(self) -> None:
        """Kill it, for the cleanup after an error."""
        if self.is_running:
            self.kill()

    def last_words(self, lines: int = 30) -> str:
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


class Broker(Child):
    """``halfmq serve``. It has no counter: it is warm when the others have done something."""

    #: Slightly more than the broker needs to allocate its next segments.
    RESERVE_BYTES = 6 << 20

    def __init__(self, plan: Plan, data: Path) -> None:
        self.data = data
        self._ports_file = plan.path / "ports.json"
        self._started_at = 0.0
        #: Seconds from start to listening, of each life that listened.
        self.ready_seconds: list[float] = []
        command = [
            sys.executable, "-m", *(("tests.soak.planted", plan.bug) if plan.bug else ("halfmq",)), "serve", "--data", str(data), "--port", str(plan.broker_port),
            "--name-port", str(plan.name_port), "--ports-file", str(self._ports_file), "--durability", "fsync",
            "--segment-bytes", str(plan.profile.segment_bytes),
            "--retention-hours", str(plan.retention_s / 3_600),
            "--dedup-window-ms", str(int(plan.retention_s * 1_000)), "--disk-reserve-bytes", str(self.RESERVE_BYTES),
            "--check-immunity-ms", "1000", "--check-interval-ms", "1000", *plan.profile.options,
        ]  # fmt: skip
        super().__init__(plan, "broker", "broker", lambda life: command)

    def start(self) -> None:
        self._ports_file.unlink(missing_ok=True)
        self._started_at = time.monotonic()
        super().start()
        self._listening = False

    def look(self) -> bool:
        """Whether it listens. Call it often."""
        if not self._listening and self.is_running:
            with contextlib.suppress(OSError, ValueError):
                json.loads(self._ports_file.read_text())
                self._listening = True
                self.ready_seconds.append(time.monotonic() - self._started_at)
        return self._listening and self.is_running

    def start_and_wait(self, seconds: float = 30) -> None:
        self.start()
        until = time.monotonic() + seconds
        while not self.look():
            if not self.is_running or time.monotonic() > until:
                raise ProcessFailed(f"the broker does not listen\n{self.last_words()}")
            time.sleep(0.01)


def module(name: str, *arguments: object) -> Command:
    return f"tests.soak.{name}", tuple(map(str, arguments))


def java_command(plan: Plan, classpath: str, version: str, name: str, life: int, rate: float, death: str) -> list[str]:
    home = plan.path / "java-home" / name
    home.mkdir(parents=True, exist_ok=True)
    return [
        "java", "-Xms64m", "-Xmx192m", *QUICK, "-Xshare:auto",
        f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}/logs", "-Drocketmq.client.logLevel=WARN",
        "-cp", classpath, "halfmq.soak.OrderService", f"127.0.0.1:{plan.name_port}", "soak-java", plan.jdbc_url,
        plan.directory, name, str(life), str(plan.seed), str(rate), f"rocketmq-client {version}", ",".join(TOPICS),
        str(plan.patient_s),
        *([death] if death else []),
    ]  # fmt: skip
