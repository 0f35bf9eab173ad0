"""The reconciliation: source file, shop database, visible messages, loyalty database and Spark tables, to the cent.

    python -m demo.reconcile DIRECTORY        while a broker runs on the directory's store

What there should be is worked out anew from the Parquet file in the wheel, by the two business rules; nothing that the
services wrote is believed. Exit status 1 on any difference.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, Select, select

from demo import loyalty_db, shop_db
from demo.compare import EXAMPLES_MAX, Cells, Finding, compare, compare_cells
from demo.data import NOTHING_TO_PAY, UNKNOWN_PRODUCT, read_catalogue, read_source
from demo.messages import LoyaltyMessage, OrderMessage, RevenueMessage
from demo.run import LOYALTY_TOPIC, ORDERS_TOPIC, REVENUE_TOPIC, Run
from demo.shop_db import connect
from demo.views import Ints, View, ints
from demo.wire_view import read_all
from halfmq import Message
from halfmq.spark.jobs.reconciliation import Kind, from_json

#: Numbers of a line in the order message.
_LINE = ("product_id", "quantity", "cents")


@dataclass(frozen=True)
class Expected:
    """What the source file and the rules say."""

    baskets: int
    orders: View
    #: Reason -> baskets.
    rejected: dict[str, int]
    points: Cells
    revenue: Cells


@dataclass(frozen=True)
class Result:
    expected: Expected
    findings: list[Finding]
    #: By department and day, as a consumer of Spark's topic adds it up.
    revenue: Cells

    @property
    def differences(self) -> int:
        return sum(finding.differences for finding in self.findings)


# --- what there should be ----------------------------------------------------------------------------------------


def expect(baskets: int) -> Expected:
    source = read_source(baskets)
    everything = _view_of_table("source", source)
    known = pc.is_in(source["product_id"], value_set=read_catalogue()["product_id"].combine_chunks())
    unknown = np.unique(source["basket_id"].to_numpy()[~known.to_numpy()])
    nothing = everything.cents == 0
    unknown_only = np.isin(everything.basket_ids, unknown) & ~nothing
    accepted = ~nothing & ~unknown_only
    orders = everything.only(accepted)
    lines = source.filter(pc.is_in(source["basket_id"], value_set=pa.array(orders.basket_ids)))
    rejected = {NOTHING_TO_PAY: int(nothing.sum()), UNKNOWN_PRODUCT: int(unknown_only.sum())}
    return Expected(len(everything.basket_ids), orders, rejected, _points(lines), _revenue(lines))


def _view_of_table(name: str, lines: pa.Table) -> View:
    return View.of_lines(
        name, *(ints(lines[column].to_numpy()) for column in ("basket_id", "product_id", "quantity", "sales_cents"))
    )


def _points(lines: pa.Table) -> Cells:
    baskets = lines.group_by(["basket_id", "household_id"]).aggregate([("sales_cents", "sum")])
    points: Counter[tuple[object, ...]] = Counter()
    for household, cents in zip(
        baskets["household_id"].to_pylist(), baskets["sales_cents_sum"].to_pylist(), strict=True
    ):
        points[household,] += cents // 100
    return dict(points)


def _revenue(lines: pa.Table) -> Cells:
    days = lines.append_column("day", lines["sold_at"].cast(pa.date32()))
    sums = days.group_by(["department", "day"]).aggregate([("sales_cents", "sum")])
    return _cells(sums, ("department", "day"), "sales_cents_sum")


def _cells(table: pa.Table, keys: Sequence[str], value: str) -> Cells:
    columns = [table[key].to_pylist() for key in keys]
    return dict(zip(zip(*columns, strict=True), table[value].to_pylist(), strict=True))


# --- what there is -----------------------------------------------------------------------------------------------


def shop_findings(url: str, expected: Expected) -> list[Finding]:
    engine = connect(url)
    table = shop_db.lines
    ids, products, quantity, cents = _columns(
        engine, select(table.c.basket_id, table.c.product_id, table.c.quantity, table.c.sales_cents), 4
    )
    lines = View.of_lines("shop database: lines", ids, products, quantity, cents)
    order_ids, totals = _columns(engine, select(shop_db.orders.c.basket_id, shop_db.orders.c.total_cents), 2)
    with engine.connect() as connection:
        reasons = Counter(connection.scalars(select(shop_db.rejections.c.reason)))
    engine.dispose()
    return [
        compare(expected.orders, View("shop database: orders", order_ids, totals)),
        compare(expected.orders, lines),
        compare_cells(
            "shop database: rejections, by reason",
            {(reason,): count for reason, count in expected.rejected.items() if count},
            {(reason,): count for reason, count in reasons.items()},
            is_count=True,
        ),
    ]


def _columns(engine: Engine, statement: Select[tuple[int, ...]], count: int) -> list[Ints]:
    with engine.connect() as connection:
        rows = connection.execute(statement).all()
    return [ints([row[column] for row in rows]) for column in range(count)]


def message_findings(messages: dict[str, list[Message]], expected: Expected) -> list[Finding]:
    orders = [message.decode(OrderMessage) for message in messages[ORDERS_TOPIC]]
    loyalty = [message.decode(LoyaltyMessage) for message in messages[LOYALTY_TOPIC]]
    # Each message by itself, so that a second one for the same basket stays a second one.
    numbered = [(number, line) for number, order in enumerate(orders) for line in order.lines]
    folded = View.of_lines(
        "",
        ints([number for number, _ in numbered]),
        *(ints([getattr(line, column) for _, line in numbered]) for column in _LINE),
    )
    orders_view = View(
        "messages: orders",
        ints([order.basket_id for order in orders]),
        ints([order.total_cents for order in orders]),
        folded.lines,
        folded.quantity,
        folded.checksum,
    )
    loyalty_view = View(
        "messages: loyalty", ints([one.basket_id for one in loyalty]), ints([one.total_cents for one in loyalty])
    )
    return [compare(expected.orders, orders_view), compare(expected.orders, loyalty_view)]


def loyalty_findings(url: str, expected: Expected) -> list[Finding]:
    engine = connect(url)
    ids, cents = _columns(engine, select(loyalty_db.entries.c.basket_id, loyalty_db.entries.c.total_cents), 2)
    households, points = _columns(engine, select(loyalty_db.balances.c.household_id, loyalty_db.balances.c.points), 2)
    engine.dispose()
    balances: Cells = {
        (household,): count for household, count in zip(households.tolist(), points.tolist(), strict=True)
    }
    return [
        compare(expected.orders, View("loyalty database: entries", ids, cents)),
        compare_cells("loyalty database: points", expected.points, balances, is_count=True),
    ]


def revenue_of(messages: list[Message]) -> Cells:
    """What a consumer of the topic that Spark writes adds up; a part that is there twice shows."""
    cells: Counter[tuple[object, ...]] = Counter()
    for message in messages:
        part = message.decode(RevenueMessage)
        cells[part.department, date.fromisoformat(part.day)] += part.cents
    return dict(cells)


def job_finding(path: Path) -> Finding:
    """What ``halfmq pipeline reconcile`` found: the shop's database against the messages, of which this program knows nothing else."""
    found = from_json(path)
    counts, (total,) = found.counts, found.totals
    examples = [f"{kind} {one}" for kind, some in found.examples.items() for one in some[:EXAMPLES_MAX]]
    others = sum(counts.get(kind, 0) for kind in (Kind.REPEATED_ROW, Kind.ROW_WITHOUT_KEY, Kind.UNREADABLE))
    return Finding(
        "halfmq pipeline reconcile", found.messages_read, None, int(total.messages), counts.get(Kind.MISSING, 0),
        counts.get(Kind.PHANTOM, 0), found.extra_messages, counts.get(Kind.DIFFERENT, 0) + others, int(total.off), examples,
    )  # fmt: skip


def table_findings(silver: Path, expected: Expected) -> list[Finding]:
    """The table that ``halfmq pipeline ingest`` made, read with pyarrow, not with the Spark that wrote it."""
    orders = ds.dataset(silver, format="parquet", partitioning="hive", exclude_invalid_files=False).to_table()
    lines = orders["lines"].combine_chunks()
    of_order = orders["basket_id"].combine_chunks().take(pc.list_parent_indices(lines))
    columns = [lines.flatten().field(column).cast(pa.int64()) for column in _LINE]
    return [
        compare(
            expected.orders,
            View("Spark table: orders", ints(orders["basket_id"].to_numpy()), ints(orders["total_cents"].to_numpy())),
        ),
        compare(expected.orders, View.of_lines("Spark table: lines", *(ints(one) for one in (of_order, *columns)))),
    ]


# --- together ----------------------------------------------------------------------------------------------------


def reconcile(run: Run, *, with_spark: bool = True) -> Result:
    """Compare everything. The broker must be running, the services need not be."""
    expected = expect(run.baskets)
    topics = (ORDERS_TOPIC, LOYALTY_TOPIC, *((REVENUE_TOPIC,) if with_spark else ()))
    messages = asyncio.run(read_all(run.url, topics))
    findings = [
        *shop_findings(run.shop_db, expected),
        *message_findings(messages, expected),
        *loyalty_findings(run.loyalty_db, expected),
    ]
    revenue = revenue_of(messages.get(REVENUE_TOPIC, []))
    if with_spark:
        findings.append(job_finding(run.path / "reconcile.json"))
        findings += table_findings(run.path / "tables" / "silver", expected)
        findings.append(compare_cells("messages by Spark: revenue", expected.revenue, revenue))
    return Result(expected, findings, revenue)


#: Columns of the table, with the fields of a finding for the last ones.
HEADINGS = ("where", "records", "lines", "money or count", "missing", "phantom", "twice", "wrong", "off by")


def show(console: Console, result: Result) -> None:
    expected, orders = result.expected, result.expected.orders
    table = Table(title="Reconciliation", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "where" else "right", no_wrap=True)
    table.add_row(
        "source file, by the rules", f"{len(orders.basket_ids):,}", f"{orders.total_lines:,}",
        _money(orders.total_cents), end_section=True,
    )  # fmt: skip
    for one in result.findings:
        money = f"{one.cents:,}" if one.is_count else _money(one.cents)
        counts = (one.missing, one.phantom, one.duplicated, one.different)
        table.add_row(
            one.name, f"{one.records:,}", "" if one.lines is None else f"{one.lines:,}", money,
            *(f"[red]{count:,}[/]" if count else "0" for count in counts),
            f"[red]{one.cents_off:+,}[/]" if one.cents_off else "0",
        )  # fmt: skip
    console.print(table)
    rejected = ", ".join(f"{count:,} with {reason}" for reason, count in expected.rejected.items())
    console.print(f"{expected.baskets:,} baskets in the source; rolled back: {rejected}", highlight=False)
    for one in result.findings:
        for example in one.examples:
            console.print(f"  [red]{one.name}[/]: {example}", highlight=False)
    verdict = "[green]no differences[/]" if not result.differences else f"[red]{result.differences:,} differences[/]"
    console.print(f"Result: {verdict}")


def _money(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}{abs(cents) // 100:,}.{abs(cents) % 100:02}"


def save(run: Run, result: Result) -> None:
    """``reconciliation.json``, for programs."""
    text = msgspec.json.encode(
        {
            "baskets": result.expected.baskets,
            "expected_orders": len(result.expected.orders.basket_ids),
            "expected_cents": result.expected.orders.total_cents,
            "rejected": result.expected.rejected,
            "differences": result.differences,
            "findings": [msgspec.to_builtins(one) for one in result.findings],
        }
    )
    (run.path / "reconciliation.json").write_bytes(msgspec.json.format(text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--without-spark", action="store_true")
    arguments = parser.parse_args()
    run = Run.load(arguments.directory)
    result = reconcile(run, with_spark=not arguments.without_spark)
    show(Console(), result)
    save(run, result)
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
