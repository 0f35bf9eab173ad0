"""Codes of requests and responses, languages, versions and flags, with RocketMQ's names, and those that are halfmq's own."""

from enum import IntEnum, IntFlag
from typing import Final


class RequestCode(IntEnum):
    """Commands (RocketMQ ``RequestCode``) that halfmq sends, executes or rejects by name."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    VIEW_BROKER_STATS_DATA = 315
    GET_BROKER_CONSUME_STATS = 317
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401


# The commands of halfmq, which RocketMQ does not have, in the order of their numbers: a new one takes the number after the last.
# The number must fit in the 16 bits of a binary header. In parentheses: the module beside this one with its fields and bodies.

#: Where they are.
OURS: Final = range(29_001, 29_100)

#: Bounds of all queues of some topics at one log position (``position``).
HMQ_POSITION: Final = 29_001
#: A page of undecided transactions (``operators``).
HMQ_TRANSACTIONS: Final = 29_002
#: The history of one transaction (``operators``).
HMQ_STORY: Final = 29_003
#: An operator's verdict on one transaction (``operators``).
HMQ_RESOLVE: Final = 29_004
#: Which of the named transactions are undecided (``operators``).
HMQ_UNDECIDED: Final = 29_005
#: Check one transaction now (``operators``).
HMQ_ASK: Final = 29_006
#: Read or change limits and policy of a producer group (``producer_groups``).
HMQ_PRODUCER: Final = 29_007
#: Statistics of producer groups (``producer_groups``).
HMQ_STATS: Final = 29_008
#: Fetch checks of a producer group with a long poll (``check_polls``).
HMQ_POLL_CHECKS: Final = 29_009
#: Check parked transactions of a producer group now (``operators``).
HMQ_ASK_PARKED: Final = 29_010
#: How many messages of a queue fit into a number of bytes (``fitting``).
HMQ_FITTING: Final = 29_011
#: Send a half batch: many half messages for one queue (``half_batches``).
HMQ_PREPARE_BATCH: Final = 29_012
#: Decide which half batches of a query's batch become visible (``half_batches``).
HMQ_DECIDE: Final = 29_013
#: Whether a query's batch is decided, and what a half batch for this broker must contain (``half_batches``).
HMQ_DECISION: Final = 29_014
#: Stored messages of one queue with their queue entries, for readers of whole queues (``raw_read``).
HMQ_RAW_READ: Final = 29_015
#: Rows of the transaction table with the records that name their transactions, for readers of the whole table (``table_read``).
HMQ_TABLE_READ: Final = 29_016
#: List the queries that the broker knows, or forget one (``queries``).
HMQ_QUERIES: Final = 29_017
HMQ_FORGET_QUERY: Final = 29_018
#: Take the next epoch of a coordinator; list the coordinators that the broker knows, or forget one (``coordinators``).
HMQ_TAKE_EPOCH: Final = 29_019
HMQ_COORDINATORS: Final = 29_020
HMQ_FORGET_COORDINATOR: Final = 29_021
#: Verdicts compared with markers, and findings; see ``comparisons``.
HMQ_COMPARISONS: Final = 29_022
HMQ_COMPARED: Final = 29_023
HMQ_DAMAGED: Final = 29_024
HMQ_FORGET_DAMAGE: Final = 29_025
#: Roll back a transaction that nobody prepared, or say what it is (``fence``).
HMQ_FENCE: Final = 29_026
#: Say who this connection is; make or change a user, list users, remove one (``users``).
HMQ_LOGIN: Final = 29_027
HMQ_SET_USER: Final = 29_028
HMQ_USERS: Final = 29_029
HMQ_REMOVE_USER: Final = 29_030
#: The settings of the broker, with their sources (``configuration``).
HMQ_SETTINGS: Final = 29_031
#: List connections, or close those of a client (``clients``).
HMQ_CLIENTS: Final = 29_032
HMQ_KICK_CLIENT: Final = 29_033
#: Begin a backup, read bytes of the log for it, end it (``backup``).
HMQ_BACKUP_BEGIN: Final = 29_034
HMQ_BACKUP_READ: Final = 29_035
HMQ_BACKUP_END: Final = 29_036
#: Give a setting of the broker another value while it runs (``configuration``).
HMQ_SET_SETTING: Final = 29_037


class ResponseCode(IntEnum):
    """Response codes (RocketMQ ``ResponseCode`` and ``RemotingSysResponseCode``)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    #: halfmq only: a later process of the coordinator has begun.
    SUPERSEDED = 29_100


#: ``LanguageCode`` by its number in a binary header.
LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}
LANGUAGE_OTHER: Final = "OTHER"
#: Language of halfmq in its frames; all peers know it.
LANGUAGE_OURS: Final = "PYTHON"

#: ``MQVersion`` ordinals. The version of a peer determines some responses.
V3_4_9: Final = 121
#: First version that accepts standard JSON with quoted numeric keys in routes.
V4_9_4: Final = 401
V4_9_8: Final = 409
#: Later clients support GO_AWAY (1500): they reconnect and retry once.
V5_3_1: Final = 475
#: Version of halfmq in its frames: the release whose behaviour it follows (responds in the serialisation of the request).
VERSION_OURS: Final = V4_9_8

#: ``flag`` of a header.
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2


class PullFlag(IntFlag):
    """``sysFlag`` of a pull request (RocketMQ ``PullSysFlag``)."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE = 16


#: Ext fields of halfmq; RocketMQ ignores them.
EXT_VERSION: Final = "HMQ_VERSION"
EXT_TX_ID: Final = "HMQ_TX_ID"
EXT_VERDICT: Final = "HMQ_VERDICT"
EXT_POSITION: Final = "HMQ_POSITION"
EXT_DURABILITY: Final = "HMQ_DURABILITY"
EXT_REPEATED: Final = "HMQ_REPEATED"
#: In a response with code 1: "true" if files of the store are damaged or cannot be read, so that the same request will fail again.
EXT_DAMAGED: Final = "HMQ_DAMAGED"
#: In a response to HEART_BEAT: from which other member of a consumer group the subscription differs.
EXT_CONFLICT: Final = "HMQ_CONFLICT"
#: In CONSUMER_SEND_MSG_BACK: the exception with which the attempt failed.
EXT_FAILURE: Final = "HMQ_FAILURE"
#: In CONSUMER_SEND_MSG_BACK that makes a dead letter: how often its consumer has handled the message without handing it back.
EXT_ATTEMPT: Final = "HMQ_ATTEMPT"
#: In CONSUMER_SEND_MSG_BACK: the delay of the next attempt, ms. A broker that does not know it takes the standard level beside it.
EXT_DELAY_MS: Final = "HMQ_DELAY_MS"
#: In CONSUMER_SEND_MSG_BACK: "true" if its sender does not consume the message's topic, so that nobody has attempted to handle it.
EXT_NOT_CONSUMED: Final = "HMQ_NOT_CONSUMED"
#: In an END_TRANSACTION that answers a check: "marker" if the outcome is from the marker table, not from application code.
EXT_DECIDED_BY: Final = "HMQ_DECIDED_BY"
DECIDED_BY_MARKER: Final = "marker"
#: In an END_TRANSACTION of a coordinator: which one, in which epoch (``model.coordinator``).
EXT_COORDINATOR: Final = "HMQ_COORDINATOR"
#: In a send request: "true" if an earlier attempt got no response, so that the message may already be stored.
EXT_SENT_AGAIN: Final = "HMQ_SENT_AGAIN"


_NAMES: Final = {value: name for name, value in list(globals().items()) if name.startswith("HMQ_")}


def response_name(code: int) -> str:
    """The name of a response code."""
    return ResponseCode(code).name if code in ResponseCode._value2member_map_ else str(code)


def code_name(code: int) -> str:
    """The name of a request code."""
    return _NAMES.get(code) or (RequestCode(code).name if code in RequestCode._value2member_map_ else str(code))
