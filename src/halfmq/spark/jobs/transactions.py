"""``halfmq pipeline transactions``: a table with one row for each transaction, which outlives the broker's retention.

    OUTPUT/settled              transactions that were settled when a run read them: they never change; one batch for each run
    OUTPUT/undecided.parquet    those that were undecided at the last run
    OUTPUT/unread.parquet       with --consumers: committed transactions of which a consumer group has not acknowledged all messages
    OUTPUT/_state.json          where the next run begins, and how many the last one found
    OUTPUT/_job.json            the store that is read: half indexes of another one mean other transactions

Half indexes grow with each half that is prepared. A run reads from the lowest one that was undecided at the last run, so it meets every
transaction that is new or may have changed, and leaves out those that it finds in ``settled``. Of those that the last run has met, settled
ones may be past retention by now, since an undecided transaction may outlive it by any time: only the ones that were undecided must still
be there. The state is written last: a run that was killed is done again from the old state, and finds what it has written.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow.parquet as pq
from msgspec import Meta, field

from halfmq.errors import UsageError
from halfmq.spark.jobs import session, source, state, tables
from halfmq.spark.jobs.settings import JobSettings, SparkSettings, parse_list
from halfmq.spark.jobs.source import refuse_own
from halfmq.spark.jobs.stream import JobFailed, Say
from halfmq.spark.jobs.tables import Format, write_files
from halfmq.spark.options import parse_options
from halfmq.spark.plan import data_loss
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.sink.checkpoint import sync
from halfmq.spark.source import open_table

#: The writer of the table ``settled``.
_WRITER: Final = "transactions"
_STATE: Final = "_state.json"
_JOB: Final = "_job.json"
#: Options of the source that the job sets, as for ``refuse_own``.
_OWN: Final = {"url": "--url", "path": "--path", "view": "", "columns": "", "startingHalf": "", "endingHalf": ""}
#: Transactions named in an error.
_NAMED_MAX: Final = 5


class Settings(JobSettings, frozen=True, kw_only=True):
    output: Annotated[
        str, Meta(description="Directory of the tables: local or mounted, the same path on all executors.")
    ]
    url: Annotated[str | None, Meta(description="A halfmq broker, rocketmq://HOST:PORT: read over the network.")] = None
    path: Annotated[str | None, Meta(description="Or the data directory of a broker here: read its files.")] = None
    consumers: Annotated[
        dict[str, str],
        Meta(description="GROUP=TOPIC[,TOPIC...]: also list what this consumer group has not read. With --url."),
    ] = field(default_factory=dict)
    format: Annotated[Format, Meta(description="Format of the table of settled transactions.")] = "parquet"
    options: Annotated[dict[str, str], Meta(description="Further options of the source, NAME=VALUE.")] = field(
        default_factory=dict
    )


class State(msgspec.Struct, frozen=True):
    """``next_half``: all transactions below this half index are settled and written. ``end``: all below are settled and written, or were
    undecided.
    """

    next_half: int
    undecided: int
    end: int


def run(settings: Settings, spark: SparkSettings, say: Say) -> int:
    """Add the transactions that were settled since the last run to a table, and list those that are undecided."""
    if (settings.url is None) == (settings.path is None):
        raise UsageError("exactly one of --url and --path is needed", hint="--url rocketmq://127.0.0.1:9876")
    if settings.consumers and settings.url is None:
        raise UsageError(
            "--consumers needs --url", hint="a broker tells how far its consumer groups are, its files do not"
        )
    refuse_own(settings.options, _OWN)
    output = Path(settings.output).absolute()
    with state.claimed(output / "_lock"), source.spark_errors():
        # The consumers do not count: what they have not read is listed anew by each run.
        pinned = {"job": "transactions", "format": settings.format, "store": _store(settings)}
        state.check(output / _JOB, pinned)
        before = _load(output)
        active = session.start("transactions", spark)
        table = tables.open_table(output / "settled", settings.format, _WRITER)

        rows = _rows(active, settings, before).persist()
        try:
            after = _state_after(rows, before)
            new = rows.where("outcome != 'UNDECIDED'")
            known = _known(active, output, before.next_half if before else 0)
            if before is not None:
                _check_undecided(active, settings, output, before, rows, known)
            if known is not None:
                new = new.join(known, "first_half", "left_anti").select(*rows.columns)
            # Not before it was read: an output without rows must not belong to a store that was given by mistake.
            state.pin(output / _JOB, pinned)
            _add(table, new)
            _replace(rows.where("outcome = 'UNDECIDED'"), output / "undecided.parquet")
        finally:
            rows.unpersist()
        if settings.consumers:
            _replace(_unread(active, settings), output / "unread.parquet")
        _save(output, after)
        for line in _summary(active, output, after, settings):
            say(line)
        return 0


def _rows(spark: Any, settings: Settings, before: State | None) -> Any:
    """The transactions that are new since the last run, or may have changed, and others between these."""
    if before is None:
        return _read(spark, settings)
    newer = _read(spark, settings, startingHalf=str(before.end))
    if before.next_half == before.end:
        return newer
    older = _read(
        spark, settings, startingHalf=str(before.next_half), endingHalf=str(before.end), failOnDataLoss="false"
    )
    return newer.unionByName(older)


def _read(spark: Any, settings: Settings, **bounds: str) -> Any:
    return spark.read.format("halfmq").options(**_options(settings, **bounds)).load()


def _options(settings: Settings, **bounds: str) -> dict[str, str]:
    own = {"url": settings.url, "path": settings.path, "view": "transactions", **bounds}
    lower = {name.lower() for name in own}
    others = {name: value for name, value in settings.options.items() if name.lower() not in lower}
    return others | {name: value for name, value in own.items() if value is not None}


def _store(settings: Settings) -> str:
    """The id of the store that is read. Raises ConnectError: it is not available for ``brokerTimeout``."""
    options = parse_options(_options(settings)).for_batch()
    with closing(open_table(options, RetryDeadline(options.broker_timeout_ms))) as table:
        return table.snapshot().store


def _add(table: tables.BatchTable, new: Any) -> None:
    """Write transactions that are not in the table yet, as its next batch.

    What is written again after a crash is told by ``_known``, not by the number of the batch. The number only has to grow: a table refuses
    one that it has passed.

    Raises:
        JobFailed: they were not written.
    """
    last = table.last()
    batch = 0 if last is None else last + 1
    if not tables.write(table, batch, new, ["first_half", "prepared_at"]):
        raise JobFailed(
            f"nothing was written into {table.location}: it has batch {batch} already",
            hint="start the job again; nothing but this job may write its output",
        )


def _check_undecided(spark: Any, settings: Settings, output: Path, before: State, rows: Any, known: Any | None) -> None:
    """Raises DataLost: a transaction that was undecided at the last run is not there any more."""
    if {name.lower(): value for name, value in settings.options.items()}.get("failondataloss", "").lower() == "false":
        return
    listed = spark.read.parquet(str(output / "undecided.parquet"))
    # After a run that was killed the list may be newer than the state.
    gone = listed.where(f"first_half < {before.end}").join(rows, "first_half", "left_anti")
    if known is not None:
        gone = gone.join(known, "first_half", "left_anti")
    names = [row.transaction_id for row in gone.select("transaction_id").limit(_NAMED_MAX + 1).collect()]
    if names:
        more = " and others" if len(names) > _NAMED_MAX else ""
        shown = f"{', '.join(names[:_NAMED_MAX])}{more}"
        raise data_loss.lost((f"transactions that were undecided at the last run are past retention: {shown}",))


def _state_after(rows: Any, before: State | None) -> State:
    (found,) = rows.selectExpr(
        "min(case when outcome = 'UNDECIDED' then first_half end)",
        "max(first_half) + 1",
        "count_if(outcome = 'UNDECIDED')",
    ).collect()
    lowest, end, undecided = found
    end = max(end or 0, before.end if before else 0)
    return State(end if lowest is None else lowest, undecided, end)


def _known(spark: Any, output: Path, start: int) -> Any | None:
    try:
        return tables.read(spark, output / "settled").where(f"first_half >= {start}").select("first_half")
    except UsageError:
        return None


def _unread(spark: Any, settings: Settings) -> Any:
    """Messages of transactions at and after the offsets of the groups: transaction, topic, number, the oldest."""
    from pyspark.sql import functions as f

    assert settings.url is not None
    found = None
    for group, topics in settings.consumers.items():
        offsets = asyncio.run(_offsets(settings.url, group, parse_list(topics)))
        messages = (
            spark.read.format("halfmq")
            .options(
                url=settings.url,
                subscribe=topics,
                startingOffsets=json.dumps(offsets),
                columns="topic,timestamp,transaction_id",
            )
            .load()
            .where("transaction_id is not null")
            .groupBy("transaction_id", "topic")
            .agg(f.count("*").alias("messages"), f.min("timestamp").alias("visible_since"))
            .select(f.lit(group).alias("consumer_group"), "*")
        )
        found = messages if found is None else found.unionByName(messages)
    return found


async def _offsets(url: str, group: str, topics: tuple[str, ...]) -> Mapping[str, Mapping[str, int]]:
    from halfmq.client.admin import consumer_offsets
    from halfmq.client.async_client import AsyncClient

    async with AsyncClient(url) as mq:
        return {
            topic: {str(queue.queue): offset for queue, offset in (await consumer_offsets(mq, group, topic)).items()}
            for topic in topics
        }


def _replace(rows: Any, path: Path) -> None:
    """One Parquet file with the rows, also if there are none, in place of the last one."""
    from pyspark.sql.pandas.types import to_arrow_schema

    staging = path.with_name(f"_staging-{path.stem}")
    files = write_files(rows.coalesce(1), staging)
    if files:
        written = files[0].path
    else:
        staging.mkdir(exist_ok=True)
        written = staging / "empty.parquet"
        pq.write_table(to_arrow_schema(rows.schema, timezone="UTC").empty_table(), written)
        sync(written)
    os.replace(written, path)
    for left in staging.iterdir():
        left.unlink()
    staging.rmdir()
    sync(path.parent)


def _load(output: Path) -> State | None:
    found = state.read(output / _STATE)
    return None if found is None else msgspec.convert(found, State)


def _save(output: Path, after: State) -> None:
    state.write(output / _STATE, msgspec.to_builtins(after))


def _summary(spark: Any, output: Path, after: State, settings: Settings) -> list[str]:
    try:
        settled = tables.read(spark, output / "settled")
    except UsageError:
        return [f"{output}: no settled transactions yet, {after.undecided:,} undecided"]
    counts = {row.outcome: row["count"] for row in settled.groupBy("outcome").count().collect()}
    lines = [
        f"{output}: {counts.get('COMMITTED', 0):,} committed, {counts.get('ROLLED_BACK', 0):,} rolled back,"
        f" {after.undecided:,} undecided"
    ]
    if settings.consumers:
        found = _unread_counts(spark.read.parquet(str(output / "unread.parquet")))
        lines += [f"  {group}: {found.get(group, 0):,} transactions not read" for group in settings.consumers]
    return lines


def _unread_counts(unread: Any) -> dict[str, int]:
    """Number of transactions by consumer group: a transaction has a row for each of its topics."""
    from pyspark.sql import functions as f

    counted = unread.groupBy("consumer_group").agg(f.countDistinct("transaction_id").alias("transactions"))
    return {row.consumer_group: row.transactions for row in counted.collect()}
