"""How many queries the broker knows, and how they go away. Clients choose their names.

    new       refused beyond ``queries_max``, and beyond the queries' part of a base, which leaves the operators' part free
    unused    without a decision and without an undecided batch: forgotten after ``limits.QUERY_UNUSED_MS``, by a tick
    over      its last decision said so: forgotten likewise, or once that is trimmed (``derived.forget_finished_queries``). Writes no more
    idle      keeps only its last decision after ``limits.QUERY_IDLE_MS``, by a tick
    growing   remembers up to ``limits.QUERY_DECISIONS_MAX`` decisions while there is space, else only the last one and the new one
    decided   stays for as long as the store does: its last batch must never be visible twice (promise 3). Only an operator forgets it

Each of these is a record, ``QueryForgotten``, except the last, which follows from a trim. A redo compares no times.
"""

from typing import Final

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.base_bytes import DECISION_BYTES, DECISIONS_RESERVED, query_bytes, refuse_named
from halfmq.core.commands import ForgetQuery
from halfmq.core.decision import Decision, QueryRemoved, Refused, Why, refuse
from halfmq.core.schema import query_forgotten
from halfmq.core.state import Query, State, next_offset
from halfmq.core.transaction.queries import key_of
from halfmq.model.query_batch import QueryBatch, query_text
from halfmq.model.records import OperatorAction, QueryForgotten, Record
from halfmq.model.settings import NAMED_PART, QUERIES_PART

_SEE: Final = "`halfmq query list` shows them, and `halfmq query forget` removes one"


def refuse_new_query(state: State, batch: QueryBatch, group: str) -> Refused | None:
    """Why the batch may not begin a query; None if it may."""
    what = f"{query_text(batch.query, batch.topic)} was not accepted"
    most = state.settings.queries_max
    if len(state.queries) >= most:
        text = f"{what}: this broker knows {len(state.queries)} queries, and may know {most} (--queries-max); {_SEE}"
        return Refused(Why.LIMIT_REACHED, text)
    query = Query(key_of(state, batch.query, batch.topic), group)
    query.topic, query.stream = batch.topic, batch.stream
    size = query_bytes(query)
    most = QUERIES_PART.bytes_max(state.settings.segment_bytes)
    if state.derived.queries_bytes + size > most:
        return Refused(
            Why.LIMIT_REACHED,
            f"{what}: {len(state.queries)} queries take {state.derived.queries_bytes} of {most} bytes in the base of a segment of "
            f"{state.settings.segment_bytes} bytes; {_SEE}",
        )
    return refuse_named(state, size, what)


def make_space_for_decision(state: State, query: Query, offset: int) -> QueryForgotten | None:
    """The record before a decision of the query that has no space for one more; None if it has."""
    count = len(query.decisions)
    if count < DECISIONS_RESERVED or count >= limits.QUERY_DECISIONS_MAX:
        return None
    segment_bytes = state.settings.segment_bytes
    if state.derived.queries_bytes + DECISION_BYTES <= QUERIES_PART.bytes_max(
        segment_bytes
    ) and state.derived.base_bytes + DECISION_BYTES <= NAMED_PART.bytes_max(segment_bytes):
        return None
    return query_forgotten(offset, query, is_whole=False)


# --- age ---------------------------------------------------------------------------------------------------------


def next_query_ms(view: State) -> int | None:
    """When ``forget_old_queries`` has something to do, broker time ms; None: not before another record of a query."""
    times = [
        at_ms + limit_ms
        for ages, limit_ms, _ in _ages(view)
        for at_ms in [next(iter(ages.values()), None)]
        if at_ms is not None
    ]
    return min(times, default=None)


def forget_old_queries(state: State, offset: int, bytes_max: int, now_ms: int) -> tuple[list[Record], bool]:
    """(records, whether more is due): what is forgotten of queries that were not used for long."""
    records: list[Record] = []
    end = offset + bytes_max
    for ages, limit_ms, is_whole in _ages(state):
        for key, at_ms in ages.items():
            if now_ms - at_ms < limit_ms:
                break
            record = query_forgotten(offset, state.queries[key], is_whole=is_whole)
            if offset + record.size > end:
                return records, True
            records.append(record)
            offset += record.size
    return records, False


def _ages(state: State) -> tuple[tuple[dict[tuple[str, str], int], int, bool], ...]:
    """(queries -> since when, for how long they stay, whether they go as a whole)."""
    derived = state.derived
    return (
        (derived.unused_queries, limits.QUERY_UNUSED_MS, True),
        (derived.idle_queries, limits.QUERY_IDLE_MS, False),
    )


# --- operators -----------------------------------------------------------------------------------------------------


def decide_forget_query(state: State, command: ForgetQuery, now_ms: int) -> Decision:
    """An operator lets the broker forget a query: its batches can be written again.

    Replies:
        QueryRemoved. Refused NOT_FOUND; Refused NOT_NOW: it has undecided batches.
    """
    query = state.queries.get(key_of(state, command.name, command.topic))
    if query is None:
        text = f"no {query_text(command.name, command.topic)} is known here"
        return refuse(Why.NOT_FOUND, text)
    undecided = state.derived.undecided_of_query.get(query.key)
    if undecided:
        text = (
            f"{query.text} has {len(undecided)} undecided batches, so it may be at work: stop it, and roll them back "
            f"(halfmq tx rollback {next(iter(undecided))})"
        )
        return refuse(Why.NOT_NOW, text)
    record = query_forgotten(next_offset(state), query, is_whole=True)
    decision = Decision((record,), QueryRemoved(query.name, query.topic, query.last_batch))
    return signed(decision, OperatorAction.FORGET_QUERY, query.text, command.by)
