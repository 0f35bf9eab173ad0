"""Where queues begin and end, and single messages: 12, 14, 15, 29 to 33, and our HMQ_POSITION.

Everything is read below the published position. Consumer offsets (14) are session state, which promises nothing, so they
are answered at once.
"""

from typing import Any, Final, Protocol

from halfmq import limits
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.stored import StoredMessages
from halfmq.core.commands import Actor, CommitOffset
from halfmq.core.decision import Refused, Reply, Why
from halfmq.core.engine import Failed
from halfmq.core.queues.offsets import MayBeLost, Stored, query_offset
from halfmq.store.consume_queue import QueueEntry
from halfmq.wire.remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.position import HMQ_POSITION, PositionAnswer, TopicBounds, asked_topics, encode_answer

#: A queue none of whose messages was ever trimmed counts as young while the log from its first message on is not longer
#: than this. A new group starts a young queue at its beginning, whatever its clients say. As with RocketMQ, where "young"
#: means that the first message is still in memory (``checkInDiskByConsumeOffset``, 40% of the machine's); needed where a
#: topic is made by its first message: a consumer that waited for it would else jump over that very message.
YOUNG_QUEUE_BYTES: Final = 1 << 30
#: Precedent: RocketMQ ``defaultQueryMaxNum``.
QUERY_MESSAGES_MAX: Final = 32
_UNIQUE_KEY_MESSAGES_MAX: Final = 32


class LookupReads(Protocol):
    """What is asked of the store."""

    @property
    def uuid(self) -> str: ...

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]: ...

    def read_queue(self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int) -> list[QueueEntry]: ...

    def search_by_time(self, topic_id: int, queue_id: int, time_ms: int, *, upper: bool) -> int: ...


class Lookups:
    def __init__(self, gateway: Gateway, sequencer: Sequencer, store: LookupReads, stored: StoredMessages) -> None:
        self._gateway = gateway
        self._sequencer = sequencer
        self._store = store
        self._stored = stored
        self._durably = DurableAnswers(gateway, sequencer)
        self._view = sequencer.view
        gateway.handlers |= {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.QUERY_CONSUMER_OFFSET: self.consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
            HMQ_POSITION: self.position,
        }

    # --- consumer offsets

    def consumer_offset(self, connection: Connection, request: Request[Any]) -> None:
        """14. "No offset" is 22 and nothing else: newer clients take any other refusal as "try again later".

        An offset that came before in the same read (15) is noted first.
        """
        if not self._sequencer.after_turn(self._gateway.serve, self._consumer_offset, connection, request):
            self._consumer_offset(connection, request)

    def _consumer_offset(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        known = query_offset(self._view, fields.consumer_group, fields.topic, fields.queue_id)
        found: int | None = None
        if isinstance(known, Stored):
            found = known.offset
        elif isinstance(known, MayBeLost):
            found = self._store.bounds(self._view.topics_by_name[fields.topic].topic_id, fields.queue_id)[0]
        elif fields.set_zero_if_not_found is not False:
            queue = self._queue(fields)
            if queue is not None and self._is_young(*queue):
                found = 0
        if found is None:
            self._gateway.answer(
                connection, request, ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
            )
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": found})

    def _is_young(self, topic_id: int, queue_id: int) -> bool:
        low, high = self._store.bounds(topic_id, queue_id)
        if low > 0 or high == 0:
            return False
        first = self._store.read_queue(topic_id, queue_id, 0, 1)
        return bool(first) and self._view.session.published - first[0].offset <= YOUNG_QUEUE_BYTES

    def commit_offset(self, connection: Connection, request: Request[Any]) -> None:
        """15; one-way from stock clients. Who waits for the answer and is no member of the group is an operator."""
        fields = request.ext
        by = None
        if not request.flag & FLAG_ONEWAY and not self._is_member(connection, fields.consumer_group):
            by = Actor(peer=connection.address)
        command = CommitOffset(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset, by)
        self._sequencer.submit(command, self._committed, (connection, request))

    def _is_member(self, connection: Connection, group: str) -> bool:
        session = self._view.session.consumers.get(group)
        return session is not None and connection.number in session.members

    def _committed(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        if isinstance(reply, Refused) and reply.why is Why.LIMIT_REACHED:
            connection, request = context
            self._gateway.answer(connection, request, *refusal(reply))
        else:
            # An unknown group or topic has no offset to keep; 4.x brokers say success as well.
            self._gateway.answer(*context, ResponseCode.SUCCESS)

    # --- queues

    def _queue(self, fields: Any) -> tuple[int, int] | None:
        topic = self._view.topics_by_name.get(fields.topic)
        return None if topic is None else (topic.topic_id, fields.queue_id)

    def max_offset(self, connection: Connection, request: Request[Any]) -> None:
        queue = self._queue(request.ext)
        offset = self._store.bounds(*queue)[1] if queue else 0
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": offset})

    def min_offset(self, connection: Connection, request: Request[Any]) -> None:
        queue = self._queue(request.ext)
        offset = self._store.bounds(*queue)[0] if queue else 0
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": offset})

    def search(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        queue = self._queue(fields)
        upper = fields.boundary_type.upper() == "UPPER"
        offset = self._store.search_by_time(*queue, fields.timestamp, upper=upper) if queue else 0
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": offset})

    def earliest(self, connection: Connection, request: Request[Any]) -> None:
        queue = self._queue(request.ext)
        first = self._store.read_queue(*queue, self._store.bounds(*queue)[0], 1) if queue else []
        time_ms = first[0].store_time_ms if first else -1
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"timestamp": time_ms})

    def position(self, connection: Connection, request: Request[Any]) -> None:
        """All queues of some topics at one published position: no transaction is torn by reading up to it.

        Held until the topics themselves are durable.
        """
        topics = {}
        for name in asked_topics(request.ext):
            topic = self._view.topics_by_name.get(name)
            if topic is not None:
                bounds = tuple(self._store.bounds(topic.topic_id, queue) for queue in range(len(topic.ends)))
                topics[name] = TopicBounds(topic.topic_id, bounds)
        answer = PositionAnswer(self._store.uuid, self._view.epoch, self._view.session.published, topics)
        ext, body = encode_answer(answer)
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)

    # --- messages

    def view(self, connection: Connection, request: Request[Any]) -> None:
        found = self._stored.visible_bytes(request.ext.offset)
        if found is None:
            self._gateway.answer(
                connection,
                request,
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {request.ext.offset}",
            )
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=found)

    def query(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        wanted = _UNIQUE_KEY_MESSAGES_MAX if fields.unique else min(max(fields.max_num, 1), QUERY_MESSAGES_MAX)
        found = self._stored.by_key(fields.topic, fields.key, wanted, fields.begin_timestamp, fields.end_timestamp)
        if not found:
            self._gateway.answer(
                connection, request, ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
            return
        size = 0
        for count, message in enumerate(found):  # a client reads no larger frame
            size += len(message)
            if size > limits.FRAME_BYTES_MAX // 2:
                found = found[: max(count, 1)]
                break
        ext = {
            "indexLastUpdateTimestamp": self._view.batch_time_ms,
            "indexLastUpdatePhyoffset": self._view.session.published,
        }
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext, b"".join(found))
