"""What a decision changes in session state, as values: ``session.apply_session`` makes them happen.

A decision is a question: it changes nothing, and says in ``Decision.events`` what is to be noted once its records were
applied. So one that raises, or whose records are not to happen (no space, a body that cannot be copied), has left nothing
behind; and it can be asked again.

Three come in front of a decision, not out of it (``decide.comes_before``): ``TimePassed``, ``LocksExpired``, ``TrimStarted``. They
happen whether or not it can be made.

Times are broker time, ms.
"""

from typing import NamedTuple


class TimePassed(NamedTuple):
    """It is ``now_ms``: what has fallen due by then is due."""

    now_ms: int


class QueueChosen(NamedTuple):
    """The sender of a message left the queue to the broker: the next one has the next queue."""

    topic_id: int


class UnknownReceived(NamedTuple):
    """A producer said UNKNOWN: its check, if there was one, is not in flight any more."""

    group: str
    tx_id: str
    now_ms: int
    remark: str


class CheckCancelled(NamedTuple):
    """The transaction was settled: nobody's answer is waited for."""

    group: str
    tx_id: str


class ChecksSent(NamedTuple):
    """Checks of a group go out, each to the connection that it names, and are in flight until ``until_ms``."""

    group: str
    now_ms: int
    until_ms: int
    #: (transaction id, connection).
    asked: tuple[tuple[str, int], ...]
    #: ``ProducerSession.turn`` from here on.
    turn: int
    #: Connections that fetched some, and so wait no more.
    served: tuple[int, ...]
    #: Entries of ``due`` and ``early`` that were looked at.
    due: int = 0
    early: int = 0
    #: It was the group's turn in a tick.
    in_turn: bool = False


class CheckWaits(NamedTuple):
    """A check goes to whoever fetches the group's next, and nobody waits for some now."""

    group: str
    tx_id: str


class CheckFailed(NamedTuple):
    """A check reached nobody. ``in_flight``: it was the one that is waited for; ``gone``: its connection takes none any more."""

    group: str
    tx_id: str
    connection: int
    in_flight: bool
    gone: bool


class ParkedResumed(NamedTuple):
    """Transactions that were parked are asked about again: their group's policy looks around by ``look_by_ms``."""

    group: str
    look_by_ms: int


class PolicyExamined(NamedTuple):
    """A policy has looked at these ids of ``PolicySession.past``. ``asked_again``: of them those that are within its limits again.

    ``look_by_ms``: when the answer about one that is asked about meanwhile is overdue, 0: none is.
    """

    group: str
    looked_at: tuple[str, ...]
    asked_again: tuple[str, ...]
    look_by_ms: int


class OffsetReported(NamedTuple):
    """A consumer group stands there; to be logged at ``log_at_ms``, or when another one of the group is."""

    group: str
    topic_id: int
    queue_id: int
    offset: int
    log_at_ms: int


class OffsetLogged(NamedTuple):
    """The log has said where the group stands in this queue."""

    group: str
    topic_id: int
    queue_id: int


class OffsetRefused(NamedTuple):
    """There is no space for it in a base: it is known in this run only."""

    group: str
    topic_id: int
    queue_id: int
    offset: int


class OffsetsDrained(NamedTuple):
    """The first ``count`` fresh offsets of the group are logged, or are of topics that are gone. ``all``: it has no more."""

    group: str
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here
    all: bool
    now_ms: int


class LocksExpired(NamedTuple):
    """It is ``now_ms``: locks of the group that ran out make space, and where it is short those of all."""

    group: str
    is_short: bool
    now_ms: int


class QueuesLocked(NamedTuple):
    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...]
    until_ms: int


class QueuesUnlocked(NamedTuple):
    """The client gives up those of these queues that it holds."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...]


class TopicRemoved(NamedTuple):
    """``queues``: how many it ever had. ``groups``: those that have, or were refused, an offset in it."""

    topic_id: int
    queues: int
    groups: tuple[str, ...]


class ConsumerGroupRemoved(NamedTuple):
    group: str
    with_offsets: bool


class DelayedPostponed(NamedTuple):
    """These delayed messages, by their first offsets, are not shown in this run: their bytes cannot be copied. They stay
    delayed, and are due at the next start."""

    first_offsets: tuple[int, ...]


class TrimStarted(NamedTuple):
    """A trim to ``log_start`` shall come: what lives below it is looked for, if that has not begun."""

    log_start: int


class CopiedForward(NamedTuple):
    """The first ``count`` of what was found below ``log_start`` are copied forward, or no longer need to be; look further."""

    log_start: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs here


DecisionEvent = (
    QueueChosen | UnknownReceived | CheckCancelled | ChecksSent | CheckWaits | CheckFailed | ParkedResumed | PolicyExamined | OffsetReported
    | OffsetLogged | OffsetRefused | OffsetsDrained | QueuesLocked | QueuesUnlocked | TopicRemoved | ConsumerGroupRemoved | CopiedForward
)  # fmt: skip
