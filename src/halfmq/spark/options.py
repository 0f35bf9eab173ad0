"""Options of ``format("halfmq")`` and their validation.

Names are those of Spark's Kafka source where the meaning is the same. Spark passes names in lower case. Unknown names are
rejected with the list of options, since a misspelt option would otherwise have no effect.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from halfmq.errors import UsageError
from halfmq.model.address import ServerUrl, parse_url
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
_BYTES: Final = re.compile(r"(\d{1,18})\s*([kmgt]?)b?", re.ASCII | re.IGNORECASE)
_UNIT_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_INT64_MAX: Final = (1 << 63) - 1

#: (name of the option, its text) -> its value. Raises UsageError, which names it.
Parse = Callable[[str, str], Any]


def as_given(name: str, text: str) -> str:
    return text.strip()


def whole_number(least: int, most: int, hint: str) -> Parse:
    """A whole number from ``least`` to ``most``."""

    def parse(name: str, text: str) -> int:
        text = text.strip()
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            raise UsageError(f"{name} is {text!r}", hint=hint)
        return int(text)

    return parse


def choice(*choices: str) -> Parse:
    """One of ``choices``, in any case of letters."""

    def parse(name: str, text: str) -> str:
        for one in choices:
            if one.lower() == text.strip().lower():
                return one
        raise UsageError(f"{name} is {text.strip()!r}", hint=" or ".join(choices))

    return parse


def duration_ms(unit: str = "s") -> Parse:
    """A duration as milliseconds. ``unit``: of a number without one; empty: rejected, since Spark's Kafka source has ms."""

    def parse(name: str, text: str) -> int:
        match = _DURATION.fullmatch(text.strip())
        if match is None or not (match[2] or unit):
            hint = OPTIONS[name].text if name in OPTIONS else "500ms, 30s, 5m, 2h, 1d"
            raise UsageError(f"{name} is {text!r}", hint=hint)
        return int(float(match[1]) * _UNIT_MS[match[2] or unit])

    return parse


def size_bytes(
    least: int = 1, most: int = _INT64_MAX, hint: str = "bytes, at least 1; or with a unit: 64k, 16m, 1g"
) -> Parse:
    """A size as bytes, from ``least`` to ``most``."""

    def parse(name: str, text: str) -> int:
        match = _BYTES.fullmatch(text.strip())
        size = -1 if match is None else int(match[1]) * _UNIT_BYTES[match[2].lower()]
        if not least <= size <= most:
            raise UsageError(f"{name} is {text!r}", hint=hint)
        return size

    return parse


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise UsageError(f"{name} is {text.strip().lower()!r}", hint="true or false")
    return text.strip().lower() == "true"


def _tags(name: str, text: str) -> tuple[str, ...]:
    """The tags; empty: all messages."""
    hint = OPTIONS[name].text
    if not text.strip().startswith("["):
        tags = tags_of(text)
        if not tags and text.strip() not in ("", EVERYTHING) and EVERYTHING not in map(str.strip, text.split("||")):
            raise UsageError(f"tags is {text!r}, which names no tag", hint=hint)
        return tuple(dict.fromkeys(tags))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"tags is {text!r}: {error}", hint=hint) from error
    if not found or not all(isinstance(tag, str) and tag for tag in found):
        raise UsageError(f"tags is {text!r}", hint=hint)
    return tuple(dict.fromkeys(found))


def _names(name: str, text: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise UsageError(f"{name} is empty or not set", hint=OPTIONS[name].text)
    return parts


def _pattern(name: str, text: str) -> str:
    pattern = text.strip()
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{name} is {pattern!r}: {error}", hint="a regular expression in Python's syntax") from error
    if not pattern:
        raise UsageError(f"{name} is empty", hint=OPTIONS[name].text)
    return pattern


def _path(name: str, text: str) -> str:
    """The absolute path; ``file:`` URLs are literal (without % escapes), as elsewhere in Spark."""
    match = _URL.match(text)
    if match is not None:
        if match["scheme"] not in (None, "file") or (match["host"] or "localhost") != "localhost":
            raise UsageError(f"path {text!r} is not a directory of this machine", hint=OPTIONS[name].text)
        text = text[match.end() :]
    return os.path.abspath(text)


_count: Final = whole_number(1, _INT64_MAX, "a whole number, at least 1")
_half_index: Final = whole_number(0, _INT64_MAX, "a half index: a whole number, from 0")


class Option(NamedTuple):
    """``text``: its description, as in error messages; ``default``: its value unless it is given."""

    text: str
    parse: Parse = as_given
    default: Any = None


OPTIONS: Final = {
    "url": Option("rocketmq://HOST:PORT[;HOST:PORT...], name servers: read from brokers", lambda name, text: parse_url(text)),
    "path": Option("data directory of a broker on this machine: read its files directly", _path, ""),
    "view": Option(
        "what a row is: messages (default); batch only: transactions, or half (undecided half messages)", choice(*_COLUMNS_OF_VIEW), VIEW_MESSAGES),
    "startingHalf": Option("views transactions and half: the first half index to read", _half_index),
    "endingHalf": Option("views transactions and half: the half index to end before", _half_index),
    "subscribe": Option("topics, separated by commas", _names),
    "subscribePattern": Option(
        "instead of subscribe: a regular expression (Python) that matches whole names of topics", _pattern),
    "tags": Option('tags, as "a || b" or JSON ["a","b"]: only messages with one of them', _tags, ()),
    "startingOffsets": Option(
        'earliest, latest, or JSON {"topic":{"queue":offset}} (-2 earliest, -1 latest) or a stream offset'),
    "startingTimestamp": Option("milliseconds since 1970: start at the first message of each queue stored then or later"),
    "startingOffsetsByTimestamp": Option('JSON {"topic":{"queue":milliseconds}}'),
    "startingOffsetsByTimestampStrategy": Option(
        "a queue without a message at or after the start: error (default) or latest", choice("error", "latest")),
    "endingOffsets": Option("batch only: latest, or JSON as above"),
    "endingTimestamp": Option(
        "batch only: milliseconds since 1970: end before the first message of each queue stored then or later"),
    "endingOffsetsByTimestamp": Option('batch only: JSON {"topic":{"queue":milliseconds}}'),
    "maxOffsetsPerTrigger": Option("stream only: maximum number of messages of a trigger", _count),
    "maxBytesPerTrigger": Option(
        "stream only: maximum stored bytes of a trigger: a number, or with a unit (64k, 16m, 1g)", size_bytes()),
    "minOffsetsPerTrigger": Option("stream only: number of messages to wait for, at most for maxTriggerDelay", _count),
    "maxTriggerDelay": Option(
        "stream only: how long minOffsetsPerTrigger may delay a trigger, with a unit (30s, 15m); default 15m", duration_ms(unit=""), TRIGGER_DELAY_MS),
    "minPartitions": Option("minimum number of tasks of a read", _count),
    "maxRecordsPerPartition": Option("maximum number of messages of a task", _count),
    "failOnDataLoss": Option(
        "true (default): fail if messages are missing; false: warn and continue with the remaining ones", _flag, True),
    "brokerTimeout": Option(
        "how long to wait for an unavailable broker: seconds, or with a unit (500ms, 30s, 5m); default 120s", duration_ms(), BROKER_TIMEOUT_MS),
    "columns": Option(
        "columns, separated by commas; fewer are faster; properties, headers and broker are not in the default", _names),
    "includeHeaders": Option("true adds column headers; default false", _flag, False),
    "verifyBodies": Option(
        "path only: true verifies the CRC of each body; default false; with url it is always verified", _flag, False),
    "group": Option(
        "consumer group in pull requests; no offsets are stored, unless publishPosition is true", default=GROUP_DEFAULT),
    "hold": Option(
        "with publishPosition: true lets the halfmq broker keep messages until the query has read them; default false", _flag, False),
    "publishPosition": Option(
        "url and stream only: true commits the position of the query as offsets of group; default false", _flag, False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """Validated options. Exactly one of ``url`` and ``path`` is set."""

    url: ServerUrl | None
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
    view: str
    starting_half: int | None
    ending_half: int | None

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of ``subscribe``; empty with ``subscribePattern``."""
        return self.subscription.names

    def for_batch(self) -> "Options":
        """Check the options for a batch read.

        Raises:
            UsageError: an option is for streams only, or the batch could not contain anything.
        """
        for field in ("max_offsets_per_trigger", "max_bytes_per_trigger", "min_offsets_per_trigger"):
            if getattr(self, field) is not None:
                raise UsageError(f"{_proper(field)} is for streams", hint="endingOffsets bounds a batch")
        if isinstance(self.starting, Bounds) and _contains(self.starting, LATEST):
            raise UsageError("startingOffsets of a batch cannot be latest", hint="there would be nothing to read")
        if isinstance(self.ending, Bounds) and _contains(self.ending, EARLIEST):
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
        where = self.path if self.url is None else self.url.shown
        if self.view != VIEW_MESSAGES:
            return f"halfmq[{where}, view={self.view}]"
        tags = f", tags={' || '.join(self.tags)}" if self.tags else ""
        return f"halfmq[{where}, {self.subscription}{tags}]"


def _contains(bounds: Bounds, special: int) -> bool:
    return bounds.everywhere == special or any(special in queues.values() for queues in bounds.queues.values())


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse and validate the options that Spark passes.

    Raises:
        UsageError: an option is unknown, missing or invalid; the text names it.
    """
    values = read_options(given, OPTIONS)
    is_set = {name for name in OPTIONS if name in values}
    values = {name: option.default for name, option in OPTIONS.items()} | values
    if bool(values["url"]) == bool(values["path"]):
        raise UsageError(
            "both url and path are set" if values["path"] else "neither url nor path is set",
            hint=f"one of them: url = {OPTIONS['url'].text}; path = {OPTIONS['path'].text}",
        )
    view = values["view"]
    _check_view(view, is_set)
    subscription = _subscription(values, is_set) if view == VIEW_MESSAGES else Subscription()
    rows_max, rows_min = values["maxOffsetsPerTrigger"], values["minOffsetsPerTrigger"]
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise UsageError(
            f"minOffsetsPerTrigger {rows_min} is more than maxOffsetsPerTrigger {rows_max}",
            hint="no trigger could read as many",
        )
    group = values["group"] or GROUP_DEFAULT
    _check_position(values, group)
    made = {
        "url": values["url"],
        "subscription": subscription,
        "starting": _bounds("starting", values, EARLIEST, subscription),
        "ending": _bounds("ending", values, LATEST, subscription),
        "without_match_latest": values["startingOffsetsByTimestampStrategy"] == "latest",
        "max_trigger_delay_ms": values["maxTriggerDelay"],
        "broker_timeout_ms": values["brokerTimeout"],
        "columns": _columns(values, view),
        "group": group,
    }
    plain = {one.name: values[_proper(one.name)] for one in fields(Options) if one.name not in made}
    return Options(**made, **plain)


def _proper(field: str) -> str:
    """The name of the option, in Spark's spelling, of a field of ``Options`` that is its value."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


def _check_view(view: str, is_set: Collection[str]) -> None:
    for name in is_set:
        if view == VIEW_MESSAGES and name in ("startingHalf", "endingHalf"):
            raise UsageError(f"{name} is for view=transactions and view=half", hint="startingOffsets bounds messages")
        if view != VIEW_MESSAGES and name not in _OPTIONS_OF_TABLE:
            raise UsageError(
                f"{name} has no effect with view={view}, which reads all topics",
                hint=f"remove it, and filter the rows; options of this view are {', '.join(sorted(_OPTIONS_OF_TABLE))}",
            )


def _check_position(values: Mapping[str, Any], group: str) -> None:
    if values["publishPosition"]:
        if not values["url"]:
            raise UsageError("publishPosition needs a broker", hint="set url instead of path")
        if group == GROUP_DEFAULT:
            raise UsageError(
                "publishPosition needs the name of a consumer group", hint="set group to a name for this query alone"
            )
    elif values["hold"]:
        raise UsageError("hold needs the position of the query", hint="set publishPosition=true and group")


def _subscription(values: Mapping[str, Any], is_set: Collection[str]) -> Subscription:
    if {"subscribe", "subscribePattern"} <= {*is_set}:
        raise UsageError("both subscribe and subscribePattern are set", hint="one of them")
    if "subscribePattern" in is_set:
        return Subscription(pattern=values["subscribePattern"])
    return Subscription(values["subscribe"] or _names("subscribe", ""))


def _columns(values: Mapping[str, Any], view: str) -> tuple[str, ...]:
    known, usual = _COLUMNS_OF_VIEW[view]
    columns = tuple(dict.fromkeys(name.lower() for name in values["columns"] or usual))
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise UsageError(f"no such column: {', '.join(unknown)}", hint=f"there are {', '.join(known)}")
    return (*columns, HEADERS) if values["includeHeaders"] and HEADERS not in columns else columns


def read_options(
    given: Mapping[str, str], options: Mapping[str, Option], *, skip_empty: bool = False
) -> dict[str, Any]:
    """The values that are given, by the proper names of ``options``, parsed. ``skip_empty``: without those that are blank.

    Raises:
        UsageError: an option is unknown, and the text lists the valid ones; or invalid.
    """
    refuse_table(given)
    proper = {name.lower(): name for name in options}
    unknown = [name for name in given if name.lower() not in proper]
    if unknown:
        known = "; ".join(f"{name}: {option.text}" for name, option in options.items())
        raise UsageError(f"unknown option {', '.join(sorted(unknown))}", hint=f"options are {known}")
    named = {proper[name.lower()]: text for name, text in given.items() if text.strip() or not skip_empty}
    return {name: options[name].parse(name, text) for name, text in named.items()}


def refuse_table(given: Mapping[str, str]) -> None:
    """Raise UsageError for options that come from ``CREATE TABLE``."""
    if _TABLE_MARK in given:
        raise UsageError(
            "CREATE TABLE ... USING halfmq is not possible: Spark does not pass the options of a table to a Python source",
            hint="CREATE TEMPORARY VIEW ... USING halfmq OPTIONS (...)",
        )


def _bounds(
    prefix: str, values: Mapping[str, Any], otherwise: int, subscription: Subscription
) -> Bounds | TimeBounds | None:
    """The bounds of ``prefix``, "starting" or "ending": the first option of three that is set. Precedent: Spark's Kafka source.

    ``otherwise``: EARLIEST or LATEST, for queues that the JSON does not contain.
    """
    if (text := values[f"{prefix}Timestamp"]) is not None:
        return parse_time(f"{prefix}Timestamp", text)
    if (text := values[name := f"{prefix}OffsetsByTimestamp"]) is not None:
        return parse_times(name, text, subscription, OPTIONS["startingOffsetsByTimestamp"].text)
    if (text := values[name := f"{prefix}Offsets"]) is not None:
        return parse_offsets(name, text, otherwise, subscription, OPTIONS["startingOffsets"].text)
    return None
