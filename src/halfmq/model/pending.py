"""One undecided transaction as people are shown it: ``core`` makes it, ``wire`` carries it, the command line prints it."""

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
    #: 0 when it is due.
    next_check_in_ms: int
    #: Live producers of the group: who can be asked.
    producers: int
