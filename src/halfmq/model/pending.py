"""Undecided transactions and their groups as people are shown them: ``core`` makes these, ``wire`` carries them, the command
line prints them."""

import msgspec


class PendingTransaction(msgspec.Struct, frozen=True):
    """Spans in ms from when it was asked for."""

    group: str
    tx_id: str
    age_ms: int
    messages: int
    #: How many messages it will have; 0 while that is not said.
    expected: int
    message_bytes: int
    topics: tuple[str, ...]
    #: Checks sent so far.
    checks: int
    #: 0 when it is due, or parked.
    next_check_in_ms: int
    #: Live producers of the group: who can be asked.
    producers: int
    #: By which limit of its group's policy it was parked: "checks" or "age"; empty: it was not.
    set_aside: str = ""


class GroupStats(msgspec.Struct, frozen=True):
    """Figures of one producer group."""

    group: str
    undecided: int
    undecided_max: int
    message_bytes: int
    message_bytes_max: int
    #: Age of its oldest undecided transaction, ms.
    oldest_ms: int
    #: How many of the undecided ones nobody is asked about any more by itself.
    set_aside: int
    #: Checks that wait for an answer.
    in_flight: int
    producers: int
    #: Verdicts of the last ``counted_ms`` of which memory knows.
    committed: int
    rolled_back: int
    counted_ms: int
    #: The policy; 0, "wait", 0 without one.
    check_limit: int
    past_limit: str
    skip_age_ms: int
    #: Who set limits and policy last.
    set_by: str
