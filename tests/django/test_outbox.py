"""``mq.send_on_commit``: the row of a message is committed with the rows of its transaction, and is what ``halfmq.sql`` writes."""

import unittest
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import TestCase, override_settings
from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import Session

from halfmq.django import send_on_commit
from halfmq.django.models import OutboxMessage
from halfmq.errors import InvalidName, UsageError
from halfmq.sql import Outbox
from tests.django.conftest import POSTGRES
from tests.django.shop.models import Order

OPTIONS: dict[str, Any] = {
    "tag": "web", "key": 7, "keys": ["a"], "sharding_key": "customer 1", "delay": 60, "properties": {"shop": "north"},
}  # fmt: skip


def topics() -> list[str]:
    return list(OutboxMessage.objects.order_by("seq").values_list("topic", flat=True))


def test_a_message_comes_and_goes_with_its_transaction(using: str) -> None:
    with transaction.atomic():
        Order.objects.create(note="kept")
        send_on_commit("kept", {"id": 1})
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        send_on_commit("lost", {"id": 2})
        1 / 0  # noqa: B018
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            send_on_commit("lost-with-its-savepoint", {"id": 3})
            1 / 0  # noqa: B018
        send_on_commit("after-it", {"id": 4})
    assert topics() == ["kept", "after-it"]


def test_messages_of_one_transaction_have_its_id(using: str) -> None:
    for _ in range(2):
        with transaction.atomic():
            for topic in ("a", "b"):
                send_on_commit(topic, "1")
    ids = list(OutboxMessage.objects.order_by("seq").values_list("tx_id", flat=True))
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_outside_of_atomic_it_is_refused(using: str) -> None:
    with pytest.raises(UsageError, match="outside of a transaction"):
        send_on_commit("orders", {"id": 1})
    assert topics() == []


def test_in_a_transaction_without_atomic_it_is_taken(using: str) -> None:
    transaction.set_autocommit(False)
    try:
        send_on_commit("orders", {"id": 1})
        transaction.rollback()
        assert topics() == []
        send_on_commit("orders", {"id": 2})
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert topics() == ["orders"]


class InATestCase(TestCase):
    __test__ = False  # run below, on a database of its own

    def runTest(self) -> None:  # noqa: N802 - unittest's name
        with pytest.raises(UsageError, match="outside of a transaction"):
            send_on_commit("orders", "forgotten")
        with transaction.atomic():
            send_on_commit("orders", "a")
        assert topics() == ["orders"]


def test_a_test_case_is_not_taken_for_a_transaction(using: str) -> None:
    result = unittest.TestResult()
    unittest.TestSuite([InATestCase()]).run(result)
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]
    assert result.testsRun == 1


def test_a_wrong_argument_writes_nothing(using: str) -> None:
    with transaction.atomic():
        with pytest.raises(InvalidName):
            send_on_commit("no topic", "1")
        with pytest.raises(UsageError, match="NUL"):
            send_on_commit("orders", "1", sharding_key="a\0")
        with pytest.raises(UsageError, match="sharding_key '' is empty"):
            send_on_commit("orders", "1", sharding_key="")
    assert topics() == []


def test_a_database_whose_outbox_nobody_relays_is_refused(using: str) -> None:
    wanted = {"URL": "rocketmq://127.0.0.1:1", "GROUP": "shop", "DATABASES": ["other"]}
    with (
        override_settings(HALFMQ=wanted),
        transaction.atomic(),
        pytest.raises(UsageError, match="no relay publishes the outbox of database 'default'"),
    ):
        send_on_commit("orders", "1")


@pytest.fixture
def by_sqlalchemy() -> dict[str, Any]:
    """The row that ``halfmq.sql`` writes of the same message."""
    engine = create_engine("sqlite://")
    outbox = Outbox(metadata := MetaData())
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.send(session, "orders", {"id": 7}, **OPTIONS)
        session.flush()
        row = dict(session.connection().execute(outbox.table.select()).mappings().one())
    engine.dispose()
    return row


def test_the_row_is_the_one_of_sqlalchemy(using: str, by_sqlalchemy: dict[str, Any]) -> None:
    with transaction.atomic():
        message_id = send_on_commit("orders", {"id": 7}, **OPTIONS)
    row = OutboxMessage.objects.values().get()
    assert row["message_id"] == message_id
    assert len(message_id) == len(by_sqlalchemy["message_id"])
    assert row["due_at_ms"] - row["written_at_ms"] == 60_000
    different = {"message_id", "tx_id", "written_at_ms", "due_at_ms"}
    same = {name: bytes(value) if isinstance(value, memoryview) else value for name, value in row.items()}
    assert {k: v for k, v in same.items() if k not in different} == {
        k: v for k, v in by_sqlalchemy.items() if k not in different
    }


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_postgresql_wakes_the_relays_at_commit(using: str) -> None:
    listener: Any = connections[using].copy()
    listener.connect()
    try:
        listener.connection.execute("LISTEN mq_outbox")
        with transaction.atomic():
            send_on_commit("orders", "1")
            assert [*listener.connection.notifies(timeout=0)] == []
        assert [one.channel for one in listener.connection.notifies(timeout=60, stop_after=1)] == ["mq_outbox"]
    finally:
        listener.close()
