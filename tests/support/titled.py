"""Promises of docs/promises.md that have a title and no number."""

import re
from typing import Final

from tests.mutation.hunters import ROOT

#: The sections that have them.
OUTBOX: Final = "The outbox and its relay"
COORDINATORS: Final = "Coordinators"
HANDLERS: Final = "Handlers that send, and compensation"
DAMAGE: Final = "Damage"
TCC: Final = "Try, confirm, cancel"


def titles(*sections: str) -> list[str]:
    """Of the promises of these sections, in the order of the page."""
    page = (ROOT / "docs" / "promises.md").read_text()
    texts = [page.split(f"\n## {title}\n")[1].split("\n## ")[0] for title in sections]
    return [title for text in texts for title in re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE)]
