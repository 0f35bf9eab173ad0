"""A message's effect is there once, however often the message comes."""

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import event, insert
from sqlalchemy.orm import Session
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.conftest import POSTGRES, SQLITE, Shop, claiming
from tests.unit.sql.faces import App, Message, Sorry, app

from halfmq.errors import UsageError
from halfmq.sql import Inbox

__all__ = ["app"]


def ordering(app: App, order_id: int) -> Callable[[Session], None]:
    """A handler with one effect."""
    return lambda session: session.add(app.order_type(order_id))


@pytest.fixture
def inbox(shop: Shop) -> Inbox:
    inbox = Inbox(shop.metadata)
    shop.metadata.create_all(shop.engine)
    return inbox


async def test_second_delivery_does_nothing(app: App) -> None:
    assert [await app.handle(Message("m1"), ordering(app, n)) for n in (1, 2, 3)] == [True, False, False]
    assert app.order_ids() == [1]


async def test_each_group_handles_it_once(app: App) -> None:
    assert await app.handle(Message("m1"), ordering(app, 1), group="billing")
    assert await app.handle(Message("m1"), ordering(app, 2), group="shipping")
    assert app.order_ids() == [1, 2]


async def test_keys_that_differ_in_spaces_at_their_end_are_handled_each(app: App) -> None:
    for number, key in enumerate(("k", "k ", "k  "), 1):
        assert await app.handle(Message(key), ordering(app, number))
        assert not await app.handle(Message(key), ordering(app, number))
    assert app.order_ids() == [1, 2, 3]


async def test_failed_effect_takes_the_row_with_it_and_the_message_is_new_again(app: App) -> None:
    def fail(session: Session) -> None:
        ordering(app, 1)(session)
        session.flush()
        raise Sorry

    with pytest.raises(Sorry):
        await app.handle(Message("m1"), fail)
    assert (app.order_ids(), app.handled()) == ([], 0)
    assert await app.handle(Message("m1"), ordering(app, 1))


async def test_exception_of_an_after_commit_hook_is_raised_as_it_is(app: App) -> None:
    def handle(session: Session) -> None:
        ordering(app, 1)(session)

        @event.listens_for(session, "after_commit")
        def _fail(_session: Session) -> None:
            raise Sorry

    with pytest.raises(Sorry):
        await app.handle(Message("m1"), handle)
    assert (app.order_ids(), app.handled()) == ([1], 1)
    assert not await app.handle(Message("m1"), ordering(app, 2))


async def test_keys_that_differ_in_case_are_two_messages(app: App) -> None:
    assert await app.handle(Message("AB"), ordering(app, 1))
    assert await app.handle(Message("ab"), ordering(app, 2))


async def test_several_messages_in_one_transaction(app: App) -> None:
    def scene(session: Session) -> list[bool]:
        firsts = [app.inbox.claim(session, Message(name), group="g") for name in ("a", "b", "a")]
        session.commit()
        return firsts

    assert await app.play(scene) == [True, True, False]
    assert app.handled() == 2


async def test_prune_takes_what_is_older_than_so_many_seconds(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def pruned(session: Session, older_than_s: float) -> int:
        count = app.inbox.prune(session, older_than_s=older_than_s)
        session.commit()
        return count

    now_ns = time.time_ns()
    for order_id, minutes_ago in ((1, 61), (2, 59)):
        monkeypatch.setattr(
            "halfmq.sql.alchemy.inbox.time.time_ns", lambda ago=minutes_ago: now_ns - ago * 60_000_000_000
        )
        await app.handle(Message(f"m{minutes_ago}"), ordering(app, order_id))
    monkeypatch.undo()
    assert await app.play(lambda session: pruned(session, 3_600)) == 1
    assert not await app.handle(Message("m59"), ordering(app, 3))
    assert await app.handle(Message("m61"), ordering(app, 4))
    assert await app.play(lambda session: pruned(session, 3_600)) == 0
    assert await app.play(lambda session: pruned(session, -1)) == 2
    assert await app.handle(Message("m59"), ordering(app, 5))


# --- what one face or database shows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_deliveries_at_the_same_time(shop: Shop, inbox: Inbox, end: str) -> None:
    """The second waits for the first one's transaction; it is the duplicate only if that commits."""
    answers: list[bool] = []

    def deliver() -> None:
        with shop.sessions()() as session, inbox.once(session, Message("m1"), group="g") as is_first:
            answers.append(is_first)

    with shop.sessions()() as first:
        assert inbox.claim(first, Message("m1"), group="g")
        second = threading.Thread(target=deliver)
        with claiming(shop.engine):
            second.start()
        assert answers == []
        getattr(first, end)()
    second.join(PATIENCE_S)
    assert answers == [end == "rollback"]


@SQLITE
def test_key_of_the_applications_choice(shop: Shop) -> None:
    inbox = Inbox(shop.metadata, table="by_key", key=lambda message: message.keys[0])
    shop.metadata.create_all(shop.engine)
    firsts = []
    for message in (Message("m1", ("order-7",)), Message("m2", ("order-7",))):
        with shop.sessions()() as session, inbox.once(session, message, group="g") as first:
            firsts.append(first)
    assert firsts == [True, False]


@SQLITE
def test_key_that_does_not_fit_and_session_in_a_savepoint_are_refused(shop: Shop, inbox: Inbox) -> None:
    for key in ("", "k" * 256):
        with shop.sessions()() as session, pytest.raises(UsageError, match="the inbox key"):
            inbox.once(session, Message(key), group="g").__enter__()
    with shop.sessions()() as session, session.begin_nested(), pytest.raises(UsageError, match="savepoint"):
        inbox.once(session, Message("m1"), group="g").__enter__()


@pytest.mark.parametrize("place", [POSTGRES], indirect=True)
def test_duplicate_on_another_database_does_not_abort_the_transaction(
    shop: Shop, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere the unique key answers, in a savepoint. Tried on PostgreSQL under another name: there an error aborts the transaction."""
    with shop.sessions()() as session:
        session.connection()
        monkeypatch.setattr(shop.engine.dialect, "name", "other")
        assert inbox.claim(session, Message("m1"), group="g")
        assert not inbox.claim(session, Message("m1"), group="g")
        session.execute(insert(shop.orders).values(id=1))
        session.commit()
    assert shop.order_ids() == [1]
