import asyncio

import pytest
from billing import Invoice, Order
from sqlalchemy import select

from halfmq.testing import HANDLER_POINTS, Handling, crash


def billed(app):
    with app.sessions() as session:
        return [*session.scalars(select(Invoice.order_id).order_by(Invoice.order_id))]


async def test_an_order_that_comes_twice_is_billed_once(app):
    first = await app.test.deliver("orders", Order(7, "tea"))
    second = await app.test.redeliver(first)
    assert (first.outcome, second.outcome, billed(app)) == (Handling.HANDLED, Handling.DUPLICATE, [7])


async def test_what_has_no_price_is_a_dead_letter_at_once(app):
    done = await app.test.deliver("orders", Order(7, "gold"))
    assert (done.outcome, billed(app)) == (Handling.DEAD, [])


@pytest.mark.parametrize("point", HANDLER_POINTS)
async def test_every_order_is_billed_once_after_a_crash(app, halfmq_client, point):
    await asyncio.to_thread(halfmq_client.send, "orders", Order(7, "tea"))
    async with crash(point), app.run():
        await asyncio.Event().wait()
    await asyncio.to_thread(halfmq_client.send, "orders", Order(8, "milk"))
    async with app.run(), asyncio.timeout(60):
        while billed(app) != [7, 8]:
            await asyncio.sleep(0.01)
