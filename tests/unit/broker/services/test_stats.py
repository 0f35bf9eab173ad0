"""Figures for administrators: what a group lags, what queues hold, who is connected. What each request is answered is in ``remoting``."""

from typing import Any

import pytest
from tests.support.core_log import consumer, half, producer
from tests.support.services import CoreSequencer, FakeQueues

from halfmq.broker.services import stats as module
from halfmq.broker.services.stats import (
    LastPeriods,
    QueueBounds,
    QueueProgress,
    Stats,
    TooManyQueues,
    TopicProgress,
    TopicQueues,
)
from halfmq.broker.services.traffic import Traffic
from halfmq.core.commands import CommitOffset, DeleteTopic, SetGroup, SetTopic
from halfmq.core.queues import offsets
from halfmq.core.session import Polling, Published, Unregistered
from halfmq.errors import StoreDamaged

NOW_MS = 100_000_000


class FakeStore(FakeQueues):
    began_ms: int | None = 7

    def log_began_ms(self) -> int:
        if self.began_ms is None:
            raise StoreDamaged("the first segment cannot be read")
        return self.began_ms

    def free_bytes(self) -> int:
        return 1 << 30


class Bench:
    """Group C has consumed 3 of 10 messages in queue 0 of topic T; queue 1 has 3 more. Its member is the peer 1."""

    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.sequencer.backlog, self.sequencer.waits_ms = 2, lambda now_ms: 30  # type: ignore[attr-defined]
        self.core = self.sequencer.core
        self.store = FakeStore(self.sequencer)
        self.traffic = Traffic(lambda: 13, NOW_MS - 5_000)
        self.stats = Stats(
            self.sequencer,  # type: ignore[arg-type]
            self.store,
            self.traffic,
            self,  # type: ignore[arg-type]
        )
        self.core.do(SetTopic("T", 2, 2, 6))
        self.topic = self.sequencer.view.topics_by_name["T"].topic_id
        for number in range(13):
            self.store.add(self.topic, int(number >= 10), time_ms=NOW_MS - 1_000 + number)
        self.group("C", 1)
        self.commit("C", 3)

    def now_ms(self) -> int:
        return NOW_MS

    def group(self, name: str, number: int, topic: str = "T") -> None:
        self.core.do(SetGroup(name, 16, 1, True))
        self.sequencer.note(consumer(number, 0, name, topic))

    def commit(self, group: str, offset: int, queue_id: int = 0, topic: str = "T") -> None:
        self.core.do(CommitOffset(group, topic, queue_id, offset))

    def progress(self, group: str = "C", *names: str) -> Any:
        return self.stats.progress(group, frozenset(names))


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_what_a_group_has_consumed_of_each_queue() -> None:
    bench = Bench()
    third = NOW_MS - 1_000 + 2
    assert bench.progress() == [
        TopicProgress("T", 0.0, (QueueProgress(0, 10, 3, 3, third), QueueProgress(1, 3, 0, 0, 0)))
    ]
    bench.traffic.note("C", "T", bench.topic, 0, 7, 4)
    ((_, rate, (first, _)),) = bench.progress()
    assert (rate, first.offset, first.pulled) == (4 / 60, 3, 7)
    bench.commit("C", 5)
    assert bench.sequencer.view.session.fresh_offsets["C"], "not logged yet"
    assert bench.progress()[0].queues[0].offset == 5
    assert bench.progress("Nobody") == bench.progress("C", "U") == []
    assert bench.progress("C", "U", "T") == bench.progress()


def test_an_offset_that_the_log_had_no_space_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.group("D", 2)
    monkeypatch.setattr(offsets, "has_space_for_offset", lambda state, group: False)
    bench.commit("D", 4)
    assert [queue.offset for queue in bench.progress("D")[0].queues] == [4, 0]
    assert bench.stats.groups_of("T") == ["C", "D"]


def test_what_retention_removed_does_not_lag() -> None:
    bench = Bench()
    bench.store.low[bench.topic, 0] = 6
    assert bench.progress()[0].queues[0] == QueueProgress(0, 10, 6, 6, 0)
    bench.commit("C", 99)
    assert bench.progress()[0].queues[0].offset == 10, "not past the end"


def test_a_topic_that_no_member_subscribes_to_does_not_lag_nor_does_one_that_is_deleted() -> None:
    bench = Bench()
    bench.core.do(SetTopic("U", 1, 1, 6))
    bench.commit("C", 0, topic="U")
    assert [one.topic for one in bench.progress()] == ["T"]
    bench.sequencer.note(Unregistered(1, "client-1", "", "C"))
    assert [one.topic for one in bench.progress()] == ["T", "U"], "without members all count"
    bench.core.do(DeleteTopic("T"))
    assert [one.topic for one in bench.progress()] == ["U"]


def test_progress_of_all_groups_has_those_with_offsets_and_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.group("D", 2)
    bench.group("E", 3)
    bench.commit("D", 3, queue_id=1)
    found = bench.stats.progress_of_all()
    assert list(found) == ["C", "D"]
    assert found["D"][0].queues[1].offset == 3
    monkeypatch.setattr(module, "QUEUES_MAX", 3)
    with pytest.raises(TooManyQueues):
        bench.stats.progress_of_all()
    assert bench.progress() == found["C"], "one group has fewer"
    monkeypatch.setattr(module, "QUEUES_MAX", 1)
    with pytest.raises(TooManyQueues):
        bench.progress()


def test_groups_of_a_topic_are_those_that_subscribe_and_those_with_offsets() -> None:
    bench = Bench()
    bench.group("D", 2)
    bench.group("E", 3, "U")
    bench.sequencer.note(Unregistered(1, "client-1", "", "C"))
    assert bench.stats.groups_of("T") == ["D", "C"]
    assert bench.stats.groups_of("Nowhere") == []


# --- who is connected -------------------------------------------------------------------------------------------------


def test_members_of_a_consumer_group() -> None:
    bench = Bench()
    found = bench.stats.consumers("C")
    assert found is not None
    assert [member.client_id for member in found.members.values()] == ["client-1"]
    assert list(found.subscriptions) == ["T"]
    bench.sequencer.note(Unregistered(1, "client-1", "", "C"))
    assert bench.stats.consumers("C") is bench.stats.consumers("Nobody") is None


def test_members_of_a_producer_group_are_those_that_are_pushed_checks_and_those_that_fetch_them() -> None:
    bench = Bench()
    assert bench.stats.producers("PG") == {}
    bench.sequencer.note(producer(1, 0, "PG"))
    bench.sequencer.note(Polling(9, "fetcher", "PG", 1))
    assert bench.stats.producers("PG") == {1: "client-1", 9: "fetcher"}


# --- topics, groups, counters -----------------------------------------------------------------------------------------


def test_a_topic_has_its_queues_and_the_rate_of_its_messages() -> None:
    bench = Bench()
    first, last = NOW_MS - 1_000 + 9, NOW_MS - 1_000 + 12
    assert bench.stats.topic("T") == TopicQueues(13 / 60, (QueueBounds(0, 0, 10, first), QueueBounds(1, 0, 3, last)))
    bench.core.do(SetTopic("Empty", 1, 1, 6))
    assert bench.stats.topic("Empty") == TopicQueues(0.0, (QueueBounds(0, 0, 0, 0),))
    assert bench.stats.topic("Nowhere") is None


def test_messages_in_queues_that_are_written_to_no_more_count_as_written() -> None:
    """A topic shrinks by write queues first, so that consumers have read them before they go."""
    bench = Bench()
    bench.core.do(SetTopic("T", 2, 1, 6))
    assert bench.stats.written("T") == LastPeriods(13, 13, 13)
    topic = bench.stats.topic("T")
    assert topic is not None
    assert (topic.written_per_s, [one.end for one in topic.queues]) == (13 / 60, [10, 3])


def test_counters_of_a_topic_and_of_a_group_in_it() -> None:
    bench = Bench()
    bench.store.add(bench.topic, 1, time_ms=NOW_MS)
    for queue_id, ago_ms in ((0, 70_000), (1, 4_000_000)):
        entries = bench.store._queues[bench.topic, queue_id]
        entries[0] = entries[0]._replace(store_time_ms=NOW_MS - ago_ms)
    assert bench.stats.written("T") == LastPeriods(12, 13, 14)
    bench.traffic.note("C", "T", bench.topic, 0, 7, 4)
    assert bench.stats.delivered("T", "C") == LastPeriods(4, 4, 4)
    assert bench.stats.delivered("T", "D") == LastPeriods(0, 0, 0)
    assert bench.stats.written("Nowhere") is bench.stats.delivered("Nowhere", "C") is None


def test_figures_of_the_broker_are_there_also_where_the_first_segment_cannot_be_read() -> None:
    bench = Bench()
    bench.core.do(half("T1"))
    bench.traffic.note("C", "T", bench.topic, 0, 7, 4)
    now = bench.stats.broker_stats()
    assert (now.began_ms, now.now_ms, now.backlog, now.backlog_wait_ms) == (NOW_MS - 5_000, NOW_MS, 2, 30)
    assert (now.written, now.delivered, now.undecided, now.log_began_ms) == (0, 4, 1, 7)
    assert [delivered for _, delivered in now.rates] == [4 / 5] * 3
    assert now.high_watermark == bench.sequencer.view.session.published
    assert (now.free_bytes, now.index_lag_bytes) == (1 << 30, 0)
    published = bench.sequencer.view.session.published
    bench.sequencer.note(Published(published, published + 40))
    assert bench.stats.broker_stats().index_lag_bytes == 40
    bench.sequencer.note(Published(published, published))
    bench.store.began_ms = None
    assert bench.stats.broker_stats()._replace(log_began_ms=7) == now
