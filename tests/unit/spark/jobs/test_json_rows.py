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
        ("local", pa.timestamp("us")),
        ("prices", pa.map_(pa.string(), pa.decimal128(10, 2))),
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
        "local": None, "prices": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"\\u0031.5"', "1.50"),
        ("1.5", "1.50"),
        ('"1.5"', "1.50"),
        ('"-12"', "-12.00"),
        ('"+.5e1"', "5.00"),
        ("12e3", "12000.00"),
        ('"3."', "3.00"),
    ],
)
def test_decimal_that_fits(text: str, value: str) -> None:
    assert values(b'{"id": 1, "amount": %b}' % text.encode())["amount"] == Decimal(value)
    # An escape anywhere selects the exact decoder.
    found = values(b'{"id": 1, "prices": {"k": %b}, "name": "\\n"}' % text.encode())
    assert found["prices"] == [("k", Decimal(value))]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-11-24T08:00:00.123456000Z", 1795507200123456),
        ("2026-11-24 09:00:00.5+01:00", 1795507200500000),
        ("2026-11-24T08:00:00", 1795507200000000),
        ("0001-01-01T00:00:00Z", -62135596800000000),
        ("9999-12-31T23:59:59.999999Z", 253402300799999999),
        ("0001-01-01T01:00:00+01:00", -62135596800000000),
    ],
)
def test_timestamp_that_fits(text: str, micros: int) -> None:
    (column,) = JsonRows(pa.schema([("at", SCHEMA.field("at").type)])).parse([b'{"at": "%b"}' % text.encode()]).columns
    assert column.cast(pa.int64()).to_pylist() == [micros]


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
        (b'{"id": 1, "amount": " 1"}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "amount": "1_0"}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "amount": "1\\n"}', WRONG_TYPE, "$.amount"),
        ('{"id": 1, "amount": "\u0661"}'.encode(), WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "amount": "NaN"}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "amount": true}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "amount": true, "name": "\\n"}', WRONG_TYPE, "Expected `decimal`, got `bool` - at `$.amount`"),
        (b'{"id": 1, "amount": {}, "name": "\\n"}', WRONG_TYPE, "Expected `decimal`, got `object` - at `$.amount`"),
        (b'{"id": 1, "amount": "1e999999999999999999999", "name": "\\n"}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "at": 1.5, "name": "\\n"}', WRONG_TYPE, "Expected `datetime`, got `float` - at `$.at`"),
        (b'{"id": 1, "at": "yesterday", "name": "\\n"}', WRONG_TYPE, "$.at"),
        (b'{"id": 1, "at": "2026-11-24T08:00:00\\u002e123456789Z"}', WRONG_TYPE, "microsecond"),
        (b'{"id": 1, "amount": "1\\u005f0"}', WRONG_TYPE, "$.amount"),
        (b'{"id": 1, "prices": {"k": "1_0"}}', WRONG_TYPE, "$.prices"),
        (b'{"id": 1, "at": 1234}', WRONG_TYPE, "$.at"),
        (b'{"id": 1, "at": "2026-11-24T08:00:00.123456789Z"}', WRONG_TYPE, "microsecond"),
        (b'{"id": 1, "at": "2026-11-24T08:00:00.0000001"}', WRONG_TYPE, "microsecond"),
        (b'{"id": 1, "at": "0001-01-01T00:00:00+01:00"}', WRONG_TYPE, "years 1 to 9999"),
        (b'{"id": 1, "at": "9999-12-31T23:59:59-01:00"}', WRONG_TYPE, "years 1 to 9999"),
        (b'{"id": 1, "at": "yesterday"}', WRONG_TYPE, "$.at"),
        (b'{"id": 1, "local": "2026-11-24T08:00:00.123456789"}', WRONG_TYPE, "microsecond"),
        (b'{"id": 1, "local": "2026-11-24T08:00:00Z"}', WRONG_TYPE, "no timezone"),
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


def test_required_decimal_or_timestamp_that_is_null_is_missing() -> None:
    rows = JsonRows(
        pa.schema([("amount", SCHEMA.field("amount").type), ("at", SCHEMA.field("at").type)]), ("amount", "at")
    )
    found = rows.parse(bodies := [
        b'{"amount": null, "at": "2026-11-24T08:00:00Z"}', b'{"amount": 1, "at": null}', b'{"amount": 1}',
        b'{"amount": null, "at": "2026-11-24T08:00:00.0000000Z"}', b'{"amount": 1, "at": null, "x": "\\n"}',
    ])  # fmt: skip
    assert [found.rejected[number].reason for number in range(len(bodies))] == [MISSING] * len(bodies)


def test_no_body_at_all() -> None:
    assert ROWS.parse([None]).rejected[0].reason == NOT_JSON
    assert [column.to_pylist() for column in ROWS.parse([]).columns] == [[]] * len(SCHEMA)


def test_type_that_is_not_supported() -> None:
    with pytest.raises(UsageError, match=r"column x\.y has type duration"):
        JsonRows(pa.schema([("x", pa.struct([("y", pa.duration("us"))]))]))
