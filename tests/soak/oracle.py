"""What must be visible according to the databases, what readers received, and the differences.

It compares sets: (transaction, number) -> (topic, CRC of the body) on both sides. The history checker, which
knows the promises, reads the same files afterwards. ``test_oracle`` plants each difference.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine, select

from halfmq.testing.history.events import Answered, AnyEvent, HalfSent, QueueRead, Seen
from halfmq.testing.history.reader import files_of
from tests.soak import tables
from tests.soak.plan import CREDITS_GROUP, FILTERED_GROUP, FILTERED_WATCHER, SUBSCRIBED_TAGS

#: (transaction, number)
Key = tuple[str, int]
#: (topic, queue, offset)
Place = tuple[str, int, int]


class What(NamedTuple):
    topic: str
    crc: int


class Credit(NamedTuple):
    """The effect of one message in the consumers' database, with the tag that the consumer received."""

    group: str
    message: str
    tx: str
    number: int
    what: What
    tag: str


class Books(NamedTuple):
    """The contents of the databases. ``orders``: producer group and number of messages by transaction; ``markers``: C or R; ``tags``:
    of each line, empty for none.
    """

    orders: dict[str, tuple[str, int]]
    lines: dict[Key, What]
    markers: dict[str, str]
    tags: dict[Key, str]
    #: Unordered.
    credits: list[Credit]

    def is_subscribed(self, key: Key) -> bool:
        """Whether the filtering readers must receive this message."""
        return self.tags.get(key) in SUBSCRIBED_TAGS


def read_books(engines: Iterable[Engine]) -> Books:
    books = Books({}, {}, {}, {}, [])
    for engine in engines:
        with engine.connect() as connection:
            for tx, group, messages in connection.execute(
                select(tables.orders.c.tx_id, tables.orders.c.producer_group, tables.orders.c.messages)
            ):
                books.orders[tx] = (group, messages)
            for tx, number, topic, crc, tag in connection.execute(select(*tables.lines.c)):
                books.lines[tx, number] = What(topic, crc)
                books.tags[tx, number] = tag
            for table in (tables.markers.table, tables.java_markers):
                # Rows with # in their key belong to the marker table itself.
                rows = select(table.c.tx_id, table.c.outcome).where(table.c.tx_id.not_like("#%"))
                books.markers.update((tx, outcome) for tx, outcome in connection.execute(rows))
            for group, message, tx, number, topic, crc, tag in connection.execute(select(*tables.credited.c)):
                books.credits.append(Credit(group, message, tx, number, What(topic, crc), tag))
    return books


class Sight(NamedTuple):
    """All recorded events. ``asked``: group by transaction, of each half that was sent; ``prepared``: where one was acknowledged."""

    seen: list[Seen]
    read: list[QueueRead]
    asked: dict[str, str]
    prepared: set[str]
    #: Lines cut off by the death of their writer, always the last of a file.
    torn_lines: int


def read_sight(histories: Path) -> Sight:
    """Read all files of a round.

    Raises:
        UsageError: a line inside a file is not an event; only the last one of a killed process may be torn.
    """
    sources = files_of([histories])
    sight = take_in(event for source in sources for block in source.blocks() for event in block.events)
    return sight._replace(torn_lines=sum(source.torn for source in sources))


def take_in(events: Iterable[AnyEvent]) -> Sight:
    seen: list[Seen] = []
    read: list[QueueRead] = []
    asked: dict[str, str] = {}
    prepared: set[str] = set()
    waiting: dict[tuple[str, str], str] = {}
    for event in events:
        match event:
            case Seen():
                seen.append(event)
            case QueueRead():
                read.append(event)
            case HalfSent():
                asked[event.tx] = event.group
                waiting[event.by, event.op] = event.tx
            case Answered():
                tx = waiting.pop((event.by, event.op), None)
                if tx is not None and event.outcome == "ok":
                    prepared.add(tx)
    return Sight(seen, read, asked, prepared, 0)


class Found(NamedTuple):
    differences: list[str]
    looked_at: Counter[str]


def compare(books: Books, sight: Sight, *, consumers: bool = True) -> Found:
    """``consumers``: whether the round had any."""
    found = Found([], Counter())
    places = _places(sight, found)
    visible: dict[Key, list[Place]] = defaultdict(list)
    for place, one in places.items():
        visible[one.tx, one.index].append(place)
    _books_against_visible(books, visible, places, found)
    _whole_queues(sight, places, found)
    if consumers:
        _credits(books, places, found)
        if not any(one.reader == CREDITS_GROUP for one in sight.seen):
            found.differences.append("strange: no consumer saw anything")
    _tags(books, sight, places, found)
    _markers(books, sight, found)
    return found


def _places(sight: Sight, found: Found) -> dict[Place, Seen]:
    """The message at each place; it must be the same for all readers."""
    places: dict[Place, Seen] = {}
    for one in sight.seen:
        found.looked_at["messages seen"] += 1
        place = (one.topic, one.queue, one.queue_offset)
        first = places.setdefault(place, one)
        if (first.message, first.tx, first.index, first.crc) != (one.message, one.tx, one.index, one.crc):
            found.differences.append(f"strange: {place} was {first.message} for {first.by}, {one.message} for {one.by}")
    return places


def _books_against_visible(
    books: Books, visible: dict[Key, list[Place]], places: dict[Place, Seen], found: Found
) -> None:
    missing: Counter[str] = Counter()
    for key, what in books.lines.items():
        found.looked_at["rows in the databases"] += 1
        at = visible.get(key, [])
        if not at:
            missing[key[0]] += 1
        for place in at:
            if (place[0], places[place].crc) != what:
                found.differences.append(f"altered: {key} is {what} in the database, {places[place].crc} at {place}")
    for tx, count in missing.items():
        group, messages = books.orders.get(tx, ("?", 0))
        kind = "lost" if count == messages else "torn"
        found.differences.append(f"{kind}: {count} of {messages} messages of {tx} ({group}) are not visible")
    for key, at in visible.items():
        found.looked_at["visible messages"] += 1
        if key not in books.lines:
            known = "of an order without this line" if key[0] in books.orders else "no order"
            found.differences.append(f"phantom: {key} at {at} is visible, the database has {known}")
        if len(at) > 1:
            found.differences.append(f"twice: {key} is at {at}")


def _whole_queues(sight: Sight, places: dict[Place, Seen], found: Found) -> None:
    """A reader that reports a complete range must have received each place of it, and some reader the whole queue."""
    by_reader: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for one in sight.seen:
        by_reader[one.reader, one.topic, one.queue].add(one.queue_offset)
    ends: dict[tuple[str, int], int] = {}
    begins: dict[tuple[str, int], int] = {}
    for read in sight.read:
        found.looked_at["queues read to their end"] += 1
        holes = set(range(read.first, read.end)) - by_reader[read.reader, read.topic, read.queue]
        if holes:
            found.differences.append(
                f"hole: {read.reader} read {read.topic}[{read.queue}] to {read.end} without {sorted(holes)[:5]}"
            )
        queue = (read.topic, read.queue)
        if ends.setdefault(queue, read.end) != read.end:
            found.differences.append(f"strange: {queue} ends at {ends[queue]}, and at {read.end} for {read.reader}")
        begins[queue] = min(begins.get(queue, read.first), read.first)
    for queue, begin in begins.items():
        if begin:
            found.differences.append(
                f"unseen: nobody saw {queue} below {begin}: retention was faster than every reader"
            )
    for topic, queue_id, offset in places:
        if offset >= ends.get((topic, queue_id), 0):
            found.differences.append(f"lost: {topic}[{queue_id}]@{offset} was seen, and the queue ends before it")


def _credits(books: Books, places: dict[Place, Seen], found: Found) -> None:
    """Each group has one effect for each visible message that it subscribes to, and no other effect."""
    for group, looked_at in (
        (CREDITS_GROUP, "effects of consumers"),
        (FILTERED_GROUP, "effects of the filtering group"),
    ):
        want = Counter(
            (one.message, one.tx, one.index, What(one.topic, one.crc))
            for one in places.values()
            if group == CREDITS_GROUP or books.is_subscribed((one.tx, one.index))
        )
        have = Counter(
            (one.message, one.tx, one.number, one.what)
            for one in books.credits
            # A visible message without a line is a phantom, whatever its tag.
            if one.group == group and (group == CREDITS_GROUP or (one.tx, one.number) in books.tags)
        )
        found.looked_at[looked_at] += have.total()
        for effect, times in (want - have).items():
            found.differences.append(f"not consumed: {group} lacks {times} effects of {effect[0]} ({effect[1]})")
        for effect, times in (have - want).items():
            tag = books.tags.get((effect[1], effect[2]))
            found.differences.append(
                f"consumed too often: {group} has {times} effects too many of {effect[0]} ({effect[1]}), tag {tag!r}"
            )


def _tags(books: Books, sight: Sight, places: dict[Place, Seen], found: Found) -> None:
    """Each message has the tag with which it was sent, and the filtering watcher received exactly the subscribed ones."""
    for one in books.credits:
        found.looked_at["tags received"] += 1
        sent = books.tags.get((one.tx, one.number), one.tag)
        if one.tag != sent:
            found.differences.append(
                f"altered: {one.message} was sent with the tag {sent!r}, {one.group} received {one.tag!r}"
            )
    passed = {(one.topic, one.queue, one.queue_offset) for one in sight.seen if one.reader == FILTERED_WATCHER}
    found.looked_at["messages passed by the tag filter"] += len(passed)
    for place, one in places.items():
        key = (one.tx, one.index)
        if key in books.tags and books.is_subscribed(key) != (place in passed):
            kind = "filtered out" if place not in passed else "not subscribed"
            found.differences.append(f"{kind}: {one.message} at {place}, tag {books.tags[key]!r}, {FILTERED_WATCHER}")


def _markers(books: Books, sight: Sight, found: Found) -> None:
    """The marker table, which answered the checks, and the business rows must agree."""
    for tx, (group, messages) in books.orders.items():
        found.looked_at["orders"] += 1
        if books.markers.get(tx) != "C":
            found.differences.append(f"fence: order {tx} ({group}) has the marker {books.markers.get(tx)}")
        there = sum((tx, number) in books.lines for number in range(messages))
        if there != messages:
            found.differences.append(f"database: order {tx} has {there} of {messages} lines")
        if tx not in sight.asked:
            found.differences.append(f"strange: order {tx} is there, and none of its halves ever left")
    for tx, outcome in books.markers.items():
        if outcome == "C" and tx not in books.orders:
            found.differences.append(f"fence: {tx} is marked as committed and has no order")
