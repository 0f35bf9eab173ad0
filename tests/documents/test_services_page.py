"""docs/services.md: its programs run with the commands that it shows."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from halfmq.cli.exit_status import ExitStatus
from tests.documents.blocks import blocks_of, in_test
from tests.documents.pages import Block
from tests.documents.shell import running as in_background
from tests.documents.shell import shell
from tests.support.asyncapi_schema import mistakes
from tests.support.ports import free_port
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("flask")
pytest.importorskip("gunicorn")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_ASYNCAPI: Final = "tests/documents/test_services_page.py::test_the_asyncapi_document_is_the_one_of_the_page"
_HERE: Final = "tests/documents/test_services_page.py::test_the_programs_run_as_the_page_shows"


def running(
    command: str, directory: Path, environment: dict[str, str]
) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    """A command of the page."""
    return in_background([sys.executable, "-m", *command.split()], directory, os.environ | environment)


def ask(port: int, path: str, method: str = "GET") -> int | None:
    """The status; None: nobody listens yet."""
    with suppress(OSError):
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
    return None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "DIR", tmp_path / "broker.log", "--durability", "memory")
    served.start()
    yield served
    served.stop()


def write_programs(blocks: Iterable[Block], directory: Path) -> None:
    for block in blocks:
        if block.language == "python":
            (directory / block.first.removeprefix("# ")).write_text(block.text)


def test_the_asyncapi_document_is_the_one_of_the_page(tmp_path: Path) -> None:
    command, printed, declares = blocks_of(_ASYNCAPI)
    write_programs([*blocks_of(_HERE), declares], tmp_path)
    assert shell(command.text, tmp_path).stdout == printed.text
    environment = {"HALFMQ_URL": "rocketmq://mq.example:9876"}
    found = json.loads(shell("halfmq asyncapi billing:app", tmp_path, environment=environment).stdout)
    assert mistakes(found) == []
    assert found["operations"]["send-bills"] == {
        "action": "send",
        "channel": {"$ref": "#/channels/bills"},
        "description": "Sent when the card was charged.",
        "messages": [{"$ref": "#/channels/bills/messages/Bill"}],
    }


def test_the_programs_run_as_the_page_shows(broker: Served, tmp_path: Path) -> None:
    shown = blocks_of(_HERE)
    write_programs(shown, tmp_path)
    export, work, orders, list_dead, asynchronous, *serving = [
        block.text.strip() for block in shown if block.language == "sh"
    ]
    variable, _, address = (
        in_test(export, f"127.0.0.1:{broker.name_port}", tmp_path).removeprefix("export ").partition("=")
    )
    environment = {variable: address}

    def said() -> str:
        return (tmp_path / "out").read_text()

    def until_billed(number: int, process: "subprocess.Popen[bytes]", times: int = 1) -> None:
        wait_until(lambda: said().count(f"order {number} is billed, attempt 1") == times, said, unless=process.poll)

    port = free_port()
    with running(work.replace("8081", str(port)), tmp_path, environment) as worker:
        wait_until(lambda: ask(port, "/readyz") == 200, said, unless=worker.poll)
        shell(orders, tmp_path, environment=environment)
        until_billed(1, worker)

        def dead() -> dict[str, Any]:
            found = json.loads(shell(list_dead, tmp_path, environment=environment).stdout)["letters"]
            return {letter["body"]: letter["reason"] for letter in found}

        wait_until(lambda: len(dead()) == 2, said, unless=worker.poll)
        assert dead() == {
            '{"id": 2, "card": "expired"}': "CardExpired: the card of order 2",
            '{"id": "three"}': "NotDecoded: its body into Order: ValidationError: Expected `int`, got `str` - at `$.id`",
        }
    assert worker.returncode == ExitStatus.SUCCESS, said()
    assert len(asynchronous.splitlines()) == 3
    for number, serve in enumerate(asynchronous.splitlines(), 11):
        port = free_port()
        with running(serve.replace("8000", str(port)), tmp_path, environment) as service:
            wait_until(lambda port=port: ask(port, "/ready") == 200, said, unless=service.poll)
            assert ask(port, f"/orders/{number}", "POST") == 200
            until_billed(number, service)
    # Of Flask, where the database assigns the id, which was that of a message before; and of an application without it.
    paths = (("POST", "/orders", 1, 2), ("GET", "/14", 14, 1))
    for serve, (method, path, number, times) in zip(serving, paths, strict=True):
        port = free_port()
        with (
            running(f"halfmq {work.partition(' --')[0].removeprefix('halfmq ')}", tmp_path, environment) as worker,
            running(serve.replace("8000", str(port)), tmp_path, environment) as service,
        ):
            wait_until(lambda: ask(port, path, method) == 200, said, unless=service.poll)  # noqa: B023 - called at once
            until_billed(number, worker, times)


def test_a_view_says_that_the_broker_is_away(tmp_path: Path) -> None:
    shown = blocks_of(_HERE)
    write_programs(shown, tmp_path)
    (serve,) = [block.text.strip() for block in shown if "web:web" in block.text]
    port = free_port()
    environment = {"HALFMQ_URL": f"rocketmq://127.0.0.1:{free_port()}"}
    with running(serve.replace("8000", str(port)), tmp_path, environment) as service:
        wait_until(lambda: ask(port, "/orders", "POST") is not None, (tmp_path / "out").read_text, unless=service.poll)
        assert ask(port, "/orders", "POST") == 503, (tmp_path / "out").read_text()
