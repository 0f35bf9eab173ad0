"""Bounds of queues, offsets, and single messages (12, 14, 15, 29 to 33, and our HMQ_POSITION and HMQ_FITTING), translated to and from
``services.queues`` and ``services.messages``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.intake import REQUEST_COST
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.messages import KeyMatches, StoredMessages
from halfmq.broker.services.queues import Position, Queues
from halfmq.broker.turns import BUSY, Turns
from halfmq.core.decision import Done, Refused, Why
from halfmq.core.engine import Failed
from halfmq.model.steps import Steps
from halfmq.wire.remoting import fitting
from halfmq.wire.remoting.codes import HMQ_FITTING, HMQ_POSITION, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.position import (
    PositionAnswer,
    TopicBounds,
    asked_samples,
    asked_topics,
    encode_answer,
)

T = TypeVar("T")


class Lookups:
    """Requests for offsets and single messages."""

    def __init__(
        self, gateway: Gateway, sequencer: Sequencer, queues: Queues, messages: StoredMessages, turns: Turns
    ) -> None:
        self._turns = turns
        self._gateway = gateway
        self._sequencer = sequencer
        self._queues = queues
        self._messages = messages
        self._durably = DurableAnswers(gateway, sequencer)
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
            HMQ_FITTING: self.fitting,
        }

    # --- consumer offsets

    def consumer_offset(self, connection: Connection, request: Request[Any]) -> None:
        """14. "No offset" is 22 and nothing else: newer clients treat any other refusal as "try again later".

        An offset that arrived earlier in the same read (15) is applied first.
        """
        if not self._sequencer.after_turn(self._gateway.serve, self._consumer_offset, connection, request):
            self._consumer_offset(connection, request)

    def _consumer_offset(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        from_start = fields.set_zero_if_not_found is not False
        found = self._queues.consumer_offset(
            fields.consumer_group, fields.topic, fields.queue_id, new_from_start=from_start
        )
        if found is None:
            self._gateway.answer(
                connection, request, ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
            )
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": found})

    def commit_offset(self, connection: Connection, request: Request[Any]) -> None:
        """15; one-way from RocketMQ's clients. Who waits for the response hears if there is no such group, topic or queue."""
        fields = request.ext
        self._queues.commit_offset(
            connection,
            fields.consumer_group,
            fields.topic,
            fields.queue_id,
            fields.commit_offset,
            waits=not request.is_oneway,
            answer=partial(self._committed, connection, request),
        )

    def _committed(self, connection: Connection, request: Request[Any], reply: Done | Refused | Failed) -> None:
        if isinstance(reply, Done):
            self._gateway.answer(connection, request, ResponseCode.SUCCESS)
        else:
            self._gateway.answer(connection, request, *refusal(reply))

    # --- queues

    def max_offset(self, connection: Connection, request: Request[Any]) -> None:
        """30: offset after the last visible message of a queue."""
        _, end = self._queues.bounds(request.ext.topic, request.ext.queue_id)
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": end})

    def min_offset(self, connection: Connection, request: Request[Any]) -> None:
        """31: first offset in the queue."""
        begin, _ = self._queues.bounds(request.ext.topic, request.ext.queue_id)
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": begin})

    def search(self, connection: Connection, request: Request[Any]) -> None:
        """29: offset by store time."""
        fields = request.ext
        upper = fields.boundary_type.upper() == "UPPER"
        offset = self._queues.offset_at(fields.topic, fields.queue_id, fields.timestamp, upper=upper)
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, {"offset": offset})

    def earliest(self, connection: Connection, request: Request[Any]) -> None:
        """32: store time of the first message in a queue, ms."""
        time_ms = self._queues.earliest_ms(request.ext.topic, request.ext.queue_id)
        ext = {"timestamp": -1 if time_ms is None else time_ms}
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext)

    def position(self, connection: Connection, request: Request[Any]) -> None:
        """HMQ_POSITION. Withheld until the topics themselves are durable."""
        names, samples = asked_topics(request.ext), asked_samples(request.body)
        answer = partial(self._position, connection, request.to_answer(None), samples)
        self._in_turns(connection, request, self._queues.position(names), answer, sum(map(len, names)))

    def _position(
        self,
        connection: Connection,
        request: Request[None],
        samples: Mapping[str, Sequence[tuple[int, int]]],
        found: Position | Refused,
    ) -> None:
        if isinstance(found, Refused):
            self._gateway.answer(connection, request, *refusal(found))
            return
        topics = {
            name: TopicBounds(
                topic.topic_id, topic.queues, self._queues.sampled_sizes(name, samples[name]) if name in samples else ()
            )
            for name, topic in found.topics.items()
        }
        ext, body = encode_answer(PositionAnswer(found.store, found.epoch, found.position, topics))
        self._durably.tell(connection, request, ResponseCode.SUCCESS, None, ext, body)

    def _in_turns(
        self,
        connection: Connection,
        request: Request[Any],
        steps: Steps[T],
        answer: Callable[[T], None],
        memory_bytes: int = 0,
    ) -> None:
        request = request.to_answer(None)
        if not self._turns.run(
            connection,
            REQUEST_COST + memory_bytes,
            steps,
            answer,
            partial(self._gateway.failed, connection, request),
            in_order=False,
        ):
            self._gateway.answer(connection, request, *refusal(Refused(Why.NOT_NOW, BUSY)))

    def fitting(self, connection: Connection, request: Request[Any]) -> None:
        """HMQ_FITTING: how many messages fit into a number of bytes."""
        asked = fitting.decode_request(request.ext)
        if isinstance(asked, str):
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, asked)
            return
        ext = fitting.encode_answer(*self._queues.fitting(*asked))
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext)

    # --- messages

    def view(self, connection: Connection, request: Request[Any]) -> None:
        """33: one message by its log offset."""
        offset = request.ext.offset
        answer = partial(self._viewed, connection, request.to_answer(None), offset)
        self._in_turns(connection, request, self._messages.visible_bytes(offset), answer)

    def _viewed(self, connection: Connection, request: Request[None], offset: int, found: bytearray | None) -> None:
        if found is None:
            text = f"can not find message by the offset, {offset}"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
        else:
            self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=found)

    def query(self, connection: Connection, request: Request[Any]) -> None:
        """12: messages by key or unique id."""
        fields = request.ext
        steps = self._messages.by_key(
            fields.topic,
            fields.key,
            fields.max_num,
            fields.begin_timestamp,
            fields.end_timestamp,
            is_unique=fields.unique,
        )
        answer = partial(self._queried, connection, request.to_answer(None))
        self._in_turns(connection, request, steps, answer, len(fields.topic) + len(fields.key))

    def _queried(self, connection: Connection, request: Request[None], found: KeyMatches) -> None:
        if not found.messages:
            self._gateway.answer(
                connection, request, ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
            return
        ext = {"indexLastUpdateTimestamp": found.indexed_ms, "indexLastUpdatePhyoffset": found.indexed_to}
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext, b"".join(found.messages))
