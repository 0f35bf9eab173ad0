"""The result of a reconciliation: what counts, as JSON and for people."""

import io
import json
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from halfmq.errors import UsageError
from halfmq.spark.jobs.reconciliation import Example, Kind, Result, Total, Values, from_json, show, to_json

RESULT = Result(
    table="orders in sqlite:///shop.db",
    messages="orders in rocketmq://127.0.0.1:9876",
    read_at="2026-11-24T10:00:00.000+00:00",
    rows=1_000,
    messages_read=1_001,
    equal=997,
    counts=dict.fromkeys(Kind, 0) | {Kind.MISSING: 3, Kind.UNREADABLE: 1, Kind.NEWER: 2},
    extra_messages=0,
    compared=["total"],
    totals=[Total("total", Decimal("123456.7"), Decimal(123450), Decimal("-6.7"), True)],
    examples={
        Kind.MISSING: [Example(key={"id": "7"}, rows=1, messages=0), Example(key={"id": None}, rows=1, messages=0)],
        Kind.UNREADABLE: [Example(key={"id": None}, rows=0, messages=1, first_message="t/0/5", reason="not JSON: {")],
    },
)


def shown(result: Result, width: int = 80) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=width))
    return out.getvalue()


def test_newer_messages_are_no_difference_and_totals_are() -> None:
    assert RESULT.differences == 3 + 1 + 1


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(to_json(RESULT))
    assert from_json(path) == RESULT
    assert json.loads(path.read_text())["differences_found"] == 5
    path.write_text('{"table": "x"}')
    with pytest.raises(UsageError, match="is not the result of a reconciliation"):
        from_json(path)
    with pytest.raises(UsageError, match="cannot read"):
        from_json(tmp_path / "nothing.json")


def test_people_see_counts_totals_and_examples() -> None:
    text = shown(RESULT)
    for line in (
        "1,000  orders in sqlite:///shop.db",
        "3  missing     rows of the table without a message",
        "0  phantom",
        "2  newer",
        "missing         id 7\n                  id NULL\n                  and 1 more",
        "unreadable      t/0/5: not JSON: {",
        "5 differences",
    ):
        assert line in text
    assert "total 123,456.7 123,450 -6.7" in " ".join(text.split())
    assert "repeated row" not in text


def test_examples_name_values_and_places() -> None:
    different = Example(key={"a": "1", "b": "x"}, rows=1, messages=1, values=[Values("total", "5", None)])
    assert str(different) == "a 1, b x; total: table 5, message NULL"
    twice = Example(key={"a": "1"}, rows=1, messages=2, first_message="t/0/5", last_message="t/1/9")
    assert str(twice) == "a 1; 2 messages; t/0/5 ... t/1/9"


def test_control_characters_of_messages_do_not_reach_a_terminal() -> None:
    hostile = Example(
        key={"id": None}, rows=0, messages=1, first_message="t/0/5", reason="not JSON: \x1b[2J\nResult: none\u009b"
    )
    result = msgspec.structs.replace(RESULT, examples={Kind.UNREADABLE: [hostile]})
    assert r"t/0/5: not JSON: \x1b[2J\nResult: none\x9b" in shown(result, 200)
