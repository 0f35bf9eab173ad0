# ruff: noqa: PT012, SIM117 - what is refused is a whole block
"""Who would commit a session inside its ``mq.transaction`` block is refused before anything is written."""

import gc
from typing import NamedTuple

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session
from tests.unit.sql.conftest import AsyncShop, Shop
from tests.unit.sql.memory_broker import AsyncMemoryClient, MemoryBroker, MemoryClient
from tests.unit.sql.test_transaction import orders_in, place_order, topics

from halfmq.errors import UsageError
from halfmq.sql import Inbox
from halfmq.sql.open_block import enter, leave, refuse_nested


class Message(NamedTuple):
    message_id: str


@pytest.fixture
def inbox(shop: Shop) -> Inbox:
    inbox = Inbox(shop.metadata)
    shop.metadata.create_all(shop.engine)
    return inbox


def test_block_inside_a_block_is_refused_and_the_outer_one_goes_on(
    shop: Shop, client: MemoryClient, broker: MemoryBroker
) -> None:
    with shop.sessions()() as session:
        with shop.log.bind(client, session) as tx:
            place_order(session, shop, 1)
            tx.send("outer", b"x")
            with pytest.raises(UsageError, match=r"inside an mq\.transaction block"):
                with shop.log.bind(client, session) as inner:
                    inner.send("inner", b"y")
            assert (orders_in(shop), topics(broker)) == (0, [])
        assert (orders_in(shop), topics(broker)) == (1, ["outer"])
        with shop.log.bind(client, session) as tx:
            tx.send("next", b"z")
    assert topics(broker) == ["outer", "next"]


def test_inbox_inside_a_block_is_refused_and_nothing_is_committed(
    shop: Shop, client: MemoryClient, broker: MemoryBroker, inbox: Inbox
) -> None:
    with shop.sessions()() as session:
        with pytest.raises(UsageError, match=r"Inbox\.claim inside"):
            with shop.log.bind(client, session) as tx:
                place_order(session, shop, 1)
                tx.send("orders", b"x")
                with inbox.once(session, Message("m1"), group="billing"):
                    place_order(session, shop, 2)
    assert (orders_in(shop), topics(broker)) == (0, [])


def test_block_inside_the_inbox_and_claim_inside_the_block_work(
    shop: Shop, client: MemoryClient, broker: MemoryBroker, inbox: Inbox
) -> None:
    with shop.sessions()() as session:
        with inbox.once(session, Message("m1"), group="billing") as first:
            with shop.log.bind(client, session) as tx:
                place_order(session, shop, 1)
                assert inbox.claim(session, Message("m2"), group="billing")
                tx.send("orders", b"x")
        for message in ("m1", "m2"):
            with inbox.once(session, Message(message), group="billing") as again:
                assert not again
    assert first
    assert (orders_in(shop), topics(broker)) == (1, ["orders"])


def test_session_of_a_failed_block_is_free_again(shop: Shop, client: MemoryClient, inbox: Inbox) -> None:
    with shop.sessions()() as session:
        with pytest.raises(KeyError), shop.log.bind(client, session):
            raise KeyError
        with inbox.once(session, Message("m1"), group="billing") as first:
            assert first


async def test_async_block_and_inbox_inside_a_block_are_refused(
    async_shop: AsyncShop, async_client: AsyncMemoryClient, broker: MemoryBroker
) -> None:
    shop = async_shop.shop
    inbox = Inbox(shop.metadata)
    async with async_shop.engine.begin() as connection:
        await connection.run_sync(shop.metadata.create_all)
    for nested in (
        lambda session: shop.log.bind_async(async_client, session),
        lambda session: inbox.once(session, Message("m1"), group="billing"),
    ):
        with pytest.raises(UsageError, match=r"inside an mq\.transaction block"):
            async with async_shop.sessions() as session, shop.log.bind_async(async_client, session) as tx:
                await session.execute(insert(shop.orders).values(id=1))
                tx.send("orders", b"x")
                async with nested(session):
                    raise AssertionError("not reached")
    async with async_shop.engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(shop.orders)) == 0
    assert broker.calls == []


def test_block_that_was_never_left_holds_nothing() -> None:
    class Owner: ...

    session, owner = Session(), Owner()
    enter(session, owner)
    leave(session, Owner())
    with pytest.raises(UsageError, match="do this"):
        refuse_nested(session, "do this")
    del owner
    gc.collect()
    refuse_nested(session, "do this")
