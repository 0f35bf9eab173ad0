"""What a fuzz target is: one function over bytes that raises when a promise is broken, and where its inputs begin."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Broken(AssertionError):
    """A promise does not hold for this input."""


class Outcome(NamedTuple):
    """What a call came to: its value, or the documented error that it raised."""

    value: Any
    error: Exception | None

    @property
    def kind(self) -> str:
        return "value" if self.error is None else type(self.error).__name__


def outcome(
    documented: type[Exception] | tuple[type[Exception], ...], call: Callable[..., Any], *given: Any
) -> Outcome:
    """Call it. An error that is not documented comes out as it is, and is the finding."""
    try:
        return Outcome(call(*given), None)
    except documented as error:
        return Outcome(None, error)


def same(what: str, left: object, right: object) -> None:
    if left != right:
        raise Broken(f"{what}: {_short(left)} is not {_short(right)}")


def hold(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)} characters)"


def whole(data: bytes) -> list[bytes]:
    return [data]


def joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(parts)


class Target(NamedTuple):
    """``run`` takes any bytes. ``split`` and ``join`` let a mutation change one part and keep the lengths around it right."""

    name: str
    promise: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    #: Modules whose lines count as covered.
    covers: tuple[str, ...]
    #: Fresh inputs in each ``make test``.
    fresh: int = 400
    split: Callable[[bytes], list[bytes]] = whole
    join: Callable[[Sequence[bytes]], bytes] = joined
