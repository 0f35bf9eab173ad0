"""The name service, and the administration of topics and groups: 105, 106, 206; 17, 215, 216, 200, 207; 100 to 102.

One broker is the whole cluster, so a route names this broker. Topics that clients expect to find although nobody made
them: TBW102 (the template; without its route the first send to a new topic fails, and a consumer never registers),
``<cluster>_REPLY_TOPIC`` (replies go where its route leads, and are stored nowhere) and ``%RETRY%`` of a group that exists.

Of the key-value settings of a name server there is one: on which queues of which brokers a topic is ordered. Tools set it
as the second half of making an ordered topic. It is not stored, since one broker is the whole cluster: each topic is ordered
on its write queues, so to say just that is taken, and to say something else is refused.
"""

from typing import Any, Final

import msgspec

from halfmq import limits
from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.durable_answer import DurableAnswers
from halfmq.broker.remoting.gateway import Gateway
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.remoting.request_reply import REPLY_TOPIC_SUFFIX
from halfmq.broker.sequencer import Sequencer
from halfmq.core.commands import Actor, DeleteGroup, DeleteTopic, EnsureTopic, SetGroup, SetTopic
from halfmq.core.decision import Done, GroupIsGone, Reply
from halfmq.core.engine import Failed
from halfmq.core.state import RETRY_PREFIX
from halfmq.model.settings import BrokerSettings
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.route import MASTER_ID, BrokerData, QueueData, Route, encode_cluster_info, encode_route

#: RocketMQ's template topic: inheritable, readable, writable.
TEMPLATE: Final = "TBW102"
_TEMPLATE_PERMISSION: Final = 7
_REPLY_PERMISSION: Final = 6
_RETRY_QUEUES: Final = 1
_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class _GroupBody(msgspec.Struct, rename="camel"):
    """``SubscriptionGroupConfig``, as far as it is read."""

    group_name: str
    retry_max_times: int = limits.RETRY_TIMES_MAX
    retry_queue_nums: int = _RETRY_QUEUES
    consume_enable: bool = True


class NameService:
    def __init__(self, gateway: Gateway, sequencer: Sequencer, settings: BrokerSettings, address: str) -> None:
        """``address``: ``host:port`` that clients are told to connect to."""
        self._gateway = gateway
        self._sequencer = sequencer
        self._view = sequencer.view
        self._durably = DurableAnswers(gateway, sequencer)
        self._settings = settings
        self._broker = BrokerData(settings.cluster, settings.broker_name, {MASTER_ID: address})
        gateway.handlers |= {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.set_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.forget_topic,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.set_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.PUT_KV_CONFIG: self.put_setting,
            RequestCode.GET_KV_CONFIG: self.get_setting,
            RequestCode.DELETE_KV_CONFIG: self.delete_setting,
        }

    # --- routes

    def route(self, connection: Connection, request: Request[Any]) -> None:
        name = request.ext.topic
        if self._queues_of(name) is None and self._is_retry_of_known_group(name):
            self._sequencer.submit(EnsureTopic(name, _RETRY_QUEUES), self._route, (connection, request))
        else:
            self._route((connection, request), Done())

    def _route(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        connection, request = context
        queues = self._queues_of(request.ext.topic)
        if queues is None:
            text = f"No topic route info in name server for the topic: {request.ext.topic}"
            self._durably.tell(connection, request, ResponseCode.TOPIC_NOT_EXIST, text)
            return
        body = encode_route(
            Route((self._broker,), (queues,)), request.version, standard_json=request.ext.accept_standard_json_only
        )
        self._durably.tell(connection, request, ResponseCode.SUCCESS, body=body)

    def _queues_of(self, name: str) -> QueueData | None:
        topic = self._view.topics_by_name.get(name)
        if topic is not None:
            return QueueData(self._settings.broker_name, topic.read_queues, topic.write_queues, topic.permission)
        if name == TEMPLATE and self._settings.auto_create_topics:
            queues = self._settings.default_topic_queues
            return QueueData(self._settings.broker_name, queues, queues, _TEMPLATE_PERMISSION)
        if name == self._settings.cluster + REPLY_TOPIC_SUFFIX:
            return QueueData(self._settings.broker_name, 1, 1, _REPLY_PERMISSION)
        return None

    def _is_retry_of_known_group(self, name: str) -> bool:
        return name.startswith(RETRY_PREFIX) and name[len(RETRY_PREFIX) :] in self._view.groups

    def cluster(self, connection: Connection, request: Request[Any]) -> None:
        body = encode_cluster_info((self._broker,), request.version)
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, body=body)

    def topics(self, connection: Connection, request: Request[Any]) -> None:
        names = [*self._view.topics_by_name]
        if self._settings.auto_create_topics and TEMPLATE not in names:
            names.append(TEMPLATE)
        self._durably.tell(connection, request, ResponseCode.SUCCESS, body=java_json.dumps({"topicList": names}))

    # --- order of topics

    def _order_of(self, fields: Any) -> str | None:
        """``broker:queues`` of a topic, as a name server keeps it; None: no such topic, or another namespace."""
        topic = self._view.topics_by_name.get(fields.key) if fields.namespace == _ORDER_NAMESPACE else None
        return None if topic is None else f"{self._settings.broker_name}:{topic.write_queues}"

    def get_setting(self, connection: Connection, request: Request[Any]) -> None:
        value = self._order_of(request.ext)
        if value is None:
            text = f"No config item, Namespace: {request.ext.namespace} Key: {request.ext.key}"
            self._durably.tell(connection, request, ResponseCode.QUERY_NOT_FOUND, text)
        else:
            self._durably.tell(connection, request, ResponseCode.SUCCESS, None, {"value": value})

    def put_setting(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        value = self._order_of(fields)
        if fields.namespace != _ORDER_NAMESPACE:
            text = f"settings of namespace {fields.namespace} are not kept here, only {_ORDER_NAMESPACE}"
        elif value is None:
            text = f"topic {fields.key} does not exist; make it first"
        elif fields.value.strip("; ") != value:
            text = f"topic {fields.key} is ordered on {value}, and on nothing else: this broker is the whole cluster"
        else:
            self._durably.tell(connection, request, ResponseCode.SUCCESS)
            return
        self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)

    def delete_setting(self, connection: Connection, request: Request[Any]) -> None:
        """What is not stored need not be deleted: it goes with the topic."""
        self._gateway.answer(connection, request, ResponseCode.SUCCESS)

    # --- administration

    def set_topic(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        command = SetTopic(
            fields.topic, fields.read_queue_nums, fields.write_queue_nums, fields.perm, Actor(peer=connection.address)
        )
        self._sequencer.submit(command, self._done, (connection, request))

    def delete_topic(self, connection: Connection, request: Request[Any]) -> None:
        command = DeleteTopic(request.ext.topic, Actor(peer=connection.address))
        self._sequencer.submit(command, self._done, (connection, request))

    def forget_topic(self, connection: Connection, request: Request[Any]) -> None:
        """216: the route goes with the topic (215), so there is nothing of its own to forget."""
        self._gateway.answer(connection, request, ResponseCode.SUCCESS)

    def set_group(self, connection: Connection, request: Request[Any]) -> None:
        try:
            group = msgspec.json.decode(request.body, type=_GroupBody, strict=False)
        except (msgspec.MsgspecError, ValueError) as error:
            self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, f"the group's settings: {error}")
            return
        command = SetGroup(
            group.group_name, group.retry_max_times, group.retry_queue_nums, group.consume_enable,
            Actor(peer=connection.address),
        )  # fmt: skip
        self._sequencer.submit(command, self._done, (connection, request))

    def delete_group(self, connection: Connection, request: Request[Any]) -> None:
        fields = request.ext
        command = DeleteGroup(fields.group_name, fields.clean_offset, Actor(peer=connection.address))
        self._sequencer.submit(command, self._group_gone, (connection, request))

    def _group_gone(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        """Success; the remark, which stock clients do not look at, names topics of the group that stay."""
        if isinstance(reply, GroupIsGone):
            kept = f"what is in {' and '.join(reply.kept)} stays, see deleteTopic" if reply.kept else None
            self._gateway.answer(*context, ResponseCode.SUCCESS, kept)
        else:
            self._done(context, reply)

    def _done(self, context: tuple[Connection, Request[Any]], reply: Reply | Failed) -> None:
        if isinstance(reply, Done):
            self._gateway.answer(*context, ResponseCode.SUCCESS)
        else:
            code, text, ext = refusal(reply)
            self._gateway.answer(*context, code, text, ext)
