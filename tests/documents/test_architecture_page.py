"""ARCHITECTURE.md names files that exist, and its table stays one that can be read."""

import re
import tomllib

from tests.documents.pages import ROOT

_PAGE = (ROOT / "ARCHITECTURE.md").read_text()
#: ``core/state.py`` below src/halfmq or the root; a name alone is somewhere below src.
_FILE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")
ROWS_MAX = 40


def _exists(name: str) -> bool:
    if "/" in name:
        return (ROOT / "src" / "halfmq" / name).exists() or (ROOT / name).exists()
    return any((ROOT / "src").rglob(name))


def test_every_file_that_the_page_names_exists() -> None:
    names = set(_FILE.findall(_PAGE))
    assert len(names) > 100
    assert sorted(name for name in names if not _exists(name)) == []
    assert not _exists("core/nothing.py")
    assert not _exists("nothing.py")


def test_table_of_places_stays_short() -> None:
    table = _PAGE.partition("## To change X, look in Y")[2].partition("\n### ")[0]
    rows = [
        line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| **", "| to change"))
    ]
    assert 30 < len(rows) <= ROWS_MAX


def test_drawing_of_the_layers_is_the_contract() -> None:
    drawn = _PAGE.partition("## Layers\n\n```\n")[2].partition("\n```")[0].splitlines()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in contracts if one["type"] == "layers" and "halfmq.cli" in one["layers"]]
    assert [sorted(line[:28].split()) for line in drawn] == [
        sorted(name.removeprefix("halfmq.") for name in line.split(" | ")) for line in layers
    ]
