"""Changes of session state by decisions, as values; ``session.apply_session`` applies them.

``Decision.events`` says what to change once the records of a decision were applied. ``TimePassed``, ``LocksExpired`` and
``TrimStarted`` precede one (``decide.comes_before``), and are applied whether or not it succeeds.

Times are broker time, ms.
"""

from typing import NamedTuple


class TimePassed(NamedTuple):
    """The time is ``now_ms``: move everything that is due by then to the queues of due work."""

    now_ms: int


class QueueChosen(NamedTuple):
    """The broker chose the queue of a message: the next message gets the next queue."""

    topic_id: int


class UnknownReceived(NamedTuple):
    """A producer responded UNKNOWN: its check, if any, is no longer in flight."""

    group: str
    tx_id: str
    now_ms: int
    remark: str


class HalvesRolledBack(NamedTuple):
    """Halves of these topics, by their ids, were rolled back; a topic once for each half. A statistic."""

    topics: tuple[int, ...]


class CheckCancelled(NamedTuple):
    """The transaction was settled: no response is awaited."""

    group: str
    tx_id: str


class ChecksSent(NamedTuple):
    """Checks of a group were sent, each to its connection, and are in flight until ``until_ms``."""

    group: str
    now_ms: int
    until_ms: int
    #: (transaction id, connection).
    asked: tuple[tuple[str, int], ...]
    #: New value of ``ProducerSession.round_robin_index``.
    round_robin_index: int
    #: Connections whose open request for checks was served.
    served: tuple[int, ...]
    #: Number of entries of ``due`` and ``early`` that were examined.
    due: int = 0
    early: int = 0
    #: Whether a tick served the group in its turn.
    in_turn: bool = False


class CheckWaits(NamedTuple):
    """A check waits until a client of the group fetches it."""

    group: str
    tx_id: str


class CheckLimitRaised(NamedTuple):
    """A group may have more checks in flight: those that wait at the limit take turns again."""


class CheckFailed(NamedTuple):
    """A check did not reach its client. ``in_flight``: it is the one recorded as in flight; ``gone``: the connection accepts no more."""

    group: str
    tx_id: str
    connection: int
    in_flight: bool
    gone: bool


class ParkedResumed(NamedTuple):
    """Parked transactions are checked again: the group's policy must examine them by ``look_by_ms``."""

    group: str
    look_by_ms: int


class PolicyExamined(NamedTuple):
    """A policy has examined these ids of ``PolicySession.past``. ``asked_again``: those of them that are within its limits again.

    ``look_by_ms``: when the response to a check in flight is overdue; 0: none is in flight.
    """

    group: str
    looked_at: tuple[str, ...]
    asked_again: tuple[str, ...]
    look_by_ms: int


class PolicyChanged(NamedTuple):
    """A policy was changed or removed. ``past`` and ``last_check_delivered``: of the ``PolicySession`` before; the transactions
    that it found beyond a limit are due again, and the checks that reached a producer stay known."""

    group: str
    past: tuple[str, ...]
    last_check_delivered: dict[str, int]


class OffsetReported(NamedTuple):
    """A consumer group reported an offset; log it at ``log_at_ms``, or together with another one of the group."""

    group: str
    topic_id: int
    queue_id: int
    offset: int
    log_at_ms: int


class OffsetLogged(NamedTuple):
    """The offset of the group in this queue was logged."""

    group: str
    topic_id: int
    queue_id: int


class OffsetRefused(NamedTuple):
    """A base has no space for the offset: it is kept for this run only."""

    group: str
    topic_id: int
    queue_id: int
    offset: int


class OffsetsDrained(NamedTuple):
    """The first ``count`` fresh offsets of the group were logged, or belong to deleted topics. ``all``: the group has no more."""

    group: str
    count: int  # type: ignore[assignment]  # shadows tuple.count, which is not used
    all: bool
    now_ms: int


class LocksExpired(NamedTuple):
    """The time is ``now_ms``: remove expired locks of the group, and of all groups if locks are scarce."""

    group: str
    is_short: bool
    now_ms: int


class QueuesLocked(NamedTuple):
    """The client holds these queues, (topic, queue id) each, until ``until_ms`` unless it renews the locks."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...]
    until_ms: int
    owner: str = ""


class QueuesUnlocked(NamedTuple):
    """The client releases those of these queues that it holds."""

    group: str
    client_id: str
    queues: tuple[tuple[str, int], ...]


class TopicRemoved(NamedTuple):
    """``queues``: maximum number of queues that the topic ever had. ``groups``: those that have, or were refused, an offset in it."""

    topic_id: int
    queues: int
    groups: tuple[str, ...]


class ConsumerGroupRemoved(NamedTuple):
    """The consumer group was deleted: forget its locks and, ``with_offsets``, the offsets that it reported."""

    group: str
    with_offsets: bool


class DelayedPostponed(NamedTuple):
    """These delayed messages, by their first offsets, stay delayed in this run because their bytes cannot be copied. They are due
    again at the next start."""

    first_offsets: tuple[int, ...]


class TrimStarted(NamedTuple):
    """Begin to prepare a trim to ``log_start``, unless that has begun: find what is alive before it."""

    log_start: int


class CopiedForward(NamedTuple):
    """The first ``count`` entries found before ``log_start`` were copied forward or are settled; continue with the next."""

    log_start: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which is not used


DecisionEvent = (
    QueueChosen | UnknownReceived | HalvesRolledBack | CheckCancelled | ChecksSent | CheckWaits | CheckFailed | CheckLimitRaised | ParkedResumed | PolicyExamined | PolicyChanged
    | OffsetReported | OffsetLogged | OffsetRefused | OffsetsDrained | QueuesLocked | QueuesUnlocked | TopicRemoved | ConsumerGroupRemoved
    | CopiedForward
)  # fmt: skip
