"""When an undecided transaction's producer is asked, and which of its connections.

    prepared -> immune -> due -> asked (in flight) -> answered UNKNOWN, or the answer is overdue -> due again, later
                                                   -> answered: settled
                                                   -> nobody was reached: not counted, due at once, another member
                                                   -> past a limit of the group's policy, if it has one: ``policy``

- The first check is due after the immunity time, then with back-off: interval, twice that, ... up to the longest, each
  with jitter from a hash of id and number, so that thousands prepared together do not stay together.
- Single flight: no second check while one may still be answered. A lost connection ends the wait, and so does an answer:
  after UNKNOWN the interval counts, also when it is shorter than the time that a silent producer is given.
- At most ``checks_in_flight_max`` per group are in flight, so that a service that restarts is not flooded.
- Who can be asked: connections that registered as producers of the group are sent checks; others fetch them with a long
  poll (FMQ's Feedback, source 3.3.5), and count while they wait. What is handed out is leased like a check that was sent:
  nobody else gets it before its answer is overdue. Both kinds take turns.
- Without anybody who can be asked nothing is asked and nothing is counted: the transaction waits, and ``story`` says so.
- When a producer of the group (re)connects, everything of the group that is not immune and not in flight is asked: the
  back-off is cut short, the immunity never. An operator may ask too, about one transaction, under the same rule.

Work for each tick is bounded, and grows with the groups that can be asked something now. Groups whose checks are due and
nobody is there, however many, cost nothing: each is looked at when a check falls due, and when somebody comes.

Due times are durable (a Checked record is logged with each check sent); who waits for an answer is session state.
"""

from heapq import heappop, heappush
from itertools import islice
from typing import Final
from zlib import crc32

from halfmq import limits
from halfmq.core.commands import AskAside, AskNow, CheckNotSent
from halfmq.core.decision import DONE, NOTHING, Asked, AskedAside, Decision, Done, Effect, Refused, SendCheck, Why
from halfmq.core.state import CHECK_BUCKET_MS, ProducerGroup, State, Undecided, next_offset, take_turn
from halfmq.core.transaction.past_limit import is_at_limit, look_by, sort_due
from halfmq.core.transaction.states import standing_state
from halfmq.model.records import SET_ASIDE_MS, Checked, Record, checked_size
from halfmq.model.settings import BrokerSettings

#: Checks that one tick sends, and entries that it looks at, at most; the rest follow in the next one.
CHECKS_PER_TICK_MAX: Final = 256
LOOKED_AT_PER_TICK_MAX: Final = 4_096
#: Buckets that one tick moves, and groups that it takes up, at most: after a start checks of very many may be due.
BUCKETS_PER_TICK_MAX: Final = 1_024
GROUPS_PER_TICK_MAX: Final = 1_024
#: Where ``ProducerGroup.due`` has what was set aside, for whatever reason.
_ASIDE_BUCKET: Final = SET_ASIDE_MS + CHECK_BUCKET_MS


def backoff_ms(settings: BrokerSettings, tx_id: str, checks: int) -> int:
    """From check number ``checks`` (from 1) to the next: back-off with up to a quarter of jitter, same for same input."""
    interval = settings.check_interval_ms
    for _ in range(checks - 1):
        interval *= limits.CHECK_BACKOFF_FACTOR
        if interval >= settings.check_interval_max_ms:
            interval = settings.check_interval_max_ms
            break
    jitter = crc32(f"{tx_id}/{checks}".encode()) % (interval // 4 + 1)
    return interval + jitter


def move_due(state: State, now_ms: int) -> bool:
    """Move buckets whose time has come to their groups' ready lists (session). Whether more have to be moved now.

    A group with as many checks in flight as may be takes turns again when the first of them is overdue.
    """
    full_heap = state.full_heap
    while full_heap and full_heap[0][0] <= now_ms:
        at_ms, name = heappop(full_heap)
        if state.full.get(name) == at_ms:
            del state.full[name]
        full = state.producer_groups.get(name)
        if full is not None:
            take_turn(state, full)
    heap = state.check_heap
    for _ in range(BUCKETS_PER_TICK_MAX):
        if not heap or heap[0][0] > now_ms:
            return False
        bucket, name = heappop(heap)
        group = state.producer_groups.get(name)
        ids = group.due.pop(bucket, None) if group is not None else None
        if group is not None and ids:
            if group.policy is None:
                group.ready.extend(ids)
            else:
                sort_due(state, group, group.policy, ids, now_ms)
            take_turn(state, group)
    return bool(heap) and heap[0][0] <= now_ms


def expire_in_flight(group: ProducerGroup, now_ms: int) -> None:
    while group.in_flight:
        tx_id, (deadline_ms, _) = next(iter(group.in_flight.items()))
        if deadline_ms > now_ms:
            break
        del group.in_flight[tx_id]


def cut_backoff(state: State, group: ProducerGroup) -> None:
    """A producer (re)connected: look at everything undecided of its group again."""
    if group.undecided:
        group.cut.clear()
        group.cut.extend(group.undecided)
    take_turn(state, group)


def next_check_ms(state: State) -> int | None:
    """When a tick could send a check, or has to look; None if only an event can bring that about. 0: at once."""
    if state.asking:
        return 0
    heap = state.check_heap
    while heap:
        first = state.producer_groups.get(heap[0][1])
        if first is not None and heap[0][0] in first.due:
            break
        heappop(heap)
    soonest = heap[0][0] if heap and heap[0][0] < SET_ASIDE_MS else None
    if state.full_heap and (soonest is None or state.full_heap[0][0] < soonest):
        return state.full_heap[0][0]
    return soonest


def send_checks(state: State, offset: int, bytes_max: int, now_ms: int) -> tuple[list[Record], list[Effect], bool]:
    """(records from ``offset`` on, checks to send, whether more could be asked now). Groups take turns."""
    more_due = move_due(state, now_ms)
    records: list[Record] = []
    effects: list[Effect] = []
    looked_at = 0
    end = offset + bytes_max
    served: list[tuple[ProducerGroup, int]] = []
    full = False
    for name in list(islice(state.asking, GROUPS_PER_TICK_MAX)):
        group = state.producer_groups[name]
        del state.asking[name]
        expire_in_flight(group, now_ms)
        while (group.members or group.parked) and len(group.in_flight) < state.settings.checks_in_flight_max:
            full = len(effects) >= CHECKS_PER_TICK_MAX or looked_at >= LOOKED_AT_PER_TICK_MAX or offset + 512 > end
            if full:
                break
            known, more = _next_to_ask(group, now_ms)
            looked_at += 1
            if not more:
                break
            if known is None:
                continue
            connection = _member_in_turn(group)
            if connection not in group.members:
                served.append((group, connection))
            record, effect = _ask(state, group, known, known.checks + 1, connection, offset, now_ms)
            effects.append(effect)
            records.append(record)
            offset += record.size
        if len(group.in_flight) < state.settings.checks_in_flight_max:
            take_turn(state, group)
        elif (group.ready or group.cut) and name not in state.full:
            overdue_ms = state.full[name] = next(iter(group.in_flight.values()))[0]
            heappush(state.full_heap, (overdue_ms, name))
        if full:
            break
    for group, connection in served:
        group.parked.pop(connection, None)  # it gets its answer, however little that is
    return records, effects, full or more_due or bool(state.asking)


def _next_to_ask(group: ProducerGroup, now_ms: int) -> tuple[Undecided | None, bool]:
    """(a transaction to ask about now, or None when the entry was stale; whether there was an entry)."""
    if group.ready:
        known = group.undecided.get(group.ready.popleft())
        due = known is not None and known.next_check_at_ms <= now_ms
    elif group.cut:
        known = group.undecided.get(group.cut.popleft())
        due = (
            known is not None
            and known.immune_until_ms <= now_ms
            and known.next_check_at_ms < SET_ASIDE_MS
            and not is_at_limit(group.policy, known)
        )
    else:
        return None, False
    if known is None or not due or known.tx_id in group.in_flight:
        return None, True
    return known, True


def _member_in_turn(group: ProducerGroup) -> int:
    """Whose turn it is. A waiting fetcher whose room is used up waits no more; all served ones leave after the tick."""
    group.turn += 1
    turn = group.turn % (len(group.members) + len(group.parked))
    if turn < len(group.members):
        return list(group.members)[turn]
    connection = list(group.parked)[turn - len(group.members)]
    group.parked[connection] -= 1
    if not group.parked[connection]:
        del group.parked[connection]
    return connection


def _ask(
    state: State, group: ProducerGroup, known: Undecided, checks: int, connection: int, offset: int, now_ms: int
) -> tuple[Checked, SendCheck]:
    """Ask ``connection`` for the time number ``checks``; it is in flight from here on."""
    record = _checked(state, known, checks, offset, now_ms)
    _forget_left(group, known)
    group.in_flight.pop(known.tx_id, None)
    group.in_flight[known.tx_id] = (now_ms + state.settings.check_answer_ms, connection)
    first = known.halves[0]
    effect = SendCheck(connection, group.name, known.tx_id, first.half_index, first.first_offset, first.offset, checks)
    return record, effect


def _forget_left(group: ProducerGroup, known: Undecided) -> None:
    """Another check is to come: that an earlier one of its number went out in time says nothing about it."""
    if group.policy is not None:
        group.policy.left.pop(known.tx_id, None)


def _checked(state: State, known: Undecided, checks: int, offset: int, now_ms: int) -> Checked:
    return Checked(
        offset,
        checked_size(known.group, known.tx_id),
        known.group,
        known.tx_id,
        known.halves[0].half_index,
        checks,
        # Never before the answer deadline, so that what is due is not in flight.
        now_ms + max(backoff_ms(state.settings, known.tx_id, checks), state.settings.check_answer_ms),
    )


def due_sooner(state: State, known: Undecided, now_ms: int) -> tuple[Record, ...]:
    """The record that brings the next check forward to the interval: the check was answered, nobody waits any more.

    Nothing where the interval is not shorter than the time that an answer may take.
    """
    if known.next_check_at_ms >= SET_ASIDE_MS:
        return ()
    interval = backoff_ms(state.settings, known.tx_id, known.checks) if known.checks else state.settings.check_answer_ms
    due_ms = known.next_check_at_ms - max(0, state.settings.check_answer_ms - interval)
    due_ms = max(due_ms, now_ms, known.immune_until_ms)
    if due_ms >= known.next_check_at_ms:
        return ()
    size = checked_size(known.group, known.tx_id)
    half_index = known.halves[0].half_index
    return (Checked(next_offset(state), size, known.group, known.tx_id, half_index, known.checks, due_ms),)


def decide_check_not_sent(state: State, command: CheckNotSent, now_ms: int) -> Decision:
    """Nobody was reached: the check does not count, and another member is asked at once, or whoever connects next.

    The connection that failed is not asked again before it registers again. Where the half cannot be read, no connection
    failed, and where another one was asked meanwhile, that one has the check: the next comes when it was due in any case.
    """
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(command.tx_id) if group is not None else None
    if group is None or known is None or known.next_check_at_ms >= SET_ASIDE_MS:
        return DONE
    asked_meanwhile = group.in_flight.get(command.tx_id, (0, command.connection))[1] != command.connection
    if not asked_meanwhile:
        group.in_flight.pop(command.tx_id, None)
    if not command.unreadable:
        group.members.pop(command.connection, None)  # one that fetches is not: it may have come anew since
    take_turn(state, group)
    checks = max(0, known.checks - 1)
    due_ms = known.next_check_at_ms if command.unreadable or asked_meanwhile else now_ms
    record = Checked(
        next_offset(state),
        checked_size(known.group, known.tx_id),
        known.group,
        known.tx_id,
        known.halves[0].half_index,
        checks,
        max(known.immune_until_ms, due_ms),
    )
    return Decision((record,), Done())


def decide_ask_now(state: State, command: AskNow, now_ms: int) -> Decision:
    """Ask about one transaction without waiting for its time; about one that was set aside too, counting from one again.

    Replies:
        Asked: whom, or nobody's name where it goes to the next who fetches checks.
        Refused NOT_NOW: it is immune, is asked about already, or nobody can be asked. ALREADY_SETTLED. NOT_FOUND: the
            caller looks into the transaction table, and comes again with the row.
    """
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(command.tx_id) if group is not None else None
    if group is None or known is None:
        return Decision(NOTHING, _not_undecided(state, group, command))
    text = _why_not_now(group, known, now_ms)
    if text:
        return Decision(NOTHING, Refused(Why.NOT_NOW, f"transaction {known.tx_id!r} {text}"))
    set_aside = known.next_check_at_ms >= SET_ASIDE_MS
    offset = next_offset(state)
    if set_aside:
        look_by(state, group, now_ms + state.settings.check_answer_ms)
    if not (group.members or group.parked):
        _forget_left(group, known)
        checks = 0 if set_aside else known.checks
        record = _checked(state, known, checks, offset, now_ms)._replace(next_check_at_ms=now_ms)
        return Decision((record,), Asked("", checks + 1))
    connection = _member_in_turn(group)
    name = group.members.get(connection) or group.pollers.get(connection, "")
    record, effect = _ask(state, group, known, 1 if set_aside else known.checks + 1, connection, offset, now_ms)
    group.parked.pop(connection, None)
    return Decision((record,), Asked(name, record.checks), (effect,))


def decide_ask_aside(state: State, command: AskAside, bytes_max: int, now_ms: int) -> Decision:
    """Ask about what was set aside in a group, what was set aside first at first; each counts from one again.

    As many as may be in flight, 256 and ``bytes_max`` of records at most: the caller comes again for the rest, and again
    where answers must make room. Each stays as it is until its check goes out, so that no policy acts on it in between.
    What finds no answer is set aside again, behind the others.

    Replies:
        AskedAside: which, possibly none for want of room. Refused NOT_NOW: nobody can be asked.
    """
    group = state.producer_groups.get(command.group)
    aside = set_aside_in(group) if group is not None else {}
    if group is None or not aside:
        return Decision(NOTHING, AskedAside((), 0))
    if not (group.members or group.pollers):
        return Decision(NOTHING, Refused(Why.NOT_NOW, f"cannot ask: no producer of group {group.name!r} is connected"))
    expire_in_flight(group, now_ms)
    room = min(command.asked_max, CHECKS_PER_TICK_MAX, state.settings.checks_in_flight_max - len(group.in_flight))
    offset = next_offset(state)
    end = offset + bytes_max
    records: list[Record] = []
    effects: list[Effect] = []
    served: dict[int, None] = {}
    for tx_id in islice(aside, max(0, room)):
        if offset + 512 > end:
            break
        if not (group.members or group.parked):
            break  # fetchers that come again in a moment
        connection = _member_in_turn(group)
        if connection not in group.members:
            served[connection] = None
        record, effect = _ask(state, group, group.undecided[tx_id], 1, connection, offset, now_ms)
        records.append(record)
        effects.append(effect)
        offset += record.size
    for connection in served:
        group.parked.pop(connection, None)  # it gets its answer, however little that is
    if records:
        look_by(state, group, now_ms + state.settings.check_answer_ms)
    asked = tuple([effect.tx_id for effect in effects if isinstance(effect, SendCheck)])
    return Decision(tuple(records), AskedAside(asked, len(aside) - len(asked)), tuple(effects))


def set_aside_in(group: ProducerGroup) -> dict[str, None]:
    """Ids of what was set aside in the group, in that order."""
    return group.due.get(_ASIDE_BUCKET, {})


def _why_not_now(group: ProducerGroup, known: Undecided, now_ms: int) -> str:
    if now_ms < known.immune_until_ms:
        return f"is immune for another {known.immune_until_ms - now_ms} ms: its local transaction may still be running"
    asked = group.in_flight.get(known.tx_id)
    if asked is not None and asked[0] > now_ms:
        return f"is asked about already; the answer is overdue in {asked[0] - now_ms} ms"
    if not (group.members or group.pollers):
        return f"cannot be asked about: no producer of group {group.name!r} is connected"
    return ""


def _not_undecided(state: State, group: ProducerGroup | None, command: AskNow) -> Refused:
    verdict = group.settled.get(command.tx_id) if group is not None else None
    row = command.settled
    if verdict is not None:
        committed, position = verdict[2], verdict[3]
    elif row is not None and row.verdict_position >= state.log_start:
        committed, position = row.committed, row.verdict_position
    else:
        return Refused(
            Why.NOT_FOUND, f"transaction {command.tx_id!r} is not undecided, and not among the recent verdicts"
        )
    standing = standing_state(committed).value
    return Refused(Why.ALREADY_SETTLED, f"transaction {command.tx_id!r} is already {standing}", standing, position)
