"""Finds undecided transactions that exceed a limit of their group's policy, without a search in each turn.

The limits, and which checks count: docs/transactions.md, "Policies".

The check limit is examined when the next check falls due, which costs nothing extra. Ages are examined in rounds over the whole
group, one step for each tick, at intervals that suit the age. A transaction that an operator resumed was too old before: a round
follows when its check is overdue, and at that age a second check is not sent.
"""

from collections.abc import Iterable
from heapq import heappush
from itertools import islice
from typing import Final

from halfmq.core.events import ParkedResumed, PolicyChanged, PolicyExamined
from halfmq.core.state import NEVER_MS, Policy, ProducerGroup, State, Undecided, drop_stale_deadlines, take_turn
from halfmq.model.records import ParkedBecause

#: Maximum number of undecided transactions that one step of a round examines.
EXAMINED_MAX: Final = 4_096
#: Maximum number of groups that one tick examines; each costs a bounded time.
GROUPS_PER_TICK_MAX: Final = 64
#: Interval between two rounds: this fraction of the age, within these bounds, ms.
_ROUND_PART: Final = 64
_ROUND_MIN_MS: Final = 1_000
_ROUND_MAX_MS: Final = 60_000
#: ``PolicySession.last_check_delivered`` is cleaned of settled transactions above this number, and above twice the undecided ones.
_DELIVERED_KEPT: Final = 1_024


def is_at_limit(policy: Policy | None, known: Undecided) -> bool:
    """Whether it has had the maximum number of checks, and the last one reached a producer."""
    if policy is None:
        return False
    limit = policy.settings.check_limit
    return 0 < limit <= known.checks and policy.session.last_check_delivered.get(known.tx_id) == known.checks


def is_in_flight(group: ProducerGroup, tx_id: str, now_ms: int) -> bool:
    """Whether a response may still arrive. Overdue checks remain in ``in_flight`` until the group's next check."""
    asked = group.session.in_flight.get(tx_id)
    return asked is not None and asked.until_ms > now_ms


def exceeded_limit(policy: Policy, known: Undecided, now_ms: int) -> ParkedBecause | None:
    """The limit that it exceeds; None if it exceeds none, or is already parked."""
    if known.parked or now_ms < known.grace_until_ms:
        return None
    if is_at_limit(policy, known) and known.next_check <= now_ms:
        return ParkedBecause.CHECKS
    age_ms = policy.settings.skip_age_ms
    if age_ms and now_ms >= known.prepared_at_ms + age_ms:
        return ParkedBecause.AGE
    return None


def sort_due(state: State, group: ProducerGroup, policy: Policy, ids: Iterable[str], now_ms: int) -> None:
    """Sort transactions whose check fell due: those at the check limit, or too old after at least one check, get no check."""
    for tx_id in ids:
        known = group.undecided[tx_id]
        if is_at_limit(policy, known) or (known.checks and exceeded_limit(policy, known, now_ms) is not None):
            policy.session.past[tx_id] = state.derived.policies_due[group.name] = None
        else:
            group.session.due.append(tx_id)


def note_delivered(group: ProducerGroup, tx_id: str, checks: int, now_ms: int, answer_ms: int) -> None:
    """Check number ``checks`` was sent. It counts as the last one if at least half of the response timeout remains."""
    policy = group.policy
    if policy is None or not 0 < policy.settings.check_limit <= checks:
        return
    asked = group.session.in_flight.get(tx_id)
    if asked is None or now_ms > asked.until_ms - answer_ms // 2:
        return
    policy.session.last_check_delivered[tx_id] = checks
    if len(policy.session.last_check_delivered) > _DELIVERED_KEPT + 2 * len(group.undecided):
        policy.session.last_check_delivered = {
            one: number for one, number in policy.session.last_check_delivered.items() if one in group.undecided
        }


def note_resumed(state: State, event: ParkedResumed) -> None:
    """Parked transactions are checked again, which no round expected."""
    group = state.producer_groups.get(event.group)
    policy = group.policy if group is not None else None
    if policy is not None and policy.settings.skip_age_ms:
        _look_by(policy, event.look_by_ms)
        heappush(state.derived.group_deadlines, (policy.session.scan_at_ms, event.group))
        drop_stale_deadlines(state)


def _look_by(policy: Policy, at_ms: int) -> None:
    policy.session.scan_at_ms = min(policy.session.scan_at_ms, at_ms)
    policy.session.scan_next_ms = min(policy.session.scan_next_ms, at_ms)  # of the current round


def examine_step(group: ProducerGroup, policy: Policy, now_ms: int) -> None:
    """One step of a round, which it begins if it is due. Transactions beyond a limit go to ``PolicySession.past``."""
    scan = policy.session.scan
    age_ms = policy.settings.skip_age_ms
    if not scan:
        if now_ms < policy.session.scan_at_ms:
            return
        scan.extend(group.undecided)
        # Later transactions are younger, so none reaches the age before that.
        policy.session.scan_next_ms = now_ms + age_ms if age_ms else NEVER_MS
    for _ in range(min(EXAMINED_MAX, len(scan))):
        known = group.undecided.get(scan.popleft())
        if known is None:
            continue
        if exceeded_limit(policy, known, now_ms) is None or is_in_flight(group, known.tx_id, now_ms):
            _note_when(policy, known, now_ms)
        else:
            policy.session.past[known.tx_id] = None
    if not scan:
        rest_ms = min(max(age_ms // _ROUND_PART, _ROUND_MIN_MS), _ROUND_MAX_MS)
        policy.session.scan_at_ms = max(policy.session.scan_next_ms, now_ms + rest_ms)


def _note_when(policy: Policy, known: Undecided, now_ms: int) -> None:
    age_ms = policy.settings.skip_age_ms
    if age_ms and not known.parked:
        old_at_ms = max(known.prepared_at_ms + age_ms, known.grace_until_ms)
        policy.session.scan_next_ms = min(policy.session.scan_next_ms, max(old_at_ms, now_ms))


def examine_rounds(state: State, now_ms: int) -> None:
    """One step of each current round, up to a maximum number of groups. ``move_due`` starts rounds."""
    for name in islice(state.derived.policies_due, GROUPS_PER_TICK_MAX):
        group = state.producer_groups[name]
        if group.policy is not None:
            examine_step(group, group.policy, now_ms)
    drop_stale_deadlines(state)


def note_examined(state: State, event: PolicyExamined) -> None:
    """The group takes its next turn after the others, if it has more work before its next round."""
    state.derived.policies_due.pop(event.group, None)
    group = state.producer_groups.get(event.group)
    policy = group.policy if group is not None else None
    if group is None or policy is None:
        return
    for tx_id in event.looked_at:
        policy.session.past.pop(tx_id, None)
    if event.look_by_ms and policy.settings.skip_age_ms:
        _look_by(policy, event.look_by_ms)
    if event.asked_again:
        group.session.due.extend(event.asked_again)
        take_turn(state, group)
    if policy.session.scan or policy.session.past:
        state.derived.policies_due[event.group] = None
    else:
        schedule_next_scan(state, group, policy)


def note_changed(state: State, event: PolicyChanged) -> None:
    """The record replaced the group's policy, and with it the ``PolicySession``."""
    group = state.producer_groups.get(event.group)
    if group is None:
        return
    group.session.due += event.past
    take_turn(state, group)
    if group.policy is not None:
        group.policy.session.last_check_delivered = event.last_check_delivered


def schedule_next_scan(state: State, group: ProducerGroup, policy: Policy) -> None:
    """The group has no more work before its next round."""
    if policy.session.scan_at_ms < NEVER_MS:
        heappush(state.derived.group_deadlines, (policy.session.scan_at_ms, group.name))
    drop_stale_deadlines(state)
