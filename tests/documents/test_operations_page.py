"""docs/operations.md: each of its commands is run against a broker that has something to show, and prints what the page shows."""

import asyncio
import html
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from halfmq import App, Client, Message, Outcome, compose
from tests.documents import terminal_pictures
from tests.documents.blocks import blocks_of
from tests.documents.pages import commands, output, same
from tests.documents.shell import shell
from tests.support.served import Served

_HERE: Final = "tests/documents/test_operations_page.py::test_the_commands_print_what_the_page_shows"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def with_incidents(tmp_path: Path) -> Iterator[Served]:
    """A broker in ``tmp_path``. Group ``billing`` has given up one of three messages and left; ``T-17`` is undecided, and its producer
    answers UNKNOWN.
    """
    served = Served(tmp_path / "DIR", tmp_path / "broker.log", "--check-immunity-ms", "1")
    served.start()
    shell("halfmq topic create orders --queues 1", tmp_path, environment={"HALFMQ_URL": served.url})
    shell("halfmq group hold archive orders", tmp_path, environment={"HALFMQ_URL": served.url})
    asyncio.run(give_up(served.url))
    with Client(served.url, group="shop") as client:
        client.send("orders", "order 1002", key="1002")
        client.send("orders", "order 1003", key="1003")
        client.add_check("order.create", lambda check: Outcome.UNKNOWN)
        client.prepare([compose("orders", b"order 1004")], tx_id="T-17", name="order.create")
        yield served
    served.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with with_incidents(tmp_path) as served:
        yield served


def shown_by(command: str, broker: Served, directory: Path) -> str:
    """What the command of the page prints, on both streams."""
    environment = {"HALFMQ_URL": broker.url}
    if "kick 6" in command:
        listed = shell("halfmq client list --group shop --json", directory, environment=environment)
        (shop,) = json.loads(listed.stdout)["clients"]
        command = command.replace("kick 6", f"kick {shop['connection']}")
    return shell(f"{command} 2>&1", directory, environment=environment).stdout


async def give_up(url: str) -> None:
    app = App(url, group="shop")
    failed = asyncio.Event()

    @app.consumer("orders", group="billing", start="earliest", retries=0)
    async def bill(message: Message) -> None:
        failed.set()
        raise TimeoutError("no answer from the bank")

    async with app.run() as client:
        await client.send("orders", "order 1001", key="1001")
        await asyncio.wait_for(failed.wait(), 30)


def test_the_commands_print_what_the_page_shows(broker: Served, tmp_path: Path) -> None:
    ran = 0
    for block in blocks_of(_HERE):
        (command,) = commands(block)
        said = shown_by(command, broker, tmp_path)
        assert same(output(block), said), f"{block.place} shows\n{output(block)}\nand it is\n{said}"
        ran += 1
    assert ran >= 10


def test_pictures_show_the_commands_of_the_page() -> None:
    for name, (_, shown) in terminal_pictures.SHOWN.items():
        picture = (terminal_pictures.PICTURES / name).read_text()
        said = html.unescape(picture).replace("\xa0", " ")
        assert [command for command in terminal_pictures.commands_in(shown) if f"$ {command}" not in said] == [], name
        assert "url(" not in picture.replace("url(#", ""), "nothing is loaded from elsewhere"
