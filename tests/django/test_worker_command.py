"""`manage.py halfmq_worker` runs the consumers of a project: a real broker, real databases, and a worker that is killed."""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from halfmq import Client
from halfmq.django.models import Handled, OutboxMessage
from halfmq.testing import Broker
from tests.django.commands import Commands
from tests.django.shop.models import Order
from tests.support.ports import free_port
from tests.support.visible import visible
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(started: Broker) -> Broker:
    """A process of its own for each test would take seconds."""
    started.clear()
    return started


@pytest.fixture
def shop(using: str, database: dict[str, Any], broker: Broker, tmp_path: Path) -> Commands:
    files = {name: str(tmp_path / name) for name in ("SHOP_KILLED", "SHOP_BEGUN", "SHOP_GOES_ON")}
    return Commands({using: database}, broker.url, tmp_path / "worker.log", **files)


def send(broker: Broker, topic: str, *notes: str) -> None:
    with Client(broker.url) as client:
        for note in notes:
            client.send(topic, note, sharding_key="one customer")


def billed() -> list[str]:
    return [note.partition(" ")[0] for note in Order.objects.order_by("id").values_list("note", flat=True)]


def test_a_worker_that_is_killed_between_commit_and_acknowledgement_has_handled_it_once(
    shop: Commands, broker: Broker
) -> None:
    send(broker, "to-bill", "before", "kills", "after")
    with shop.running("halfmq_worker", "--group", "billing", ready="group billing consumes to-bill") as worker:
        assert worker.wait(PATIENCE_S) == -signal.SIGKILL
    assert billed() == ["before", "kills"]
    with shop.running("halfmq_worker", "--group", "billing", ready="group billing consumes to-bill"):
        # In the order of their key, so that the one that was delivered again is over when the last one is.
        wait_until(lambda: "after" in billed(), "the last message")
    assert billed() == ["before", "kills", "after"]
    assert Handled.objects.count() == 3
    assert shop.run("halfmq_relay", "--once").returncode == 0
    assert sorted(body.decode() for body in visible(broker, "billed")) == ["after", "before", "kills"]


def test_what_fails_for_good_is_compensated_in_a_transaction_of_its_own(shop: Commands, broker: Broker) -> None:
    send(broker, "to-bill", "refused")
    with shop.running("halfmq_worker", "--group", "billing", ready="group billing consumes to-bill"):
        wait_until(lambda: OutboxMessage.objects.exists(), "a compensating message")
    assert list(OutboxMessage.objects.values_list("topic", flat=True)) == ["not-billed"]
    assert billed() == []


def test_a_signal_lets_a_running_handler_finish(shop: Commands, broker: Broker, tmp_path: Path) -> None:
    send(broker, "to-stock", "slow")
    port = free_port()
    with shop.running("halfmq_worker", "--health-port", str(port), ready="group stock consumes to-stock") as worker:
        wait_until((tmp_path / "SHOP_BEGUN").exists, "a running handler")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as response:
            assert response.status == 200
        worker.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping: running handlers have 30 s to finish" in shop.logged(), "the end")
        assert not Handled.objects.exists()
        (tmp_path / "SHOP_GOES_ON").touch()
        assert worker.wait(PATIENCE_S) == 0
    assert list(Order.objects.values_list("note", flat=True)) == ["begun slow"]
    assert Handled.objects.get().consumer_group == "stock"


_PROJECT = {
    "settings.py": """
INSTALLED_APPS = ["halfmq.django", "shop"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}}}
HALFMQ = {{"URL": {url!r}, "GROUP": "shop"}}
""",
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
""",
    "shop/__init__.py": "",
    "shop/consumers.py": """
from halfmq import django as mq

@mq.consumer("to-note", group="notes", inbox=False)
def note(text: str) -> None:
    with open("noted", "a") as noted:
        noted.write("as before " + text)
""",
}


def test_a_change_starts_it_again(broker: Broker, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "shop").mkdir(parents=True)
    for name, text in _PROJECT.items():
        (project / name).write_text(text.format(url=broker.url) if name == "settings.py" else text)
    noted, consumers, log = project / "noted", project / "shop" / "consumers.py", tmp_path / "log"
    send(broker, "to-note", "1")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "halfmq_worker", "--reload"], cwd=project, stdout=output, stderr=output
        )
    try:
        wait_until(lambda: noted.exists() and noted.read_text() == "as before 1", str(log), unless=process.poll)
        consumers.write_text("an error of syntax")
        wait_until(lambda: "it starts again when a file changes" in log.read_text(), str(log), unless=process.poll)
        consumers.write_text(_PROJECT["shop/consumers.py"].replace("as before", ", changed"))
        send(broker, "to-note", "2")
        wait_until(lambda: noted.read_text() == "as before 1, changed 2", str(log), unless=process.poll)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_a_group_that_nobody_registered_is_refused() -> None:
    with pytest.raises(CommandError, match="no consumers of nobody") as refused:
        call_command("halfmq_worker", "--group", "nobody")
    assert refused.value.returncode == 2
