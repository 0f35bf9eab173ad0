"""Options of ``format("halfmq")`` and their validation.

Names are those of Spark's Kafka source where the meaning is the same. Spark passes names in lower case. Unknown names are
rejected with the list of options, since a misspelt option would otherwise have no effect.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from halfmq.errors import UsageError
from halfmq.model.urls import has_credentials, server_host, shown_url
from halfmq.spark.plan.bounds import EARLIEST, LATEST, Bounds, TimeBounds, parse_offsets, parse_time, parse_times
from halfmq.spark.plan.subscription import Subscription
from halfmq.wire.remoting.heartbeat import EVERYTHING, tags_of

#: All columns; the last three are not in the default schema. Spark converts maps and arrays slowly: ``properties`` doubles the time of
#: a scan (Spark's Kafka source excludes headers by default for the same reason). ``broker`` is of use in a cluster only.
COLUMNS: Final = (
    "key", "value", "topic", "queue", "offset", "timestamp", "tag", "keys", "message_id", "transaction_id", "properties",
    "headers", "broker",
)  # fmt: skip
COLUMNS_DEFAULT: Final = COLUMNS[:-3]
HEADERS: Final = "headers"

#: What a row is: a committed message, a transaction, or an undecided half message.
VIEW_MESSAGES: Final = "messages"
VIEW_TRANSACTIONS: Final = "transactions"
VIEW_HALF: Final = "half"
#: Columns of the other views, and those of them that are built unless ``columns`` selects some.
TRANSACTION_COLUMNS: Final = (
    "transaction_id", "group", "outcome", "decided_by", "prepared_at", "settled_at", "latency_ms", "checks", "parked", "halves",
    "messages", "message_bytes", "topics", "first_half", "verdict_position",
)  # fmt: skip
HALF_COLUMNS: Final = (
    "transaction_id", "group", "topic", "queue", "key", "value", "tag", "keys", "prepared_at", "checks", "next_check_at",
    "parked", "half_index", "properties",
)  # fmt: skip
_COLUMNS_OF_VIEW: Final = {
    VIEW_MESSAGES: (COLUMNS, COLUMNS_DEFAULT),
    VIEW_TRANSACTIONS: (TRANSACTION_COLUMNS, TRANSACTION_COLUMNS),
    VIEW_HALF: (HALF_COLUMNS, HALF_COLUMNS[:-1]),
}
#: Options that count for a view of transactions; the others choose messages, and would have no effect.
_OPTIONS_OF_TABLE: Final = frozenset(
    {"url", "path", "view", "startingHalf", "endingHalf", "columns", "minPartitions", "failOnDataLoss", "brokerTimeout"}
)

#: Options and their descriptions, as in error messages.
OPTIONS: Final = {
    "url": "rocketmq://HOST:PORT[;HOST:PORT...], name servers: read from brokers",
    "path": "data directory of a broker on this machine: read its files directly",
    "view": "what a row is: messages (default); batch only: transactions, or half (undecided half messages)",
    "startingHalf": "views transactions and half: the first half index to read",
    "endingHalf": "views transactions and half: the half index to end before",
    "subscribe": "topics, separated by commas",
    "subscribePattern": "instead of subscribe: a regular expression (Python) that matches whole names of topics",
    "tags": 'tags, as "a || b" or JSON ["a","b"]: only messages with one of them',
    "startingOffsets": 'earliest, latest, or JSON {"topic":{"queue":offset}} (-2 earliest, -1 latest) or a stream offset',
    "startingTimestamp": "milliseconds since 1970: start at the first message of each queue stored then or later",
    "startingOffsetsByTimestamp": 'JSON {"topic":{"queue":milliseconds}}',
    "startingOffsetsByTimestampStrategy": "a queue without a message at or after the start: error (default) or latest",
    "endingOffsets": "batch only: latest, or JSON as above",
    "endingTimestamp": "batch only: milliseconds since 1970: end before the first message of each queue stored then or later",
    "endingOffsetsByTimestamp": 'batch only: JSON {"topic":{"queue":milliseconds}}',
    "maxOffsetsPerTrigger": "stream only: maximum number of messages of a trigger",
    "maxBytesPerTrigger": "stream only: maximum stored bytes of a trigger: a number, or with a unit (64k, 16m, 1g)",
    "minOffsetsPerTrigger": "stream only: number of messages to wait for, at most for maxTriggerDelay",
    "maxTriggerDelay": "stream only: how long minOffsetsPerTrigger may delay a trigger, with a unit (30s, 15m); default 15m",
    "minPartitions": "minimum number of tasks of a read",
    "maxRecordsPerPartition": "maximum number of messages of a task",
    "failOnDataLoss": "true (default): fail if messages are missing; false: warn and continue with the remaining ones",
    "brokerTimeout": "how long to wait for an unavailable broker: seconds, or with a unit (500ms, 30s, 5m); default 120s",
    "columns": "columns, separated by commas; fewer are faster; properties, headers and broker are not in the default",
    "includeHeaders": "true adds column headers; default false",
    "verifyBodies": "path only: true verifies the CRC of each body; default false; with url it is always verified",
    "group": "consumer group in pull requests; no offsets are stored, unless publishPosition is true",
    "hold": "with publishPosition: true lets the halfmq broker keep messages until the query has read them; default false",
    "publishPosition": "url and stream only: true commits the position of the query as offsets of group; default false",
}
#: Spark's catalog adds this property to the options when a table is created (``CREATE TABLE ... USING halfmq``). Spark 4.3 does not
#: pass the table's options when it is read: a Python source gets none at all.
_TABLE_MARK: Final = "provider"

#: Spark does not restart a failed query, so the source waits for a restart of the broker; ample for recovery.
BROKER_TIMEOUT_MS: Final = 120_000
#: Precedent: Spark's Kafka source.
TRIGGER_DELAY_MS: Final = 900_000
#: Predefined in RocketMQ brokers for administration, so pulls do not create a group.
GROUP_DEFAULT: Final = "TOOLS_CONSUMER"

_URL: Final = re.compile(r"(?:(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<host>[^/]*)|file:)(?=/)", re.ASCII)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?", re.ASCII)
_BYTES: Final = re.compile(r"(\d+)\s*([kmgt]?)b?", re.ASCII | re.IGNORECASE)
_UNIT_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Options:
    """Validated options. Exactly one of ``servers`` and ``path`` is set."""

    servers: tuple[tuple[str, int], ...]
    path: str
    subscription: Subscription
    #: Empty: messages with any tag, and those without one.
    tags: tuple[str, ...]
    #: None: not set; a stream then starts at the latest offsets, a batch at the earliest.
    starting: Bounds | TimeBounds | None
    ending: Bounds | TimeBounds | None
    #: Start a queue at its end if ``starting`` is a time after its last message; otherwise this is an error.
    without_match_latest: bool
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    broker_timeout_ms: int
    columns: tuple[str, ...]
    group: str
    #: The wire reader always verifies.
    verify_bodies: bool
    #: Whether offsets are committed for ``group``.
    publish_position: bool
    #: Whether retention waits for ``group``.
    hold: bool
    #: VIEW_MESSAGES, or VIEW_TRANSACTIONS or VIEW_HALF, of which only the halves from ``starting_half`` on, before ``ending_half``.
    view: str = VIEW_MESSAGES
    starting_half: int | None = None
    ending_half: int | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of ``subscribe``; empty with ``subscribePattern``."""
        return self.subscription.names

    def for_batch(self) -> "Options":
        """Check the options for a batch read.

        Raises:
            UsageError: an option is for streams only, or the batch could not contain anything.
        """
        for name, value in (
            ("maxOffsetsPerTrigger", self.max_offsets_per_trigger),
            ("maxBytesPerTrigger", self.max_bytes_per_trigger),
            ("minOffsetsPerTrigger", self.min_offsets_per_trigger),
        ):
            if value is not None:
                raise UsageError(f"{name} is for streams", hint="endingOffsets bounds a batch")
        if isinstance(self.starting, Bounds) and _names(self.starting, LATEST):
            raise UsageError("startingOffsets of a batch cannot be latest", hint="there would be nothing to read")
        if isinstance(self.ending, Bounds) and _names(self.ending, EARLIEST):
            raise UsageError("endingOffsets cannot be earliest", hint="there would be nothing to read")
        return self

    def for_stream(self) -> "Options":
        """Check the options for a stream.

        Raises:
            UsageError: the end is set, or the view is not one of messages.
        """
        if self.view != VIEW_MESSAGES:
            raise UsageError(
                f"view={self.view} cannot be streamed: a stream returns each row once, and a row of a transaction changes when it is "
                "decided",
                hint="read it in batches, with startingHalf at the first half that was undecided; docs/spark-options.md, Views",
            )
        if self.ending is not None:
            raise UsageError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch reads",
                hint="use trigger(availableNow=True) to stop at the end",
            )
        return self

    def __str__(self) -> str:
        """Where and what is read, for messages and logs."""
        where = self.path or "rocketmq://" + ";".join(f"{host}:{port}" for host, port in self.servers)
        if self.view != VIEW_MESSAGES:
            return f"halfmq[{where}, view={self.view}]"
        tags = f", tags={' || '.join(self.tags)}" if self.tags else ""
        return f"halfmq[{where}, {self.subscription}{tags}]"


def _names(bounds: Bounds, special: int) -> bool:
    return bounds.everywhere == special or any(special in queues.values() for queues in bounds.queues.values())


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse and validate the options that Spark passes.

    Raises:
        UsageError: an option is unknown, missing or invalid; the text names it.
    """
    values = known_options(given, OPTIONS)
    servers = parse_servers(values["url"]) if "url" in values else ()
    path = _path(values["path"]) if "path" in values else ""
    if bool(servers) == bool(path):
        raise UsageError(
            "both url and path are set" if path else "neither url nor path is set",
            hint=f"one of them: url = {OPTIONS['url']}; path = {OPTIONS['path']}",
        )
    view = _view(values)
    subscription = _subscription(values) if view == VIEW_MESSAGES else Subscription()
    rows_max, rows_min = _count("maxOffsetsPerTrigger", values), _count("minOffsetsPerTrigger", values)
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise UsageError(
            f"minOffsetsPerTrigger {rows_min} is more than maxOffsetsPerTrigger {rows_max}",
            hint="no trigger could read as many",
        )
    return Options(
        servers=servers,
        path=path,
        subscription=subscription,
        tags=_tags(values.get("tags", EVERYTHING)),
        starting=_bounds("starting", values, EARLIEST, subscription),
        ending=_bounds("ending", values, LATEST, subscription),
        without_match_latest=_choice("startingOffsetsByTimestampStrategy", values, ("error", "latest")) == "latest",
        max_offsets_per_trigger=rows_max,
        max_bytes_per_trigger=size_bytes("maxBytesPerTrigger", values),
        min_offsets_per_trigger=rows_min,
        max_trigger_delay_ms=duration_ms("maxTriggerDelay", values, TRIGGER_DELAY_MS, unit=""),
        min_partitions=_count("minPartitions", values),
        max_records_per_partition=_count("maxRecordsPerPartition", values),
        fail_on_data_loss=_flag("failOnDataLoss", values, default=True),
        broker_timeout_ms=duration_ms("brokerTimeout", values, BROKER_TIMEOUT_MS),
        columns=_columns(values, view),
        group=values.get("group", "").strip() or GROUP_DEFAULT,
        verify_bodies=_flag("verifyBodies", values, default=False),
        publish_position=_publish_position(values),
        hold=_hold(values),
        view=view,
        starting_half=_half_index("startingHalf", values),
        ending_half=_half_index("endingHalf", values),
    )


def _view(values: Mapping[str, str]) -> str:
    view = _choice("view", values, tuple(_COLUMNS_OF_VIEW))
    for name in values:
        if view == VIEW_MESSAGES and name in ("startingHalf", "endingHalf"):
            raise UsageError(f"{name} is for view=transactions and view=half", hint="startingOffsets bounds messages")
        if view != VIEW_MESSAGES and name not in _OPTIONS_OF_TABLE:
            raise UsageError(
                f"{name} has no effect with view={view}, which reads all topics",
                hint=f"remove it, and filter the rows; options of this view are {', '.join(sorted(_OPTIONS_OF_TABLE))}",
            )
    return view


def _half_index(name: str, values: Mapping[str, str]) -> int | None:
    if name not in values:
        return None
    text = values[name].strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{name} is {text!r}", hint="a half index: a whole number, from 0")
    return int(text)


def _hold(values: Mapping[str, str]) -> bool:
    if not _flag("hold", values, default=False):
        return False
    if not _publish_position(values):
        raise UsageError("hold needs the position of the query", hint="set publishPosition=true and group")
    return True


def _publish_position(values: Mapping[str, str]) -> bool:
    name = "publishPosition"
    if not _flag(name, values, default=False):
        return False
    if "url" not in values:
        raise UsageError(f"{name} needs a broker", hint="set url instead of path")
    if values.get("group", "").strip() in ("", GROUP_DEFAULT):
        raise UsageError(f"{name} needs the name of a consumer group", hint="set group to a name for this query alone")
    return True


def _subscription(values: Mapping[str, str]) -> Subscription:
    if "subscribePattern" not in values:
        return Subscription(_list("subscribe", values.get("subscribe", "")))
    if "subscribe" in values:
        raise UsageError("both subscribe and subscribePattern are set", hint="one of them")
    pattern = values["subscribePattern"].strip()
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"subscribePattern is {pattern!r}: {error}", hint="a regular expression in Python's syntax"
        ) from error
    if not pattern:
        raise UsageError("subscribePattern is empty", hint=OPTIONS["subscribePattern"])
    return Subscription(pattern=pattern)


def _tags(text: str) -> tuple[str, ...]:
    """The tags; empty: all messages."""
    if not text.strip().startswith("["):
        tags = tags_of(text)
        if not tags and text.strip() not in ("", EVERYTHING) and EVERYTHING not in _parts(text):
            raise UsageError(f"tags is {text!r}, which names no tag", hint=OPTIONS["tags"])
        return tuple(dict.fromkeys(tags))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"tags is {text!r}: {error}", hint=OPTIONS["tags"]) from error
    if not found or not all(isinstance(tag, str) and tag for tag in found):
        raise UsageError(f"tags is {text!r}", hint=OPTIONS["tags"])
    return tuple(dict.fromkeys(found))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split("||")]


def _columns(values: Mapping[str, str], view: str) -> tuple[str, ...]:
    known, usual = _COLUMNS_OF_VIEW[view]
    columns = usual
    if "columns" in values:
        columns = tuple(dict.fromkeys(name.lower() for name in _list("columns", values["columns"])))
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise UsageError(f"no such column: {', '.join(unknown)}", hint=f"there are {', '.join(known)}")
    if _flag("includeHeaders", values, default=False) and HEADERS not in columns:
        columns = (*columns, HEADERS)
    return columns


def known_options(given: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """The values by the proper names of ``options`` (name -> description).

    Raises:
        UsageError: an option is unknown; the text lists the valid ones.
    """
    refuse_table(given)
    proper = {name.lower(): name for name in options}
    unknown = [name for name in given if name.lower() not in proper]
    if unknown:
        known = "; ".join(f"{name}: {text}" for name, text in options.items())
        raise UsageError(f"unknown option {', '.join(sorted(unknown))}", hint=f"options are {known}")
    return {proper[name.lower()]: value for name, value in given.items()}


def refuse_table(given: Mapping[str, str]) -> None:
    """Raise UsageError for options that come from ``CREATE TABLE``."""
    if _TABLE_MARK in given:
        raise UsageError(
            "CREATE TABLE ... USING halfmq is not possible: Spark does not pass the options of a table to a Python source",
            hint="CREATE TEMPORARY VIEW ... USING halfmq OPTIONS (...)",
        )


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


def parse_servers(url: str) -> tuple[tuple[str, int], ...]:
    """(host, port) of each name server of ``rocketmq://HOST:PORT[;HOST:PORT...]``.

    Raises:
        UsageError: it has another form, or a user or password.
    """
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
        servers.append((server_host(host), int(port)))
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


def duration_ms(name: str, values: Mapping[str, str], default: int, unit: str = "s") -> int:
    """Option ``name`` as milliseconds. ``unit``: of a number without one; empty: it is rejected, as Spark's Kafka source takes it for
    milliseconds. Raises UsageError.
    """
    if name not in values:
        return default
    match = _DURATION.fullmatch(values[name].strip())
    if match is None or not (match[2] or unit):
        raise UsageError(f"{name} is {values[name]!r}", hint=OPTIONS.get(name, "500ms, 30s, 5m, 2h, 1d"))
    return int(float(match[1]) * _UNIT_MS[match[2] or unit])


def size_bytes(name: str, values: Mapping[str, str]) -> int | None:
    """The size under ``name``, bytes; None: there is none. Raises UsageError, which names it."""
    if name not in values:
        return None
    match = _BYTES.fullmatch(values[name].strip())
    if match is None or int(match[1]) < 1:
        raise UsageError(f"{name} is {values[name]!r}", hint="bytes, at least 1; or with a unit: 64k, 16m, 1g")
    return int(match[1]) * _UNIT_BYTES[match[2].lower()]


def _choice(name: str, values: Mapping[str, str], choices: tuple[str, ...]) -> str:
    """One of ``choices``; the first is the default."""
    text = values.get(name, choices[0]).strip().lower()
    if text not in choices:
        raise UsageError(f"{name} is {text!r}", hint=" or ".join(choices))
    return text


def _bounds(
    prefix: str, values: Mapping[str, str], otherwise: int, subscription: Subscription
) -> Bounds | TimeBounds | None:
    """The bounds of ``prefix``, "starting" or "ending": the first option of three that is set. Precedent: Spark's Kafka source.

    ``otherwise``: EARLIEST or LATEST, for queues that the JSON does not contain.
    """
    if (name := f"{prefix}Timestamp") in values:
        return parse_time(name, values[name].strip())
    if (name := f"{prefix}OffsetsByTimestamp") in values:
        return parse_times(name, values[name].strip(), subscription, OPTIONS["startingOffsetsByTimestamp"])
    if (name := f"{prefix}Offsets") in values:
        return parse_offsets(name, values[name].strip(), otherwise, subscription, OPTIONS["startingOffsets"])
    return None
