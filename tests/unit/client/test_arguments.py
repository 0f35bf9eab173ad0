"""What the caller gives wrongly is a UsageError at the call, and says what to give instead."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.scripted_broker import URL, ScriptedBroker

from halfmq.client.arguments import (
    check_marker_table,
    checked_count,
    checked_seconds,
    checked_text,
    checked_transaction_id,
)
from halfmq.client.consumer import ConsumerSpec
from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose, encode_body
from halfmq.client.sync import Client
from halfmq.errors import InvalidName, UsageError


class Listener(TransactionListener):
    def execute(self, message: Message, arg: Any) -> Outcome:
        raise AssertionError("not reached")

    def check(self, message: Message) -> Outcome:
        raise AssertionError("not reached")


class NamedByNumber(Listener):
    name = 5  # type: ignore[assignment]


@pytest.mark.parametrize("value", ["5", None, True, 0, -1, -0.5, math.nan, math.inf])
def test_time_is_a_finite_number_of_seconds_above_zero(value: object) -> None:
    with pytest.raises(UsageError, match=r"wait=.*seconds, more than 0"):
        checked_seconds(value, "wait")


@pytest.mark.parametrize("value", ["", " ", "a b", "x" * 65, "ä", 7, None])
def test_transaction_id_that_can_be_none_is_refused(value: object) -> None:
    with pytest.raises(InvalidName, match="1 to 64 characters"):
        checked_transaction_id(value)


@pytest.mark.parametrize("text", ["a\x01b", "x\x02HMQ_TX_COUNT\x0199"])
def test_text_that_would_be_another_property_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="separates properties"):
        checked_text(text, "query_id", "such as str(order.id)")


def test_what_is_right_goes_through() -> None:
    checked_transaction_id("order:7.a-b_c")
    assert (checked_seconds(2, "wait"), checked_seconds(0.5, "wait"), checked_seconds(0, "wait", zero=True)) == (
        2,
        0.5,
        0,
    )
    assert (checked_count(1, "max", 1), checked_text("", "name", "text")) == (1, "")
    check_marker_table(SimpleNamespace(name="n", bind=1, bind_async=1, checker=1))


@pytest.mark.parametrize("value", ["5", None, True, 0, 1.5])
def test_count_is_a_whole_number(value: object) -> None:
    with pytest.raises(UsageError, match="a whole number, 1 or more"):
        checked_count(value, "max", 1)


@pytest.mark.parametrize("url", [None, 5, ["host:1"]])
def test_address_that_is_no_text(url: Any) -> None:
    with pytest.raises(UsageError, match="rocketmq://host:port"):
        Client(url)


@pytest.mark.parametrize(
    "options",
    [
        {"group": 5}, {"group": None}, {"timeout": "5"}, {"timeout": 0}, {"timeout": -1}, {"timeout": None},
        {"attempt_timeout": 0}, {"connect_timeout": "1"}, {"checks": 0}, {"checks": "8"},
    ],
)  # fmt: skip
def test_options_of_the_client(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Client(URL, **options)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tag": 5}, {"keys": [1, None]}, {"keys": 5}, {"keys": b"k"}, {"keys": {"a": 1}}, {"key": b"k"}, {"delay": "5"},
        {"delay": math.nan}, {"properties": [("a", "b")]}, {"properties": {5: "x"}}, {"topic": 5}, {"topic": []},
        {"topic": None},
    ],
)  # fmt: skip
def test_arguments_of_a_message(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        compose(**{"topic": "t", "body": b"x", **arguments})


@dataclass
class Reading:
    celsius: float
    note: str | None = None


class Model:
    """As pydantic's."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self) -> dict[str, Any]:
        return self.fields

    def model_dump_json(self) -> str:
        return '{"a":null}'


@pytest.mark.parametrize(
    "body", [{"a": math.nan}, [1, (math.inf,)], {"a": None, "b": [1.5, -math.inf]}, math.nan, Reading(math.nan),
             Model(a=math.nan)]
)  # fmt: skip
def test_body_that_would_arrive_as_null(body: object) -> None:
    with pytest.raises(UsageError, match=r"the body holds (nan|-?inf).*in its place"):
        encode_body(body)


def test_body_that_says_null_is_one() -> None:
    assert encode_body({"a": None, "b": "null"}) == b'{"a":null,"b":"null"}'
    assert encode_body(Reading(1.5)) == b'{"celsius":1.5,"note":null}'
    assert encode_body(Model(a=None)) == b'{"a":null}'


def calls(mq: Client) -> dict[str, Any]:
    any_log: Any = "x"
    anything: Any = object()
    return {
        "transaction": lambda: mq.transaction(anything, markers=any_log),
        "answer_checks": lambda: mq.answer_checks(any_log, lambda: None),
        "listener": lambda: mq.send_in_transaction("t", b"x", listener=anything),
        "class of a listener": lambda: mq.send_in_transaction("t", b"x", listener=Listener),  # type: ignore[arg-type]
        "name of a listener": lambda: mq.add_listener(NamedByNumber()),
        "check": lambda: mq.add_check("order", None),  # type: ignore[arg-type]
        "name of a check": lambda: mq.add_check(5, lambda _: Outcome.COMMIT),  # type: ignore[arg-type]
        "begin": lambda: mq.begin(5),  # type: ignore[arg-type]
        "query id": lambda: mq.begin("order", query_id=7),  # type: ignore[arg-type]
        "advice": lambda: mq.begin(advice="commit"),  # type: ignore[arg-type]
        "advice of a session": lambda: mq.transaction(anything, markers=any_log, advice=Outcome.UNKNOWN),
        "advice to wait": lambda: mq.prepare([compose("t", b"x")], tx_id="T-1", advice=Outcome.UNKNOWN),
        "comment": lambda: mq.begin(comment=7),  # type: ignore[arg-type]
        "long comment": lambda: mq.begin(comment="x" * 201),
        "comment of two lines": lambda: mq.prepare([compose("t", b"x")], tx_id="T-1", comment="ask\nthe warehouse"),
        "timeout of send": lambda: mq.send("t", b"x", timeout=0),
        "timeout of request": lambda: mq.request("t", b"x", timeout=0),
        "timeout of send_many": lambda: mq.send_many("t", [b"x"], timeout="5"),  # type: ignore[arg-type]
        "one body": lambda: mq.send_many("t", "abc"),
        "one object": lambda: mq.send_many("t", {"a": 1}),
        "no bodies": lambda: mq.send_many("t", None),  # type: ignore[arg-type]
        "halves": lambda: mq.prepare([b"x"], tx_id="T-1"),  # type: ignore[list-item]
        "transaction id": lambda: mq.prepare([compose("t", b"x")], tx_id=5),  # type: ignore[arg-type]
        "query id of halves": lambda: mq.prepare([compose("t", b"x")], tx_id="T-1", query_id=5),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("what", list(calls(Client(URL))))
def test_arguments_of_a_call_and_nothing_is_sent(what: str) -> None:
    broker = ScriptedBroker()
    with Client(URL, group="orders", connector=broker.network()) as mq:
        with pytest.raises(UsageError):
            calls(mq)[what]()
        assert mq.check_functions() == {}
        assert broker.logs == {}
        assert broker.halves == []


@pytest.mark.parametrize(
    "arguments", [{"topics": 5}, {"topics": [None]}, {"group": 5}, {"tags": 5}, {"prefetch": "5"}, {"retries": 1.5}]
)
def test_arguments_of_a_consumer(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ConsumerSpec(**{"topics": "t", "group": "g", **arguments})


def test_arguments_of_reading() -> None:
    with Client(URL, connector=ScriptedBroker().network()) as mq, mq.consumer("t", group="g") as messages:
        for call in (
            lambda: messages.get("5"),  # type: ignore[arg-type]
            lambda: messages.get(-1),
            lambda: next(messages.batches(max=0)),
            lambda: next(messages.batches(wait="1")),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError):
                call()
        assert messages.get(0) is None
