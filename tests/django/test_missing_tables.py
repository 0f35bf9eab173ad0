"""A database without `manage.py migrate halfmq`: every use of a table says so, and a command refuses to start."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections, transaction

from halfmq.client.direct_delivery import Handling
from halfmq.django import consumer, consumers, send_on_commit
from halfmq.django.configuration import configuration
from halfmq.django.database import require_tables
from halfmq.django.markers import Markers
from halfmq.django.tables import TABLES
from halfmq.errors import MissingTable
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient


@pytest.fixture
def empty(using: str) -> str:
    """The alias of a database whose tables of halfmq are gone, as if they had never been there."""
    drop(using, *TABLES)
    return using


def drop(using: str, *tables: str) -> None:
    with connections[using].schema_editor() as editor:
        for table in tables:
            editor.execute(f"DROP TABLE {table}")


def atomic(using: str) -> None:
    with Markers(using).bind(MemoryClient(MemoryBroker()), True) as tx:
        tx.send("orders", 1)


def send(using: str) -> None:
    with transaction.atomic(using):
        send_on_commit("orders", 1, using=using)


def select(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT message_key FROM mq_inbox")


@pytest.mark.parametrize(
    ("use", "table"), [(atomic, "mq_tx"), (send, "mq_outbox"), (select, "mq_inbox")], ids=["atomic", "send", "select"]
)
def test_it_is_an_error_of_halfmq_that_says_what_creates_it(use: Callable[[str], None], table: str, empty: str) -> None:
    said = rf"^there is no table {table} in \w+://.* \(manage.py migrate halfmq --database {empty}\)$"
    with pytest.raises(MissingTable, match=said) as raised:
        use(empty)
    assert isinstance(raised.value.__cause__, DatabaseError)
    assert not connections[empty].in_atomic_block


@pytest.mark.parametrize("statement", ["SELECT * FROM shop_absent", "DROP TABLE mq_tx"])
def test_what_else_fails_is_the_databases_own_error(statement: str, empty: str) -> None:
    with pytest.raises(DatabaseError), connections[empty].cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.parametrize("table", ["mq_inbox", "mq_outbox"])
def test_a_handler_uses_up_no_attempt(table: str, using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_registered", [])
    drop(using, table)

    @consumer("orders", group="billing", retries=0)
    def bill(_message: Any) -> None:
        send_on_commit("billed", 1)

    app = consumers.app_of(configuration(), consumers.registered())
    delivered = asyncio.run(app.test.deliver("orders", 1))
    assert (delivered.outcome, delivered.delay_s) == (Handling.RETRIED, 5.0), "not dead, though it has no retries"
    assert isinstance(delivered.error, MissingTable)


@pytest.mark.parametrize(
    "words",
    [
        ("halfmq_worker", "--no-wait"),
        ("halfmq_checks",),
        ("halfmq_prune", "--inbox", "30d"),
        ("halfmq_relay", "--once"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_does_not_start(words: tuple[str, ...], empty: str) -> None:
    with pytest.raises(CommandError, match=rf"there is no table mq_.*manage.py migrate halfmq --database {empty}"):
        call_command(*words, stdout=io.StringIO())


def test_a_database_that_is_away_does_not_keep_a_worker_from_starting(
    using: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_cursor: object) -> list[str]:
        raise DatabaseError("no route to host")

    monkeypatch.setattr(connections[using].introspection, "table_names", away)
    require_tables([using])
    assert "cannot be asked for the tables of halfmq: no route to host" in caplog.text


def test_a_worker_needs_the_tables_of_its_inboxes() -> None:
    without = consumers.Registered(print, "orders", "billing", None, None, {})
    assert consumers.databases_of([without, without._replace(inbox=consumers.Inbox("other"))]) == ["other"]
