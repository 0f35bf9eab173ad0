# ruff: noqa: PT012, SIM117 - what raises is the end of a whole block
"""A message's effect is there once, however often the message comes."""

import threading
import time
from typing import NamedTuple

import pytest
from demo.postgres_server import PostgresServer
from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.orm import Session
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.conftest import AsyncShop, Place, Shop, claiming, shop_on

from halfmq.errors import UsageError
from halfmq.sql import Inbox


class Message(NamedTuple):
    message_id: str
    keys: tuple[str, ...] = ()


@pytest.fixture
def inbox(shop: Shop) -> Inbox:
    inbox = Inbox(shop.metadata)
    shop.metadata.create_all(shop.engine)
    return inbox


def effects(shop: Shop) -> int:
    with shop.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(shop.orders)) or 0


def handle(shop: Shop, inbox: Inbox, message: Message, group: str = "billing") -> bool:
    with shop.sessions()() as session, inbox.once(session, message, group=group) as first:
        if first:
            session.execute(insert(shop.orders).values(note=message.message_id))
    return first


def test_second_delivery_does_nothing(shop: Shop, inbox: Inbox) -> None:
    assert [handle(shop, inbox, Message("m1")) for _ in range(3)] == [True, False, False]
    assert effects(shop) == 1


def test_each_group_handles_it_once(shop: Shop, inbox: Inbox) -> None:
    assert handle(shop, inbox, Message("m1"), "billing")
    assert handle(shop, inbox, Message("m1"), "shipping")
    assert effects(shop) == 2


def test_failed_effect_takes_the_row_with_it_and_the_message_is_new_again(shop: Shop, inbox: Inbox) -> None:
    with pytest.raises(ZeroDivisionError), shop.sessions()() as session:
        with inbox.once(session, Message("m1"), group="billing"):
            session.execute(insert(shop.orders).values(note="x"))
            raise ZeroDivisionError
    assert effects(shop) == 0
    assert handle(shop, inbox, Message("m1"))


def test_keys_that_differ_in_case_are_two_messages(shop: Shop, inbox: Inbox) -> None:
    assert handle(shop, inbox, Message("AB"))
    assert handle(shop, inbox, Message("ab"))


def test_key_of_the_applications_choice(shop: Shop) -> None:
    inbox = Inbox(shop.metadata, table="by_key", key=lambda message: message.keys[0])
    shop.metadata.create_all(shop.engine)
    assert handle(shop, inbox, Message("m1", ("order-7",)))
    assert not handle(shop, inbox, Message("m2", ("order-7",)))


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_key_that_does_not_fit_is_refused(shop: Shop, inbox: Inbox, key: str) -> None:
    with pytest.raises(UsageError):
        handle(shop, inbox, Message(key))


def test_several_messages_in_one_transaction(shop: Shop, inbox: Inbox) -> None:
    with shop.sessions()() as session:
        firsts = [inbox.claim(session, Message(name), group="g") for name in ("a", "b", "a")]
        session.commit()
    assert firsts == [True, True, False]


def test_block_inside_a_savepoint_is_refused(shop: Shop, inbox: Inbox) -> None:
    with shop.sessions()() as session, session.begin_nested(), pytest.raises(UsageError, match="savepoint"):
        inbox.once(session, Message("m1"), group="g").__enter__()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_deliveries_at_the_same_time(shop: Shop, inbox: Inbox, place: Place, end: str) -> None:
    """The second waits for the first one's transaction; it is the duplicate only if that commits."""
    with shop.sessions()() as first:
        assert inbox.claim(first, Message("m1"), group="billing")
        answers: list[bool] = []
        second = threading.Thread(target=lambda: answers.append(handle(shop, inbox, Message("m1"))))
        with claiming(shop.engine):
            second.start()
        assert answers == []
        getattr(first, end)()
    second.join(PATIENCE_S)
    assert answers == [end == "rollback"]


def test_prune_takes_what_is_old(shop: Shop, inbox: Inbox) -> None:
    handle(shop, inbox, Message("m1"))
    with shop.sessions()() as session:
        assert inbox.prune(session, older_than_s=3_600) == 0
        assert inbox.prune(session, older_than_s=-1) == 1
        session.commit()
    assert handle(shop, inbox, Message("m1"))


def test_prune_counts_in_seconds(shop: Shop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    for message, minutes_ago in (("old", 61), ("kept", 59)):
        monkeypatch.setattr("halfmq.sql.inbox.time.time_ns", lambda ago=minutes_ago: now_ns - ago * 60_000_000_000)
        handle(shop, inbox, Message(message))
    monkeypatch.undo()
    with shop.sessions()() as session:
        assert inbox.prune(session, older_than_s=3_600) == 1
        session.commit()
    assert not handle(shop, inbox, Message("kept"))
    assert handle(shop, inbox, Message("old"))


async def test_async_block(async_shop: AsyncShop) -> None:
    shop = async_shop.shop
    inbox = Inbox(shop.metadata)
    async with async_shop.engine.begin() as connection:
        await connection.run_sync(shop.metadata.create_all)
    seen = []
    for _ in range(2):
        async with async_shop.sessions() as session, inbox.once(session, Message("m1"), group="g") as first:
            seen.append(first)
    with pytest.raises(ZeroDivisionError):
        async with async_shop.sessions() as session, inbox.once(session, Message("m2"), group="g"):
            raise ZeroDivisionError
    async with async_shop.sessions() as session, inbox.once(session, Message("m2"), group="g") as first:
        seen.append(first)
    assert seen == [True, False, True]


@pytest.mark.slow
@pytest.mark.postgres
def test_generic_way_for_other_databases(
    postgres_server: PostgresServer, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL and others: a savepoint and the unique key. Tried here on PostgreSQL under another name."""
    shop = shop_on(create_engine(postgres_server.url("psycopg", postgres_database)))
    inbox = Inbox(shop.metadata)
    shop.metadata.create_all(shop.engine)
    with Session(shop.engine) as session:
        session.connection()
        monkeypatch.setattr(shop.engine.dialect, "name", "other")
        assert inbox.claim(session, Message("m1"), group="g")
        assert not inbox.claim(session, Message("m1"), group="g")
        session.commit()
    shop.engine.dispose()
