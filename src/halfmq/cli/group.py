"""``halfmq group``: consumer groups: how far they are, resetting and deleting them, and holds of retention. Needs a running broker.

All but the holds is RocketMQ's own protocol, so that it works with Apache RocketMQ as well.
"""

import time
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from halfmq import limits
from halfmq.cli import output
from halfmq.cli.cluster import Broker, Cluster, is_system
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.lag import QueueLag, group_lag
from halfmq.cli.moment import moment_ms
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Preview, Timeout, Url, Yes
from halfmq.core.state import RETRY_PREFIX
from halfmq.model.durations import span
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.admin_reports import (
    QueueStats,
    decode_consume_stats,
    decode_group_names,
    decode_peers,
    decode_topic_stats,
)
from halfmq.wire.remoting.admin_stats import Peer
from halfmq.wire.remoting.attributes import change_body, hold_removed, hold_set, read_hold_change
from halfmq.wire.remoting.codes import RequestCode, ResponseCode

_HOUR_MS: Final = 3_600_000
#: Groups in one response.
_PAGE: Final = 1_000

_COMMANDS: Final = Commands("halfmq group")
app = _COMMANDS.group("Consumer groups: list them, see their lag, reset or delete them; let retention wait for one.")
_ask, _fail = _COMMANDS.ask, _COMMANDS.fail

_Group = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group; it is created if it does not exist.")]
_Known = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]
_Topic = Annotated[str, typer.Option(help="Only this topic.")]
#: Members that an error names.
_NAMED_MAX: Final = 5


@app.command("list")
def list_(url: Url = URL, timeout: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """List consumer groups with their connected members, and their lag in messages over all topics."""
    rows: dict[str, _Listed] = {}
    with Cluster(_COMMANDS, url, timeout) as cluster:
        for broker in cluster.brokers():
            names = _names(cluster, broker)
            fields = [{"consumerGroup": name} for name in names]
            absent = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
            members = list(cluster.each(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields, absent=absent))
            progress = list(cluster.each(broker, RequestCode.GET_CONSUME_STATS, fields, absent=absent))
            for name, member, stats in zip(names, members, progress, strict=True):
                before = rows.get(name, _Listed(set(), 0, set()))
                with _COMMANDS.reported():
                    peers = decode_peers(member.body) if member is not None else []
                    queues = decode_consume_stats(stats.body) if stats is not None else []
                rows[name] = _Listed(
                    before.members | {peer.client_id for peer in peers},
                    None if before.lag is None or stats is None else before.lag + sum(one.lag for one in queues),
                    before.topics | {one.topic for one in queues},
                )
    if as_json:
        groups = [
            {"group": name, "members": len(row.members), "lag": row.lag, "topics": sorted(row.topics)}
            for name, row in sorted(rows.items())
        ]
        output.document(msgspec.json.encode({"total": len(rows), "groups": groups}))
        return
    if rows:
        lines = (
            (
                name,
                str(len(row.members)),
                "-" if row.lag is None else str(row.lag),
                ", ".join(sorted(one for one in row.topics if not is_system(one))),
            )
            for name, row in sorted(rows.items())
        )
        output.table(("GROUP", "MEMBERS", "LAG", "TOPICS"), lines)
    output.note(f"{len(rows)} groups")


class _Listed(NamedTuple):
    members: set[str]
    #: None: the broker does not say it, as for a group with more queues than one response may have.
    lag: int | None
    topics: set[str]


@app.command()
def lag(
    group: _Known,
    topic: _Topic = "",
    queues: Annotated[bool, typer.Option("--queues", help="A line for each queue.")] = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show how far a consumer group is behind, by topic: in messages, and by the age of the oldest that it has not finished."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        members = _members(cluster, group)
        found = group_lag(_COMMANDS, cluster, group, topic)
        if not found and not members and not any(_has(cluster, one, group) for one in cluster.brokers()):
            _fail(f"there is no consumer group {group}", ExitStatus.NOT_FOUND)
    topics: dict[str, list[QueueLag]] = {}
    for one in found:
        topics.setdefault(one.queue.topic, []).append(one)
    if as_json:
        document = {
            "group": group, "members": [peer.client_id for peer in members], **_sums(found),
            "topics": [
                {"topic": name, **_sums(of_topic), "queues": [_queue_row(one) for one in of_topic]}
                for name, of_topic in topics.items()
            ],
        }  # fmt: skip
        output.document(msgspec.json.encode(document))
        return
    if queues:
        head = ("TOPIC", "BROKER", "QUEUE", "OFFSET", "END", "LAG", "OLDEST")
        output.table(
            head,
            (
                (one.topic, one.broker, str(one.queue), str(one.offset), str(one.end), str(one.lag), _age(age_ms))
                for one, age_ms in found
            ),
        )
    elif topics:
        rows = ((name, str(_sums(rows)["lag"]), _age(_sums(rows)["age_ms"])) for name, rows in topics.items())
        output.table(("TOPIC", "LAG", "OLDEST"), rows)
    total = _sums(found)
    oldest = f", the oldest stored {span(total['age_ms'])} ago" if total["lag"] else ""
    output.note(f"group {group}: {len(members)} members, {total['lag']} messages to read{oldest}")


def _sums(rows: list[QueueLag]) -> dict[str, int]:
    return {"lag": sum(one.queue.lag for one in rows), "age_ms": max((one.age_ms for one in rows), default=0)}


def _queue_row(one: QueueLag) -> dict[str, Any]:
    row = one.queue._asdict()
    row.pop("topic")
    return {**row, "lag": one.queue.lag, "age_ms": one.age_ms}


def _age(age_ms: int) -> str:
    return span(age_ms) if age_ms else "-"


@app.command()
def reset(
    group: _Known,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|TIME|OFFSET",
            help="First message to read: by name, by the time at which it was stored, such as 2026-11-28T09:30 or 2h for two hours ago, "
            "or by its offset.",
        ),
    ],
    topic: _Topic = "",
    queue: Annotated[int | None, typer.Option(help="With --topic: only this queue, of every broker.", min=0)] = None,
    preview: Preview = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Let a consumer group go on reading elsewhere: skip messages, or read them again. Shows what it means for each queue first.

    Refused while consumers of the group are connected: they would store their own offsets over the new ones (RocketMQ's request 222,
    which tells running consumers, is not served by halfmq's broker). Without --topic: all topics in which the group has an offset, but not
    its retries, which it goes on reading where it is.
    """
    if queue is not None and not topic:
        _fail("--queue requires --topic", ExitStatus.USAGE)
    if to.isdecimal() and not topic:
        _fail("an offset requires --topic: it means something else in every topic", ExitStatus.USAGE)
    is_named = to in ("earliest", "latest") or to.isdecimal()
    at_ms = 0 if is_named else moment_ms(_COMMANDS, to, time.time_ns() // 1_000_000)
    with Cluster(_COMMANDS, url, timeout) as cluster:
        _refuse_members(cluster, group)
        rows = _plan(cluster, group, topic, queue, to, at_ms)
        if not rows:
            what = f"in topic {topic}" if topic else "in any topic: name one with --topic"
            _fail(f"group {group} has nothing to reset {what}", ExitStatus.NOT_FOUND)
        changed = [row for row in rows if row.now != row.then]
        if not as_json:
            head = ("TOPIC", "BROKER", "QUEUE", "NOW", "THEN", "EFFECT")
            output.table(head, map(_reset_line, rows))
            skipped = sum(max(0, row.moved) for row in rows)
            again = sum(max(0, -row.moved) for row in rows)
            output.note(f"{len(changed)} of {len(rows)} queues: {skipped} messages skipped, {again} read again")
        if not preview and changed:
            if not yes:
                _COMMANDS.require_typed(group, "Type the name of the group to reset it")
                _refuse_members(cluster, group)
            for row in changed:
                fields = {
                    "consumerGroup": group, "topic": row.topic, "queueId": row.queue, "commitOffset": row.then,
                }  # fmt: skip
                cluster.ask(row.broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields, changes=True)
            if _members(cluster, group):
                output.note(f"consumers of group {group} have connected meanwhile: see `halfmq group lag {group}`")
    if as_json:
        document = {"group": group, "changed": not preview, "queues": [row.document() for row in rows]}
        output.document(msgspec.json.encode(document))
    elif preview:
        output.say(f"nothing was changed: without --preview {len(changed)} queues of group {group} would be reset")
    else:
        output.say(f"group {group} is reset" if changed else f"group {group} is there already: nothing to change")


class _Reset(NamedTuple):
    """What becomes of one queue. ``now``: -1: the group has no offset. ``moved``: messages that are skipped; negative: read again."""

    topic: str
    broker: Broker
    queue: int
    now: int
    then: int
    moved: int

    def document(self) -> dict[str, Any]:
        return {**self._asdict(), "broker": self.broker.name, "now": self.now if self.now >= 0 else None}


def _plan(cluster: Cluster, group: str, topic: str, queue: int | None, to: str, at_ms: int) -> list[_Reset]:
    rows = []
    for broker in cluster.brokers_of(topic) if topic else cluster.brokers():
        names = [topic] if topic else _topics_of(cluster, broker, group)
        for name in names:
            stats = cluster.read(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": name}, decode_topic_stats)
            queues = [one for one in stats if queue in (None, one.queue)]
            rows += _plan_topic(cluster, broker, group, name, queues, to, at_ms)
    return sorted(rows)


def _plan_topic(
    cluster: Cluster, broker: Broker, group: str, topic: str, queues: list[QueueStats], to: str, at_ms: int
) -> list[_Reset]:
    fields: list[dict[str, object]] = [{"topic": topic, "queueId": one.queue} for one in queues]
    asked = [{**one, "consumerGroup": group, "setZeroIfNotFound": False} for one in fields]
    offsets = [
        _offset(answer)
        for answer in cluster.each(
            broker, RequestCode.QUERY_CONSUMER_OFFSET, asked, absent=(ResponseCode.QUERY_NOT_FOUND,)
        )
    ]
    if to == "earliest":
        targets = [one.first for one in queues]
    elif to == "latest":
        targets = [one.end for one in queues]
    elif to.isdecimal():
        targets = [int(to)] * len(queues)
    else:
        searched = [{**one, "timestamp": at_ms} for one in fields]
        targets = [_offset(one) for one in cluster.each(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, searched)]
    rows = []
    for one, now, wanted in zip(queues, offsets, targets, strict=True):
        then = min(max(wanted, one.first), one.end)
        # An offset before the first stored message reads from there: what retention removed is neither skipped nor read again.
        moved = then - max(now, one.first) if now >= 0 else 0
        rows.append(_Reset(topic, broker, one.queue, now, then, moved))
    return rows


def _offset(answer: Any) -> int:
    return -1 if answer is None else int(answer.ext.get("offset", "-1"))


def _reset_line(row: _Reset) -> tuple[str, ...]:
    if row.now < 0:
        effect = "had no offset"
    elif row.moved > 0:
        effect = f"{row.moved} skipped"
    elif row.moved < 0:
        effect = f"{-row.moved} read again"
    else:
        effect = "-"
    return row.topic, row.broker.name, str(row.queue), str(row.now) if row.now >= 0 else "-", str(row.then), effect


@app.command()
def delete(
    group: _Known,
    preview: Preview = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete a consumer group with its offsets, on every broker. Refused while members are connected. Its dead letters stay."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        brokers = [broker for broker in cluster.brokers() if _has(cluster, broker, group)]
        if not brokers:
            _fail(f"there is no consumer group {group}", ExitStatus.NOT_FOUND)
        _refuse_members(cluster, group)
        topics = sorted({name for broker in brokers for name in _topics_of(cluster, broker, group)})
        output.note(f"group {group} has offsets in {', '.join(topics) or 'no topic'}")
        if not preview:
            if not yes:
                _COMMANDS.require_typed(group, "Type the name of the group to delete it")
            for broker in brokers:
                fields = {"groupName": group, "cleanOffset": True}
                cluster.ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields, changes=True)
    if as_json:
        output.document(msgspec.json.encode({"group": group, "topics": topics, "deleted": not preview}))
    else:
        output.say(f"group {group} would be deleted" if preview else f"group {group} is deleted")


def _topics_of(cluster: Cluster, broker: Broker, group: str) -> list[str]:
    """Topics in which the group has an offset, without its retries."""
    answer = cluster.ask(
        broker, RequestCode.GET_CONSUME_STATS, {"consumerGroup": group}, absent=(ResponseCode.TOPIC_NOT_EXIST,)
    )
    if answer is None:
        return []
    with _COMMANDS.reported():
        names = {one.topic for one in decode_consume_stats(answer.body)}
    return sorted(name for name in names if not name.startswith(RETRY_PREFIX))


def _members(cluster: Cluster, group: str) -> list[Peer]:
    """Connected consumers of the group, on all brokers."""
    found: dict[str, Peer] = {}
    for broker in cluster.brokers():
        answer = cluster.ask(
            broker,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            {"consumerGroup": group},
            absent=(ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        )
        if answer is not None:
            with _COMMANDS.reported():
                found.update({peer.client_id: peer for peer in decode_peers(answer.body)})
    return [found[name] for name in sorted(found)]


def _refuse_members(cluster: Cluster, group: str) -> None:
    members = _members(cluster, group)
    if members:
        shown = ", ".join(f"{peer.client_id} at {peer.address}" for peer in members[:_NAMED_MAX])
        more = f" and {len(members) - _NAMED_MAX} others" if len(members) > _NAMED_MAX else ""
        text = (
            f"group {group} has {len(members)} connected consumers: {shown}{more}. Stop them first; nothing was changed"
        )
        _fail(text, ExitStatus.REFUSED)


def _has(cluster: Cluster, broker: Broker, group: str) -> bool:
    absent = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,)
    return cluster.ask(broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}, absent=absent) is not None


def _names(cluster: Cluster, broker: Broker) -> list[str]:
    """Names of the broker's consumer groups."""
    names: dict[str, None] = {}
    start, total = 0, 1
    while start < total:
        fields = {"groupSeq": start, "maxGroupNum": _PAGE}
        answer = cluster.ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, fields)
        assert answer is not None
        with _COMMANDS.reported():
            names.update(dict.fromkeys(decode_group_names(answer.body)))
        start, total = start + _PAGE, int(answer.ext.get("totalGroupNum", "0"))
    return sorted(names)


# --- holds ------------------------------------------------------------------------------------------------------------


@app.command()
def hold(
    group: _Group,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="All topics that the group holds from now on.")
    ],
    max_age_hours: Annotated[
        float,
        typer.Option(
            help="Messages older than this are not kept for the group; 0: no limit by age.",
            min=0,
            max=limits.HOLD_MS_MAX // _HOUR_MS,
        ),
    ] = limits.HOLD_MS / _HOUR_MS,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Keep messages of these topics until the group has read them.

    Within limits: the age, `halfmq serve --hold-bytes`, and a disk that is nearly full. What a group loses then is logged by the broker.
    """
    hold_ms = round(max_age_hours * _HOUR_MS)
    with _COMMANDS.reported():
        body = change_body(group, hold_set(topics, hold_ms))
    _ask(url, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, timeout, body)
    output.say(f"group {group} holds {', '.join(topics)}, {_until(hold_ms)}")


@app.command()
def release(group: _Group, url: Url = URL, timeout: Timeout = TIMEOUT_S) -> None:
    """Let the group hold nothing any more."""
    _ask(url, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, timeout, change_body(group, hold_removed()))
    output.say(f"group {group} holds nothing")


@app.command()
def holds(url: Url = URL, timeout: Timeout = TIMEOUT_S) -> None:
    """List the groups that hold topics, and the age at which each hold ends."""
    start, total = 0, 1
    while start < total:
        fields = {"groupSeq": str(start), "maxGroupNum": str(_PAGE)}
        answer = _ask(url, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, fields, timeout)
        table: dict[str, Any] = java_json.loads(answer.body)["subscriptionGroupTable"]
        for name, settings in table.items():
            held = read_hold_change(settings.get("attributes") or {})
            if held.topics:
                output.say(f"{name}: {', '.join(held.topics)}, {_until(held.hold_ms or 0)}")
        start, total = start + _PAGE, int(answer.ext.get("totalGroupNum", "0"))


def _until(hold_ms: int) -> str:
    return f"until {span(hold_ms)} old" if hold_ms else "whatever their age"
