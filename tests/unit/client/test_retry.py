# ruff: noqa: PT012 - what is tested is a block that raises
"""How often and how long a request is tried, and what the caller is told: virtual time."""

import asyncio
import random
from typing import Any

import pytest
from tests.support.virtual_time import in_virtual_time, run

from halfmq.client.connection import Answer, NoAnswer, NotSent
from halfmq.client.retry import ATTEMPTS, Attempts, OutOfTime
from halfmq.errors import (
    ConnectError,
    NotAuthorized,
    RequestFailed,
    SendTimeout,
    ServerBusy,
    TopicNotFound,
    TransactionRefused,
)
from halfmq.wire.remoting.codes import ResponseCode


def attempts(timeout_s: float = 10.0, attempt_timeout_s: float = 3.0, *, closed: bool = False) -> Attempts:
    return Attempts("send", timeout_s, attempt_timeout_s, random.Random(1), lambda: closed)


def test_what_was_never_written_is_tried_until_the_time_is_up() -> None:
    async def never_written() -> tuple[int, float]:
        plan, start, count = attempts(timeout_s=5), asyncio.get_running_loop().time(), 0
        with pytest.raises(ConnectError):
            while True:
                count += 1
                await plan.lost(NotSent("closed"))
        return count, asyncio.get_running_loop().time() - start

    count, seconds = run(never_written())
    assert 5 < count < 40
    assert 4.9 < seconds < 5.1


def test_what_was_written_is_tried_three_times_and_then_unknown() -> None:
    async def written() -> int:
        plan, count = attempts(), 0
        with pytest.raises(SendTimeout):
            while True:
                count += 1
                await plan.lost(NoAnswer("silence"))
        assert plan.outcome_unknown
        return count

    assert run(written()) == ATTEMPTS == 3


@in_virtual_time
async def test_one_unanswered_attempt_makes_the_end_unknown_whatever_comes_later() -> None:
    plan = attempts()
    await plan.lost(NoAnswer("silence"))
    with pytest.raises(SendTimeout):
        await plan.refused(TopicNotFound("gone", response_code=17))


@pytest.mark.parametrize(
    ("error", "told"), [(NotSent("x"), ConnectError), (ConnectError("x"), ConnectError), (NoAnswer("x"), SendTimeout)]
)
@in_virtual_time
async def test_attempt_of_a_closed_client_is_the_last_one(error: NotSent | NoAnswer | ConnectError, told: type) -> None:
    start = asyncio.get_running_loop().time()
    with pytest.raises(told) as raised:
        await attempts(closed=True).lost(error)
    assert asyncio.get_running_loop().time() == start
    assert "the client is closed" in str(raised.value if told is ConnectError else raised.value.__cause__)


@in_virtual_time
async def test_standing_verdict_is_told_even_after_an_unanswered_attempt() -> None:
    plan = attempts()
    await plan.lost(NoAnswer("silence"))
    with pytest.raises(TransactionRefused):
        await plan.refused(TransactionRefused("settled", standing="COMMITTED"))


@in_virtual_time
async def test_refusal_that_stays_is_raised_at_once_and_a_busy_broker_is_asked_again() -> None:
    with pytest.raises(TopicNotFound):
        await attempts().refused(TopicNotFound("gone", response_code=17))
    plan = attempts()
    busy = ServerBusy("full", response_code=2)
    await plan.refused(busy)
    await plan.refused(busy)
    with pytest.raises(ServerBusy):
        await plan.refused(busy)


@in_virtual_time
async def test_refusal_that_the_caller_knows_to_stay_is_raised_at_once_whatever_its_number() -> None:
    with pytest.raises(RequestFailed):
        await attempts().refused(RequestFailed("wrong offsets", response_code=1), permanent=True)
    await attempts().refused(RequestFailed("something", response_code=1))


@in_virtual_time
async def test_attempt_never_takes_longer_than_the_call() -> None:
    plan = attempts(timeout_s=4)
    assert plan.timeout_s() == 3.0
    await asyncio.sleep(2)
    assert plan.timeout_s() == pytest.approx(2.0)
    await asyncio.sleep(5)
    assert plan.left_s() == 0
    with pytest.raises(OutOfTime):
        plan.timeout_s()


def test_what_comes_before_an_attempt_is_cut_off_at_the_end_of_the_call() -> None:
    async def connecting() -> None:
        plan, start = attempts(timeout_s=4), asyncio.get_running_loop().time()
        assert await plan.within(asyncio.sleep(1, "connected")) == "connected"
        with pytest.raises(ConnectionError):
            await plan.within(refused())
        with pytest.raises(OutOfTime):
            await plan.within(asyncio.sleep(60))
        assert asyncio.get_running_loop().time() - start == pytest.approx(4.0)

    async def refused() -> None:
        raise ConnectionError

    run(connecting())


@in_virtual_time
async def test_end_of_the_time_hides_neither_the_reason_nor_the_doubt() -> None:
    plan = attempts(timeout_s=1)
    await plan.lost(ConnectError("refused by b:1"))
    with pytest.raises(ConnectError, match="b:1"):
        await plan.lost(OutOfTime("over"))
    with pytest.raises(ConnectError, match="over"):
        await attempts(timeout_s=1).lost(OutOfTime("over")) or await attempts(timeout_s=0).lost(OutOfTime("over"))
    plan = attempts(timeout_s=1)
    await plan.lost(NoAnswer("silence"))
    with pytest.raises(SendTimeout):
        await plan.lost(OutOfTime("over"))


def answer(code: int, body: bytes = b"") -> Answer:
    return Answer(code=code, opaque=1, ext={}, body=body, flag=1)


@in_virtual_time
async def test_a_question_is_asked_again_where_its_answer_was_lost_within_the_time_of_the_call() -> None:
    asked: list[float] = []
    now = asyncio.get_running_loop().time
    answers: list[Answer | None] = [None, answer(ResponseCode.SYSTEM_BUSY), answer(0, b"here")]

    async def connect() -> Any:
        return "connection"

    async def request(connection: object, timeout_s: float) -> Answer:
        assert connection == "connection"
        asked.append(timeout_s)
        given = answers.pop(0)
        if given is None:
            await asyncio.sleep(timeout_s)
            raise NoAnswer("silence")
        return given

    assert (await attempts().ask(connect, request)).body == b"here"
    assert asked == [3.0, 3.0, 3.0], "no attempt takes the time of the whole call"
    began, answers = now(), [None] * 9
    with pytest.raises(ConnectError):
        await attempts().ask(connect, request)
    assert now() - began <= 10
    answers = [answer(ResponseCode.NO_PERMISSION)]
    with pytest.raises(NotAuthorized):
        await attempts().ask(connect, request)
