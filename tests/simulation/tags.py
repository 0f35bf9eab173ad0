"""Tags: a reader receives exactly the messages with the tags that it subscribed to, however they came into the queue.

consumers   the group of a seed subscribes to some of the tags; ``consuming`` compares what it receives with what was sent
at the end  each queue is read once per tag, and must return all visible messages that were sent with it
"""

import random
from typing import Any, Final

from halfmq.model import properties
from halfmq.model.stored_message import decode as decode_message
from halfmq.testing.history.events import AnyEvent, Seen
from tests.simulation.promises import WHOLE, Violation
from tests.simulation.raw_connection import RawLine
from tests.support.raw_client import pull_ext
from tests.support.virtual_loop import ProcessLoop

TAGS: Final = ("red", "blue")


def draw_tag(rng: random.Random) -> str | None:
    return rng.choice((None, *TAGS))


class Sent:
    """Sent messages with their tags, and the subscription of the consumer group."""

    def __init__(self, subscription: str) -> None:
        #: Message -> its tag, or an empty string.
        self.tags: dict[str, str] = {}
        self._wanted = None if subscription == "*" else {tag.strip() for tag in subscription.split("||")}

    @property
    def all_are_wanted(self) -> bool:
        return self._wanted is None

    def note(self, unique: str, text: bytes) -> None:
        self.tags[unique] = (properties.find(text, "TAGS") or b"").decode()

    def is_wanted(self, message: str) -> bool:
        return self._wanted is None or self.tags.get(message) in self._wanted


async def read_by_tags(
    process: ProcessLoop, network: Any, events: list[AnyEvent], sent: Sent, queues: list[tuple[str, int]], counts: Any
) -> None:
    """Call it after ``final_checks.read_everything``.

    Raises:
        Violation: a query for a tag misses a message with it, or returns one without.
    """
    there: dict[tuple[str, int], dict[int, str]] = {}
    for event in events:
        if type(event) is Seen and event.reader == WHOLE:
            there.setdefault((event.topic, event.queue), {})[event.queue_offset] = event.message
    line = await RawLine.open(process, network, "reader")
    for topic, queue in queues:
        found = there.get((topic, queue), {})
        for tag in TAGS if found else ():
            given, low = await _pulled(line, topic, queue, tag)
            for offset, message in found.items():
                counts["look tag"] += 1
                has_it = sent.tags.get(message, "") == tag
                if offset >= low and has_it != (offset in given):
                    said = "is not given" if has_it else "is given"
                    raise Violation(
                        f"Tags: {message} at {topic}/{queue}@{offset} {said} to who asks for {tag}; it was sent with "
                        f"{sent.tags.get(message)!r}",
                        message,
                    )
    line.close()


async def _pulled(line: RawLine, topic: str, queue: int, tag: str) -> tuple[set[int], int]:
    """(queue offsets in the responses, current begin of the queue)."""
    given: set[int] = set()
    offset = low = 0
    while True:
        answer = await line.ask(11, pull_ext(topic, WHOLE, queue, offset, count=1_000, tags=tag), timeout_s=30.0)
        low = max(low, int(answer.ext.get("minOffset", "0")))
        following = int(answer.ext.get("nextBeginOffset", offset))
        at = 0
        while at < len(answer.body):
            message, _, size = decode_message(answer.body, at)
            given.add(message.queue_offset)
            at += size
        if following <= offset:
            return given, low
        offset = following
