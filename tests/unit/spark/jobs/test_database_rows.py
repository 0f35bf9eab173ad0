"""Rows of a database to Parquet: names and types, pieces whose types differ, errors that say what to do."""

import sqlite3
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halfmq.errors import ConnectError, MissingDependency, UsageError
from halfmq.spark.jobs import database_rows
from halfmq.spark.jobs.database_rows import arrow, common, copy


@pytest.fixture
def shop(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id BIGINT, price NUMERIC(10, 2), sold_at TIMESTAMP, note TEXT)")
        rows = [(n, n / 4, f"2026-01-01 10:00:{n:02d}", None if n < 7 else f":n{n}") for n in range(10)]
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
    database.close()
    return f"sqlite:///{tmp_path / 'shop.db'}"


def table_of(copied: database_rows.Copied) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in copied.files)


def test_table_in_pieces_with_its_types(shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_rows, "PIECE_ROWS", 3)
    copied = copy(shop, "orders", None, ["note", "id", "price", "sold_at"], None, tmp_path)
    assert (copied.rows, len(copied.files)) == (10, 4)
    table = table_of(copied)  # fails unless all have one schema
    assert table.column_names == ["note", "id", "price", "sold_at"]
    assert table["id"].to_pylist() == list(range(10))
    assert table["price"].to_pylist()[3] == Decimal("0.75")
    assert table["note"].to_pylist() == [None] * 7 + [":n7", ":n8", ":n9"]
    assert pa.types.is_timestamp(table.schema.field("sold_at").type)


def test_condition_may_contain_colons(shop: str, tmp_path: Path) -> None:
    copied = copy(shop, "orders", None, ["id"], "note = ':n8' OR id < 1", tmp_path)
    assert table_of(copied)["id"].to_pylist() == [0, 8]


def test_query_is_passed_on_as_it_is(shop: str, tmp_path: Path) -> None:
    query = "SELECT id AS n, note FROM orders WHERE note LIKE '%:n8' OR id % 10 = 0"
    assert table_of(copy(shop, None, query, ["n"], None, tmp_path))["n"].to_pylist() == [0, 8]


def test_columns_that_are_always_null_and_tables_without_rows(shop: str, tmp_path: Path) -> None:
    copied = copy(shop, None, "SELECT id, note FROM orders WHERE id < 5", ["id", "note"], None, tmp_path)
    assert pa.types.is_null(copied.schema.field("note").type)
    empty = copy(shop, "orders", None, ["id"], "id > 99", tmp_path)
    assert (empty.files, empty.rows, empty.schema.names) == ((), 0, ["id"])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"table": "order"}, r"no table order \(it has orders\)"),
        ({"columns": ["x"]}, r"no column x \(it has id, price"),
        ({"table": None, "query": "SELECT id FROM orders"}, r"no column price \(it has id\)"),
        ({"table": None, "query": "SELEC"}, "refuses the query: near"),
        ({"table": None, "query": "DELETE FROM orders WHERE 1 = 0"}, "returns no rows"),
        ({"where": "x = 5"}, "refuses the query: no such column"),
        ({"url": "sqlite:///{}/other.db"}, "no database file"),
        ({"url": "shop.db"}, "not a URL"),
        ({"url": "sqlite+aiosqlite:///{}/shop.db"}, "asynchronous"),
        ({"url": "nothing://x"}, "knows no database nothing"),
    ],
)
def test_what_is_wrong_is_named(shop: str, tmp_path: Path, given: dict[str, object], error: str) -> None:
    values = {"url": shop, "table": "orders", "query": None, "columns": ["id", "price"], "where": None, **given}
    values["url"] = str(values["url"]).format(tmp_path)
    with pytest.raises(UsageError, match=error):
        copy(**values, directory=tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / "other.db").exists()


def test_driver_that_is_not_installed_and_server_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"driver of mysql://u:\*\*\*@h/d is not installed.*MySQLdb"):
        copy("mysql://u:secret@h/d", "t", None, ["id"], None, tmp_path)
    with pytest.raises(ConnectError, match=r"no connection to postgresql\+psycopg://u:\*\*\*@127.0.0.1:1/d"):
        copy("postgresql+psycopg://u:secret@127.0.0.1:1/d", "t", None, ["id"], None, tmp_path)


def test_values_without_a_common_type_are_refused() -> None:
    for values in ([1, "a"], [[1], [2]], [2**70]):
        with pytest.raises(UsageError, match=r"column c has .*CAST"):
            arrow(values, "c")
    assert arrow([UUID(int=1), None], "c").to_pylist() == [str(UUID(int=1)), None]
    assert arrow([Decimal("1.5")], "c").type == pa.decimal128(38, 1)


def test_pieces_get_the_widest_type() -> None:
    def merged(*kinds: pa.DataType) -> pa.DataType:
        return common([pa.schema([("c", kind)]) for kind in kinds], ["c"]).field("c").type

    assert merged(pa.null(), pa.int64()) == pa.int64()
    assert merged(pa.int64(), pa.float64()) == pa.float64()
    assert merged(pa.decimal128(38, 1), pa.null(), pa.decimal128(38, 3)) == pa.decimal128(38, 3)
    assert merged(pa.null(), pa.null()) == pa.null()
    with pytest.raises(UsageError, match="values of types int64, string"):
        merged(pa.int64(), pa.string())


@pytest.mark.parametrize(
    "values",
    [
        [Decimal("1e30"), Decimal("1e-12")],
        [Decimal("1e39")],
        [Decimal("1e-40")],
    ],
)
def test_decimals_of_more_than_38_digits_are_refused(values: list[Decimal]) -> None:
    with pytest.raises(UsageError, match=r"column c has numbers that do not fit decimal128.*CAST"):
        arrow(values, "c")


def test_pieces_without_a_type_that_fits_all_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece has a whole number that no double is, the second has doubles."""
    monkeypatch.setattr("halfmq.spark.jobs.database_rows.PIECE_ROWS", 2)
    with sqlite3.connect(tmp_path / "mixed.db") as database:
        database.execute("CREATE TABLE t (id INTEGER, c)")
        database.execute("INSERT INTO t VALUES (1, 1152921504606846977), (2, 7), (3, 0.5)")
    database.close()
    with pytest.raises(UsageError, match=r"column c has numbers that do not fit double.*CAST"):
        copy(f"sqlite:///{tmp_path}/mixed.db", None, "select id, c from t order by id", ["id", "c"], None, tmp_path)
