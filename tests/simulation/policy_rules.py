"""What policies, limits and grace periods allow, verified for each record of the log in order.

It reads only records and settings, and keeps its own account of them, independent of ``core``.

    by a policy    never COMMITTED; ROLLED_BACK if the group had "rollback", after that many checks, the last one sent in
                   the run of the broker that decided, and its response overdue; parked likewise, or because of the age
    limits         a transaction begins only below the group's number, and its half messages fit into the group's bytes
    grace period   no check before its end, as set by the message or else by the broker
    settings       change only as the administrator requested

It does not know what a trim removed: there it trusts the copies, since a transaction may have begun before the log does.
Numbers and ages are verified only where the log is complete or a copy states them.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from halfmq.model import properties
from halfmq.model.records import (
    MESSAGE_AT,
    PARKED_MS,
    Base,
    Checked,
    Committed,
    CopiedHalf,
    DecidedBy,
    EpochStarted,
    HalfRecord,
    Parked,
    ParkedBecause,
    ProducerSet,
    RolledBack,
)
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting.producer_groups import ProducerChange
from tests.simulation.promises import Violation


class _Limits(NamedTuple):
    """The limits in the log."""

    name: str
    check_limit: int
    past_limit: str
    skip_age_ms: int
    undecided_max: int
    undecided_bytes_max: int
    set_by: str


class _Open:
    """An undecided transaction."""

    __slots__ = (
        "aside",
        "checks",
        "grace_until_ms",
        "halves",
        "message_bytes",
        "next_check_ms",
        "prepared_ms",
        "sent_in",
        "sure",
    )

    def __init__(self, prepared_ms: int, *, sure: bool) -> None:
        self.prepared_ms = prepared_ms
        #: Its beginning is known exactly.
        self.sure = sure
        self.grace_until_ms = 0
        self.halves: set[int] = set()
        self.message_bytes = 0
        self.checks = 0
        self.next_check_ms = 0
        self.aside = False
        #: Epoch in which the last check was sent; None: its record is gone.
        self.sent_in: int | None = None


def look_at_log(
    records: Iterable[tuple[Any, Any]],
    settings: BrokerSettings,
    asked: dict[str, list[ProducerChange]],
    counts: Counter[str],
) -> None:
    """``records``: (batch, record) each. ``asked``: by group, the requests of operators.

    Raises:
        Violation: the log contains what is not permitted.
    """
    looks = _PolicyLooks(settings, asked, counts)
    for batch, record in records:
        look = _LOOK.get(type(record))
        if look is not None:
            look(looks, record, batch)
        looks.first = False


class _PolicyLooks:
    def __init__(self, settings: BrokerSettings, asked: dict[str, list[ProducerChange]], counts: Counter[str]) -> None:
        self.first = True
        #: Grace period of the epoch, from its start record or the base after it.
        self._epoch_immunity_ms = settings.check_immunity_ms
        #: Runs of the broker that began in this log.
        self._runs = 0
        self._settings = settings
        self._asked = asked
        self._counts = counts
        self._limits: dict[str, _Limits] = {}
        self._open: dict[tuple[str, str], _Open] = {}
        #: While the log is complete: number and bytes of undecided transactions by group.
        self._whole = True
        self._numbers: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    # --- settings ----------------------------------------------------------------------------------------------------

    def base(self, record: Base, batch: Any) -> None:
        """The first base shows what a trim has removed; redo compared later ones with the state."""
        if self.first:
            fields = msgspec.msgpack.decode(record.payload)
            self._whole = batch.offset == 0
            for payload in fields[7] if len(fields) > 7 else ():
                self._take(payload)
            if len(fields) > 8:
                self._epoch_immunity_ms = fields[8]

    def epoch_started(self, record: EpochStarted, batch: Any) -> None:
        self._epoch_immunity_ms = msgspec.msgpack.decode(record.payload)[2]
        self._runs += 1

    def _take(self, payload: bytes) -> _Limits:
        limits = _Limits(*msgspec.msgpack.decode(payload)[:7])
        self._limits[limits.name] = limits
        return limits

    def producer_set(self, record: ProducerSet, batch: Any) -> None:
        before = self._limits_of(record.name)
        now = self._take(record.payload)
        self._counts["look settings of a group"] += 1
        changes = self._asked.get(record.name, [])
        for name in ProducerChange.__struct_fields__:
            value = getattr(now, name)
            if value != getattr(before, name) and all(getattr(change, name) != value for change in changes):
                raise Violation(f"Validity: {record.name} was set to {now}, and nobody asked for {name} {value}")
        if now.set_by != "ada":
            raise Violation(f"Validity: {record.name} was set to {now} by nobody known")

    def _limits_of(self, group: str) -> _Limits:
        return self._limits.get(group) or _Limits(group, 0, "wait", 0, -1, -1, "")

    # --- transactions ------------------------------------------------------------------------------------------------

    def half(self, record: HalfRecord, batch: Any) -> None:
        key = record.group, record.tx_id
        known = self._open.get(key)
        limits = self._limits_of(record.group)
        number = self._settings.undecided_max if limits.undecided_max < 0 else limits.undecided_max
        size = self._settings.undecided_bytes_max if limits.undecided_bytes_max < 0 else limits.undecided_bytes_max
        message_bytes = record.size - MESSAGE_AT
        if known is None:
            known = self._open[key] = _Open(batch.broker_time_ms, sure=self._whole)
            self._numbers[record.group] += 1
            self._look(
                not self._whole or self._numbers[record.group] <= number,
                "limit of undecided", key, f"is number {self._numbers[record.group]}, {number} are allowed",
            )  # fmt: skip
        self._bytes[record.group] += message_bytes
        self._look(
            not self._whole or self._bytes[record.group] <= size,
            "limit of bytes", key, f"makes {self._bytes[record.group]} bytes, {size} are allowed",
        )  # fmt: skip
        known.halves.add(record.half_index)
        known.message_bytes += message_bytes
        known.grace_until_ms = max(known.grace_until_ms, batch.broker_time_ms + self._immunity_ms(record))

    def _immunity_ms(self, record: HalfRecord) -> int:
        text = properties.to_dict(record.message.properties).get("CHECK_IMMUNITY_TIME_IN_SECONDS", "")
        return 1_000 * int(text) if text.isdigit() else self._epoch_immunity_ms

    def copied(self, record: CopiedHalf, batch: Any) -> None:
        key = record.group, record.tx_id
        known = self._open.get(key)
        if known is None:
            known = self._open[key] = _Open(record.prepared_at_ms, sure=True)
            known.grace_until_ms = record.grace_until_ms
        elif not known.sure:
            known.prepared_ms, known.grace_until_ms = record.prepared_at_ms, record.grace_until_ms
            known.sure = True
        else:
            self._look(
                (known.checks, known.grace_until_ms, known.prepared_ms)
                == (record.checks, record.grace_until_ms, record.prepared_at_ms),
                "copy", key, f"was copied as {record.checks, record.grace_until_ms, record.prepared_at_ms}",
            )  # fmt: skip
        known.checks = record.checks
        known.next_check_ms = record.next_check_at_ms
        known.aside = record.next_check_at_ms >= PARKED_MS

    def checked(self, record: Checked, batch: Any) -> None:
        key = record.group, record.tx_id
        known = self._open.get(key)
        if known is None:
            self._look(not self._whole, "check", key, "is asked about, and is not undecided")
            return
        # For one that began before the log, the first number is useless: it may be due to a response as well as to a check.
        counted = known.sure or known.checks > 0
        sent = (counted and record.checks > known.checks) or known.aside
        self._look(
            not sent or batch.broker_time_ms >= known.grace_until_ms,
            "immunity in the log", key, f"is immune until {known.grace_until_ms}, asked at {batch.broker_time_ms}",
        )  # fmt: skip
        if sent:
            known.sent_in = self._runs
        if known.aside:
            self._counts["knob parked, and taken up again"] += 1
            self._look(record.checks <= 1, "counts anew", key, f"was parked, and its check is number {record.checks}")
        known.checks, known.next_check_ms, known.aside = record.checks, record.next_check_at_ms, False

    # --- verdicts ----------------------------------------------------------------------------------------------------

    def committed(self, record: Committed, batch: Any) -> None:
        key = record.group, record.tx_id
        self._look(record.decided_by != DecidedBy.POLICY, "policy", key, "was committed by a policy")
        self._settled(key)

    def rolled_back(self, record: RolledBack, batch: Any) -> None:
        key = record.group, record.tx_id
        if record.decided_by == DecidedBy.POLICY:
            self._counts["knob rolled back by a policy"] += 1
            limits = self._limits_of(record.group)
            self._look(limits.past_limit == "rollback", "policy", key, f"was rolled back by {limits}")
            self._look_at_checks(key, limits, batch, "rolled back")
        self._settled(key)

    def parked(self, record: Parked, batch: Any) -> None:
        key = record.group, record.tx_id
        known = self._open.get(key)
        limits = self._limits_of(record.group)
        self._counts[f"knob parked because of {ParkedBecause(record.because).name}"] += 1
        if record.because == ParkedBecause.CHECKS:
            self._look(limits.past_limit == "set-aside", "policy", key, f"was parked by {limits}")
            self._look_at_checks(key, limits, batch, "parked")
        elif known is not None and known.sure:
            age_ms = batch.broker_time_ms - known.prepared_ms
            self._look(
                0 < limits.skip_age_ms <= age_ms and batch.broker_time_ms >= known.grace_until_ms,
                "age", key, f"was parked at the age of {age_ms} ms by {limits}",
            )  # fmt: skip
        if known is not None:
            self._look(not known.aside, "parked once", key, "was parked twice")
            known.aside = True

    def _look_at_checks(self, key: tuple[str, str], limits: _Limits, batch: Any, what: str) -> None:
        known = self._open.get(key)
        if known is None:
            self._look(not self._whole, "policy", key, f"was {what}, and is not undecided")
            return
        now_ms = batch.broker_time_ms
        why = (
            f"was {what} at {now_ms} after {known.checks} checks, the next was due at {known.next_check_ms}, immune until "
            f"{known.grace_until_ms}, by {limits}"
        )
        # A trim may have removed the checks of a transaction that began before the log does.
        right = limits.check_limit > 0 and (limits.check_limit <= known.checks or not known.sure)
        self._look(right, "check limit", key, why)
        self._look(not known.aside and known.grace_until_ms <= now_ms, "policy in time", key, why)
        self._look(known.next_check_ms <= now_ms, "policy behind the answer", key, why)
        if known.sent_in is not None:
            why = f"was {what} in run {self._runs} of the broker; its last check was sent in run {known.sent_in}"
            self._look(known.sent_in == self._runs, "policy behind a check of this run", key, why)

    def _settled(self, key: tuple[str, str]) -> None:
        known = self._open.pop(key, None)
        if known is not None:
            self._numbers[key[0]] -= 1
            self._bytes[key[0]] -= known.message_bytes

    def _look(self, right: bool, what: str, key: tuple[str, str], text: str) -> None:
        self._counts[f"look {what}"] += 1
        if not right:
            raise Violation(f"Validity: {key[1]} of {key[0]} {text}", key[1])


_LOOK = {
    Base: _PolicyLooks.base,
    EpochStarted: _PolicyLooks.epoch_started,
    ProducerSet: _PolicyLooks.producer_set,
    HalfRecord: _PolicyLooks.half,
    CopiedHalf: _PolicyLooks.copied,
    Checked: _PolicyLooks.checked,
    Committed: _PolicyLooks.committed,
    RolledBack: _PolicyLooks.rolled_back,
    Parked: _PolicyLooks.parked,
}
