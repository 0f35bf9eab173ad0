"""Sends as a front door calls them: what is submitted, and what is refused before it reaches the core."""

from typing import Any

from tests.support.core_log import PEER
from tests.support.services import CoreSequencer, FakePeer, raises, turns_at_once

from halfmq.broker.services.sends import Sends
from halfmq.client.unique_ids import UniqueIds
from halfmq.core.decision import Failed, Refused, Sent, SentBatch, Why
from halfmq.model.properties import encode
from halfmq.model.steps import Steps
from halfmq.model.stored_message import StoredMessage, body_crc_of
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy
from halfmq.wire.remoting.fields import SendFields


class Searched:
    """In place of ``ChosenIds``."""

    def __init__(self, bench: "Bench") -> None:
        self._bench = bench

    def send(self, peer: Any, command: Any, deliver: Any, context: Any) -> None:
        self._bench.searched.append(command.tx_id)
        self._bench.sequencer.submit_small(command, deliver, context)


class Bench:
    def __init__(self, message: StoredMessage | None = None) -> None:
        self.sequencer = CoreSequencer()
        self.message = message
        self.peer = FakePeer()
        self.replies: list[Any] = []
        #: Ids of halves that were searched before the decision.
        self.searched: list[str] = []
        self.sends = Sends(self.sequencer, self, Searched(self), turns_at_once())  # type: ignore[arg-type]

    def visible(self, offset: int) -> Steps[StoredMessage | None]:
        yield
        return self.message if offset == 4_096 else None

    def deliver(self, context: Any, reply: Any) -> None:
        assert context == "context"
        self.replies.append(reply)

    def send(self, pairs: dict[str, str], *, sys_flag: int = 0) -> Any:
        self.sends.send(FakePeer(), fields(encode(pairs).decode(), sys_flag), b"body", self.deliver, "context")
        return self.replies[-1]

    def send_back(self, log_offset: int) -> Any:
        self.sends.send_back(
            self.peer, "CG", log_offset, 3, 16, "M1", "", 0, -1, False, self.deliver, raises, "context"
        )
        return self.replies[-1]


def fields(properties: str = "", sys_flag: int = 0) -> SendFields:
    return SendFields(
        group="PG", topic="orders", queue_id=0, sys_flag=sys_flag, born_time_ms=77, flag=5, properties=properties
    )


def stored(body: bytes, body_crc: int) -> StoredMessage:
    return StoredMessage("orders", 0, 0, 0, 0, 1, PEER, 2, PEER, 0, 0, body, body_crc, b"UNIQ_KEY\x01M1\x02")


def test_a_plain_message_is_visible_and_a_half_is_undecided() -> None:
    bench = Bench()
    assert isinstance(bench.send({"UNIQ_KEY": "M1"}), Sent)
    assert isinstance(bench.send({"UNIQ_KEY": "T1", "TRAN_MSG": "true", "PGROUP": "PG"}), Sent)
    assert list(bench.sequencer.core.state.producer_groups["PG"].undecided) == ["T1"]


def test_only_ids_that_no_client_generated_are_searched() -> None:
    """Goal: a generated id costs nothing more. Ours has its form; another one is a UNIQ_KEY of the length that clients give it."""
    bench = Bench()
    java = "AC10000100002A9F0000000000000001"
    half = {"TRAN_MSG": "true", "PGROUP": "PG"}
    ours = UniqueIds(SystemClock(), SystemEntropy())
    several = {"HMQ_TX_INDEX": "0", "HMQ_TX_COUNT": "1"}
    for number, pairs in enumerate(
        [
            {"UNIQ_KEY": java},
            {"UNIQ_KEY": java + "0" * 24},
            {},
            {"UNIQ_KEY": ours.message_id(), "HMQ_TX_ID": ours.transaction_id(), **several},
            {"UNIQ_KEY": "order-1"},
            {"UNIQ_KEY": "B" * 32, "HMQ_TX_ID": "order-2", **several},
            {"UNIQ_KEY": "C" * 32, "HMQ_TX_ID": "D" * 32, **several},
        ]
    ):
        assert isinstance(bench.send(half | pairs), Sent), number
    bench.send({"UNIQ_KEY": "plain"})
    assert bench.searched == ["order-1", "order-2", "D" * 32]


def test_what_cannot_become_a_command_is_refused_without_one() -> None:
    bench = Bench()
    refused = bench.send({"UNIQ_KEY": "M1"}, sys_flag=4)
    assert isinstance(refused, Refused)
    assert refused.why is Why.MESSAGE_ILLEGAL
    bench.sends.send_batch(
        FakePeer(), fields(), [(0, b"", b"TRAN_MSG\x01true\x02")], 99, bench.deliver, raises, "context"
    )
    assert bench.replies[-1].why is Why.MESSAGE_ILLEGAL
    assert bench.sequencer.commands == []


def test_a_batch_goes_to_one_queue() -> None:
    bench = Bench()
    bench.sends.send_batch(
        FakePeer(), fields(), [(0, b"one", b""), (0, b"two", b"")], 99, bench.deliver, raises, "context"
    )
    (reply,) = bench.replies
    assert isinstance(reply, SentBatch)
    assert len(reply.log_offsets) == 2


def test_a_damaged_message_is_not_written_again() -> None:
    bench = Bench(stored(b"body", body_crc_of(b"other")))
    reply = bench.send_back(4_096)
    assert isinstance(reply, Failed)
    assert "damaged" in reply.text
    assert bench.sequencer.commands == []
    assert [kind for kind, _, _ in bench.peer.said] == [("damaged", 4_096)]
    whole = Bench(stored(b"body", body_crc_of(b"body")))
    assert isinstance(whole.send_back(4_096), Refused)
    assert len(whole.sequencer.commands) == 1, "the core decides: it knows no group CG"
