"""The rows of a transaction table, read from its files."""

from pathlib import Path

from halfmq.runtime.disk import Disk
from halfmq.store.consume_queue import list_bases
from halfmq.store.layout import ROW_EMPTY, TRANSACTION_ROW
from halfmq.store.transaction_table import TransactionRow


def rows_of(disk: Disk, directory: Path) -> dict[int, TransactionRow]:
    """Rows by half index."""
    rows: dict[int, TransactionRow] = {}
    for base in list_bases(disk, directory, ".tx"):
        data = disk.content(directory / f"{base:020d}.tx")  # type: ignore[attr-defined]  # a FaultyDisk
        found = map(TransactionRow._make, TRANSACTION_ROW.iter_unpack(data))
        rows |= {base + number: row for number, row in enumerate(found) if row.state != ROW_EMPTY}
    return rows
