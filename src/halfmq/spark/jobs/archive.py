"""``halfmq pipeline archive``: topics to one table that outlives retention, exactly once.

OUTPUT               the table: messages with all that ``replay`` needs to send them again
OUTPUT/_checkpoint   where the job is; start it again at any time

Bodies are decompressed; everything else is as it was stored. ``broker`` is null for one halfmq broker: it tells queues of several
brokers apart.
"""

from typing import Annotated, Final

from msgspec import Meta

from halfmq.errors import UsageError
from halfmq.spark.jobs import session, source, table_job
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.stream import Say
from halfmq.spark.jobs.table_job import Part, TableSettings
from halfmq.spark.jobs.tables import unchanged

COLUMNS: Final = (
    "topic", "queue", "offset", "timestamp", "key", "tag", "keys", "message_id", "transaction_id", "value", "properties",
    "broker",
)  # fmt: skip


class Settings(TableSettings, frozen=True, kw_only=True):
    hold: Annotated[
        str | None,
        Meta(
            description="Consumer group of this job alone, for which the broker keeps messages until they are archived."
        ),
    ] = None


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Write messages of topics into a table that outlives retention, exactly once, for `halfmq pipeline replay` and for queries.

    Start it again at any time, also after a kill: it continues where it was.
    """
    held = {}
    if settings.hold:
        if settings.path:
            raise UsageError("--hold needs a broker", hint="use --url instead of --path")
        held = {"group": settings.hold, "publishPosition": "true", "hold": "true"}
        source.refuse_own(settings.options, dict.fromkeys(held, "--hold"))
    given = source.reader_options(settings, COLUMNS, **table_job.stream_options(settings), **held)
    with table_job.opened("archive", settings, {}) as output:
        source.announce(given, say, follow=settings.follow)
        running = session.start("archive", spark)
        reader = running.readStream.format("halfmq").options(**given).load()
        parts = [Part("archive", output)]
        table_job.run(reader, "archive", settings, {}, parts, unchanged, say)
        say(f"{output}: {table_job.counted(parts)}")
    return 0
