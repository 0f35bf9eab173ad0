"""Bounds of queues, offsets, and single messages (12, 14, 15, 29 to 33, and our HMQ_POSITION and HMQ_FITTING), translated to and from
``services.queues`` and ``services.messages``.
"""

from functools import partial
from typing import Any, TypeVar

from halfmq.broker.peers.peer import REQUEST_COST
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.access import not_allowed, owned
from halfmq.broker.services.messages import KeyMatches
from halfmq.core.decision import Done, Failed, Refused
from halfmq.model.queue_reads import Position
from halfmq.model.stored_message import decode
from halfmq.model.text_fields import write_fields
from halfmq.model.users import Right
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.position import (
    FittingAnswer,
    FittingFields,
    asked_samples,
    asked_topics,
    encode_answer,
)

T = TypeVar("T")


class Lookups(Handlers):
    """Requests for offsets and single messages."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._queues = parts.queues
        self._messages = parts.stored

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
            self._answer(connection, request, {"offset": found})

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
            self._answer(connection, request)
        else:
            self._refuse(connection, request, reply)

    # --- queues

    def max_offset(self, connection: Connection, request: Request[Any]) -> None:
        """30: offset after the last visible message of a queue."""
        _, end = self._queues.bounds(request.ext.topic, request.ext.queue_id)
        self._answer(connection, request, {"offset": end})

    def min_offset(self, connection: Connection, request: Request[Any]) -> None:
        """31: first offset in the queue."""
        begin, _ = self._queues.bounds(request.ext.topic, request.ext.queue_id)
        self._answer(connection, request, {"offset": begin})

    def search(self, connection: Connection, request: Request[Any]) -> None:
        """29: offset by store time."""
        fields = request.ext
        upper = fields.boundary_type.upper() == "UPPER"
        offset = self._queues.offset_at(fields.topic, fields.queue_id, fields.timestamp, upper=upper)
        self._answer(connection, request, {"offset": offset})

    def earliest(self, connection: Connection, request: Request[Any]) -> None:
        """32: store time of the first message in a queue, ms."""
        time_ms = self._queues.earliest_ms(request.ext.topic, request.ext.queue_id)
        ext = {"timestamp": -1 if time_ms is None else time_ms}
        self._answer(connection, request, ext)

    def position(self, connection: Connection, request: Request[Any]) -> None:
        """HMQ_POSITION. Withheld until the topics themselves are durable."""
        names, samples = asked_topics(request.ext), asked_samples(request.body)
        request = request.to_answer(None)
        answer = partial(self._position, connection, request)
        self._in_turns(
            connection, request, self._queues.position(names, samples), answer, REQUEST_COST + sum(map(len, names))
        )

    def _position(self, connection: Connection, request: Request[None], found: Position | Refused) -> None:
        if isinstance(found, Refused):
            self._refuse(connection, request, found)
        else:
            self._answer_durably(connection, request, *encode_answer(found))

    def fitting(self, connection: Connection, request: Request[Any]) -> None:
        """HMQ_FITTING: how many messages fit into a number of bytes."""
        asked: FittingFields = request.ext
        found = self._queues.fitting(asked.topic, asked.queue_id, asked.offset, asked.end, asked.bytes_max)
        self._answer(connection, request, write_fields(FittingAnswer(*found)))

    # --- messages

    def view(self, connection: Connection, request: Request[Any]) -> None:
        """33: one message by its log offset."""
        offset, request = request.ext.offset, request.to_answer(None)
        answer = partial(self._viewed, connection, request, offset)
        self._in_turns(connection, request, self._messages.visible_bytes(offset), answer, REQUEST_COST)

    def _viewed(self, connection: Connection, request: Request[None], offset: int, found: bytearray | None) -> None:
        if found is None:
            text = f"can not find message by the offset, {offset}"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
            return
        asked = owned(Right.CONSUME, decode(memoryview(found))[0].topic)
        if connection.may(*asked):
            self._answer(connection, request, body=found)
        else:
            self._refuse(connection, request, not_allowed(connection.user, asked))

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
        request = request.to_answer(None)
        answer = partial(self._queried, connection, request)
        self._in_turns(connection, request, steps, answer, REQUEST_COST + len(fields.topic) + len(fields.key))

    def _queried(self, connection: Connection, request: Request[None], found: KeyMatches) -> None:
        if not found.messages:
            self._gateway.answer(
                connection, request, ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
            return
        ext = {"indexLastUpdateTimestamp": found.indexed_ms, "indexLastUpdatePhyoffset": found.indexed_to}
        self._answer(connection, request, ext, b"".join(found.messages))
