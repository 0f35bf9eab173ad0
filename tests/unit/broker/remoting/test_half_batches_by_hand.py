"""Half batches without a frame: only a correct payload reaches the core, and a decision continues after its copies."""

from typing import Any
from zlib import crc32

import pytest
from tests.support.services import Answered, CoreSequencer, FakeGateway, FakePeer, parts

from halfmq import limits
from halfmq.broker.remoting import half_batches
from halfmq.broker.remoting.half_batches import HalfBatchCommands
from halfmq.broker.services.payload_arrays import array_verification
from halfmq.client.unique_ids import UniqueIds
from halfmq.core.commands import Winner
from halfmq.model.half_batch import HalfMessage, build_payload
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import CopiedHalfBatch
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.half_batches import DecideFields, DecisionFields, PrepareFields, WinnerRow, encode_winners
from halfmq.wire.remoting.header import Request

B0 = QueryBatch("q1", 0, "r1")


class Bench:
    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        self.sequencer = CoreSequencer(BrokerSettings(segment_bytes=segment_bytes))
        #: Ids that were searched before the decision.
        self.searched: list[str] = []
        self.offloaded: list[tuple[Any, Any]] = []
        self.gateway = FakeGateway()
        self.half_batches = HalfBatchCommands(
            parts(self.sequencer, gateway=self.gateway, store=self, chosen_ids=self, offload=self)
        )

    def send(self, peer: Any, command: Any, deliver: Any, context: Any) -> None:
        """In place of ``ChosenIds``."""
        self.searched.append(command.tx_id)
        self.sequencer.submit(command, deliver, context)

    def examine_shown(self, offset: int, messages: int) -> None:
        """In place of the store."""

    def run(self, work: Any, done: Any) -> None:
        """In place of ``Offload``: the thread is busy with it."""
        self.offloaded.append((work, done))

    def payload(self, body: bytes = b"one") -> bytes:
        host = self.sequencer.view.settings.store_host
        return build_payload(
            [HalfMessage(0, 0, body, b"A\x01b\x02")],
            topic="orders",
            queue_id=0,
            born_time_ms=1,
            born_host=host,
            store_host=host,
        )[0]

    def answer(self, ext: Any, body: bytes = b"") -> Answered:
        """The response to these fields."""
        serve = {
            PrepareFields: self.half_batches.prepare, DecideFields: self.half_batches.decide,
            DecisionFields: self.half_batches.decision,
        }[type(ext)]  # fmt: skip
        serve(FakePeer(), Request(code=29_012, opaque=1, ext=ext, body=body))  # type: ignore[arg-type]
        return self.gateway.answers[-1]

    def prepare(self, **changes: Any) -> Answered:
        payload = changes.pop("payload", self.payload())
        batch = changes.pop("batch", B0)
        of_query = {} if batch is None else {"query": batch.query, "batch": batch.batch, "run": batch.run}
        fields = {
            "group": "PG", "tx_id": "", "attempt": "0.1", "index": 0, "topic": "orders", "queue_id": 0, "messages": 1,
            "checksum": crc32(payload), **of_query, **changes,
        }  # fmt: skip
        return self.answer(PrepareFields(**fields), payload)

    def decide(self, *winners: Winner, batch: QueryBatch = B0, group: str = "PG") -> Answered:
        fields = DecideFields(group, (b"d" * 16).hex(), batch.query, batch.batch, batch.run)
        return self.answer(fields, encode_winners([WinnerRow(*winner) for winner in winners]))

    def find(self, batch: QueryBatch) -> Answered:
        return self.answer(DecisionFields(batch.query, batch.batch, batch.run))


def test_correct_payload_is_stored_and_decided() -> None:
    bench = Bench()
    assert set(bench.prepare().ext) == {"offset", "halfIndex"}
    assert bench.decide(Winner("0.1", 1, 1, crc32(bench.payload()))).ext["repeated"] is False
    assert bench.find(B0).ext["decided"] is True


def test_numpy_is_imported_on_the_thread_while_payloads_are_verified_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    plain: list[int] = []
    verify = half_batches.verification
    monkeypatch.setattr(half_batches, "verification", lambda *a, **k: plain.append(1) or verify(*a, **k))
    assert bench.prepare().code == 0
    assert bench.prepare(index=1).code == 0
    assert len(plain) == 2
    [(work, done)] = bench.offloaded
    assert work is array_verification
    done(work())
    assert bench.prepare(index=2).code == 0
    assert len(plain) == 2


def test_half_batches_are_stored_if_numpy_cannot_be_imported() -> None:
    bench = Bench()
    assert bench.prepare().code == 0
    [(_, done)] = bench.offloaded
    done(OSError("a library is damaged"))
    assert bench.prepare(index=1).code == 0
    assert len(bench.offloaded) == 1


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"payload": b""}, ResponseCode.MESSAGE_ILLEGAL, "cannot be 1 messages"),
        ({"messages": 2}, ResponseCode.MESSAGE_ILLEGAL, "cannot be 2 messages"),
        ({"checksum": 1}, ResponseCode.INVALID_PARAMETER, "checksum"),
        ({"payload": bytes(limits.HALF_BATCH_BYTES_MAX + 1)}, ResponseCode.INVALID_PARAMETER, "at most"),
        ({"topic": "other"}, ResponseCode.MESSAGE_ILLEGAL, "topic"),
        ({"group": "a b"}, ResponseCode.INVALID_PARAMETER, "producer group"),
        ({"group": ""}, ResponseCode.INVALID_PARAMETER, "producer group"),
        ({"batch": B0._replace(query="a b")}, ResponseCode.INVALID_PARAMETER, "name of a query"),
        ({"attempt": ""}, ResponseCode.INVALID_PARAMETER, "not an attempt"),
        ({"count": 3}, ResponseCode.INVALID_PARAMETER, "does not state"),
        ({"batch": None, "tx_id": "T1"}, ResponseCode.INVALID_PARAMETER, "attempt"),
        ({"batch": None, "tx_id": "a b", "attempt": ""}, ResponseCode.INVALID_PARAMETER, "transaction id"),
        ({"index": -1}, ResponseCode.INVALID_PARAMETER, "half batch -1"),
        ({"index": limits.TRANSACTION_HALF_BATCHES_MAX}, ResponseCode.INVALID_PARAMETER, "half batch"),
        (
            {"batch": None, "tx_id": "T1", "attempt": "", "index": 2, "count": 2},
            ResponseCode.INVALID_PARAMETER,
            "2 of 2",
        ),
    ],
)
def test_what_is_wrong_is_refused_before_it_is_stored(changes: dict[str, Any], code: int, text: str) -> None:
    bench = Bench()
    reply = bench.prepare(**changes)
    assert reply.code == code
    assert text in reply.remark
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
    accepted = name in ("grace_ms", "default_queues")
    assert (bench.prepare(**{**base, name: value}).code == 0) == accepted
    assert bench.gateway.answers[-1].code in (0, ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)


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
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert text in reply.remark


def test_invalid_batch_is_not_searched() -> None:
    bench = Bench()
    assert bench.find(B0._replace(run="")).code == ResponseCode.INVALID_PARAMETER


def test_decision_that_copies_first_is_delivered_once_when_it_is_decided() -> None:
    bench = Bench()
    bodies = [bytes([number]) * 100_000 for number in range(4)]
    for index, body in enumerate(bodies):
        assert bench.prepare(payload=bench.payload(body), index=index).code == 0
    bench.sequencer.core.roll()
    replies = len(bench.gateway.answers)
    checksum = sum(crc32(bench.payload(body)) for body in bodies) & 0xFFFFFFFF
    assert bench.decide(Winner("0.1", 4, 4, checksum)).code == 0
    assert len(bench.gateway.answers) == replies + 1
    assert len(bench.sequencer.core.of(CopiedHalfBatch)) == 4


def test_only_chosen_ids_of_transactions_are_searched() -> None:
    bench = Bench()
    ours = UniqueIds(SystemClock(), SystemEntropy()).transaction_id()
    for tx_id, changes in (
        ("", {}),
        ("order-17", {"batch": None, "attempt": ""}),
        (ours, {"batch": None, "attempt": ""}),
    ):
        assert bench.prepare(tx_id=tx_id, **changes).code == 0
    assert bench.searched == ["order-17"]
