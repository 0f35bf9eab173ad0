"""``halfmq consume``: prints the messages of a topic; without a group nothing is committed."""

import contextlib
import time
from collections.abc import Generator
from typing import Annotated, Final, cast

import msgspec
import typer

from halfmq.cli import output, reading
from halfmq.cli.cluster import Cluster
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.moment import moment_ms
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Timeout, Url
from halfmq.client.arguments import StartFrom
from halfmq.client.message import Message
from halfmq.client.sync import Client
from halfmq.wire.remoting.codes import RequestCode, ResponseCode

_COMMANDS: Final = Commands("halfmq consume")
app = typer.Typer(help="Print the messages of a topic.", add_completion=False)
_fail = _COMMANDS.fail

#: How often queues are asked again at their end, and how long a group waits for its next message before it has read all; seconds.
_POLL_S: Final = 0.5
_IDLE_S: Final = 5.0


@app.command(epilog=exit_text("halfmq consume"))
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the messages.")],
    group: Annotated[
        str,
        typer.Option(
            help="Read as a member of this consumer group, and acknowledge: others of the group do not get them."
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Where to begin; with --group only earliest or latest, and only if the group has no offset yet.",
        ),
    ] = "earliest",
    count: Annotated[int, typer.Option("--max", help="Maximum number of messages; 0: no limit.", min=0)] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for further messages, until Ctrl-C.")] = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print each message as one line of JSON.")] = False,
) -> None:
    """Print the messages of a topic, those of one queue in order. Ends after what is there now, unless --follow.

    Without --group it reads beside all groups, changes no offset, and is not seen by consumers.
    """
    if group and start not in ("earliest", "latest"):
        _fail("--group takes --from earliest or latest; `halfmq group reset` moves a group to a time", ExitStatus.USAGE)
    read = 0
    with contextlib.closing(
        _of_group(topic, group, start, follow, url, timeout)
        if group
        else _of_queues(topic, start, follow, url, timeout)
    ) as messages:
        for message in messages:
            if as_json:
                output.document(msgspec.json.encode(reading.row_of(message)))
            else:
                reading.say(message)
            if group:
                # After it was printed: what was not is delivered again.
                message.ack()
            read += 1
            if count and read >= count:
                break
    output.note(f"{read} messages")


def _of_queues(topic: str, start: str, follow: bool, url: str, timeout: float) -> Generator[Message]:
    is_named = start in ("earliest", "latest")
    at_ms = 0 if is_named else moment_ms(_COMMANDS, start, time.time_ns() // 1_000_000)
    with Cluster(_COMMANDS, url, timeout) as cluster:
        reader = reading.Reader(_COMMANDS, cluster)
        queues = reader.queues(topic)
        offsets = []
        for broker, queue in queues:
            offset = queue.first if start == "earliest" else queue.end
            if not is_named:
                offset = max(queue.first, reader.offset_at(broker, topic, queue.queue, at_ms))
            offsets.append(offset)
        while True:
            is_idle = True
            for number, (broker, queue) in enumerate(queues):
                offset = offsets[number]
                if not follow and offset >= queue.end:
                    continue
                messages, offsets[number] = reader.pull(broker, topic, queue.queue, offset)
                is_idle = is_idle and offsets[number] == offset
                yield from (one for one in messages if follow or one.offset < queue.end)
            if is_idle and not follow:
                return
            if is_idle:
                time.sleep(_POLL_S)


def _of_group(topic: str, group: str, start: str, follow: bool, url: str, timeout: float) -> Generator[Message]:
    # A consumer that may not read, or whose topic is absent, only logs that and tries again: say it here.
    with Cluster(_COMMANDS, url, timeout) as cluster:
        for broker in cluster.brokers_of(topic):
            fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "setZeroIfNotFound": False}
            cluster.ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, fields, absent=(ResponseCode.QUERY_NOT_FOUND,))
    with (
        _COMMANDS.reported(),
        Client(url, timeout=timeout) as client,
        client.consumer(topic, group=group, start=cast(StartFrom, start)) as consumer,
    ):
        while (message := consumer.get(None if follow else _IDLE_S)) is not None:
            yield message
