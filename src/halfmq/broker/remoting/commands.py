"""The commands that this broker serves: for each request code its handler, what it does, to what, and with which fields.

``bind`` makes the handlers, and the gateway puts before each what its row demands. So whatever applies to requests by their code is a
column of ``Command`` and a line in ``Gateway.bind``, and no other module lists codes. A new command is a row here and its handler in a
module of its own. Who may send a command: see ``Access``. Decision 0058 bounds the time of each.
"""

import sys
from typing import Final

from msgspec import Struct

from halfmq.broker.remoting import administration as rules
from halfmq.broker.remoting.admin_stats import AdminStats
from halfmq.broker.remoting.checks import CheckPollCommands
from halfmq.broker.remoting.client_calls import ClientCommands
from halfmq.broker.remoting.coordinators import CoordinatorCommands
from halfmq.broker.remoting.gateway import Command
from halfmq.broker.remoting.half_batches import HalfBatchCommands
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.remoting.lookups import Lookups
from halfmq.broker.remoting.members import MemberRequests
from halfmq.broker.remoting.name_service import NameService
from halfmq.broker.remoting.operators import Operators
from halfmq.broker.remoting.producer_groups import ProducerGroupCommands
from halfmq.broker.remoting.pulls import PullHandlers
from halfmq.broker.remoting.raw_reads import RawReadHandlers
from halfmq.broker.remoting.request_reply import RequestReply
from halfmq.broker.remoting.sends import SendCommands
from halfmq.broker.remoting.table_reads import TableReadHandlers
from halfmq.broker.services.access import IN_BODY, Access, Action, Named, Resource
from halfmq.model.text_fields import PageFields
from halfmq.wire.remoting import (
    check_polls,
    codes,
    coordinators,
    half_batches,
    operators,
    position,
    producer_groups,
    raw_read,
    table_read,
)
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.fields import (
    FIELDS_OF_COMMAND,
    CreateTopicFields,
    DeleteGroupFields,
    KeyFields,
    SettingFields,
    TopicFields,
)

_TOPIC: Final = Named(Resource.TOPIC, ("topic",))
_GROUP: Final = Named(Resource.GROUP, ("group",))
_PRODUCERS: Final = Named(Resource.GROUP, ("producer_group",))
_CONSUMERS: Final = Named(Resource.GROUP, ("consumer_group",))
#: In what operators set of a group.
_SETTINGS: Final = Named(Resource.GROUP, ("group_name",))
_MESSAGE: Final = Named(Resource.MESSAGE, ("offset",))
_TRANSACTION: Final = Named(Resource.TRANSACTION, ("group", "tx_id"))
_QUERY: Final = Named(Resource.QUERY, ("query_topic", "query"))
_COORDINATOR: Final = Named(Resource.COORDINATOR, ("group", "coordinator"))
#: Their bodies name both.
_BODY: Final = (Named(Resource.GROUP, IN_BODY), Named(Resource.TOPIC, IN_BODY))

_READ: Final = Access(Action.READ)
_SEND: Final = Access(Action.SEND).of(_TOPIC, _GROUP)
_CONSUME: Final = Access(Action.CONSUME)
_PULL: Final = _CONSUME.of(_TOPIC, _GROUP)
_JOIN: Final = Access(Action.JOIN)
_DECIDE: Final = Access(Action.DECIDE)
_OPERATE: Final = Access(Action.OPERATE)

COMMANDS: Final[dict[int, Command]] = {
    # --- messages and verdicts
    RequestCode.SEND_MESSAGE: Command(SendCommands.send, _SEND, of_clients=True),
    RequestCode.SEND_MESSAGE_V2: Command(SendCommands.send, _SEND, of_clients=True),
    RequestCode.SEND_BATCH_MESSAGE: Command(SendCommands.send_batch, _SEND, of_clients=True),
    RequestCode.SEND_REPLY_MESSAGE: Command(RequestReply.reply, _SEND),
    RequestCode.SEND_REPLY_MESSAGE_V2: Command(RequestReply.reply, _SEND),
    RequestCode.END_TRANSACTION: Command(
        SendCommands.end,
        _DECIDE.of(
            Named(Resource.TRANSACTION, ("producer_group", "msg_id", "tx_id")),
            Named(Resource.COORDINATOR, ("producer_group", "coordinator")),
        ),
        while_draining=True,
    ),
    RequestCode.PULL_MESSAGE: Command(PullHandlers.pull, _PULL, of_clients=True),
    RequestCode.LITE_PULL_MESSAGE: Command(PullHandlers.pull, _PULL, of_clients=True),
    RequestCode.CONSUMER_SEND_MSG_BACK: Command(SendCommands.send_back, _CONSUME.of(_GROUP, _MESSAGE), of_clients=True),
    # --- members
    RequestCode.HEART_BEAT: Command(MemberRequests.heartbeat, _JOIN.of(*_BODY), of_clients=True),
    RequestCode.UNREGISTER_CLIENT: Command(
        MemberRequests.unregister, _JOIN.of(_PRODUCERS, _CONSUMERS), while_draining=True
    ),
    RequestCode.LOCK_BATCH_MQ: Command(MemberRequests.lock, _CONSUME.of(*_BODY)),
    RequestCode.UNLOCK_BATCH_MQ: Command(MemberRequests.unlock, _CONSUME.of(*_BODY)),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Command(MemberRequests.consumer_list, _READ.of(_CONSUMERS)),
    RequestCode.CHECK_CLIENT_CONFIG: Command(MemberRequests.check_config, _READ.of(*_BODY)),
    RequestCode.QUERY_ASSIGNMENT: Command(MemberRequests.assignment, _READ.of(*_BODY)),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Command(
        MemberRequests.set_mode, _OPERATE.of(*_BODY), rules=rules.SET_MESSAGE_REQUEST_MODE
    ),
    # --- offsets, and single messages. 33 and 36 name an offset of the log, and its topic only if the client wants to.
    RequestCode.QUERY_CONSUMER_OFFSET: Command(Lookups.consumer_offset, _READ.of(_CONSUMERS, _TOPIC)),
    RequestCode.UPDATE_CONSUMER_OFFSET: Command(
        Lookups.commit_offset, _CONSUME.of(_CONSUMERS, _TOPIC), rules=rules.UPDATE_CONSUMER_OFFSET
    ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Command(Lookups.search, _READ.of(_TOPIC)),
    RequestCode.GET_MAX_OFFSET: Command(Lookups.max_offset, _READ.of(_TOPIC)),
    RequestCode.GET_MIN_OFFSET: Command(Lookups.min_offset, _READ.of(_TOPIC)),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Command(Lookups.earliest, _READ.of(_TOPIC)),
    RequestCode.VIEW_MESSAGE_BY_ID: Command(Lookups.view, _READ.of(_MESSAGE, _TOPIC)),
    RequestCode.QUERY_MESSAGE: Command(Lookups.query, _READ.of(_TOPIC)),
    # --- topics and groups
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Command(NameService.route, _READ.of(_TOPIC)),
    RequestCode.GET_BROKER_CLUSTER_INFO: Command(NameService.cluster, _READ),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Command(NameService.topics, _READ),
    RequestCode.GET_KV_CONFIG: Command(NameService.get_setting, _READ),
    RequestCode.PUT_KV_CONFIG: Command(
        NameService.put_setting, _OPERATE, fields=SettingFields, rules=rules.PUT_KV_CONFIG
    ),
    RequestCode.DELETE_KV_CONFIG: Command(
        NameService.delete_setting, _OPERATE, fields=KeyFields, rules=rules.DELETE_KV_CONFIG
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC: Command(
        NameService.set_topic, _OPERATE.of(_TOPIC), fields=CreateTopicFields, rules=rules.UPDATE_AND_CREATE_TOPIC
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Command(
        NameService.delete_topic, _OPERATE.of(_TOPIC), fields=TopicFields, rules=rules.DELETE_TOPIC_IN_BROKER
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Command(
        NameService.forget_topic, _OPERATE.of(_TOPIC), fields=TopicFields, rules=rules.DELETE_TOPIC_IN_NAMESRV
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Command(
        NameService.set_group,
        _OPERATE.of(_SETTINGS),
        fields=rules.SubscriptionGroupFields,
        rules=rules.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Command(
        NameService.delete_group, _OPERATE.of(_SETTINGS), fields=DeleteGroupFields, rules=rules.DELETE_SUBSCRIPTIONGROUP
    ),
    RequestCode.GET_TOPIC_CONFIG: Command(AdminStats.topic_config, _READ.of(_TOPIC)),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Command(AdminStats.group_config, _READ.of(_GROUP)),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Command(AdminStats.group_configs, _READ),
    # --- statistics
    RequestCode.GET_BROKER_RUNTIME_INFO: Command(AdminStats.runtime_info, _READ),
    RequestCode.GET_TOPIC_STATS_INFO: Command(AdminStats.topic_stats, _READ.of(_TOPIC)),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Command(AdminStats.consumers, _READ.of(_CONSUMERS)),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Command(AdminStats.producers, _READ.of(_PRODUCERS)),
    RequestCode.GET_CONSUME_STATS: Command(
        AdminStats.consume_stats, _READ.of(_CONSUMERS, _TOPIC, Named(Resource.TOPIC, ("topic_list",)))
    ),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Command(AdminStats.consumed_by, _READ.of(_TOPIC)),
    RequestCode.VIEW_BROKER_STATS_DATA: Command(AdminStats.counted, _READ),
    RequestCode.GET_BROKER_CONSUME_STATS: Command(AdminStats.broker_consume_stats, _READ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Command(ClientCommands.running_info, _READ.of(_CONSUMERS)),
    # --- halfmq's own
    codes.HMQ_POSITION: Command(
        Lookups.position, _READ.of(Named(Resource.TOPIC, ("topics",))), fields=position.PositionFields
    ),
    codes.HMQ_TRANSACTIONS: Command(
        Operators.transactions, _READ.of(_GROUP, _COORDINATOR), fields=operators.TransactionsFields
    ),
    codes.HMQ_STORY: Command(Operators.story, _READ.of(_TRANSACTION), fields=operators.TransactionFields),
    codes.HMQ_RESOLVE: Command(
        Operators.resolve, _OPERATE.of(_TRANSACTION), fields=operators.ResolveFields, rules=rules.RESOLVE
    ),
    codes.HMQ_UNDECIDED: Command(
        Operators.undecided, _READ.of(_GROUP, Named(Resource.TRANSACTION, IN_BODY)), fields=operators.GroupFields
    ),
    codes.HMQ_ASK: Command(
        Operators.ask, _OPERATE.of(_TRANSACTION), fields=operators.TransactionFields, rules=rules.ASK
    ),
    codes.HMQ_PRODUCER: Command(
        ProducerGroupCommands.limits, _OPERATE.of(_GROUP), fields=producer_groups.ProducerFields, rules=rules.PRODUCER
    ),
    codes.HMQ_STATS: Command(ProducerGroupCommands.stats, _READ.of(_GROUP), fields=operators.GroupPageFields),
    codes.HMQ_POLL_CHECKS: Command(
        CheckPollCommands.poll, _JOIN.of(_GROUP), fields=check_polls.PollFields, of_clients=True
    ),
    codes.HMQ_ASK_PARKED: Command(
        Operators.ask_parked, _OPERATE.of(_GROUP), fields=operators.AskParkedFields, rules=rules.ASK_PARKED
    ),
    codes.HMQ_FITTING: Command(Lookups.fitting, _READ.of(_TOPIC), fields=position.FittingFields),
    codes.HMQ_PREPARE_BATCH: Command(
        HalfBatchCommands.prepare,
        _SEND.of(_TOPIC, _GROUP, _TRANSACTION, _QUERY),
        fields=half_batches.PrepareFields,
        of_clients=True,
    ),
    codes.HMQ_DECIDE: Command(HalfBatchCommands.decide, _DECIDE.of(_GROUP, _QUERY), fields=half_batches.DecideFields),
    codes.HMQ_DECISION: Command(HalfBatchCommands.decision, _READ.of(_QUERY), fields=half_batches.DecisionFields),
    codes.HMQ_RAW_READ: Command(RawReadHandlers.read, _READ.of(_TOPIC, _GROUP), fields=raw_read.RawReadFields),
    codes.HMQ_TABLE_READ: Command(TableReadHandlers.read, _READ, fields=table_read.TableReadFields),
    codes.HMQ_QUERIES: Command(HalfBatchCommands.queries, _READ, fields=PageFields),
    codes.HMQ_FORGET_QUERY: Command(
        HalfBatchCommands.forget_query,
        _OPERATE.of(_QUERY),
        fields=half_batches.ForgetQueryFields,
        rules=rules.FORGET_QUERY,
    ),
    codes.HMQ_TAKE_EPOCH: Command(
        CoordinatorCommands.take, _JOIN.of(_COORDINATOR), fields=coordinators.TakeEpochFields
    ),
    codes.HMQ_COORDINATORS: Command(CoordinatorCommands.list, _READ, fields=PageFields),
    codes.HMQ_FORGET_COORDINATOR: Command(
        CoordinatorCommands.forget,
        _OPERATE.of(_COORDINATOR),
        fields=coordinators.ForgetCoordinatorFields,
        rules=rules.FORGET_COORDINATOR,
    ),
    codes.HMQ_COMPARISONS: Command(Operators.awaited, _READ.of(_GROUP), fields=operators.GroupPageFields),
    codes.HMQ_COMPARED: Command(Operators.compared, _DECIDE.of(_TRANSACTION), fields=operators.ComparedFields),
    codes.HMQ_DAMAGED: Command(Operators.damaged, _READ, fields=PageFields),
    codes.HMQ_FORGET_DAMAGE: Command(
        Operators.forget_damage,
        _OPERATE.of(_TRANSACTION),
        fields=operators.ForgetDamageFields,
        rules=rules.FORGET_DAMAGE,
    ),
    codes.HMQ_FENCE: Command(
        CoordinatorCommands.fence, _DECIDE.of(_TRANSACTION), fields=coordinators.FenceFields, of_clients=True
    ),
}


def fields_of(code: int) -> type[Struct] | None:
    """The struct of the command's fields; None: it has none, or they are in its body."""
    return COMMANDS[code].fields or FIELDS_OF_COMMAND.get(code)


#: Structs with which requests are decoded. What has rules is read after them, since they also look at unknown fields.
DECODED: Final[dict[int, type[Struct]]] = {
    code: kind
    for code, command in COMMANDS.items()
    if (kind := FIELDS_OF_COMMAND.get(code) or (None if command.rules else command.fields)) is not None
}


def bind(parts: Parts) -> dict[type[Handlers], Handlers]:
    """Make the handlers, and let the gateway serve every command of the table."""
    made: dict[type[Handlers], Handlers] = {}
    for code, command in COMMANDS.items():
        kind = _class_of(command)
        if kind not in made:
            made[kind] = kind(parts)
        parts.gateway.bind(code, command, DECODED.get(code), made[kind].handler(command.handler.__name__))
    return made


def _class_of(command: Command) -> type[Handlers]:
    """The class that has the method of the row."""
    kind: type[Handlers] = getattr(
        sys.modules[command.handler.__module__], command.handler.__qualname__.partition(".")[0]
    )
    return kind
