"""Reads ranges of queues of Apache RocketMQ's brokers with pull requests.

A broker returns at most 32 messages or 256 KiB, so a pull for the next messages is sent before the response is decoded; and further ones,
at the offsets that follow if each response has as many messages as the last one. A wrong guess costs a response that nobody reads.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from halfmq import limits
from halfmq.client.blocking import Answer, Connections, Sent, Unavailable, check_success
from halfmq.errors import ProtocolError
from halfmq.model.address import Address
from halfmq.model.layout import STORED_MESSAGE
from halfmq.model.stored_message import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_COMMITTED,
    SYS_TRANSACTION_MASK,
)
from halfmq.spark.network.queue_lookups import pull_fields
from halfmq.spark.plan.partitions import QueueRange
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import Ints, as_bytes, field
from halfmq.spark.rows.stored_rows import BATCH_BYTES, BATCH_ROWS, StoredRows, more_of_hosts
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.fields import PulledReply

#: Responses are merged into record batches up to this size: a quarter of the direct reader's, for a lower latency.
_BATCH_BYTES: Final = BATCH_BYTES // 4
#: Pulls that are sent before the first of them is answered.
_IN_FLIGHT: Final = 3
_NO_MESSAGES: Final = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)

Lost = Callable[[str], None]


class _Ahead(NamedTuple):
    """A pull in flight."""

    address: Address
    range: QueueRange
    at: int
    sent: Sent


class PullReader:
    """Reads ranges. ``address_of``: of a topic and a broker that has it; raises Unavailable. The caller closes ``connections``."""

    def __init__(
        self, address_of: Callable[[str, str], Address], connections: Connections, deadline: RetryDeadline, group: str
    ) -> None:
        self._address_of = address_of
        self._connections = connections
        self._deadline = deadline
        self._group = group
        #: Pulls in flight, all of one range, in the order of their offsets.
        self._ahead: deque[_Ahead] = deque()

    def read_range(self, one: QueueRange, lost: Lost) -> Iterator[StoredRows]:
        """The messages of the range: pull responses, merged into batches. ``lost`` is called with a sentence about missing messages; if it
        returns, reading continues after them.
        """
        # ``parts`` contains the messages from ``begin`` to ``at``, except skipped ones.
        parts: list[bytes] = []
        size = 0
        begin = at = one.start
        while at < one.end:
            body, after = self._pull(one, at, lost)
            if body:
                parts.append(body)
                size += len(body)
                at = after
            if parts and (not body or size >= _BATCH_BYTES or at - begin >= BATCH_ROWS or at >= one.end):
                found = pulled_rows(b"".join(parts), one)
                _report_gaps(one, found.queue_offsets, begin, min(at, one.end), lost)
                if len(found.starts):
                    yield found
                parts, size, begin = [], 0, at
            if not body:
                begin = at = after

    def _pull(self, one: QueueRange, at: int, lost: Lost) -> tuple[bytes, int]:
        """(stored messages from ``at`` on, next offset). The last messages may be beyond the range."""
        what = one.in_words()

        def attempt() -> tuple[bytes, int]:
            address = self._address_of(one.topic, one.broker)
            answer = self._answer(address, one, at)
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                lost(f"topic {one.topic} no longer exists")
                return b"", one.end
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                raise Unavailable(f"offset {at} was planned, but does not exist")
            if answer.code not in _NO_MESSAGES:
                check_success(answer, f"a pull from {what}")
            after = answer.read(PulledReply).next_begin_offset
            if answer.code == 0:
                if after <= at:
                    raise ProtocolError(f"a pull from {what} at {at} returned next offset {after}")
                self._pull_ahead(address, one, at, after)
                return answer.body, after
            if after <= at:
                raise Unavailable(f"the queue ends at {after}, before the planned offset {at}")
            lost(f"messages {at} to {min(after, one.end) - 1} of {what} are past retention")
            return b"", min(after, one.end)

        return self._deadline.until(attempt, what)

    # --- pulls in flight

    def _answer(self, address: Address, one: QueueRange, at: int) -> Answer:
        """The response to a pull at ``at``, which may have been sent before."""
        ahead = self._ahead.popleft() if self._ahead else None
        if ahead is not None and (ahead.address, ahead.range, ahead.at) == (address, one, at):
            try:
                return self._connections.receive(ahead.sent)
            except (Unavailable, ProtocolError):
                self._ahead.clear()
                raise
        if ahead is not None:
            self._ahead.appendleft(ahead)
            self._forget_all()
        return self._connections.receive(self._send(address, one, at))

    def _pull_ahead(self, address: Address, one: QueueRange, at: int, after: int) -> None:
        """Send the next pulls. The response to the pull at ``at`` ended at ``after``."""
        right = not self._ahead or self._ahead[0].at == after
        if not right:
            self._forget_all()
        following = after
        if self._ahead:
            following = self._ahead[-1].at + after - at
        # After a wrong guess only what is known is sent.
        in_flight = _IN_FLIGHT if right else 1
        try:
            while len(self._ahead) < in_flight and following < one.end:
                self._ahead.append(_Ahead(address, one, following, self._send(address, one, following)))
                following += after - at
        except Unavailable:
            self._ahead.clear()  # the next pull reports it

    def _forget_all(self) -> None:
        for ahead in self._ahead:
            ahead.sent.forget()
        self._ahead.clear()

    def _send(self, address: Address, one: QueueRange, at: int) -> Sent:
        messages_max = min(one.end - at, limits.PULL_MESSAGES_MAX)
        fields = pull_fields(self._group, one.topic, one.queue, at, messages_max)
        return self._connections.send(address, RequestCode.PULL_MESSAGE, fields)


def pulled_rows(data: bytes, one: QueueRange) -> StoredRows:
    """The messages of one or more pull responses that are within the range.

    Raises:
        ProtocolError: ``data`` is not a sequence of complete stored messages.
    """
    starts, sizes = _walk(data)
    buffer = pa.py_buffer(data)
    content = as_bytes(buffer)
    offsets: Ints = field(content, starts, STORED_MESSAGE, "queue_offset").astype(np.int64)
    inside = (offsets >= one.start) & (offsets < one.end)
    if not inside.all():
        starts, sizes, offsets = starts[inside], sizes[inside], offsets[inside]
    flags = field(content, starts, STORED_MESSAGE, "sys_flag").astype(np.int32)
    more = more_of_hosts(flags, SYS_BORN_HOST_V6)
    return StoredRows(
        buffer=buffer,
        starts=starts,
        sizes=sizes,
        queue_offsets=offsets,
        store_times_ms=field(content, starts, STORED_MESSAGE, "store_time_ms", more).astype(np.int64),
        transactional=(flags & SYS_TRANSACTION_MASK) == SYS_COMMITTED,
        topic=one.topic,
        broker=one.broker,
        queue=one.queue,
        rocketmq=True,
    )


def _report_gaps(one: QueueRange, offsets: Ints, begin: int, end: int, lost: Callable[[str], None]) -> None:
    """Call ``lost`` if messages of [begin, end) are missing: a broker skips what it can no longer read.

    Raises:
        ProtocolError: the messages are not in queue order.
    """
    if not (np.diff(offsets) > 0).all():
        raise ProtocolError(f"messages of {one.in_words()} arrived out of order or twice")
    if len(offsets) < end - begin:
        missing = np.setdiff1d(np.arange(begin, end), offsets)
        lost(
            f"{len(missing)} of the messages {missing[0]} to {missing[-1]} of {one.in_words()} are "
            "missing: the broker skipped them"
        )


def _walk(data: bytes) -> tuple[Ints, Ints]:
    """(starts, sizes) of consecutive stored messages, bytes."""
    starts = []
    at = 0
    end = len(data)
    while at + STORED_MESSAGE.size <= end:
        size = int.from_bytes(data[at : at + 4], "big")
        magic = int.from_bytes(data[at + 4 : at + 8], "big")
        if size < STORED_MESSAGE.size or magic not in (MAGIC_V1, MAGIC_V2):
            break
        starts.append(at)
        at += size
    if at != end:
        raise ProtocolError(
            f"a pull response of {end} bytes is not a sequence of stored messages: invalid at byte {at}"
        )
    places = np.array(starts, dtype=np.int64)
    return places, np.diff(np.append(places, end))
