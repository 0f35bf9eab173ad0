"""Delayed messages: not visible before their time, and visible soon after it (docs/promises.md: at or after, not exactly at).

The due time is computed from the stored message, not from the broker's ``due_ms``; time is the broker's, as stated by its
batches. What clients receive, in virtual time, is verified in ``promises``.
"""

from collections import Counter
from typing import Any

from halfmq.model import properties
from halfmq.model.records import Committed, DelayedRecord, HalfRecord, Released
from halfmq.model.stored_message import StoredMessage
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
            elif kind is Released:
                for ref in record.refs:
                    self._counts["look delayed until"] += 1
                    if batch.broker_time_ms < due_ms.get(ref.first_offset, 0):
                        raise Violation(
                            f"Delay: the message at {ref.first_offset} is shown at {batch.broker_time_ms}, and is due at "
                            f"{due_ms[ref.first_offset]}"
                        )


def _delay_ms(message: StoredMessage) -> int:
    text = message.properties
    return delay_ms_of(properties.to_dict(text)) if b"DELAY" in text or b"TIMER_" in text else 0
