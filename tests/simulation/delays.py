"""Delayed messages: not visible before their time, and visible soon after it (docs/promises.md: at or after, not exactly at).

The due time is computed from the stored message, not from the broker's ``due_ms``; time is the broker's, as stated by its
batches. What clients receive, in virtual time, is verified in ``promises``.
"""

from collections import Counter
from typing import Any

from halfmq.model import properties
from halfmq.model.half_batch import ITEM_HEAD_BYTES, item_places
from halfmq.model.records import (
    HALF_BATCH_PAYLOAD_AT,
    Committed,
    Decided,
    DelayedRecord,
    HalfBatch,
    HalfRecord,
    Released,
)
from halfmq.model.stored_message import StoredMessage
from halfmq.model.stored_message import decode as decode_message
from tests.simulation.promises import Violation
from tests.simulation.wire_tap import delay_ms_of

#: Number of inspections, half a second apart, for which the first delayed message must have been due.
_SLACK_STEPS = 4
_SLACK_MS = 500


class Delays:
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._late_steps = 0

    def look(self, broker: Any, *, paused: bool) -> None:
        """
        Raises:
            Violation: a message is due, and the broker has had time to make it visible.
        """
        sequencer = broker._sequencer
        state = sequencer.engine.state
        late = False
        if state.derived.delayed_heap and not (
            paused or state.session.disk_full or sequencer.indexes_lag or sequencer.failed is not None
        ):
            self._counts["look delayed is shown"] += 1
            late = min(state.derived.delayed_heap)[0] + _SLACK_MS < sequencer._time.now_ms()
        self._late_steps = self._late_steps + 1 if late else 0
        if self._late_steps >= _SLACK_STEPS:
            raise Violation(
                f"Delay: {min(state.derived.delayed_heap)} is due at {sequencer._time.now_ms()} and not shown"
            )

    def close(self, records: list[tuple[Any, Any]]) -> None:
        """Check all records of the log, with their batches.

        Raises:
            Violation: a message became visible too early.
        """
        delay_of_half: dict[int, int] = {}
        #: Half index of a half batch with delays -> bytes from the start of the record to each message, and its delay.
        delays_of_batch: dict[int, list[tuple[int, int]]] = {}
        due_ms: dict[int, int] = {}
        for batch, record in records:
            kind = type(record)
            if kind is HalfRecord:
                delay_ms = _delay_ms(record.message)
                if delay_ms:
                    delay_of_half[record.half_index] = delay_ms
            elif kind is DelayedRecord:
                due_ms[record.offset] = batch.broker_time_ms + _delay_ms(record.message)
            elif kind is Committed and delay_of_half:
                for ref in record.refs:
                    if ref.half_index in delay_of_half:
                        due_ms[ref.first_offset] = batch.broker_time_ms + delay_of_half[ref.half_index]
            elif kind is HalfBatch:
                delays = _delays_in(record)
                if any(delay_ms >= 0 for _, delay_ms in delays):
                    delays_of_batch[record.half_index] = delays
            elif kind is Decided and delays_of_batch:
                for ref in record.refs:
                    if ref.half_index in delays_of_batch:
                        self._counts["look delayed half batch"] += 1
                        if ref.queue_offset >= 0:
                            raise Violation(
                                f"Delay: {record.offset} shows the delayed half batch {ref.half_index} at once"
                            )
                    for at, delay_ms in delays_of_batch.get(ref.half_index, ()):
                        due_ms[ref.first_offset + at] = batch.broker_time_ms + delay_ms
            elif kind is Released:
                for ref in record.refs:
                    self._counts["look delayed until"] += 1
                    if batch.broker_time_ms < due_ms.get(ref.first_offset, 0):
                        raise Violation(
                            f"Delay: the message at {ref.first_offset} is shown at {batch.broker_time_ms}, and is due at "
                            f"{due_ms[ref.first_offset]}"
                        )


def _delays_in(record: HalfBatch) -> list[tuple[int, int]]:
    """(bytes from the start of the record, delay in ms) of each message; 0: a time that is past; -1: no delay."""
    found = []
    for at, _ in item_places(record.payload, record.batch.messages):
        message, _, _ = decode_message(record.payload, at - HALF_BATCH_PAYLOAD_AT + ITEM_HEAD_BYTES)
        is_delayed = b"DELAY\x01" in message.properties or b"TIMER_" in message.properties
        found.append((at, _delay_ms(message) if is_delayed else -1))
    return found


def _delay_ms(message: StoredMessage) -> int:
    text = message.properties
    return delay_ms_of(properties.to_dict(text)) if b"DELAY" in text or b"TIMER_" in text else 0
