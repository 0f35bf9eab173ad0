"""``halfmq pipeline report``: one HTML page with figures and plots, which loads nothing from elsewhere.

Its parts are independent: rates of messages, figures of transactions, the result of a reconciliation.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import jinja2
from msgspec import Meta

from halfmq import __version__
from halfmq.errors import UsageError
from halfmq.printable import printable
from halfmq.spark.jobs import reconciliation, report_plots, session, source, tables
from halfmq.spark.jobs.report_figures import (
    CHECKS_SHOWN,
    LATENCY_EDGES_MS,
    PERCENTILES,
    Messages,
    messages_of,
    transactions_of,
)
from halfmq.spark.jobs.settings import SparkSettings
from halfmq.spark.jobs.source import SourceSettings, check_source, shown_source
from halfmq.spark.jobs.stream import Say

_COLUMNS: Final = ("topic", "timestamp", "value")


class Settings(SourceSettings, frozen=True, kw_only=True):
    output: Annotated[str, Meta(description="The HTML file; an existing one is replaced.")] = "report.html"
    title: Annotated[str, Meta(description="Heading of the page.")] = "halfmq"
    messages_path: Annotated[
        str | None,
        Meta(description="Instead of a broker: a table of messages: bronze or silver of ingest, an archive."),
    ] = None
    transactions: Annotated[
        str | None, Meta(description="Figures of transactions: the output of halfmq pipeline transactions.")
    ] = None
    reconciliation: Annotated[
        str | None, Meta(description="Result of a reconciliation: the file that reconcile --json wrote.")
    ] = None


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Write one HTML page: rates of messages, latencies and outcomes of transactions, a reconciliation; each part is optional."""
    check(settings)
    result = None
    if settings.reconciliation is not None:
        result = reconciliation.from_json(Path(settings.reconciliation))
    parts: dict[str, Any] = {"reconciliation": result}
    if _has_messages(settings) or settings.transactions is not None:
        active = session.start("report", spark)
        with source.spark_errors():
            if _has_messages(settings):
                say(f"messages of {shown_source(settings, settings.messages_path)}")
                parts["messages"] = _messages(active, settings)
            if settings.transactions is not None:
                say(f"transactions of {settings.transactions}")
                parts["transactions"] = transactions_of(_transactions(active, settings.transactions))
    output = Path(settings.output)
    staged = output.with_name(f"{output.name}.new")
    staged.write_text(render(settings, parts), encoding="utf-8")
    os.replace(staged, output)
    say(f"wrote {output.absolute()}")
    return 0


def check(settings: Settings) -> None:
    """What can be said before Spark starts.

    Raises:
        UsageError: there is nothing to report, or settings do not belong together.
    """
    if not (_has_messages(settings) or settings.transactions or settings.reconciliation):
        raise UsageError(
            "nothing to report",
            hint="give one or more of --url with --topics, --messages-path, --transactions, --reconciliation",
        )
    if settings.messages_path is not None:
        if settings.url or settings.path or settings.topics or settings.pattern:
            raise UsageError("--messages-path is used instead of a broker and topics")
    elif _has_messages(settings):
        check_source(settings)
    if not Path(settings.output).absolute().parent.is_dir():
        raise UsageError(f"there is no directory for --output {settings.output}")


def _has_messages(settings: Settings) -> bool:
    given = (settings.url, settings.path, settings.messages_path, settings.pattern)
    return bool(settings.topics) or any(one is not None for one in given)


def _messages(spark: Any, settings: Settings) -> Messages | None:
    if settings.messages_path is not None:
        return messages_of(source.read_table(spark, settings.messages_path))
    return messages_of(source.read_topics(spark, settings, _COLUMNS))


def _transactions(spark: Any, location: str) -> Any:
    """The settled and the undecided ones; or a single table."""
    directory = Path(location)
    parts = []
    if ((directory / "settled").exists() and any((directory / "settled").glob("batch_id=*"))) or (
        directory / "settled" / "_delta_log"
    ).exists():
        parts.append(tables.read(spark, directory / "settled"))
    if (directory / "undecided.parquet").exists():
        parts.append(spark.read.parquet(str(directory / "undecided.parquet")))
    if not parts:
        return source.read_table(spark, location)
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)


# --- the page -----------------------------------------------------------------------------------------------------


def render(settings: Settings, parts: dict[str, Any]) -> str:
    """The page. ``parts``: ``messages``, ``transactions``, ``reconciliation``; a part that is named and None is an empty one."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("halfmq.spark.jobs", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Plots are markup, and make their text printable themselves.
        finalize=lambda value: value if hasattr(value, "__html__") else printable(str(value)),
    )
    environment.filters |= {
        "number": lambda value: "" if value is None else f"{value:,}",
        "exact": lambda value: f"{value:,f}",
        "difference": lambda value: f"{value:+,f}",
        "rate": lambda value: f"{value:,.0f}/s" if value >= 100 else f"{value:.3g}/s",
        "bytes": shown_bytes,
        "time": lambda seconds: (
            "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
        ),
        "duration": lambda milliseconds: "" if milliseconds is None else report_plots.duration(milliseconds),
        "percent": lambda part, whole: f"{100 * part / whole:.2f} %" if whole else "",
    }
    return environment.get_template("report.html.j2").render(
        title=settings.title,
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        source=shown_source(settings, settings.messages_path) if _has_messages(settings) else None,
        transactions_source=settings.transactions,
        messages=parts.get("messages"),
        transactions=parts.get("transactions"),
        result=parts.get("reconciliation"),
        shown_counts=reconciliation.shown_counts,
        meaning=reconciliation.MEANING,
        plots=report_plots,
        percentiles=PERCENTILES,
        edges=LATENCY_EDGES_MS,
        checks_shown=CHECKS_SHOWN,
    )


def shown_bytes(count: int | None) -> str:
    """``1.5 MiB``; empty: not known."""
    if count is None:
        return ""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1_024:
            break
        size, unit = size / 1_024, larger
    return f"{count:,} B" if unit == "B" else f"{size:,.1f} {unit}"
