"""Options of ``format("halfmq")`` and their validation.

Names are those of Spark's Kafka source where the meaning is the same. Spark passes names in lower case. Unknown names are
rejected with the list of options, since a misspelt option would otherwise have no effect.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from halfmq.errors import UsageError
from halfmq.model.urls import has_credentials, shown_url

#: All columns; the last two are not in the default schema. Spark converts maps slowly: ``properties`` doubles the time of a scan
#: (Spark's Kafka source excludes headers by default for the same reason). ``broker`` is of use in a cluster only.
COLUMNS: Final = (
    "key", "value", "topic", "queue", "offset", "timestamp", "tag", "keys", "message_id", "transaction_id", "properties",
    "broker",
)  # fmt: skip
COLUMNS_DEFAULT: Final = COLUMNS[:-2]

#: Options and their descriptions, as in error messages.
OPTIONS: Final = {
    "url": "rocketmq://HOST:PORT[;HOST:PORT...], name servers: read from brokers",
    "path": "data directory of a broker on this machine: read its files directly",
    "subscribe": "topics, separated by commas",
    "startingOffsets": 'earliest, latest, or JSON {"topic":{"queue":offset}} (-2 earliest, -1 latest) or a stream offset',
    "endingOffsets": "batch only: latest, or JSON as above",
    "maxOffsetsPerTrigger": "stream only: maximum number of messages of a trigger",
    "minPartitions": "minimum number of tasks of a read",
    "failOnDataLoss": "true (default): fail if messages are missing; false: warn and continue with the remaining ones",
    "brokerTimeout": "how long to wait for an unavailable broker: seconds, or with a unit (500ms, 30s, 5m); default 120s",
    "columns": "columns, separated by commas; fewer are faster; properties and broker are not in the default",
    "verifyBodies": "path only: true verifies the CRC of each body; default false; with url it is always verified",
    "group": "consumer group in pull requests; no offsets are stored",
}
_LOWER: Final = {name.lower(): name for name in OPTIONS}

#: Spark's catalog adds this property to the options when a table is created (``CREATE TABLE ... USING halfmq``). Spark 4.3 does not
#: pass the table's options when it is read: a Python source gets none at all.
_TABLE_MARK: Final = "provider"

EARLIEST: Final = -2
LATEST: Final = -1
#: Spark does not restart a failed query, so the source waits for a restart of the broker; ample for recovery.
BROKER_TIMEOUT_MS: Final = 120_000
#: Predefined in RocketMQ brokers for administration, so pulls do not create a group.
GROUP_DEFAULT: Final = "TOOLS_CONSUMER"

_URL: Final = re.compile(r"(?:(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<host>[^/]*)|file:)(?=/)", re.ASCII)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", re.ASCII)
_QUEUE: Final = re.compile(r"(?:.+:)?(?:0|[1-9]\d*)", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets to start or end at. ``queues``: topic -> queue name -> offset, EARLIEST or LATEST; ``everywhere``: EARLIEST or LATEST,
    for all other queues. ``of_stream``: from a stream offset, so a missing queue was deleted; otherwise it is a typing error.
    """

    everywhere: int
    queues: dict[str, dict[str, int]]
    of_stream: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """Validated options. Exactly one of ``servers`` and ``path`` is set."""

    servers: tuple[tuple[str, int], ...]
    path: str
    topics: tuple[str, ...]
    #: None: not set; a stream then starts at the latest offsets, a batch at the earliest.
    starting: Bounds | None
    ending: Bounds | None
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    broker_timeout_ms: int
    columns: tuple[str, ...]
    group: str
    #: The wire reader always verifies.
    verify_bodies: bool

    def for_batch(self) -> "Options":
        """Check the options for a batch read.

        Raises:
            UsageError: an option is for streams only, or the batch could not contain anything.
        """
        if self.max_offsets_per_trigger is not None:
            raise UsageError("maxOffsetsPerTrigger is for streams", hint="endingOffsets bounds a batch")
        if self.starting is not None and _names(self.starting, LATEST):
            raise UsageError("startingOffsets of a batch cannot be latest", hint="there would be nothing to read")
        if self.ending is not None and _names(self.ending, EARLIEST):
            raise UsageError("endingOffsets cannot be earliest", hint="there would be nothing to read")
        return self

    def for_stream(self) -> "Options":
        """Check the options for a stream.

        Raises:
            UsageError: ``endingOffsets`` is set.
        """
        if self.ending is not None:
            raise UsageError(
                "endingOffsets is for batch reads", hint="use trigger(availableNow=True) to stop at the end"
            )
        return self


def _names(bounds: Bounds, special: int) -> bool:
    return bounds.everywhere == special or any(special in queues.values() for queues in bounds.queues.values())


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse and validate the options that Spark passes.

    Raises:
        UsageError: an option is unknown, missing or invalid; the text names it.
    """
    values = _known(given)
    servers = _servers(values["url"]) if "url" in values else ()
    path = _path(values["path"]) if "path" in values else ""
    if bool(servers) == bool(path):
        raise UsageError(
            "both url and path are set" if path else "neither url nor path is set",
            hint=f"one of them: url = {OPTIONS['url']}; path = {OPTIONS['path']}",
        )
    topics = _list("subscribe", values.get("subscribe", ""))
    columns = _list("columns", values["columns"]) if "columns" in values else COLUMNS_DEFAULT
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise UsageError(f"no such column: {', '.join(unknown)}", hint=f"there are {', '.join(COLUMNS)}")
    return Options(
        servers=servers,
        path=path,
        topics=topics,
        starting=_bounds("startingOffsets", values, EARLIEST, topics),
        ending=_bounds("endingOffsets", values, LATEST, topics),
        max_offsets_per_trigger=_count("maxOffsetsPerTrigger", values),
        min_partitions=_count("minPartitions", values),
        fail_on_data_loss=_flag("failOnDataLoss", values, default=True),
        broker_timeout_ms=_duration_ms("brokerTimeout", values, BROKER_TIMEOUT_MS),
        columns=columns,
        group=values.get("group", "").strip() or GROUP_DEFAULT,
        verify_bodies=_flag("verifyBodies", values, default=False),
    )


def _known(given: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    unknown = []
    if _TABLE_MARK in given:
        raise UsageError(
            "CREATE TABLE ... USING halfmq is not possible: Spark does not pass the options of a table to a Python source",
            hint="CREATE TEMPORARY VIEW ... USING halfmq OPTIONS (...)",
        )
    for name, value in given.items():
        proper = _LOWER.get(name.lower())
        if proper is None:
            unknown.append(name)
        else:
            values[proper] = value
    if unknown:
        known = "; ".join(f"{name}: {text}" for name, text in OPTIONS.items())
        raise UsageError(f"unknown option {', '.join(sorted(unknown))}", hint=f"options are {known}")
    return values


def _path(value: str) -> str:
    """The absolute path; ``file:`` URLs are literal (without % escapes), as elsewhere in Spark."""
    match = _URL.match(value)
    if match is not None:
        if match["scheme"] not in (None, "file") or (match["host"] or "localhost") != "localhost":
            raise UsageError(f"path {value!r} is not a directory of this machine", hint=OPTIONS["path"])
        value = value[match.end() :]
    return os.path.abspath(value)


def _list(name: str, value: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not parts:
        raise UsageError(f"{name} is empty or not set", hint=OPTIONS[name])
    return parts


def _servers(url: str) -> tuple[tuple[str, int], ...]:
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme != "rocketmq":
        raise UsageError(f"url {shown_url(url)!r} is invalid", hint=OPTIONS["url"])
    if has_credentials(url):
        raise UsageError(
            f"url {shown_url(url)!r} contains a user or a password, which are not supported", hint=OPTIONS["url"]
        )
    servers = []
    for part in rest.rstrip("/").split(";"):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise UsageError(f"url {shown_url(url)!r} has a part that is not HOST:PORT", hint=OPTIONS["url"])
        servers.append((host.strip("[]"), int(port)))
    return tuple(servers)


def _count(name: str, values: Mapping[str, str]) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name} is {text!r}", hint="a whole number, at least 1")
    return int(text)


def _flag(name: str, values: Mapping[str, str], *, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} is {text!r}", hint="true or false")
    return text == "true"


def _duration_ms(name: str, values: Mapping[str, str], default: int) -> int:
    if name not in values:
        return default
    match = _DURATION.fullmatch(values[name].strip())
    if match is None:
        raise UsageError(f"{name} is {values[name]!r}", hint=OPTIONS[name])
    return int(float(match[1]) * _UNIT_MS[match[2] or "s"])


def _bounds(name: str, values: Mapping[str, str], otherwise: int, topics: tuple[str, ...]) -> Bounds | None:
    """``otherwise``: EARLIEST or LATEST, for queues that the JSON does not contain."""
    if name not in values:
        return None
    text = values[name].strip()
    if text.lower() == "earliest":
        return Bounds(EARLIEST, {})
    if text.lower() == "latest":
        return Bounds(LATEST, {})
    of_stream = False
    try:
        decoded = json.loads(text)
        if isinstance(decoded, dict) and decoded.get("v") == 1 and isinstance(decoded.get("queues"), dict):
            decoded = decoded["queues"]  # a stream offset, as in checkpoints and progress reports
            of_stream = True
        queues = _offsets_of(decoded)
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}: {error}", hint=OPTIONS["startingOffsets"]) from error
    unsubscribed = sorted(queues.keys() - set(topics))
    if unsubscribed:
        raise UsageError(f"{name} contains topics that are not subscribed: {', '.join(unsubscribed)}")
    return Bounds(otherwise, queues, of_stream)


def _offsets_of(decoded: Any) -> dict[str, dict[str, int]]:
    if not isinstance(decoded, dict) or not all(isinstance(queues, dict) for queues in decoded.values()):
        raise ValueError("not of the form {topic: {queue: offset}}")
    for topic, queues in decoded.items():
        for queue, offset in queues.items():
            if not _QUEUE.fullmatch(queue):
                raise ValueError(f"{queue!r} is not a queue of {topic}: queues are numbers, in a cluster BROKER:NUMBER")
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
                raise ValueError(f"offset of {topic}/{queue} is {offset!r}")
    return {topic: dict(queues) for topic, queues in decoded.items()}
