"""Which undecided transactions are past a limit of their group's policy, found without a search at each turn.

A group has a policy only if an administrator gave it one. There are two limits:

    check limit   the producer was asked so often, every time to no avail
    skip age      the transaction is older than that

What counts as asked is a check that reached a producer in time to be answered. The last one of the allowed number must be
known to have done so in this run of the broker: after a restart, or when the disk held it up, it is asked once more. So a
policy never acts on a question that nobody heard (RocketMQ counts checks while nobody is connected, and inside the
grace period: its #8311). Nothing here is past a limit inside its grace period.

A transaction comes to the check limit when its next check falls due, which costs nothing extra. Age is looked for in
rounds over all of the group, a step for each tick, and no more often than an age is worth. What an operator took up again
was too old before: a round comes when its answer is overdue, and whoever was asked once is not asked again at that age.
"""

from collections.abc import Iterable
from heapq import heappush
from itertools import islice
from typing import Final

from halfmq.core.events import ParkedResumed, PolicyExamined
from halfmq.core.state import NEVER_MS, Policy, ProducerGroup, State, Undecided, drop_stale_deadlines, take_turn
from halfmq.core.transaction.next_check import Suspended, is_due
from halfmq.core.view import PolicyView
from halfmq.model.records import ParkedBecause

#: Undecided transactions that one step of a round looks at.
EXAMINED_MAX: Final = 4_096
#: Groups that one tick looks at; each look is bounded.
GROUPS_PER_TICK_MAX: Final = 64
#: From one round to the next: this part of the age, between these bounds, ms.
_ROUND_PART: Final = 64
_ROUND_MIN_MS: Final = 1_000
_ROUND_MAX_MS: Final = 60_000
#: Above so many, and twice those that are undecided, settled ones are swept out of ``PolicySession.left``.
_LEFT_KEPT: Final = 1_024


def is_at_limit(policy: PolicyView | None, known: Undecided) -> bool:
    """Whether it was asked about as often as allowed, and the last check reached somebody."""
    if policy is None:
        return False
    limit = policy.settings.check_limit
    return 0 < limit <= known.checks and policy.session.left.get(known.tx_id) == known.checks


def is_in_flight(group: ProducerGroup, tx_id: str, now_ms: int) -> bool:
    """Whether somebody may still answer about it. What is overdue stays in ``in_flight`` until the group asks again."""
    asked = group.session.in_flight.get(tx_id)
    return asked is not None and asked.until_ms > now_ms


def why_past(policy: Policy, known: Undecided, now_ms: int) -> ParkedBecause | None:
    """The limit that it is past; None if it is not, or nobody looks after it any more anyway."""
    if isinstance(known.next_check, Suspended) or now_ms < known.grace_until_ms:
        return None
    if is_at_limit(policy, known) and is_due(known.next_check, now_ms):
        return ParkedBecause.CHECKS
    age_ms = policy.settings.skip_age_ms
    if age_ms and now_ms >= known.prepared_at_ms + age_ms:
        return ParkedBecause.AGE
    return None


def sort_due(state: State, group: ProducerGroup, policy: Policy, ids: Iterable[str], now_ms: int) -> None:
    """Checks of these have fallen due: who is at the limit, or was asked before and is too old now, is not asked."""
    for tx_id in ids:
        known = group.undecided[tx_id]
        if is_at_limit(policy, known) or (known.checks and why_past(policy, known, now_ms) is not None):
            policy.session.past[tx_id] = state.derived.looking[group.name] = None
        else:
            group.session.due.append(tx_id)


def note_left(group: ProducerGroup, tx_id: str, checks: int, now_ms: int, answer_ms: int) -> None:
    """Check number ``checks`` has gone out. It counts as the last one if half of the time to answer is still there."""
    policy = group.policy
    if policy is None or not 0 < policy.settings.check_limit <= checks:
        return
    asked = group.session.in_flight.get(tx_id)
    if asked is None or now_ms > asked.until_ms - answer_ms // 2:
        return
    policy.session.left[tx_id] = checks
    if len(policy.session.left) > _LEFT_KEPT + 2 * len(group.undecided):
        policy.session.left = {one: number for one, number in policy.session.left.items() if one in group.undecided}


def note_resumed(state: State, event: ParkedResumed) -> None:
    """What was parked is asked about again, which no round counted on."""
    group = state.producer_groups.get(event.group)
    policy = group.policy if group is not None else None
    if policy is not None and policy.settings.skip_age_ms:
        _look_by(policy, event.look_by_ms)
        heappush(state.derived.group_deadlines, (policy.session.scan_at_ms, event.group))
        drop_stale_deadlines(state)


def _look_by(policy: Policy, at_ms: int) -> None:
    policy.session.scan_at_ms = min(policy.session.scan_at_ms, at_ms)
    policy.session.scan_next_ms = min(policy.session.scan_next_ms, at_ms)  # of the round that is under way


def examine_step(group: ProducerGroup, policy: Policy, now_ms: int) -> None:
    """One step of a round, beginning one if its time has come: who is past a limit goes to ``PolicySession.past``."""
    scan = policy.session.scan
    age_ms = policy.settings.skip_age_ms
    if not scan:
        if now_ms < policy.session.scan_at_ms:
            return
        scan.extend(group.undecided)
        # Who comes later is younger: nobody else can be old before that.
        policy.session.scan_next_ms = now_ms + age_ms if age_ms else NEVER_MS
    for _ in range(min(EXAMINED_MAX, len(scan))):
        known = group.undecided.get(scan.popleft())
        if known is None:
            continue
        if why_past(policy, known, now_ms) is None or is_in_flight(group, known.tx_id, now_ms):
            _note_when(policy, known, now_ms)
        else:
            policy.session.past[known.tx_id] = None
    if not scan:
        rest_ms = min(max(age_ms // _ROUND_PART, _ROUND_MIN_MS), _ROUND_MAX_MS)
        policy.session.scan_at_ms = max(policy.session.scan_next_ms, now_ms + rest_ms)


def _note_when(policy: Policy, known: Undecided, now_ms: int) -> None:
    age_ms = policy.settings.skip_age_ms
    if age_ms and not isinstance(known.next_check, Suspended):
        old_at_ms = max(known.prepared_at_ms + age_ms, known.grace_until_ms)
        policy.session.scan_next_ms = min(policy.session.scan_next_ms, max(old_at_ms, now_ms))


def examine_rounds(state: State, now_ms: int) -> None:
    """A step of each round that is under way, of very many groups some. ``move_due`` says whose next round has come."""
    for name in islice(state.derived.looking, GROUPS_PER_TICK_MAX):
        group = state.producer_groups[name]
        if group.policy is not None:
            examine_step(group, group.policy, now_ms)
    drop_stale_deadlines(state)


def note_examined(state: State, event: PolicyExamined) -> None:
    """The group takes its next turn after the others, if there is more to do in it before its next round."""
    state.derived.looking.pop(event.group, None)
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
        state.derived.looking[event.group] = None
    else:
        put_off(state, group, policy)


def put_off(state: State, group: ProducerGroup, policy: Policy) -> None:
    """Nothing more to do in the group before its next round."""
    if policy.session.scan_at_ms < NEVER_MS:
        heappush(state.derived.group_deadlines, (policy.session.scan_at_ms, group.name))
    drop_stale_deadlines(state)
