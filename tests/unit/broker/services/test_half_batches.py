"""Half batches as a front door calls them: only a correct payload reaches the core, and a decision continues after its copies."""

from typing import Any
from zlib import crc32

import pytest
from tests.support.services import CoreSequencer, FakePeer, raises, turns_at_once

from halfmq import limits
from halfmq.broker.services import half_batches
from halfmq.broker.services.half_batches import HalfBatches
from halfmq.broker.services.payload_arrays import array_verification
from halfmq.client.unique_ids import UniqueIds
from halfmq.core.commands import Winner
from halfmq.core.decision import BatchDecided, DecisionFound, Refused, Sent, Why
from halfmq.model.half_batch import HalfMessage, build_payload
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import CopiedHalfBatch
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy

B0 = QueryBatch("q1", 0, "r1")


class Bench:
    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        self.sequencer = CoreSequencer(BrokerSettings(segment_bytes=segment_bytes))
        #: Ids that were searched before the decision.
        self.searched: list[str] = []
        self.offloaded: list[tuple[Any, Any]] = []
        self.half_batches = HalfBatches(self.sequencer, self, self, self, turns_at_once())  # type: ignore[arg-type]
        self.replies: list[Any] = []

    def send(self, command: Any, deliver: Any, context: Any) -> None:
        """In place of ``ChosenIds``."""
        self.searched.append(command.tx_id)
        self.sequencer.submit(command, deliver, context)

    def examine_shown(self, offset: int, messages: int) -> None:
        """In place of the store."""

    def run(self, work: Any, done: Any) -> None:
        """In place of ``Offload``: the thread is busy with it."""
        self.offloaded.append((work, done))

    def deliver(self, context: Any, reply: Any) -> None:
        assert context == "context"
        self.replies.append(reply)

    def payload(self, body: bytes = b"one") -> bytes:
        host = self.half_batches.store_host
        return build_payload(
            [HalfMessage(0, 0, body, b"A\x01b\x02")],
            topic="orders",
            queue_id=0,
            born_time_ms=1,
            born_host=host,
            store_host=host,
        )[0]

    def prepare(self, **changes: Any) -> Any:
        payload = changes.pop("payload", self.payload())
        said = {
            "group": "PG", "tx_id": "", "batch": B0, "attempt": "0.1", "index": 0, "count": 0, "topic": "orders",
            "default_queues": 4, "queue_id": 0, "messages": 1, "checksum": crc32(payload), "grace_ms": -1, "delayed": False, **changes,
        }  # fmt: skip
        self.half_batches.prepare(
            FakePeer(), **said, payload=payload, deliver=self.deliver, failed=raises, context="context"
        )
        return self.replies[-1]

    def decide(self, *winners: Winner, batch: QueryBatch = B0, group: str = "PG") -> Any:
        self.half_batches.decide(FakePeer(), group, batch, b"d" * 16, winners, False, self.deliver, raises, "context")
        return self.replies[-1]


def test_correct_payload_is_stored_and_decided() -> None:
    bench = Bench()
    assert isinstance(bench.prepare(), Sent)
    assert isinstance(bench.decide(Winner("0.1", 1, 1, crc32(bench.payload()))), BatchDecided)
    bench.half_batches.find(1, B0, bench.deliver, "context")
    assert isinstance(bench.replies[-1], DecisionFound)


def test_numpy_is_imported_on_the_thread_while_payloads_are_verified_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    plain: list[int] = []
    verify = half_batches.verification
    monkeypatch.setattr(half_batches, "verification", lambda *a, **k: plain.append(1) or verify(*a, **k))
    assert isinstance(bench.prepare(), Sent)
    assert isinstance(bench.prepare(index=1), Sent)
    assert len(plain) == 2
    [(work, done)] = bench.offloaded
    assert work is array_verification
    done(work())
    assert isinstance(bench.prepare(index=2), Sent)
    assert len(plain) == 2


def test_half_batches_are_stored_if_numpy_cannot_be_imported() -> None:
    bench = Bench()
    assert isinstance(bench.prepare(), Sent)
    [(_, done)] = bench.offloaded
    done(OSError("a library is damaged"))
    assert isinstance(bench.prepare(index=1), Sent)
    assert len(bench.offloaded) == 1


@pytest.mark.parametrize(
    ("changes", "why", "text"),
    [
        ({"payload": b""}, Why.MESSAGE_ILLEGAL, "cannot be 1 messages"),
        ({"messages": 2}, Why.MESSAGE_ILLEGAL, "cannot be 2 messages"),
        ({"checksum": 1}, Why.INVALID_PARAMETER, "checksum"),
        ({"payload": bytes(limits.HALF_BATCH_BYTES_MAX + 1)}, Why.INVALID_PARAMETER, "at most"),
        ({"topic": "other"}, Why.MESSAGE_ILLEGAL, "topic"),
        ({"group": "a b"}, Why.INVALID_PARAMETER, "producer group"),
        ({"group": ""}, Why.INVALID_PARAMETER, "producer group"),
        ({"batch": B0._replace(query="a b")}, Why.INVALID_PARAMETER, "name of a query"),
        ({"attempt": ""}, Why.INVALID_PARAMETER, "not an attempt"),
        ({"count": 3}, Why.INVALID_PARAMETER, "does not state"),
        ({"batch": None, "tx_id": "T1"}, Why.INVALID_PARAMETER, "attempt"),
        ({"batch": None, "tx_id": "a b", "attempt": ""}, Why.INVALID_PARAMETER, "transaction id"),
        ({"index": -1}, Why.INVALID_PARAMETER, "half batch -1"),
        ({"index": limits.TRANSACTION_HALF_BATCHES_MAX}, Why.INVALID_PARAMETER, "half batch"),
        ({"batch": None, "tx_id": "T1", "attempt": "", "index": 2, "count": 2}, Why.INVALID_PARAMETER, "2 of 2"),
    ],
)
def test_what_is_wrong_is_refused_before_it_is_stored(changes: dict[str, Any], why: Why, text: str) -> None:
    bench = Bench()
    reply = bench.prepare(**changes)
    assert isinstance(reply, Refused)
    assert reply.why is why
    assert text in reply.text
    assert not bench.sequencer.core.state.producer_groups


_NUMBERS = ("index", "count", "default_queues", "queue_id", "messages", "checksum", "grace_ms")
_TEXTS = ("group", "attempt", "topic")


@pytest.mark.parametrize("arrays", [False, True], ids=["one by one", "as arrays"])
@pytest.mark.parametrize("attempts", [True, False], ids=["of a query", "of a transaction"])
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in _NUMBERS for value in (-(1 << 63), -1, 1 << 31, 1 << 32, (1 << 63) - 1, 10**19 - 1)]
    + [(name, value) for name in _TEXTS for value in ("x" * 300, "a b", "\u00e9" * 200, "\0")],
)
def test_no_value_of_a_field_is_an_exception(name: str, value: Any, attempts: bool, arrays: bool) -> None:
    """Issue 28, 2.6: queue 2**31 and a topic of 300 characters were."""
    bench = Bench()
    if arrays:
        bench.half_batches._arrays, bench.half_batches._arrays_requested = array_verification(), True
    base = {} if attempts else {"batch": None, "tx_id": "T1", "attempt": ""}
    assert isinstance(
        bench.prepare(**{**base, name: value}), Sent if name in ("grace_ms", "default_queues") else Refused
    )


@pytest.mark.parametrize(
    ("winners", "changes", "text"),
    [
        ((Winner("0.1", 1, 1, 0), Winner("0.1", 1, 1, 0)), {}, "wins twice"),
        ((Winner("0.1", -1, 1, 0),), {}, "negative"),
        ((Winner("0.1", 1, 1 << 32, 0),), {}, "too large"),
        ((Winner("a b", 1, 1, 0),), {}, "not an attempt"),
        ((), {"batch": B0._replace(batch=-1)}, "number from 0"),
        ((), {"group": "a b"}, "producer group"),
    ],
)
def test_decision_with_invalid_names_is_refused(
    winners: tuple[Winner, ...], changes: dict[str, Any], text: str
) -> None:
    reply = Bench().decide(*winners, **changes)
    assert isinstance(reply, Refused)
    assert reply.why is Why.INVALID_PARAMETER
    assert text in reply.text


def test_invalid_batch_is_not_searched() -> None:
    bench = Bench()
    bench.half_batches.find(1, B0._replace(run=""), bench.deliver, "context")
    assert isinstance(bench.replies[-1], Refused)


def test_decision_that_copies_first_is_delivered_once_when_it_is_decided() -> None:
    bench = Bench()
    bodies = [bytes([number]) * 100_000 for number in range(4)]
    for index, body in enumerate(bodies):
        assert isinstance(bench.prepare(payload=bench.payload(body), index=index), Sent)
    bench.sequencer.core.roll()
    replies = len(bench.replies)
    checksum = sum(crc32(bench.payload(body)) for body in bodies) & 0xFFFFFFFF
    assert isinstance(bench.decide(Winner("0.1", 4, 4, checksum)), BatchDecided)
    assert len(bench.replies) == replies + 1
    assert len(bench.sequencer.core.of(CopiedHalfBatch)) == 4


def test_only_chosen_ids_of_transactions_are_searched() -> None:
    bench = Bench()
    ours = UniqueIds(SystemClock(), SystemEntropy()).transaction_id()
    for tx_id, changes in (
        ("", {}),
        ("order-17", {"batch": None, "attempt": ""}),
        (ours, {"batch": None, "attempt": ""}),
    ):
        assert isinstance(bench.prepare(tx_id=tx_id, **changes), Sent)
    assert bench.searched == ["order-17"]
