"""Options of writing with ``format("halfmq")``, and their validation. Spark passes names in lower case."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from halfmq import limits
from halfmq.client.outgoing import checked_topic
from halfmq.errors import UsageError
from halfmq.model.address import ServerUrl, parse_url
from halfmq.model.ids import checked_name
from halfmq.model.query_batch import BATCH_MAX, QUERY_CHARS_MAX
from halfmq.spark.options import OPTIONS as OPTIONS_OF_READING
from halfmq.spark.options import Option, choice, read_options, size_bytes, whole_number

EXACTLY_ONCE: Final = "exactlyOnce"
AT_LEAST_ONCE: Final = "atLeastOnce"
GROUP_DEFAULT: Final = "halfmq-spark"
#: The broker verifies a half batch on its event loop, so a larger one delays other clients by milliseconds. Small ones cost more: each
#: takes half a millisecond, and a row 1 to 2 us.
HALF_BATCH_BYTES: Final = 1 << 20
HALF_BATCH_ROWS: Final = 2_500
_HALF_BATCH_BYTES_MIN: Final = 4 << 10
_APP_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{QUERY_CHARS_MAX}}}")
_version: Final = whole_number(0, BATCH_MAX, f"a whole number from 0 to {BATCH_MAX}, larger for each write")

#: Empty values count as not given.
OPTIONS: Final = {
    "url": Option(
        "rocketmq://HOST:PORT[;HOST:PORT...], name servers of one halfmq broker, which is a name server too; or of what guarantee allows",
        lambda name, text: parse_url(text)),
    "guarantee": Option(
        "exactlyOnce (default), to one halfmq broker; or atLeastOnce, to halfmq or Apache RocketMQ: rows become visible one by one, "
        "also those of a batch that fails, and a repeated attempt sends them again with the same message ids",
        choice(EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE),
    "topic": Option("topic of all rows; overrides the column", lambda name, text: checked_topic(text.strip()), ""),
    "group": Option(
        "producer group; default halfmq-spark", lambda name, text: checked_name(text.strip(), "group", limits.GROUP_CHARS_MAX), GROUP_DEFAULT),
    "txnAppId": Option(
        "name of the writing application on the broker, 1 to 40 characters A-Z a-z 0-9 . _ -; default: the id of the query", default=""),
    "txnVersion": Option(
        "batch writes only: number of this write; one that was written before with txnAppId is not written again", _version, -1),
    "brokerTimeout": OPTIONS_OF_READING["brokerTimeout"],
    "maxHalfBatchBytes": Option("bytes of one request to a broker, which also has at most 2,500 rows; default 1m"),
    "checkpointLocation": Option(
        "streams: Spark's checkpoint, a directory of the driver's machine; batch writes in foreachBatch: that of the stream, whose "
        "batch txnVersion is",
        default=""),
    # Spark passes what ``queryName`` was called with.
    "queryName": Option("streams only: the name of the query in Spark; nothing else depends on it"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options."""

    url: ServerUrl
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
        raise UsageError("path is for reading: writing needs a running broker", hint=f"url = {OPTIONS['url'].text}")
    values = {name: option.default for name, option in OPTIONS.items()} | read_options(given, OPTIONS, skip_empty=True)
    if values["url"] is None:
        raise UsageError("url is not set", hint=OPTIONS["url"].text)
    app_id = values["txnAppId"]
    if app_id and _APP_ID.fullmatch(app_id) is None:
        raise UsageError(f"txnAppId is {app_id!r}", hint=OPTIONS["txnAppId"].text)
    at_least_once = values["guarantee"] == AT_LEAST_ONCE
    largest = limits.BODY_BYTES_MAX if at_least_once else limits.HALF_BATCH_BYTES_MAX
    size = size_bytes(_HALF_BATCH_BYTES_MIN, largest, f"bytes, or 512k; 4k to {largest >> 20}m")
    request_bytes = values["maxHalfBatchBytes"]
    return SinkOptions(
        url=values["url"],
        topic=values["topic"],
        group=values["group"],
        app_id=app_id,
        version=values["txnVersion"],
        broker_timeout_ms=values["brokerTimeout"],
        request_bytes=HALF_BATCH_BYTES if request_bytes is None else size("maxHalfBatchBytes", request_bytes),
        checkpoint=values["checkpointLocation"],
        at_least_once=at_least_once,
    )
