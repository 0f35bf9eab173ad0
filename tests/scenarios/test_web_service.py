"""A real service under FastAPI and uvicorn: starts as documented, with or without a broker, and shows what fails in it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    """Not started."""
    served = Served(tmp_path / "data", tmp_path / "broker.log")
    try:
        yield served
    finally:
        served.stop()


class Service:
    def __init__(self, broker: Served, directory: Path, name: str) -> None:
        self.port = free_port()
        self.log = directory / f"{name}.log"
        environment = os.environ | {"HALFMQ_URL": broker.url, "HALFMQ_TEST_DATABASE": str(directory / "shop.db")}
        command = [sys.executable, "-m", "uvicorn", f"tests.support.web_service:{name}", "--port", str(self.port)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_until_it_answers(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(OSError):
                return bool(self.ask("/ready"))
            return False

        wait_until(answers, "the service", unless=lambda: self.process.poll() is not None and self.said)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()


@contextlib.contextmanager
def running(broker: Served, directory: Path, name: str) -> Iterator[Service]:
    service = Service(broker, directory, name)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def test_service_starts_as_documented_and_shows_a_handler_that_fails_once(broker: Served, tmp_path: Path) -> None:
    broker.start()
    with running(broker, tmp_path, "fastapi") as service:
        service.wait_until_it_answers()
        wait_until(
            lambda: service.ask("/ready")[0] == 200,
            "a service that is ready",
            unless=lambda: "Traceback" in service.said,
        )
        assert service.ask("/orders", "POST") == (200, {"id": 1})
        assert service.ask("/orders", "POST") == (200, {"id": 2})
        wait_until(lambda: '{"id":2}' in service.ask("/handled")[1], "the second order")
        assert service.stop() == 0
        assert service.said.count("ValueError: the first order cannot be billed") == 1
        assert service.said.count("processing of") == 1
        assert "Traceback" in service.said


def test_starlette_takes_the_lifespan_too(broker: Served, tmp_path: Path) -> None:
    broker.start()
    with running(broker, tmp_path, "starlette") as service:
        wait_until(
            lambda: "Application startup complete" in service.said, "the start", unless=lambda: service.process.poll()
        )
        assert service.stop() == 0


def test_service_starts_while_the_broker_is_down_and_is_ready_later(broker: Served, tmp_path: Path) -> None:
    with running(broker, tmp_path, "fastapi") as service:
        service.wait_until_it_answers()
        assert service.ask("/ready") == (503, '{"ready":false}')
        assert "no broker of" in service.said
        status, _ = service.ask("/orders", "POST")
        assert status == 500, "at once, since nothing could be sent"
        broker.start()
        wait_until(lambda: service.ask("/ready")[0] == 200, "a service that is ready")
        assert service.ask("/orders", "POST") == (200, {"id": 1})
        broker.kill()
        wait_until(lambda: service.ask("/ready")[0] == 503, "a service that knows that its broker is gone")
        broker.start()
        wait_until(lambda: service.ask("/ready")[0] == 200, "a service that is ready again")
        assert service.said.count("the service is ready") == 1
