"""What becomes of a verdict that memory no longer knows; the table of all cases is in ``tests/unit/core/transaction``."""

from typing import Any

from tests.support.core_log import half
from tests.support.services import CoreSequencer

from halfmq.broker.services.verdicts import Verdicts
from halfmq.core.commands import RequestedVerdict, SettledRow
from halfmq.core.decision import Refused, Sent, Settled, Why
from halfmq.model.ids import hash64
from halfmq.model.records import DecidedBy


class Rows:
    def __init__(self) -> None:
        self.row: SettledRow | None = None
        self.asked: list[int] = []
        #: Called when a row is asked for.
        self.then: Any = lambda: None

    def settled_row(self, half_index: int) -> SettledRow | None:
        self.asked.append(half_index)
        row = self.row
        self.then()
        return row


class Bench:
    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.rows = Rows()
        self.verdicts = Verdicts(self.sequencer, self.rows)  # type: ignore[arg-type]

    def end(self, tx_id: str, half_index: int, log_offset: int, *, waits: bool = True) -> list[Any]:
        replies: list[Any] = []

        def deliver(context: Any, reply: Any) -> None:
            assert context == "context"
            replies.append(reply)

        self.verdicts.end(
            1, "PG", tx_id, half_index, log_offset, RequestedVerdict.COMMIT, DecidedBy.PRODUCER, "",
            deliver if waits else None, "context",
        )  # fmt: skip
        return replies

    def committed_row(self, tx_id: str, log_offset: int) -> SettledRow:
        return SettledRow(0, log_offset, True, 4_096, hash64(tx_id.encode()), hash64(b"PG"))


def test_transaction_in_memory_is_settled_without_a_look_at_the_table() -> None:
    bench = Bench()
    sent = bench.sequencer.core.do(half("T1"))
    assert isinstance(sent, Sent)
    (settled,) = bench.end("T1", sent.queue_offset, sent.log_offset)
    assert isinstance(settled, Settled)
    assert bench.end("T1", sent.queue_offset, sent.log_offset, waits=False) == []
    assert bench.rows.asked == []


def test_verdict_that_memory_forgot_is_read_from_the_table() -> None:
    bench = Bench()
    bench.rows.row = bench.committed_row("T1", 64)
    (settled,) = bench.end("T1", 0, 64)
    assert (settled.committed, settled.position, settled.repeated) == (True, 4_096, True)
    (other,) = bench.end("T1", 0, 65)
    assert isinstance(other, Refused), "another half"


def test_verdict_that_memory_forgets_between_look_and_decision_is_asked_for_once_more() -> None:
    bench = Bench()
    row = bench.committed_row("T1", 64)
    bench.rows.then = lambda: setattr(bench.rows, "row", row)
    (settled,) = bench.end("T1", 0, 64)
    assert (settled.committed, bench.rows.asked) == (True, [0, 0])


def test_transaction_that_nobody_knows_is_not_found() -> None:
    bench = Bench()
    (refused,) = bench.end("T1", 0, 64)
    assert (refused.why, bench.rows.asked) == (Why.NOT_FOUND, [0, 0])
