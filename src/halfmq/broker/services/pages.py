"""The requested page of a list. Front doors pass both values as the client's text."""

from typing import Final

from halfmq import limits
from halfmq.core.decision import Refused, Why

LISTED_MAX: Final = limits.TRANSACTIONS_LISTED_MAX
_COUNT_DIGITS_MAX: Final = len(str(LISTED_MAX))
_START_DIGITS_MAX: Final = 18


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
