"""The figures of a report, from tables of messages and of transactions. Spark adds up; what comes to the driver is bounded.

Times are divided into at most ``BUCKETS_MAX`` equal intervals, topics and groups are listed up to a number.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from halfmq.errors import UsageError

BUCKETS_MAX: Final = 120
#: Topics, groups and transactions in a table.
LISTED_MAX: Final = 20
_OTHERS: Final = "others"
#: Seconds of an interval: numbers in which people divide time.
_STEPS: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000,
    31_536_000,
)  # fmt: skip
#: Lower ends of the intervals of latencies, in milliseconds, to a day. Precedent: the 1-2-5 series of histograms.
LATENCY_EDGES_MS: Final[tuple[int, ...]] = (0, *(digit * 10**power for power in range(8) for digit in (1, 2, 5)))
PERCENTILES: Final = (50, 90, 95, 99, 99.9)
#: A transaction with more checks counts as one with so many.
CHECKS_SHOWN: Final = 5


class Interval(NamedTuple):
    """``size`` intervals of ``step`` seconds from ``start``, seconds since 1970."""

    start: int
    step: int
    size: int


class Topic(NamedTuple):
    """``bytes``: of bodies, None: not known. ``first``, ``last``: seconds since 1970. ``peak``: messages of the fullest interval."""

    name: str
    messages: int
    bytes: int | None
    first: int
    last: int
    peak: int


class Messages(NamedTuple):
    interval: Interval
    topics: list[Topic]
    #: Topic -> messages of each interval.
    series: dict[str, list[int]]
    #: Topics that are not listed by name.
    others: int


class Group(NamedTuple):
    name: str
    committed: int
    rolled_back: int
    undecided: int
    checks: int

    @property
    def transactions(self) -> int:
        return self.committed + self.rolled_back + self.undecided


class Latencies(NamedTuple):
    """Of settled transactions, in milliseconds. ``counts``: for each of ``LATENCY_EDGES_MS``, those from it to the next one."""

    settled: int
    percentiles: list[int]
    max: int
    counts: list[int]


class Waiting(NamedTuple):
    """An undecided transaction; ``prepared_at`` in seconds since 1970, None: not known."""

    transaction_id: str
    group: str
    prepared_at: int | None
    checks: int
    topics: list[str]


class Transactions(NamedTuple):
    groups: list[Group]
    other_groups: int
    decided_by: list[tuple[str, int]]
    latencies: Latencies | None
    interval: Interval
    #: Undecided at the end of each interval.
    undecided: list[int]
    #: Number of checks, at most ``CHECKS_SHOWN`` -> transactions.
    checks: list[int]
    waiting: list[Waiting]

    @property
    def total(self) -> int:
        return sum(self.checks)


def interval_of(first: int, last: int) -> Interval:
    """Intervals that contain both seconds; the shortest of which there are not too many."""
    for step in _STEPS:
        start = first - first % step
        count = (last - start) // step + 1
        if count <= BUCKETS_MAX:
            return Interval(start, step, count)
    return Interval(first, (last - first) // BUCKETS_MAX + 1, BUCKETS_MAX)


def messages_of(rows: DataFrame) -> Messages | None:
    """Rates of messages by topic; None: there are no messages. Columns as of the source, or of ``silver``.

    Raises:
        UsageError: the table has no such columns.
    """
    # In silver the other names are columns of the bodies, if there are any.
    time = _column(rows, "message_time", "timestamp")
    topic = _column(rows, "message_topic", "topic")
    size = f.length("value") if "value" in rows.columns and "message_topic" not in rows.columns else f.lit(None)
    seconds = (
        rows.groupBy(topic.alias("topic"), f.unix_seconds(time).alias("second"))
        .agg(f.count("*").alias("messages"), f.sum(size.cast("long")).alias("bytes"))
        .persist()
    )
    try:
        first, last = seconds.agg(f.min("second"), f.max("second")).collect()[0]
        if first is None:
            return None
        return _rates(seconds, interval_of(first, last))
    finally:
        seconds.unpersist()


def _column(rows: DataFrame, *names: str) -> Any:
    for name in names:
        if name in rows.columns:
            return f.col(name)
    raise UsageError(
        f"the table of messages has no column {' or '.join(names)}",
        hint=f"it has {', '.join(rows.columns)}; bronze or silver of ingest, or an archive",
    )


def _rates(seconds: DataFrame, interval: Interval) -> Messages:
    by_topic = seconds.groupBy("topic").agg(
        *(f.sum(name).alias(name) for name in ("messages", "bytes")),
        f.min("second").alias("first"),
        f.max("second").alias("last"),
    )
    count = by_topic.count()
    found = by_topic.orderBy(f.desc("messages"), "topic").limit(LISTED_MAX).collect()
    names = [row["topic"] for row in found]
    shown = f.when(f.col("topic").isin(names), f.col("topic")).otherwise(f.lit(_OTHERS))
    buckets = (
        seconds.groupBy(shown.alias("topic"), _bucket("second", interval).alias("bucket"))
        .agg(f.sum("messages").alias("messages"))
        .collect()
    )
    series = {name: [0] * interval.size for name in (*names, *([_OTHERS] if count > len(names) else []))}
    for row in buckets:
        series[row["topic"]][row["bucket"]] += row["messages"]
    topics = [
        Topic(row["topic"], row["messages"], row["bytes"], row["first"], row["last"], max(series[row["topic"]]))
        for row in found
    ]
    return Messages(interval, topics, series, count - len(names))


def _bucket(second: str, interval: Interval) -> Any:
    return f.floor((f.col(second) - interval.start) / interval.step).cast("int")


def transactions_of(rows: DataFrame) -> Transactions | None:
    """Figures of the table that the job ``transactions`` writes; None: it is empty.

    Raises:
        UsageError: it is another table.
    """
    needed = (
        "transaction_id",
        "group",
        "outcome",
        "decided_by",
        "prepared_at",
        "settled_at",
        "latency_ms",
        "checks",
        "topics",
    )
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise UsageError(
            f"the table of transactions has no column {', '.join(missing)}",
            hint="the output of halfmq pipeline transactions",
        )
    rows = rows.select(
        *needed, f.unix_seconds("prepared_at").alias("prepared"), f.unix_seconds("settled_at").alias("settled")
    ).persist()
    try:
        # When a transaction was prepared is unknown after its halves were lost with the indexes.
        times = [one("prepared", "settled") for one in (f.least, f.greatest)]
        first, last = rows.agg(f.min(times[0]), f.max(times[1])).collect()[0]
        if first is None:
            return None
        interval = interval_of(first, last)
        groups, others = _groups(rows)
        checks = _counts(rows.groupBy(f.least("checks", f.lit(CHECKS_SHOWN)).alias("n")).count(), CHECKS_SHOWN + 1)
        decided = rows.where("outcome != 'UNDECIDED'").groupBy("decided_by").count()
        return Transactions(
            groups,
            others,
            [(row[0] or "unknown", row[1]) for row in decided.orderBy(f.desc("count")).limit(LISTED_MAX).collect()],
            _latencies(rows),
            interval,
            undecided_at_ends(
                _counts(rows.groupBy(_bucket("prepared", interval).alias("n")).count(), interval.size),
                _counts(
                    rows.where("settled is not null").groupBy(_bucket("settled", interval).alias("n")).count(),
                    interval.size,
                ),
            ),
            checks,
            _waiting(rows),
        )
    finally:
        rows.unpersist()


def undecided_at_ends(prepared: Sequence[int], settled: Sequence[int]) -> list[int]:
    """How many are undecided at the end of each interval, from those that were prepared and settled in it."""
    return list(accumulate(a - b for a, b in zip(prepared, settled, strict=True)))


def _counts(rows: DataFrame, size: int) -> list[int]:
    counts = [0] * size
    for row in rows.collect():
        counts[row[0] or 0] += row[1]
    return counts


def _groups(rows: DataFrame) -> tuple[list[Group], int]:
    outcomes = {"committed": "COMMITTED", "rolled_back": "ROLLED_BACK", "undecided": "UNDECIDED"}
    found = rows.groupBy("group").agg(
        *(f.count_if(f.col("outcome") == outcome).alias(name) for name, outcome in outcomes.items()),
        f.sum("checks").alias("checks"),
        f.count("*").alias("transactions"),
    )
    count = found.count()
    listed = found.orderBy(f.desc("transactions"), "group").limit(LISTED_MAX).collect()
    return [Group(row["group"], *(row[name] for name in (*outcomes, "checks"))) for row in listed], count - len(listed)


def _latencies(rows: DataFrame) -> Latencies | None:
    settled = rows.where("latency_ms is not null")
    bucket = f.size(f.filter(f.array(*map(f.lit, LATENCY_EDGES_MS[1:])), lambda edge: edge <= f.col("latency_ms")))
    number, highest, percentiles = settled.agg(
        f.count("*"),
        f.max("latency_ms"),
        f.percentile_approx("latency_ms", [one / 100 for one in PERCENTILES]),
    ).collect()[0]
    if not number:
        return None
    counts = _counts(settled.groupBy(bucket.alias("n")).count(), len(LATENCY_EDGES_MS))
    return Latencies(number, list(percentiles), highest, counts)


def _waiting(rows: DataFrame) -> list[Waiting]:
    oldest = rows.where("outcome = 'UNDECIDED'").orderBy("prepared", "transaction_id").limit(LISTED_MAX).collect()
    return [
        Waiting(row["transaction_id"], row["group"], row["prepared"], row["checks"], list(row["topics"] or ()))
        for row in oldest
    ]


def latency_place(latency_ms: int) -> float:
    """Where a latency lies on an axis on which each interval of ``LATENCY_EDGES_MS`` is 1 wide."""
    edges: tuple[int, ...] = (*LATENCY_EDGES_MS, LATENCY_EDGES_MS[-1] * 2)
    index = min(max(bisect_left(edges, latency_ms + 1) - 1, 0), len(LATENCY_EDGES_MS) - 1)
    return index + min(1.0, (latency_ms - edges[index]) / (edges[index + 1] - edges[index]))
