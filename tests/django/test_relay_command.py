"""`manage.py halfmq_relay` publishes what ``send_on_commit`` has written, by the settings of the project: a real broker, real databases."""

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from halfmq.django import send_on_commit
from halfmq.django.models import OutboxMessage
from tests.django.commands import Commands
from tests.django.shop.models import Order
from tests.support.ports import free_port
from tests.support.served import Served
from tests.support.visible import visible
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("relay")
    served = Served(work / "data", work / "broker.log", "--durability", "memory")
    served.start()
    yield served
    served.stop()


@pytest.fixture
def shop(using: str, database: dict[str, Any], broker: Served, tmp_path: Path) -> Commands:
    return Commands({using: database}, broker.url, tmp_path / "relay.log")


def place(topic: str, *notes: str) -> None:
    for note in notes:
        with transaction.atomic():
            Order.objects.create(note=note)
            send_on_commit(topic, note, sharding_key="one customer")


def texts(broker: Served, topic: str) -> list[str]:
    return [body.decode() for body in visible(broker, topic)]


def test_once_publishes_what_is_committed_in_order_and_exits(shop: Commands, broker: Served, tmp_path: Path) -> None:
    topic = f"once-{os.path.basename(tmp_path)}"
    place(topic, "1", "2", "3")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        send_on_commit(topic, "never")
        1 / 0  # noqa: B018
    done = shop.run("halfmq_relay", "--once")
    assert done.returncode == 0, done.stderr
    assert texts(broker, topic) == ["1", "2", "3"]
    assert not OutboxMessage.objects.exists()
    assert "3 published, 0 waiting" in done.stderr


def test_a_running_relay_publishes_what_comes_and_ends_by_a_signal(
    shop: Commands, broker: Served, tmp_path: Path
) -> None:
    topic = f"running-{os.path.basename(tmp_path)}"
    port = free_port()
    with shop.running("halfmq_relay", "--http-port", str(port), "--archive", ready=f"127.0.0.1:{port}/metrics"):
        place(topic, "a", "b")
        wait_until(lambda: texts(broker, topic) == ["a", "b"], "both messages")
        wait_until(lambda: set(OutboxMessage.objects.values_list("delivery", flat=True)) == {"P"}, "kept rows")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            assert b"halfmq_relay_published_messages_total{" in response.read()


def test_a_message_that_the_broker_rejects_is_set_aside_and_the_status_says_so(shop: Commands) -> None:
    place("TBW102", "refused")  # of the broker itself: nobody may send to it
    done = shop.run("halfmq_relay", "--once", "--attempts", "1")
    row = OutboxMessage.objects.get()
    assert (row.delivery, row.attempts) == ("A", 1), (row.reason, done.stderr)
    assert done.returncode == 4
    assert "set aside" in done.stderr


def test_an_alias_that_the_setting_does_not_name_is_refused() -> None:
    with pytest.raises(CommandError, match="has no 'elsewhere'") as refused:
        call_command("halfmq_relay", "--once", "--database", "elsewhere")
    assert refused.value.returncode == 2
