"""The table of decision 0056, from ``halfmq.broker.peer_state``.

python -m tests.support.peer_state_page        writes it; a test fails while page and code differ
"""

from pathlib import Path
from typing import Final

from halfmq.broker.peer_state import TABLE

PAGE: Final = Path(__file__).parents[2] / "docs" / "decisions" / "0056-state-that-a-peer-can-create.md"
_BEGIN: Final = "<!-- from the code -->\n"
_END: Final = "<!-- to here -->\n"


def with_table(text: str) -> str:
    """The page ``text`` with the table as the code has it."""
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"the page has no lines {_BEGIN.strip()} and {_END.strip()}"
    rows = "".join(f"| {row.what} | {row.pays} | {row.most} | {row.one} | {row.goes} |\n" for row in TABLE)
    return f"{before}{_BEGIN}| state | who pays | maximum | one user or address | how it goes away |\n|---|---|---|---|---|\n{rows}{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
