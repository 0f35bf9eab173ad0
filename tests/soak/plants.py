"""Differences that a faulty broker or application would cause, planted into the evidence of a round."""

from collections.abc import Callable

from halfmq.testing.history.events import QueueRead, Seen
from tests.soak.oracle import Books, Credit, Sight, What
from tests.soak.plan import CREDITS_GROUP, FILTERED_GROUP, FILTERED_WATCHER

Plant = Callable[[Books, Sight], None]


def _copy(one: Seen, **fields: object) -> Seen:
    return Seen(**{name: getattr(one, name) for name in one.__struct_fields__} | fields)  # type: ignore[arg-type]


def _order(books: Books, *, at_least: int) -> str:
    return next(tx for tx, (_, messages) in books.orders.items() if messages >= at_least)


def _end_of_queue(sight: Sight, topic: str, queue: int) -> int:
    return max(read.end for read in sight.read if (read.topic, read.queue) == (topic, queue))


def _append(books: Books, sight: Sight, one: Seen) -> None:
    """Make it visible at the end of its queue, for every reader, and consumed."""
    end = _end_of_queue(sight, one.topic, one.queue)
    readers = {read.reader for read in sight.read}
    groups = [CREDITS_GROUP]
    if books.is_subscribed((one.tx, one.index)):
        readers.add(FILTERED_WATCHER)
        groups.append(FILTERED_GROUP)
    sight.seen.extend(_copy(one, reader=reader, by=reader, queue_offset=end) for reader in readers)
    sight.read[:] = [
        QueueRead(t_us=read.t_us, by=read.by, reader=read.reader, topic=read.topic, queue=read.queue, first=read.first,
                  end=end + 1 if (read.topic, read.queue) == (one.topic, one.queue) else read.end)
        for read in sight.read
    ]  # fmt: skip
    tag = books.tags.get((one.tx, one.index), "")
    books.credits.extend(
        Credit(group, one.message, one.tx, one.index, What(one.topic, one.crc), tag) for group in groups
    )


def _unsee(sight: Sight, tx: str, number: int = -1) -> None:
    sight.seen[:] = [one for one in sight.seen if one.tx != tx or number not in (-1, one.index)]


def row_missing(books: Books, sight: Sight) -> None:
    """The database lost an order whose messages are visible, or never had it."""
    tx = _order(books, at_least=1)
    del books.orders[tx]
    del books.markers[tx]
    for key in [key for key in books.lines if key[0] == tx]:
        del books.lines[key], books.tags[key]


def messages_lost(books: Books, sight: Sight) -> None:
    _unsee(sight, _order(books, at_least=1))


def one_message_lost(books: Books, sight: Sight) -> None:
    _unsee(sight, _order(books, at_least=2), 1)


def phantom(books: Books, sight: Sight) -> None:
    _append(books, sight, _copy(sight.seen[0], message="NOBODYS", tx="nobodys", index=0))


def duplicate(books: Books, sight: Sight) -> None:
    _append(books, sight, sight.seen[0])


def body_altered(books: Books, sight: Sight) -> None:
    first = sight.seen[0]
    sight.seen[:] = [
        _copy(one, crc=one.crc ^ 1) if (one.tx, one.index) == (first.tx, first.index) else one for one in sight.seen
    ]


def another_topic(books: Books, sight: Sight) -> None:
    key = next(iter(books.lines))
    books.lines[key] = books.lines[key]._replace(topic="Elsewhere")


def two_at_one_place(books: Books, sight: Sight) -> None:
    sight.seen.append(_copy(sight.seen[0], by="other", message="ANOTHER"))


def seen_and_gone(books: Books, sight: Sight) -> None:
    """A message that a reader received is no longer in the queue."""
    first = next(one for one in sight.seen if not books.is_subscribed((one.tx, one.index)))
    end = _end_of_queue(sight, first.topic, first.queue)
    sight.seen.append(_copy(first, message="GONE", queue_offset=end + 3))


def hole(books: Books, sight: Sight) -> None:
    reader = sight.read[0].reader
    at = next(at for at, one in enumerate(sight.seen) if one.reader == reader)
    gone = sight.seen[at]
    sight.seen[:] = [
        one for one in sight.seen
        if (one.reader, one.topic, one.queue, one.queue_offset) != (reader, gone.topic, gone.queue, gone.queue_offset)
    ]  # fmt: skip


def not_consumed(books: Books, sight: Sight) -> None:
    books.credits.pop()


def consumed_twice(books: Books, sight: Sight) -> None:
    books.credits.append(books.credits[0])


def marker_missing(books: Books, sight: Sight) -> None:
    del books.markers[_order(books, at_least=1)]


def marked_without_order(books: Books, sight: Sight) -> None:
    books.markers["never-written"] = "C"


def half_an_order(books: Books, sight: Sight) -> None:
    """The database itself is inconsistent: an order lacks one of its lines, which is visible."""
    key = _order(books, at_least=2), 1
    del books.lines[key], books.tags[key]


def tag_filtered_out(books: Books, sight: Sight) -> None:
    """The broker's filter drops a message that has a subscribed tag."""
    gone = next(one for one in sight.seen if one.reader == FILTERED_WATCHER)
    sight.seen[:] = [one for one in sight.seen if (one.reader, one.message) != (FILTERED_WATCHER, gone.message)]


def tag_not_subscribed(books: Books, sight: Sight) -> None:
    """The broker's filter passes a message with another tag."""
    other = next(one for one in sight.seen if not books.is_subscribed((one.tx, one.index)))
    sight.seen.append(_copy(other, reader=FILTERED_WATCHER))


def tag_not_consumed(books: Books, sight: Sight) -> None:
    """The filtering group never received a message that it subscribes to."""
    books.credits.remove(next(one for one in books.credits if one.group == FILTERED_GROUP))


def tag_altered(books: Books, sight: Sight) -> None:
    at, one = next((at, one) for at, one in enumerate(books.credits) if one.tag)
    books.credits[at] = one._replace(tag="")


#: The plant, and the first word of each expected difference.
PLANTS: dict[Plant, set[str]] = {
    row_missing: {"phantom"},
    messages_lost: {"lost", "hole", "consumed too often"},
    one_message_lost: {"torn", "hole", "consumed too often"},
    phantom: {"phantom"},
    duplicate: {"twice"},
    body_altered: {"altered", "not consumed", "consumed too often"},
    another_topic: {"altered"},
    two_at_one_place: {"strange"},
    seen_and_gone: {"lost", "twice", "not consumed"},
    hole: {"hole"},
    not_consumed: {"not consumed"},
    consumed_twice: {"consumed too often"},
    marker_missing: {"fence"},
    marked_without_order: {"fence"},
    half_an_order: {"phantom", "database"},
    tag_filtered_out: {"filtered out"},
    tag_not_subscribed: {"not subscribed"},
    tag_not_consumed: {"not consumed"},
    tag_altered: {"altered"},
}


def kinds(differences: list[str]) -> set[str]:
    return {difference.partition(":")[0] for difference in differences}
