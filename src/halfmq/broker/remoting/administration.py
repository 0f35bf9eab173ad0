"""What each administrative request keeps, field by field. What is not kept is refused, never confirmed (decision 0063).

    Selects    which thing the request is about
    Kept       stored durably, and shown again by the request or command that is named
    Fixed      not stored: refused unless it says what holds here anyway
    Ignored    not stored, and nothing is lost by that

There are rules for each request that changes something for an operator (``commands``), and ``accepted`` enforces them: a field without a
rule is refused unless it is empty, false or zero, so that a tool of a later version hears what this broker does not know.
``tests/unit/broker/remoting/test_administration.py`` sends every field of every row and reads it back.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from halfmq.model.text_fields import Int32, read_fields
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.producer_groups import ProducerChange

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
    """The field names the thing, or says that the command only looks at it."""


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


class SubscriptionGroupFields(msgspec.Struct, rename="camel"):
    """``SubscriptionGroupConfig`` (200), the fields that are kept. One that is missing stays as it is."""

    group_name: str
    retry_max_times: Int32 | None = None
    retry_queue_nums: Int32 | None = None
    consume_enable: bool | None = None
    consume_from_min_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    notify_consumer_ids_changed_enable: bool | None = None
    attributes: dict[str, str] | None = None


_TOPIC: Final = Kept(RequestCode.GET_TOPIC_CONFIG)
_GROUP: Final = Kept(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
_LIMITS: Final = Kept(codes.HMQ_PRODUCER)
_SETTINGS: Final = Kept(codes.HMQ_SETTINGS)
_STORY: Final = Kept(codes.HMQ_STORY)
_AUDIT: Final = Kept("halfmq store dump --kind operator_acted")
_NO_SLAVE: Final = "there is one broker, and no slave to read from"
_PROXY: Final = "only RocketMQ's gRPC proxy reads it, which this broker does not have"

UPDATE_AND_CREATE_TOPIC: Final = Row(
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
)
DELETE_TOPIC_IN_BROKER: Final = Row({"topic": Selects()})
DELETE_TOPIC_IN_NAMESRV: Final = Row({"topic": Selects(), "clusterName": Ignored("this broker is the whole cluster")})
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Final = Row(
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
)
DELETE_SUBSCRIPTIONGROUP: Final = Row(
    {
        "groupName": Selects(),
        "cleanOffset": Kept(RequestCode.QUERY_CONSUMER_OFFSET),
        # Its name in RocketMQ 4.9.
        "removeOffset": Kept(RequestCode.QUERY_CONSUMER_OFFSET),
    },
)
# The handler refuses every value but the one that is so.
PUT_KV_CONFIG: Final = Row({"namespace": Selects(), "key": Selects(), "value": Kept(RequestCode.GET_KV_CONFIG)})
DELETE_KV_CONFIG: Final = Row({"namespace": Selects(), "key": Selects()})
SET_MESSAGE_REQUEST_MODE: Final = Row(
    {},
    {
        "topic": Selects(),
        "consumerGroup": Selects(),
        # The handler refuses POP.
        "mode": Kept(RequestCode.QUERY_ASSIGNMENT),
        "popShareQueueNum": Ignored("only POP uses it, and POP is refused"),
    },
)
# Not enforced: consumers send it, one-way, and it has no other fields. Who waits for the response hears what was not kept.
UPDATE_CONSUMER_OFFSET: Final = Row(
    {
        "consumerGroup": Selects(),
        "topic": Selects(),
        "queueId": Selects(),
        "commitOffset": Kept(RequestCode.QUERY_CONSUMER_OFFSET),
    }
)
RESOLVE: Final = Row({"txId": Selects(), "group": Selects(), "verdict": _STORY, "operator": _STORY, "reason": _STORY})
ASK: Final = Row({"txId": Selects(), "group": Selects()})
ASK_PARKED: Final = Row({"group": Selects(), "max": Selects()})
FORGET_DAMAGE: Final = Row({"txId": Selects(), "group": Selects(), "operator": _AUDIT, "reason": _AUDIT})
FORGET_QUERY: Final = Row({"query": Selects(), "queryTopic": Selects(), "operator": _AUDIT, "reason": _AUDIT})
KICK_CLIENT: Final = Row({"clientId": Selects(), "connection": Selects(), "operator": _AUDIT, "reason": _AUDIT})
SET_SETTING: Final = Row(
    {
        "setting": Selects(),
        "value": _SETTINGS,
        "unset": _SETTINGS,
        "operator": _SETTINGS,
        "reason": _AUDIT,
        "preview": Selects(),
    }
)
FORGET_COORDINATOR: Final = Row({"group": Selects(), "coordinator": Selects(), "operator": _AUDIT, "reason": _AUDIT})
PRODUCER: Final = Row(
    {"group": Selects(), "operator": _LIMITS, "reason": _AUDIT},
    dict.fromkeys(ProducerChange.__struct_fields__, _LIMITS),
)


def accepted(row: Row, kind: type[msgspec.Struct] | None, request: Request[Any]) -> Any:
    """What the handler gets in ``ext``: the fields of the header, or of a body without one, as ``kind``; None: as they came.

    Raises:
        msgspec.ValidationError: a field is missing or malformed.
        ValueError: another one would not be kept, or the body is malformed. Both texts name the field.
        RecursionError: the body is.
    """
    fields: Mapping[str, Any] = request.ext
    _check(row.header, fields)
    if row.body and request.body:
        if len(request.body) > BODY_BYTES_MAX:
            raise ValueError(f"a body of {len(request.body)} bytes; the maximum is {BODY_BYTES_MAX}")
        try:
            document = msgspec.json.decode(request.body, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"the body is malformed: {error}") from error
        _check(row.body, document)
        fields = fields if row.header else document
    elif request.body and not row.body:
        raise ValueError("this command has no body")
    return request.ext if kind is None else read_fields(kind, fields)


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
