"""Tries, confirms and cancels of a branch have their effect once, and none out of order, on each database and face."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_session
from sqlalchemy.orm import Session
from tests.support.waiting import PATIENCE_S
from tests.unit.sql.conftest import SQLITE, Shop, claiming
from tests.unit.sql.faces import App, Sorry, _Plain, app
from tests.unit.sql.rules.test_barrier import Call

from halfmq.errors import BranchConflict, LateTry, UnsupportedCombination, UsageError
from halfmq.sql import Barrier

__all__ = ["app"]


class Participant:
    """The application with a barrier. The effect of a call is an order with the number of the call."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.barrier = Barrier(app.metadata)
        app.metadata.create_all(app.engine)

    def once(self, session: Session, call: Call) -> AbstractContextManager[bool]:
        if not self.app.driver.is_async:
            return self.barrier.once(session, call)
        return _Plain(self.barrier.once(async_session(session), call))  # type: ignore[arg-type]

    async def call(self, op: str, order_id: int, body: Callable[[Session], object] = lambda _: None) -> bool:
        def scene(session: Session) -> bool:
            with self.once(session, Call("g1", "1", op)) as first:
                if first:
                    session.add(self.app.order_type(order_id))
                    body(session)
            return first

        return await self.app.play(scene)

    def rows(self) -> list[tuple[str, str, int]]:
        """(op, reason, calls)"""
        columns = self.barrier.table.c
        with self.app.engine.connect() as connection:
            found = connection.execute(select(columns.op, columns.reason, columns.calls).order_by(columns.op))
            return [tuple(row) for row in found]


@pytest.fixture
def participant(app: App) -> Participant:
    return Participant(app)


@pytest.mark.parametrize("end", ["confirm", "cancel"])
async def test_each_call_has_its_effect_once(participant: Participant, end: str) -> None:
    assert [await participant.call("try", n) for n in (1, 2)] == [True, False]
    assert [await participant.call(end, n) for n in (3, 4)] == [True, False]
    assert not await participant.call("try", 5), "a repeated try, however late"
    assert participant.app.order_ids() == [1, 3]
    opposite = "cancel" if end == "confirm" else "confirm"
    with pytest.raises(BranchConflict):
        await participant.call(opposite, 6)
    assert participant.app.order_ids() == [1, 3]
    assert [(op, reason) for op, reason, _ in participant.rows()] == [(end, end), ("try", "try")]


async def test_empty_cancel_does_nothing_and_refuses_a_late_try(participant: Participant) -> None:
    assert [await participant.call("cancel", n) for n in (1, 2)] == [False, False]
    for _ in range(2):
        with pytest.raises(LateTry):
            await participant.call("try", 3)
    with pytest.raises(BranchConflict):
        await participant.call("confirm", 4)
    assert participant.app.order_ids() == []
    assert participant.rows() == [("try", "cancel", 2)]


async def test_confirm_of_what_was_not_tried_writes_nothing(participant: Participant) -> None:
    with pytest.raises(BranchConflict, match="never tried"):
        await participant.call("confirm", 1)
    assert participant.rows() == []
    assert await participant.call("try", 2)


async def test_failed_effect_takes_the_row_with_it(participant: Participant) -> None:
    def fail(session: Session) -> None:
        session.flush()
        raise Sorry

    for op in ("try", "confirm"):
        with pytest.raises(Sorry):
            await participant.call(op, 1, fail)
        assert await participant.call(op, {"try": 2, "confirm": 3}[op])
    assert participant.app.order_ids() == [2, 3]


@pytest.mark.parametrize("op", ["try", "cancel"])
async def test_commit_inside_of_the_block_is_refused(participant: Participant, op: str) -> None:
    """Also of an empty cancel: its row is what a late try is refused by."""

    def scene(session: Session) -> None:
        with participant.once(session, Call("g1", "1", op)):
            session.rollback()

    with pytest.raises(UsageError):
        await participant.app.play(scene)
    assert participant.rows() == []


async def test_claim_in_a_transaction_of_ones_own(participant: Participant) -> None:
    def scene(session: Session) -> list[bool]:
        firsts = [participant.barrier.claim(session, Call("g1", branch, "try")) for branch in ("1", "2", "1")]
        session.commit()
        return firsts

    assert await participant.app.play(scene) == [True, True, False]


async def test_prune_takes_what_is_older_than_so_many_seconds(participant: Participant) -> None:
    def pruned(session: Session, older_than_s: float) -> int:
        count = participant.barrier.prune(session, older_than_s=older_than_s)
        session.commit()
        return count

    await participant.call("cancel", 1)
    assert await participant.app.play(lambda session: pruned(session, 3_600)) == 0
    assert await participant.app.play(lambda session: pruned(session, -1)) == 1
    assert await participant.call("try", 2)


# --- at the same time ------------------------------------------------------------------------------------------------


class AtOnce:
    """Calls of one branch in transactions that overlap."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.barrier = Barrier(shop.metadata)
        shop.metadata.create_all(shop.engine)

    def call(self, op: str) -> Any:
        try:
            with self.shop.sessions()() as session, self.barrier.once(session, Call("g1", "1", op)) as first:
                return first
        except (LateTry, BranchConflict) as refused:
            return type(refused)


#: (first call, second call) -> what the second one gets if the first commits, and if it rolls back. A branch was tried before "confirm".
OVERLAPS = {
    ("try", "try"): (False, True),
    ("try", "cancel"): (True, False),
    ("cancel", "try"): (LateTry, True),
    ("cancel", "cancel"): (False, False),
    ("confirm", "confirm"): (False, True),
    ("confirm", "cancel"): (BranchConflict, True),
}


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("calls", OVERLAPS, ids="-".join)
def test_the_second_call_waits_for_the_transaction_of_the_first(shop: Shop, calls: tuple[str, str], end: str) -> None:
    once = AtOnce(shop)
    if calls[0] == "confirm":
        assert once.call("try") is True
    answers: list[Any] = []
    with shop.sessions()() as first:
        once.barrier.claim(first, Call("g1", "1", calls[0]))
        second = threading.Thread(target=lambda: answers.append(once.call(calls[1])))
        with claiming(shop.engine):
            second.start()
        assert answers == []
        getattr(first, end)()
    second.join(PATIENCE_S)
    assert answers == [OVERLAPS[calls][end == "rollback"]]


@SQLITE
def test_database_that_is_not_known_and_what_is_no_branch_are_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = AtOnce(shop)
    with shop.sessions()() as session, pytest.raises(UsageError, match="undo"):
        once.barrier.once(session, Call("g1", "1", "undo"))
    with shop.sessions()() as session:
        session.connection()
        monkeypatch.setattr(shop.engine.dialect, "name", "oracle")
        with pytest.raises(UnsupportedCombination):
            once.barrier.claim(session, Call("g1", "1", "try"))
