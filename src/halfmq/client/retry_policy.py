"""``Retry``: how often, when and after which exceptions a consumer gets a message again that its handler has failed on.

The policy says nothing about what a failure is: an exception of the handler, or of the decoding of its argument. The retry of requests that
a client sends is ``retry``.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from halfmq import limits
from halfmq.client.arguments import checked_count, checked_seconds
from halfmq.errors import UsageError

#: The longest delay that a broker accepts, seconds.
DELAY_MAX_S: Final = limits.TIMER_DELAY_MAX_MS / 1000
#: What the decoding of a body raises if it is the body's fault: msgspec for JSON, pydantic and UTF-8 a ValueError, and JSON that is nested
#: too deep. Anything else, such as a type that msgspec does not support, is the application's fault, and passes when that is mended.
UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class NotDecoded(Exception):
    """The body cannot become the type of the handler's parameter, and no attempt will change that."""


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """When a message is handled again whose handler has raised, and when it is given up.

    ``times``: handled again so often, after the first time; 16 by default, and 0 for never. After that it goes to the dead-letter queue
    (or to ``on_dead``).

    ``delays``: seconds before each of these; the last one repeats. Each is at least 0 and at most 3 days. A halfmq broker waits exactly so
    long; Apache RocketMQ the next standard level (1 s, 5 s, 10 s, 30 s, 1 min, ..., 2 h), rounded up. A message with a sharding key waits
    in the process, which is exact everywhere. Without ``delays``: 10 s, 30 s, 1 min and so on up to 2 h by the broker; 1 s, 2 s, 4 s and
    so on up to 10 min with a sharding key.

    ``dead_on``: an exception that another attempt cannot change, or several, such as ``(CardExpired, Closed)``: given up at once, with the
    exception as the reason (``halfmq dead show``). A body that cannot be decoded into the handler's parameter always is.

    Raises:
        UsageError: an argument is wrong.
    """

    times: int
    delays: tuple[float, ...]
    dead_on: tuple[type[Exception], ...]

    def __init__(
        self,
        *,
        times: int = limits.RETRY_TIMES_MAX,
        delays: Sequence[float] = (),
        dead_on: type[Exception] | Collection[type[Exception]] = (),
    ) -> None:
        # By hand, since it takes more types than it keeps.
        object.__setattr__(self, "times", checked_count(times, "times", 0))
        object.__setattr__(self, "delays", _delays(delays))
        object.__setattr__(self, "dead_on", _exceptions(dead_on))

    def delay_s(self, failures: int) -> float | None:
        """Seconds before the next attempt, after ``failures`` of them; None: no delays were given."""
        if not self.delays:
            return None
        return self.delays[min(max(failures, 1), len(self.delays)) - 1]

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether a message is given up at once after this exception."""
        return isinstance(error, (NotDecoded, *self.dead_on))


def _delays(given: Any) -> tuple[float, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"delays={given!r} are no delays", hint="delays=(1, 10, 60), in seconds")
    return tuple([checked_seconds(one, "a delay", zero=True, at_most=DELAY_MAX_S) for one in given])


def _exceptions(given: Any) -> tuple[type[Exception], ...]:
    kinds = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise UsageError(
                f"dead_on={given!r} has {kind!r}, which is no exception", hint="dead_on=(ValidationError,)"
            )
    return kinds


def checked_retry(retry: object, retries: object, default: "Retry | None" = None) -> Retry:
    """The policy that ``retry``, or ``retries`` as its short form, says; else ``default``, else the defaults of ``Retry``.

    Raises:
        UsageError: both, or another type.
    """
    if retries is not None:
        if retry is not None:
            raise UsageError("retry and retries say the same", hint="retry=Retry(times=5, delays=(1, 10, 60))")
        return Retry(times=checked_count(retries, "retries", 0))
    if retry is None:
        return default or Retry()
    if not isinstance(retry, Retry):
        raise UsageError(f"retry={retry!r} is no Retry", hint="retry=Retry(times=5, delays=(1, 10, 60))")
    return retry
