"""When checks are sent, and which of them count: promise 7, computed from the records and not from the broker's schedule.

    never too early     no check before the grace period ends, the message's own if it has one, in the broker's time; what
                        clients receive in virtual time is verified in ``check_rules``
    never too late      a transaction whose check is due, with a reachable producer and capacity for it, is checked within
                        ``_SLACK_STEPS`` inspections
    often enough        the time between two checks follows the back-off of docs/transactions.md, and never exceeds its bound
    only if delivered   a check counts when a connection accepted it; one that reached nobody is not counted

Lateness is a violation only if several inspections in one run of the broker found it: a pause or a slow disk between two of
them is not an error of the schedule.
"""

from collections import Counter
from typing import Any

from halfmq.core.decision import SendCheck
from halfmq.limits import CHECK_BACKOFF_FACTOR
from halfmq.model import properties
from halfmq.model.records import PARKED_MS, Checked, HalfRecord
from halfmq.model.settings import BrokerSettings
from tests.simulation.promises import Violation

#: Number of inspections, half a second apart, at each of which a transaction must have waited too long.
_SLACK_STEPS = 4
#: Checks are scheduled in buckets of 64 ms.
_ROUNDING_MS = 200

_Key = tuple[str, str]


class CheckTimes:
    """Call ``started`` with each broker that serves, then pass its records and effects, and call ``look`` each half second."""

    def __init__(self, settings: BrokerSettings, counts: Counter[str]) -> None:
        #: Settings of the broker that serves.
        self.settings = settings
        self._counts = counts
        #: End of the grace period, broker time, ms: no check before; the first one then, if a producer is reachable.
        self._immune: dict[_Key, int] = {}
        #: The same when a check was last decided: a further half may come later in the same turn.
        self._immune_then: dict[_Key, int] = {}
        #: The end that each half set, by index. A half lost in a power loss comes again, perhaps at an earlier broker time.
        self._immune_by: dict[_Key, dict[int, int]] = {}
        self._due: dict[_Key, int] = {}
        #: Number and next time of the last logged check.
        self._put_off: dict[_Key, tuple[int, int]] = {}
        #: In this run: checks counted when it began, checks sent since, checks decided and not sent.
        self._base: dict[_Key, int] = {}
        self._reached: Counter[_Key] = Counter()
        self._out: Counter[_Key] = Counter()
        #: Number of consecutive inspections at which it was late.
        self._late: Counter[_Key] = Counter()

    def started(self, state: Any) -> None:
        self._base = {
            (group.name, tx_id): known.checks
            for group in state.producer_groups.values()
            for tx_id, known in group.undecided.items()
        }
        self._reached.clear()
        self._out.clear()
        self._late.clear()
        for key, immune_by in list(self._immune_by.items()):
            group = state.producer_groups.get(key[0])
            known = group.undecided.get(key[1]) if group is not None else None
            stored = {half.index for half in known.halves} if known is not None else set()
            for index in immune_by.keys() - stored:
                del immune_by[index]
                self._due.pop(key, None)
            self._immune[key] = max(immune_by.values(), default=0)
            if not immune_by:
                del self._immune_by[key], self._immune[key]

    def forget(self) -> None:
        """Durability is ``memory``, and a power loss removed the end of the log: broker time may continue from before it."""
        self._immune.clear()
        self._immune_by.clear()
        self._due.clear()

    # --- in the log --------------------------------------------------------------------------------------------------

    def half(self, record: HalfRecord, now_ms: int) -> None:
        key = (record.group, record.tx_id)
        own = properties.to_dict(record.message.properties).get(properties.CHECK_IMMUNITY_SECONDS, "")
        grace_ms = int(own) * 1_000 if own.isdigit() else self.settings.check_immunity_ms
        self._immune_by.setdefault(key, {})[record.index] = now_ms + grace_ms
        self._immune[key] = max(self._immune_by[key].values())
        self._due[key] = max(self._due.get(key, 0), self._immune[key])

    def checked(self, record: Checked, now_ms: int) -> None:
        """
        Raises:
            Violation: it delays the next check too long.
        """
        key = (record.group, record.tx_id)
        if record.next_check_at_ms >= PARKED_MS:
            return
        self._immune_then[key] = self._immune.get(key, 0)
        self._counts["look back-off"] += 1
        latest_ms = max(now_ms + self._pause_ms(record.checks), self._immune.get(key, 0))
        checks_before, next_before_ms = self._put_off.get(key, (0, 0))
        if (
            record.checks < checks_before
        ):  # one reached nobody, and another was sent meanwhile: the next time is unchanged
            latest_ms = max(latest_ms, next_before_ms)
        self._put_off[key] = record.checks, record.next_check_at_ms
        if record.next_check_at_ms > latest_ms:
            raise Violation(
                f"Progress: {record.tx_id} was asked {record.checks} times, and at {now_ms} the next one is put off to "
                f"{record.next_check_at_ms}; {latest_ms} at the latest",
                record.tx_id,
            )

    def _pause_ms(self, checks: int) -> int:
        """Maximum time from check number ``checks`` to the next."""
        settings = self.settings
        doublings = min(max(0, checks - 1), 40)
        interval = min(settings.check_interval_ms * CHECK_BACKOFF_FACTOR**doublings, settings.check_interval_max_ms)
        return int(max(interval + interval // 4, settings.check_answer_ms))

    def asked(self, effects: list[Any], now_ms: int) -> None:
        """
        Raises:
            Violation: a check is sent too early, or its number counts checks that reached nobody.
        """
        for effect in effects:
            if type(effect) is not SendCheck:
                continue
            key = (effect.group, effect.tx_id)
            self._counts["look check sent"] += 1
            grace_until_ms = self._immune_then.get(key, 0)
            if now_ms < grace_until_ms:
                raise Violation(f"Progress: {effect} at {now_ms}, immune until {grace_until_ms}", effect.tx_id)
            most = self._base.get(key, 0) + self._reached[key] + self._out[key] + 1
            if effect.checks > most:
                raise Violation(f"Progress: {effect} is number {most}: what reached nobody was counted", effect.tx_id)
            self._out[key] += 1
            self._due[key] = now_ms + self._pause_ms(effect.checks)

    def left(self, check: SendCheck, *, reached: bool) -> None:
        key = (check.group, check.tx_id)
        self._out[key] -= 1
        if reached:
            self._reached[key] += 1
        else:
            self._counts["check reached nobody"] += 1

    # --- each half second --------------------------------------------------------------------------------------------

    def look(self, broker: Any, *, paused: bool) -> None:
        """
        Raises:
            Violation: a check is not sent although it is due, or a check counts that reached nobody.
        """
        sequencer = broker._sequencer
        state = sequencer.engine.state
        if paused or state.session.disk_full or sequencer.indexes_lag or sequencer.failed is not None:
            self._late.clear()
            return
        now_ms = sequencer._time.now_ms()
        late: Counter[_Key] = Counter()
        for group in state.producer_groups.values():
            room = len(group.session.in_flight) < state.settings.checks_in_flight_max
            asks = (group.session.members or group.session.held_polls) and room and group.policy is None
            for tx_id, known in group.undecided.items():
                key = (group.name, tx_id)
                if not sequencer._pending:
                    self._look_at_count(key, known.checks)
                if asks and tx_id not in group.session.in_flight and not known.parked:
                    self._counts["look check due"] += 1
                    due_ms = self._due.get(key)
                    if due_ms is not None and now_ms > due_ms + _ROUNDING_MS:
                        late[key] = self._late[key] + 1
                        if late[key] >= _SLACK_STEPS:
                            raise Violation(
                                f"Progress: {tx_id} was due at {due_ms}, and is not asked at {now_ms}", tx_id
                            )
        self._late = late

    def _look_at_count(self, key: _Key, checks: int) -> None:
        self._counts["look checks counted"] += 1
        most = self._base.get(key, 0) + self._reached[key] + self._out[key]
        if checks > most:
            raise Violation(f"Progress: {key[1]} counts {checks} checks, {most} left: one that reached nobody", key[1])
