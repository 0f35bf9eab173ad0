"""The part of docs/errors.md that is made from the code.

python -m tests.documents.errors_page        makes it again; a test fails while page and code differ
"""

from collections.abc import Callable
from typing import Final

from halfmq.cli.exit_status import MEANINGS
from tests.documents.pages import ROOT
from tests.support.transactions_page import made, table

PAGE: Final = ROOT / "docs" / "errors.md"


def exit_table() -> str:
    rows = [
        (f"`{command}`" if not at else "", str(status.value), meaning)
        for command, meanings in MEANINGS.items()
        for at, (status, meaning) in enumerate(meanings.items())
    ]
    return table(("command", "exit status", "meaning"), rows)


PARTS: Final[dict[str, Callable[[], str]]] = {"exit statuses": exit_table}


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8"), PARTS), encoding="utf-8")
