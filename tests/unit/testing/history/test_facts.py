"""Facts about the whole history: restarts, reads, start of the log."""

from halfmq.testing.history.events import QueueRead, Settled, Started
from halfmq.testing.history.facts import FAR, Facts


def reads(*fields: tuple[str, str, int, int, int, int]) -> Facts:
    facts = Facts()
    for reader, topic, queue, first, end, since in fields:
        facts.queue_read(
            QueueRead(t_us=99, by="p", reader=reader, topic=topic, queue=queue, first=first, end=end, since_us=since), 1
        )
    facts.finish()
    return facts


def test_only_starts_of_brokers_count_as_restarts() -> None:
    facts = Facts()
    facts.started(Started(t_us=10, by="w", whom="broker-a"))
    facts.started(Started(t_us=20, by="w", whom="producer"))
    facts.started(Started(t_us=30, by="w", whom="x", epoch=3))
    facts.finish()
    assert facts.broker_starts == 2
    assert facts.restarted_between(9, 10)
    assert not facts.restarted_between(10, 29)
    assert facts.restarted_between(10, FAR)
    assert not facts.restarted_between(30, FAR)


def test_a_read_covers_what_was_visible_by_then_from_its_first_offset_on() -> None:
    facts = reads(("r", "t", 0, 5, 9, 50))
    queue = facts.queue_number("t", 0)
    assert facts.place_was_read(queue, 5, 50) is not None
    assert facts.place_was_read(queue, 12, 50) is not None  # beyond the end: it is missing
    assert facts.place_was_read(queue, 4, 50) is None
    assert facts.place_was_read(queue, 5, 51) is None
    assert facts.place_was_read(queue + 1, 5, 50) is None


def test_a_topic_was_read_if_one_reader_read_all_its_queues_from_the_start() -> None:
    both = reads(("r", "t", 0, 0, 9, 50), ("r", "t", 1, 0, 3, 60))
    assert both.topic_was_read("t", (0, 1), 50) is not None
    assert both.topic_was_read("t", (-1,), 50) is not None
    assert both.topic_was_read("t", (2,), 50) is None
    assert both.topic_was_read("t", (0,), 55) is None
    assert both.topic_was_read("u", (0,), 50) is None
    assert reads(("r", "t", 0, 0, 9, 50), ("s", "t", 1, 0, 3, 60)).topic_was_read("t", (0, 1), 50) is None
    assert reads(("r", "t", 0, 2, 9, 50)).topic_was_read("t", (0,), 50) is None


def test_the_last_settled_counts() -> None:
    facts = Facts()
    facts.settled(Settled(t_us=50, by="w"))
    facts.settled(Settled(t_us=20, by="w", unresolved_groups=("g",)))
    assert facts.settled_us == 50
    assert facts.unresolved_groups == frozenset()


def test_copies_and_system_topics_are_not_checked() -> None:
    facts = Facts()
    names = ("%RETRY%g", "%DLQ%g", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "orders")
    assert [facts.queue_number(name, 0) in facts.not_judged for name in names] == [True, True, True, True, False]
