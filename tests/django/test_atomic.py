"""``mq.atomic``: rows and messages have one outcome, whatever is around the block. The broker's side is in memory, the databases are
real."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from halfmq.client.outcome import Outcome
from halfmq.django.markers import Markers
from halfmq.errors import OutcomeMixed, SendTimeout, UsageError
from halfmq.sql.rules.block import SqlTransaction
from halfmq.testing import crash
from tests.django.shop.models import Order
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

Atomic = Callable[..., AbstractContextManager[SqlTransaction]]


@pytest.fixture
def markers(using: str) -> Markers:
    return Markers(using, min_age_ms=0)


@pytest.fixture
def atomic(markers: Markers, client: MemoryClient) -> Atomic:
    def block(durable: bool = True) -> AbstractContextManager[SqlTransaction]:
        return markers.bind(client, durable)

    return block


def notes() -> list[str]:
    return sorted(Order.objects.values_list("note", flat=True))


def texts(broker: MemoryBroker) -> list[str]:
    return sorted(message.body.decode() for message in broker.visible())


def place(tx: SqlTransaction, note: str) -> None:
    Order.objects.create(note=note)
    tx.send("orders", note)


def settle(broker: MemoryBroker, markers: Markers) -> dict[str, Outcome]:
    """The broker checks, and a thread of the client answers, as in a process."""
    answers: dict[str, Outcome] = {}
    check = markers.checker(markers.using)

    def ask() -> None:
        for tx_id in broker.undecided():
            answers[tx_id] = check(broker.asked(tx_id))  # type: ignore[assignment]
            if answers[tx_id] is not Outcome.UNKNOWN:
                broker.settle(tx_id, "COMMITTED" if answers[tx_id] is Outcome.COMMIT else "ROLLED_BACK")

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return answers


def marker(tx_id: str) -> str | None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT outcome FROM mq_tx WHERE tx_id = %s", [tx_id])
        row = cursor.fetchone()
        return None if row is None else row[0]


def test_rows_and_messages_come_together(atomic: Atomic, broker: MemoryBroker) -> None:
    seen_before_commit = []
    broker.on_prepare = lambda _tx_id: seen_before_commit.append(texts(broker))
    with atomic() as tx:
        place(tx, "a")
        place(tx, "b")
    assert (notes(), texts(broker), seen_before_commit) == (["a", "b"], ["a", "b"], [[]])
    assert tx.receipt is not None
    assert marker(tx.id) == "C"


@pytest.mark.parametrize(("point", "kept"), [("before-local-commit", []), ("after-local-commit", ["a"])])
def test_after_a_crash_of_the_test_kit_only_the_check_decides(
    atomic: Atomic, broker: MemoryBroker, markers: Markers, point: str, kept: list[str]
) -> None:
    with crash(point), atomic() as tx:
        place(tx, "a")
    assert texts(broker) == []
    settle(broker, markers)
    assert (notes(), texts(broker)) == (kept, kept)


def test_an_exception_sends_nothing(atomic: Atomic, broker: MemoryBroker) -> None:
    with pytest.raises(ZeroDivisionError), atomic() as tx:
        place(tx, "a")
        1 / 0  # noqa: B018
    assert (notes(), broker.calls, marker(tx.id)) == ([], [], None)


def test_set_rollback_sends_nothing_and_is_said(atomic: Atomic, broker: MemoryBroker) -> None:
    with pytest.raises(UsageError, match="only rolls back"), atomic() as tx:
        place(tx, "a")
        transaction.set_rollback(True)
    assert (notes(), broker.calls) == ([], [])


def test_a_block_without_messages_leaves_no_marker(atomic: Atomic, broker: MemoryBroker) -> None:
    with atomic() as tx:
        Order.objects.create(note="a")
    assert (notes(), broker.calls, marker(tx.id)) == (["a"], [], None)


def test_the_message_of_a_savepoint_goes_with_it(atomic: Atomic, broker: MemoryBroker) -> None:
    with atomic() as tx:
        place(tx, "a")
        with pytest.raises(IntegrityError), transaction.atomic():
            tx.send("orders", "duplicate")
            Order.objects.create(note="a")
        with transaction.atomic():
            place(tx, "b")
    assert (notes(), texts(broker)) == (["a", "b"], ["a", "b"])


def test_the_broker_refuses_and_the_rows_roll_back(atomic: Atomic, broker: MemoryBroker) -> None:
    def refuse(_tx_id: str) -> None:
        raise SendTimeout("no answer")

    broker.on_prepare = refuse
    with pytest.raises(SendTimeout), atomic() as tx:
        place(tx, "a")
    assert (notes(), texts(broker)) == ([], [])


def test_a_lost_verdict_is_settled_by_the_check(atomic: Atomic, broker: MemoryBroker, markers: Markers) -> None:
    broker.end_error = SendTimeout("no answer")
    with atomic() as tx:
        place(tx, "a")
    assert tx.receipt is None
    broker.end_error = None
    assert settle(broker, markers) == {tx.id: Outcome.COMMIT}
    assert texts(broker) == notes() == ["a"]


def test_a_function_of_on_commit_that_raises_takes_no_message(atomic: Atomic, broker: MemoryBroker) -> None:
    def fail() -> None:
        assert texts(broker) == ["a"], "it runs after the verdict"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), atomic() as tx:
        transaction.on_commit(fail)
        place(tx, "a")
    assert texts(broker) == notes() == ["a"]


def test_a_contradicting_verdict_is_raised(atomic: Atomic, broker: MemoryBroker) -> None:
    broker.on_prepare = lambda tx_id: broker.settle(tx_id, "ROLLED_BACK") and None
    with pytest.raises(OutcomeMixed), atomic() as tx:
        place(tx, "a")
    assert (notes(), texts(broker)) == (["a"], [])


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_statement_that_ends_the_transaction_is_refused(atomic: Atomic, broker: MemoryBroker, statement: str) -> None:
    with pytest.raises(UsageError, match="would end its transaction"), atomic() as tx:
        place(tx, "a")
        with connections["default"].cursor() as cursor:
            cursor.execute(statement)
    assert (notes(), broker.calls) == ([], [])


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_an_end_that_nobody_saw_is_noticed(atomic: Atomic, broker: MemoryBroker, ending: str, using: str) -> None:
    with pytest.raises(UsageError, match="ended before its end"), atomic() as tx:
        place(tx, "a")
        driver = connections[using].connection
        getattr(driver, ending)()  # behind Django's back
        if connections[using].vendor == "sqlite":
            driver.execute("BEGIN")
        driver.cursor().execute("SELECT 1")
    assert broker.calls == []


def test_inside_another_atomic_it_is_refused_by_default(atomic: Atomic, broker: MemoryBroker) -> None:
    with transaction.atomic(), pytest.raises(UsageError, match="durable=False"), atomic():
        pytest.fail("entered")
    assert broker.calls == []


def test_within_an_outer_block_nothing_is_visible_before_that_commits(
    atomic: Atomic, broker: MemoryBroker, markers: Markers
) -> None:
    with transaction.atomic():
        Order.objects.create(note="outer")
        with atomic(durable=False) as tx:
            place(tx, "a")
        assert broker.calls == [("prepare", tx.id)]
        assert settle(broker, markers) == {tx.id: Outcome.UNKNOWN}, "it still runs"
        assert texts(broker) == []
    assert (notes(), texts(broker)) == (["a", "outer"], ["a"])


def test_an_outer_block_that_rolls_back_leaves_no_phantom(
    atomic: Atomic, broker: MemoryBroker, markers: Markers
) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        with atomic(durable=False) as tx:
            place(tx, "a")
        1 / 0  # noqa: B018
    assert settle(broker, markers) == {tx.id: Outcome.ROLLBACK}
    assert (notes(), texts(broker)) == ([], [])


def test_a_savepoint_around_it_that_rolls_back_leaves_no_phantom(
    atomic: Atomic, broker: MemoryBroker, markers: Markers
) -> None:
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with atomic(durable=False) as tx:
                place(tx, "a")
            1 / 0  # noqa: B018
        with atomic(durable=False) as second:
            place(second, "b")
    assert texts(broker) == notes() == ["b"]
    assert settle(broker, markers) == {tx.id: Outcome.ROLLBACK}
    assert texts(broker) == ["b"]


def test_an_outer_transaction_that_was_ended_by_a_statement_leaves_no_phantom(
    atomic: Atomic, broker: MemoryBroker, markers: Markers, using: str
) -> None:
    with pytest.raises(UsageError, match="with a row of halfmq in it"), transaction.atomic():
        with atomic(durable=False) as tx:
            place(tx, "a")
        with connections[using].cursor() as cursor:
            cursor.execute("ROLLBACK")
        Order.objects.create(note="later")
    assert (notes(), texts(broker)) == ([], [])
    assert settle(broker, markers) == {tx.id: Outcome.ROLLBACK}


def test_an_outer_transaction_whose_end_nobody_saw_leaves_no_phantom(
    atomic: Atomic, broker: MemoryBroker, markers: Markers, using: str
) -> None:
    """Django commits what follows, and calls the functions of on_commit: the verdict must not follow them."""
    with transaction.atomic():
        with atomic(durable=False) as tx:
            place(tx, "a")
        driver = connections[using].connection
        driver.rollback()
        driver.cursor().execute("BEGIN")
        Order.objects.create(note="later")
    assert (notes(), texts(broker)) == (["later"], [])
    assert settle(broker, markers) == {tx.id: Outcome.ROLLBACK}


def test_a_fence_that_came_first_fails_the_block(
    atomic: Atomic, broker: MemoryBroker, markers: Markers, using: str
) -> None:
    def die(_tx_id: str) -> None:
        raise KeyboardInterrupt

    broker.on_prepare = die
    with pytest.raises(KeyboardInterrupt), atomic() as tx:
        place(tx, "a")
    assert settle(broker, markers) == {tx.id: Outcome.ROLLBACK}
    assert marker(tx.id) == "R"
    with pytest.raises(IntegrityError), transaction.atomic():
        markers.rows.write(connections[using], tx.id)


def test_an_error_that_was_swallowed_is_said(atomic: Atomic, broker: MemoryBroker) -> None:
    with pytest.raises(UsageError, match="only rolls back"), atomic() as tx:
        place(tx, "a")
        with pytest.raises(IntegrityError):
            Order.objects.create(note="a")
    assert (notes(), broker.calls) == ([], [])


def test_the_application_may_use_the_connection_after_it(atomic: Atomic, using: str) -> None:
    connections[using].ensure_connection()
    before = [*connections[using].execute_wrappers]
    for note in "ab":
        with atomic() as tx:
            place(tx, note)
    assert connections[using].execute_wrappers == before
    Order.objects.create(note="c")
    assert notes() == ["a", "b", "c"]


def test_prune_deletes_old_markers_and_keeps_undecided_ones(atomic: Atomic, using: str, client: MemoryClient) -> None:
    now = [1_000_000_000_000]
    markers = Markers(using)
    markers.rows._now_ms = lambda: now[0]
    ids = []
    for note in "ab":
        with markers.bind(client, True) as tx:
            place(tx, note)
        ids.append(tx.id)
    now[0] += 10_000_000
    assert markers.rows.prune(older_than_s=3_600, undecided=lambda _ids: [ids[0]]) == 1
    assert (marker(ids[0]), marker(ids[1])) == ("C", None)
    assert markers.rows.prune(older_than_s=3_600, undecided=lambda _ids: [ids[0]]) == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_first_block_of_a_process_waits_for_the_commit_of_another_one(
    using: str, markers: Markers, atomic: Atomic, database: dict[str, Any]
) -> None:
    """Within an ``atomic``, as with ATOMIC_REQUESTS. On SQLite a transaction that has read before it writes would fail at once."""
    markers.rows.forget()
    other = sqlite3.connect(database["NAME"], isolation_level=None, timeout=PATIENCE_S, check_same_thread=False)
    committing = threading.Thread(target=other.execute, args=("COMMIT",))

    def when_a_row_is_written(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith("INSERT INTO mq_tx") and not committing.ident:
            other.execute("BEGIN IMMEDIATE")
            other.execute("INSERT INTO shop_order (note) VALUES ('theirs')")
            threading.Timer(0.2, committing.start).start()  # real time: while the block's INSERT waits
        return execute(sql, *rest)

    with transaction.atomic(using), connections[using].execute_wrapper(when_a_row_is_written):
        with atomic(durable=False) as tx:
            place(tx, "mine")
    committing.join()
    other.close()
    assert notes() == ["mine", "theirs"]
