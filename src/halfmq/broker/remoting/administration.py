"""What each administrative request keeps, field by field. What is not kept is refused, never confirmed (decision 0063).

    Selects    which thing the request is about
    Kept       stored durably, and shown again by the request or command that is named
    Fixed      not stored: refused unless it says what holds here anyway
    Ignored    not stored, and nothing is lost by that

``ADMINISTRATIVE`` has a row for each request that changes something for an operator, and ``guarded`` enforces it: a field without a rule is refused
unless it is empty, false or zero, so that a tool of a later version hears what this broker does not know. The other requests are in ``READS`` and
``OF_CLIENTS``. ``tests/unit/broker/remoting/test_administration.py`` sends every field of every row and reads it back.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from halfmq.broker.remoting.connection import Connection
from halfmq.broker.remoting.gateway import Gateway, Handler
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.fields import CreateTopicFields, DeleteGroupFields, KeyFields, SettingFields, TopicFields
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import (
    EXT_COORDINATOR,
    EXT_GROUP,
    EXT_ID,
    EXT_MAX,
    EXT_OPERATOR,
    EXT_REASON,
    EXT_VERDICT_WANTED,
)
from halfmq.wire.remoting.producer_groups import ProducerChange
from halfmq.wire.remoting.queries import EXT_QUERY, EXT_QUERY_TOPIC

#: Maximum body of an administrative request, bytes; a consumer group with all topics that it may hold takes a fifth.
BODY_BYTES_MAX: Final = 1 << 16
#: Characters of a peer's text in a refusal.
_SHOWN_MAX: Final = 64
#: Fields of any request, which are not about what it changes: credentials, and the marks of RocketMQ's own remote procedure calls.
ENVELOPE: Final = frozenset(
    {"AccessKey", "OnsChannel", "SecurityToken", "Signature", "bname", "brokerName", "lo", "ns", "nsd", "oway"}
)
_NOTHING: Final = frozenset({"", "0", "false", "null", "{}", "[]"})
#: As which tools send a field that they have no value for.
_UNSET: Final = frozenset({"", "null", "{}", "[]"})


class Selects(NamedTuple):
    """The field names the thing."""


class Kept(NamedTuple):
    """``shown_by``: code of the request that shows it, or a command line."""

    shown_by: int | str


class Fixed(NamedTuple):
    """``value`` as text; a field that is missing, null or empty has it."""

    value: str
    why: str


class Ignored(NamedTuple):
    """The reason why nothing is lost."""

    why: str


Rule = Selects | Kept | Fixed | Ignored


class Row(NamedTuple):
    """The rules of one request, for the fields of its header and of its JSON body."""

    header: Mapping[str, Rule]
    body: Mapping[str, Rule] = {}
    #: What the handler gets in ``ext``: these fields of the header, or of the body if there are rules for it. None: as they came.
    of: type[msgspec.Struct] | None = None


class SubscriptionGroupFields(msgspec.Struct, rename="camel"):
    """``SubscriptionGroupConfig`` (200), the fields that are kept. One that is missing stays as it is."""

    group_name: str
    retry_max_times: int | None = None
    retry_queue_nums: int | None = None
    consume_enable: bool | None = None
    consume_from_min_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    notify_consumer_ids_changed_enable: bool | None = None
    attributes: dict[str, str] | None = None


_TOPIC: Final = Kept(RequestCode.GET_TOPIC_CONFIG)
_GROUP: Final = Kept(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
_LIMITS: Final = Kept(codes.HMQ_PRODUCER)
_STORY: Final = Kept(codes.HMQ_STORY)
_AUDIT: Final = Kept("halfmq store dump --kind operator_acted")
_NO_SLAVE: Final = "there is one broker, and no slave to read from"
_PROXY: Final = "only RocketMQ's gRPC proxy reads it, which this broker does not have"

ADMINISTRATIVE: Final[Mapping[int, Row]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: Row(
        {
            "topic": Selects(),
            "defaultTopic": Ignored("RocketMQ's broker does not read it: the request has all settings of the topic"),
            "readQueueNums": _TOPIC,
            "writeQueueNums": _TOPIC,
            "perm": _TOPIC,
            "order": _TOPIC,
            "attributes": _TOPIC,
            "topicFilterType": Fixed("SINGLE_TAG", "a message has one tag"),
            "topicSysFlag": Fixed("0", "there are no unit topics"),
            "force": Fixed("false", "there are no static topics"),
        },
        of=CreateTopicFields,
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Row({"topic": Selects()}, of=TopicFields),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Row(
        {"topic": Selects(), "clusterName": Ignored("this broker is the whole cluster")}, of=TopicFields
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Row(
        {},
        {
            "groupName": Selects(),
            "consumeEnable": _GROUP,
            "consumeFromMinEnable": _GROUP,
            "consumeBroadcastEnable": _GROUP,
            "notifyConsumerIdsChangedEnable": _GROUP,
            "retryQueueNums": _GROUP,
            "retryMaxTimes": _GROUP,
            "attributes": _GROUP,
            "consumeMessageOrderly": Fixed("false", f"consumers choose their order; {_PROXY}"),
            "groupRetryPolicy": Fixed('{"type":"CUSTOMIZED"}', f"delays follow the delay levels; {_PROXY}"),
            "consumeTimeoutMinute": Fixed(
                "15", "consumers have a timeout of their own; RocketMQ's broker does not read it"
            ),
            "groupSysFlag": Fixed("0", "there are no unit groups"),
            "brokerId": Fixed("0", _NO_SLAVE),
            "whichBrokerWhenConsumeSlowly": Fixed("1", _NO_SLAVE),
            "subscriptionDataSet": Fixed("null", "subscriptions come from the consumers' heartbeats"),
        },
        of=SubscriptionGroupFields,
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Row(
        {
            "groupName": Selects(),
            "cleanOffset": Kept(RequestCode.QUERY_CONSUMER_OFFSET),
            # Its name in RocketMQ 4.9.
            "removeOffset": Kept(RequestCode.QUERY_CONSUMER_OFFSET),
        },
        of=DeleteGroupFields,
    ),
    # The handler refuses every value but the one that is so.
    RequestCode.PUT_KV_CONFIG: Row(
        {"namespace": Selects(), "key": Selects(), "value": Kept(RequestCode.GET_KV_CONFIG)}, of=SettingFields
    ),
    RequestCode.DELETE_KV_CONFIG: Row({"namespace": Selects(), "key": Selects()}, of=KeyFields),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Row(
        {},
        {
            "topic": Selects(),
            "consumerGroup": Selects(),
            # The handler refuses POP.
            "mode": Kept(RequestCode.QUERY_ASSIGNMENT),
            "popShareQueueNum": Ignored("only POP uses it, and POP is refused"),
        },
    ),
    # Not guarded: consumers send it, one-way, and it has no other fields. Who waits for the response hears what was not kept.
    RequestCode.UPDATE_CONSUMER_OFFSET: Row(
        {
            "consumerGroup": Selects(),
            "topic": Selects(),
            "queueId": Selects(),
            "commitOffset": Kept(RequestCode.QUERY_CONSUMER_OFFSET),
        }
    ),
    codes.HMQ_RESOLVE: Row(
        {EXT_ID: Selects(), EXT_GROUP: Selects(), EXT_VERDICT_WANTED: _STORY, EXT_OPERATOR: _STORY, EXT_REASON: _STORY}
    ),
    codes.HMQ_ASK: Row({EXT_ID: Selects(), EXT_GROUP: Selects()}),
    codes.HMQ_ASK_PARKED: Row({EXT_GROUP: Selects(), EXT_MAX: Selects()}),
    codes.HMQ_FORGET_DAMAGE: Row({EXT_ID: Selects(), EXT_GROUP: Selects(), EXT_OPERATOR: _AUDIT, EXT_REASON: _AUDIT}),
    codes.HMQ_FORGET_QUERY: Row(
        {EXT_QUERY: Selects(), EXT_QUERY_TOPIC: Selects(), EXT_OPERATOR: _AUDIT, EXT_REASON: _AUDIT}
    ),
    codes.HMQ_FORGET_COORDINATOR: Row(
        {EXT_GROUP: Selects(), EXT_COORDINATOR: Selects(), EXT_OPERATOR: _AUDIT, EXT_REASON: _AUDIT}
    ),
    codes.HMQ_PRODUCER: Row(
        {EXT_GROUP: Selects(), EXT_OPERATOR: _LIMITS, EXT_REASON: _AUDIT},
        dict.fromkeys(ProducerChange.__struct_fields__, _LIMITS),
    ),
}

#: Requests that change nothing.
READS: Final = frozenset(
    {
        RequestCode.QUERY_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CHECK_CLIENT_CONFIG, RequestCode.GET_KV_CONFIG, RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_CONSUME_STATS, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.VIEW_BROKER_STATS_DATA, RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.QUERY_ASSIGNMENT,
        codes.HMQ_POSITION, codes.HMQ_TRANSACTIONS, codes.HMQ_STORY, codes.HMQ_UNDECIDED, codes.HMQ_STATS, codes.HMQ_FITTING,
        codes.HMQ_DECISION, codes.HMQ_RAW_READ, codes.HMQ_TABLE_READ, codes.HMQ_QUERIES,
        codes.HMQ_COORDINATORS,
        codes.HMQ_COMPARISONS, codes.HMQ_DAMAGED,
    }
)  # fmt: skip
#: What working clients send: messages, verdicts, pulls, and who they are.
OF_CLIENTS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE,
        codes.HMQ_COMPARED, RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION,
        RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
        codes.HMQ_POLL_CHECKS, codes.HMQ_PREPARE_BATCH, codes.HMQ_DECIDE, codes.HMQ_TAKE_EPOCH, codes.HMQ_FENCE,
    }
)  # fmt: skip


def guarded(gateway: Gateway, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """The handlers of administrative requests, each behind the rules of its row: it gets only requests that are kept as a whole."""
    return {code: partial(_serve, gateway, ADMINISTRATIVE[code], handler) for code, handler in handlers.items()}


def _serve(gateway: Gateway, row: Row, handler: Handler, connection: Connection, request: Request[Any]) -> None:
    try:
        request.ext = _accepted(row, request)
    except (ValueError, RecursionError) as error:  # MsgspecError is a ValueError
        text = f"fields of command {request.code}: {error}"
        gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text)
    else:
        handler(connection, request)


def _accepted(row: Row, request: Request[Any]) -> Any:
    """``ext`` for the handler. Raises ValueError, which names the first field that would not be kept."""
    fields: Mapping[str, Any] = request.ext
    _check(row.header, fields)
    if row.body and request.body:
        if len(request.body) > BODY_BYTES_MAX:
            raise ValueError(f"a body of {len(request.body)} bytes; the maximum is {BODY_BYTES_MAX}")
        try:
            fields = msgspec.json.decode(request.body, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"the body is malformed: {error}") from error
        _check(row.body, fields)
    elif request.body and not row.body:
        raise ValueError("this command has no body")
    return request.ext if row.of is None else msgspec.convert(fields, row.of, strict=False)


def _check(rules: Mapping[str, Rule], fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        rule = rules.get(name)
        if isinstance(rule, Fixed):
            text = _text(value)
            if text not in (rule.value, *_UNSET):
                raise ValueError(f"{name} is {text[:_SHOWN_MAX]}, and can only be {rule.value}: {rule.why}")
        elif rule is None and name not in ENVELOPE and _text(value) not in _NOTHING:
            raise ValueError(
                f"field {name[:_SHOWN_MAX]!r} is not known here, so that {_text(value)[:_SHOWN_MAX]} would not be kept"
            )


def _text(value: Any) -> str:
    """The value as Java's tools write it in a header; objects without what is null, as compact JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        value = {name: one for name, one in value.items() if one is not None}
    return msgspec.json.encode(value).decode()
