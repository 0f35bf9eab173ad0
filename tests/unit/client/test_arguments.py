"""What the caller gives wrongly is a UsageError at the call, and says what to give instead."""

import asyncio
import inspect
import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.support.scripted_broker import URL, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time
from tests.unit.client.test_other_loop import public_methods

from halfmq import limits
from halfmq.client.app import App
from halfmq.client.arguments import (
    Notes,
    PrepareOptions,
    check_marker_table,
    checked_count,
    checked_seconds,
    checked_text,
    checked_transaction_id,
)
from halfmq.client.async_client import AsyncClient
from halfmq.client.consumer import Batch, Consumer, ConsumerSpec
from halfmq.client.coordinator import Coordinator
from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose, encode_body
from halfmq.client.sync import Client
from halfmq.client.tcc import AsyncTcc
from halfmq.client.transaction_block import AsyncTransaction
from halfmq.errors import HalfmqError, InvalidName, UsageError
from halfmq.sql import Barrier, Inbox, MarkerTable


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


class Model(BaseModel):
    a: float | None = None


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
        "no halves": lambda: mq.prepare(None, tx_id="T-1"),  # type: ignore[arg-type]
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


ONE = [compose("t", b"x")]


class Nowhere:
    def send(self, topic: str, body: object, **named: Any) -> None:
        compose(topic, body, **named)


class AnyMarkers:
    """A marker table whose blocks do nothing."""

    name = "markers"

    def bind(self, client: object, session: object, **options: object) -> Any:
        return nullcontext(Nowhere())

    bind_async = bind

    def checker(self, sessions: object) -> Any:
        return lambda _: Outcome.UNKNOWN


class Commits(Listener):
    def execute(self, message: Message, arg: Any) -> Outcome:
        return Outcome.COMMIT


#: Right arguments of each call of the asynchronous face; the blocking one passes its own on.
RIGHT: dict[type, dict[str, dict[str, Any]]] = {
    AsyncClient: {
        "send": {"topic": "t", "body": b"x"},
        "send_many": {"topic": "t", "bodies": [b"x"]},
        "request": {"topic": "t", "body": b"x", "timeout": 0.1},
        "send_in_transaction": {"topic": "t", "body": b"x", "listener": Commits()},
        "prepare": {"messages": ONE, "tx_id": "T-2"},
        "settle_earlier": {"tx_id": "T-3", "message": ONE[0], "broker": "broker-a"},
        "finish": {"prepared": None, "outcome": Outcome.UNKNOWN},
        "commit": {"prepared": None},
        "rollback": {"prepared": None},
        "begin": {},
        "transaction": {"session": None, "markers": AnyMarkers(), "checked_elsewhere": True},
        "tcc": {"session": None, "markers": AnyMarkers(), "checked_elsewhere": True},
        "fence": {"tx_id": "tcc.1", "group": "g", "broker": "broker-a", "since": 0},
        "report_outcome": {"tx_id": "T-2", "outcome": Outcome.COMMIT, "source": "bank"},
        "coordinator": {"name": "c"},
        "add_listener": {"listener": Listener()},
        "add_check": {"name": "c", "check": lambda _: Outcome.UNKNOWN},
        "answer_checks": {"markers": AnyMarkers(), "sessions": None},
        "fetch_checks": {"wait": 0.1},
        "answer_check": {"check": None, "outcome": Outcome.UNKNOWN},
        "undecided": {"ids": ["T-1"]},
        "consumer": {"topics": "t", "group": "other"},
        "relay": {"outbox": None, "sessions": None},
    },
    Coordinator: {
        "prepare": {"messages": ONE},
        "settle": {"transaction": "T-1", "outcome": Outcome.COMMIT},
        "outcome": {"tx_id": "T-1"},
    },
    AsyncTransaction: {"send": {"topic": "t", "body": b"x"}},
    AsyncTcc: {
        "send": {"topic": "t", "body": b"x"},
        "call": {"try_": lambda branch, body: None, "body": b"x", "confirm": "t", "cancel": "t"},
    },
    Consumer: {"get": {"timeout": 0.1}, "take": {"max": 1, "wait": 0.1}, "batches": {"wait": 0.1}},
    Batch: {"retry": {}},
    Message: {
        "retry": {},
        "reply": {"body": b"x"},
        "compensate": {"topic": "t", "body": b"x"},
        "decode": {"into": bytes},
    },
}
#: Methods whose arguments are no user's: of ``App``, of tests, or passed on unseen; and values that any object may be.
UNSEEN = {
    AsyncClient: {"close", "connect", "from_env"},
    Consumer: {"handled", "failed", "again", "put_back", "keep_order"},
    Coordinator: set[str](),
    AsyncTransaction: set[str](),
    AsyncTcc: set[str](),
    Batch: set[str](),
    Message: {"decode"},
}
ANY_OBJECT = {"self", "arg", "session", "sessions", "key", "sharding_key", "checked_elsewhere"}
WRONG = [None, 5, -1.5, b"\xff", object(), [None], {"a": 1}, "a b\x01"]


def parameters(owner: type, name: str) -> list[inspect.Parameter]:
    named = inspect.signature(getattr(owner, name)).parameters.values()
    return [one for one in named if one.name not in ANY_OBJECT and one.kind is not one.VAR_KEYWORD]


def test_the_table_has_every_method_with_arguments() -> None:
    for owner, rows in RIGHT.items():
        methods = {name for name in public_methods(owner) if parameters(owner, name)}
        assert methods - UNSEEN[owner] == rows.keys() - UNSEEN[owner], owner


async def made(call: Any) -> None:
    """Make a call to its end, as an application does."""
    if inspect.isawaitable(call):
        await call
    elif hasattr(call, "__anext__"):
        await anext(call)
    elif isinstance(call, Consumer):
        async with call:
            pass


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, rows in RIGHT.items() for name in rows if name not in UNSEEN[owner]]
)
@in_virtual_time
async def test_whatever_an_argument_is_the_call_says_so_or_takes_it(owner: type, name: str) -> None:
    """Never a TypeError or AttributeError from inside of the client."""
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    for _ in range(8):
        broker.append("t", 0, b"x")
    async with (
        client_of(broker.network(), fetches_checks=name == "fetch_checks") as mq,
        mq.consumer("t", group="g") as messages,
    ):
        right = RIGHT[owner][name]
        if "prepared" in right:
            right = {**right, "prepared": await mq.prepare(ONE, tx_id="T-1")}
        batch = await messages.take(8, 5)
        coordinator = mq.coordinator("c")
        coordinator._epochs = {"broker-a": 1}
        batch[0]._sends = Nowhere()
        tcc = mq.tcc(SimpleNamespace(), markers=AnyMarkers(), checked_elsewhere=True)  # type: ignore[arg-type]
        tcc._tx = await tcc._inner.__aenter__()
        tcc._branches.broker = "broker-a"
        targets: dict[type, Any] = {
            AsyncClient: mq, Coordinator: coordinator, AsyncTransaction: mq.begin(), AsyncTcc: tcc, Consumer: messages, Batch: batch,
            Message: batch[0],
        }  # fmt: skip
        method, examined = getattr(targets[owner], name), 0
        for parameter in parameters(owner, name):
            for wrong in WRONG:
                given = {**right, parameter.name: wrong}
                positional = [
                    given.pop(one.name)
                    for one in inspect.signature(method).parameters.values()
                    if one.kind is one.POSITIONAL_ONLY
                ]
                examined += 1
                with suppress(HalfmqError, TimeoutError):  # get(None) waits for ever
                    await asyncio.wait_for(made(method(*positional, **given)), 100)
        assert examined


SHARDED = [
    (AsyncTcc, "send"),  # by its options
    *((owner, name) for owner, rows in RIGHT.items() for name in rows if "sharding_key" in inspect.signature(getattr(owner, name)).parameters),
]  # fmt: skip


def test_the_calls_with_a_sharding_key_are_known() -> None:
    assert {f"{owner.__name__}.{name}" for owner, name in SHARDED} == {
        "AsyncClient.send", "AsyncClient.request", "AsyncClient.send_in_transaction", "AsyncTransaction.send", "AsyncTcc.send",
        "Message.compensate",
    }  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), SHARDED)
@pytest.mark.parametrize("key", ["", b"7"])
@in_virtual_time
async def test_a_sharding_key_that_keeps_no_order_is_refused(owner: type, name: str, key: object) -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    broker.append("t", 0, b"x")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        message._sends = Nowhere()
        tcc = mq.tcc(SimpleNamespace(), markers=AnyMarkers(), checked_elsewhere=True)  # type: ignore[arg-type]
        tcc._tx = await tcc._inner.__aenter__()
        targets = {AsyncClient: mq, AsyncTransaction: mq.begin(), AsyncTcc: tcc, Message: message}
        others = {other: RIGHT[owner][name][other] for other in RIGHT[owner][name].keys() - {"topic", "body"}}
        call = getattr(targets[owner], name)
        with pytest.raises(UsageError, match="sharding_key"):
            await made(call("t", b"x", **others, sharding_key=key))
    assert len(broker.logs["t", 0]) == 1


@pytest.mark.parametrize("try_", [wrong for wrong in WRONG if not callable(wrong)])
@in_virtual_time
async def test_a_try_that_is_none_is_refused_before_its_cancel_is_sent(try_: Any) -> None:
    broker = ScriptedBroker()
    async with client_of(broker.network()) as mq:
        tcc = mq.tcc(SimpleNamespace(), markers=AnyMarkers(), checked_elsewhere=True)  # type: ignore[arg-type]
        tcc._tx = await tcc._inner.__aenter__()
        tcc._branches.broker = "broker-a"
        with pytest.raises(UsageError):
            await tcc.call(try_, b"x", confirm="t", cancel="t")
        assert broker.logs == {}
        with pytest.raises(UsageError, match=r"too long.*at most"):
            mq.tcc(None, markers=AnyMarkers(), checked_elsewhere=True, timeout=1e9)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [*WRONG, ("g", "grp", "1", "try", "broker-a", 5)])
def test_what_is_no_branch_is_refused_by_a_barrier(wrong: Any) -> None:
    barrier = Barrier(MetaData())
    for call in (barrier.once, barrier.claim):
        with pytest.raises(UsageError, match="no call of a branch"):
            call(Session(), wrong)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name in ("inbox", "barrier") for wrong in (*WRONG[1:], type)]
    + [("inbox", Barrier(MetaData())), ("barrier", Inbox(MetaData())), ("inbox", MarkerTable(MetaData()))],
)
def test_inbox_and_barrier_of_a_consumer(name: str, wrong: Any) -> None:
    """Seen: each was taken for the other, and then each message failed."""
    app = App(URL, sessions=sessionmaker(create_engine("sqlite://")))
    with pytest.raises(UsageError, match=f"is no {name}"):
        app.consumer("t", group="g", **{name: wrong})(lambda message, session: None)
    app.consumer("t", group="g", **{name: {"inbox": Inbox, "barrier": Barrier}[name](MetaData())})(
        lambda message, session: None
    )


@in_virtual_time
async def test_a_coordinator_of_a_closed_client_is_used_wrongly() -> None:
    async with client_of(ScriptedBroker().network()) as mq:
        coordinator = mq.coordinator("c")
        coordinator._epochs = {"broker-a": 1}
    for name, right in RIGHT[Coordinator].items():
        with pytest.raises(UsageError, match="closed"):
            await getattr(coordinator, name)(**right)
    with pytest.raises(UsageError, match="closed"):
        await coordinator.recover()


@pytest.mark.parametrize("grace", [3 * 86_400 + 1, 1e9])
@in_virtual_time
async def test_a_grace_that_a_broker_would_cut_is_refused_with_its_limit(grace: float) -> None:
    async with client_of(ScriptedBroker().network()) as mq:
        coordinator = mq.coordinator("c")
        coordinator._epochs = {"broker-a": 1}
        with pytest.raises(UsageError, match="at most 259200 seconds"):
            await coordinator.prepare(ONE, grace=grace)


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


# --- short texts for people -----------------------------------------------------------------------------------------------

#: What a call does with a text for people, and the most characters.
NOTES: dict[str, tuple[Any, int]] = {
    "begin comment": (lambda mq, text: mq.begin(comment=text), limits.COMMENT_CHARS_MAX),
    "prepare comment": (lambda mq, text: mq.prepare(ONE, tx_id="T-2", comment=text), limits.COMMENT_CHARS_MAX),
    "transaction comment": (
        lambda mq, text: mq.transaction(None, markers=AnyMarkers(), checked_elsewhere=True, comment=text),
        limits.COMMENT_CHARS_MAX,
    ),
    "send_in_transaction comment": (
        lambda mq, text: mq.send_in_transaction("t", b"x", listener=Commits(), comment=text), limits.COMMENT_CHARS_MAX
    ),
    "report_outcome source": (
        lambda mq, text: mq.report_outcome("T-2", Outcome.COMMIT, text), limits.COMPARISON_SOURCE_CHARS_MAX
    ),
    "coordinator.prepare comment": (
        lambda mq, text: recovered(mq).prepare(ONE, comment=text), limits.COMMENT_CHARS_MAX
    ),
    "coordinator.prepare branch": (
        lambda mq, text: recovered(mq).prepare(ONE, branch=text), limits.BRANCH_CHARS_MAX
    ),
}  # fmt: skip
#: Other texts: names with a rule of their own; what programs look up, which may be any property; and one that is cut and shown escaped,
#: since it may be the text of an exception.
OTHER_TEXTS = {
    "topic", "topics", "group", "broker", "tx_id", "transaction", "tag", "tags", "start", "name", "query_id", "keys", "try_", "confirm", "cancel", "remark",
}  # fmt: skip


def recovered(mq: AsyncClient) -> Coordinator:
    coordinator = mq.coordinator("c")
    coordinator._epochs = {"broker-a": 1}
    return coordinator


@pytest.mark.parametrize("wrong", ["a\nb", "a\x1b[31m", "a\x01", "\ud800", "\u202e", "long", 5, b"x\xff" * 200])
@pytest.mark.parametrize("what", NOTES)
@in_virtual_time
async def test_a_text_for_people_is_short_and_printable_whatever_it_is_for(what: str, wrong: Any) -> None:
    use, most = NOTES[what]
    async with client_of(ScriptedBroker().network()) as mq:
        mq.add_check("", lambda _: Outcome.UNKNOWN)
        with pytest.raises(UsageError, match="printable characters"):
            await made(use(mq, "x" * (most + 1) if wrong == "long" else wrong))


def test_the_table_has_every_text() -> None:
    notes = {what.split()[1] for what in NOTES}
    for owner in RIGHT:
        for name in public_methods(owner):
            for one in inspect.signature(getattr(owner, name)).parameters.values():
                is_text = "str" in str(one.annotation) and "[str" not in str(one.annotation)
                assert not is_text or one.name in OTHER_TEXTS | notes, (owner, name, one.name)
    texts = {
        name for name, kind in [*Notes.__annotations__.items(), *PrepareOptions.__annotations__.items()] if kind is str
    }
    assert texts <= OTHER_TEXTS | notes
