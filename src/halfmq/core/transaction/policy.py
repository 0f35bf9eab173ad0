"""Settings of a producer group: limits on undecided transactions, and a policy for those that stay undecided (docs/transactions.md).

Without a policy a transaction waits indefinitely; that is the default, and promise 2. RocketMQ discards in every group, after
``transactionCheckMax`` = 15 checks or ``fileReservedTime`` = 72 hours: it copies the half into TRANS_CHECK_MAX_TIME_TOPIC and forgets it
(``TransactionalMessageServiceImpl.needDiscard``, ``needSkip``). Here age never causes a rollback: it says nothing about the local
transaction.

``past_limit`` finds the transactions; this module creates their records, a bounded number for each tick.
"""

from collections.abc import Container
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.base_bytes import refuse_producer
from halfmq.core.commands import SetProducer
from halfmq.core.decision import NOTHING, Decision, Effect, PolicyActed, ProducerSettingsStored, Refused, Why, refuse
from halfmq.core.events import DecisionEvent, PolicyChanged, PolicyExamined
from halfmq.core.schema import producer_set
from halfmq.core.state import Policy, State, Undecided, next_offset
from halfmq.core.transaction.comparisons import COMPARED_BYTES_MAX, expected
from halfmq.core.transaction.machine import check_cancelled, halves_rolled_back, roll_back
from halfmq.core.transaction.past_limit import GROUPS_PER_TICK_MAX, exceeded_limit, is_in_flight
from halfmq.core.transaction.restored import park_restored, waits_for_operator
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.model.records import DecidedBy, OperatorAction, Parked, ParkedBecause, Record, RolledBack, parked_size
from halfmq.model.settings import PastLimit, ProducerSettings

#: Maximum number of transactions that one tick settles or parks.
ACTS_PER_TICK_MAX: Final = 256
#: Maximum value of a limit, which fits the record's fields and is readable.
_NUMBER_MAX: Final = 1 << 53
_CHECK_LIMIT_MAX: Final = 1_000_000


class Acts(NamedTuple):
    """Result of ``enforce``. ``more``: more is due now."""

    records: list[Record]
    effects: list[Effect]
    events: list[DecisionEvent]
    more: bool


def enforce(state: State, offset: int, bytes_max: int, now_ms: int, asked: Container[tuple[str, str]]) -> Acts:
    """Apply policies to transactions beyond their limits, with records from ``offset`` on. Apply ``TimePassed`` before.

    ``asked``: (group, id) of the checks of the same decision.
    """
    acts = Acts([], [], [], False)
    end = offset + bytes_max
    more = len(state.derived.policies_due) > GROUPS_PER_TICK_MAX
    for name in islice(state.derived.policies_due, GROUPS_PER_TICK_MAX):
        group = state.producer_groups[name]
        policy = group.policy
        looked_at: list[str] = []
        again: list[str] = []
        look_by_ms = 0
        full = False
        for tx_id in policy.session.past if policy is not None else ():
            known = group.undecided.get(tx_id)
            # If an operator requested a check in the meantime, the next check is scheduled.
            if known is None or is_in_flight(group, tx_id, now_ms) or (name, tx_id) in asked or policy is None:
                looked_at.append(tx_id)
                if known is not None:
                    look_by_ms = now_ms + state.settings.check_answer_ms
                continue
            because = exceeded_limit(policy, known, now_ms)
            if because is None:  # within the limits again: it gets checks like others
                looked_at.append(tx_id)
                again.append(tx_id)
                continue
            record = _record(state, policy, known, because, offset)
            size = record.size + (COMPARED_BYTES_MAX if isinstance(record, RolledBack) else 0)
            full = len(acts.records) >= ACTS_PER_TICK_MAX or offset + size > end
            if full:
                break
            looked_at.append(tx_id)
            acts.records.append(record)
            offset += record.size
            rolled_back = isinstance(record, RolledBack)
            because = because if isinstance(record, RolledBack) else ParkedBecause(record.because)
            acts.effects.append(PolicyActed(name, tx_id, because, known.checks, rolled_back))
            if isinstance(record, RolledBack):
                acts.events.extend((halves_rolled_back(known), *check_cancelled(group, tx_id)))
                compared, missed = expected(state, known, record, "", now_ms, before=len(acts.records))
                acts.records.extend(compared)
                acts.effects.extend(missed)
                offset += sum([one.size for one in compared])
        acts.events.append(PolicyExamined(name, tuple(looked_at), tuple(again), look_by_ms))
        more = more or full or (policy is not None and bool(policy.session.scan))
        if full:
            break
    return acts._replace(more=more)


def _record(state: State, policy: Policy, known: Undecided, because: ParkedBecause, offset: int) -> RolledBack | Parked:
    if because is ParkedBecause.CHECKS and policy.settings.past_limit is PastLimit.ROLLBACK:
        if waits_for_operator(state, known):
            return park_restored(known, DecidedBy.POLICY, offset)
        return roll_back(known, DecidedBy.POLICY, offset)
    return Parked(
        offset,
        parked_size(known.group, known.tx_id),
        known.group,
        known.tx_id,
        known.halves[0].half_index,
        known.checks,
        DecidedBy.POLICY,
        because,
    )


def decide_set_producer(state: State, command: SetProducer, now_ms: int) -> Decision:
    """Set limits and policy of a producer group. Parked transactions stay parked, and undecided ones are kept.

    Replies: ProducerSettingsStored: the settings from now on. Refused, nothing was changed: INVALID_PARAMETER: the value is invalid; the
        text states
            the valid range. LIMIT_REACHED: there is no space, or too many groups have settings. Existing settings can always be
            changed and removed.
    """
    settings = command.settings
    if command.only is not None:
        standing = state.producer_settings.get(settings.name) or ProducerSettings(settings.name)
        given = {name: getattr(settings, name) for name in command.only}
        settings = replace(standing, **given, set_by=settings.set_by)
    text = _refusal(settings)
    if text:
        return refuse(Why.INVALID_PARAMETER, text)
    refused = _too_many(state, settings) or refuse_producer(state, settings)
    if refused is not None:
        return Decision(NOTHING, refused)
    group = state.producer_groups.get(settings.name)
    before = group.policy.session if group is not None and group.policy is not None else None
    events = (
        (PolicyChanged(settings.name, tuple(before.past), before.last_check_delivered),) if before is not None else ()
    )
    decision = Decision((producer_set(next_offset(state), settings),), ProducerSettingsStored(settings), (), events)
    return signed(decision, OperatorAction.SET_PRODUCER, settings.name, command.by)


def _too_many(state: State, settings: ProducerSettings) -> Refused | None:
    """Why no further group may have settings of its own; None if it may, already has some, or removes them."""
    if settings.is_default or settings.name in state.producer_settings:
        return None
    if len(state.producer_settings) < limits.PRODUCERS_SET_MAX:
        return None
    return Refused(
        Why.LIMIT_REACHED,
        f"the limits of producer group {settings.name!r} were not set: {len(state.producer_settings)} groups have some of "
        f"their own, and {limits.PRODUCERS_SET_MAX} may; take those of another group away",
    )


def _refusal(settings: ProducerSettings) -> str:
    try:
        checked_name(settings.name, "producer group", limits.GROUP_CHARS_MAX)
    except InvalidName as error:
        return str(error)
    if not 0 <= settings.check_limit <= _CHECK_LIMIT_MAX:
        return f"a check limit of {settings.check_limit}: 0 (none) to {_CHECK_LIMIT_MAX}"
    if bool(settings.check_limit) != (settings.past_limit is not PastLimit.WAIT):
        return "a check limit and what happens then (rollback or set-aside) are given together, or neither"
    if settings.skip_age_ms and not limits.SKIP_AGE_MIN_MS <= settings.skip_age_ms <= _NUMBER_MAX:
        return f"a skip age of {settings.skip_age_ms} ms: 0 (never), or {limits.SKIP_AGE_MIN_MS} to {_NUMBER_MAX} ms"
    for what, value in (
        ("undecided transactions", settings.undecided_max),
        ("bytes of undecided messages", settings.undecided_bytes_max),
    ):
        if not -1 <= value <= _NUMBER_MAX:
            return f"{value} {what}: 0 (none may be prepared) to {_NUMBER_MAX}, or -1 (as the broker's)"
    if len(settings.set_by) > limits.GROUP_CHARS_MAX:
        return f"who sets it has {len(settings.set_by)} characters, {limits.GROUP_CHARS_MAX} are allowed"
    return ""
