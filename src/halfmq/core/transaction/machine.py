"""Prepare and end: the two decisions of a transaction.

    SendHalf                   ->  prepare    -> HalfRecord            invisible, under its own topic and queue
    EndTransaction COMMIT      ->  decide_end -> [CopiedHalf ...] Committed    all halves become visible at one position
    EndTransaction ROLLBACK    ->  decide_end -> RolledBack
    EndTransaction UNKNOWN     ->  decide_end -> Noted: the response to the check in flight; the next check may be due sooner

The first verdict in the log wins, and the broker never decides by itself. RocketMQ checks neither the id nor an existing verdict: a
second commit writes a second message (its ``EndTransactionProcessor``).

A commit of single halves refers only to bytes of its own segment, so that segments can be removed one by one. A half in an older segment is
copied directly before the commit, in the same batch: FMQ's TX_MESSAGE (source, 3.3.3).
"""

import re
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.commands import (
    Actor,
    BatchEntry,
    EarlierVerdict,
    EndTransaction,
    FenceTransaction,
    PrepareBatch,
    RequestedVerdict,
    ResolveTransaction,
    SendHalf,
    SendMessage,
    SettledRow,
)
from halfmq.core.copies import halves_in_segment
from halfmq.core.decision import NOTHING, Decision, DecisionTuple, Noted, Refused, Sent, Settled, WakeQueue, Why, refuse
from halfmq.core.events import CheckCancelled, HalvesRolledBack, UnknownReceived
from halfmq.core.queues.delay import delay_refusal, due_at
from halfmq.core.state import Destination, ProducerGroup, State, Topic, Undecided, Verdict, next_offset
from halfmq.core.transaction.admission import refuse_half, refuse_of_user
from halfmq.core.transaction.batch_verdict import commit_batches
from halfmq.core.transaction.check_schedule import due_sooner
from halfmq.core.transaction.comparisons import with_comparison
from halfmq.core.transaction.coordinators import refuse_another, refuse_other, refuse_superseded
from halfmq.core.transaction.restored import park_restored, refusal, waits_for_operator
from halfmq.core.transaction.states import OF_SETTLED, SettledEffect, TransactionState, by_whom, standing_state
from halfmq.model.checksum import crc32
from halfmq.model.ids import ANY_HALF, hash64, offset_message_id
from halfmq.model.properties import UNIQ_KEY, append
from halfmq.model.records import (
    MESSAGE_AT,
    Committed,
    DecidedBy,
    HalfRecord,
    OperatorAction,
    ParkedBecause,
    Ref,
    RolledBack,
    committed_size,
    rolled_back_size,
)
from halfmq.model.stored_message import (
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
)

_ID: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{limits.TRANSACTION_ID_CHARS_MAX}}}")
#: Bits of a client's sys flag that are stored; the broker sets the others itself or never.
STORED_BITS: Final = ~(SYS_TRANSACTION_MASK | SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)
#: Number of other groups that are searched for an unknown transaction, only for a better message: it must stay cheap.
_GROUPS_EXAMINED_MAX: Final = 256
_PAST_RETENTION: Final = "unknown, past retention"
_HASH_MASK: Final = (1 << 64) - 1
#: Bound once for the hot path: in CPython 3.11 ``RequestedVerdict.COMMIT`` costs 0.1 us, as much as a call; ``==`` costs twice that.
_OPERATOR: Final = DecidedBy.OPERATOR
#: Of the record of a commit with one reference, without its texts.
_COMMITTED_ONE_BYTES: Final = committed_size("", "", 1)
_COMMIT: Final = RequestedVerdict.COMMIT
_ROLLBACK: Final = RequestedVerdict.ROLLBACK
_Named = TypeVar("_Named", SendMessage, BatchEntry, SendHalf)


# --- prepare ---------------------------------------------------------------------------------------------------


def prepare(state: State, command: SendHalf, place: Destination, now_ms: int) -> DecisionTuple:
    """Store a half message, or repeat the reply to an earlier send of it.

    Replies:
        Sent: stored, now or before; ``queue_offset`` is the half index.
        Refused ALREADY_SETTLED: a check settled the transaction before the client repeated the half, or the application chose an id that
            it had used before; ``standing`` is the verdict. The local transaction must not run.
        Refused SEARCH_AGAIN: verdicts left memory after the search for an earlier one: search again, and repeat the command.
        Refused SUPERSEDED: its coordinator has a later epoch. Refused, other reasons: nothing was written.

    Source: docs/promises.md, "Once in the log".
    """
    topic, queue_id, made, offset = place
    if not command.unique_id:
        command = named(state, command, offset)
        if not command.tx_id:
            command = replace(command, tx_id=command.unique_id, id_hash=command.key_hash)
    group_name = command.group
    tx_id = command.tx_id
    group = state.producer_groups.get(group_name)
    known = None
    coordinator = command.coordinator
    user = command.user
    if coordinator is not None:
        superseded = refuse_superseded(state, group_name, coordinator)
        if superseded is not None:
            return Decision(NOTHING, superseded)
    if group is not None:
        known = group.undecided.get(tx_id)
        if known is not None:
            if known.coordinator != coordinator:
                return Decision(NOTHING, still_undecided(tx_id, "another process, or another coordinator, prepared it"))
            if known.user != user:
                return Decision(NOTHING, still_undecided(tx_id, OTHER_USER))
            answered = _prepared_before(known, command, topic)
            if answered is not None:
                return Decision(NOTHING, answered)
        elif tx_id in group.settled:
            return Decision(NOTHING, already_settled(tx_id, group.settled[tx_id]))
    if coordinator is not None and known is None:
        too_many = refuse_another(state, group_name, coordinator)
        if too_many is not None:
            return Decision(NOTHING, too_many)
    if command.searched_to >= 0 and known is None:
        stands = settled_earlier(state, command)
        if stands is not None:
            return Decision(NOTHING, stands)
    body = command.body
    body_bytes = len(body)
    delay = command.delay
    settings = state.settings
    if (
        delay
        or state.session.disk_full
        or body_bytes > settings.body_bytes_max
        or not tx_id.encode().isalnum()  # ASCII only, and six times as fast as on text
        or len(tx_id) > limits.TRANSACTION_ID_CHARS_MAX
    ):
        refused = _refuse_message(state, tx_id, body, delay, now_ms)
        if refused is not None:
            return Decision(NOTHING, refused)
    properties = command.properties
    if properties[-1] == 2:
        properties += topic.half_suffixes[queue_id]
    else:
        properties = b"\x02".join((properties, topic.half_suffixes[queue_id]))
    properties_bytes = len(properties)
    born_host = command.born_host
    size = topic.frame_bytes + len(born_host) + body_bytes + properties_bytes
    if properties_bytes > limits.PROPERTIES_BYTES_MAX:
        return Decision(NOTHING, too_many_properties(properties_bytes))
    refused = refuse_half(state, group, known, size - MESSAGE_AT)
    if (
        user
        and refused is None
        and (
            state.derived.undecided_count >= state.derived.users_limited_from
            or state.derived.undecided_bytes + size > settings.undecided_total_bytes_max >> 1
        )
    ):  # otherwise nobody can have as much as one user may
        refused = refuse_of_user(state, user, size - MESSAGE_AT, begins=known is None)
    if refused is not None:
        return Decision(NOTHING, refused)
    half_index = state.next_half_index
    record = HalfRecord(
        offset, size, topic.topic_id, topic.name, queue_id, half_index, command.flag,
        command.sys_flag & STORED_BITS, command.born_time_ms, born_host, now_ms, settings.store_host,
        command.reconsume_times, 0, body, crc32(body) & 0x7FFFFFFF, properties, group_name, tx_id, command.index,
        command.count, command.tag_hash, command.key_hash, command.id_hash, delay, command.grace_ms, command.keys, command.has_marker,
        coordinator, user,
    )  # fmt: skip
    reply = Sent(offset, queue_id, half_index, command.unique_id)
    return (*made, record) if made else (record,), reply, NOTHING, NOTHING, False


def named(state: State, message: _Named, offset: int) -> _Named:
    """Assign a unique id, derived from the log offset, to a message without one."""
    unique_id = offset_message_id(state.settings.store_host, offset)
    return replace(
        message,
        unique_id=unique_id,
        key_hash=hash64(unique_id.encode()),
        properties=append(message.properties, f"{UNIQ_KEY}\x01{unique_id}\x02".encode()),
    )


def _prepared_before(known: Undecided, command: SendHalf, topic: Topic) -> Sent | Refused | None:
    """The first reply if this half is already stored; a refusal if it contradicts the stored one; None if it is new."""
    index, count = command.index, command.count
    if known.halves[0].batch is not None:
        return still_undecided(known.tx_id, "it has half batches, and cannot have single halves besides")
    for half in known.halves:
        if half.index == index:
            if half.topic_id != topic.topic_id or half.key_hash != command.key_hash:
                return still_undecided(known.tx_id)
            return Sent(half.first_offset, half.queue_id, half.half_index, command.unique_id)
    said = max(count, known.count)
    if said and (index >= said or known.halves[-1].index >= said or (count and known.count and count != known.count)):
        return still_undecided(
            known.tx_id, f"it is said to have {known.count or count} messages; message {index} does not fit"
        )
    return None


def still_undecided(tx_id: str, detail: str = "") -> Refused:
    """The refusal of a half that is not one of the undecided transaction ``tx_id``, even if only its generated id differs."""
    text = f"transaction {tx_id!r} is undecided: an earlier run of it was prepared and not settled"
    if detail:
        text += f"; {detail}"
    return Refused(Why.STILL_UNDECIDED, text, TransactionState.UNDECIDED.value)


def settled_earlier(state: State, command: SendHalf | PrepareBatch | FenceTransaction) -> Refused | None:
    """The refusal of a half, or of a fence, whose id the application chose and used before; None if the log has no verdict of it.

    Memory does not know the id. The search covered the verdicts before ``searched_to``, which is complete if it includes all that left
    memory.
    """
    earlier = command.earlier
    if earlier is not None and earlier.position >= state.log_start:
        return already_settled(command.tx_id, earlier)
    if state.derived.verdict_forgotten >= command.searched_to:
        return Refused(Why.SEARCH_AGAIN, f"verdicts were forgotten while {command.tx_id!r} was searched: send it again")
    return None


def already_settled(tx_id: str, verdict: Verdict | EarlierVerdict) -> Refused:
    """The refusal of a half of a settled transaction."""
    standing = standing_state(verdict.committed).value
    return Refused(
        Why.ALREADY_SETTLED,
        f"transaction {tx_id!r} is already {standing}; do not run the local transaction",
        standing,
        verdict.position,
    )


def _refuse_message(state: State, tx_id: str, body: bytes, delay: int, now_ms: int) -> Refused | None:
    if _ID.fullmatch(tx_id) is None:
        return Refused(
            Why.MESSAGE_ILLEGAL,
            f"{tx_id!r} is not a transaction id: 1 to {limits.TRANSACTION_ID_CHARS_MAX} of letters, digits and ._:-",
        )
    if state.session.disk_full:
        return DISK_FULL
    if len(body) > state.settings.body_bytes_max:
        return body_too_large(state, len(body))
    return delay_refusal(state, delay, now_ms)


#: All halves of a transaction are of one user, so that every record of it names the same one, also once the first ones are trimmed.
OTHER_USER: Final = "another user prepared it, or nobody had to be one then"
DISK_FULL: Final = Refused(
    Why.STORE_FULL, "the disk is nearly full: no new messages until space is freed; verdicts and checks continue"
)


def body_too_large(state: State, length: int) -> Refused:
    return Refused(Why.MESSAGE_ILLEGAL, f"body of {length} bytes; at most {state.settings.body_bytes_max}")


def too_many_properties(length: int) -> Refused:
    return Refused(
        Why.MESSAGE_ILLEGAL, f"properties of {length} bytes as stored; at most {limits.PROPERTIES_BYTES_MAX}"
    )


# --- settle ----------------------------------------------------------------------------------------------------


def decide_end(state: State, command: EndTransaction, now_ms: int) -> DecisionTuple:
    """Settle a transaction: the first verdict wins, and repeating it is harmless.

    The reply must wait for the log's end at this decision even without records: a repeated or refused verdict must not be confirmed
    before the first one is durable.

    Replies:
        Settled: the transaction has this verdict, now or before.
        Noted: UNKNOWN was received.
        Refused VERDICT_CONFLICT: it has the opposite verdict. INCOMPLETE: it stays undecided, send the missing halves.
            AFTER_RESTORE: a rollback that waits for an operator (``restored``).
            WRONG_GROUP, WRONG_OFFSETS: nothing was changed. SUPERSEDED, OF_COORDINATOR: neither, and this sender never can. NOT_FOUND:
                never prepared here, or past retention.
    """
    group_name = command.group
    tx_id = command.tx_id
    half_index = command.half_index
    log_offset = command.log_offset
    wanted = command.wanted
    coordinator = command.coordinator
    if coordinator is not None:
        superseded = refuse_superseded(state, group_name, coordinator)
        if superseded is not None:
            return Decision(NOTHING, superseded)
    group = state.producer_groups.get(group_name)
    known = group.undecided.get(tx_id) if group is not None else None
    if group is None or known is None:
        return Decision(NOTHING, _end_of_settled(state, group, command))
    for half in known.halves:
        if half.half_index == half_index and half.first_offset == log_offset:
            break
    else:
        if not (half_index == log_offset == ANY_HALF and (wanted is _ROLLBACK or coordinator is not None)):
            return Decision(NOTHING, _wrong_offsets(tx_id, half_index, log_offset))
    if known.coordinator is not coordinator and (wanted is _COMMIT or wanted is _ROLLBACK):
        refused = refuse_other(known, coordinator)
        if refused is not None:
            return Decision(NOTHING, refused)
    if wanted is _COMMIT:
        decided = _commit(state, known, command.decided_by, now_ms, command.user)
        if command.decided_by >= _OPERATOR:
            decided = with_comparison(state, known, decided, "", now_ms)
        return _settled(group, tx_id, decided) if group.session.in_flight or group.session.last_unknown else decided
    if wanted is _ROLLBACK:
        if state.restored_half_index > 0 and waits_for_operator(state, known):
            parked = known.parked is ParkedBecause.RESTORED
            records = () if parked else (park_restored(known, command.decided_by, next_offset(state)),)
            return Decision(records, refusal(known), (), check_cancelled(group, tx_id))
        decided = _requested_by(command.user, _roll_back(state, known, command.decided_by))
        if command.decided_by >= _OPERATOR:
            decided = with_comparison(state, known, decided, "", now_ms)
        return _settled(group, tx_id, decided)
    answered = tx_id in group.session.in_flight
    received = UnknownReceived(group_name, tx_id, now_ms, command.remark[:200])
    return Decision(due_sooner(state, known, now_ms) if answered else NOTHING, Noted(), (), (received,))


def _settled(group: ProducerGroup, tx_id: str, decided: DecisionTuple) -> DecisionTuple:
    """The decision with ``CheckCancelled``, if it settles the transaction and a check was sent."""
    records, reply, effects, events, begins_segment = decided
    if records:
        events = (*events, *check_cancelled(group, tx_id))
    return records, reply, effects, events, begins_segment


def check_cancelled(group: ProducerGroup, tx_id: str) -> tuple[CheckCancelled, ...]:
    return (
        (CheckCancelled(group.name, tx_id),)
        if tx_id in group.session.in_flight or tx_id in group.session.last_unknown
        else ()
    )


def decide_resolve(state: State, command: ResolveTransaction, now_ms: int) -> Decision:
    """A named operator settles the transaction, with the same table as its producer.

    A settled transaction that is no longer in memory is not searched here: on NOT_FOUND the caller reads the transaction table and
    repeats the command with the row.
    """
    if command.wanted == RequestedVerdict.UNKNOWN:
        return refuse(Why.INVALID_PARAMETER, "an operator decides COMMIT or ROLLBACK")
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(command.tx_id) if group is not None else None
    if known is not None:
        by = command.by or Actor(command.operator)
        if command.wanted == RequestedVerdict.COMMIT:
            decided = _commit(state, known, DecidedBy.OPERATOR, now_ms)
            action = OperatorAction.COMMIT
        else:
            decided = _roll_back(state, known, DecidedBy.OPERATOR)
            action = OperatorAction.ROLL_BACK
        decided = _requested_by(command.user, decided)
        decided = with_comparison(state, known, decided, by.name, now_ms)
        decision = Decision._make(_settled(group, command.tx_id, decided) if group is not None else decided)
        return signed(decision, action, command.tx_id, by)
    verdict = group.settled.get(command.tx_id) if group is not None else None
    if verdict is None and command.settled is not None:
        return Decision(NOTHING, _reply_for_row(state, command.settled, command.group, command.tx_id, command.wanted))
    if verdict is None:
        of_group = f" of group {command.group!r}" if command.group else ""
        text = f"transaction {command.tx_id!r}{of_group} is not undecided, and not among the recent verdicts"
        return refuse(Why.NOT_FOUND, text)
    return Decision(
        NOTHING,
        _reply_for_settled(state, command.wanted, command.group, command.tx_id, verdict, verdict.position),
    )


def _requested_by(user: str, decided: DecisionTuple) -> DecisionTuple:
    """The decision on a verdict with the user who requested it, if it has records. The verdict is the last of them."""
    records, reply, effects, events, begins_segment = decided
    if not user or not records:
        return decided
    *copies, verdict = records
    stated = replace(verdict, size=verdict.size + len(user), user=user)
    return (*copies, stated), reply, effects, events, begins_segment


def _commit(state: State, known: Undecided, decided_by: DecidedBy, now_ms: int, user: str = "") -> DecisionTuple:
    halves = known.halves
    count = known.count
    if count != len(halves):
        if halves[0].attempt:
            text = f"transaction {known.tx_id!r} is a batch of a query, which commits it by its decision; it can be rolled back"
            return refuse(Why.INCOMPLETE, text)
        said = f"{count} messages" if count else "its last message, which states their number, is missing"
        return refuse(
            Why.INCOMPLETE, f"transaction {known.tx_id!r} stays undecided: {len(halves)} messages are here, {said}"
        )
    offset = state.log_end if state.batch_open else next_offset(state)
    # ``segment_start`` inlined: a call takes three times as long.
    segment = offset - offset % state.settings.segment_bytes
    half = halves[0]
    if count != 1 or half.offset < segment or half.delay or half.batch is not None:
        return _requested_by(user, _commit_many(state, known, decided_by, offset, now_ms))
    # The common case: one half in the current segment.
    group_name = known.group
    tx_id = known.tx_id
    topic_id = half.topic_id
    queue_id = half.queue_id
    topic = state.topics_by_id[topic_id]
    ref = Ref(
        half.offset, half.message_bytes, half.first_offset, half.half_index, topic_id, queue_id, topic.ends[queue_id],
        0, half.tag_hash, half.key_hash,
    )  # fmt: skip
    size = _COMMITTED_ONE_BYTES + len(group_name) + len(tx_id)
    if user:
        size += len(user)
    record = Committed(offset, size, group_name, tx_id, decided_by, (ref,), user)
    reply = Settled(group_name, tx_id, True, offset, False)
    return (record,), reply, topic.wakes[queue_id], NOTHING, False


def _commit_many(state: State, known: Undecided, decided_by: DecidedBy, offset: int, now_ms: int) -> Decision:
    """Copy halves of older segments forward, then one record makes all halves visible."""
    if known.halves[0].batch is not None:
        return commit_batches(state, known, decided_by)
    copies, halves, offset = halves_in_segment(state, known, offset)
    refs: list[Ref] = []
    ends: dict[tuple[int, int], int] = {}
    wakes: dict[WakeQueue, None] = {}
    for half in halves:
        topic = state.topics_by_id[half.topic_id]
        due_ms = due_at(half.delay, now_ms)
        queue_offset = -1
        if not due_ms:
            queue = (half.topic_id, half.queue_id)
            queue_offset = ends.get(queue, topic.ends[half.queue_id])
            ends[queue] = queue_offset + 1
            wakes[topic.wakes[half.queue_id][0]] = None
        refs.append(
            Ref(
                half.offset, half.message_bytes, half.first_offset, half.half_index, half.topic_id, half.queue_id,
                queue_offset, due_ms, half.tag_hash, half.key_hash,
            )
        )  # fmt: skip
    size = committed_size(known.group, known.tx_id, len(refs))
    record = Committed(offset, size, known.group, known.tx_id, decided_by, tuple(refs))
    return Decision((*copies, record), Settled(known.group, known.tx_id, True, offset, False), tuple(wakes))


def _roll_back(state: State, known: Undecided, decided_by: DecidedBy) -> DecisionTuple:
    record = roll_back(known, decided_by, next_offset(state))
    counted = (halves_rolled_back(known),)
    return Decision((record,), Settled(known.group, known.tx_id, False, record.offset, False), NOTHING, counted)


def halves_rolled_back(known: Undecided) -> HalvesRolledBack:
    """The event that goes with ``roll_back``."""
    return HalvesRolledBack(tuple([half.topic_id for half in known.halves]))


def roll_back(known: Undecided, decided_by: DecidedBy, offset: int, user: str = "") -> RolledBack:
    """The record at ``offset`` that rolls ``known`` back. ``user``: who requested it."""
    return RolledBack(
        offset,
        rolled_back_size(known.group, known.tx_id, len(known.halves), user),
        known.group,
        known.tx_id,
        decided_by,
        tuple([half.half_index for half in known.halves]),
        user,
    )


# --- what is no longer undecided -------------------------------------------------------------------------------


def _end_of_settled(state: State, group: ProducerGroup | None, command: EndTransaction) -> Settled | Refused | Noted:
    """The reply to an END of a transaction that is not undecided: its verdict, or why it is not known."""
    group_name, tx_id, wanted, row = command.group, command.tx_id, command.wanted, command.settled
    half_index, log_offset = command.half_index, command.log_offset
    verdict = group.settled.get(tx_id) if group is not None else None
    if verdict is not None:
        if not _matches_half(verdict, half_index, log_offset):
            return _wrong_offsets(tx_id, half_index, log_offset)
        return _reply_for_settled(state, wanted, group_name, tx_id, verdict, verdict.position)
    # The row comes before other groups: another group's transaction with this id is no reason to refuse a known verdict.
    if row is not None and row.half_index == half_index and row.first_offset in (log_offset, 0):
        return _reply_for_row(state, row, group_name, tx_id, wanted)
    for other in islice(state.producer_groups.values(), _GROUPS_EXAMINED_MAX):
        if other is not group and (tx_id in other.undecided or tx_id in other.settled):
            return Refused(Why.WRONG_GROUP, f"transaction {tx_id!r} is not of producer group {group_name!r}")
    return _not_found(state, group_name, tx_id, half_index, log_offset)


def _matches_half(verdict: Verdict, half_index: int, log_offset: int) -> bool:
    """Whether both offsets belong to one half of the settled transaction, or are those of any."""
    if half_index == log_offset == ANY_HALF:
        return True
    halves, places = verdict.half_indexes, verdict.first_offsets
    if not isinstance(halves, tuple) or not isinstance(places, tuple):
        return halves == half_index and places in (log_offset, -1)
    for index, place in zip(halves, places, strict=True):
        if index == half_index:
            return place in (log_offset, -1)
    return False


def _reply_for_row(
    state: State, row: SettledRow, group_name: str, tx_id: str, wanted: RequestedVerdict
) -> Settled | Refused | Noted:
    """The verdict in the transaction table, which has it as long as the verdict is in the log."""
    if (row.group_hash ^ hash64(group_name.encode())) & _HASH_MASK:
        return Refused(Why.WRONG_GROUP, f"transaction {tx_id!r} is not of producer group {group_name!r}")
    if (row.id_hash ^ hash64(tx_id.encode())) & _HASH_MASK:
        return _wrong_offsets(tx_id, row.half_index, row.first_offset)
    if row.verdict_position < state.log_start:
        return Refused(Why.NOT_FOUND, _PAST_RETENTION)
    return _reply_for_settled(state, wanted, group_name, tx_id, row, row.verdict_position)


def _reply_for_settled(
    state: State, wanted: RequestedVerdict, group: str, tx_id: str, verdict: Verdict | SettledRow, position: int
) -> Settled | Refused | Noted:
    standing = standing_state(verdict.committed)
    match OF_SETTLED[standing, wanted]:
        case SettledEffect.REPEATS:
            return Settled(group, tx_id, verdict.committed, position, True)
        case SettledEffect.CONFLICTS:
            by = by_whom(verdict.decided_by)
            known = state.comparisons.get((group, tx_id))
            if known is not None and known.by:
                by += f" ({known.by})"
            return Refused(
                Why.VERDICT_CONFLICT,
                f"transaction {tx_id!r} is {standing.value} since position {position}{by}; the first verdict is final",
                standing.value,
                position,
            )
        case _:
            return Noted()


def _wrong_offsets(tx_id: str, half_index: int, log_offset: int) -> Refused:
    return Refused(
        Why.WRONG_OFFSETS,
        f"transaction {tx_id!r} has no half {half_index} at log offset {log_offset}: both must be as answered to it",
    )


def _not_found(state: State, group: str, tx_id: str, half_index: int, log_offset: int) -> Refused:
    """The refusal for an unknown transaction. It does not search all undecided ones: ENDs with wrong ids must stay cheap."""
    if 0 <= log_offset < state.log_start and 0 <= half_index < state.next_half_index:
        return Refused(Why.NOT_FOUND, _PAST_RETENTION)
    what = f"transaction {tx_id!r} of group {group!r}"
    if half_index == log_offset == ANY_HALF:
        return Refused(Why.NOT_FOUND, f"{what} is not undecided, and not among the recent verdicts")
    return Refused(Why.NOT_FOUND, f"{what} was never prepared here as half {half_index} at log offset {log_offset}")
