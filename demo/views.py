"""One picture of the same orders for each place where they ended up, in a form that can be compared to the cent.

A view is a set of records, one for each order (or message, or row) that was found there, repeats included. Money and
quantities are integers. ``checksum`` stands for the lines, product by product, whatever their order.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class View:
    name: str
    basket_ids: Ints
    cents: Ints
    #: Empty where the place knows no lines.
    lines: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    quantity: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    checksum: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def has_lines(self) -> bool:
        return len(self.lines) == len(self.basket_ids)

    @property
    def total_cents(self) -> int:
        return int(self.cents.sum())

    @property
    def total_lines(self) -> int | None:
        return int(self.lines.sum()) if self.has_lines else None

    @classmethod
    def of_lines(cls, name: str, basket_ids: Ints, products: Ints, quantity: Ints, cents: Ints) -> Self:
        """One record for each basket, from its lines in any order."""
        order = np.argsort(basket_ids, kind="stable")
        ids, products, quantity, cents = basket_ids[order], products[order], quantity[order], cents[order]
        starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))) if len(ids) else np.empty(0, np.intp)
        if not len(starts):
            return cls(name, ids, cents, cents, cents, cents)
        return cls(
            name,
            ids[starts],
            np.add.reduceat(cents, starts),
            np.diff(np.append(starts, len(ids))).astype(np.int64),
            np.add.reduceat(quantity, starts),
            np.add.reduceat(line_checksums(products, quantity, cents), starts),
        )

    def only(self, wanted: NDArray[np.bool_]) -> Self:
        pick = (lambda column: column[wanted]) if self.has_lines else (lambda column: column)
        return type(self)(
            self.name,
            self.basket_ids[wanted],
            self.cents[wanted],
            pick(self.lines),
            pick(self.quantity),
            pick(self.checksum),
        )


def line_checksums(products: Ints, quantity: Ints, cents: Ints) -> Ints:
    """64 bits for each line; sums of them (modulo 2**64) stand for a set of lines."""
    with np.errstate(over="ignore"):
        mixed = products.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= (quantity.astype(np.uint64) + np.uint64(1)) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= (cents.astype(np.uint64) + np.uint64(1)) * np.uint64(0x165667B19E3779F9)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
    return mixed.view(np.int64)


def ints(values: object) -> Ints:
    return np.asarray(values, dtype=np.int64)
