"""The page of ``report``: parts that were given, whole and alone in one file."""

import xml.etree.ElementTree as ET
from collections import Counter
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs import report
from halfmq.spark.jobs.reconciliation import Example, Kind, Result, Total
from halfmq.spark.jobs.report import Settings, check, render, shown_bytes
from halfmq.spark.jobs.report_figures import (
    LATENCY_EDGES_MS,
    Group,
    Interval,
    Latencies,
    Messages,
    Topic,
    Transactions,
    Waiting,
)
from halfmq.spark.jobs.settings import SparkSettings

RESULT = Result(
    table="orders in sqlite:///shop.db", messages="orders in rocketmq://h:1", read_at="2026-11-24T10:00:00.000+00:00", rows=1_000,
    messages_read=999, equal=998, counts=dict.fromkeys(Kind, 0) | {Kind.MISSING: 1}, extra_messages=0, compared=["total"],
    totals=[Total("total", Decimal("12345.6"), Decimal(12345), Decimal("-0.6"), True)],
    examples={Kind.MISSING: [Example(key={"id": "<b>7"}, rows=1, messages=0)]},
)  # fmt: skip
MESSAGES = Messages(
    Interval(1_795_500_000, 60, 3),
    [
        Topic("orders", 600, 2_048, 1_795_500_000, 1_795_500_179, 300),
        Topic("_a$b<i>", 6, None, 1_795_500_000, 1_795_500_060, 3),
    ],
    {"orders": [300, 200, 100], "_a$b<i>": [3, 3, 0], "others": [1, 0, 0]},
    4,
)
TRANSACTIONS = Transactions(
    [Group("shop", 900, 90, 10, 5), Group("<i>", 1, 0, 0, 0)],
    2,
    [("producer", 990)],
    Latencies(990, [12, 45, 80, 400, 90_000], 90_000, [1 if edge in (10, 50_000) else 0 for edge in LATENCY_EDGES_MS]),
    Interval(1_795_500_000, 60, 3),
    [5, 20, 10],
    [980, 15, 4, 1, 0, 0],
    [Waiting("7F00000100", "shop", 1_795_500_100, 2, ["orders"])],
)


class Page(HTMLParser):
    """Tags that are closed in order, ids, and what a page would load."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.loaded: list[str] = []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        self.seen[tag] += 1
        if "id" in values:
            self.ids[values["id"]] += 1
        for name in ("src", "href", "xlink:href"):
            if name in values and not values[name].startswith("#"):
                self.loaded.append(values[name])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(**parts: Any) -> str:
    given = {"url": "rocketmq://h:1", "topics": ("orders",)} if "messages" in parts else {}
    if "transactions" in parts:
        given["transactions"] = "tables/transactions"
    return render(Settings(title="Shop & <Co>", **given), parts)


def test_page_is_whole_and_loads_nothing() -> None:
    text = page(messages=MESSAGES, transactions=TRANSACTIONS, reconciliation=RESULT)
    assert text.startswith("<!doctype html>\n<html lang")
    found = Page(text)
    assert found.seen["svg"] == 5
    assert found.seen["table"] == 8
    assert found.loaded == []
    for outside in ("<script", "<link", "<img", "@import", "url(http"):
        assert outside not in text
    assert found.ids
    assert max(found.ids.values()) == 1
    assert "Shop &amp; &lt;Co&gt;" in text
    assert "<b>7" not in text
    for figure in (
        "12,345.6",
        "-0.6",
        "2.0 KiB",
        "5/s",
        "1.5 min",
        "9.00 %",
        "7F00000100",
        "4 more topics",
        "2 more groups",
    ):
        assert figure in text


def test_plots_are_xml_with_ids_of_their_own_and_a_description() -> None:
    text = page(messages=MESSAGES)
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert "orders" in (root.get("aria-label") or "")
    used = {value[1:] for one in root.iter() for name, value in one.attrib.items() if name.endswith("href")}
    assert used <= {one.get("id") for one in root.iter()}


@pytest.mark.parametrize(
    ("parts", "heading"),
    [
        ({"reconciliation": RESULT}, "Reconciliation"),
        ({"messages": MESSAGES}, "Messages"),
        ({"messages": None}, "No messages."),
        ({"transactions": TRANSACTIONS}, "Transactions"),
        ({"transactions": TRANSACTIONS._replace(latencies=None, waiting=[], decided_by=[])}, "None is undecided"),
        ({"transactions": None}, "No transactions."),
    ],
)
def test_each_part_alone(parts: dict[str, Any], heading: str) -> None:
    text = page(**parts)
    Page(text)
    assert heading in text
    assert text.count("<h2>") == 1


def test_one_interval_and_many_topics_have_a_plot() -> None:
    one = MESSAGES._replace(interval=Interval(0, 1, 1), series={f"t{n}": [n] for n in range(25)}, others=0)
    alone = TRANSACTIONS._replace(interval=Interval(0, 1, 1), undecided=[0])
    assert (Page(page(messages=one)).seen["svg"], Page(page(transactions=alone)).seen["svg"]) == (1, 4)


def test_result_of_a_reconciliation_alone_needs_no_spark(tmp_path: Path) -> None:
    source = tmp_path / "r.json"
    source.write_bytes(report.reconciliation.to_json(RESULT))
    said: list[str] = []
    settings = Settings(output=str(tmp_path / "r.html"), reconciliation=str(source))
    assert report.run(settings, SparkSettings(), said.append) == 0
    assert said == [f"wrote {tmp_path / 'r.html'}"]
    assert "3 differences" not in (tmp_path / "r.html").read_text()
    assert "2 differences" in (tmp_path / "r.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "nothing to report .*--reconciliation"),
        ({"url": "u"}, "neither --topics nor --pattern"),
        ({"topics": ("t",)}, "neither --url nor --path"),
        ({"messages_path": "m", "url": "u"}, "instead of a broker"),
        ({"transactions": "t", "output": "no/such/directory/r.html"}, "no directory for --output"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        check(Settings(**given))


def test_sizes_have_units() -> None:
    assert [shown_bytes(count) for count in (None, 0, 1_023, 1_536, 5 << 30)] == [
        "",
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
