"""Which query a batch belongs to.

The identity of a query is its name and its topic (``model.query_batch``), and it belongs to one stream, or to batch writes, for ever. Two
cases are not that simple:

- Clients and stores of earlier versions state no topic. They mean the *first* query of that name, whose key has no topic. If its
  own topic is not known yet, the next record of this name that states one says which it is (``apply``); other topics begin queries of
  their own.
- A stream without a name of its own is identified by its id alone, and states no topic.

A run writes to one topic: a second one is refused. So the id of a transaction, which contains name, batch and run, is unique, and a
rollback finds its query by them (``DerivedState.query_of_run``).
"""

from halfmq.core.decision import Refused, Why
from halfmq.core.state import Query, QueryKey, State
from halfmq.model.query_batch import QueryBatch, of_tx_id


def key_of(state: State, name: str, topic: str) -> QueryKey:
    """The key of the query, also if there is none yet."""
    if topic and (name, topic) not in state.queries:
        first = state.queries.get((name, ""))
        if first is None or first.topic in ("", topic):
            return name, ""
    return name, topic


def query_of(state: State, batch: QueryBatch) -> Query | None:
    """The query of the batch, if there is one."""
    return state.queries.get(key_of(state, batch.query, batch.topic))


def key_of_id(state: State, tx_id: str, topic: str) -> QueryKey:
    """As ``key_of``, for the id of a batch of a query."""
    return key_of(state, of_tx_id(tx_id)[0], topic)


def refuse_owner(state: State, batch: QueryBatch) -> Refused | None:
    """The refusal if the query belongs to another stream, or the run to another topic; else None."""
    query = query_of(state, batch)
    of_run = state.derived.query_of_run.get((batch.query, batch.run))
    if of_run is not None and of_run is not query:
        return Refused(
            Why.INVALID_PARAMETER,
            f"run {batch.run} writes {of_run.text}, not topic {batch.topic or 'unknown'}: each write needs a run of its own",
        )
    if query is None or not query.topic or not batch.topic or query.stream == batch.stream:
        return None
    owner = f"stream {query.stream}" if query.stream else "batch writes"
    asks = f"stream {batch.stream}" if batch.stream else "batch writes"
    return Refused(
        Why.OTHER_STREAM,
        f"{query.text} belongs to {owner}, not to {asks}: what one has written would hide what the other writes, so each needs a "
        "name of its own",
    )
