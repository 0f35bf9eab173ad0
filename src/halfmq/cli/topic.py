"""``halfmq topic``: list, show, create, change and delete topics. Of halfmq's brokers and of Apache RocketMQ's."""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.cluster import Broker, Cluster, is_system
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Preview, Timeout, Url, Yes
from halfmq.wire.remoting.admin_reports import (
    QueueStats,
    TopicSettings,
    decode_groups,
    decode_topic_settings,
    decode_topic_stats,
)
from halfmq.wire.remoting.attributes import MESSAGE_TYPE
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.route import READ, WRITE

_COMMANDS: Final = Commands("halfmq topic")
app = _COMMANDS.group("List, show, create, change and delete topics.")
_fail = _COMMANDS.fail

#: Precedent: RocketMQ ``TopicConfig``'s default for topics that clients create is 4; `mqadmin updateTopic` takes 8.
_QUEUES: Final = 4


class Permission(StrEnum):
    """What clients may do with the queues of a topic."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"


class MessageType(StrEnum):
    """RocketMQ's types of topics. halfmq keeps and shows it, and accepts every message in each."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"


_BITS: Final = {Permission.READ_WRITE: READ | WRITE, Permission.READ: READ, Permission.WRITE: WRITE}

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
_Queues = Annotated[int | None, typer.Option(help="Number of queues, for reading and writing.", min=1, max=65_535)]
_Type = Annotated[
    MessageType | None,
    typer.Option("--type", help="Type of its messages, which RocketMQ 5 checks; others: any.", case_sensitive=False),
]
_Perm = Annotated[Permission | None, typer.Option("--permission", help="rw, or only r or w.")]
_Ordered = Annotated[
    bool | None, typer.Option("--ordered/--not-ordered", help="Whether the order within queues is kept when one fails.")
]


@app.command("list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Also topics of groups, and of RocketMQ itself.")] = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List topics with their queues and the number of stored messages; only names of those that your user may not have described."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        names = [name for name in cluster.topics() if every or not is_system(name)]
        rows: dict[str, dict[str, Any]] = {name: {"topic": name} for name in names}
        absent = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
        for broker in cluster.brokers():
            fields = [{"topic": name} for name in names]
            configs = list(cluster.each(broker, RequestCode.GET_TOPIC_CONFIG, fields, absent=absent))
            stats = list(cluster.each(broker, RequestCode.GET_TOPIC_STATS_INFO, fields, absent=absent))
            for name, config, stat in zip(names, configs, stats, strict=True):
                if config is None or stat is None:
                    continue  # not on this broker, deleted meanwhile, or the user may not see it
                with _COMMANDS.reported():
                    settings, queues = decode_topic_settings(config.body), decode_topic_stats(stat.body)
                row = rows[name]
                row["queues"] = row.get("queues", 0) + len(queues)
                row["messages"] = row.get("messages", 0) + sum(one.end - one.first for one in queues)
                row["permission"] = _permission_text(settings.permission)
                row["type"] = settings.message_type
    if as_json:
        output.document(msgspec.json.encode({"total": len(rows), "topics": [*rows.values()]}))
        return
    if rows:
        head = ("TOPIC", "QUEUES", "MESSAGES", "PERMISSION", "TYPE")
        columns = ("topic", "queues", "messages", "permission", "type")
        output.table(head, ([str(row.get(name, "")) or "-" for name in columns] for row in rows.values()))
    output.note(f"{len(rows)} topics")


@app.command()
def show(topic: _Topic, url: Url = URL, timeout: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """Show the settings of a topic, its queues, and the consumer groups that read it."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        brokers = cluster.brokers_of(topic)
        settings: dict[str, TopicSettings] = {}
        queues: list[QueueStats] = []
        groups: set[str] = set()
        for broker in brokers:
            settings[broker.name] = _settings(cluster, broker, topic)
            queues += cluster.read(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, decode_topic_stats)
            groups.update(_groups(cluster, broker, topic))
    if as_json:
        document = {
            "topic": topic,
            "brokers": {name: one._asdict() for name, one in settings.items()},
            "queues": [one._asdict() for one in queues],
            "groups": sorted(groups),
        }
        output.document(msgspec.json.encode(document))
        return
    for name, one in settings.items():
        output.say(f"topic {topic} on broker {name}: {_settings_text(one)}")
    output.table(
        ("BROKER", "QUEUE", "FIRST", "END", "MESSAGES"),
        ((one.broker, str(one.queue), str(one.first), str(one.end), str(one.end - one.first)) for one in queues),
    )
    output.say(f"read by: {', '.join(sorted(groups)) or 'no consumer group'}")


@app.command()
def create(
    topic: _Topic,
    queues: _Queues = None,
    type_: _Type = None,
    permission: _Perm = None,
    ordered: _Ordered = None,
    preview: Preview = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Create a topic on every broker, with 4 queues. Refused if it exists."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        if cluster.route(topic) is not None:
            _fail(f"topic {topic} exists: `halfmq topic set` changes it", ExitStatus.REFUSED)
        count = _QUEUES if queues is None else queues
        base = TopicSettings(topic, count, count, READ | WRITE, False, "")
        wanted = _changed(base, None, type_, permission, ordered)
        brokers = cluster.brokers()
        if not preview:
            for broker in brokers:
                _write(cluster, broker, wanted)
    _say_set(topic, {broker.name: (None, wanted) for broker in brokers}, preview, as_json)


@app.command("set")
def set_(
    topic: _Topic,
    queues: _Queues = None,
    type_: _Type = None,
    permission: _Perm = None,
    ordered: _Ordered = None,
    preview: Preview = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Change a topic on every broker that has it. What is not given stays.

    halfmq refuses to take away queues that have messages, which nobody could read then; Apache RocketMQ does not.
    """
    if queues is None and type_ is None and permission is None and ordered is None:
        _fail(f"nothing to change of topic {topic}: --queues, --type, --permission or --ordered", ExitStatus.USAGE)
    with Cluster(_COMMANDS, url, timeout) as cluster:
        changes: dict[str, tuple[TopicSettings | None, TopicSettings]] = {}
        for broker in cluster.brokers_of(topic):
            now = _settings(cluster, broker, topic)
            then = _changed(now, queues, type_, permission, ordered)
            changes[broker.name] = (now, then)
            if not preview and now != then:
                _write(cluster, broker, then)
    _say_set(topic, changes, preview, as_json)


@app.command()
def delete(
    topic: _Topic,
    preview: Preview = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete a topic with its messages and the offsets of its groups, on every broker. This cannot be undone."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        brokers = cluster.brokers_of(topic)
        messages, groups = 0, set[str]()
        for broker in brokers:
            stats = cluster.read(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, decode_topic_stats)
            messages += sum(one.end - one.first for one in stats)
            groups.update(_groups(cluster, broker, topic))
        read_by = f"read by {', '.join(sorted(groups))}" if groups else "read by no consumer group"
        output.note(f"topic {topic} has {messages} messages, {read_by}")
        if not preview:
            if not yes:
                _COMMANDS.require_typed(topic, "Type the name of the topic to delete it")
            for broker in brokers:
                cluster.ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, changes=True)
            cluster.ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
    if as_json:
        document = {"topic": topic, "messages": messages, "groups": sorted(groups), "deleted": not preview}
        output.document(msgspec.json.encode(document))
    else:
        output.say(f"topic {topic} would be deleted" if preview else f"topic {topic} is deleted")


# --- requests ---------------------------------------------------------------------------------------------------------


def _groups(cluster: Cluster, broker: Broker, topic: str) -> list[str]:
    return cluster.read(broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}, decode_groups)


def _settings(cluster: Cluster, broker: Broker, topic: str) -> TopicSettings:
    return cluster.read(broker, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, decode_topic_settings)


def _write(cluster: Cluster, broker: Broker, wanted: TopicSettings) -> None:
    attributes = f"+{MESSAGE_TYPE}={wanted.message_type}" if wanted.message_type else ""
    fields = {
        "topic": wanted.name,
        "defaultTopic": "TBW102",
        "readQueueNums": wanted.read_queues,
        "writeQueueNums": wanted.write_queues,
        "perm": wanted.permission,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": wanted.ordered,
        "attributes": attributes,
    }
    cluster.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, changes=True)


# --- settings ---------------------------------------------------------------------------------------------------------


def _changed(
    now: TopicSettings,
    queues: int | None,
    type_: MessageType | None,
    permission: Permission | None,
    ordered: bool | None,
) -> TopicSettings:
    then = now
    if queues is not None:
        then = then._replace(read_queues=queues, write_queues=queues)
    if type_ is not None:
        then = then._replace(message_type=type_.value)
    if permission is not None:
        then = then._replace(permission=_BITS[permission])
    if ordered is not None:
        then = then._replace(ordered=ordered)
    return then


def _permission_text(bits: int) -> str:
    return f"{'r' if bits & READ else ''}{'w' if bits & WRITE else ''}" or "-"


def _settings_text(one: TopicSettings) -> str:
    queues = str(one.read_queues)
    if one.read_queues != one.write_queues:
        queues = f"{one.read_queues} for reading, {one.write_queues} for writing"
    return ", ".join(
        (
            f"queues {queues}",
            f"permission {_permission_text(one.permission)}",
            f"type {one.message_type or '-'}",
            "ordered" if one.ordered else "not ordered",
        )
    )


def _say_set(
    topic: str, changes: dict[str, tuple[TopicSettings | None, TopicSettings]], preview: bool, as_json: bool
) -> None:
    if as_json:
        rows = {
            name: {"now": now._asdict() if now else None, "then": then._asdict()}
            for name, (now, then) in changes.items()
        }
        output.document(msgspec.json.encode({"topic": topic, "changed": not preview, "brokers": rows}))
        return
    for name, (now, then) in changes.items():
        if now is None:
            verb = "would be created" if preview else "is created"
            output.say(f"topic {topic} {verb} on broker {name}: {_settings_text(then)}")
        elif now == then:
            output.say(f"topic {topic} on broker {name} stays as it is: {_settings_text(now)}")
        else:
            output.say(f"topic {topic} on broker {name} {'has' if preview else 'had'}: {_settings_text(now)}")
            output.say(f"{'it would have' if preview else 'it has'}: {_settings_text(then)}")
