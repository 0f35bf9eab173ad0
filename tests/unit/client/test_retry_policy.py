"""When a message is handled again whose handler has raised, and when it is given up: ``Retry``, and consumers that follow it."""

import asyncio
import logging
import re
from dataclasses import FrozenInstanceError, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from tests.support.in_process import serving
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time, run
from tests.support.waiting import until
from tests.unit.client.test_app import Order, app_of, with_keys

from halfmq import App, Message, Retry
from halfmq.errors import UsageError
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.header import encode_response

BACK = 36


class Invalid(Exception):
    """Another attempt does not help."""


@dataclass
class Other:
    id: int


class Unfinished(BaseModel):
    """Which the application has never given its other class."""

    other: "DoesNotExist"  # type: ignore[name-defined]  # noqa: F821


class Model(BaseModel):
    id: int


def test_the_last_delay_repeats_and_without_delays_somebody_else_chooses() -> None:
    policy = Retry(times=5, delays=(1, 10, 60))
    assert [policy.delay_s(failures) for failures in range(1, 7)] == [1, 10, 60, 60, 60, 60]
    assert Retry().delay_s(1) is None


def test_a_policy_is_a_value() -> None:
    assert Retry(times=2, delays=[1, 2], dead_on=[ValueError]) == Retry(times=2, delays=(1, 2), dead_on=(ValueError,))
    assert Retry(dead_on=ValueError).dead_on == (ValueError,)
    with pytest.raises(FrozenInstanceError):
        Retry().times = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"times": -1}, "times=-1"),
        ({"times": 1.5}, "times=1.5"),
        ({"delays": 5}, "delays=5"),
        ({"delays": "1"}, "delays='1'"),
        ({"delays": (1, -1)}, "a delay=-1"),
        ({"delays": (259_201,)}, "too long"),
        ({"dead_on": (ValueError, "x")}, "'x', which is no exception"),
        ({"dead_on": (KeyboardInterrupt,)}, "which is no exception"),
    ],
)
def test_a_wrong_policy_is_refused_when_it_is_made(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Retry(**arguments)
    assert text in str(caught.value)


@in_virtual_time
async def test_retries_is_short_for_a_policy_and_both_are_refused() -> None:
    broker = ScriptedBroker()
    app = app_of(broker.network(), retry=Retry(times=3, delays=(7,)))

    def handle(message: Message) -> None: ...

    app.consumer("a", group="g")(handle)
    app.consumer("b", group="h", retries=5)(handle)
    app.consumer("c", group="i", retry=Retry(times=1))(handle)
    assert [spec.reads.retry for spec in app._consumers] == [
        Retry(times=3, delays=(7,)), Retry(times=5), Retry(times=1),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="say the same"):
        app.consumer("d", group="j", retries=5, retry=Retry(times=5))
    with pytest.raises(UsageError, match="is no Retry"):
        app.consumer("d", group="j", retry=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is no Retry"):
        App("127.0.0.1", retry=5)  # type: ignore[arg-type]


@in_virtual_time
async def test_the_broker_gets_the_delay_itself_and_the_level_above_it() -> None:
    broker = with_keys("-0")
    app = app_of(broker.network(), retry=Retry(times=2, delays=(2.5, 0)))

    @app.consumer("t", group="g")
    async def handle(_message: Message) -> None:
        raise RuntimeError("not now")

    async with app.run():
        await asyncio.sleep(60)
    backs = [(back.ext.delay_level, back.ext.delay_ms, back.ext.max_reconsume_times) for back in broker.requests(BACK)]
    assert backs[:2] == [(2, 2_500, 2), (1, 0, 2)]


@in_virtual_time
async def test_a_message_with_a_sharding_key_waits_so_long_in_the_process() -> None:
    broker = with_keys("a0", "a1")
    app = app_of(broker.network())
    begun: list[tuple[str, float, bool]] = []
    attempts: list[int] = []

    @app.consumer("t", group="g", retry=Retry(times=3, delays=(3, 20)))
    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        begun.append((message.text(), asyncio.get_running_loop().time(), message.is_last_attempt))
        if message.text() == "a0":
            raise RuntimeError("never")

    async with app.run():
        await asyncio.sleep(60)
    assert [body for body, _, _ in begun] == ["a0"] * 4 + ["a1"]
    assert [round(after[1] - before[1]) for before, after in pairwise(begun)] == [3, 20, 20, 0]
    assert [is_last for _, _, is_last in begun] == [False, False, False, True, False]
    assert attempts == [1, 2, 3, 4, 1]
    assert [(back.ext.delay_level, back.ext.attempt) for back in broker.requests(BACK)] == [(-1, 4)]


class Case(NamedTuple):
    """How handling fails, and the errors in the log: the last one says what becomes of the message, and why."""

    raised: Exception
    on_dead: Exception | None
    errors: list[str]


CASES: dict[str, Case] = {
    "too often": Case(RuntimeError("never"), None, ["handled again", "its last, it goes to the dead-letter queue"]),
    "for good": Case(Invalid("no account"), None, ["given up after attempt 1"]),
    "and on_dead fails": Case(
        Invalid("no account"), RuntimeError("never"),
        ["given up after attempt 1", *(f"on_dead failed for MESSAGE, {n} of 6 times" for n in range(1, 6)),
         "6 of 6 times, and it goes to the dead-letter queue"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", ["-", "a"])
@pytest.mark.parametrize("case", CASES)
def test_each_failure_is_one_error_in_the_log(case: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    raised, on_dead, errors = CASES[case]
    broker = with_keys(f"{key}0")
    app = app_of(broker.network())

    async def fails(_message: Message) -> None:
        assert on_dead is not None
        raise on_dead

    @app.consumer("t", group="g", retry=Retry(times=1, delays=(1,), dead_on=Invalid), on_dead=on_dead and fails)
    async def handle(message: Message) -> None:
        raise raised

    async def handled() -> None:
        async with app.run():
            await asyncio.sleep(60)

    run(handled())
    found = [re.sub("<.*>", "MESSAGE", one.getMessage()) for one in caplog.records if one.levelno >= logging.ERROR]
    if case == "too often" and key == "-":  # this broker gives it again for ever
        found, errors = found[:2], ["it is delivered again later", "its last, and it goes to the dead-letter queue"]
    assert len(found) == len(errors), found
    for line, says in zip(found, errors, strict=True):
        assert says in line


SAYS = {"acknowledged": Message.ack, "handed back": Message.retry, "rejected": Message.reject}


@pytest.mark.parametrize("key", ["-", "a"])
@pytest.mark.parametrize("with_on_dead", [False, True])
@pytest.mark.parametrize("what", SAYS)
@in_virtual_time
async def test_what_a_handler_has_said_counts_though_it_raises_afterwards(
    what: str, key: str, with_on_dead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = with_keys(f"{key}0", f"{key}1")
    app = app_of(broker.network())
    attempts: dict[str, list[int]] = {}
    dead: list[str] = []

    async def make_amends(message: Message) -> None:
        dead.append(message.text())

    async def handle(message: Message) -> None:
        attempts.setdefault(message.text(), []).append(message.attempt)
        if message.text().endswith("0") and message.attempt == 1:
            await SAYS[what](message)
            raise ValueError("afterwards")

    retry = Retry(times=1, delays=(1,))
    app.consumer("t", group="g", retry=retry, on_dead=make_amends if with_on_dead else None)(handle)
    async with app.run():
        await asyncio.sleep(60)
    comes_again = {"again": [2]} if what == "handed back" else {}  # as the scripted broker calls it
    assert attempts == {f"{key}0": [1], f"{key}1": [1], **comes_again}
    levels = {"acknowledged": [], "handed back": [1], "rejected": [-1]}
    assert [back.ext.delay_level for back in broker.requests(BACK)] == levels[what]
    assert broker.offsets["g", "t", 0] == 2
    assert dead == []
    assert f"failed after it was {what}, which counts" in caplog.text


@in_virtual_time
async def test_what_on_dead_has_said_counts_though_it_raises_afterwards() -> None:
    broker = with_keys("-0")
    app = app_of(broker.network())
    calls: list[str] = []

    async def make_amends(message: Message) -> None:
        calls.append("on_dead")
        await message.ack()
        raise ValueError("afterwards")

    @app.consumer("t", group="g", retry=Retry(times=0), on_dead=make_amends)
    async def handle(_message: Message) -> None:
        calls.append("handler")
        raise ValueError("never")

    async with app.run():
        await asyncio.sleep(60)
    assert calls == ["handler", "on_dead"]
    assert broker.requests(BACK) == []
    assert broker.offsets["g", "t", 0] == 1


@in_virtual_time
async def test_a_message_that_could_not_be_handed_back_is_handled_as_if_nothing_was_said() -> None:
    broker = with_keys("-0")
    refused = [1]
    broker.on[BACK] = lambda peer, request: (
        encode_response(request, 1, "disk") if refused and refused.pop() else broker.usual(peer, request)
    )
    app = app_of(broker.network())
    attempts: list[int] = []

    @app.consumer("t", group="g", retry=Retry(times=3, delays=(1,)))
    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            await message.retry()
        if len(attempts) == 2:
            raise ValueError("here again")

    async with app.run():
        await asyncio.sleep(60)
    assert attempts == [1, 1, 2]
    assert broker.offsets["g", "t", 0] == 1


@pytest.mark.parametrize("key", ["-", "a"])
@pytest.mark.parametrize("with_on_dead", [False, True])
@in_virtual_time
async def test_an_exception_of_dead_on_gives_the_message_up_at_once(
    key: str, with_on_dead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = with_keys(f"{key}0", f"{key}1")
    app = app_of(broker.network())
    begun: list[str] = []
    dead: list[str] = []

    @(
        app.consumer(
            "t",
            group="g",
            retry=Retry(dead_on=(Invalid,)),
            on_dead=lambda m: dead.append(m.text()) if with_on_dead else None,
        )
        if with_on_dead
        else app.consumer("t", group="g", retry=Retry(dead_on=(Invalid,)))
    )
    async def handle(message: Message) -> None:
        begun.append(message.text())
        if message.text().endswith("0"):
            raise Invalid("no such account")

    async with app.run():
        await asyncio.sleep(60)
    assert sorted(begun) == [f"{key}0", f"{key}1"]
    rejected = [(back.ext.delay_level, back.ext.failure) for back in broker.requests(BACK)]
    assert rejected == ([] if with_on_dead else [(-1, "Invalid: no such account")])
    assert dead == ([f"{key}0"] if with_on_dead else [])
    assert broker.offsets["g", "t", 0] == 2
    assert "is given up after attempt 1" in caplog.text


@pytest.mark.parametrize(
    ("into", "body", "reason"),
    [
        (Order, b"{", "NotDecoded: its body into Order: DecodeError: Input data was truncated"),
        (
            Order,
            b'{"id":"x"}',
            "NotDecoded: its body into Order: ValidationError: Expected `int`, got `str` - at `$.id`",
        ),
        (Model, b'{"id":"x"}', "NotDecoded: its body into Model: ValidationError: 1 validation error for Model"),
        (str, b"\xff", "NotDecoded: its body into str: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        (dict, b"[" * 100_000, "NotDecoded: its body into dict: "),
    ],
)
@in_virtual_time
async def test_what_cannot_be_decoded_is_a_dead_letter_at_once(
    into: Any, body: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = with_keys()
    broker.append("t", 0, body)
    app = app_of(broker.network())

    async def handle(event: Any) -> None:
        raise AssertionError("it has nothing to handle")

    handle.__annotations__["event"] = into
    app.consumer("t", group="g")(handle)
    async with app.run():
        await asyncio.sleep(60)
    (back,) = broker.requests(BACK)
    assert back.ext.delay_level == -1
    assert back.ext.failure.startswith(reason)
    (line,) = [record for record in caplog.records if "cannot be decoded" in record.getMessage()]
    assert (line.levelno, line.exc_info) == (logging.ERROR, None)


@in_virtual_time
async def test_the_same_exception_of_the_handler_itself_is_a_failure_as_any_other() -> None:
    broker = with_keys("-0")
    app = app_of(broker.network())

    @app.consumer("t", group="g", retries=3)
    async def handle(message: Message) -> None:
        message.decode(Order)

    async with app.run():
        await asyncio.sleep(5)
    assert [back.ext.delay_level for back in broker.requests(BACK)] == [0]


@in_virtual_time
async def test_a_type_that_nothing_can_be_decoded_into_makes_no_dead_letters() -> None:
    """It is the application's fault. The first is refused when the handler is decorated: nothing says which of the two classes a body is. A
    class of pydantic may be completed later: the message is handled again, and passes with the next version."""
    broker = with_keys()
    broker.append("t", 0, b'{"id":7}')
    app = app_of(broker.network())

    async def never(event: Order | Other) -> None: ...

    with pytest.raises(UsageError, match="more than one dataclass"):
        app.consumer("t", group="g")(never)

    @app.consumer("t", group="g")
    async def handle(event: Unfinished) -> None: ...

    async with app.run():
        await asyncio.sleep(5)
    (back,) = broker.requests(BACK)
    assert (back.ext.delay_level, back.ext.failure[:18]) == (0, "PydanticUserError:")


@in_virtual_time
async def test_on_dead_of_what_cannot_be_decoded_is_called_if_it_takes_the_message() -> None:
    broker = with_keys()
    broker.append("t", 0, b"{")
    app = app_of(broker.network())
    dead: list[bytes] = []

    @app.consumer("t", group="g", on_dead=lambda message: dead.append(message.body))
    async def handle(order: Order) -> None: ...

    async with app.run():
        await asyncio.sleep(60)
    assert dead == [b"{"]
    assert not broker.requests(BACK)


@in_virtual_time
async def test_on_dead_that_takes_what_cannot_be_decoded_makes_it_a_dead_letter_without_a_wait() -> None:
    broker = with_keys()
    broker.append("t", 0, b"{")
    app = app_of(broker.network())

    def on_dead(order: Order) -> None: ...

    @app.consumer("t", group="g", on_dead=on_dead)
    async def handle(order: Order) -> None: ...

    async with app.run():
        await asyncio.sleep(0.9)
        assert [back.ext.delay_level for back in broker.requests(BACK)] == [-1]


@in_virtual_time
async def test_a_loop_over_a_consumer_follows_the_policy() -> None:
    broker = with_keys("-0", "-1")
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("t", group="g", retry=Retry(times=1, delays=(4,), dead_on=(Invalid,))) as messages,
    ):
        for number, error in enumerate([RuntimeError("not now"), Invalid("no such account")]):
            message = await messages.get(5)
            assert message is not None
            assert (message.text(), message.is_last_attempt) == (f"-{number}", False)
            async with message.processing():
                raise error
        again = await messages.get(10)
        assert again is not None
        assert (again.attempt, again.is_last_attempt) == (2, True)
    assert [(back.ext.delay_level, back.ext.delay_ms) for back in broker.requests(BACK)] == [(2, 4_000), (-1, -1)]


@in_virtual_time
async def test_running_handlers_have_the_time_to_finish_that_the_app_says() -> None:
    took: list[float] = []
    for grace_s in (0, 3, 30):
        broker = with_keys("-0")
        app = app_of(broker.network(), shutdown_grace=grace_s)

        @app.consumer("t", group="g")
        async def handle(_message: Message) -> None:
            await asyncio.sleep(10)

        async with app.run():
            await asyncio.sleep(2)
            end = asyncio.get_running_loop().time()
        took.append(round(asyncio.get_running_loop().time() - end))
    assert took == [0, 3, 8]
    with pytest.raises(UsageError, match="shutdown_grace=-1"):
        App("127.0.0.1", shutdown_grace=-1)


@pytest.mark.timeout(90)
async def test_a_halfmq_broker_waits_exactly_so_long_and_says_why_a_letter_died(tmp_path: Path) -> None:
    """No standard level is shorter than 1 s, so that three delays of 50 ms could not end before 3 s."""
    async with serving(tmp_path, settings=BrokerSettings(default_topic_queues=1)) as running:
        app = App(f"127.0.0.1:{running.ports.names}", group="shop")
        seen: list[tuple[float, int, bool]] = []

        @app.consumer("orders", group="billing", retry=Retry(times=3, delays=(0.05,)))
        async def handle(message: Message) -> None:
            seen.append((asyncio.get_running_loop().time(), message.attempt, message.is_last_attempt))
            raise ValueError("no account")

        async with app.run() as client:
            await client.send("orders", b"one")

            async def is_over() -> bool:
                return len(seen) == 4

            await until(is_over, "it is handled four times")
            async with client.consumer("%DLQ%billing", group="reader") as letters:
                letter = await letters.get(20)
        assert letter is not None
        assert letter.properties["HMQ_DEAD_REASON"] == "ValueError: no account"
        assert [(attempt, is_last) for _, attempt, is_last in seen] == [(1, False), (2, False), (3, False), (4, True)]
        assert all(after[0] - before[0] >= 0.05 for before, after in pairwise(seen))
