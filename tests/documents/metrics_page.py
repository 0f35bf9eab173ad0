"""The tables of docs/metrics.md, which are made from the code.

python -m tests.documents.metrics_page       makes it again; a test fails while page and code differ
"""

from collections.abc import Callable, Mapping
from typing import Final

from halfmq.broker.metrics.families import FAMILIES, NODE_LABELS, PROCESS, ROCKETMQ, Family
from halfmq.relay.metrics import FAMILIES as RELAY
from tests.documents.pages import ROOT
from tests.support.transactions_page import made, table

PAGE: Final = ROOT / "docs" / "metrics.md"


def series_table() -> str:
    return families_table(FAMILIES)


def relay_table() -> str:
    return families_table(RELAY)


def families_table(families: Mapping[str, Family]) -> str:
    rows = []
    for family in families.values():
        labels = (*(NODE_LABELS if family.name.startswith(ROCKETMQ) else ()), *family.labels)
        rows.append(
            (f"`{family.name}`", family.kind, family.unit, ", ".join(f"`{one}`" for one in labels), family.help)
        )
    return table(("series", "type", "unit", "labels", "meaning"), rows)


def process_table() -> str:
    return table(("series", "meaning"), [(f"`{name}`", meaning) for name, meaning in PROCESS.items()])


PARTS: Final[dict[str, Callable[[], str]]] = {"series": series_table, "process": process_table, "relay": relay_table}


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8"), PARTS), encoding="utf-8")
