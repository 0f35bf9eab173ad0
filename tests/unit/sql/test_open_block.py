"""Who would commit a session inside its ``mq.transaction`` block is refused before anything is written."""

import gc
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tests.unit.sql.faces import App, Message, Sorry, agree, app, place

from halfmq.errors import UsageError
from halfmq.sql.alchemy.transaction_guard import enter, leave, refuse_nested

__all__ = ["app"]


async def test_block_inside_a_block_is_refused_and_the_outer_one_goes_on(app: App) -> None:
    def scene(session: Session) -> None:
        with app.block(session) as tx:
            place(app, session, tx, 1)
            with pytest.raises(UsageError, match=r"inside an mq\.transaction block"), app.block(session):
                raise AssertionError("not reached")
            assert agree(app) == []
        assert agree(app) == [1]
        with app.block(session) as tx:
            place(app, session, tx, 2)

    await app.play(scene)
    assert agree(app) == [1, 2]


async def test_inbox_inside_a_block_is_refused_and_nothing_is_committed(app: App) -> None:
    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        with app.once(session, Message("m1")):
            raise AssertionError("not reached")

    with pytest.raises(UsageError, match=r"(?s)inside an mq\.transaction block.*Inbox\.claim inside"):
        await app.run(body)
    assert (agree(app), app.handled(), app.broker.calls) == ([], 0, [])


async def test_block_inside_the_inbox_and_claim_inside_the_block_work(app: App) -> None:
    def scene(session: Session) -> list[bool]:
        with app.once(session, Message("m1")) as first, app.block(session) as tx:
            place(app, session, tx, 1)
            assert app.inbox.claim(session, Message("m2"), group="g")
        firsts = [first]
        for message in ("m1", "m2"):
            with app.once(session, Message(message)) as again:
                firsts.append(again)
        return firsts

    assert await app.play(scene) == [True, False, False]
    assert (agree(app), app.handled()) == ([1], 2)


async def test_session_of_a_failed_block_is_free_again(app: App) -> None:
    def scene(session: Session) -> bool:
        with pytest.raises(Sorry), app.block(session):
            raise Sorry
        with app.once(session, Message("m1")) as first:
            return first

    assert await app.play(scene)


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
