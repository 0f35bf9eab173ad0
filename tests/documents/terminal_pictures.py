"""Pictures of a terminal for docs/operations.md: its commands, as they run against a broker that has something to show.

python -m tests.documents.terminal_pictures       makes them again; a test fails while a picture lacks a command of the page
"""

import inspect
import io
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tests.documents.pages import ROOT, blocks, commands

_PAGE: Final = "docs/operations.md"
PICTURES: Final = ROOT / "docs" / "pictures"
#: By file name: title, and the first words of the commands in it.
SHOWN: Final = {
    "stuck.svg": ("A transaction is stuck: which, why, who should answer", ("halfmq tx list", "halfmq tx show", "halfmq client list")),
    "dead-letters.svg": (
        "A consumer gave up: how far behind it is, what died and why, what would be sent again",
        ("halfmq group lag", "halfmq dead list", "halfmq dead redrive"),
    ),
    "preview.svg": ("Before something is changed: what it would be", ("halfmq group reset", "halfmq client kick", "halfmq store verify")),
}  # fmt: skip
_FORMAT: Final[str] = inspect.signature(Console.export_svg).parameters["code_format"].default
#: Without fonts that a browser would load from elsewhere.
_OWN_FORMAT: Final = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", _FORMAT, flags=re.DOTALL)
_COLUMNS: Final = 132


def commands_in(shown: Iterable[str]) -> list[str]:
    """Those of the page that begin with these words."""
    return [
        command
        for words in shown
        for block in blocks(_PAGE)
        for command in commands(block)
        if command.startswith(words)
    ]


def picture(name: str, lines: Iterable[str]) -> str:
    """``lines`` in a terminal, as SVG."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(Text(line, style="bold" if line.startswith("$ ") else ""), crop=False)
    return console.export_svg(title=SHOWN[name][0], code_format=_OWN_FORMAT, unique_id=name.removesuffix(".svg"))


def main() -> None:
    from tests.documents.test_operations_page import shown_by, with_incidents

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        with with_incidents(directory) as broker:
            for name, (_, shown) in SHOWN.items():
                lines = []
                for command in commands_in(shown):
                    said = shown_by(command, broker, directory).replace(str(directory), "")
                    lines += [f"$ {command}", *said.splitlines(), ""]
                (PICTURES / name).write_text(picture(name, lines[:-1]))


if __name__ == "__main__":
    main()
