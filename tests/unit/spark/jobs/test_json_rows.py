"""JSON bodies against a schema: a body fits completely, or is rejected with a reason and the place."""

import datetime
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs.json_rows import MISSING, NOT_AN_OBJECT, NOT_JSON, TOO_DEEP, WRONG_TYPE, JsonRows

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("amount", pa.decimal128(10, 2)),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("more", pa.struct([("a", pa.int64()), ("b", pa.bool_())])),
        ("counts", pa.map_(pa.string(), pa.float64())),
    ]
)
ROWS = JsonRows(SCHEMA, ("id",))


def values(body: bytes) -> dict[str, Any]:
    parsed = pickle.loads(pickle.dumps(ROWS)).parse([body])
    assert parsed.fits == [0], parsed.rejected
    return {name: column[0].as_py() for name, column in zip(SCHEMA.names, parsed.columns, strict=True)}


def test_body_that_fits() -> None:
    found = values(
        b'{"id": 1, "amount": 1.5, "name": "x", "at": "2026-11-24T08:00:00+01:00", "day": "2026-11-24", "tags": ["a", null],'
        b' "more": {"a": 3}, "counts": {"k": 2}, "unknown": 5}'
    )
    assert found == {
        "id": 1, "amount": Decimal("1.50"), "name": "x", "at": datetime.datetime(2026, 11, 24, 7, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 11, 24), "tags": ["a", None], "more": {"a": 3, "b": None}, "counts": [("k", 2.0)],
    }  # fmt: skip


def test_null_and_missing_are_equal_unless_required() -> None:
    assert values(b'{"id": 1, "name": null}')["name"] is None
    assert values(b'{"id": 1}')["name"] is None


@pytest.mark.parametrize(
    ("body", "reason", "part"),
    [
        (b"", NOT_JSON, ""),
        (b"{", NOT_JSON, ""),
        (b'{"id": 1} x', NOT_JSON, "trailing"),
        (b"{'id': 1}", NOT_JSON, ""),
        (b'{"id": 1, "name": "\xff"}', NOT_JSON, ""),
        (b"[]", NOT_AN_OBJECT, "array"),
        (b"null", NOT_AN_OBJECT, "null"),
        (b"{}", MISSING, "id"),
        (b'{"id": null}', MISSING, "id"),
        (b'{"id": 1.0}', WRONG_TYPE, "$.id"),
        (b'{"id": "1"}', WRONG_TYPE, "$.id"),
        (b'{"id": 3000000000}', WRONG_TYPE, "$.id"),
        (b'{"id": 1, "name": 5}', WRONG_TYPE, "$.name"),
        (b'{"id": 1, "amount": 1.255}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "amount": 123456789.5}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "at": 1234}', WRONG_TYPE, "$.at"),
        (b'{"id": 1, "day": "2026-13-01"}', WRONG_TYPE, "$.day"),
        (b'{"id": 1, "tags": ["a", 2]}', WRONG_TYPE, "$.tags[1]"),
        (b'{"id": 1, "more": {"b": 1}}', WRONG_TYPE, "$.more"),
    ],
)
def test_body_that_does_not_fit(body: bytes, reason: str, part: str) -> None:
    parsed = ROWS.parse([b'{"id": 1}', body, b'{"id": 2}'])
    assert parsed.fits == [0, 2]
    assert parsed.columns[0].to_pylist() == [1, 2]
    assert parsed.rejected.keys() == {1}
    assert parsed.rejected[1].reason == reason
    assert part in parsed.rejected[1].detail


def test_body_that_is_nested_too_deeply_is_rejected_like_others() -> None:
    deep = b'{"id": 1, "unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    parsed = ROWS.parse([b'{"id": 1}', deep, b'{"id": 2}'])
    assert parsed.fits == [0, 2]
    assert parsed.rejected.keys() == {1}
    assert parsed.rejected[1].reason == TOO_DEEP
    assert "levels" in parsed.rejected[1].detail


def test_no_body_at_all() -> None:
    assert ROWS.parse([None]).rejected[0].reason == NOT_JSON
    assert [column.to_pylist() for column in ROWS.parse([]).columns] == [[]] * len(SCHEMA)


def test_type_that_is_not_supported() -> None:
    with pytest.raises(UsageError, match=r"column x\.y has type duration"):
        JsonRows(pa.schema([("x", pa.struct([("y", pa.duration("us"))]))]))
