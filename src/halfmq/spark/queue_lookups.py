"""What a plan over the network asks about single queues, besides their bounds: offsets by time, and how many messages fit into bytes.

A halfmq broker answers both exactly. RocketMQ tells no sizes, and its 4.x versions return the message nearest to a time, so there
some messages are pulled. At the start of a query, and for each trigger with ``maxBytesPerTrigger``.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.stored_message import decode
from halfmq.spark.offsets import QueueBoundsSnapshot, QueueName, is_rocketmq, queue_number
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.wire.remoting import fitting
from halfmq.wire.remoting.codes import HMQ_FITTING, PullFlag, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.replies import OffsetReply, PulledReply, read_reply

#: Messages from which the size of others is estimated.
_SAMPLE_MESSAGES: Final = 32

#: Sends a request (code, ext fields) to the broker of a queue and returns the response, which may be a permanent rejection. Raises
#: ``Unavailable`` if there is none, for a temporary rejection, and if the broker no longer has the store of the snapshot.
Ask = Callable[[QueueName, QueueBoundsSnapshot, int, Mapping[str, object]], Request[dict[str, str]]]


def pull_fields(group: str, topic: str, queue: int, offset: int, messages_max: int) -> dict[str, object]:
    """Fields of a pull request for all messages, which does not wait, and stores no offset."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": messages_max,
        "maxMsgBytes": limits.PULL_BYTES_MAX,
        "sysFlag": int(PullFlag.SUBSCRIPTION),
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }


class QueueLookups:
    """Lookups in the queues of a snapshot. Methods raise ConnectError if the broker is unavailable for ``brokerTimeout``."""

    def __init__(self, ask: Ask, group: str, deadline: RetryDeadline) -> None:
        self._ask = ask
        self._group = group
        self._deadline = deadline

    def offset_at(self, queue: QueueName, time_ms: int, snapshot: QueueBoundsSnapshot) -> int | None:
        """The first message stored at ``time_ms`` (since 1970) or later; None if ``snapshot`` has none.

        RocketMQ 4.x returns the nearest message instead, or any of several with this time, so the answer of a RocketMQ broker is
        compared with the messages themselves, and searched for among them if it is wrong.
        """
        first, end = snapshot.queues[queue]
        if first == end:
            return None
        fields = {"timestamp": time_ms, "boundaryType": "LOWER"}
        answer = self._until(queue, snapshot, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        at = min(max(first, read_reply(answer, OffsetReply).offset), end)
        if is_rocketmq(snapshot.store):
            at = self._checked_offset(queue, at, time_ms, snapshot)
        return None if at == end else at

    def _checked_offset(self, queue: QueueName, at: int, time_ms: int, snapshot: QueueBoundsSnapshot) -> int:
        """The first message at ``time_ms`` or later, which ``at`` may be; the end if all are older."""

        def is_older(offset: int) -> bool:
            return self._store_time_ms(queue, offset, snapshot) < time_ms

        low, high = snapshot.queues[queue]
        if at < high and is_older(at):
            low = at + 1
        else:
            high = at
            if at > low and is_older(at - 1):
                low = at
        while low < high:
            middle = (low + high) // 2
            if is_older(middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _store_time_ms(self, queue: QueueName, offset: int, snapshot: QueueBoundsSnapshot) -> int:
        """The store time of a message; -1 if the broker does not have it, as for messages past retention."""
        answer = self._pull(queue, offset, 1, snapshot)
        if answer.code != ResponseCode.SUCCESS:
            return -1
        try:
            return decode(answer.body)[0].store_time_ms
        except ValueError as error:
            raise ProtocolError(f"a pull from {in_words(queue)} did not return a stored message: {error}") from error

    def fitting(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        """(number, bytes) of the messages from ``start`` on, before ``end``, whose stored sizes add up to at most ``bytes_max``.

        Estimated where the broker does not know HMQ_FITTING. It examines a bounded number of messages for each request.
        """
        count = size = 0
        while start + count < end and size < bytes_max:
            at, left = start + count, bytes_max - size
            fits = None if is_rocketmq(snapshot.store) else self._exact(queue, at, end, left, snapshot)
            if fits is None:
                number, estimated = self._estimate(queue, at, end, left, snapshot)
                return count + number, size + estimated
            if fits[0] == 0:
                break
            count += fits[0]
            size += fits[1]
        return count, size

    def _exact(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int] | None:
        """None: the broker does not know the command."""
        request = fitting.FittingRequest(queue[0], queue_number(queue[1]), start, end, bytes_max)
        answer = self._until(queue, snapshot, HMQ_FITTING, fitting.encode_request(request))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        return fitting.decode_answer(answer.ext)

    def _estimate(
        self, queue: QueueName, start: int, end: int, bytes_max: int, snapshot: QueueBoundsSnapshot
    ) -> tuple[int, int]:
        """From the mean size of the next messages. What cannot be pulled counts nothing: the read reports it."""
        answer = self._pull(queue, start, min(end - start, _SAMPLE_MESSAGES), snapshot)
        if answer.code != ResponseCode.SUCCESS:
            return end - start, 0
        pulled = max(1, read_reply(answer, PulledReply).next_begin_offset - start)
        mean = max(1, len(answer.body) // pulled)
        count = min(end - start, bytes_max // mean)
        return count, count * mean

    def _pull(
        self, queue: QueueName, offset: int, messages_max: int, snapshot: QueueBoundsSnapshot
    ) -> Request[dict[str, str]]:
        fields = pull_fields(self._group, queue[0], queue_number(queue[1]), offset, messages_max)
        return self._until(queue, snapshot, RequestCode.PULL_MESSAGE, fields)

    def _until(
        self, queue: QueueName, snapshot: QueueBoundsSnapshot, code: int, fields: Mapping[str, object]
    ) -> Request[dict[str, str]]:
        complete = {"topic": queue[0], "queueId": queue_number(queue[1]), **fields}
        return self._deadline.until(partial(self._ask, queue, snapshot, code, complete), in_words(queue))


def in_words(queue: QueueName) -> str:
    """For the text of an error."""
    return f"queue {queue[1]} of topic {queue[0]}"
