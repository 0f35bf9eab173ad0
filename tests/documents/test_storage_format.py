"""The tables of the page on the storage format say what the program says: place, width and sign of each field, and the kinds of records."""

import re
import struct
from pathlib import Path

import pytest

from halfmq.model import layout
from halfmq.model.layout import Layout
from halfmq.model.records import BATCHED, Kind
from halfmq.store.layout import KEY_ENTRY, QUEUE_ENTRY, SETTLED_ID_ENTRY, TRANSACTION_ROW
from tests.documents.pages import table

PAGE = Path(__file__).parents[2] / "docs" / "storage-format.md"

#: The end of the last line before a table -> the layout.
TABLES: dict[str, Layout] = {
    "### Record head": layout.RECORD_HEAD,
    "and everything behind it moves by 12.": layout.STORED_MESSAGE,
    "MESSAGE and HALF:": layout.MESSAGE_HEAD,
    "COPIED_HALF:": layout.COPIED_HALF_HEAD,
    "DELAYED:": layout.DELAYED_HEAD,
    "COPIED_DELAYED:": layout.COPIED_DELAYED_HEAD,
    "summed by the checksum of its batch, bodies too.": layout.HALF_BATCH_HEAD,
    "An item is one message:": layout.ITEM_HEAD,
    "order of the items:": layout.PAYLOAD_ENTRY,
    "DECIDED:": layout.DECIDED_HEAD,
    "RELEASED begin alike:": layout.VERDICT_HEAD,
    "A ref:": layout.REF,
    "CHECKED:": layout.CHECKED_HEAD,
    "PARKED:": layout.PARKED_HEAD,
    "in the same batch:": layout.OPERATOR_ACTED_HEAD,
    "BASE:": layout.NUMBER_HEAD,
    "TRIM:": layout.NUMBER_HEAD,
    "is queue offset *n*.": QUEUE_ENTRY,
    "starts at a multiple of that.": TRANSACTION_ROW,
    "also of invisible ones:": KEY_ENTRY,
    "generated:": SETTLED_ID_ENTRY,
}
#: Its table follows the one of DECIDED.
BATCH_REF = "| 0 | 8 | offset | int; log offset of the half batch"


def rows_after(before: str) -> list[tuple[int, int, str, str]]:
    """(offset, size, field, meaning) of the rows with a place and a width in the table after the line that ends with ``before``."""
    lines = PAGE.read_text().splitlines()
    is_whole_line = re.fullmatch(r"[A-Z_ ]+:", before)
    (start,) = [
        number if before == BATCH_REF else number + 4
        for number, line in enumerate(lines)
        if (line.startswith(before) if before == BATCH_REF else line == before or (line.endswith(before) and not is_whole_line))
        and lines[number + 2].startswith("|")
    ]  # fmt: skip
    rows = []
    for line in lines[start:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            break
        if cells[0].isdigit() and cells[1].isdigit():
            rows.append((int(cells[0]), int(cells[1]), cells[2], cells[3]))
    return rows


@pytest.mark.parametrize("before", [*TABLES, BATCH_REF])
def test_a_table_says_what_the_layout_says(before: str) -> None:
    known = TABLES.get(before, layout.BATCH_REF)
    stated = rows_after(before)
    assert stated
    fields = {at: known.fields[name] for name, at in known.at.items() if not name.startswith(("reserved", "flags"))}
    first = min(at for at, *_ in stated)
    assert first in (0, layout.RECORD_HEAD.size), "a record's own fields follow its head"
    said = {}
    for at, size, field, meaning in stated:
        if field in ("reserved", "flags") and at not in fields:
            continue
        assert struct.calcsize(">" + fields[at]) == size, field
        if sign := re.match(r"(u?)int\b", meaning):
            assert fields[at].isupper() == bool(sign[1]), field
        said[at] = field
    assert sorted(said) == sorted(at for at in fields if at >= first)


def test_the_page_lists_the_kinds_of_records_with_their_numbers() -> None:
    kinds = {kind.name: int(kind) for kind in Kind} | {"BATCHED": BATCHED}
    listed = table("docs/storage-format.md", "Record head", 1)
    assert [(row["name"], int(row["kind"])) for row in listed] == sorted(kinds.items(), key=lambda kind: kind[1])
