"""``halfmq dead``: dead letters of consumer groups: why they are dead, and sending them to their group again.

A dead letter is what a group has given up: it is in the topic ``%DLQ%GROUP``. A re-driven one stays there, and its copy names it in the
property HMQ_REDRIVEN_FROM. That is how a later run knows what was sent already: the broker finds copies by the message's unique id, and
whatever removes a copy from the log has removed the older dead letter before. So nothing else has to be remembered.
"""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from halfmq.cli import output, reading
from halfmq.cli.cluster import Broker, Cluster
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.moment import moment_ms, moment_text
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Preview, Timeout, Url, Yes
from halfmq.client.message import Message
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX
from halfmq.model import properties as names
from halfmq.model.stored_message import SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK
from halfmq.wire.remoting.codes import RequestCode

_COMMANDS: Final = Commands("halfmq dead")
app = _COMMANDS.group("Dead letters of consumer groups: list them, see why, and send them to their group again.")
_fail = _COMMANDS.fail

#: Producer group of copies.
_SENDER: Final = "halfmq-tools"
#: Copies of one message that are looked at: each attempt is one.
_COPIES_MAX: Final = 64
#: How long a copy that was confirmed may not be found, seconds: indexes follow the log within moments.
_FOUND_S: Final = 5.0
_POLL_S: Final = 0.1
#: Properties of the dead letter that its copy does not have.
_OF_LETTER: Final = (
    names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID, names.HMQ_DEAD_REASON,
    names.HMQ_NOT_CONSUMED, names.HMQ_REDRIVEN_FROM, names.TRAN_MSG,
)  # fmt: skip

_Groups = Annotated[str, typer.Option("--group", help="Only of this consumer group.")]
_Topic = Annotated[str, typer.Option(help="Only messages that came from this topic.")]
_Since = Annotated[str, typer.Option(metavar="TIME", help="Only what died at this time or later, such as 2h.")]
_Id = Annotated[
    str, typer.Option("--id", help="Only the message with this id, or the dead letter with this offset id.")
]
_Reason = Annotated[str, typer.Option(metavar="TEXT", help="Only those with this text in their reason.")]
_Most = Annotated[int, typer.Option("--max", help="Maximum number; 0: no limit.", min=0)]


class Letter(NamedTuple):
    """A dead letter, and the group that gave it up."""

    group: str
    broker: Broker
    message: Message

    @property
    def origin(self) -> str:
        """The topic to which it was sent."""
        found = self.message.properties
        return found.get(names.DLQ_ORIGIN_TOPIC) or found.get(names.RETRY_TOPIC) or ""

    @property
    def reason(self) -> str:
        """The exception of its last attempt; empty: its consumer did not say it."""
        return self.message.properties.get(names.HMQ_DEAD_REASON, "")

    @property
    def attempts(self) -> int:
        """How often it was handled. On Apache RocketMQ that is 1 for a message with a sharding key, whose attempts it does not know."""
        return self.message.attempt - 1

    def row(self, redriven_at: str) -> dict[str, Any]:
        """For a JSON document."""
        row = reading.row_of(self.message)
        died = row.pop("stored_at")
        row.pop("attempt")  # would be the next one
        return {
            "group": self.group, **row, "topic": self.origin, "died_at": died, "attempts": self.attempts, "reason": self.reason,
            "origin_id": self.message.properties.get(names.DLQ_ORIGIN_MESSAGE_ID, ""), "redriven_at": redriven_at,
        }  # fmt: skip


class Selection(NamedTuple):
    """Which dead letters; empty fields: all."""

    group: str
    topic: str
    since_ms: int
    message_id: str
    reason: str

    def has(self, letter: Letter) -> bool:
        """Whether it is one of them."""
        message = letter.message
        return (
            self.topic in ("", letter.origin)
            and message.stored_at.timestamp() * 1_000 >= self.since_ms
            and self.message_id in ("", message.message_id, message.offset_id)
            and self.reason in letter.reason
        )


@app.command("list")
def list_(
    group: _Groups = "",
    topic: _Topic = "",
    since: _Since = "",
    message_id: _Id = "",
    reason: _Reason = "",
    count: _Most = 100,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List dead letters, the oldest first: of which group, after how many attempts, and why."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        desk = _Desk(cluster)
        letters = desk.letters(_selection(group, topic, since, message_id, reason))
        found = list(islice(letters, count or None))
        copies = [desk.copy_of(letter) for letter in found]
        total = len(found) + sum(1 for _ in letters)
    if as_json:
        rows = [letter.row(_at(copy)) for letter, copy in zip(found, copies, strict=True)]
        output.document(msgspec.json.encode({"total": total, "letters": rows}))
        return
    if found:
        head = ("DIED", "GROUP", "TOPIC", "MESSAGE", "ATTEMPTS", "RE-DRIVEN", "REASON")
        output.table(head, (_line(letter, copy) for letter, copy in zip(found, copies, strict=True)))
    shown = f", {len(found)} shown" if len(found) < total else ""
    output.note(f"{total} dead letters{shown}, {sum(copy is not None for copy in copies)} of them re-driven")


@app.command()
def show(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group that gave it up.")],
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the message, or offset id of the dead letter.")
    ],
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a dead letter: the exception, the attempts, where it came from, its properties and its body."""
    with Cluster(_COMMANDS, url, timeout) as cluster:
        desk = _Desk(cluster)
        found = list(desk.letters(Selection(group, "", 0, message_id, "")))
        if not found:
            _fail(f"group {group} has no dead letter {message_id}", ExitStatus.NOT_FOUND)
        copies = [desk.copy_of(letter) for letter in found]
    if as_json:
        rows = [letter.row(_at(copy)) for letter, copy in zip(found, copies, strict=True)]
        output.document(msgspec.json.encode({"total": len(rows), "letters": rows}))
        return
    for letter, copy in zip(found, copies, strict=True):
        message = letter.message
        output.say(
            f"message {message.message_id} of topic {letter.origin}",
            f"given up by group {group} at {moment_text(int(message.stored_at.timestamp() * 1_000))}, after {letter.attempts} attempts",
            f"reason: {letter.reason or 'its consumer did not say it'}",
            f"dead letter: {message.offset_id} on broker {letter.broker}",
            f"re-driven: {_at(copy) or 'no'}",
            *(f"property {name}={value}" for name, value in message.properties.items() if name not in names.SYSTEM),
            f"body: {reading.body_text(message.body)}",
        )


@app.command()
def redrive(
    group: _Groups = "",
    topic: _Topic = "",
    since: _Since = "",
    message_id: _Id = "",
    reason: _Reason = "",
    count: _Most = 0,
    everybody: Annotated[
        bool,
        typer.Option(
            "--everybody", help="To the topic itself, so that every group reads them again, not only this one."
        ),
    ] = False,
    preview: Preview = False,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Send the dead letters of a group to it again, each once, with its attempts counted from the beginning.

    A letter that was re-driven is left out, so that running it again after a failure sends only what is missing (but two runs at the same
    time may send some twice). The letters stay, and
    `halfmq dead list` shows when they were re-driven. The copy has the id of the message: consumers that detect duplicates know it.
    """
    if not group:
        _fail("whose? --group GROUP, and --topic, --since, --id or --reason to select", ExitStatus.USAGE)
    with Cluster(_COMMANDS, url, timeout) as cluster:
        desk = _Desk(cluster)
        selected = list(desk.letters(_selection(group, topic, since, message_id, reason)))
        if not selected:
            _fail(f"group {group} has no such dead letter", ExitStatus.NOT_FOUND)
        desk.settle(group)
        waiting = (letter for letter in selected if desk.copy_of(letter) is None)
        found = list(islice(waiting, count or None))
        if not found:
            output.note(f"nothing to send: {len(selected)} such dead letters, all of them re-driven")
        elif not as_json:
            output.table(
                ("DIED", "GROUP", "TOPIC", "MESSAGE", "ATTEMPTS", "RE-DRIVEN", "REASON"),
                (_line(one, None) for one in found),
            )
        sent = 0
        if not preview:
            if found and not yes:
                _COMMANDS.require_typed(
                    group, f"Type the name of the group to send it these {len(found)} messages again"
                )
            for letter in found:
                if desk.copy_of(letter) is None:  # another run may have sent it meanwhile
                    desk.send(letter, to_topic=everybody)
                    sent += 1
            missing = desk.without_copy(found)
            if missing:
                _fail(
                    f"{sent} sent, but {len(missing)} not stored: messages with their ids were sent to the topic within the deduplication window; "
                    "run it again after that",
                    ExitStatus.FAILED,
                )
    if as_json:
        rows = [letter.row("") for letter in found]
        output.document(msgspec.json.encode({"total": len(rows), "sent": sent, "letters": rows}))
    elif preview:
        output.say(f"{len(found)} dead letters of group {group} would be sent again")
    else:
        output.say(f"{sent} dead letters of group {group} are sent again")


class _Desk:
    """Reads and sends for these commands."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def letters(self, selection: Selection) -> Iterator[Letter]:
        """The dead letters, by group, the oldest first."""
        groups = [selection.group] if selection.group else self._groups()
        for group in groups:
            if self._cluster.route(DLQ_PREFIX + group) is None:
                continue
            reader = self._reader(group)
            for broker, queue in reader.queues(DLQ_PREFIX + group):
                for message in reader.between(broker, DLQ_PREFIX + group, queue.queue, queue.first, queue.end):
                    letter = Letter(group, broker, message)
                    if selection.has(letter):
                        yield letter

    def _groups(self) -> list[str]:
        return [name.removeprefix(DLQ_PREFIX) for name in self._cluster.topics() if name.startswith(DLQ_PREFIX)]

    def _reader(self, group: str) -> reading.Reader:
        # As the group itself: who may read its dead letters may read as the group.
        return reading.Reader(_COMMANDS, self._cluster, group)

    def settle(self, group: str) -> None:
        """Wait until what an earlier run sent is stored, also if it got no response: a halfmq broker answers this request when everything
        that it has received is durable."""
        topic = DLQ_PREFIX + group
        if self._cluster.route(topic) is not None:
            for broker in self._cluster.brokers_of(topic):
                self._cluster.ask(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})

    def copy_of(self, letter: Letter) -> Message | None:
        """The copy that was sent of it; None: it was not re-driven."""
        reader = self._reader(letter.group)
        for topic in (RETRY_PREFIX + letter.group, letter.origin):
            if not topic or self._cluster.route(topic) is None:
                continue
            for one in reader.by_key(topic, letter.message.message_id, _COPIES_MAX, is_unique=True):
                if one.properties.get(names.HMQ_REDRIVEN_FROM) == letter.message.offset_id:
                    return one
        return None

    def without_copy(self, letters: list[Letter]) -> list[Letter]:
        """Those that have no copy yet, after a short wait."""
        until = time.monotonic() + _FOUND_S
        while (missing := [one for one in letters if self.copy_of(one) is None]) and time.monotonic() < until:
            time.sleep(_POLL_S)
            letters = missing
        return missing

    def send(self, letter: Letter, *, to_topic: bool) -> None:
        """Send a copy."""
        message = letter.message
        pairs = {name: value for name, value in message.properties.items() if name not in _OF_LETTER}
        pairs[names.HMQ_REDRIVEN_FROM] = message.offset_id
        pairs.setdefault(names.UNIQ_KEY, message.message_id)
        if to_topic:
            pairs.pop(names.RETRY_TOPIC, None)
        else:
            pairs[names.RETRY_TOPIC] = letter.origin
        stored = message._stored
        topic = letter.origin if to_topic else RETRY_PREFIX + letter.group
        fields = {
            "a": _SENDER, "b": topic, "c": "TBW102", "d": 1, "e": 0,
            "f": stored.sys_flag & (SYS_COMPRESSED | SYS_COMPRESSION_TYPE_MASK), "g": stored.born_time_ms, "h": stored.flag,
            "i": names.encode(pairs).decode(), "j": 0, "k": False, "m": False,
        }  # fmt: skip
        self._cluster.ask(letter.broker, RequestCode.SEND_MESSAGE_V2, fields, message.body, changes=True)


def _selection(group: str, topic: str, since: str, message_id: str, reason: str) -> Selection:
    since_ms = moment_ms(_COMMANDS, since, time.time_ns() // 1_000_000) if since else 0
    return Selection(group, topic, since_ms, message_id, reason)


def _at(copy: Message | None) -> str:
    return "" if copy is None else moment_text(int(copy.stored_at.timestamp() * 1_000))


def _line(letter: Letter, copy: Message | None) -> tuple[str, ...]:
    died = moment_text(int(letter.message.stored_at.timestamp() * 1_000))
    return (
        died, letter.group, letter.origin, letter.message.message_id, str(letter.attempts), _at(copy) or "-", letter.reason or "-",
    )  # fmt: skip
