"""Every call of the blocking face, made while the interpreter ends: ``python -m tests.support.calls_at_exit URL WAY``.

It prints a line for each call before and after it: ``NAME ...`` and ``NAME -> RESULT``, and at its end ``done``. ``WAY``: see ``WAYS``.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmq.client.coordinator import BlockingCoordinator
from halfmq.client.listener import TransactionListener
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.sync import (
    BlockingBatch,
    BlockingConsumer,
    BlockingMessage,
    BlockingRelay,
    Client,
)
from halfmq.client.transaction_block import BlockingTransaction
from halfmq.sql import MarkerTable, Outbox
from halfmq.sql.rules.block import Block

TOPIC: Final = "t"


class Listener(TransactionListener):
    def execute(self, message: Message, arg: Any) -> Outcome:
        return Outcome.COMMIT

    def check(self, message: Message) -> Outcome:
        return Outcome.UNKNOWN


class Held(NamedTuple):
    """What the program holds when it ends."""

    url: str
    mq: Client
    messages: BlockingConsumer
    message: BlockingMessage
    batch: BlockingBatch
    tx: BlockingTransaction
    entered: AbstractContextManager[Any]
    block: AbstractContextManager[Any]
    prepared: Any
    markers: MarkerTable
    sessions: Callable[[], Session]
    outbox: Outbox
    #: It works; and one that was not entered.
    working: BlockingRelay
    relay: BlockingRelay
    coordinator: BlockingCoordinator


Call = Callable[[Held], object]


class _Nowhere:
    """What a handler sends with, of a transaction that is of no interest here."""

    def send(self, topic: str, body: object, **named: object) -> None: ...


def _compensate(message: BlockingMessage) -> None:
    with message._sending(_Nowhere()):
        message.compensate("t", b"x")


def requested(message: Message) -> Message:
    """The same message, as one whose sender waits for a reply."""
    message._properties += b"REPLY_TO_CLIENT\x01nobody\x02CORRELATION_ID\x011\x02CLUSTER\x01c\x02"
    return message


#: By class and method. What closes an object comes last.
CALLS: Final[dict[type, dict[str, Call]]] = {
    BlockingMessage: {
        "processing": lambda held: held.message.processing().__enter__(),
        "ack": lambda held: held.message.ack(),
        "retry": lambda held: held.message.retry(),
        "reject": lambda held: held.message.reject(),
        "reply": lambda held: requested(held.message).reply(b"x"),
        "of": lambda held: BlockingMessage.of(held.message),
        "compensate": lambda held: _compensate(held.message),
        "json": lambda held: held.message.json(),
        "text": lambda held: held.message.text(),
        "decode": lambda held: held.message.decode(dict),
    },
    BlockingBatch: {"ack": lambda held: held.batch.ack(), "retry": lambda held: held.batch.retry()},
    BlockingConsumer: {
        "__iter__": lambda held: iter(held.messages),
        "get": lambda held: held.messages.get(0.1),
        "batches": lambda held: next(held.messages.batches(wait=0.1)),
        "__enter__": lambda held: held.mq.consumer("u", group="h").__enter__(),
        "stop": lambda held: held.messages.stop(),
        "__next__": lambda held: next(held.messages),
        "close": lambda held: held.messages.close(),
        "__exit__": lambda held: held.messages.__exit__(None, None, None),
    },
    BlockingTransaction: {
        "__enter__": lambda held: held.tx.__enter__(),
        "send": lambda held: held.tx.send(TOPIC, b"x"),
        "prepare": lambda held: held.tx.prepare(),
        "__exit__": lambda held: held.tx.__exit__(None, None, None),
        "rollback": lambda held: held.tx.rollback(),
    },
    Block: {
        "__enter__": lambda held: held.block.__enter__(),
        "__exit__": lambda held: held.entered.__exit__(None, None, None),
    },
    BlockingRelay: {
        "__enter__": lambda held: held.relay.__enter__(),
        "__exit__": lambda held: held.working.__exit__(None, None, None),
    },
    BlockingCoordinator: {
        "recover": lambda held: held.coordinator.recover(),
        "prepare": lambda held: held.coordinator.prepare([compose(TOPIC, b"x")]),
        "settle": lambda held: held.coordinator.settle("chosen", Outcome.ROLLBACK),
        "outcome": lambda held: held.coordinator.outcome("chosen"),
    },
    Client: {
        "send": lambda held: held.mq.send(TOPIC, b"x"),
        "send_many": lambda held: held.mq.send_many(TOPIC, [b"x"]),
        "request": lambda held: held.mq.request(TOPIC, b"x", timeout=0.1),
        "new_transaction_id": lambda held: held.mq.new_transaction_id(),
        "prepare": lambda held: held.mq.prepare([compose(TOPIC, b"x")], tx_id=held.mq.new_transaction_id()),
        "settle_earlier": lambda held: held.mq.settle_earlier("chosen", compose(TOPIC, b"x"), broker="halfmq"),
        "broker_names": lambda held: held.mq.broker_names(),
        "coordinator": lambda held: held.mq.coordinator("c"),
        "relay": lambda held: held.mq.relay(held.outbox, held.sessions),
        "commit": lambda held: held.mq.commit(held.prepared),
        "rollback": lambda held: held.mq.rollback(held.prepared),
        "finish": lambda held: held.mq.finish(held.prepared, Outcome.UNKNOWN),
        "begin": lambda held: held.mq.begin(),
        "transaction": lambda held: held.mq.transaction(held.sessions(), markers=held.markers),
        "tcc": lambda held: held.mq.tcc(held.sessions(), markers=held.markers),
        "fence": lambda held: held.mq.fence("tcc.1", group="g", broker="halfmq", since=0),
        "send_in_transaction": lambda held: held.mq.send_in_transaction(TOPIC, b"x", listener=Listener()),
        "add_listener": lambda held: held.mq.add_listener(Listener()),
        "add_check": lambda held: held.mq.add_check("c", lambda _: Outcome.UNKNOWN),
        "answer_checks": lambda held: held.mq.answer_checks(held.markers, held.sessions),
        "check_functions": lambda held: held.mq.check_functions(),
        "fetch_checks": lambda held: held.mq.fetch_checks(wait=0.1),
        "answer_check": lambda held: held.mq.answer_check(None, Outcome.UNKNOWN),  # type: ignore[arg-type]
        "report_outcome": lambda held: held.mq.report_outcome("tx-1", Outcome.COMMIT, "bank"),
        "undecided": lambda held: held.mq.undecided(["tx-1"]),
        "consumer": lambda held: held.mq.consumer("u", group="h"),
        "healthy": lambda held: held.mq.healthy(),
        "found": lambda held: held.mq.found(),
        "from_env": lambda held: Client.from_env(group="g") if os.environ.setdefault("HALFMQ_URL", held.url) else None,
        "connect": lambda held: Client(held.url).connect(),
        "__enter__": lambda held: Client(held.url).__enter__(),
        "close": lambda held: held.mq.close(),
        "__exit__": lambda held: held.mq.__exit__(None, None, None),
    },
}

#: They need no answer of the loop thread, and may succeed at any time.
LOCAL: Final = frozenset(
    {
        (BlockingMessage, "processing"), (BlockingMessage, "of"), (BlockingMessage, "json"), (BlockingMessage, "text"),
        (BlockingMessage, "decode"), (BlockingMessage, "compensate"), (BlockingConsumer, "__iter__"), (BlockingTransaction, "__enter__"),
        (BlockingTransaction, "send"), (Client, "check_functions"), (Client, "from_env"),
        (BlockingTransaction, "rollback"),  # nothing was prepared
    }
)  # fmt: skip


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # also when ``sys.stdout`` is gone


def call_all(held: Held) -> None:
    tell(f"finalizing: {sys.is_finalizing()}")
    for owner, calls in CALLS.items():
        for name, call in calls.items():
            tell(f"{owner.__name__}.{name} ...")
            try:
                result = type(call(held)).__name__
            except BaseException as error:
                result = f"{type(error).__name__}: {error}"
            tell(f"{owner.__name__}.{name} -> {result}")
    tell("done")


def hold(url: str) -> Held:
    mq = Client(url, group="g", timeout=20.0)
    mq.connect()
    markers = MarkerTable(metadata := MetaData())
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    sessions = sessionmaker(engine)
    mq.answer_checks(markers, sessions)
    for _ in range(3):
        mq.send(TOPIC, b"{}")
    messages = mq.consumer(TOPIC, group="readers")
    messages.__enter__()
    first = next(messages)
    batch = next(filter(None, messages.batches()))
    prepared = mq.prepare([compose(TOPIC, b"x")], tx_id=mq.new_transaction_id())
    entered, block = (mq.transaction(sessions(), markers=markers) for _ in range(2))
    entered.__enter__().send(TOPIC, b"x")
    outbox = Outbox(of_outbox := MetaData())
    # In memory, the same for all threads, and not locked by the block above.
    another = create_engine("sqlite:///file:outbox?mode=memory&cache=shared&uri=true")
    of_outbox.create_all(another)
    working, relay = (mq.relay(outbox, another) for _ in range(2))
    working.__enter__()
    coordinator = mq.coordinator("c")
    coordinator.recover()
    return Held(
        url, mq, messages, first, batch, mq.begin(), entered, block, prepared, markers, sessions, outbox, working, relay,
        coordinator,
    )  # fmt: skip


class CallsWhenDeleted:
    def __init__(self, held: Held) -> None:
        self.held = held

    def __del__(self) -> None:
        call_all(self.held)


def calls_at_its_end(held: Held) -> Iterator[int]:
    try:
        yield 1
    finally:
        call_all(held)


class ConnectsWhenDeleted:
    def __init__(self, url: str) -> None:
        self.url = url

    def __del__(self) -> None:
        _connect(self.url)


def _connect(url: str) -> None:
    tell(f"finalizing: {sys.is_finalizing()}")
    try:
        with Client(url) as mq:
            mq.send(TOPIC, b"x")
            tell("sent")
    except BaseException as error:
        tell(f"{type(error).__name__}: {error}")
    tell("done")


left_over: Any = None

WAYS: Final[dict[str, Callable[[str], Any]]] = {
    "atexit": lambda url: atexit.register(call_all, hold(url)),
    "del": lambda url: CallsWhenDeleted(hold(url)),
    "generator": lambda url: next(left := calls_at_its_end(hold(url))) and left,
    #: No client was open before.
    "first call in atexit": lambda url: atexit.register(_connect, url),
    "first call in del": lambda url: ConnectsWhenDeleted(url),
}

if __name__ == "__main__":
    left_over = WAYS[sys.argv[2]](sys.argv[1])
