"""Pages of a list. Front doors pass the requested one as the client's text."""

from collections.abc import Callable, Collection
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from halfmq import limits
from halfmq.core.decision import Refused, Why

LISTED_MAX: Final = limits.TRANSACTIONS_LISTED_MAX
_COUNT_DIGITS_MAX: Final = len(str(LISTED_MAX))
_START_DIGITS_MAX: Final = 18
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


def page_count(text: str | None) -> int | Refused:
    """Number of rows: 1 to ``LISTED_MAX``. None: ``LISTED_MAX``."""
    if text is None:
        return LISTED_MAX
    if _is_number(text, _COUNT_DIGITS_MAX) and 1 <= int(text) <= LISTED_MAX:
        return int(text)
    return Refused(Why.INVALID_PARAMETER, f"max: 1 to {LISTED_MAX}")


def page_start(text: str | None) -> int | Refused:
    """Start of the page, from the response with the previous page. None: the first row."""
    if text is None:
        return 0
    if _is_number(text, _START_DIGITS_MAX):
        return int(text)
    return Refused(Why.INVALID_PARAMETER, "from: the value in the previous response")


def requested_page(count: str | None, start: str | None) -> tuple[int, int] | Refused:
    """``page_count`` and ``page_start``."""
    rows, first = page_count(count), page_start(start)
    if isinstance(rows, Refused):
        return rows
    return first if isinstance(first, Refused) else (rows, first)


def _is_number(text: str, digits_max: int) -> bool:
    """Whether the text consists of digits that ``int`` accepts; longer texts are not parsed."""
    return text.isascii() and text.isdigit() and len(text) <= digits_max
