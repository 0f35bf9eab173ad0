"""What is counted of topics and groups; what each request is answered is in ``remoting/test_admin_stats.py``."""

import pytest
from tests.support.core_log import consumer
from tests.support.services import CoreSequencer, FakeQueues

from halfmq.broker.services import stats as module
from halfmq.broker.services.stats import LastPeriods, QueueProgress, Stats, TooManyQueues
from halfmq.broker.services.traffic import Traffic
from halfmq.core.commands import CommitOffset, EnsureGroup, SetTopic


class Bench:
    def __init__(self) -> None:
        self.sequencer = CoreSequencer()
        self.core = self.sequencer.core
        self.queues = FakeQueues(self.sequencer)
        self.traffic = Traffic(lambda: 0, 0)
        self.stats = Stats(self.sequencer, self.queues, self.traffic, self)  # type: ignore[arg-type]

    def now_ms(self) -> int:
        return self.core.now_ms

    def topic(self, name: str, read: int, write: int) -> int:
        self.core.do(SetTopic(name, read, write, 6))
        return self.core.state.topics_by_name[name].topic_id


def test_messages_in_queues_that_are_written_to_no_more_count_as_written() -> None:
    """A topic shrinks by write queues first, so that consumers have read them before they go."""
    bench = Bench()
    number = bench.topic("T", 3, 1)
    for queue_id in (0, 2, 2):
        bench.queues.add(number, queue_id, time_ms=bench.now_ms() - 30_000)
    bench.queues.add(number, 1, time_ms=bench.now_ms() - 600_000)
    assert bench.stats.written("T") == LastPeriods(3, 4, 4)
    found = bench.stats.topic("T")
    assert found is not None
    assert (found.written_per_s, [one.end for one in found.queues]) == (3 / 60, [1, 1, 2])
    assert (bench.stats.written("no"), bench.stats.topic("no"), bench.stats.given("no", "G")) == (None, None, None)


def test_progress_is_what_is_left_after_the_committed_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    number = bench.topic("T", 2, 2)
    bench.core.do(EnsureGroup("G"))
    for _ in range(3):
        bench.queues.add(number, 0, time_ms=77)
    bench.core.do(CommitOffset("G", "T", 0, 2))
    (found,) = bench.stats.progress("G", frozenset())
    assert (found.topic, found.queues) == ("T", (QueueProgress(0, 3, 2, 2, 77), QueueProgress(1, 0, 0, 0, 0)))
    assert bench.stats.progress("G", frozenset(["other"])) == []
    assert bench.stats.progress_of_all() == {"G": [found]}
    monkeypatch.setattr(module, "QUEUES_MAX", 1)
    for ask in (lambda: bench.stats.progress("G", frozenset()), bench.stats.progress_of_all):
        with pytest.raises(TooManyQueues):
            ask()


def test_groups_of_a_topic_have_an_offset_in_it_or_a_member_that_listens() -> None:
    bench = Bench()
    bench.topic("T", 1, 1)
    for group in ("A", "B", "C"):
        bench.core.do(EnsureGroup(group))
    bench.core.do(CommitOffset("A", "T", 0, 0))
    bench.core.session(consumer(1, bench.now_ms(), "B", "T"))
    assert sorted(bench.stats.groups_of("T")) == ["A", "B"]
    assert bench.stats.consumers("A") is None
    listening = bench.stats.consumers("B")
    assert listening is not None
    assert list(listening.subscriptions) == ["T"]
