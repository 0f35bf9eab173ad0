"""When the producer of an undecided transaction receives a check, and on which connection.

A check is in one of these states. ``next_check`` is durable; all else is derived or session state.

    state      ``Undecided.next_check``       also in                        next
    ---------  -----------------------------  -----------------------------  ----------------------------------------------
    scheduled  a future time                  ``derived.scheduled``, by      due at that time; early when a producer
                                              bucket of that time            connects; in flight on an operator's request
    due        a past time                    ``session.due``                in flight in the group's turn, if a producer is
                                                                             reachable and the limit in flight allows it
    past       a past time, or any (too old)  ``policy.session.past``        parked or rolled back by the policy, or due
                                                                             again after a change of the policy
    in flight  the time of a repetition, at   ``session.in_flight`` and      scheduled when overdue or after UNKNOWN
               or after the deadline of the   ``derived.scheduled``          (perhaps sooner); early when the connection is
               response                                                      lost; due if it reached nobody, uncounted
    parked     later than any time, with the  ``derived.parked``             in flight on an operator's request, with
               reason (``records.PARKED_MS``)                                numbers from one again

A verdict ends each of them. *Early* is not a state: the check is scheduled, and in ``session.early`` until a tick examines it.

The rules are in docs/transactions.md, "When a producer is checked". Besides:

- Jitter is from a hash of id and number, so that thousands of transactions prepared together spread out.
- A lost connection ends the wait for a response, and so does a response: after UNKNOWN the interval applies, even if it is
  shorter than the response timeout.
- At most ``checks_in_flight_max`` per group are in flight, so that a restarting service is not flooded.
- A client that fetches checks (FMQ's Feedback, source 3.3.5) is reachable while it waits.

The work of a tick is bounded and depends on the number of groups with something to check now. Groups with due checks and without
a reachable producer cost nothing, however many there are: a group is examined when a check falls due and when a producer
connects.

Due times are durable (each check sent logs a Checked record); the checks in flight are session state.
"""

from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.core.commands import CheckNotSent, CheckNow, CheckParked
from halfmq.core.decision import (
    DONE,
    NOTHING,
    Asked,
    Decision,
    Done,
    Effect,
    ParkedChecked,
    Refused,
    SendCheck,
    Why,
    refuse,
)
from halfmq.core.events import (
    CheckCancelled,
    CheckFailed,
    CheckLimitRaised,
    ChecksSent,
    CheckWaits,
    DecisionEvent,
    ParkedResumed,
    UnknownReceived,
)
from halfmq.core.state import (
    InFlight,
    LastUnknown,
    ProducerGroup,
    State,
    Undecided,
    drop_stale_deadlines,
    next_offset,
    take_turn,
)
from halfmq.core.transaction.past_limit import is_at_limit, is_in_flight, sort_due
from halfmq.core.transaction.states import standing_state
from halfmq.errors import InvariantViolated
from halfmq.model.checksum import crc32
from halfmq.model.records import Checked, Record, checked_size
from halfmq.model.settings import BrokerSettings

#: Maximum number of checks that one tick sends, and of entries that it examines; the next tick continues.
CHECKS_PER_TICK_MAX: Final = 256
EXAMINED_PER_TICK_MAX: Final = 4_096
#: Maximum number of deadlines that one tick handles, and of groups that it serves: after a start very many may be due.
DEADLINES_PER_TICK_MAX: Final = 1_024
GROUPS_PER_TICK_MAX: Final = 1_024


def backoff_ms(settings: BrokerSettings, tx_id: str, checks: int) -> int:
    """Time from check number ``checks`` (from 1) to the next, ms: back-off with up to a quarter of jitter, a function of its arguments."""
    interval = settings.check_interval_ms
    for _ in range(checks - 1):
        interval *= limits.CHECK_BACKOFF_FACTOR
        if interval >= settings.check_interval_max_ms:
            interval = settings.check_interval_max_ms
            break
    jitter = crc32(f"{tx_id}/{checks}".encode()) % (interval // 4 + 1)
    return interval + jitter


def move_due(state: State, now_ms: int) -> None:
    """Handle the deadlines that are due, up to a maximum; the first of the others then remains due.

    A bucket moves to its group's due checks, a group at its limit in flight takes turns again, and a policy's next round begins.
    """
    heap = state.derived.group_deadlines
    for _ in range(DEADLINES_PER_TICK_MAX):
        if not heap or heap[0][0] > now_ms:
            break
        at_ms, name = heappop(heap)
        group = state.producer_groups.get(name)
        if group is None:
            continue
        policy = group.policy
        ids = group.derived.scheduled.pop(at_ms, None)
        if ids:
            if policy is None:
                group.session.due.extend(ids)
            else:
                sort_due(state, group, policy, ids, now_ms)
            take_turn(state, group)
        if group.session.full_until_ms == at_ms:
            group.session.full_until_ms = 0
            take_turn(state, group)
        if policy is not None and policy.session.scan_at_ms == at_ms:
            state.derived.policies_due[name] = None
    drop_stale_deadlines(state)


def expire_in_flight(group: ProducerGroup, now_ms: int) -> None:
    while group.session.in_flight:
        tx_id, asked = next(iter(group.session.in_flight.items()))
        if asked.until_ms > now_ms:
            break
        del group.session.in_flight[tx_id]


def cut_backoff(state: State, group: ProducerGroup) -> None:
    """A producer (re)connected: examine everything undecided of its group again."""
    if group.undecided:
        group.session.early.clear()
        group.session.early.extend(group.undecided)
    take_turn(state, group)


def next_check_ms(view: State) -> int | None:
    """When a tick could send a check or apply a policy. None: not before another event. 0: at once."""
    if view.session.asking or view.derived.policies_due:
        return 0
    heap = view.derived.group_deadlines
    return heap[0][0] if heap else None


class DueChecks(NamedTuple):
    """Result of ``send_checks``. ``more``: more checks could be sent now."""

    records: list[Record]
    effects: list[Effect]
    events: list[DecisionEvent]
    more: bool


def send_checks(state: State, offset: int, bytes_max: int, now_ms: int) -> DueChecks:
    """Due checks, with their records from ``offset`` on. Groups take turns. Apply ``TimePassed`` before."""
    records: list[Record] = []
    effects: list[Effect] = []
    events: list[DecisionEvent] = []
    looked_at = groups = 0
    end = offset + bytes_max
    full = False
    for name in islice(state.session.asking, GROUPS_PER_TICK_MAX):
        group = state.producer_groups[name]
        groups += 1
        round_ = _Round(group, now_ms)
        while round_.has_reachable_producer and round_.in_flight < state.settings.checks_in_flight_max:
            full = len(effects) >= CHECKS_PER_TICK_MAX or looked_at >= EXAMINED_PER_TICK_MAX or offset + 512 > end
            if full:
                break
            known, more = round_.next_to_check(now_ms)
            looked_at += 1
            if not more:
                break
            if known is None:
                continue
            record, effect = round_.ask(state, known, known.checks + 1, offset, now_ms)
            effects.append(effect)
            records.append(record)
            offset += record.size
        events.append(round_.event(state, now_ms, in_turn=True))
        if full:
            break
    heap = state.derived.group_deadlines
    more_due = bool(heap) and heap[0][0] <= now_ms
    waiting = groups < len(state.session.asking) or any(_has_more_work(state, event) for event in events)
    return DueChecks(records, effects, events, full or more_due or waiting)


class _Round:
    """Assigns checks to producers within one decision about one group. Changes nothing; ``event`` describes what was sent."""

    def __init__(self, group: ProducerGroup, now_ms: int) -> None:
        self.group = group
        self.waiting = dict(group.session.held_polls)
        self.round_robin_index = group.session.round_robin_index
        self.asked: list[tuple[str, int]] = []
        #: Checks that may still get a response.
        self.in_flight = sum([asked.until_ms > now_ms for asked in group.session.in_flight.values()])
        self.taken = {"due": 0, "early": 0}
        self._due = iter(group.session.due)
        self._early = iter(group.session.early)
        self._served: dict[int, None] = {}
        self._ids: set[str] = set()

    @property
    def has_reachable_producer(self) -> bool:
        """Whether a producer is reachable now."""
        return bool(self.group.session.members or self.waiting)

    def next_to_check(self, now_ms: int) -> tuple[Undecided | None, bool]:
        """(a transaction to check now, or None if the entry was obsolete; whether there was an entry)."""
        group = self.group
        if self.taken["due"] < len(group.session.due):
            self.taken["due"] += 1
            known = group.undecided.get(next(self._due))
            due = known is not None and known.next_check <= now_ms
        elif self.taken["early"] < len(group.session.early):
            self.taken["early"] += 1
            known = group.undecided.get(next(self._early))
            due = (
                known is not None
                and known.grace_until_ms <= now_ms
                and not known.parked
                and not is_at_limit(group.policy, known)
            )
        else:
            return None, False
        if known is None or not due or known.tx_id in self._ids or is_in_flight(group, known.tx_id, now_ms):
            return None, True
        return known, True

    def ask(self, state: State, known: Undecided, checks: int, offset: int, now_ms: int) -> tuple[Checked, SendCheck]:
        """Send check number ``checks`` to the producer whose turn it is. The only way of a check to a producer: none is too early."""
        if now_ms < known.grace_until_ms:
            raise InvariantViolated(
                f"{known.tx_id} is asked {known.grace_until_ms - now_ms} ms before its grace period ends"
            )
        connection = self._member_in_turn()
        # Not before the deadline of the response, so that a due check is not in flight.
        later_ms = max(backoff_ms(state.settings, known.tx_id, checks), state.settings.check_answer_ms)
        record = _checked(known, checks, offset, now_ms + later_ms)
        self.asked.append((known.tx_id, connection))
        self._ids.add(known.tx_id)
        self.in_flight += 1
        first = known.halves[0]
        effect = SendCheck(
            connection, known.group, known.tx_id, first.half_index, first.first_offset, first.offset, checks
        )
        return record, effect

    def _member_in_turn(self) -> int:
        """Connection of the producer whose turn it is. A client that fetched as many checks as it requested is no longer reachable; all
        that were served are removed by ``event``.
        """
        members, waiting = self.group.session.members, self.waiting
        self.round_robin_index += 1
        turn = self.round_robin_index % (len(members) + len(waiting))
        if turn < len(members):
            return next(islice(members, turn, None))
        connection = next(islice(waiting, turn - len(members), None))
        self._served[connection] = None
        waiting[connection] -= 1
        if not waiting[connection]:
            del waiting[connection]
        return connection

    def event(self, state: State, now_ms: int, *, in_turn: bool = False) -> ChecksSent:
        return ChecksSent(
            self.group.name, now_ms, now_ms + state.settings.check_answer_ms, tuple(self.asked), self.round_robin_index,
            tuple(self._served), self.taken["due"], self.taken["early"], in_turn,
        )  # fmt: skip


def _has_more_work(state: State, event: DecisionEvent) -> bool:
    """Whether the group takes another turn after the event: it has entries, a reachable producer, and is below its limit in flight."""
    if not isinstance(event, ChecksSent):
        return False
    group = state.producer_groups[event.group]
    left = len(group.session.due) + len(group.session.early) - event.due - event.early
    reachable = group.session.members or group.session.held_polls.keys() - set(event.served)
    live = sum([asked.until_ms > event.now_ms for asked in group.session.in_flight.values()]) + len(event.asked)
    return bool(left and reachable) and live < state.settings.checks_in_flight_max


def note_asked(state: State, event: ChecksSent) -> None:
    """The checks are in flight until ``until_ms``. The group has another turn if it has more to check and is below its limit in flight."""
    group = state.producer_groups.get(event.group)
    if group is None:
        return
    expire_in_flight(group, event.now_ms)
    for _ in range(event.due):
        group.session.due.popleft()
    for _ in range(event.early):
        group.session.early.popleft()
    state.session.checks_sent += len(event.asked)
    for tx_id, connection in event.asked:
        _forget_delivered(group, tx_id)
        group.session.in_flight.pop(tx_id, None)
        group.session.in_flight[tx_id] = InFlight(event.until_ms, connection)
    group.session.round_robin_index = event.round_robin_index
    for connection in event.served:
        group.session.held_polls.pop(connection, None)  # its request is answered, even with fewer checks than requested
    if event.in_turn:
        state.session.asking.pop(event.group, None)
        if len(group.session.in_flight) < state.settings.checks_in_flight_max:
            take_turn(state, group)
        elif (group.session.due or group.session.early) and not group.session.full_until_ms:
            group.session.full_until_ms = next(iter(group.session.in_flight.values())).until_ms
            heappush(state.derived.group_deadlines, (group.session.full_until_ms, event.group))


def note_limit_raised(state: State, event: CheckLimitRaised) -> None:
    """Groups that wait for a response, since they have as many checks in flight as they might, take turns again."""
    for group in state.producer_groups.values():
        if group.session.full_until_ms:
            group.session.full_until_ms = 0
            take_turn(state, group)
    drop_stale_deadlines(state)


def note_waiting(state: State, event: CheckWaits) -> None:
    """The check is due and not sent: an earlier one of the same number no longer counts for the group's policy."""
    group = state.producer_groups.get(event.group)
    if group is not None:
        _forget_delivered(group, event.tx_id)


def note_unknown(state: State, event: UnknownReceived) -> None:
    """The response to the check arrived: it is no longer in flight, and ``story`` shows its time and remark."""
    group = state.producer_groups.get(event.group)
    if group is not None:
        if group.session.in_flight.pop(event.tx_id, None) is not None:
            state.session.checks_unknown += 1
        take_turn(state, group)
        group.session.last_unknown[event.tx_id] = LastUnknown(event.now_ms, event.remark)


def note_check_cancelled(state: State, event: CheckCancelled) -> None:
    group = state.producer_groups.get(event.group)
    if group is None:
        return
    if group.session.in_flight.pop(event.tx_id, None) is not None:
        take_turn(state, group)
    group.session.last_unknown.pop(event.tx_id, None)


def note_failed(state: State, event: CheckFailed) -> None:
    """The check reached nobody: it is no longer in flight, and a closed connection gets no more. A record of the decision makes it due
    again.
    """
    state.session.checks_undelivered += 1
    group = state.producer_groups.get(event.group)
    if group is None:
        return
    if event.in_flight:
        group.session.in_flight.pop(event.tx_id, None)
    if event.gone:
        group.session.members.pop(
            event.connection, None
        )  # not a client that fetches: it may have sent a new request since
    take_turn(state, group)


def _forget_delivered(group: ProducerGroup, tx_id: str) -> None:
    """Another check follows: forget that an earlier one of the same number went out in time."""
    if group.policy is not None:
        group.policy.session.last_check_delivered.pop(tx_id, None)


def _checked(known: Undecided, checks: int, offset: int, next_check_at_ms: int) -> Checked:
    group, tx_id = known.group, known.tx_id
    half_index = known.halves[0].half_index
    return Checked(offset, checked_size(group, tx_id), group, tx_id, half_index, checks, next_check_at_ms)


def due_sooner(state: State, known: Undecided, now_ms: int) -> tuple[Record, ...]:
    """The record that moves the next check forward to the interval, because the check in flight got a response.

    Empty if the interval is not shorter than the response timeout.
    """
    if known.parked:
        return ()
    interval = backoff_ms(state.settings, known.tx_id, known.checks) if known.checks else state.settings.check_answer_ms
    due_ms = known.next_check - max(0, state.settings.check_answer_ms - interval)
    due_ms = max(due_ms, now_ms, known.grace_until_ms)
    if due_ms >= known.next_check:
        return ()
    return (_checked(known, known.checks, next_offset(state), due_ms),)


def decide_check_not_sent(state: State, command: CheckNotSent, now_ms: int) -> Decision:
    """The check reached nobody: it does not count, and another producer gets it at once, or the next one that connects.

    The failed connection gets no checks until it registers again. If the half message cannot be read, the connection did not fail; if
    another producer got a check in the meantime, that one is in flight. In both cases the schedule remains.
    """
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(command.tx_id) if group is not None else None
    if group is None or known is None or known.parked:
        return DONE
    asked = group.session.in_flight.get(command.tx_id)
    asked_meanwhile = asked is not None and asked.connection != command.connection
    failed = CheckFailed(
        command.group, command.tx_id, command.connection, in_flight=not asked_meanwhile, gone=not command.unreadable
    )
    checks = max(0, known.checks - 1)
    due_ms = known.next_check if command.unreadable or asked_meanwhile else now_ms
    record = _checked(known, checks, next_offset(state), max(known.grace_until_ms, due_ms))
    return Decision((record,), Done(), (), (failed,))


def decide_check_now(state: State, command: CheckNow, now_ms: int) -> Decision:
    """Check one transaction now, including a parked one, whose number of checks starts from one again.

    Replies:
        Asked: the receiver; an empty name if the next client that fetches checks gets it.
        Refused NOT_NOW: it is in its grace period, a check is in flight, or no producer is reachable. ALREADY_SETTLED. NOT_FOUND: the
            caller reads the transaction table and repeats the command with the row.
    """
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(command.tx_id) if group is not None else None
    if group is None or known is None:
        return Decision(NOTHING, _not_undecided(state, group, command))
    text = _why_not_now(group, known, now_ms)
    if text:
        return refuse(Why.NOT_NOW, f"transaction {known.tx_id!r} {text}")
    parked = known.parked is not None
    offset = next_offset(state)
    until_ms = now_ms + state.settings.check_answer_ms
    taken_up = (ParkedResumed(group.name, until_ms),) if parked else ()
    round_ = _Round(group, now_ms)
    if not round_.has_reachable_producer:
        checks = 0 if parked else known.checks
        record = _checked(known, checks, offset, now_ms)
        return Decision((record,), Asked("", checks + 1), (), (*taken_up, CheckWaits(group.name, known.tx_id)))
    record, effect = round_.ask(state, known, 1 if parked else known.checks + 1, offset, now_ms)
    name = group.session.members.get(effect.connection) or group.session.pollers.get(effect.connection, "")
    return Decision((record,), Asked(name, record.checks), (effect,), (*taken_up, round_.event(state, now_ms)))


def decide_check_parked(state: State, command: CheckParked, bytes_max: int, now_ms: int) -> Decision:
    """Check parked transactions of a group in the order of parking; numbers of checks start from one again.

    Limited by the checks that may be in flight, 256, and ``bytes_max`` of records: repeat the command for the rest, after
    responses have arrived. A transaction stays parked until its check is sent, so that no policy acts on it in between. If it
    gets no response it is parked again, after the others.

    Replies:
        ParkedChecked: the checked ones, perhaps none because of a limit. Refused NOT_NOW: no producer is reachable.
    """
    group = state.producer_groups.get(command.group)
    parked = group.derived.parked if group is not None else {}
    if group is None or not parked:
        return Decision(NOTHING, ParkedChecked((), 0))
    if not (group.session.members or group.session.pollers):
        return refuse(Why.NOT_NOW, f"no check is possible: no producer of group {group.name!r} is connected")
    round_ = _Round(group, now_ms)
    capacity = min(command.asked_max, CHECKS_PER_TICK_MAX, state.settings.checks_in_flight_max - round_.in_flight)
    offset = next_offset(state)
    end = offset + bytes_max
    records: list[Record] = []
    effects: list[Effect] = []
    # A half that came after the transaction was parked has begun another grace period.
    may_be_asked = (tx_id for tx_id in parked if group.undecided[tx_id].grace_until_ms <= now_ms)
    for tx_id in islice(may_be_asked, max(0, capacity)):
        if offset + 512 > end:
            break
        if not round_.has_reachable_producer:
            break  # the fetching clients are served; they will send new requests
        record, effect = round_.ask(state, group.undecided[tx_id], 1, offset, now_ms)
        records.append(record)
        effects.append(effect)
        offset += record.size
    asked = tuple([tx_id for tx_id, _ in round_.asked])
    reply = ParkedChecked(asked, len(parked) - len(asked))
    if not records:
        return Decision(NOTHING, reply)
    taken_up = ParkedResumed(group.name, now_ms + state.settings.check_answer_ms)
    return Decision(tuple(records), reply, tuple(effects), (taken_up, round_.event(state, now_ms)))


def _why_not_now(group: ProducerGroup, known: Undecided, now_ms: int) -> str:
    if now_ms < known.grace_until_ms:
        return f"is in its grace period for another {known.grace_until_ms - now_ms} ms: its local transaction may still be running"
    asked = group.session.in_flight.get(known.tx_id)
    if asked is not None and asked.until_ms > now_ms:
        return f"already has a check in flight, which is overdue in {asked.until_ms - now_ms} ms"
    if not (group.session.members or group.session.pollers):
        return f"cannot be checked: no producer of group {group.name!r} is connected"
    return ""


def _not_undecided(state: State, group: ProducerGroup | None, command: CheckNow) -> Refused:
    verdict = group.settled.get(command.tx_id) if group is not None else None
    row = command.settled
    if verdict is not None:
        committed, position = verdict.committed, verdict.position
    elif row is not None and row.verdict_position >= state.log_start:
        committed, position = row.committed, row.verdict_position
    else:
        return Refused(
            Why.NOT_FOUND, f"transaction {command.tx_id!r} is not undecided, and not among the recent verdicts"
        )
    standing = standing_state(committed).value
    return Refused(Why.ALREADY_SETTLED, f"transaction {command.tx_id!r} is already {standing}", standing, position)
