"""The checker's rows in bounded memory: in lists, and beyond the memory budget in a temporary SQLite database.

The checker needs all rows of one message, transaction or queue together. Every table is read once, grouped by a key or
sorted, and is empty afterwards.

Rows are tuples of integers, strings, None, and tuples of these. A row that was in the database has lists for inner tuples.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

import msgspec

Row = tuple[Any, ...]

#: Memory of a block of events, of its rows, and of SQLite itself, bytes.
_FIXED_BYTES: Final = 31 << 20
#: A partition is grouped in memory, so this many times more rows than fit there can be grouped.
_PARTITIONS: Final = 256

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(tuple).decode
_decode_rows: Final = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode


class _Table(Protocol):
    rows: list[Row]

    def spill(self) -> None: ...


class Tables:
    """All tables of one check, in ``memory_bytes``.

    The caller calls ``bound`` after every few thousand rows, and ``close`` at the end.

    Raises:
        sqlite3.Error: the temporary file cannot be written, from every method that reads or writes rows.
    """

    def __init__(self, memory_bytes: int) -> None:
        #: Bytes of rows that were moved to the database.
        self.spilled_bytes = 0
        # The rest is for SQLite's page cache, its sorter (as much as the cache), and unmatched requests.
        self._held_max = max(memory_bytes // 4, (memory_bytes - _FIXED_BYTES) // 16 * 11)
        self._tables: list[_Table] = []
        # A database named "" is a file that SQLite creates when its cache is full, and that no other process sees.
        self.database = sqlite3.connect("", isolation_level=None)
        self.database.execute(f"PRAGMA cache_size = -{memory_bytes // 16 >> 10}")
        self.database.execute("PRAGMA journal_mode = OFF")
        self.database.execute("BEGIN")

    def add(self, table: _Table) -> None:
        """Register a table, for ``bound``."""
        self._tables.append(table)

    def bound(self, held_bytes: float) -> bool:
        """Move all rows to the database if ``held_bytes``, their size, exceeds the memory budget. Whether it did."""
        if held_bytes <= self._held_max:
            return False
        for table in self._tables:
            table.spill()
        return True

    @property
    def rows_held(self) -> int:
        """The number of rows in memory."""
        return sum(len(table.rows) for table in self._tables)

    def insert(self, table: str, columns: int, rows: Iterable[Row]) -> None:
        """Insert ``rows``, whose last column is bytes."""
        values = ", ".join("?" * columns)
        self.database.executemany(f"INSERT INTO {table} VALUES ({values})", self._counted(rows))  # nosec B608 # noqa: S608 - names of our own tables and columns

    def _counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.spilled_bytes += len(row[-1])
            yield row

    def close(self) -> None:
        """Close the database, which deletes its file."""
        self.database.close()


class GroupedTable:
    """Rows grouped by their first field. ``add(row)`` adds one."""

    def __init__(self, tables: Tables, name: str) -> None:
        #: The rows in memory.
        self.rows: list[Row] = []
        self.add = self.rows.append
        self._tables = tables
        self._name = name
        self._spilled = 0
        tables.add(self)
        tables.database.execute(f"CREATE TABLE {name} (partition INTEGER, rows BLOB)")
        tables.database.execute(f"CREATE INDEX {name}_by_partition ON {name} (partition)")

    def __len__(self) -> int:
        return self._spilled + len(self.rows)

    def spill(self) -> None:
        """Move the rows in memory to the database, where all rows of a key are in one partition."""
        partitions: list[list[Row]] = [[] for _ in range(_PARTITIONS)]
        for row in self.rows:
            partitions[hash(row[0]) % _PARTITIONS].append(row)
        encoded = ((number, _encode(rows)) for number, rows in enumerate(partitions) if rows)
        self._tables.insert(self._name, 2, encoded)
        self._spilled += len(self.rows)
        self.rows.clear()

    def groups(self) -> Iterator[list[Row]]:
        """All rows, grouped by their first field. Rows may be added to other tables meanwhile."""
        if not self._spilled:
            yield from _grouped(self.rows)
            return
        self.spill()
        database = self._tables.database
        for number in range(_PARTITIONS):
            parts = database.execute(f"SELECT rows FROM {self._name} WHERE partition = ?", (number,))  # nosec B608 # noqa: S608 - names of our own tables and columns
            yield from _grouped([row for (part,) in parts for row in _decode_rows(part)])
        database.execute(f"DELETE FROM {self._name}")  # nosec B608 # noqa: S608 - names of our own tables and columns
        self._spilled = 0


def _grouped(rows: list[Row]) -> Iterator[list[Row]]:
    """Empties ``rows``, and frees each group after its check, whose results are no larger."""
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        group = by_key.get(row[0])
        if group is None:
            by_key[row[0]] = [row]
        else:
            group.append(row)
    rows.clear()
    while by_key:
        yield by_key.popitem()[1]


class SortedTable:
    """Rows sorted by their first ``fields`` fields. ``add(row)`` adds one."""

    def __init__(self, tables: Tables, name: str, fields: int) -> None:
        #: The rows in memory.
        self.rows: list[Row] = []
        self.add = self.rows.append
        self._tables = tables
        self._name = name
        self._fields = fields
        self._columns = ", ".join(f"field_{number}" for number in range(fields))
        self._spilled = False
        tables.add(self)
        tables.database.execute(f"CREATE TABLE {name} ({self._columns}, row)")

    def spill(self) -> None:
        """Move the rows in memory to the database."""
        self._spilled = True
        encoded = ((*row[: self._fields], _encode(row)) for row in self.rows)
        self._tables.insert(self._name, self._fields + 1, encoded)
        self.rows.clear()

    def sorted(self) -> Iterator[Row]:
        """All rows, sorted. Call it once."""
        if not self._spilled:
            self.rows.sort()
            yield from self.rows
            return
        self.spill()
        select = f"SELECT row FROM {self._name} ORDER BY {self._columns}"  # nosec B608 # noqa: S608 - names of our own tables and columns
        for (row,) in self._tables.database.execute(select):
            yield _decode(row)
