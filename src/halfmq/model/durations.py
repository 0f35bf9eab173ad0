"""Durations as text for people, in log lines, refusals and on the command line."""

from typing import Final

#: Digits of a span. In days that is still far below the maximum of the fields of records that hold one.
SPAN_DIGITS_MAX: Final = 9
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def span_ms(text: str) -> int | None:
    """The milliseconds of a time span such as ``90s`` or ``7d``. None: it is none."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) <= SPAN_DIGITS_MAX and unit in _UNITS_MS):
        return None
    return int(number) * _UNITS_MS[unit]


def span(ms: int) -> str:
    """A duration for people: 850 ms, 12 s, 5 min, 3 h, 2 days."""
    ms = max(0, ms)
    for unit_ms, name in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= 2 * unit_ms or (unit_ms == 1_000 and ms >= unit_ms):
            return f"{ms // unit_ms} {name}"
    return f"{ms} ms"
