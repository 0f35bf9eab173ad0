"""`manage.py halfmq_prune` deletes what is over, in pages, and nothing else. The broker is asked for undecided transactions."""

import io
import time
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from halfmq import Client
from halfmq.django import pruning
from halfmq.django.models import Handled, Marker, OutboxMessage
from halfmq.sql.rules.outbox import Delivery
from halfmq.sql.rules.table_identity import RESERVED
from halfmq.testing import Broker

DAY_MS = 86_400_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def ago_ms(days: float) -> int:
    return time.time_ns() // 1_000_000 - round(days * DAY_MS)


def prune(*words: str) -> str:
    said = io.StringIO()
    call_command("halfmq_prune", *words, stdout=said)
    return said.getvalue()


def handled(*days: float) -> None:
    Handled.objects.bulk_create(
        Handled(consumer_group="billing", message_key=f"m{number}", handled_at_ms=ago_ms(one))
        for number, one in enumerate(days)
    )


def outbox(delivery: Delivery, days: float) -> None:
    OutboxMessage.objects.create(
        lane=1, delivery=delivery, outcome="C", order_key="", message_id=f"{delivery}{days}", tx_id="t", topic="orders",
        properties=b"", body=b"1", written_at_ms=ago_ms(days), attempts=0, due_at_ms=ago_ms(days), published_at_ms=0, reason="",
    )  # fmt: skip


def test_old_rows_of_the_inbox_go_and_a_dry_run_only_counts_them(using: str) -> None:
    handled(8, 8, 6)
    assert prune("--inbox", "7d", "--dry-run") == "2 rows of mq_inbox in default would be deleted\n"
    assert Handled.objects.count() == 3
    assert prune("--inbox", "7d") == "2 rows of mq_inbox in default deleted\n"
    assert [row.message_key for row in Handled.objects.all()] == ["m2"]


def test_the_inbox_goes_in_pages(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "PRUNE_ROWS_MAX", 2)
    handled(12, 11, 10, 9, 8, 1)
    pages = []
    while gone := pruning.KINDS["inbox"].delete_page(using, 7 * 86_400, list):
        pages.append(gone)
    assert pages == [2, 2, 1]
    assert Handled.objects.count() == 1


def test_only_messages_that_are_over_leave_the_outbox(using: str) -> None:
    for delivery in Delivery:
        outbox(delivery, 8)
    outbox(Delivery.PUBLISHED, 6)
    assert prune("--outbox", "7d", "--dry-run") == "2 rows of mq_outbox in default would be deleted\n"
    assert prune("--outbox", "7d") == "2 rows of mq_outbox in default deleted\n"
    left = set(OutboxMessage.objects.values_list("message_id", flat=True))
    assert left == {f"{one}8" for one in Delivery} - {"P8", "X8"} | {"P6"}


def test_the_marker_of_an_undecided_transaction_stays(using: str, broker: Broker) -> None:
    wanted = {"URL": broker.url, "GROUP": "shop"}
    with Client(broker.url, group="shop") as client:
        transaction = client.begin("order", topic="orders", checked_elsewhere=True)
        undecided = transaction.__enter__()
        undecided.send("an order")
        undecided.prepare()
        rows = [(undecided.id, 3), ("committed", 3), ("young", 1)]
        Marker.objects.bulk_create(Marker(tx_id=key, outcome="C", written_at_ms=ago_ms(age)) for key, age in rows)
        with override_settings(HALFMQ=wanted):
            assert prune("--markers", "2d", "--dry-run") == "1 rows of mq_tx in default would be deleted\n"
            assert prune("--markers", "2d") == "1 rows of mq_tx in default deleted\n"
        left = set(Marker.objects.exclude(tx_id__in=RESERVED).values_list("tx_id", flat=True))
        assert left == {undecided.id, "young"}
        transaction.__exit__(None, None, None)


def test_a_long_run_says_how_far_it_is(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from halfmq.django.management.commands import halfmq_prune

    monkeypatch.setattr(pruning, "PRUNE_ROWS_MAX", 1)
    monkeypatch.setattr(halfmq_prune, "_SAY_S", 0.0)
    handled(9, 8)
    assert prune("--inbox", "7d").splitlines() == [
        "1 rows of mq_inbox in default deleted by now",
        "2 rows of mq_inbox in default deleted by now",
        "2 rows of mq_inbox in default deleted",
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "name at least one age"),
        (("--markers", "59m"), "less than 3600 seconds"),
        (("--inbox", "soon"), "'soon' is not a time span"),
        (("--inbox", "7d", "--database", "elsewhere"), "has no 'elsewhere'"),
    ],
)
def test_a_mistake_deletes_nothing(using: str, words: tuple[str, ...], why: str) -> None:
    handled(1000)
    with pytest.raises(CommandError, match=why):
        prune(*words)
    assert Handled.objects.count() == 1
