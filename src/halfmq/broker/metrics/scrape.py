"""What one scrape of ``/metrics`` reads: the state, the store and the counters, in steps, between which others are served.

It has two parts. The first shows no stored state, so that it can be answered also while the disk stalls, which is when it is needed most.
What the second shows waits until a crash can no longer revert it, as every reply (promise 5); the caller withholds it.

A value of a name that is not shown (``shown_names``) goes into the sum of ``_other``; of ages it is the greatest.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from halfmq.broker.metrics.counts import Counts, Histogram
from halfmq.broker.metrics.exposition import ProcessFigures, Rows, written
from halfmq.broker.metrics.families import FAMILIES
from halfmq.broker.metrics.shown_names import OTHER, ShownNames
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.comparisons import Comparisons
from halfmq.broker.services.traffic import Traffic
from halfmq.broker.timers import BrokerTime
from halfmq.core.queues.offsets import Stored, query_offset
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX, ProducerGroup, State, Topic
from halfmq.errors import HalfmqError
from halfmq.model.records import DecidedBy
from halfmq.model.steps import Steps
from halfmq.store.store import Store

#: Names, or queues, that are read between two places where a scrape may pause: some 0.2 ms.
_STEP: Final = 64
#: Keys of offsets that are looked at between two such places.
_KEYS: Final = 4_096
#: Queues whose lag one scrape reads, besides those with series of their own: each takes 20 us of the loop's thread, and a thousand groups
#: in a thousand topics took longer than Prometheus waits. More are read in turns.
QUEUES_MAX = 16_384
#: Who answers a check: the producer that got it, or a reader of markers for it.
_OF_CHECKS: Final = (DecidedBy.CHECK, DecidedBy.MARKER)

#: Without an import, which would count as one of all that the package offers, the client among it.
_VERSION: Final[str] = sys.modules["halfmq"].__version__

#: Of requests without a handler.
UNKNOWN_CODE: Final = -1

Labels = tuple[str, ...]


class BrokerFigures(NamedTuple):
    """What a scrape needs of the broker besides its state."""

    store: Store
    traffic: Traffic
    comparisons: Comparisons
    time: BrokerTime
    counts: Counts
    #: Number of connections of clients.
    connections: Callable[[], int]
    #: Why the broker does not serve; empty: it does.
    why_not: Callable[[], str]
    #: The names of a request's code and of a response's.
    request_name: Callable[[int], str]
    response_name: Callable[[int], str]
    durability: str
    disk_reserve_bytes: Callable[[], int]


class _Lag(NamedTuple):
    """Of a consumer group, in one topic or in those that share a series."""

    messages: int
    #: Of these messages.
    delivered: int
    #: Of the oldest of them, s.
    age_s: float


_NO_LAG: Final = _Lag(0, 0, 0.0)


class Scrape:
    """Reads all series. One scrape at a time."""

    def __init__(self, sequencer: Sequencer, figures: BrokerFigures, names_max: int) -> None:
        """``names_max``: names of each kind with series of their own."""
        self._sequencer = sequencer
        self._view: State = sequencer.view
        self._figures = figures
        self._process = ProcessFigures()
        settings = self._view.settings
        self._node = (settings.cluster, "broker", settings.broker_name)
        self._topics: ShownNames[str] = ShownNames(names_max)
        self._groups: ShownNames[str] = ShownNames(names_max)
        self._producers: ShownNames[str] = ShownNames(names_max)
        self._queries: ShownNames[tuple[str, str]] = ShownNames(names_max)
        #: (consumer group, topic): both may be shown, and there could be a million of them.
        self._pairs: ShownNames[tuple[str, str]] = ShownNames(names_max)
        #: By consumer group: its lag by the labels of its series, as it was read last; the group that was read longest ago first.
        self._lags: dict[str, dict[Labels, _Lag]] = {}
        self._queues_read = 0

    # --- the two parts

    def of_broker(self, *, state_shown: bool) -> Steps[bytes]:
        """The text of the first part. ``state_shown``: whether the second one follows."""
        parts = [self._process.written()]
        for found in (self._requests(), self._broker(state_shown=state_shown)):
            for name, rows in found.items():
                yield from self._write(name, rows, parts)
        return b"".join(parts)

    def of_state(self) -> Steps[bytes]:
        """The text of the second part. Withhold it until the state is durable (``Sequencer.after_durable``)."""
        self._forget()
        parts: list[bytes] = []
        for read in (
            self._verdicts,
            self._producer_groups,
            self._topic_figures,
            self._progress,
            self._query_figures,
            self._log,
        ):
            found = yield from read()
            for name, rows in found.items():
                yield from self._write(name, rows, parts)
        return b"".join(parts)

    def _write(self, name: str, rows: Rows, parts: list[bytes]) -> Iterator[None]:
        for part in written(FAMILIES[name], self._node, rows):
            parts.append(part)
            yield

    def _forget(self) -> None:
        view = self._view
        self._topics.keep(view.topics_by_name.__contains__)
        self._groups.keep(lambda name: name in view.groups or name in view.offsets)
        self._producers.keep(view.producer_groups.__contains__)
        self._queries.keep(lambda key: key in view.queries)
        self._pairs.keep(
            lambda pair: (pair[0] in view.groups or pair[0] in view.offsets) and pair[1] in view.topics_by_name
        )
        self._figures.counts.settled.forget(view.topics_by_id.__contains__)
        self._figures.traffic.forget(lambda pair: pair[1] in view.topics_by_name)

    # --- what shows no stored state

    def _requests(self) -> dict[str, Rows]:
        counts, response_name = self._figures.counts.requests, self._figures.response_name
        kinds = {
            self._figures.request_name(code): kind
            for code, kind in (*counts.kinds.items(), (UNKNOWN_CODE, counts.unknown))
        }
        requests: dict[Labels, float] = {
            (name, response_name(0)): kind.succeeded for name, kind in kinds.items() if kind.succeeded
        }
        for name, kind in kinds.items():
            requests |= {(name, response_name(code)): count for code, count in kind.others.items()}
        return {
            "halfmq_requests_total": requests,
            "halfmq_request_seconds": {
                (name,): kind.seconds for name, kind in kinds.items() if any(kind.seconds.by_length)
            },
        }

    def _broker(self, *, state_shown: bool) -> dict[str, Rows]:
        figures = self._figures
        found: dict[str, Rows] = {
            "halfmq_sync_seconds": {(): figures.counts.syncs.seconds},
            "halfmq_disk_reserve_bytes": {(): figures.disk_reserve_bytes()},
            "halfmq_connections": {(): figures.connections()},
            "halfmq_replies_waiting": {(): self._sequencer.backlog},
            "halfmq_ready": {(): 0 if figures.why_not() else 1},
            "halfmq_state_shown": {(): int(state_shown)},
            "halfmq_info": {(_VERSION, figures.durability): 1},
        }
        try:
            found["halfmq_disk_free_bytes"] = {(): figures.store.free_bytes()}
            found["halfmq_disk_size_bytes"] = {(): figures.store.total_bytes()}
        except OSError:
            pass  # a failing disk says nothing of itself; the series are missing
        return found

    # --- transactions

    def _verdicts(self) -> Steps[dict[str, Rows]]:
        yield
        settled, session = self._figures.counts.settled, self._view.session
        verdicts: dict[Labels, float] = {}
        for outcome, counts in (("commit", settled.committed), ("rollback", settled.rolled_back)):
            verdicts |= {(one.name.lower(), outcome): counts[one] for one in DecidedBy}
        answers: dict[Labels, float] = {
            ("commit",): sum([settled.committed[one] for one in _OF_CHECKS]),
            ("rollback",): sum([settled.rolled_back[one] for one in _OF_CHECKS]),
            ("unknown",): session.checks_unknown,
        }
        after: dict[Labels, Histogram] = {
            (one.name.lower(), outcome): histograms[one]
            for outcome, histograms in (("commit", settled.committed_after), ("rollback", settled.rolled_back_after))
            for one in DecidedBy
            if any(histograms[one].by_length)
        }
        return {
            "halfmq_verdicts_total": verdicts,
            "halfmq_undecided_seconds": after,
            "halfmq_checks_sent_total": {(): session.checks_sent},
            "halfmq_checks_undelivered_total": {(): session.checks_undelivered},
            "halfmq_check_answers_total": answers,
            "halfmq_damaged_transactions": {(): self._figures.comparisons.findings},
            "halfmq_comparisons": {(): len(self._view.comparisons)},
            "halfmq_undecided_transactions_max": {(): self._view.settings.undecided_total_max},
        }

    def _producer_groups(self) -> Steps[dict[str, Rows]]:
        now_ms = self._figures.time.now_ms()
        found: dict[str, dict[Labels, float]] = {
            name: {}
            for name in (
                "halfmq_undecided_transactions", "halfmq_undecided_oldest_seconds", "halfmq_undecided_bytes", "halfmq_parked_transactions",
                "halfmq_reachable_producers", "halfmq_checks_in_flight", "halfmq_undecided_without_producer",
            )
        }  # fmt: skip
        for group in _in_steps(self._view.producer_groups):
            if group is None:
                yield
                continue
            known = self._view.producer_groups.get(group)
            if known is None or not _is_used(known):
                continue
            label = (group if self._producers.shows(group) else OTHER,)
            undecided, parked = len(known.undecided), len(known.derived.parked)
            producers = len(known.session.members) + len(known.session.pollers)
            oldest = next(iter(known.undecided.values()), None)
            age_s = max(0, now_ms - oldest.prepared_at_ms) / 1_000 if oldest is not None else 0.0
            in_flight = sum([asked.until_ms > now_ms for asked in known.session.in_flight.values()])
            _add(found["halfmq_undecided_transactions"], label, undecided)
            _greatest(found["halfmq_undecided_oldest_seconds"], label, age_s)
            _add(found["halfmq_undecided_bytes"], label, known.derived.bytes)
            _add(found["halfmq_parked_transactions"], label, parked)
            _add(found["halfmq_reachable_producers"], label, producers)
            _add(found["halfmq_checks_in_flight"], label, in_flight)
            _add(found["halfmq_undecided_without_producer"], label, 0 if producers else undecided - parked)
        return {**found}

    # --- messages

    def _topic_figures(self) -> Steps[dict[str, Rows]]:
        view, settled = self._view, self._figures.counts.settled
        messages_in: dict[Labels, float] = {}
        halves: dict[Labels, float] = {}
        committed: dict[Labels, float] = {}
        rolled_back: dict[Labels, float] = {}
        dead: dict[Labels, float] = {}
        for name in _in_steps(view.topics_by_name):
            if name is None:
                yield
                continue
            topic = view.topics_by_name.get(name)
            if topic is None:
                continue
            total = sum(topic.ends)
            if name.startswith(DLQ_PREFIX):
                group = name.removeprefix(DLQ_PREFIX)
                _add(dead, (group if self._groups.shows(group) else OTHER,), total)
            elif not name.startswith(RETRY_PREFIX):
                label = (name if self._topics.shows(name) else OTHER,)
                _add(messages_in, label, total)
                _add(halves, label, topic.derived.pending - topic.derived.delayed)
                _add(committed, label, settled.committed_messages.get(topic.topic_id, 0))
                _add(rolled_back, label, view.session.rolled_back.get(topic.topic_id, 0))
        return {
            "rocketmq_messages_in_total": messages_in,
            "rocketmq_half_messages": halves,
            "rocketmq_commit_messages_total": committed,
            "rocketmq_rollback_messages_total": rolled_back,
            "rocketmq_send_to_dlq_messages_total": dead,
            "halfmq_delayed_messages": {(): len(view.delayed)},
            "rocketmq_topic_number": {(): len(view.topics_by_name)},
            "rocketmq_consumer_group_number": {(): len(view.groups)},
        }

    def _progress(self) -> Steps[dict[str, Rows]]:
        """Consumer groups, in the topics in which they have offsets, as ``services.stats``."""
        traffic = self._figures.traffic
        lag: dict[Labels, float] = {}
        oldest_s: dict[Labels, float] = {}
        in_flight: dict[Labels, float] = {}
        out: dict[Labels, float] = {}
        for pair in _in_steps(traffic.delivered_by_pair or ()):
            if pair is None:
                yield
            else:
                count = (traffic.delivered_by_pair or {}).get(pair, 0)
                _add(out, self._pair(*pair), count)
        if traffic.delivered_elsewhere:
            _add(out, (OTHER, OTHER), traffic.delivered_elsewhere)
        yield from self._read_groups()
        for group in _in_steps(self._lags):
            if group is None:
                yield
                continue
            for labels, one in self._lags[group].items():
                _add(lag, labels, one.messages)
                _add(in_flight, labels, one.delivered)
                _greatest(oldest_s, labels, one.age_s)
        return {
            "rocketmq_messages_out_total": out,
            "rocketmq_consumer_lag_messages": lag,
            "rocketmq_consumer_lag_latency": {labels: 1_000 * age_s for labels, age_s in oldest_s.items()},
            "halfmq_consumer_lag_seconds": oldest_s,
            "rocketmq_consumer_inflight_messages": in_flight,
        }

    def _read_groups(self) -> Iterator[None]:
        """Read the lag of all groups; if they have many queues, of some of them in turns, and of the others what has series of its own."""
        view, lags = self._view, self._lags
        groups = dict.fromkeys((*view.offsets, *view.session.offsets_refused))
        for group in [group for group in lags if group not in groups]:
            del lags[group]
        # New ones first, then those that were read longest ago.
        left = QUEUES_MAX
        waiting = deque([*[group for group in groups if group not in lags], *lags])
        while waiting and left > 0:
            group = waiting.popleft()
            rows: dict[Labels, _Lag] = {}
            for topic in (yield from self._topics_of(group)):
                left -= yield from self._read_topic(group, topic, self._lag_labels(group, topic.name), rows)
            lags.pop(group, None)
            lags[group] = rows
            yield
        for group in waiting:
            for labels in [one for one in lags.get(group, ()) if one[1] != OTHER]:
                known = lags[group].pop(labels, None) and view.topics_by_name.get(labels[1])
                if known is not None:
                    yield from self._read_topic(group, known, labels, lags[group])
            yield

    def _read_topic(self, group: str, topic: Topic, labels: Labels, rows: dict[Labels, "_Lag"]) -> Steps[int]:
        """Add the lag in a topic to ``rows``. Returns the number of queues."""
        for queue_id in range(topic.read_queues):
            messages, delivered, age_s = self._queue(group, topic, queue_id)
            before = rows.get(labels, _NO_LAG)
            rows[labels] = _Lag(before.messages + messages, before.delivered + delivered, max(before.age_s, age_s))
            self._queues_read += 1
            if self._queues_read % _STEP == 0:
                yield
        return topic.read_queues

    def _lag_labels(self, group: str, topic: str) -> Labels:
        return *self._pair(group, topic), "true" if topic.startswith(RETRY_PREFIX) else "false"

    def _topics_of(self, group: str) -> Steps[list[Topic]]:
        view = self._view
        topic_ids: dict[int, None] = {}
        keys = (*view.offsets.get(group, ()), *view.session.offsets_refused.get(group, ()))
        for at in range(0, len(keys), _KEYS):
            topic_ids |= dict.fromkeys([topic_id for topic_id, _ in keys[at : at + _KEYS]])
            if at:
                yield
        topics = [view.topics_by_id.get(topic_id) for topic_id in topic_ids]
        session = view.session.consumers.get(group)
        subscribed = session.subscriptions if session is not None and session.subscriptions else None
        return [topic for topic in topics if topic is not None and (subscribed is None or topic.name in subscribed)]

    def _queue(self, group: str, topic: Topic, queue_id: int) -> tuple[int, int, float]:
        """(messages not finished, messages delivered of them, age of the oldest of them in s)."""
        figures = self._figures
        try:
            low, high = figures.store.bounds(topic.topic_id, queue_id)
            known = query_offset(self._view, group, topic.name, queue_id)
            at = max(low, min(known.offset, high)) if isinstance(known, Stored) else low
            pulled = min(max(at, figures.traffic.delivered_to(group, topic.topic_id, queue_id)), high)
            if at >= high:
                return 0, 0, 0.0
            entries = figures.store.read_queue(topic.topic_id, queue_id, at, 1)
        except (HalfmqError, OSError):
            return 0, 0, 0.0  # a damaged queue is refused to its readers, and must not hide all other figures
        age_ms = figures.time.now_ms() - entries[0].store_time_ms if entries else 0
        return high - at, pulled - at, max(0, age_ms) / 1_000

    def _pair(self, group: str, topic: str) -> Labels:
        if self._pairs.shows((group, topic)) and self._groups.shows(group):
            if topic.startswith(RETRY_PREFIX) or self._topics.shows(topic):
                return group, topic
            return group, OTHER
        return OTHER, OTHER

    # --- queries, and the log

    def _query_figures(self) -> Steps[dict[str, Rows]]:
        view = self._view
        last: dict[Labels, float] = {}
        position: dict[Labels, float] = {}
        behind: dict[Labels, float] = {}
        undecided: dict[Labels, float] = {}
        for key in _in_steps(view.queries):
            if key is None:
                yield
                continue
            query = view.queries.get(key)
            if query is None:
                continue
            shown = self._queries.shows(key)
            labels = (query.name, query.topic) if shown else (OTHER, OTHER)
            if shown:  # neither a sum nor a greatest one of several means anything
                decided = query.decisions.get(query.last_batch)
                _greatest(last, labels, query.last_batch)
                _greatest(position, labels, decided.position if decided is not None else -1)
                if decided is not None:
                    _greatest(behind, labels, view.log_end - decided.position)
            _add(undecided, labels, len(view.derived.undecided_of_query.get(key, ())))
        return {
            "halfmq_query_last_batch": last,
            "halfmq_query_position_bytes": position,
            "halfmq_query_behind_bytes": behind,
            "halfmq_query_undecided_batches": undecided,
        }

    def _log(self) -> Steps[dict[str, Rows]]:
        yield
        view = self._view
        segment_bytes = view.settings.segment_bytes
        first, end = view.log_start // segment_bytes, max(view.log_end - 1, view.log_start) // segment_bytes
        return {
            "halfmq_log_bytes": {(): view.log_end - view.log_start},
            "halfmq_log_segments": {(): end - first + 1},
            "halfmq_log_end_bytes_total": {(): view.log_end},
            "halfmq_index_lag_bytes": {(): max(0, view.session.answered - view.session.published)},
        }


K = TypeVar("K")


def _in_steps(names: Iterable[K]) -> Iterator[K | None]:
    """The ``names`` of now, and None wherever the scrape may pause."""
    for number, name in enumerate(list(names), 1):
        yield name
        if number % _STEP == 0:
            yield None


def _is_used(group: ProducerGroup) -> bool:
    """Whether there is anything to show of it: a group comes into being when somebody names it."""
    return bool(group.undecided or group.session.members or group.session.pollers)


def _add(rows: dict[Labels, float], labels: Labels, value: float) -> None:
    rows[labels] = rows.get(labels, 0) + value


def _greatest(rows: dict[Labels, float], labels: Labels, value: float) -> None:
    rows[labels] = max(rows.get(labels, value), value)
