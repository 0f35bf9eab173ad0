"""A transaction of Django that has ended before its first row of halfmq: that row is refused, so that no message is without its rows."""

import threading
from collections.abc import Callable

import pytest
from django.db import Error as AnyError
from django.db import IntegrityError, connections, transaction
from django.db.models import Value
from django.db.models.functions import Concat

from halfmq import django as mq
from halfmq.django.inbox import Inbox
from halfmq.django.models import InboxMessage, OutboxMessage
from halfmq.django.transaction_end import watch_all
from halfmq.errors import UsageError
from tests.django.conftest import MARIADB, POSTGRES
from tests.django.shop.models import Order
from tests.django.test_atomic import Atomic, atomic, markers
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.memory_broker import MemoryBroker

__all__ = ["atomic", "markers"]


def run(statement: str) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(statement)


def text_rolls_back() -> None:
    run("/* done */ ROLLBACK")


def text_commits() -> None:
    run("COMMIT")


def driver_rolls_back() -> None:
    connections["default"].connection.rollback()


def insert_or_rollback() -> None:
    with pytest.raises(IntegrityError):
        run("INSERT OR ROLLBACK INTO shop_order (id, note) VALUES (-1, 'a'), (-1, 'b')")


def table_is_created() -> None:
    run("CREATE TABLE other (id INTEGER)")


def deadlock() -> None:
    """The other transaction has changed more rows, so this one is rolled back."""
    holds, changed = threading.Event(), Concat("note", Value("!"))

    def other() -> None:
        with transaction.atomic():
            Order.objects.exclude(note__in=["left", "mine False"]).update(note=changed)
            holds.set()
            Order.objects.filter(pk=left.pk).update(note=changed)
            transaction.set_rollback(True)
        connections["default"].close()

    left, right = Order.objects.get(note="left"), Order.objects.get(note="right")
    Order.objects.filter(pk=left.pk).update(note=changed)
    thread = threading.Thread(target=other)
    thread.start()
    assert holds.wait(PATIENCE_S)
    with pytest.raises(AnyError, match="1213"):
        run(f"UPDATE shop_order SET note = 'theirs' WHERE id = {right.pk}")  # the ORM would refuse all that follows
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def script_rolls_back() -> None:
    run("UPDATE shop_order SET note = note; ROLLBACK")


def procedure_rolls_back() -> None:
    run("EXECUTE IMMEDIATE 'ROLLBACK'")


CASES = [
    pytest.param(kind, case, id=f"{kind}-{case.__name__}", marks=marks)
    for kind, marks, cases in (
        ("sqlite", (), (text_rolls_back, text_commits, driver_rolls_back, insert_or_rollback)),
        ("postgres", POSTGRES.marks, (text_rolls_back, text_commits, script_rolls_back)),
        ("mariadb", MARIADB.marks, (text_rolls_back, text_commits, table_is_created, procedure_rolls_back, deadlock)),
    )
    for case in cases
]


def by_outbox(atomic: Atomic) -> None:
    mq.send_on_commit("t", b"x")


def by_block(atomic: Atomic) -> None:
    with atomic(durable=False) as tx:
        tx.send("t", b"x")


def by_inbox(atomic: Atomic) -> None:
    Inbox("default")._claim(connections["default"], ["g", "m"])


@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "goes on"])
@pytest.mark.parametrize("writer", [by_outbox, by_block, by_inbox], ids=lambda writer: writer.__name__)
@pytest.mark.parametrize(("database", "case"), CASES, indirect=["database"])
def test_row_of_halfmq_is_refused_where_the_transaction_has_ended_before_it(
    atomic: Atomic, broker: MemoryBroker, case: Callable[[], None], writer: Callable[[Atomic], None], goes_on: bool
) -> None:
    for note in ("left", "right", *map(str, range(50))):
        Order.objects.create(note=note)

    @transaction.atomic
    def request(is_fine: bool) -> None:
        Order.objects.create(note=f"mine {is_fine}")
        if not is_fine:
            case()
        if goes_on:
            with pytest.raises(ZeroDivisionError), transaction.atomic():  # its savepoint takes back nothing of that
                1 / 0  # noqa: B018
            Order.objects.create(note=f"later {is_fine}")
        writer(atomic)

    with pytest.raises(UsageError, match="has ended the database transaction"):
        request(is_fine=False)
    assert (broker.calls, OutboxMessage.objects.count(), InboxMessage.objects.count()) == ([], 0, 0)
    request(is_fine=True)  # the next transaction is as any other
    written = len(broker.calls) // 2 + OutboxMessage.objects.count() + InboxMessage.objects.count()
    assert written == 1


@pytest.mark.parametrize(("database", "case"), CASES, indirect=["database"])
def test_what_follows_a_row_of_halfmq_is_not_committed_without_it(atomic: Atomic, case: Callable[[], None]) -> None:
    for note in ("left", "right", *map(str, range(50))):
        Order.objects.create(note=note)

    def request() -> None:
        Order.objects.create(note="mine False")
        mq.send_on_commit("t", b"x")
        case()
        Order.objects.create(note="later")

    with pytest.raises(UsageError, match="with a row of halfmq in it"), transaction.atomic():
        request()
    assert not Order.objects.filter(note="later").exists()
    assert OutboxMessage.objects.count() == Order.objects.filter(note="mine False").count()


def test_a_duplicate_that_comes_first_is_the_application_s_affair(atomic: Atomic) -> None:
    Order.objects.create(note="a")

    def again() -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            Order.objects.create(note="a")

    for attempt in range(2):  # the second follows a transaction that has ended with a savepoint
        with transaction.atomic():
            again()
            mq.send_on_commit("t", b"x")
            again()
        assert OutboxMessage.objects.count() == attempt + 1


@pytest.mark.parametrize("database", [POSTGRES, MARIADB], indirect=True)
def test_a_statement_may_be_bytes_where_the_driver_takes_them(atomic: Atomic) -> None:
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute(b"SELECT 1")
        assert cursor.fetchone() == (1,)


def test_an_error_in_a_savepoint_is_the_application_s_affair(atomic: Atomic, broker: MemoryBroker) -> None:
    with transaction.atomic():
        order = Order.objects.create(note="a")
        with pytest.raises(IntegrityError), transaction.atomic():
            Order.objects.create(pk=order.pk, note="again")
        mq.send_on_commit("t", b"x")
    assert (Order.objects.count(), OutboxMessage.objects.count()) == (1, 1)


def test_a_connection_that_was_open_before_the_application_is_watched(atomic: Atomic) -> None:
    """As one that another application's ``ready`` has used."""
    connections["default"].ensure_connection()
    connections["default"].execute_wrappers.clear()
    watch_all()
    with pytest.raises(UsageError, match="has ended the database transaction"), transaction.atomic():
        Order.objects.create(note="a")
        text_rolls_back()
        mq.send_on_commit("t", b"x")


def test_an_error_leaves_a_block_also_where_autocommit_is_off(atomic: Atomic) -> None:
    transaction.set_autocommit(False)
    try:
        Order.objects.create(note="a")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            1 / 0  # noqa: B018
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert not Order.objects.exists()
