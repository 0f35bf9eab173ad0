"""The name server, and the administration of topics and groups (105, 106, 206; 17, 215, 216, 200, 207; 100 to 102), translated to and
from ``services.topics``.

One broker is the whole cluster, so every route names this broker.

Of a name server's key-value settings there is one: the brokers and number of queues on which a topic is ordered. Tools set it as the second
step of creating an ordered topic. It is not stored: each topic is ordered on its write queues. A request with exactly that value
succeeds, any other is refused.
"""

from functools import partial
from typing import Any, Final

from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.topics import TopicQueues
from halfmq.core.commands import SetGroup, SetTopic
from halfmq.core.decision import ConsumerGroupDeleted, Done, Failed, Refused
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.attributes import read_hold_change, read_topic_change
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.route import MASTER_ID, BrokerData, QueueData, Route, encode_cluster_info, encode_route

_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class NameService(Handlers):
    """The commands of RocketMQ's name server: routes, cluster, topics, and their administration."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        settings = self._view.settings
        self._topics = parts.topics
        self._broker = BrokerData(settings.cluster, settings.broker_name, {MASTER_ID: parts.address})

    # --- routes

    def route(self, connection: Connection, request: Request[Any]) -> None:
        """105: the route of a topic."""
        self._topics.route(request.ext.topic, partial(self._route, connection, request))

    def _route(self, connection: Connection, request: Request[Any], queues: TopicQueues | None) -> None:
        if queues is None:
            text = f"No topic route info in name server for the topic: {request.ext.topic}"
            self._answer_durably(connection, request, code=ResponseCode.TOPIC_NOT_EXIST, remark=text)
            return
        route = Route((self._broker,), (QueueData(self._broker.broker_name, *queues),))
        body = encode_route(route, request.version, standard_json=request.ext.accept_standard_json_only)
        self._answer_durably(connection, request, body=body)

    def cluster(self, connection: Connection, request: Request[Any]) -> None:
        """106: this broker, which is the whole cluster."""
        body = encode_cluster_info((self._broker,), request.version)
        self._answer(connection, request, body=body)

    def topics(self, connection: Connection, request: Request[Any]) -> None:
        """206: names of all topics."""
        body = java_json.dumps({"topicList": self._topics.names()})
        self._answer_durably(connection, request, body=body)

    # --- order of topics

    def _order_of(self, fields: Any) -> str | None:
        """``broker:queues`` of a topic, as a name server stores it; None: no such topic, or another namespace."""
        queues = self._topics.ordered_queues(fields.key) if fields.namespace == _ORDER_NAMESPACE else None
        return None if queues is None else f"{self._broker.broker_name}:{queues}"

    def get_setting(self, connection: Connection, request: Request[Any]) -> None:
        """101: the queues on which a topic is ordered; there is no other setting."""
        value = self._order_of(request.ext)
        if value is None:
            text = f"No config item, Namespace: {request.ext.namespace} Key: {request.ext.key}"
            self._answer_durably(connection, request, code=ResponseCode.QUERY_NOT_FOUND, remark=text)
        else:
            self._answer_durably(connection, request, {"value": value})

    def put_setting(self, connection: Connection, request: Request[Any]) -> None:
        """100: succeeds if the value is already so; nothing is stored."""
        fields = request.ext
        value = self._order_of(fields)
        if fields.namespace != _ORDER_NAMESPACE:
            text = f"settings of namespace {fields.namespace} are not kept here, only {_ORDER_NAMESPACE}"
        elif value is None:
            text = f"topic {fields.key} does not exist; make it first"
        elif fields.value.strip("; ") != value:
            text = f"topic {fields.key} is ordered on {value}, and on nothing else: this broker is the whole cluster"
        else:
            self._answer_durably(connection, request)
            return
        self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)

    def delete_setting(self, connection: Connection, request: Request[Any]) -> None:
        """102: refused while the topic exists, since a topic is always ordered on its write queues."""
        value = self._order_of(request.ext)
        if value is None:
            self._answer_durably(connection, request)
        else:
            text = f"topic {request.ext.key} is ordered on {value} for as long as it exists"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)

    # --- administration

    def set_topic(self, connection: Connection, request: Request[Any]) -> None:
        """17: create or change a topic."""
        fields = request.ext
        try:
            message_type = read_topic_change(fields.attributes)
        except ValueError as error:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, f"attributes: {error}")
            return
        change = SetTopic(
            fields.topic, fields.read_queue_nums, fields.write_queue_nums, fields.perm,
            ordered=fields.order, message_type=message_type,
        )  # fmt: skip
        self._topics.set_topic(connection, change, partial(self._done, connection, request))

    def delete_topic(self, connection: Connection, request: Request[Any]) -> None:
        """215: delete a topic and its messages."""
        self._topics.delete_topic(connection, request.ext.topic, partial(self._done, connection, request))

    def forget_topic(self, connection: Connection, request: Request[Any]) -> None:
        """216: refused while the topic exists, since its route ends with the topic (215)."""
        if self._topics.ordered_queues(request.ext.topic) is None:
            self._answer_durably(connection, request)
        else:
            text = f"topic {request.ext.topic} exists, and its route with it: delete it in the broker (215)"
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)

    def set_group(self, connection: Connection, request: Request[Any]) -> None:
        """200: create or change a consumer group."""
        fields = request.ext
        try:
            hold = read_hold_change(fields.attributes or {})
        except ValueError as error:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, f"attributes: {error}")
            return
        change = SetGroup(
            fields.group_name,
            fields.retry_max_times,
            fields.retry_queue_nums,
            fields.consume_enable,
            hold_topics=hold.topics,
            hold_ms=hold.hold_ms,
            broadcast_enabled=fields.consume_broadcast_enable,
            from_min_enabled=fields.consume_from_min_enable,
            notifies_members=fields.notify_consumer_ids_changed_enable,
        )
        self._topics.set_group(connection, change, partial(self._done, connection, request))

    def delete_group(self, connection: Connection, request: Request[Any]) -> None:
        """207: delete a consumer group."""
        fields = request.ext
        self._topics.delete_group(
            connection,
            fields.group_name,
            with_offsets=fields.clean_offset or fields.remove_offset,
            answer=partial(self._done, connection, request),
        )

    def _done(
        self, connection: Connection, request: Request[Any], reply: Done | ConsumerGroupDeleted | Refused | Failed
    ) -> None:
        """SUCCESS. The remark, which RocketMQ's clients ignore, names the remaining topics of a deleted group."""
        match reply:
            case Done():
                self._answer(connection, request)
            case ConsumerGroupDeleted(kept):
                text = f"what is in {' and '.join(kept)} stays, see deleteTopic" if kept else None
                self._gateway.answer(connection, request, ResponseCode.SUCCESS, text)
            case Refused() | Failed():
                self._refuse(connection, request, reply)
