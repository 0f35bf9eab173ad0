"""`halfmq worker` as a process: until a signal, with its port of HTTP, and again after a change."""

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

from halfmq import Client
from halfmq.cli.exit_status import ExitStatus

pytestmark = pytest.mark.slow

_SOURCE = """
import asyncio, pathlib, time
from halfmq import App

app = App({url!r}, group="shop", shutdown_grace={grace_s})

def note(text):
    with open("notes", "a") as notes:
        notes.write(text + "\\n")

{handler}

def make():
    return app
"""
_SLOW = """
@app.consumer({topic!r}, group={topic!r})
async def handle(message):
    note("begun " + message.text())
    await asyncio.sleep({seconds})
    note("done " + message.text())
"""
_BLOCKING = """
@app.consumer({topic!r}, group={topic!r})
def handle(message):
    note("begun " + message.text())
    time.sleep({seconds})
    note("done " + message.text())
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("worker")
    served = Served(work / "data", work / "broker.log", "--durability", "memory")
    served.start()
    yield served
    served.stop()


class Worker:
    """The command in ``directory``, whose module is ``service``."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.log = directory / "worker.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "halfmq", "worker", *arguments], stderr=output, cwd=directory
            )

    def notes(self) -> list[str]:
        path = self.directory / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def until_noted(self, text: str) -> None:
        wait_until(lambda: text in self.notes(), text, unless=self.process.poll)

    def until_logged(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text(), text, unless=self.process.poll)

    def get(self, path: str) -> tuple[int, str]:
        self.until_logged("/healthz and /readyz")
        found = re.search(r"http://127.0.0.1:(\d+)/", self.log.read_text())
        assert found is not None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}{path}", timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def worker(directory: Path, *arguments: str) -> Iterator[Worker]:
    made = Worker(directory, *arguments)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def service(directory: Path, url: str, handler: str = "", *, grace_s: float = 30) -> None:
    (directory / "service.py").write_text(_SOURCE.format(url=url, handler=handler, grace_s=grace_s))


def send(broker: Served, topic: str, *bodies: str) -> None:
    with Client(broker.url) as client:
        for body in bodies:
            client.send(topic, body)


def test_a_running_handler_finishes_after_the_signal(tmp_path: Path, broker: Served) -> None:
    service(tmp_path, broker.url, _SLOW.format(topic="finishes", seconds=1))
    with worker(tmp_path, "service:make", "--health-port", "0", "--concurrency", "1") as running:
        running.until_logged("group finishes consumes finishes")
        assert running.get("/healthz") == (200, "ok\n")
        assert running.get("/readyz") == (200, "ok\n")
        assert running.get("/other") == (404, "no such resource; there are /healthz, /readyz\n")
        send(broker, "finishes", "1", "2")
        wait_until(running.notes, "one of them, which are in two queues", unless=running.process.poll)
        number = running.notes()[0].removeprefix("begun ")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE_S) == ExitStatus.SUCCESS
        assert running.notes() == [f"begun {number}", f"done {number}"], "one at once, and no more after the signal"
        assert "stopping: running handlers have 30 s to finish" in running.log.read_text()


def test_a_second_signal_ends_it_at_once(tmp_path: Path, broker: Served) -> None:
    service(tmp_path, broker.url, _SLOW.format(topic="at-once", seconds=600), grace_s=600)
    with worker(tmp_path, "service:app") as running:
        send(broker, "at-once", "1")
        running.until_noted("begun 1")
        running.process.send_signal(signal.SIGINT)
        running.until_logged("stopping")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_S) == ExitStatus.FAILED
        assert "a second signal" in running.log.read_text()


def test_a_thread_that_does_not_finish_does_not_keep_the_process(tmp_path: Path, broker: Served) -> None:
    service(tmp_path, broker.url, _BLOCKING.format(topic="thread", seconds=3600), grace_s=0.1)
    with worker(tmp_path, "service:app") as running:
        send(broker, "thread", "1")
        running.until_noted("begun 1")
        running.process.terminate()
        assert running.process.wait(PATIENCE_S) == ExitStatus.SUCCESS
        assert "1 threads have not finished" in running.log.read_text()


def test_it_waits_for_a_broker_unless_told_otherwise(tmp_path: Path) -> None:
    service(tmp_path, "rocketmq://127.0.0.1:1", _SLOW.format(topic="t", seconds=0))
    with worker(tmp_path, "service:app", "--health-port", "0") as running:
        running.until_logged("no broker of rocketmq://127.0.0.1:1 answers yet")
        assert running.get("/healthz")[0] == 200
        assert running.get("/readyz") == (503, "no broker answers, or the consumers begin\n")
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/healthz", running.log.read_text())
        taken = subprocess.run(
            [sys.executable, "-m", "halfmq", "worker", "service:app", "--health-port", port],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (taken.returncode, "choose --health-port (0: any free one)" in taken.stderr) == (1, True), taken.stderr
        running.process.terminate()
        assert running.process.wait(PATIENCE_S) == ExitStatus.SUCCESS
    with worker(tmp_path, "service:app", "--no-wait") as running:
        assert running.process.wait(PATIENCE_S) == ExitStatus.FAILED


def test_a_change_starts_it_again(tmp_path: Path, broker: Served) -> None:
    service(tmp_path, broker.url, _SLOW.format(topic="reload", seconds=0))
    with worker(tmp_path, "service:app", "--reload") as running:
        send(broker, "reload", "1")
        running.until_noted("done 1")
        (tmp_path / "service.py").write_text("an error of syntax")
        running.until_logged("it starts again when a file changes")
        service(tmp_path, broker.url, _SLOW.format(topic="reload", seconds=0).replace("done", "changed"))
        send(broker, "reload", "2")
        running.until_noted("changed 2")
        running.process.terminate()
        assert running.process.wait(PATIENCE_S) == ExitStatus.SUCCESS
