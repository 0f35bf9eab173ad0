"""Headers (``extFields``) of commands and responses as typed structs, and bodies of halfmq's own commands.

On the wire values are text (Java), or JSON numbers and booleans (C++ client); both are converted to the type of the field
(``model.text_fields``). Without a field that has no default the command is an ``InvalidHeader``. Ranges are those of Java's int and long.

Source: RocketMQ ``remoting/protocol/header``.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from halfmq.errors import ProtocolError
from halfmq.model.queue_reads import PullRequest
from halfmq.model.text_fields import Fields, Int32, Int64, read_fields
from halfmq.wire.remoting.codes import (
    EXT_ATTEMPT,
    EXT_COORDINATOR,
    EXT_DECIDED_BY,
    EXT_DELAY_MS,
    EXT_FAILURE,
    EXT_NOT_CONSUMED,
    EXT_SENT_AGAIN,
    EXT_TX_ID,
    RequestCode,
)

F = TypeVar("F", bound=Struct)
T = TypeVar("T")


def read_answer_fields(kind: type[F], ext: Mapping[str, Any], what: str = "a response") -> F:
    """The fields of a response.

    Raises:
        ProtocolError: a field is missing or malformed. The text names it.
    """
    try:
        return read_fields(kind, ext)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{what} is malformed: {error}") from error


class JsonBody(Generic[T]):
    """The body that is a document of one type. ``what`` begins the error: "a response to HMQ_STATS is"."""

    def __init__(self, kind: type[T], what: str) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._what = what

    def encode(self, document: Any) -> bytes:
        """``document``: of the type, or what has the same JSON, such as a tuple for a list."""
        return msgspec.json.encode(document)

    def decode(self, body: bytes | bytearray | memoryview) -> T:
        """Inverse of ``encode``.

        Raises:
            ProtocolError: malformed.
        """
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"{self._what} malformed: {error}") from error


def names_in(text: str, separator: str, names_max: int) -> tuple[str, ...]:
    """The names, in order, without duplicates and empty ones.

    Raises:
        ProtocolError: there may be more than ``names_max``. They are counted before they are separated.
    """
    count = text.count(separator) + 1
    if count > names_max:
        raise ProtocolError(f"a field with {count} names; the maximum is {names_max}")
    return tuple(dict.fromkeys([name for name in text.split(separator) if name]))


class SendFields(Fields, gc=False, kw_only=True):
    """310, 320 and 325 (``SendMessageRequestHeaderV2``), and 10 and 324 with translated names. Unused fields are not read."""

    group: str = field(name="a")
    topic: str = field(name="b")
    #: Number of queues if this send creates the topic.
    default_queues: Int32 = field(name="d", default=4)
    #: Negative: the broker selects a write queue.
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_time_ms: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: Int32 = field(name="j", default=0)
    #: -1: not set.
    max_reconsume_times: Int32 = field(name="l", default=-1)
    #: halfmq only: an earlier attempt got no response.
    sent_again: bool = field(name=EXT_SENT_AGAIN, default=False)


class PushedReplyFields(Fields, gc=False, kw_only=True):
    """326 (``ReplyMessageRequestHeader``). Unused fields are not read."""

    topic: str
    queue_id: Int32 = 0
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 = 0
    store_timestamp: Int64 = 0


#: Field names of codes 10 and 324 (``SendMessageRequestHeader``) -> field names of codes 310 and 325.
SEND_LETTER_OF_NAME: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}


class EndFields(Fields, gc=False):
    """37. ``msg_id`` is the UNIQ_KEY; ``commit_or_rollback`` should be 8, 12 or 0: the caller checks it."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str = ""
    from_transaction_check: bool = False
    transaction_id: str = ""
    #: halfmq only: id of a transaction with several half messages.
    tx_id: str = field(name=EXT_TX_ID, default="")
    #: halfmq only: source of the answer to a check.
    decided_by: str = field(name=EXT_DECIDED_BY, default="")
    #: halfmq only: the coordinator that sends it, with its epoch.
    coordinator: str = field(name=EXT_COORDINATOR, default="")


class UpdateOffsetFields(Fields, gc=False):
    """15, usually one-way."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class QueryOffsetFields(Fields, gc=False):
    """14."""

    consumer_group: str
    topic: str
    queue_id: Int32
    #: None (4.x) means true.
    set_zero_if_not_found: bool | None = None


class QueueFields(Fields, gc=False):
    """30, 31 and 32."""

    topic: str
    queue_id: Int32


class SearchOffsetFields(Fields, gc=False):
    """29. ``boundary_type`` is LOWER or UPPER, case-insensitive."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"


class ConsumerListFields(Fields, gc=False):
    """38, 40 and 203."""

    consumer_group: str


class UnregisterFields(Fields, gc=False):
    """35."""

    client_id: str = field(name="clientID")
    producer_group: str = ""
    consumer_group: str = ""


class SendBackFields(Fields, gc=False):
    """36. ``offset`` is the log offset of the message."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str = ""
    origin_topic: str = ""
    #: -1: not set.
    max_reconsume_times: Int32 = -1
    #: halfmq only: why the attempt failed.
    failure: str = field(name=EXT_FAILURE, default="")
    #: halfmq only: the number of this attempt, for a dead letter; 0: one more than the broker has counted.
    attempt: Int32 = field(name=EXT_ATTEMPT, default=0)
    #: halfmq only: the delay of the next attempt, ms; -1: as ``delay_level`` says.
    delay_ms: Int64 = field(name=EXT_DELAY_MS, default=-1)
    #: halfmq only: its sender does not consume the topic, and nobody has attempted to handle the message.
    not_consumed: bool = field(name=EXT_NOT_CONSUMED, default=False)


class ViewMessageFields(Fields, gc=False):
    """33."""

    offset: Int64
    topic: str = ""


class QueryMessageFields(Fields, gc=False):
    """12."""

    topic: str
    key: str
    max_num: Int32 = 32
    begin_timestamp: Int64 = 0
    end_timestamp: Int64 = (1 << 63) - 1
    #: Whether ``key`` is a UNIQ_KEY.
    unique: bool = field(name="_UNIQUE_KEY_QUERY", default=False)


class CheckFields(Fields, gc=False):
    """39, from the broker to a producer, which returns both offsets in its 37."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str = ""
    transaction_id: str = ""
    tx_id: str = field(name=EXT_TX_ID, default="")


class RouteFields(Fields, gc=False):
    """105."""

    topic: str
    accept_standard_json_only: bool = False


class CreateTopicFields(Fields, gc=False):
    """17."""

    topic: str
    read_queue_nums: Int32 = 8
    write_queue_nums: Int32 = 8
    perm: Int32 = 6
    order: bool | None = None
    #: See ``attributes``.
    attributes: str = ""


class TopicFields(Fields, gc=False):
    """202, 215, 216, 300, 351."""

    topic: str


class DeleteGroupFields(Fields, gc=False):
    """207, ``DeleteSubscriptionGroupRequestHeader``; ``remove_offset`` is the name in RocketMQ 4.9."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class ConsumeStatsFields(Fields, gc=False):
    """208. Without a topic: all topics in which the group has offsets."""

    consumer_group: str
    topic: str = ""
    #: Newer tools: several topics, separated by semicolons.
    topic_list: str = ""


class ProducerConnectionFields(Fields, gc=False):
    """204."""

    producer_group: str


class RunningInfoFields(Fields, gc=False):
    """307, from an administrator to the broker, which forwards it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class GroupConfigFields(Fields, gc=False):
    """201. Newer tools page through the groups; older ones request all."""

    group_seq: Int32 = 0
    #: 0: all.
    max_group_num: Int32 = 0


class GroupFields(Fields, gc=False):
    """352."""

    group: str


class StatsFields(Fields, gc=False):
    """315: name of the counter, and its key."""

    stats_name: str
    stats_key: str


class KeyFields(Fields, gc=False):
    """101 and 102."""

    namespace: str
    key: str


class SettingFields(KeyFields, gc=False):
    """100."""

    value: str = ""


class SentReply(Fields, gc=False):
    """Response to 10, 310, 320. ``msg_id`` is the offset message id; ``transaction_id`` is absent in 4.x."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str = ""


class PulledReply(Fields, gc=False):
    """Response to 11, also with codes 19, 20 and 21 (no messages)."""

    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class OffsetReply(Fields, gc=False):
    """Response to 14, 29, 30, 31."""

    offset: Int64


class EndReply(Fields, gc=False):
    """Response of a halfmq broker to 37."""

    tx_id: str = field(name="HMQ_TX_ID", default="")
    #: COMMITTED or ROLLED_BACK.
    verdict: str = field(name="HMQ_VERDICT", default="")
    position: Int64 = field(name="HMQ_POSITION", default=-1)
    durability: str = field(name="HMQ_DURABILITY", default="")
    repeated: bool = field(name="HMQ_REPEATED", default=False)


#: Struct of each command of RocketMQ, sent by clients or by the broker. The others have their ext fields as a dict of text, unless the
#: caller of ``decode`` has structs for them; so have administrative ones, whose unknown fields are refused
#: (``broker/remoting/administration.py``).
FIELDS_OF_COMMAND: Final[dict[int, type[Fields]]] = {
    RequestCode.SEND_MESSAGE: SendFields,
    RequestCode.SEND_MESSAGE_V2: SendFields,
    RequestCode.SEND_BATCH_MESSAGE: SendFields,
    RequestCode.SEND_REPLY_MESSAGE: SendFields,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendFields,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: PushedReplyFields,
    RequestCode.END_TRANSACTION: EndFields,
    RequestCode.PULL_MESSAGE: PullRequest,
    RequestCode.LITE_PULL_MESSAGE: PullRequest,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateOffsetFields,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryOffsetFields,
    RequestCode.GET_MAX_OFFSET: QueueFields,
    RequestCode.GET_MIN_OFFSET: QueueFields,
    RequestCode.GET_EARLIEST_MSG_STORETIME: QueueFields,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetFields,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerListFields,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ConsumerListFields,
    RequestCode.UNREGISTER_CLIENT: UnregisterFields,
    RequestCode.CONSUMER_SEND_MSG_BACK: SendBackFields,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageFields,
    RequestCode.QUERY_MESSAGE: QueryMessageFields,
    RequestCode.CHECK_TRANSACTION_STATE: CheckFields,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: RouteFields,
    RequestCode.GET_TOPIC_STATS_INFO: TopicFields,
    RequestCode.GET_TOPIC_CONFIG: TopicFields,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: TopicFields,
    RequestCode.GET_CONSUME_STATS: ConsumeStatsFields,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerListFields,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerConnectionFields,
    RequestCode.GET_CONSUMER_RUNNING_INFO: RunningInfoFields,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GroupConfigFields,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GroupFields,
    RequestCode.VIEW_BROKER_STATS_DATA: StatsFields,
    RequestCode.GET_KV_CONFIG: KeyFields,
}
