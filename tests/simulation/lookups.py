"""Messages by id, by key and by position, queried at the end: every visible message is found, with the body that was sent.

By UNIQ_KEY and by KEYS (12), and by the position in a pull response (33). A query for a key with more messages than fit into
one response returns the newest, so only keys of few messages are queried.
"""

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from halfmq.model.stored_message import decode as decode_message
from halfmq.testing.history.events import Seen
from tests.simulation.chronicle import Chronicle
from tests.simulation.final_checks import seen
from tests.simulation.promises import WHOLE, Violation
from tests.simulation.raw_connection import RawLine
from tests.simulation.wire_tap import WireTap
from tests.support.virtual_loop import ProcessLoop

#: Number of messages that are queried, and of those with keys.
_ASKED_MAX = 6
_FOUND_MAX = 32


class NotFound(Violation):
    def __init__(self, text: str, event: Seen) -> None:
        super().__init__(text, event.message)
        self.event = event


async def look_up(
    process: ProcessLoop, network: Any, chronicle: Chronicle, tap: WireTap, log_start: Callable[[], int]
) -> None:
    """
    Raises:
        Violation: a visible message is not found, although the log still has it.
    """
    try:
        await _look_up(process, network, chronicle, tap)
    except NotFound as missing:
        if missing.event.offset >= log_start():
            raise
        chronicle.counts["looked for when it was trimmed"] += 1


async def _look_up(process: ProcessLoop, network: Any, chronicle: Chronicle, tap: WireTap) -> None:
    visible = [
        event
        for event in chronicle.events
        if type(event) is Seen and event.reader == WHOLE and not event.topic.startswith("%")
    ]
    if not visible:
        return
    line = await RawLine.open(process, network, "reader")
    for event in visible[-1 :: -max(1, len(visible) // _ASKED_MAX)]:
        await _by_id(line, chronicle, event)
    keyed = [event for event in visible if event.message in tap.keys]
    sharing = Counter((event.topic, tap.keys[event.message]) for event in keyed)
    for event in keyed[-1 :: -max(1, len(keyed) // _ASKED_MAX)]:
        if sharing[event.topic, tap.keys[event.message]] < _FOUND_MAX:
            await _by_key(line, chronicle, event, tap.keys[event.message])
    line.close()


async def _by_id(line: RawLine, chronicle: Chronicle, event: Seen) -> None:
    counts = chronicle.counts
    counts["look by id"] += 1
    ext = {"topic": event.topic, "key": event.message, "_UNIQUE_KEY_QUERY": "true", "maxNum": "32"}
    answer = await line.ask(12, {**ext, "beginTimestamp": "0", "endTimestamp": str(1 << 62)}, timeout_s=30.0)
    _must_hold(event, answer.code, answer.body, "its id")
    counts["look by place"] += 1
    answer = await line.ask(33, {"topic": event.topic, "offset": str(event.offset)}, timeout_s=30.0)
    _must_hold(event, answer.code, answer.body, "its place in the log")


async def _by_key(line: RawLine, chronicle: Chronicle, event: Seen, key: str) -> None:
    chronicle.counts["look by key"] += 1
    ext = {"topic": event.topic, "key": key, "maxNum": str(_FOUND_MAX)}
    answer = await line.ask(12, {**ext, "beginTimestamp": "0", "endTimestamp": str(1 << 62)}, timeout_s=30.0)
    _must_hold(event, answer.code, answer.body, f"its key {key}")


def _must_hold(event: Seen, code: int, body: bytes, by: str) -> None:
    """Check that it is this message: its id, queue offset and body."""
    found = []
    at = 0
    while code == 0 and at < len(body):
        message, offset, size = decode_message(body, at)
        one = seen(message, offset, 0, "", WHOLE)
        found.append((one.message, one.queue, one.queue_offset, zlib.crc32(message.body) & 0x7FFFFFFF))
        at += size
    if (event.message, event.queue, event.queue_offset, event.crc) not in found:
        where = f"{event.topic}/{event.queue}@{event.queue_offset}"
        raise NotFound(f"Lookup: {event.message} at {where} is not found by {by}: {code}, {found}", event)
