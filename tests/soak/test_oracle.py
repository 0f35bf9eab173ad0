"""The comparison of databases and readers can fail: each difference planted alone is found, and without one there is none."""

import pytest

from halfmq.testing.history.events import Event, HalfSent, QueueRead, Seen
from halfmq.testing.history.report import CHECKS
from tests.soak.examined import EXAMINED, PERHAPS_IDLE
from tests.soak.oracle import Books, Credit, Sight, What, compare, take_in
from tests.soak.plan import CREDITS_GROUP, FILTERED_GROUP, FILTERED_WATCHER, TAGS
from tests.soak.plants import PLANTS, Plant, kinds

TOPICS = ("a", "b")


def collected() -> tuple[Books, Sight]:
    """Ten orders of one to three messages, one rolled back, over two queues; all watchers and consumers agree."""
    books = Books({}, {}, {}, {}, [])
    events: list[Event] = []
    ends = dict.fromkeys(TOPICS, 0)
    for number in range(10):
        tx, messages = f"tx-{number}", number % 3 + 1
        for index in range(messages):
            topic = TOPICS[(number + index) % 2]
            what = What(topic, number * 10 + index)
            message = f"M-{number}-{index}"
            events.append(
                HalfSent(t_us=1, by="service", op=message, group="g", tx=tx, index=index, message=message, topic=topic)
            )
            if number == 4:
                continue
            tag = books.tags[tx, index] = TAGS[(number + index) % len(TAGS)]
            subscribed = books.is_subscribed((tx, index))
            events += [
                Seen(t_us=2, by=reader, reader=reader, message=message, topic=topic, queue=0, queue_offset=ends[topic],
                     tx=tx, index=index, crc=what.crc)
                for reader in ("watcher", "witness", CREDITS_GROUP, *((FILTERED_WATCHER,) if subscribed else ()))
            ]  # fmt: skip
            ends[topic] += 1
            books.lines[tx, index] = what
            books.credits.extend(
                Credit(group, message, tx, index, what, tag)
                for group in (CREDITS_GROUP, *((FILTERED_GROUP,) if subscribed else ()))
            )
        if number != 4:
            books.orders[tx] = ("g", messages)
        books.markers[tx] = "R" if number == 4 else "C"
    events += [
        QueueRead(t_us=3, by=reader, reader=reader, topic=topic, queue=0, first=0, end=end)
        for reader in ("watcher", "witness")
        for topic, end in ends.items()
    ]
    return books, take_in(events)  # type: ignore[arg-type]


def test_without_a_plant_there_is_no_difference() -> None:
    found = compare(*collected())
    assert found.differences == []
    assert found.looked_at["rows in the databases"] == found.looked_at["visible messages"] == 17
    assert found.looked_at["orders"] == 9
    assert 5 < found.looked_at["messages passed by the tag filter"] < 12
    assert found.looked_at["messages passed by the tag filter"] == found.looked_at["effects of the filtering group"]


@pytest.mark.parametrize(("plant", "seen"), PLANTS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_each_difference_planted_alone_is_found(plant: Plant, seen: set[str]) -> None:
    books, sight = collected()
    plant(books, sight)
    assert kinds(compare(books, sight).differences) == seen


def test_a_reader_that_retention_overtook_has_not_received_earlier_messages() -> None:
    books, sight = collected()
    late = [
        QueueRead(t_us=3, by=one.by, reader=one.reader, topic=one.topic, queue=0, first=2, end=one.end)
        for one in sight.read
    ]
    assert kinds(compare(books, sight._replace(read=late)).differences) == {"unseen"}


def test_each_check_of_the_history_checker_is_examined_by_a_soak_or_may_be_idle() -> None:
    """A new check is in one of the two sets."""
    assert sorted((*EXAMINED, *PERHAPS_IDLE)) == list(range(len(CHECKS)))
