"""``halfmq pipeline archive``: topics into one table, whole and exactly once, for longer than the broker keeps them.

    OUTPUT/messages         the table: every message with all its properties, as ``replay`` needs it
    OUTPUT/_archive.json    what is archived: a later run must have the same settings
    OUTPUT/_checkpoint      where the job stands; it may be killed and started again at any time

Rows go from the source to Parquet within the Python tasks, and never enter the JVM.
"""

from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from halfmq.errors import UsageError
from halfmq.spark.jobs import kept, session, stream, tables, topics
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import Say
from halfmq.spark.jobs.tables import Format
from halfmq.spark.jobs.topics import TopicSettings
from halfmq.spark.sink.checkpoint import Checkpoint

TABLE: Final = "messages"
COLUMNS: Final = (
    "topic", "queue", "offset", "timestamp", "key", "tag", "keys", "message_id", "transaction_id", "value", "properties",
)  # fmt: skip


class Settings(TopicSettings, frozen=True, kw_only=True):
    output: Annotated[
        str, Meta(description="Directory of the archive: local or mounted, the same path on all executors.")
    ]
    hold: Annotated[
        str | None,
        Meta(
            description="Consumer group of this archive: retention waits until it has read the topics. With --url and --topics."
        ),
    ] = None
    format: Annotated[Format, Meta(description="Format of the table.")] = "parquet"
    follow: Annotated[bool, Meta(description="Go on with new messages until SIGTERM; else end at what is there.")] = (
        False
    )
    trigger_seconds: Annotated[float, Meta(description="With --follow: time between two batches.")] = 60.0
    max_rows: Annotated[int, Meta(description="Messages of a batch, at most.")] = 1_000_000


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Copy topics into a table that outlives retention, exactly once; replay sends them again."""
    topics.check(settings)
    if settings.hold is not None and (settings.url is None or not settings.topics):
        raise UsageError("--hold needs --url and --topics", hint="it is a setting of the broker for named topics")
    output = Path(settings.output).absolute()
    kept.keep(output, "_archive.json", {name: getattr(settings, name) for name in ("topics", "pattern", "format")})
    active = session.start("archive", spark)
    checkpoint = Checkpoint(str(output / "_checkpoint"))

    def write(batch: Any, number: int) -> None:
        checkpoint.secure(number)
        table = tables.open_table(output / TABLE, settings.format, checkpoint.query_id())
        table.write(number, batch, ["offset", "timestamp"])

    holding = {"group": settings.hold, "publishPosition": "true", "hold": "true"} if settings.hold else {}
    rows = topics.read_stream(active, settings, COLUMNS, settings.max_rows, **holding)
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint.directory))
    if settings.follow:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
    stream.run(writer, say, follow=settings.follow)
    try:
        say(f"{output}: {tables.read(active, output / TABLE).count():,} messages")
    except UsageError:
        say(f"{output}: no messages yet")
    return 0
