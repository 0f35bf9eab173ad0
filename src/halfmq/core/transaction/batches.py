"""Half batches, and decisions on batches of a query: exactly once for an application that repeats its last batch after a crash.

    PrepareBatch  ->  [RolledBack ...] HalfBatch    invisible; a batch of a query has a transaction for each run of the query
    DecideBatch   ->  [RolledBack ...] Decided      the winners' messages become visible at one position, others never
    FindDecision  ->  nothing: whether a batch is decided
    EndTransaction COMMIT of a transaction of half batches  ->  Decided, without a digest

The first decision on a batch wins: the same digest again gets the same reply, another one is refused. So the
application may call it any number of times. Every batch before the last decided one counts as decided, too; the digests of the newest
are known, so that a repeated decision can be told from a contradiction.

Which query a batch belongs to: ``queries``. A new run of a query (its first half batch or decision) supersedes the others: their undecided
transactions are rolled back, since a run decides only what it has prepared, and what they still send is refused. That rollback is safe: the
batch is prepared again.

Half batches in earlier segments are copied forward before a decision, in steps (``core.steps``): they may be hundreds of megabytes. A batch
that takes more than half a segment is not copied; retention removes its segments together (``core.retention``), and the next batch of a
query begins a new segment, so that ties do not chain. Nor is one whose copies are in an earlier segment already, because other writes
filled the segment meanwhile: two such decisions would drive each other on for ever.
"""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.commands import DecideBatch, FindDecision, PrepareBatch, Winner
from halfmq.core.copies import copy_half, step_bytes
from halfmq.core.decision import NOTHING, BatchDecided, Decision, DecisionFound, Done, Refused, Sent, Why, refuse
from halfmq.core.events import DecisionEvent
from halfmq.core.queues.delay import delays_refusal
from halfmq.core.state import ProducerGroup, Query, State, Topic, Undecided, next_offset, place_of
from halfmq.core.topics import PERMISSION_WRITE, first_use
from halfmq.core.transaction.admission import refuse_bytes, refuse_of_user, too_large
from halfmq.core.transaction.batch_verdict import decided_record
from halfmq.core.transaction.machine import (
    DISK_FULL,
    OTHER_USER,
    already_settled,
    check_cancelled,
    halves_rolled_back,
    roll_back,
    settled_earlier,
    still_undecided,
)
from halfmq.core.transaction.queries import query_of, refuse_owner
from halfmq.core.transaction.query_limits import make_space_for_decision, refuse_new_query
from halfmq.model.half_batch import delays_in
from halfmq.model.placement import segment_start
from halfmq.model.query_batch import BATCH_MAX, QueryBatch, of_tx_id
from halfmq.model.records import DecidedBy, Half, HalfBatch, Record, decided_size, half_batch_size

DIGEST_BYTES: Final = 16
#: Winners that a refusal names.
_MISSING_NAMED_MAX: Final = 10
#: After the index of any half.
_INDEX_END: Final = 1 << 62


# --- prepare ---------------------------------------------------------------------------------------------------


def decide_prepare_batch(state: State, command: PrepareBatch, now_ms: int) -> Decision:
    """Store a half batch, or repeat the reply to an earlier send of it.

    Replies:
        Sent: stored, now or before; ``queue_offset`` is the half index.
        Refused ALREADY_SETTLED: the batch of the query is decided, or the transaction is settled. Send nothing more of it.
        Refused SEARCH_AGAIN: as for ``machine.prepare``.
        Refused FENCED: a later run of the query has begun.
        Refused OTHER_STREAM: the query belongs to another stream, or to batch writes. Send nothing more of it.
        Refused, other reasons: nothing was written.
    """
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(command.tx_id) if group is not None else None
    answered = _prepared_before(state, group, known, command)
    if answered is not None:
        return Decision(NOTHING, answered)
    if state.session.disk_full:
        return Decision(NOTHING, DISK_FULL)
    records: list[Record] = []
    events: list[DecisionEvent] = []
    offset = next_offset(state)
    topic = state.topics_by_name.get(command.topic)
    if topic is None:
        found = first_use(state, command.topic, command.default_queues, offset)
        if isinstance(found, Refused):
            return Decision(NOTHING, found)
        topic, made = found
        records.append(made)
        offset += made.size
    facts = command.facts
    if command.user:
        facts = replace(facts, user=command.user)
    size = half_batch_size(command.group, command.tx_id, facts, len(command.payload))
    refused = _refuse_batch(state, group, known, topic, command, size) or delays_refusal(
        state, delays_in(facts.delayed_entries), now_ms
    )
    if refused is not None:
        return Decision(NOTHING, refused)
    batch = command.batch
    if batch is not None:
        for other in superseded(state, batch, up_to=-1):
            rolled_back = roll_back(other, DecidedBy.PRODUCER, offset, command.user)
            records.append(rolled_back)
            events += halves_rolled_back(other), *check_cancelled(state.producer_groups[other.group], other.tx_id)
            offset += rolled_back.size
    record = HalfBatch(
        offset, size, topic.topic_id, command.queue_id, state.next_half_index, command.group, command.tx_id, facts,
        command.index, command.count, command.grace_ms, command.payload,
    )  # fmt: skip
    records.append(record)
    reply = Sent(record.offset, command.queue_id, record.half_index, "")
    return Decision(tuple(records), reply, (), tuple(events), _begins_segment(state, command))


def _begins_segment(state: State, command: PrepareBatch) -> bool:
    """Whether it is the first half batch of an attempt, in a segment that a decision ties to earlier ones: ties must not chain."""
    if not command.facts.attempt or command.index or not state.ties:
        return False
    return next(reversed(state.ties)) >= segment_start(next_offset(state), state.settings.segment_bytes)


def _prepared_before(
    state: State, group: ProducerGroup | None, known: Undecided | None, command: PrepareBatch
) -> Sent | Refused | None:
    """The first reply if this half batch is already stored; why it contradicts what is known; None if it is new."""
    batch = command.batch
    if batch is not None:
        refused = (
            refuse_owner(state, batch)
            or _refuse_run(state, batch, command.group)
            or _refuse_decided(state, batch)
            or _refuse_over(state, batch)
        )
        if refused is not None:
            return refused
    verdict = group.settled.get(command.tx_id) if group is not None else None
    if verdict is not None:
        return already_settled(command.tx_id, verdict)
    if command.searched_to >= 0 and known is None:
        refused = settled_earlier(state, command)
        if refused is not None:
            return refused
    facts = command.facts
    attempt = facts.attempt
    halves = _of_attempt(known.halves, attempt) if known is not None else ()
    if command.index > len(halves):
        return Refused(
            Why.INVALID_PARAMETER,
            f"transaction {command.tx_id!r} has half batches up to number {len(halves) - 1}, and cannot get number "
            f"{command.index}: they come in order, or the earlier ones were rolled back",
        )
    if known is None:
        return None
    if known.user != command.user:
        return _does_not_fit(command, OTHER_USER)
    at = place_of(halves, attempt, command.index)
    for half in halves[at : at + 1]:
        if half.index == command.index:
            stored = half.batch
            same = stored is not None and (stored.messages, stored.checksum) == (facts.messages, facts.checksum)
            if same and state.topics_by_id[half.topic_id].name == command.topic and half.queue_id == command.queue_id:
                return Sent(half.first_offset, half.queue_id, half.half_index, "")
            return _does_not_fit(
                command,
                f"attempt {attempt} has another half batch at index {command.index}" if attempt else "",
            )
    last = known.halves[-1]
    if last.batch is None or bool(last.attempt) != bool(attempt):
        return _does_not_fit(
            command,
            "it was begun in another way: it has only single halves, or only half batches, and attempts only if it is a batch of "
            "a query",
        )
    said = max(command.count, known.count)
    if not attempt and said:
        fits = command.index < said and len(known.halves) <= said
        if not fits or (command.count and known.count and command.count != known.count):
            return _does_not_fit(
                command,
                f"it is said to have {known.count or command.count} half batches; number {command.index} does not fit",
            )
    return None


def _does_not_fit(command: PrepareBatch, detail: str) -> Refused:
    """The id of an application's transaction may be in use by another of its runs; that of a batch of a query is made for each attempt."""
    if command.facts.attempt:
        return Refused(Why.INVALID_PARAMETER, f"transaction {command.tx_id!r}: {detail}")
    return still_undecided(command.tx_id, detail)


def _of_attempt(halves: tuple[Half, ...], attempt: str) -> tuple[Half, ...]:
    return halves[place_of(halves, attempt, 0) : place_of(halves, attempt, _INDEX_END)]


def _refuse_batch(
    state: State, group: ProducerGroup | None, known: Undecided | None, topic: Topic, command: PrepareBatch, size: int
) -> Refused | None:
    """Why a new half batch is not stored; None if it is."""
    if not topic.permission & PERMISSION_WRITE or topic.exempt:
        return Refused(Why.NO_PERMISSION, f"topic {topic.name!r} is not writable")
    if not 0 <= command.queue_id < topic.write_queues:
        return Refused(
            Why.INVALID_PARAMETER,
            f"topic {topic.name!r} has write queues 0 to {topic.write_queues - 1}, not {command.queue_id}",
        )
    if size + 1_024 > state.record_bytes_max:
        return Refused(
            Why.MESSAGE_ILLEGAL,
            f"the half batch takes {size} bytes of log; with segments of {state.settings.segment_bytes} bytes one may take "
            f"{state.record_bytes_max - 1_024}: send smaller ones",
        )
    halves = len(known.halves) if known is not None else 0
    verdict_bytes = decided_size(
        command.group,
        command.tx_id,
        bytes(DIGEST_BYTES),
        halves + 1,
        0,
        command.facts.query_topic,
        command.facts.stream,
    )
    if halves >= limits.TRANSACTION_HALF_BATCHES_MAX or 2 * verdict_bytes > state.record_bytes_max:
        return Refused(
            Why.MESSAGE_ILLEGAL,  # a client that gets LIMIT_REACHED waits, which does not help here
            f"transaction {command.tx_id!r} has {halves} half batches, as many as it may; send larger ones",
        )
    refused = refuse_of_user(state, command.user, size, begins=known is None) if command.user else None
    if refused is not None:
        return refused
    batch = command.batch
    if batch is None:
        total = verdict_bytes + size + sum([half.message_bytes for half in known.halves] if known is not None else [])
        if total > state.record_bytes_max:
            return too_large(state, total)
    elif known is None:
        refused = _refuse_query(state, batch, command.group)
        if refused is not None:
            return refused
    query = query_of(state, batch) if batch is not None else None
    return refuse_bytes(state, group, known, size, of_known_query=query is not None and query.last_batch >= 0)


# --- decide ----------------------------------------------------------------------------------------------------


def decide_batch(state: State, command: DecideBatch, now_ms: int) -> Decision:
    """Decide a batch of a query.

    Replies:
        Done: half batches were copied; send the command again. Nothing is decided yet.
        BatchDecided: the winners' messages are visible, now or since the same decision before.
        Refused VERDICT_CONFLICT: the batch was decided with another digest, or so long ago that its digest is no longer known. Stop: the
            application has another history than the broker.
        Refused INCOMPLETE: half batches of these winners are missing, so nothing was decided. Prepare the batch again.
        Refused FENCED: a later run of the query has begun. Stop.
        Refused OTHER_STREAM: the query belongs to another stream, or to batch writes. Stop.
        Refused, other reasons: nothing was decided.
    """
    batch = command.batch
    number = batch.batch
    refused = refuse_owner(state, batch)
    if refused is not None:
        return Decision(NOTHING, refused)
    query = query_of(state, batch)
    stands = _decision_of(query, number)
    if stands is not None:
        return Decision(NOTHING, _repeated(command, stands))
    refused = _refuse_run(state, batch, command.group) or _refuse_over(state, batch)
    if refused is not None:
        return Decision(NOTHING, refused)
    group = state.producer_groups.get(command.group)
    known = group.undecided.get(batch.tx_id) if group is not None else None
    missing = _missing(known, command.winners)
    if missing:
        return refuse(Why.INCOMPLETE, f"{batch.text} stays undecided: {'; '.join(missing)}; prepare the batch again")
    if query is None:
        refused = _refuse_query(state, batch, command.group)
        if refused is not None:
            return Decision(NOTHING, refused)
    #: Attempt -> its place: their messages follow each other as the application names them, not as their names are sorted.
    won = {winner.attempt: place for place, winner in enumerate(command.winners)}
    copies = _copies(state, known, won) if known is not None else []
    if copies:
        return Decision(tuple(copies), Done(again=True))
    records: list[Record] = []
    events: list[DecisionEvent] = []
    offset = next_offset(state)
    for other in superseded(state, batch, up_to=_last_of(command)):
        if other is known:
            continue
        rolled_back = roll_back(other, DecidedBy.PRODUCER, offset, command.user)
        records.append(rolled_back)
        events += halves_rolled_back(other), *check_cancelled(state.producer_groups[other.group], other.tx_id)
        offset += rolled_back.size
    halves = sorted(known.halves, key=lambda half: won.get(half.attempt, -1)) if known is not None else ()
    forgotten = make_space_for_decision(state, query, offset) if query is not None else None
    if forgotten is not None:
        records.append(forgotten)
        offset += forgotten.size
    record, wakes = decided_record(
        state, command.group, batch.tx_id, halves, won, DecidedBy.PRODUCER,
        command.digest, offset, command.is_last, batch.topic, batch.stream, user=command.user,
    )  # fmt: skip
    if known is not None and group is not None:
        events += check_cancelled(group, known.tx_id)
    records.append(record)
    return Decision(tuple(records), BatchDecided(record.offset, False), wakes, tuple(events))


def _last_of(command: DecideBatch) -> int:
    """The last batch that the decision makes obsolete: after the last decision of a query nothing of it may be undecided."""
    return BATCH_MAX if command.is_last else command.batch.batch


def _copies(state: State, known: Undecided, won: Collection[str]) -> list[Record]:
    """Copies of the next half batches of ``won`` that are in earlier segments, one at least if there are any. Empty if the batch is
    too large for copies, or would need a second copy of one.
    """
    segment_bytes = state.settings.segment_bytes
    offset = next_offset(state)
    segment = segment_start(offset, segment_bytes)
    halves = [half for half in known.halves if half.attempt in won]
    older = [half for half in halves if half.offset < segment]
    if not older or sum([half.message_bytes for half in halves]) > segment_bytes // 2:
        return []
    if any(half.offset != half.first_offset for half in older):
        return []
    copies: list[Record] = []
    end = offset + step_bytes(state)
    for half in older:
        if copies and offset + half.message_bytes > end:
            break
        copies.append(copy_half(known, half, offset))
        offset += half.message_bytes
    return copies


def _missing(known: Undecided | None, winners: Sequence[Winner]) -> list[str]:
    """A sentence for each winner that has not prepared what it says."""
    sums: dict[str, tuple[int, int, int]] = {}
    for half in known.halves if known is not None else ():
        batch = half.batch
        if batch is not None:
            halves, messages, checksum = sums.get(batch.attempt, (0, 0, 0))
            sums[batch.attempt] = (
                halves + 1,
                messages + batch.messages,
                (checksum + batch.checksum) & 0xFFFFFFFF,
            )
    missing: list[str] = []
    for attempt, *said in winners:
        there = sums.get(attempt, (0, 0, 0))
        if there != tuple(said):
            if len(missing) == _MISSING_NAMED_MAX:
                return [*missing, "and others"]
            found = f"{there[0]} half batches with {there[1]} messages are here"
            same = there[:2] == tuple(said[:2])
            missing.append(
                f"attempt {attempt}: {found}, {'with other content' if same else f'not {said[0]} with {said[1]}'}"
            )
    return missing


def _repeated(command: DecideBatch, stands: DecisionFound) -> BatchDecided | Refused:
    if stands.digest and stands.digest == command.digest:
        return BatchDecided(stands.position, True)
    what = command.batch.text
    if stands.digest:
        text = (
            f"{what} was decided with other content at position {stands.position}, and the first decision is final: the "
            "application repeats the batch with other input than before, or its checkpoint was replaced"
        )
    else:
        text = f"{what} counts as decided, since batch {stands.last_batch} is, and its content is not known: the checkpoint of the application is older than what it has written"
    return Refused(Why.VERDICT_CONFLICT, text, "COMMITTED", stands.position)


# --- what is decided -------------------------------------------------------------------------------------------


def find_decision(state: State, command: FindDecision, now_ms: int) -> Decision:
    """Whether a batch is decided. Replies: DecisionFound; Refused FENCED: a later run of the query has begun; Refused OTHER_STREAM."""
    batch = command.batch
    refused = refuse_owner(state, batch)
    if refused is not None:
        return Decision(NOTHING, refused)
    query = query_of(state, batch)
    if query is not None and batch.run in query.superseded:
        return Decision(NOTHING, _fenced(query, batch.run))
    found = _decision_of(query, batch.batch)
    last = query.last_batch if query is not None else -1
    return Decision(NOTHING, found or DecisionFound(False, b"", -1, last))


def _decision_of(query: Query | None, batch: int) -> DecisionFound | None:
    """None if the batch is not decided."""
    if query is None or batch > query.last_batch:
        return None
    found = query.decisions.get(batch)
    if found is None:
        return DecisionFound(True, b"", -1, query.last_batch)
    return DecisionFound(True, found.digest, found.position, query.last_batch)


def _refuse_decided(state: State, batch: QueryBatch) -> Refused | None:
    query = query_of(state, batch)
    stands = _decision_of(query, batch.batch)
    if stands is None:
        if query is None or batch.run != query.run or batch.batch > query.rolled_back_batch:
            return None
        text = f"{batch.text} was rolled back; start the query again, which prepares it again"
        return Refused(Why.ALREADY_SETTLED, text, "ROLLED_BACK")
    text = f"{batch.text} is already decided; prepare nothing more of it"
    return Refused(Why.ALREADY_SETTLED, text, "COMMITTED", stands.position)


def _refuse_run(state: State, batch: QueryBatch, group: str) -> Refused | None:
    query = query_of(state, batch)
    if query is None:
        return None
    if query.group != group:
        return Refused(Why.WRONG_GROUP, f"{query.text} is of producer group {query.group!r}, not of {group!r}")
    return _fenced(query, batch.run) if batch.run in query.superseded else None


def _refuse_over(state: State, batch: QueryBatch) -> Refused | None:
    """It is forgotten, at a time that depends on the log's start: whatever it still wrote would not be forgotten with it."""
    query = query_of(state, batch)
    if query is None or not query.is_over:
        return None
    return Refused(
        Why.INVALID_PARAMETER,
        f"{query.text} is over: its decision on batch {query.last_batch} said that there are no further ones; write under another name",
    )


def _fenced(query: Query, run: str) -> Refused:
    return Refused(
        Why.FENCED,
        f"run {run} of {query.text} is over: run {query.run} has written since, and only one run may write; stop this one, "
        "or start the query again if the other is the one that should not run",
    )


def _refuse_query(state: State, batch: QueryBatch, group: str) -> Refused | None:
    """Why a query may not begin another transaction."""
    query = query_of(state, batch)
    if query is None:
        return refuse_new_query(state, batch, group)
    left = len(state.derived.undecided_of_query.get(query.key, ())) - len(superseded(state, batch, up_to=-1))
    if left < limits.QUERY_UNDECIDED_MAX:
        return None
    return Refused(Why.LIMIT_REACHED, f"{query.text} has {left} undecided batches, as many as it may; decide them")


def superseded(state: State, batch: QueryBatch, *, up_to: int) -> list[Undecided]:
    """The undecided transactions of the query that ``batch`` makes obsolete: of other runs, and batches up to number ``up_to``."""
    query = query_of(state, batch)
    if query is None:
        return []
    undecided = state.producer_groups[query.group].undecided if query.group in state.producer_groups else {}
    found = []
    for tx_id in state.derived.undecided_of_query.get(query.key, ()):
        _, number, run = of_tx_id(tx_id)
        if run != batch.run or number <= up_to:
            found.append(undecided[tx_id])
    return found
