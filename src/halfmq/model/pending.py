"""Undecided transactions, their groups, and queries for operators: ``core`` creates these values, ``wire`` transports them, the command
line prints them.
"""

import msgspec


class PendingTransaction(msgspec.Struct, frozen=True):
    """Durations in ms, at the time of the request."""

    group: str
    tx_id: str
    age_ms: int
    messages: int
    #: Number of messages that it will have; 0 if not stated yet.
    expected: int
    message_bytes: int
    topics: tuple[str, ...]
    #: Number of checks sent.
    checks: int
    #: 0 if it is due, or parked.
    next_check_in_ms: int
    #: Reachable producers of the group.
    producers: int
    #: Why it was parked: the limit of its group's policy, "checks" or "age", or "restored"; empty: not parked.
    parked: str = msgspec.field(name="set_aside", default="")
    #: As its first half says them (``message_facts.HalfNotes``); empty also if that half cannot be read.
    name: str = ""
    advice: str = ""
    comment: str = ""
    branch: str = ""
    #: Who alone settles it, apart from operators and a policy, and the epoch in which it was prepared; "" and 0: its producer.
    coordinator: str = ""
    epoch: int = 0


class GroupStats(msgspec.Struct, frozen=True):
    """Statistics of one producer group."""

    group: str
    undecided: int
    undecided_max: int
    message_bytes: int
    message_bytes_max: int
    #: Age of its oldest undecided transaction, ms.
    oldest_ms: int
    #: Number of parked transactions.
    parked: int = msgspec.field(name="set_aside")
    #: Checks that await a response.
    in_flight: int
    producers: int
    #: Verdicts of the last ``counted_ms`` that are in memory.
    committed: int
    rolled_back: int
    counted_ms: int
    #: The policy; 0, "wait", 0 without one.
    check_limit: int
    past_limit: str
    skip_age_ms: int
    #: The administrator who set limits and policy last.
    set_by: str


class QueryInfo(msgspec.Struct, frozen=True):
    """One query: an application with numbered batches, such as a Spark stream."""

    query: str
    #: As in ``query_batch.QueryBatch``.
    topic: str
    stream: str
    group: str
    run: str
    #: The last decided batch; -1: none.
    last_batch: int
    #: Log position of that decision; -1: none.
    position: int
    #: Decisions that the broker remembers, and undecided batches.
    decisions: int
    undecided: int
    #: Whether its last decision said that there are no further batches, so that it is forgotten by itself.
    is_over: bool


class CoordinatorInfo(msgspec.Struct, frozen=True):
    """What a broker knows of a coordinator (``model.coordinator``)."""

    group: str
    coordinator: str
    epoch: int
    #: The client that took the epoch, as it names itself.
    taken_by: str
    #: How long ago, ms, at the time of the request.
    age_ms: int
    undecided: int


class ClientInfo(msgspec.Struct, frozen=True):
    """A connection of a broker."""

    connection: int
    #: ``ip:port``.
    address: str
    #: "": the broker has no users, or it has not logged in.
    user: str
    #: As it names itself in heartbeats; "": it has sent none, as tools and connections to the name server port.
    client_id: str
    #: ``LanguageCode`` and ordinal of ``MQVersion``, of its last heartbeat.
    language: str
    version: int
    #: Names of its groups, the first ones of each kind, and the number of all.
    consumes: tuple[str, ...]
    produces: tuple[str, ...]
    groups: int
    #: Cost of its requests that wait, about bytes.
    pending: int
    #: Whether it does not read what it is sent.
    is_stalled: bool


class AwaitedComparison(msgspec.Struct, frozen=True):
    """A verdict that a reader of markers shall compare with its marker."""

    tx_id: str
    #: HMQ_TX_NAME and HMQ_TX_MARKER of its first half.
    name: str
    marker: str
    #: Broker time, ms.
    prepared_at_ms: int


class DamagedTransaction(msgspec.Struct, frozen=True):
    """A finding, or a verdict that nobody can compare any more. Durations in ms, at the time of the request."""

    group: str
    tx_id: str
    #: COMMITTED or ROLLED_BACK.
    verdict: str
    #: "operator", "policy" or whoever else, in lower case; and the operator's name, or "".
    decided_by: str
    by: str
    #: What its application's database did: COMMITTED or ROLLED_BACK; "": it was not compared.
    local: str
    #: Who reported that.
    source: str
    settled_ago_ms: int
    #: 0 if it was not compared.
    found_ago_ms: int
    position: int
