"""Settings of jobs that read topics, and the stream of their messages."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, field

from halfmq.errors import UsageError
from halfmq.spark.jobs.settings import JobSettings


class TopicSettings(JobSettings, frozen=True, kw_only=True):
    url: Annotated[str | None, Meta(description="Name server, rocketmq://HOST:PORT: read over the network.")] = None
    path: Annotated[str | None, Meta(description="Or the data directory of a broker here: read its files.")] = None
    topics: Annotated[tuple[str, ...], Meta(description="Topics, separated by commas.")] = ()
    pattern: Annotated[str | None, Meta(description="Or a regular expression that matches names of topics.")] = None
    options: Annotated[dict[str, str], Meta(description="Further options of the source, NAME=VALUE.")] = field(
        default_factory=dict
    )


def check(settings: TopicSettings) -> None:
    """Raises UsageError: not exactly one place, or not exactly one way of naming topics."""
    if (settings.url is None) == (settings.path is None):
        raise UsageError("exactly one of --url and --path is needed", hint="--url rocketmq://127.0.0.1:9876")
    if bool(settings.topics) == (settings.pattern is not None):
        raise UsageError("exactly one of --topics and --pattern is needed")


def source_options(settings: TopicSettings, columns: Sequence[str], **more: str) -> dict[str, str]:
    """Options of ``format("halfmq")``; those of the settings win."""
    given = {
        "url": settings.url,
        "path": settings.path,
        "subscribe": ",".join(settings.topics) or None,
        "subscribePattern": settings.pattern,
        "columns": ",".join(columns),
        "startingOffsets": "earliest",
        **more,
        **settings.options,
    }
    return {name: value for name, value in given.items() if value is not None}


def read_stream(spark: Any, settings: TopicSettings, columns: Sequence[str], max_rows: int, **more: str) -> Any:
    options = source_options(settings, columns, maxOffsetsPerTrigger=str(max_rows), **more)
    return spark.readStream.format("halfmq").options(**options).load()
