"""Pages of a list (``model.text_fields.PageFields``)."""

from collections.abc import Callable, Collection
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from halfmq import limits

LISTED_MAX: Final = limits.TRANSACTIONS_LISTED_MAX
T = TypeVar("T")
K = TypeVar("K")


class Page(NamedTuple, Generic[T]):
    """A part of a list."""

    #: Length of the whole list.
    total: int
    rows: tuple[T, ...]
    #: Start of the next page; 0: there is none.
    following: int


def page_of(known: Collection[K], count: int, start: int, row: Callable[[K], T]) -> Page[T]:
    """The rows of ``count`` items, from number ``start`` on: ``following`` of the previous page, or 0. An item that goes between two pages
    moves the others.
    """
    end = start + count
    return Page(len(known), tuple(map(row, islice(known, start, end))), end if end < len(known) else 0)
