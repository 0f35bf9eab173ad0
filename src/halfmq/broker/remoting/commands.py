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
from halfmq.broker.remoting.backups import BackupCommands
from halfmq.broker.remoting.checks import CheckPollCommands
from halfmq.broker.remoting.client_calls import ClientCommands
from halfmq.broker.remoting.clients import ClientList
from halfmq.broker.remoting.configuration import ConfigurationCommands
from halfmq.broker.remoting.coordinators import CoordinatorCommands
from halfmq.broker.remoting.gateway import Command
from halfmq.broker.remoting.half_batches import HalfBatchCommands
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.remoting.lookups import Lookups
from halfmq.broker.remoting.members import MemberRequests
from halfmq.broker.remoting.name_service import NameService
from halfmq.broker.remoting.names_in_bodies import (
    IN_ASSIGNMENT,
    IN_CONFIG_CHECK,
    IN_HEARTBEAT,
    IN_LOCK,
    IN_MODE,
)
from halfmq.broker.remoting.operators import Operators
from halfmq.broker.remoting.producer_groups import ProducerGroupCommands
from halfmq.broker.remoting.pulls import PullHandlers
from halfmq.broker.remoting.raw_reads import RawReadHandlers
from halfmq.broker.remoting.request_reply import RequestReply
from halfmq.broker.remoting.sends import SendCommands
from halfmq.broker.remoting.table_reads import TableReadHandlers
from halfmq.broker.remoting.users import UserCommands
from halfmq.broker.services.access import CLIENT_INNER_PRODUCER, Access, InField, OnBroker, WhenRead
from halfmq.model.text_fields import PageFields
from halfmq.model.users import Right, Scope
from halfmq.wire.remoting import (
    backup,
    check_polls,
    clients,
    codes,
    configuration,
    coordinators,
    half_batches,
    operators,
    position,
    producer_groups,
    raw_read,
    table_read,
    users,
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


def _on(right: Right, scope: Scope, *fields: str, all_if_empty: bool = True) -> Access:
    return Access(tuple(InField(right, scope, field, all_if_empty=all_if_empty) for field in fields))


def _all(*accesses: Access) -> Access:
    """What each of them needs."""
    return Access(tuple(need for access in accesses for need in access.needs))


def _broker(right: Right) -> Access:
    return Access((OnBroker(right),))


#: Java's consumers send back in a group that they all have, to a topic of their own group. For halves see ``Sends.send``.
_SEND: Final = Access((
    InField(Right.SEND, Scope.TOPIC, "topic"), InField(Right.SEND, Scope.GROUP, "group", open_name=CLIENT_INNER_PRODUCER),
))  # fmt: skip
#: A query is its topic's: who names it may supersede what others prepare for it.
_PREPARE: Final = Access((
    InField(Right.SEND, Scope.TOPIC, "topic"), InField(Right.SEND, Scope.GROUP, "group"),
    InField(Right.DECIDE, Scope.GROUP, "group", only_with="query"), InField(Right.DECIDE, Scope.TOPIC, "query_topic", only_with="query"),
))  # fmt: skip
#: Of a group's own producers: also its verdicts, its checks, its coordinators and participants.
_OF_PRODUCERS: Final = _on(Right.SEND, Scope.GROUP, "group")
_CONSUME: Final = _all(_on(Right.CONSUME, Scope.TOPIC, "topic"), _on(Right.CONSUME, Scope.GROUP, "group"))
_OFFSETS: Final = _all(_on(Right.CONSUME, Scope.TOPIC, "topic"), _on(Right.CONSUME, Scope.GROUP, "consumer_group"))
_DESCRIBE_TOPIC: Final = _on(Right.DESCRIBE, Scope.TOPIC, "topic")
_DESCRIBE_GROUP: Final = _on(Right.DESCRIBE, Scope.GROUP, "group")
_DESCRIBE_CONSUMERS: Final = _on(Right.DESCRIBE, Scope.GROUP, "consumer_group")
_DESCRIBE: Final = _broker(Right.DESCRIBE)
#: Everybody who logged in.
_ANYBODY: Final = Access()
_SETTLE: Final = _on(Right.SETTLE, Scope.GROUP, "group")
_ADMINISTER: Final = _broker(Right.ADMINISTER)
#: A backup is one action, and takes one read for each MiB of the log.
_CONTINUE_BACKUP: Final = Access(_ADMINISTER.needs, continues=True)
_ADMINISTER_TOPIC: Final = _on(Right.ADMINISTER, Scope.TOPIC, "topic")
_ADMINISTER_GROUP: Final = _on(Right.ADMINISTER, Scope.GROUP, "group")
#: In what operators set of a group.
_ADMINISTER_SETTINGS: Final = _on(Right.ADMINISTER, Scope.GROUP, "group_name")

COMMANDS: Final[dict[int, Command]] = {
    # --- messages and verdicts
    RequestCode.SEND_MESSAGE: Command(SendCommands.send, _SEND, of_clients=True),
    RequestCode.SEND_MESSAGE_V2: Command(SendCommands.send, _SEND, of_clients=True),
    RequestCode.SEND_BATCH_MESSAGE: Command(SendCommands.send_batch, _SEND, of_clients=True),
    RequestCode.SEND_REPLY_MESSAGE: Command(RequestReply.reply, _OF_PRODUCERS),
    RequestCode.SEND_REPLY_MESSAGE_V2: Command(RequestReply.reply, _OF_PRODUCERS),
    RequestCode.END_TRANSACTION: Command(
        SendCommands.end,
        _on(Right.SEND, Scope.GROUP, "producer_group"),
        while_draining=True,
    ),
    RequestCode.PULL_MESSAGE: Command(PullHandlers.pull, _CONSUME, of_clients=True),
    RequestCode.LITE_PULL_MESSAGE: Command(PullHandlers.pull, _CONSUME, of_clients=True),
    RequestCode.CONSUMER_SEND_MSG_BACK: Command(
        SendCommands.send_back,
        _all(_on(Right.CONSUME, Scope.GROUP, "group"), Access((WhenRead(Right.CONSUME),))),
        of_clients=True,
    ),
    # --- members
    RequestCode.HEART_BEAT: Command(MemberRequests.heartbeat, Access((IN_HEARTBEAT,)), of_clients=True),
    RequestCode.UNREGISTER_CLIENT: Command(
        MemberRequests.unregister,
        _all(
            Access(
                (
                    InField(
                        Right.SEND, Scope.GROUP, "producer_group", all_if_empty=False, open_name=CLIENT_INNER_PRODUCER
                    ),
                )
            ),
            _on(Right.CONSUME, Scope.GROUP, "consumer_group", all_if_empty=False),
        ),
        while_draining=True,
    ),
    RequestCode.LOCK_BATCH_MQ: Command(MemberRequests.lock, Access((IN_LOCK,))),
    RequestCode.UNLOCK_BATCH_MQ: Command(MemberRequests.unlock, Access((IN_LOCK,))),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Command(MemberRequests.consumer_list, _DESCRIBE_CONSUMERS),
    RequestCode.CHECK_CLIENT_CONFIG: Command(MemberRequests.check_config, Access((IN_CONFIG_CHECK,))),
    RequestCode.QUERY_ASSIGNMENT: Command(MemberRequests.assignment, Access((IN_ASSIGNMENT,))),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Command(
        MemberRequests.set_mode, Access((IN_MODE,)), rules=rules.SET_MESSAGE_REQUEST_MODE
    ),
    # --- offsets, and single messages. 33 and 36 name an offset of the log, and its topic only if the client wants to.
    RequestCode.QUERY_CONSUMER_OFFSET: Command(Lookups.consumer_offset, _OFFSETS),
    RequestCode.UPDATE_CONSUMER_OFFSET: Command(Lookups.commit_offset, _OFFSETS, rules=rules.UPDATE_CONSUMER_OFFSET),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Command(Lookups.search, _DESCRIBE_TOPIC),
    RequestCode.GET_MAX_OFFSET: Command(Lookups.max_offset, _DESCRIBE_TOPIC),
    RequestCode.GET_MIN_OFFSET: Command(Lookups.min_offset, _DESCRIBE_TOPIC),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Command(Lookups.earliest, _DESCRIBE_TOPIC),
    RequestCode.VIEW_MESSAGE_BY_ID: Command(Lookups.view, Access((WhenRead(Right.CONSUME),))),
    RequestCode.QUERY_MESSAGE: Command(Lookups.query, _on(Right.CONSUME, Scope.TOPIC, "topic")),
    # --- topics and groups
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Command(NameService.route, _DESCRIBE_TOPIC),
    RequestCode.GET_BROKER_CLUSTER_INFO: Command(NameService.cluster, _ANYBODY),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Command(NameService.topics, _DESCRIBE),
    RequestCode.GET_KV_CONFIG: Command(NameService.get_setting, _DESCRIBE),
    RequestCode.PUT_KV_CONFIG: Command(
        NameService.put_setting, _ADMINISTER, fields=SettingFields, rules=rules.PUT_KV_CONFIG
    ),
    RequestCode.DELETE_KV_CONFIG: Command(
        NameService.delete_setting, _ADMINISTER, fields=KeyFields, rules=rules.DELETE_KV_CONFIG
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC: Command(
        NameService.set_topic, _ADMINISTER_TOPIC, fields=CreateTopicFields, rules=rules.UPDATE_AND_CREATE_TOPIC
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Command(
        NameService.delete_topic, _ADMINISTER_TOPIC, fields=TopicFields, rules=rules.DELETE_TOPIC_IN_BROKER
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Command(
        NameService.forget_topic, _ADMINISTER_TOPIC, fields=TopicFields, rules=rules.DELETE_TOPIC_IN_NAMESRV
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Command(
        NameService.set_group,
        _ADMINISTER_SETTINGS,
        fields=rules.SubscriptionGroupFields,
        rules=rules.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Command(
        NameService.delete_group, _ADMINISTER_SETTINGS, fields=DeleteGroupFields, rules=rules.DELETE_SUBSCRIPTIONGROUP
    ),
    RequestCode.GET_TOPIC_CONFIG: Command(AdminStats.topic_config, _DESCRIBE_TOPIC),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Command(AdminStats.group_config, _DESCRIBE_GROUP),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Command(AdminStats.group_configs, _DESCRIBE),
    # --- statistics
    RequestCode.GET_BROKER_RUNTIME_INFO: Command(AdminStats.runtime_info, _DESCRIBE),
    RequestCode.GET_TOPIC_STATS_INFO: Command(AdminStats.topic_stats, _DESCRIBE_TOPIC),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Command(AdminStats.consumers, _DESCRIBE_CONSUMERS),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Command(
        AdminStats.producers, _on(Right.DESCRIBE, Scope.GROUP, "producer_group")
    ),
    RequestCode.GET_CONSUME_STATS: Command(AdminStats.consume_stats, _DESCRIBE_CONSUMERS),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Command(AdminStats.consumed_by, _DESCRIBE_TOPIC),
    RequestCode.VIEW_BROKER_STATS_DATA: Command(AdminStats.counted, _DESCRIBE),
    RequestCode.GET_BROKER_CONSUME_STATS: Command(AdminStats.broker_consume_stats, _DESCRIBE),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Command(
        ClientCommands.running_info, _on(Right.ADMINISTER, Scope.GROUP, "consumer_group")
    ),
    # --- halfmq's own
    codes.HMQ_POSITION: Command(
        Lookups.position,
        # Without topics it asks which store this is and where its log ends, as everybody does who reads tables or looks for topics.
        Access((InField(Right.DESCRIBE, Scope.TOPIC, "topics", ",", all_if_empty=False),)),
        fields=position.PositionFields,
    ),
    codes.HMQ_TRANSACTIONS: Command(Operators.transactions, _DESCRIBE_GROUP, fields=operators.TransactionsFields),
    codes.HMQ_STORY: Command(Operators.story, _DESCRIBE_GROUP, fields=operators.TransactionFields),
    codes.HMQ_RESOLVE: Command(Operators.resolve, _SETTLE, fields=operators.ResolveFields, rules=rules.RESOLVE),
    codes.HMQ_UNDECIDED: Command(Operators.undecided, _DESCRIBE_GROUP, fields=operators.GroupFields),
    codes.HMQ_ASK: Command(Operators.ask, _SETTLE, fields=operators.TransactionFields, rules=rules.ASK),
    codes.HMQ_PRODUCER: Command(
        ProducerGroupCommands.limits, _ADMINISTER_GROUP, fields=producer_groups.ProducerFields, rules=rules.PRODUCER
    ),
    codes.HMQ_STATS: Command(ProducerGroupCommands.stats, _DESCRIBE_GROUP, fields=operators.GroupPageFields),
    codes.HMQ_POLL_CHECKS: Command(
        CheckPollCommands.poll, _OF_PRODUCERS, fields=check_polls.PollFields, of_clients=True
    ),
    codes.HMQ_ASK_PARKED: Command(
        Operators.ask_parked, _SETTLE, fields=operators.AskParkedFields, rules=rules.ASK_PARKED
    ),
    codes.HMQ_FITTING: Command(Lookups.fitting, _DESCRIBE_TOPIC, fields=position.FittingFields),
    codes.HMQ_PREPARE_BATCH: Command(
        HalfBatchCommands.prepare,
        _PREPARE,
        fields=half_batches.PrepareFields,
        of_clients=True,
    ),
    codes.HMQ_DECIDE: Command(
        HalfBatchCommands.decide,
        _all(_on(Right.DECIDE, Scope.GROUP, "group"), _on(Right.DECIDE, Scope.TOPIC, "query_topic")),
        fields=half_batches.DecideFields,
    ),
    codes.HMQ_DECISION: Command(
        HalfBatchCommands.decision,
        # Without a query it asks about this broker, as every client does.
        Access((InField(Right.DESCRIBE, Scope.TOPIC, "query_topic", only_with="query"),)),
        fields=half_batches.DecisionFields,
    ),
    codes.HMQ_RAW_READ: Command(
        RawReadHandlers.read,
        _all(_on(Right.CONSUME, Scope.TOPIC, "topic"), _on(Right.CONSUME, Scope.GROUP, "group", all_if_empty=False)),
        fields=raw_read.RawReadFields,
    ),
    codes.HMQ_TABLE_READ: Command(
        TableReadHandlers.read, _broker(Right.READ_UNDECIDED), fields=table_read.TableReadFields
    ),
    codes.HMQ_QUERIES: Command(HalfBatchCommands.queries, _DESCRIBE, fields=PageFields),
    codes.HMQ_FORGET_QUERY: Command(
        HalfBatchCommands.forget_query,
        _on(Right.ADMINISTER, Scope.TOPIC, "query_topic"),
        fields=half_batches.ForgetQueryFields,
        rules=rules.FORGET_QUERY,
    ),
    codes.HMQ_TAKE_EPOCH: Command(CoordinatorCommands.take, _OF_PRODUCERS, fields=coordinators.TakeEpochFields),
    codes.HMQ_COORDINATORS: Command(CoordinatorCommands.list, _DESCRIBE, fields=PageFields),
    codes.HMQ_FORGET_COORDINATOR: Command(
        CoordinatorCommands.forget,
        _ADMINISTER_GROUP,
        fields=coordinators.ForgetCoordinatorFields,
        rules=rules.FORGET_COORDINATOR,
    ),
    codes.HMQ_COMPARISONS: Command(Operators.awaited, _OF_PRODUCERS, fields=operators.GroupPageFields),
    codes.HMQ_COMPARED: Command(Operators.compared, _OF_PRODUCERS, fields=operators.ComparedFields),
    codes.HMQ_DAMAGED: Command(Operators.damaged, _DESCRIBE, fields=PageFields),
    codes.HMQ_FORGET_DAMAGE: Command(
        Operators.forget_damage,
        _SETTLE,
        fields=operators.ForgetDamageFields,
        rules=rules.FORGET_DAMAGE,
    ),
    codes.HMQ_LOGIN: Command(UserCommands.login, _ANYBODY, fields=users.LoginFields, of_strangers=True),
    codes.HMQ_SET_USER: Command(UserCommands.set, _ADMINISTER),
    codes.HMQ_USERS: Command(UserCommands.list, _ADMINISTER, fields=PageFields),
    codes.HMQ_REMOVE_USER: Command(UserCommands.remove, _ADMINISTER, fields=users.RemoveUserFields),
    # It names files of the machine.
    codes.HMQ_SETTINGS: Command(ConfigurationCommands.show, _ADMINISTER),
    codes.HMQ_SET_SETTING: Command(
        ConfigurationCommands.set, _ADMINISTER, fields=configuration.SetSettingFields, rules=rules.SET_SETTING
    ),
    codes.HMQ_CLIENTS: Command(ClientList.list, _DESCRIBE, fields=PageFields),
    codes.HMQ_KICK_CLIENT: Command(
        ClientList.kick, _ADMINISTER, fields=clients.KickClientFields, rules=rules.KICK_CLIENT
    ),
    codes.HMQ_BACKUP_BEGIN: Command(BackupCommands.begin, _ADMINISTER, fields=backup.BackupBeginFields),
    codes.HMQ_BACKUP_READ: Command(BackupCommands.read, _CONTINUE_BACKUP, fields=backup.BackupReadFields),
    codes.HMQ_BACKUP_END: Command(BackupCommands.end, _CONTINUE_BACKUP),
    codes.HMQ_FENCE: Command(
        CoordinatorCommands.fence,
        # Without a transaction it asks where the log ends, before it has one.
        Access((InField(Right.SEND, Scope.GROUP, "group", only_with="tx_id"),)),
        fields=coordinators.FenceFields,
        of_clients=True,
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
        handler = made[kind].handler(command.handler.__name__)
        parts.gateway.bind(code, command, DECODED.get(code), handler, parts.sequencer.view)
    return made


def _class_of(command: Command) -> type[Handlers]:
    """The class that has the method of the row."""
    kind: type[Handlers] = getattr(
        sys.modules[command.handler.__module__], command.handler.__qualname__.partition(".")[0]
    )
    return kind
