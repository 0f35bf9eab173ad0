"""Faults planted on purpose, each a bug that applications really have, so that the reconciliation is seen to fail.

missing     the order is committed without its messages: somebody forgot ``tx.send``, or sends after COMMIT and died
phantom     messages of a basket whose transaction rolled back: somebody sends before COMMIT
duplicate   the messages of an order once more, as new messages: a retry without an id
cent        one line of the order message is a cent more than the order's
"""

from enum import StrEnum

from sqlalchemy.orm import Session, sessionmaker

from demo import shop_db
from demo.data import Basket, Line, Source
from demo.messages import loyalty_message, order_message
from demo.run import LOYALTY_TOPIC, ORDERS_TOPIC, PRODUCER_GROUP, Run
from halfmq import Client


class Plant(StrEnum):
    MISSING = "missing"
    PHANTOM = "phantom"
    DUPLICATE = "duplicate"
    CENT = "cent"


#: These need a basket that no order service has touched.
NEED_HELD_OUT = (Plant.MISSING, Plant.CENT)


def choose_held_out(source: Source) -> int:
    """The number of the last basket that is a good order."""
    catalogue = set(shop_db.read_catalogue()["product_id"].to_pylist())
    for number in range(len(source) - 1, -1, -1):
        basket = source.basket(number)
        if basket.total_cents > 0 and all(line.product_id in catalogue for line in basket.lines):
            return number
    raise ValueError("no basket is a good order")


def plant(run: Run, what: Plant) -> str:
    """Do it, on the run's databases and broker. What was done, in words."""
    source = Source(run.path)
    engine = shop_db.connect(run.shop_db)
    try:
        with Client(run.url, group=PRODUCER_GROUP) as mq:
            return _PLANTS[what](run, source, sessionmaker(engine), mq)
    finally:
        engine.dispose()


def _missing(run: Run, source: Source, sessions: "sessionmaker[Session]", mq: Client) -> str:
    basket = source.basket(run.held_out)
    with sessions() as session:
        shop_db.add_order(session, basket)
        session.commit()
    return f"order {basket.basket_id} committed without messages"


def _phantom(run: Run, source: Source, sessions: "sessionmaker[Session]", mq: Client) -> str:
    with sessions() as session:
        rejected = set(session.scalars(shop_db.select(shop_db.rejections.c.basket_id)))
    basket = next(one for one in map(source.basket, range(len(source))) if one.basket_id in rejected)
    _send_plainly(mq, basket)
    return f"messages sent for basket {basket.basket_id}, which was rejected"


def _duplicate(run: Run, source: Source, sessions: "sessionmaker[Session]", mq: Client) -> str:
    with sessions() as session:
        placed = set(session.scalars(shop_db.select(shop_db.orders.c.basket_id)))
    basket = next(one for one in map(source.basket, range(len(source))) if one.basket_id in placed and one.points)
    _send_plainly(mq, basket)
    return f"messages of order {basket.basket_id} sent a second time"


def _cent(run: Run, source: Source, sessions: "sessionmaker[Session]", mq: Client) -> str:
    basket = source.basket(run.held_out)
    first = basket.lines[0]
    wrong = basket._replace(
        lines=[Line(first.product_id, first.quantity, first.sales_cents + 1, first.department), *basket.lines[1:]]
    )
    mq.answer_checks(shop_db.markers, sessions)
    with sessions() as session, mq.transaction(session, markers=shop_db.markers) as tx:
        shop_db.add_order(session, basket)
        tx.send(ORDERS_TOPIC, order_message(wrong), key=basket.basket_id)
        tx.send(LOYALTY_TOPIC, loyalty_message(basket), key=basket.basket_id)
    return f"order message {basket.basket_id} one cent too high"


def _send_plainly(mq: Client, basket: Basket) -> None:
    mq.send(ORDERS_TOPIC, order_message(basket), key=basket.basket_id)
    mq.send(LOYALTY_TOPIC, loyalty_message(basket), key=basket.basket_id)


_PLANTS = {Plant.MISSING: _missing, Plant.PHANTOM: _phantom, Plant.DUPLICATE: _duplicate, Plant.CENT: _cent}
