"""What can be said of the settings of ``reconcile`` before Spark starts; the job itself: tests/spark/jobs/test_reconcile.py."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs.reconcile import Settings, check, total

GOOD: dict[str, Any] = {
    "key": ("id",),
    "database": "sqlite://",
    "table": "orders",
    "url": "rocketmq://h:1",
    "topics": ("t",),
}


def test_good_settings_pass() -> None:
    planned, settle_ms = check(Settings(**GOOD, settle="60s"))
    assert (len(planned.keys), settle_ms) == (1, 60_000)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"table_path": "t"}, "one of --database and --table-path"),
        ({"database": None}, "one of --database and --table-path"),
        ({"query": "q"}, "one of --table and --query"),
        ({"table": None}, "one of --table and --query"),
        ({"table": None, "query": "q", "where_table": "w"}, "condition into --query"),
        ({"database": None, "table_path": "t"}, "need --database"),
        ({"database": "shop"}, "not a URL"),
        ({"path": "p"}, "both --url and --path"),
        ({"messages_path": "m"}, "instead of a broker"),
        ({"examples": -1}, "--examples is negative"),
        ({"differences": "."}, "makes a new directory"),
        ({"json": "no/such/directory/r.json"}, "no directory for --json"),
        ({"database": None, "table": None, "table_path": "t", "settle": "1s"}, "--settle needs --database"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    given: dict[str, Any], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=error):
        check(Settings(**{**GOOD, **given}))


def test_settle_has_a_unit() -> None:
    found = [check(Settings(**GOOD, settle=text))[1] for text in ("500ms", "2 s", "5m", "1h")]
    assert found == [500, 2_000, 300_000, 3_600_000]
    for wrong in ("0s", "60", "-1s", "1 day", ""):
        with pytest.raises(UsageError, match="--settle"):
            check(Settings(**GOOD, settle=wrong))


def test_totals_are_exact_as_far_as_numbers_are() -> None:
    exact = total("c", [Decimal("0.10"), None, Decimal(5)], [Decimal("5.11")], Decimal(0))
    assert (exact.table, exact.messages, exact.off, exact.differs) == (
        Decimal("5.1"),
        Decimal("5.11"),
        Decimal("0.01"),
        True,
    )
    assert not total("c", [10], [9], Decimal(1)).differs
    assert total("c", [100], [98], Decimal(1)).off == -2
    assert not total("c", [0.1, 0.2], [0.3], Decimal(0)).differs
    assert total("c", [0.1], [0.2], Decimal(0)).differs


def test_totals_of_doubles_have_the_digits_that_doubles_have() -> None:
    found = total("c", [993_851.72000000017], [Decimal("993851.72")], Decimal(0))
    assert (str(found.table), str(found.messages), str(found.off), found.differs) == (
        "993851.72",
        "993851.72",
        "0",
        False,
    )


def test_totals_have_all_digits_of_decimals() -> None:
    """Python's decimals round sums to 28 digits unless told otherwise, and Spark's have 38."""
    ours, theirs = Decimal("12345678901234567890123456789012.01"), Decimal("12345678901234567890123456789012.02")
    found = total("c", [ours], [theirs], Decimal(0))
    assert (found.table, found.messages, found.off, found.differs) == (ours, theirs, Decimal("0.01"), True)
    assert not total("c", [ours, ours], [ours, ours], Decimal(0)).differs


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_totals_of_numbers_that_are_none(number: str) -> None:
    """Python's ``json.dumps`` writes NaN and Infinity, and Spark reads them."""
    value = float(number)
    assert total("c", [1.0], [value, 2.0], Decimal(5)).differs
    assert total("c", [value], [1.0], Decimal(5)).differs
    assert not total("c", [value, 1.0], [1.0, value], Decimal(0)).differs
    assert total("c", [float("inf"), float("-inf")], [0.0], Decimal(0)).differs
