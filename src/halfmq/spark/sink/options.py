"""Options of writing with ``format("halfmq")``, and their validation. Spark passes names in lower case."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from halfmq import limits
from halfmq.client.outgoing import checked_topic
from halfmq.errors import UsageError
from halfmq.model.ids import checked_name
from halfmq.model.query_batch import BATCH_MAX, QUERY_CHARS_MAX
from halfmq.spark.options import BROKER_TIMEOUT_MS, duration_ms, known_options, parse_servers

#: Options and their descriptions, as in error messages.
OPTIONS: Final = {
    "url": "rocketmq://HOST:PORT[;HOST:PORT...], name servers of one halfmq broker, which is a name server too; or of what guarantee allows",
    "guarantee": "exactlyOnce (default), to one halfmq broker; or atLeastOnce, to halfmq or Apache RocketMQ: rows become visible one by one, "
    "also those of a batch that fails, and a repeated attempt sends them again with the same message ids",
    "topic": "topic of all rows; overrides the column",
    "group": "producer group; default halfmq-spark",
    "txnAppId": "name of the writing application on the broker, 1 to 40 characters A-Z a-z 0-9 . _ -; default: the id of the query",
    "txnVersion": "batch writes only: number of this write; one that was written before with txnAppId is not written again",
    "brokerTimeout": "how long to wait for an unavailable broker: seconds, or with a unit (500ms, 30s, 5m); default 120s",
    "maxHalfBatchBytes": "bytes of one request to a broker, which also has at most 2,500 rows; default 1m",
    "checkpointLocation": "streams: Spark's checkpoint, a directory of the driver's machine; batch writes in foreachBatch: that of the stream, whose "
    "batch txnVersion is",
    # Spark passes what ``queryName`` was called with.
    "queryName": "streams only: the name of the query in Spark; nothing else depends on it",
}
EXACTLY_ONCE: Final = "exactlyOnce"
AT_LEAST_ONCE: Final = "atLeastOnce"
GROUP_DEFAULT: Final = "halfmq-spark"
#: The broker verifies a half batch on its event loop, so a larger one delays other clients by milliseconds. Small ones cost more: each takes half a
#: millisecond, and a row 1 to 2 us.
HALF_BATCH_BYTES: Final = 1 << 20
HALF_BATCH_ROWS: Final = 2_500
_HALF_BATCH_BYTES_MIN: Final = 4 << 10
_APP_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{QUERY_CHARS_MAX}}}")
_SIZE: Final = re.compile(r"(\d{1,9})\s*([km]?)", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options."""

    servers: tuple[tuple[str, int], ...]
    #: "": the column names it.
    topic: str
    group: str
    #: "": the id of the query.
    app_id: str
    #: -1: none.
    version: int
    broker_timeout_ms: int
    #: Of one request.
    request_bytes: int
    #: As given; "" for a batch write outside of ``foreachBatch``.
    checkpoint: str
    #: Whether rows are sent as ordinary messages, one by one visible, instead of exactly once.
    at_least_once: bool = False

    def for_batch(self) -> "SinkOptions":
        """Check the options for a batch write.

        Raises:
            UsageError: ``txnAppId`` or ``txnVersion`` without the other, or a checkpoint without them.
        """
        if bool(self.app_id) != (self.version >= 0):
            missing = "txnVersion" if self.app_id else "txnAppId"
            raise UsageError(
                f"{missing} is not set",
                hint="a batch write has both, to be written once however often it is repeated, or none of them",
            )
        if self.checkpoint and not self.app_id and not self.at_least_once:
            raise UsageError(
                "checkpointLocation is set without txnAppId and txnVersion",
                hint="in foreachBatch, txnVersion is the number of the batch, and checkpointLocation that of the stream",
            )
        return self

    def for_stream(self) -> "SinkOptions":
        """Check the options for a stream.

        Raises:
            UsageError: an option is for batch writes, or the checkpoint is not known.
        """
        if self.version >= 0:
            raise UsageError("txnVersion is for batch writes", hint="Spark numbers the batches of a stream")
        if not self.checkpoint and not self.at_least_once:
            raise UsageError(
                "option checkpointLocation is not set on this query: Spark does not tell a sink what the session's configuration says",
                hint='writeStream.option("checkpointLocation", DIRECTORY)',
            )
        return self


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and validate the options that Spark passes.

    Raises:
        UsageError: an option is unknown, missing or invalid; the text names it.
    """
    if any(name.lower() == "path" for name in given):
        raise UsageError("path is for reading: writing needs a running broker", hint=f"url = {OPTIONS['url']}")
    values = known_options(given, OPTIONS)
    if "url" not in values:
        raise UsageError("url is not set", hint=OPTIONS["url"])
    app_id = values.get("txnAppId", "").strip()
    if app_id and _APP_ID.fullmatch(app_id) is None:
        raise UsageError(f"txnAppId is {app_id!r}", hint=OPTIONS["txnAppId"])
    topic = values.get("topic", "").strip()
    group = values.get("group", "").strip() or GROUP_DEFAULT
    at_least_once = _is_at_least_once(values.get("guarantee", "").strip())
    return SinkOptions(
        servers=parse_servers(values["url"]),
        topic=checked_topic(topic) if topic else "",
        group=checked_name(group, "group", limits.GROUP_CHARS_MAX),
        app_id=app_id,
        version=_version(values.get("txnVersion", "").strip()),
        broker_timeout_ms=duration_ms("brokerTimeout", values, BROKER_TIMEOUT_MS),
        request_bytes=_request_bytes(
            values.get("maxHalfBatchBytes", "").strip(),
            limits.BODY_BYTES_MAX if at_least_once else limits.HALF_BATCH_BYTES_MAX,
        ),
        checkpoint=values.get("checkpointLocation", "").strip(),
        at_least_once=at_least_once,
    )


def _version(text: str) -> int:
    if not text:
        return -1
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > BATCH_MAX:
        raise UsageError(f"txnVersion is {text!r}", hint=f"a whole number from 0 to {BATCH_MAX}, larger for each write")
    return int(text)


def _is_at_least_once(text: str) -> bool:
    for name in (EXACTLY_ONCE, AT_LEAST_ONCE):
        if text.lower() == name.lower():
            return name == AT_LEAST_ONCE
    if text:
        raise UsageError(f"guarantee is {text!r}", hint=OPTIONS["guarantee"])
    return False


def _request_bytes(text: str, largest: int) -> int:
    if not text:
        return HALF_BATCH_BYTES
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * _UNITS[match[2].lower()] if match is not None else 0
    if not _HALF_BATCH_BYTES_MIN <= size <= largest:
        raise UsageError(f"maxHalfBatchBytes is {text!r}", hint=f"bytes, or 512k; 4k to {largest >> 20}m")
    return size
