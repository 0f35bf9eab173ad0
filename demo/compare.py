"""What is missing, phantom, duplicated or different in a view, against what there should be. Pure."""

from dataclasses import dataclass, field

import numpy as np

from demo.views import View

#: Key -> cents, points or a number.
Cells = dict[tuple[object, ...], int]

#: Baskets named in the report for each kind of difference.
EXAMPLES_MAX = 5


@dataclass(frozen=True)
class Finding:
    """One view against the expected one. All counts are zero when it agrees."""

    name: str
    records: int
    lines: int | None
    cents: int
    missing: int
    phantom: int
    duplicated: int
    #: Baskets that are there once and whose money, lines or quantities differ.
    different: int
    #: Sum of the differences, cents; also from what is missing, phantom or duplicated.
    cents_off: int
    examples: list[str] = field(default_factory=list)
    #: ``cents`` are not money but points or a number of baskets.
    is_count: bool = False

    @property
    def differences(self) -> int:
        return self.missing + self.phantom + self.duplicated + self.different + (self.cents_off != 0)


def compare(expected: View, view: View) -> Finding:
    """``expected`` has each basket once."""
    seen, first, counts = np.unique(view.basket_ids, return_index=True, return_counts=True)
    missing = np.setdiff1d(expected.basket_ids, seen, assume_unique=True)
    phantom = np.setdiff1d(seen, expected.basket_ids, assume_unique=True)
    wanted = np.isin(seen, expected.basket_ids, assume_unique=True)
    duplicated = seen[wanted & (counts > 1)]
    once = wanted & (counts == 1)
    different = _different(expected, view, seen[once], first[once])
    cents_off = view.total_cents - expected.total_cents
    examples = [
        f"{what} {', '.join(map(str, ids[:EXAMPLES_MAX].tolist()))}"
        for what, ids in (
            ("missing", missing), ("phantom", phantom), ("duplicated", duplicated), ("different", different),
        )
        if len(ids)
    ]  # fmt: skip
    return Finding(
        view.name, len(view.basket_ids), view.total_lines, view.total_cents,
        len(missing), len(phantom), int((counts[wanted] - 1).sum()), len(different), cents_off, examples,
    )  # fmt: skip


def _different(expected: View, view: View, ids: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Those of ``ids`` (their places in ``view`` are ``at``) that are not equal to what was expected."""
    sorter = np.argsort(expected.basket_ids)
    there = sorter[np.searchsorted(expected.basket_ids, ids, sorter=sorter)]
    unequal = view.cents[at] != expected.cents[there]
    if view.has_lines and expected.has_lines:
        for name in ("lines", "quantity", "checksum"):
            unequal |= getattr(view, name)[at] != getattr(expected, name)[there]
    return ids[unequal]


def compare_cells(name: str, expected: Cells, found: Cells, *, is_count: bool = False) -> Finding:
    """Sums by key (department and day, household): each cell to the cent, or to the point."""
    missing = sorted(expected.keys() - found.keys(), key=str)
    phantom = sorted(found.keys() - expected.keys(), key=str)
    different = sorted((key for key in expected.keys() & found.keys() if expected[key] != found[key]), key=str)
    examples = [
        f"{what} {'; '.join(' '.join(map(str, key)) for key in keys[:EXAMPLES_MAX])}"
        for what, keys in (("missing", missing), ("phantom", phantom), ("different", different))
        if keys
    ]
    off = sum(found.values()) - sum(expected.values())
    return Finding(
        name,
        len(found),
        None,
        sum(found.values()),
        len(missing),
        len(phantom),
        0,
        len(different),
        off,
        examples,
        is_count,
    )
