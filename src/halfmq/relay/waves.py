"""Publishes a batch in waves, so that of each order key no message is sent before the earlier ones are confirmed.

A target refuses messages one by one. If all messages of a key were sent at once, and the first one was refused, the others would be
published before it. So the n-th message of each key is sent when the earlier ones of the key are confirmed; messages of different keys, and
those without a key, share a wave. A target that cannot take the second message without the first may get both in one wave (``may_follow``).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from halfmq.relay.publisher import Batch, OutboxMessage, Published


class Sent(NamedTuple):
    """What is known of a wave. Of a message in neither of the two, nothing is known, unless ``again`` is set."""

    confirmed: frozenset[int] = frozenset()
    refused: Mapping[int, str] = {}
    #: Why nothing more is to be sent now; empty: go on.
    unavailable: str = ""
    #: The messages in neither of the two were not published, and may be sent in the next wave.
    again: bool = False


def _never(_earlier: OutboxMessage, _later: OutboxMessage) -> bool:
    return False


Send = Callable[[Sequence[OutboxMessage]], Awaitable[Sent]]
MayFollow = Callable[[OutboxMessage, OutboxMessage], bool]


class PublisherInWaves:
    """Part of a ``Publisher`` to a target that cannot be asked for a message id, so that it knows no batch that was left."""

    def __init__(self, messages_max: int) -> None:
        self.messages_max = messages_max
        #: The last batch was not answered.
        self._is_doubtful = False

    async def _publish_in_waves(self, batch: Batch, send: Send, may_follow: MayFollow = _never) -> Published:
        published = await publish_in_waves(batch.messages, send, may_follow, careful=self._is_doubtful)
        self._is_doubtful = bool(published.unavailable)
        return published

    async def recover(self, batch: Batch) -> Published:
        """See ``Publisher``."""
        return Published(frozenset())


async def publish_in_waves(
    messages: Sequence[OutboxMessage],
    send: Send,
    may_follow: MayFollow = _never,
    *,
    careful: bool = False,
) -> Published:
    """Send ``messages`` in waves until each is confirmed or refused, or is behind a refused one of its key, or the target stops answering.

    ``send`` gets a wave in the order of ``messages``, and must not raise for what a target does. ``may_follow``: whether the second message
    may be in the wave of the first one, the message before it with the same key. ``careful``: the target did not answer last time, or not
    as it should. The first wave is a single message, so that one that stores and does not confirm gets one duplicate with each attempt, not
    a whole batch.
    """
    confirmed: set[int] = set()
    refused: dict[int, str] = {}
    left = list(messages)
    while left:
        wave, later = (left[:1], left[1:]) if careful else _next_wave(left, may_follow)
        careful = False
        sent = await send(wave)
        confirmed |= sent.confirmed
        refused.update(sent.refused)
        rest = [one for one in wave if one.seq not in sent.confirmed and one.seq not in sent.refused]
        if sent.unavailable or (rest and not sent.again) or not (sent.confirmed or sent.refused):
            return Published(frozenset(confirmed), refused, unavailable=sent.unavailable)
        if rest or sent.refused:
            stopped = {one.order_key for one in wave if one.seq in sent.refused} - {""}
            done = confirmed | refused.keys()
            later = [one for one in left if one.seq not in done and one.order_key not in stopped]
        left = later
    return Published(frozenset(confirmed), refused)


def _next_wave(left: list[OutboxMessage], may_follow: MayFollow) -> tuple[list[OutboxMessage], list[OutboxMessage]]:
    """(what may be sent now, what must wait for it)."""
    wave: list[OutboxMessage] = []
    later: list[OutboxMessage] = []
    #: By key: its last message in the wave; None: one of its messages waits, and so do all after that.
    last: dict[str, OutboxMessage | None] = {}
    for message in left:
        key = message.order_key
        if key:
            if key in last:
                before = last[key]
                if before is None or not may_follow(before, message):
                    last[key] = None
                    later.append(message)
                    continue
            last[key] = message
        wave.append(message)
    return wave, later
