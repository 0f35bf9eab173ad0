import pytest
from sqlalchemy import Column, MetaData, Table
from sqlalchemy.dialects import mssql, mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateTable

from halfmq.sql.alchemy.dialects import exact_text


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (mysql.dialect(), "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
        (postgresql.dialect(), 'VARCHAR(64) COLLATE "C"'),
        (sqlite.dialect(), 'VARCHAR(64) COLLATE "BINARY"'),
        (mssql.dialect(), "VARCHAR(64) COLLATE Latin1_General_100_BIN2"),
    ],
)
def test_column_says_that_it_is_compared_byte_by_byte(dialect: Dialect, expected: str) -> None:
    table = Table("t", MetaData(), Column("id", exact_text(64), primary_key=True))
    assert expected in str(CreateTable(table).compile(dialect=dialect))
